//! Validation data while training: what they show, the best epoch, an early end.

use serde_json::Value;

use crate::support::{Scratch, small};

const KEYS: &str = "  model_save_path: epochs
  sync_mode: sync
  split_file_list: True
  validation:
    data_dir: \"synthetic://ctr?slots=4&vocab=50&dense=3&examples=320&first=100000\"
";

/// With steps much too long, no epoch is better than one of the first.
const FAST: &str = "hyper_parameters.optimizer.learning_rate=0.3";

fn json(s: &Scratch, name: &str) -> Value {
    serde_json::from_str(&s.read(name)).unwrap()
}

/// The validation of an epoch is what `infer` finds on the same data, in every mode.
#[test]
fn validation_is_what_infer_finds() {
    for mode in [&[][..], &["--ranks", "2"], &["--servers", "1", "--workers", "2"]] {
        let s = Scratch::new();
        s.write("c.yaml", &small(KEYS));
        let flags = ["--report", "report.json", "--logdir", "logs"];
        let said = s.run(&[&["train", "-m", "c.yaml"], mode, &flags].concat()).ok();
        assert!(said.contains("validation: epoch: 1 done, auc: 0."), "{said}");
        s.run(&["infer", "-m", "c.yaml", "--report", "infer.json"]).ok();
        let (trained, judged) = (json(&s, "report.json"), json(&s, "infer.json"));
        for epoch in 0..2 {
            let (mine, other) = (&trained["epochs"][epoch]["validation"], &judged["epochs"][epoch]);
            for name in ["loss", "auc", "metrics", "examples"] {
                assert_eq!(mine[name], other[name], "{name} {mode:?}");
            }
            assert!(mine["metrics"]["ece"].as_f64().unwrap() < 1.0);
            assert!(mine["metrics"]["calibration"].as_f64().unwrap() > 0.0);
        }
        let auc = |n: usize| trained["epochs"][n]["validation"]["auc"].as_f64().unwrap();
        let best = if auc(1) > auc(0) { 1 } else { 0 };
        assert_eq!(trained["best_epoch"], best);
        let link = std::fs::read_link(s.path("epochs/best")).unwrap();
        assert_eq!(link.to_string_lossy(), best.to_string());
        let logs = s.path("logs").join(&s.list("logs")[0]);
        let curves = std::fs::read(logs).unwrap();
        assert!(String::from_utf8_lossy(&curves).contains("validation/auc"), "{mode:?}");
    }
}

#[test]
fn training_stops_when_nothing_gets_better() {
    for mode in [&[][..], &["--ranks", "2"], &["--servers", "1", "--workers", "2"]] {
        let s = Scratch::new();
        s.write("c.yaml", &small(KEYS));
        let keys = ["runner.epochs=40", "runner.validation.patience=2", FAST];
        let metric = ["runner.validation.metric=loss", "runner.checkpoint.keep_when_done=True"];
        let flags = ["--report", "report.json", "--checkpoint-dir", "checkpoints"];
        let command = [&["train", "-m", "c.yaml", "-o"], &keys[..], &metric, mode, &flags].concat();
        let said = s.run(&command).ok();
        let report = json(&s, "report.json");
        let done = report["epochs"].as_array().unwrap().len() as u64;
        let best = report["best_epoch"].as_u64().unwrap();
        assert!(done < 40 && done == best + 3, "{done} {best}");
        let note = format!("training stops early: loss was best at epoch {best} (");
        assert!(said.contains(&note), "{said}");
        // Started again, it knows that it had stopped.
        s.run(&command).ok();
        assert_eq!(json(&s, "report.json")["epochs"].as_array().unwrap().len() as u64, done);
    }
}

#[test]
fn what_cannot_be_judged_is_an_error() {
    let s = Scratch::new();
    s.write("c.yaml", &small(KEYS));
    let train = |more: &[&str]| s.run(&[&["train", "-m", "c.yaml", "-o"], more].concat());
    // Found before training, in every mode.
    let known =
        "runner.validation.metric: there is no measure 'f1' (known: loss, auc, auc_bucketed";
    for mode in [&[][..], &["--ranks", "2"], &["--servers", "1", "--workers", "2"]] {
        let ran = train(&[&["runner.validation.metric=f1"], mode].concat());
        assert!(!ran.out.contains("batch: "), "it has trained: {}", ran.out);
        ran.fails(2, &[known]);
    }
    s.write("epochs/best", "mine");
    train(&["runner.epochs=1"]).fails(1, &["epochs/best: it is in the way"]);
}
