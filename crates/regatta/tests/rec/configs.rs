//! PaddleRec's own files, unchanged, and what they can be overridden with.

use crate::support::{SMALL_HYPER, Scratch, small};

/// Turns the sample into MultiSlot text, as PaddleRec's `queuedataset_reader.py` does.
pub(crate) const TO_MULTISLOT: &str = r#"awk '{
  for (i = 1; i <= 26; i++) id[i] = 0
  dense = ""; n = 0
  for (i = 1; i <= NF; i++) {
    split($i, p, ":")
    if (p[1] == "click") label = p[2]
    else if (p[1] == "dense_feature") { dense = dense " " p[2]; n++ }
    else id[p[1]] = p[2]
  }
  line = "1 " label
  for (i = 1; i <= 26; i++) line = line " 1 " id[i]
  print line " " n dense
}'
"#;

pub(crate) fn epochs(out: &str) -> Vec<&str> {
    out.lines().filter(|l| l.contains(" done, ")).collect()
}

#[test]
fn dnn_as_it_stands() {
    let s = Scratch::with_model("rank/dnn");
    let config = "models/rank/dnn/config_sample.yaml";
    let out = s.run(&["train", "-m", config]).ok();
    assert!(out.contains("model dnn, "), "{out}");
    let line = out.lines().find(|l| l.starts_with("epoch: 0, batch_id: 2, auc: ")).unwrap();
    for word in ["cost: ", "avg_reader_cost: ", "avg_batch_cost: ", "avg_samples: 2.0", "ins/s"] {
        assert!(line.contains(word), "{line}");
    }
    assert_eq!(epochs(&out).len(), 3);
    let saved = s.list("models/rank/dnn/output_model_dnn");
    assert!(saved.contains(&"2/persistables.safetensors".to_string()), "{saved:?}");
    let out = s.run(&["infer", "-m", config]).ok();
    let done = epochs(&out);
    assert_eq!(done.len(), 3);
    assert!(done[2].contains("log_loss: ") && done[2].contains("auc_bucketed: "), "{}", done[2]);
}

#[test]
fn paths_are_relative_to_the_file() {
    let s = Scratch::with_model("rank/dnn");
    std::fs::create_dir(s.path("elsewhere")).unwrap();
    let args = ["train", "-m", "../models/rank/dnn/config_sample.yaml", "-o", "runner.epochs=1"];
    s.run_in("elsewhere", &args).ok();
    let made = s.list("elsewhere/runs/latest");
    assert!(!made.contains(&"epochs".to_string()), "{made:?}");
    assert!(s.path("models/rank/dnn/output_model_dnn/0").is_dir());
}

/// PaddleRec's own file, beside the sample data.
pub(crate) fn paddle_config(s: &Scratch, name: &str) -> String {
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rec/paddlerec");
    let text = std::fs::read_to_string(format!("{from}/{name}")).unwrap();
    let path = format!("models/rank/dnn/{name}");
    s.write(&path, &text);
    path
}

#[test]
fn a_pipe_command_gives_the_same_losses() {
    let s = Scratch::with_model("rank/dnn");
    let config = &paddle_config(&s, "config_queuedataset.yaml");
    s.write("models/rank/dnn/to_multislot.sh", TO_MULTISLOT);
    let piped = ["train", "-m", config, "-o", "runner.pipe_command=sh to_multislot.sh"];
    let losses = |out: &str| -> Vec<String> {
        let cost = |l: &&str| l.split("cost: ").nth(1).map(|c| c[..8].to_string());
        epochs(out).iter().filter_map(cost).collect()
    };
    let through_pipe = losses(&s.run(&piped).ok());
    let read = s.run(&["train", "-m", "models/rank/dnn/config_sample.yaml"]).ok();
    assert_eq!(through_pipe, losses(&read));
    s.run(&["infer", "-m", config]).ok();
    // `cat` on files that are MultiSlot text already.
    let url = "synthetic://ctr?slots=4&vocab=50&dense=3&examples=100";
    s.run(&["data", "synth", url, "--out", "synth", "--files", "2"]).ok();
    let runner = "  reader_type: InmemoryDataset\n  pipe_command: cat\n";
    let text =
        small(runner).replace("\"synthetic://ctr?slots=4&vocab=50&dense=3&examples=640\"", "synth");
    s.write("cat.yaml", &text);
    s.run(&["train", "-m", "cat.yaml"]).ok();
}

