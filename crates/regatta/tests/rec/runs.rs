//! Folders of runs: what is in them, which run gets which, and how runs compare.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Scratch, small};

/// Names of the folders of runs.
fn runs(s: &Scratch) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(s.path("runs"))
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "latest")
        .collect();
    names.sort();
    names
}

fn json(s: &Scratch, name: &str) -> Value {
    serde_json::from_str(&s.read(name)).unwrap()
}

const TRAIN: [&str; 3] = ["train", "-m", "c.yaml"];

#[test]
fn a_run_has_a_folder() {
    for mode in [&[][..], &["--ranks", "2"], &["--servers", "1", "--workers", "2"]] {
        let s = Scratch::new();
        s.write("c.yaml", &small("  sync_mode: sync\n  split_file_list: True"));
        let out = s.run(&[&TRAIN, mode, &["--report", "r.json", "--name", "first"]].concat()).ok();
        let names = runs(&s);
        let [name] = names.as_slice() else { panic!("{names:?}") };
        assert!(name.ends_with("-first") && out.contains(&format!("run folder runs/{name}")));
        let files = s.list(&format!("runs/{name}"));
        for file in ["config.yaml", "run.json", "metrics.jsonl", "report.json", "events"] {
            assert!(files.contains(&file.to_string()), "{mode:?}: {file} is not in {files:?}");
        }
        for epoch in ["epochs/0", "epochs/1"] {
            assert!(s.path(&format!("runs/latest/{epoch}/about.json")).exists(), "{files:?}");
        }
        assert!(
            !files.iter().any(|f| f.contains(".tmp") || f.contains("checkpoints")),
            "{files:?}"
        );
        let report = json(&s, "runs/latest/report.json");
        assert_eq!(report, json(&s, "r.json"));
        let epochs =
            format!("{}/epochs", s.path("runs").canonicalize().unwrap().join(name).display());
        assert_eq!(report["config"]["runner"]["model_save_path"], epochs.as_str());
        let lines = s.read("runs/latest/metrics.jsonl");
        let losses: Vec<Value> = lines
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].clone())
            .collect();
        let expected = report["epochs"].as_array().unwrap().iter().map(|e| e["loss"].clone());
        assert_eq!(losses, expected.collect::<Vec<_>>());
        // It is evaluated without being named, and the configuration trains again.
        let out = s.run(&["infer", "-m", "c.yaml"]).ok();
        assert!(out.contains(&format!("evaluating the run in runs/{name}\n")), "{out}");
        if mode.is_empty() {
            let again = ["train", "-m", "runs/latest/config.yaml", "--report", "again.json"];
            s.run(&again).ok();
            assert_eq!(runs(&s).len(), 2);
            let loss = |report: &Value| report["epochs"][1]["loss"].clone();
            assert_eq!(loss(&json(&s, "again.json")), loss(&report));
        }
    }
}

#[test]
fn paths_that_are_written_are_honoured() {
    let s = Scratch::new();
    s.write("c.yaml", &small("  model_save_path: saved"));
    s.run(&[&TRAIN[..], &["--logdir", "logs"]].concat()).ok();
    assert!(s.path("saved/1").is_dir() && !s.path("runs/latest/epochs").exists());
    assert!(s.path("runs/latest/report.json").exists() && !s.path("runs/latest/events").exists());
    assert_eq!(s.list("logs").len(), 1);
    let out = s.run(&["infer", "-m", "c.yaml"]).ok();
    assert!(!out.contains("evaluating the run"), "{out}");
    // A folder that is named, in a flag or in the file.
    s.write("d.yaml", &small("  run_dir: mine"));
    s.run(&["train", "-m", "d.yaml"]).ok();
    assert!(s.path("mine/epochs/1").is_dir());
    s.run(&["train", "-m", "d.yaml", "--run-dir", "other", "--name", "x"]).ok();
    assert!(s.path("other/epochs/1").is_dir());
    assert_eq!((json(&s, "other/run.json")["name"].as_str(), runs(&s).len()), (Some("x"), 1));
    // Of two runs of one model, that of the file is evaluated, or the one that is named.
    s.write("a.yaml", &small(""));
    s.write("b.yaml", &small("  seed: 7"));
    s.run(&["train", "-m", "a.yaml", "--name", "a"]).ok();
    s.run(&["train", "-m", "b.yaml", "--name", "b"]).ok();
    let out = s.run(&["infer", "-m", "a.yaml", "--report", "a.json"]).ok();
    assert!(out.contains("-a\n"), "{out}");
    s.run(&["infer", "-m", "a.yaml", "--run-dir", "runs/latest", "--report", "b.json"]).ok();
    assert_ne!(json(&s, "a.json")["epochs"][1]["loss"], json(&s, "b.json")["epochs"][1]["loss"]);
    s.run(&["infer", "-m", "a.yaml", "--run-dir", "nowhere"]).fails(2, &["--run-dir nowhere: "]);
    s.write("e.yaml", &small("").replace("model: dnn", "model: wide_deep"));
    s.run(&["infer", "-m", "e.yaml", "--print-config"]).ok();
    s.run(&["infer", "-m", "e.yaml"])
        .fails(2, &["there is no run of model wide_deep with epochs in runs"]);
}

