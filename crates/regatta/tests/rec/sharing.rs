//! Who reads which examples, and a rate that trains nothing.

use serde_json::Value;

use crate::support::{Scratch, small};

const JOB: [&str; 4] = ["--servers", "1", "--workers", "2"];

/// Files of records with one more than an even number of them in all.
fn with_files(files: usize) -> Scratch {
    let s = Scratch::new();
    let url = "synthetic://ctr?slots=4&vocab=50&dense=3&examples=321";
    let files = files.to_string();
    s.run(&["data", "synth", url, "--out", "data", "--files", &files]).ok();
    let text = small("  data_format: multislot\n  drop_last: False\n  model_save_path: epochs\n");
    let url = "\"synthetic://ctr?slots=4&vocab=50&dense=3&examples=640\"";
    s.write("c.yaml", &text.replace(url, "data"));
    s
}

/// Examples of each epoch, and of each worker in it.
fn examples(s: &Scratch, more: &[&str]) -> Vec<(u64, Vec<u64>)> {
    let flags = ["--report", "report.json"];
    s.run(&[&["train", "-m", "c.yaml", "-o"], more, &JOB, &flags].concat()).ok();
    let report: Value = serde_json::from_str(&s.read("report.json")).unwrap();
    let of = |epoch: &Value| epoch["examples"].as_u64().unwrap();
    let epochs = report["epochs"].as_array().unwrap().iter().enumerate();
    let workers = report["workers"].as_array().unwrap();
    // A worker that resumed tells of its own epochs only.
    let own = |n: usize| {
        let mine =
            |w: &Value| w["epochs"].as_array().unwrap().iter().find(|e| e["epoch"] == n).map(of);
        workers.iter().filter_map(mine).collect()
    };
    epochs.map(|(n, epoch)| (of(epoch), own(n))).collect()
}

#[test]
fn workers_divide_the_data_unless_told_otherwise() {
    let modes: [&[&str]; 3] = [
        &["runner.sync_mode=sync"],
        &["runner.sync_mode=async"],
        &["runner.sync_mode=geo", "runner.geo_step=2"],
    ];
    for mode in modes {
        // The records of one file; two of three files for the first worker.
        for (files, own) in [(1, vec![161, 160]), (3, vec![214, 107])] {
            let s = with_files(files);
            assert_eq!(examples(&s, mode), [(321, own.clone()), (321, own)], "{mode:?}");
        }
    }
}

#[test]
fn the_written_key_has_paddlerecs_meaning() {
    let s = with_files(1);
    let sync = "runner.sync_mode=sync";
    let all = examples(&s, &[sync, "runner.split_file_list=False", "runner.epochs=1"]);
    assert_eq!(all, [(642, vec![321, 321])]);
    let split = ["runner.split_file_list=True", sync];
    let command = [&["train", "-m", "c.yaml", "-o"], &split[..], &JOB].concat();
    s.run(&command).fails(1, &["worker 1 of 2 gets none of 1 files"]);
}

#[test]
fn a_resumed_job_trains_every_example_once() {
    for mode in ["runner.sync_mode=sync", "runner.sync_mode=async"] {
        let s = with_files(1);
        let kept = ["runner.checkpoint.dir=checkpoints", "runner.checkpoint.keep_when_done=True"];
        let run = |epochs: &str| examples(&s, &[&[mode, epochs], &kept[..]].concat());
        assert_eq!(run("runner.epochs=1").len(), 1);
        let again = run("runner.epochs=3");
        assert_eq!(again.last(), Some(&(321, vec![161, 160])), "{mode}");
        assert!(again.iter().all(|(all, _)| *all == 321), "{mode}: {again:?}");
    }
}

#[test]
fn data_smaller_than_a_batch_of_each_worker_are_trained() {
    let s = with_files(1);
    let large = ["runner.train_batch_size=300", "runner.drop_last=auto", "runner.epochs=1"];
    let sync = "runner.sync_mode=sync";
    let out = s.run(&[&["train", "-m", "c.yaml", "-o", sync], &large[..], &JOB].concat()).ok();
    let note = "examples for each of 2 processes (runner.split_file_list divides them) are fewer \
                than runner.train_batch_size (300)";
    assert!(out.contains(note) && out.contains("examples: 321,"), "{out}");
}

#[test]
fn a_rate_of_zero_is_told() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    let rate = "hyper_parameters.optimizer.learning_rate";
    let warning = format!("warning: {rate} is 0: nothing will be learned");
    let train = |keys: &[&str]| s.run(&[&["train", "-m", "c.yaml", "-o"], keys].concat()).ok();
    let said = train(&[&format!("{rate}=0"), "runner.epochs=1"]);
    assert!(said.contains(&warning), "{said}");
    // A schedule with rates of its own trains.
    let own = ["hyper_parameters.optimizer.schedule=linear_warmup", "runner.epochs=1"];
    let rates = ["warmup_steps=5", "start_lr=0.0", "end_lr=0.01"];
    let rates: Vec<String> =
        rates.iter().map(|r| format!("hyper_parameters.optimizer.{r}")).collect();
    let rates: Vec<&str> = rates.iter().map(String::as_str).collect();
    let said = train(&[&own[..], &rates, &[&format!("{rate}=0")]].concat());
    assert!(!said.contains("warning"), "{said}");
}