#[test]
fn the_command_knows_the_configuration_file() {
    let s = Scratch::new();
    s.write("data/a.txt", "x\n");
    let runner = "  train_data_dir: data
  reader_type: QueueDataset
  drop_last: False
  train_batch_size: 1
  pipe_command: \"cat > /dev/null; head -1 {config} | cut -c 3-\"";
    let line = "# 1 1 1 7 1 8 1 9 1 10 3 0.5 0.5 0.5";
    s.write("dir/c.yaml", &format!("{line}\nmodel: dnn\nrunner:\n{runner}\n{SMALL_HYPER}"));
    s.write("dir/data/a.txt", "x\n");
    let out = s.run(&["train", "-m", "dir/c.yaml"]).ok();
    assert!(out.contains("examples: 1,"), "{out}");
}

#[test]
fn word2vec_as_it_stands() {
    let s = Scratch::with_model("recall/word2vec");
    let config = "models/recall/word2vec/config_sample.yaml";
    let out = s.run(&["train", "-m", config]).ok();
    assert_eq!(epochs(&out).len(), 2);
    let out = s.run(&["infer", "-m", config]).ok();
    assert!(epochs(&out)[1].contains("acc: "), "{out}");
}

#[test]
fn data_smaller_than_a_batch_are_trained() {
    let s = Scratch::with_model("rank/dnn");
    let config = "models/rank/dnn/config_sample.yaml";
    let large = ["runner.epochs=1", "runner.train_batch_size=512", "runner.split_file_list=True"];
    let out = s.run(&[&["train", "-m", config, "-o"], &large[..]].concat()).ok();
    assert!(out.contains("examples: 80,"), "{out}");
    let note = "about 80 examples are fewer than runner.train_batch_size (512)";
    assert!(out.contains(note), "{out}");
    let out = s.run(&[&["train", "-m", config, "--ranks", "2", "-o"], &large[..]].concat()).ok();
    let note = "about 40 examples for each of 2 processes (runner.split_file_list divides them)";
    assert!(out.contains(note) && out.contains("examples: 80,"), "{out}");
    let dropped = [&["train", "-m", config, "-o", "runner.drop_last=True"], &large[..]].concat();
    s.run(&dropped).fails(1, &["fewer than one batch of 512"]);
}

#[test]
fn ratings_are_no_labels_of_clicks() {
    let s = Scratch::new();
    s.write("data/a.csv", "1,2,1\n3,4,5\n");
    let text = "model: ncf\nrunner:\n  train_data_dir: data\n  train_batch_size: 2\n  \
                train_reader_path: movielens_reader\n";
    s.write("c.yaml", text);
    s.run(&["train", "-m", "c.yaml"]).fails(1, &["a.csv:2", "label", "5"]);
}

#[test]
fn devices_need_gpubox() {
    let s = Scratch::with_model("rank/dnn");
    let config = "models/rank/dnn/config_sample.yaml";
    let gpu = ["train", "-m", config, "-o", "runner.use_gpu=True"];
    let out = s.run(&gpu).ok();
    assert!(out.contains("note: warning: runner.use_gpu: True: only sync_mode gpubox"), "{out}");
    let required = [&gpu[..3], &["--require-gpu"], &gpu[3..]].concat();
    s.run(&required).fails(2, &["-o runner.use_gpu: True cannot be honoured", "is required"]);
    let heter = ["train", "-m", config, "-o", "runner.sync_mode=heter"];
    s.run(&heter).fails(2, &["-o runner.sync_mode: heter cannot be honoured", "see gpubox"]);
}

