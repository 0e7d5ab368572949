//! Reports, curves, seeds and warm starts.

use serde_json::Value;

use crate::support::{Scratch, small};

fn report(s: &Scratch, args: &[&str]) -> Value {
    s.run(&[args, &["--report", "r.json"]].concat()).ok();
    serde_json::from_str(&s.read("r.json")).unwrap()
}

/// Losses to the last bit.
fn losses(report: &Value) -> Vec<u64> {
    let epochs = report["epochs"].as_array().unwrap();
    epochs.iter().map(|e| e["loss"].as_f64().unwrap().to_bits()).collect()
}

#[test]
fn the_shape_of_a_report() {
    let s = Scratch::new();
    s.write("c.yaml", &small("  dataset_debug: True"));
    let report = report(&s, &["train", "-m", "c.yaml"]);
    let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&report), ["config", "epochs", "peak_rss_mb"]);
    assert_eq!(report["config"]["runner"]["seed"], 12345);
    assert_eq!(report["config"]["hyper_parameters"]["optimizer"]["class"], "Adam");
    assert!(report["peak_rss_mb"].as_f64().unwrap() > 1.0);
    let epochs = report["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 2);
    let mut names = keys(&epochs[1]);
    names.sort();
    let expected = ["auc", "epoch", "examples", "examples_per_sec", "loss", "seconds", "stages"];
    assert_eq!(names, expected);
    assert_eq!((&epochs[1]["epoch"], &epochs[1]["examples"]), (&1.into(), &640.into()));
    let stages = &epochs[1]["stages"];
    for stage in ["read", "parse", "pull", "forward", "backward", "push", "wait"] {
        assert!(stages[stage].as_f64().unwrap() >= 0.0, "{stage}");
    }
    assert!(stages["forward"].as_f64().unwrap() > 0.0);
    assert!(stages["backward"].as_f64().unwrap() > 0.0);
    assert_eq!(stages["pull"], 0.0);
    let all = s.list(".");
    assert!(all.iter().all(|f| !f.contains(".tmp")), "{all:?}");
}

#[test]
fn evaluation_reports_all_measures() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    s.run(&["train", "-m", "c.yaml"]).ok();
    let report = report(&s, &["infer", "-m", "c.yaml"]);
    let last = &report["epochs"][1];
    assert_eq!(last["examples"], 320);
    let auc = last["auc"].as_f64().unwrap();
    assert!(auc > 0.5, "{auc}");
    let bucketed = last["metrics"]["auc_bucketed"].as_f64().unwrap();
    assert!((auc - bucketed).abs() < 0.01);
    let (log_loss, loss) = (&last["metrics"]["log_loss"], &last["loss"]);
    assert!((log_loss.as_f64().unwrap() - loss.as_f64().unwrap()).abs() < 1e-5);
}

#[test]
fn the_same_seed_gives_the_same_losses() {
    let s = Scratch::new();
    s.write("c.yaml", &small("  shuffle_buffer: 100"));
    let first = losses(&report(&s, &["train", "-m", "c.yaml"]));
    assert_eq!(first, losses(&report(&s, &["train", "-m", "c.yaml"])));
    let other = ["train", "-m", "c.yaml", "-o", "runner.seed=2"];
    assert_ne!(first, losses(&report(&s, &other)));
}

#[test]
fn reader_threads_do_not_matter_in_memory() {
    let s = Scratch::new();
    let url = "synthetic://ctr?slots=4&vocab=50&dense=3&examples=640";
    s.run(&["data", "synth", url, "--out", "data", "--files", "7"]).ok();
    let text = small("  reader_type: InmemoryDataset\n  local_shuffle: True");
    s.write("c.yaml", &text.replace(&format!("\"{url}\""), "data"));
    let with = |threads: u32| {
        let over = format!("runner.reader_threads={threads}");
        losses(&report(&s, &["train", "-m", "c.yaml", "-o", &over]))
    };
    let one = with(1);
    for threads in [2, 3, 8] {
        assert_eq!(with(threads), one, "{threads} threads");
    }
    // The files hold what the source makes.
    let same = ["-o", "runner.reader_type=DataLoader", "runner.local_shuffle=False"];
    let from_files = report(&s, &[&["train", "-m", "c.yaml"], &same[..]].concat());
    s.write("d.yaml", &small(""));
    assert_eq!(losses(&from_files), losses(&report(&s, &["train", "-m", "d.yaml"])));
}

#[test]
fn training_goes_on_from_a_saved_epoch() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    let whole = losses(&report(&s, &["train", "-m", "c.yaml", "--run-dir", "first"]));
    let warm = [
        "train",
        "-m",
        "c.yaml",
        "-o",
        "runner.model_init_path=first/epochs/0",
        "runner.epochs=1",
        "runner.model_save_path=warm",
    ];
    assert_eq!(losses(&report(&s, &warm))[0], whole[1]);
    // Another optimizer begins with new state and says so.
    let other = [&warm[..], &["hyper_parameters.optimizer.class=adagrad"]].concat();
    let out = s.run(&other).ok();
    assert!(out.contains("note: ") && out.contains("training begins with new ones"), "{out}");
}

#[test]
fn evaluation_equals_training_without_steps() {
    let s = Scratch::new();
    let text = small("").replace("&examples=320&first=100000", "&examples=640");
    s.write("c.yaml", &text);
    s.run(&["train", "-m", "c.yaml"]).ok();
    let inferred = losses(&report(&s, &["infer", "-m", "c.yaml"]));
    let still = [
        "train",
        "-m",
        "c.yaml",
        "-o",
        "runner.model_init_path=runs/latest/epochs/1",
        "runner.epochs=1",
        "runner.model_save_path=still",
        "hyper_parameters.optimizer.learning_rate=0",
    ];
    assert_eq!(losses(&report(&s, &still))[0], inferred[1]);
}

#[test]
fn threads_share_a_batch() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    let one = report(&s, &["train", "-m", "c.yaml"]);
    let two = report(&s, &["train", "-m", "c.yaml", "--threads", "2"]);
    let loss = |r: &Value| r["epochs"][1]["loss"].as_f64().unwrap();
    assert!((loss(&one) - loss(&two)).abs() < 1e-3, "{} {}", loss(&one), loss(&two));
    assert_eq!(two["config"]["runner"]["thread_num"], 2);
}

#[test]
fn curves_for_tensorboard() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    s.run(&["train", "-m", "c.yaml", "--logdir", "logs"]).ok();
    let files = s.list("logs");
    assert_eq!(files.len(), 1);
    assert!(files[0].starts_with("events.out.tfevents."), "{files:?}");
    let bytes = std::fs::read(s.path("logs").join(&files[0])).unwrap();
    let has = |tag: &str| bytes.windows(tag.len()).any(|w| w == tag.as_bytes());
    for tag in ["brain.Event:2", "batch/loss", "batch/auc", "epoch/loss", "epoch/auc"] {
        assert!(has(tag), "{tag}");
    }
}