#[test]
fn runs_of_the_same_second_have_different_folders() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    let start = |_| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
        command.args(TRAIN).args(["-o", "runner.epochs=1"]).current_dir(s.path("."));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..4).map(start).collect();
    for child in started {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let names = runs(&s);
    assert_eq!(names.len(), 4, "{names:?}");
    for name in names {
        assert_eq!(json(&s, &format!("runs/{name}/report.json"))["epochs"][0]["examples"], 640);
    }
}

/// Kills a training when it has made a checkpoint of its first epoch.
fn killed(s: &Scratch, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.args(args).current_dir(s.path(".")).stdout(Stdio::null()).stderr(Stdio::null());
    let before = runs(s);
    let mut child = command.spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(120);
    let has_one = |s: &Scratch| {
        let new = runs(s).into_iter().find(|run| !before.contains(run));
        let files = new.map(|run| s.list(&format!("runs/{run}/checkpoints"))).unwrap_or_default();
        files.iter().any(|f| f.starts_with("checkpoint_") && f.ends_with("manifest.json"))
    };
    while !has_one(s) {
        assert!(Instant::now() < limit && child.try_wait().unwrap().is_none(), "no checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_same_command_continues_a_killed_run() {
    let s = Scratch::new();
    let data = "&examples=640\"";
    s.write("c.yaml", &small("").replace(data, "&examples=19200\""));
    let every = [&TRAIN[..], &["--checkpoint-steps", "20"]].concat();
    killed(&s, &every);
    let printed = s.run(&[&every[..], &["--print-config"]].concat()).ok();
    assert!(printed.starts_with("# a run continues the one in "), "{printed}");
    let list = s.run(&["runs", "list"]).ok();
    assert!(list.lines().nth(1).unwrap().contains("  stopped  "), "{list}");
    let out = s.run(&every).ok();
    assert!(out.contains("continuing the run in runs/") && out.contains("resuming from"), "{out}");
    assert_eq!(runs(&s).len(), 1);
    // The same numbers as without a kill, which is another run: this one is done.
    s.run(&every).ok();
    let names = runs(&s);
    let [first, second] = names.as_slice() else { panic!("{names:?}") };
    let losses = |name: &str| {
        let report = json(&s, &format!("runs/{name}/report.json"));
        let epochs = report["epochs"].as_array().unwrap().clone();
        epochs.iter().map(|e| e["loss"].as_f64().unwrap().to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(losses(first), losses(second));
    // More epochs continue what is done, where it is asked for.
    let more = [&every[..], &["--resume", "latest", "-o", "runner.epochs=3"]].concat();
    let out = s.run(&more).ok();
    assert!(out.contains(&format!("continuing the run in runs/{second}")), "{out}");
    assert_eq!((losses(second).len(), runs(&s).len()), (3, 2));
    let list = s.run(&["runs", "list"]).ok();
    assert_eq!(list.matches("  done  ").count(), 2, "{list}");
    // One that is asked to begin anew does, and so does one with other settings.
    killed(&s, &[&every[..], &["-o", "runner.seed=1"]].concat());
    let anew = [&every[..], &["--resume", "none", "-o", "runner.epochs=1"]].concat();
    let out = s.run(&anew).ok();
    assert!(out.contains("run folder runs/"), "{out}");
    assert_eq!(runs(&s).len(), 4);
}

#[test]
fn jobs_of_several_processes_continue_too() {
    for mode in [&["--ranks", "2"][..], &["--servers", "1", "--workers", "2"]] {
        let s = Scratch::new();
        let text = small("  sync_mode: sync\n  split_file_list: True");
        s.write("c.yaml", &text.replace("&examples=640\"", "&examples=12800\""));
        let every = [&TRAIN[..], &["--checkpoint-steps", "10"], mode].concat();
        killed(&s, &every);
        let out = s.run(&every).ok();
        assert!(out.contains("continuing the run in") && out.contains("resuming from"), "{out}");
        let names = runs(&s);
        assert_eq!(names.len(), 1, "{names:?}");
        let report = json(&s, &format!("runs/{}/report.json", names[0]));
        assert_eq!(report["epochs"][1]["examples"], 12800);
        assert!(s.path(&format!("runs/{}/epochs/1/about.json", names[0])).exists());
    }
}

#[test]
fn named_folders_are_resumed_or_refused() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    let remote = [&TRAIN[..], &["--run-dir", "s3://bucket/run"]].concat();
    s.run(&remote).fails(2, &["runner.run_dir: s3://bucket/run: the folder of a run is on this"]);
    let here = |more: &[&str]| s.run(&[&TRAIN[..], &["--run-dir", "mine"], more].concat());
    s.write("mine/config.yaml", "the user's");
    here(&[]).fails(2, &["/mine: config.yaml is in the way", "--run-dir"]);
    assert_eq!(s.read("mine/config.yaml"), "the user's");
    std::fs::remove_dir_all(s.path("mine")).unwrap();
    here(&[]).ok();
    here(&[]).fails(2, &["/mine: holds a run that is done"]);
    std::fs::remove_file(s.path("mine/report.json")).unwrap();
    here(&["-o", "runner.seed=5"])
        .fails(2, &["/mine: holds a run of other settings: runner.seed was 12345 and is 5"]);
    here(&[]).ok();
    // With checkpoints, the run continues.
    let steps = ["--checkpoint-steps", "5", "--run-dir", "kept"];
    s.run(&[&TRAIN[..], &steps].concat()).ok();
    let more = [&TRAIN[..], &steps, &["-o", "runner.epochs=3"]].concat();
    let out = s.run(&more).ok();
    assert!(out.contains("resuming from"), "{out}");
    assert_eq!(json(&s, "kept/report.json")["epochs"].as_array().unwrap().len(), 3);
    assert_eq!(s.read("kept/metrics.jsonl").lines().filter(|l| !l.is_empty()).count(), 3);
    // Checkpoints elsewhere belong to the run that made them.
    let elsewhere = [&TRAIN[..], &["--checkpoint-dir", "ckpt"]].concat();
    s.run(&elsewhere).ok();
    s.run(&[&elsewhere[..], &["-o", "runner.epochs=3"]].concat()).ok();
    assert_eq!(runs(&s).len(), 1);
    let epochs = s.list("runs/latest/epochs");
    assert!(["0", "1", "2"].iter().all(|e| epochs.contains(&e.to_string())), "{epochs:?}");
}

#[test]
fn what_cannot_have_a_folder_is_refused_and_leaves_none() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    // A process of a job that somebody else has started.
    let rank = ["--ranks", "1", "--rank", "0", "--master", "127.0.0.1:1"];
    s.run(&[&TRAIN[..], &rank].concat()).fails(2, &["one folder for all: set --run-dir DIR"]);
    for mode in [&[][..], &["--ranks", "2"], &["--servers", "1", "--workers", "1"]] {
        let missing = ["-o", "runner.train_data_dir=nowhere"];
        s.run(&[&TRAIN[..], mode, &missing].concat()).fails(1, &["no such data directory"]);
        assert!(!s.path("runs").exists(), "{mode:?}");
    }
    s.run(&[&TRAIN[..], &["--name", "a/b"]].concat()).fails(2, &["--name", "letters, digits"]);
    s.run(&[&TRAIN[..], &["--resume", "latest"]].concat())
        .fails(2, &["there is no run of model dnn with checkpoints in runs"]);
    let printed = s.run(&[&TRAIN[..], &["--print-config", "--name", "x"]].concat()).ok();
    let here = s.path("runs").parent().unwrap().canonicalize().unwrap();
    assert_eq!(
        printed.lines().next(),
        Some(format!("# a run writes to {}/runs/<time>-x", here.display()).as_str())
    );
    assert!(!s.path("runs").exists());
    s.write("runs", "a file");
    s.run(&TRAIN).fails(1, &["runs"]);
}

#[test]
fn runs_compare() {
    let s = Scratch::new();
    assert_eq!(s.run(&["runs", "list"]).ok(), "runs holds no runs\n");
    let validation = "  validation:\n    data_dir: \"synthetic://ctr?slots=4&vocab=50&dense=3&\
                      examples=320&first=100000\"\n";
    s.write("c.yaml", &small(validation));
    s.run(&[&TRAIN[..], &["--name", "slow"]].concat()).ok();
    let fast = ["--name", "fast", "-o", "hyper_parameters.optimizer.learning_rate=0.05"];
    s.run(&[&TRAIN[..], &fast, &["runner.epochs=3"]].concat()).ok();
    let list = s.run(&["runs", "list"]).ok();
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert!(
        lines[0].contains("validation/auc")
            && lines[1].contains("-slow")
            && lines[2].contains("-fast")
    );
    let show = s.run(&["runs", "show", "latest"]).ok();
    assert!(show.contains("name           fast\n"), "{show}");
    let reports = ["slow", "fast"].map(|name| {
        let run = runs(&s).into_iter().find(|run| run.ends_with(name)).unwrap();
        json(&s, &format!("runs/{run}/report.json"))
    });
    let out = s.run(&["runs", "compare", "slow", "fast", "--chart", "c.svg"]).ok();
    let row = |words: &[&str]| {
        let found = |line: &&str| line.split_whitespace().eq(words.iter().copied());
        assert!(out.lines().any(|line| found(&line)), "{words:?} is not in:\n{out}");
    };
    row(&["hyper_parameters.optimizer.learning_rate", "0.01", "0.05"]);
    row(&["runner.epochs", "2", "3"]);
    assert!(!out.contains("run_dir") && !out.contains("model_save_path"), "{out}");
    for epoch in 0..2 {
        let auc = |report: &Value| {
            format!("{:.6}", report["epochs"][epoch]["validation"]["auc"].as_f64().unwrap())
        };
        row(&[&epoch.to_string(), &auc(&reports[0]), &auc(&reports[1])]);
    }
    let last = format!("{:.6}", reports[1]["epochs"][2]["loss"].as_f64().unwrap());
    row(&["2", "-", &last]);
    // Loss and auc of two runs, each on two kinds of data.
    let chart = s.read("c.svg");
    assert_eq!(chart.matches("<polyline").count(), 8, "{chart}");
    assert_eq!(chart.matches("stroke-dasharray").count(), 4);
    assert_eq!(chart.matches("<circle").count(), 2 * 2 * (2 + 3));
    let bad = ["runs", "compare", "slow", "fast", "--chart"];
    s.run(&[&bad[..], &["c.svg", "--metric", "f1"]].concat()).fails(2, &["no such measure", "auc"]);
    s.run(&[&bad[..], &["c.png"]].concat()).fails(2, &["charts are SVG"]);
    s.run(&["runs", "show", "medium"]).fails(2, &["medium: there is no such run"]);
    s.run(&[&TRAIN[..], &["--name", "slow"]].concat()).ok();
    s.run(&["runs", "show", "slow"]).fails(2, &["slow: several runs have this name"]);
}