#[test]
fn unknown_keys_name_their_line_and_the_nearest_key() {
    let s = Scratch::new();
    s.write("c.yaml", &small("  epoch: 3\n  prnt_interval: 5"));
    s.run(&["train", "-m", "c.yaml"]).fails(
        2,
        &[
            "c.yaml:8: unknown key 'runner.epoch'; did you mean 'runner.epochs'?",
            "c.yaml:9: unknown key 'runner.prnt_interval'; did you mean 'runner.print_interval'?",
        ],
    );
    s.write("c.yaml", &small(""));
    let run = |over: &str| s.run(&["train", "-m", "c.yaml", "-o", over]);
    run("runner.epocs=1")
        .fails(2, &["-o unknown key 'runner.epocs'; did you mean 'runner.epochs'"]);
    run("runner.epochs=x").fails(2, &["-o runner.epochs: should be an integer", "but is x"]);
    run("runner.epochs").fails(2, &["expected section.key=value"]);
    run("hyper_parameters.fc_size=[4]").fails(2, &["did you mean 'hyper_parameters.fc_sizes'"]);
    run("hyper_parameters.optimizer.class=adamx")
        .fails(2, &["'adamx' is not one of sgd, momentum"]);
    run("hyper_parameters.optimizer.mu=0.5").fails(2, &["does not belong to this optimizer"]);
    run("hyper_parameters.optimizer.beta1=2").fails(2, &["beta1"]);
    run("hyper_parameters.sparse_inputs_slots=0").fails(2, &["sparse_inputs_slots"]);
    run("model=dnnn").fails(2, &["there is no model 'dnnn'; did you mean 'dnn'?"]);
    run("runner.sync_mode=geo").fails(2, &["runner.geo_step: must be set"]);
    run("runner.local_shuffle=True").fails(2, &["DataLoader does not hold the data in memory"]);
    assert!(!s.path("runs").exists());
}

#[test]
fn broken_files() {
    let s = Scratch::new();
    s.run(&["train", "-m", "no.yaml"]).fails(2, &["no.yaml"]);
    s.write("bad.yaml", "runner:\n  a: [1\n  b: 2\n");
    s.run(&["train", "-m", "bad.yaml"]).fails(2, &["bad.yaml:"]);
    s.write("twice.yaml", "model: dnn\nrunner:\n  epochs: 1\n  epochs: 2\n");
    s.run(&["train", "-m", "twice.yaml"]).fails(2, &["twice.yaml:4: 'epochs' is written twice"]);
    s.write("nothing.yaml", "");
    s.run(&["train", "-m", "nothing.yaml"]).fails(2, &["there is no model", "set model:"]);
    s.write("few.yaml", "model: dnn\n");
    s.run(&["train", "-m", "few.yaml"]).fails(2, &["runner.train_data_dir: must be set"]);
    s.run(&["train"]).fails(2, &["--config"]);
}

#[test]
fn overrides_defaults_and_a_round_trip() {
    let s = Scratch::new();
    s.write("a/c.yaml", &small("  model_save_path: out"));
    let over = [
        "runner.epochs=1",
        "hyper_parameters.fc_sizes=[8, 8]",
        "hyper_parameters.optimizer.class=Momentum",
        "hyper_parameters.optimizer.mu=0.5",
        "hyper_parameters.optimizer.schedule=piecewise",
        "hyper_parameters.optimizer.boundaries=[10]",
        "hyper_parameters.optimizer.values=[0.1, 0.01]",
        "hyper_parameters.reg=0.001",
    ];
    let args = [&["train", "-m", "a/c.yaml", "--print-config", "--threads", "2", "-o"], &over[..]];
    let printed = s.run(&args.concat()).ok();
    for line in [
        "model: \"dnn\"",
        "  epochs: 1",
        "  thread_num: 2",
        "  seed: 12345",
        "  fc_sizes: [8, 8]",
        "    class: \"Momentum\"",
        "    mu: 0.5",
        "    nesterov: False",
        "    boundaries: [10]",
        "    values: [0.1, 0.01]",
        "  reg: 0.001",
    ] {
        assert!(printed.lines().any(|l| l == line), "'{line}' is not in:\n{printed}");
    }
    assert!(!s.path("a/out").exists());
    s.write("b/again.yaml", &printed);
    assert_eq!(s.run(&["train", "-m", "b/again.yaml", "--print-config"]).ok(), printed);
    let out = s.run(&["train", "-m", "b/again.yaml"]).ok();
    assert!(s.path("a/out/0").is_dir(), "{out}");
    let table = s.run(&["train", "-m", "a/c.yaml", "-o", "runner.seed=7", "runner.epochs=1"]).ok();
    let source = |key: &str| {
        let line = table.lines().find(|l| l.starts_with(key)).unwrap();
        line.split_whitespace().last().unwrap().to_string()
    };
    assert_eq!(source("runner.seed "), "-o");
    assert_eq!(source("runner.train_batch_size "), "a/c.yaml:5");
    assert_eq!(source("runner.print_interval "), "default");
}

#[test]
fn the_settings_of_a_mode_are_printed_and_reported() {
    let s = Scratch::new();
    s.write("a/c.yaml", &small(""));
    let print = ["train", "-m", "a/c.yaml", "--print-config", "-o"];
    let asynchronous = [
        "  sync_mode: \"async\"",
        "  pull_ahead: 1",
        "  dense_ahead: True",
        "  send_queue_size: 16",
        "  max_merge_var_num: 1",
        "  min_send_grad_num_before_recv: 1",
        "  wire: \"f32\"",
        "  split_file_list: \"auto\"",
        "  use_fleet: False",
    ];
    let modes: [(&[&str], &[&str]); 3] = [
        (&["runner.sync_mode=async"], &asynchronous),
        (&["runner.sync_mode=bounded", "runner.staleness=2"], &["  staleness: 2"]),
        (&["runner.sync_mode=geo", "runner.geo_step=4"], &["  geo_step: 4"]),
    ];
    for (given, lines) in modes {
        let printed = s.run(&[&print[..], given].concat()).ok();
        for line in lines {
            assert!(printed.lines().any(|l| l == *line), "'{line}' is not in:\n{printed}");
        }
        s.write("b/again.yaml", &printed);
        assert_eq!(s.run(&["train", "-m", "b/again.yaml", "--print-config"]).ok(), printed);
    }
    let report = s.path("report.json");
    s.run(&["train", "-m", "a/c.yaml", "--report", report.to_str().unwrap()]).ok();
    let text = std::fs::read_to_string(report).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["config"]["runner"]["pull_ahead"], 1);
    assert_eq!(report["config"]["runner"]["sync_mode"], "async");
}

#[test]
fn every_optimizer_trains() {
    let s = Scratch::new();
    s.write("c.yaml", &small("").replace("class: Adam", "class: SGD"));
    for rule in regatta_rec::config::RULES {
        let class = format!("hyper_parameters.optimizer.class={}", rule.to_uppercase());
        let out = s.run(&["train", "-m", "c.yaml", "-o", "runner.epochs=1", &class]).ok();
        assert_eq!(epochs(&out).len(), 1, "{rule}");
    }
}

#[test]
fn an_inference_model_is_exported() {
    let s = Scratch::with_model("rank/dnn");
    let config = "models/rank/dnn/config_sample.yaml";
    let export = ["runner.use_inference=True", "runner.epochs=1"];
    let args = ["train", "-m", config, "-o", export[0], export[1]];
    let out = s.run(&args).ok();
    assert!(out.contains("'sigmoid_0.tmp_0' is a name of Paddle's"), "{out}");
    let saved = s.list("models/rank/dnn/output_model_dnn/0/inference_model");
    let table = ["SparseFeatFactors.values", "SparseFeatFactors.values.sums"];
    let files = [&table[..], &["manifest.json", "model.program", "params.safetensors"]].concat();
    assert_eq!(saved, files);
    let folder = s.path("models/rank/dnn/output_model_dnn/0/inference_model");
    regatta::prelude::Predictor::load(folder).unwrap();
    let wrong = "runner.save_inference_feed_varnames=[1, 2]";
    let args = [&args[..], &[wrong]].concat();
    s.run(&args).fails(2, &["save_inference_feed_varnames: the outputs need"]);
}

#[test]
fn models_are_listed() {
    let s = Scratch::new();
    let out = s.run(&["models"]).ok();
    assert!(out.lines().count() >= 16 && out.contains("wide_deep"), "{out}");
    assert!(s.run(&["models", "dnn"]).ok().contains("fc_sizes"));
    s.run(&["models", "nope"]).fails(2, &["there is no model 'nope'; there are "]);
}
