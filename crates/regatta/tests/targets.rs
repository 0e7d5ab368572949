//! Where results go: what cannot be written is an error before training, and a disk that fills up
//! is exit code 1, not that of wrong flags.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const DATA: &str = "synthetic://ctr?slots=26&vocab=20&dense=13&seed=1&examples=400";

fn train(epochs: &str, flags: &[&str]) -> Output {
    let config = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/rank/logistic_regression/config.yaml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.arg("train").arg("-m").arg(config).arg("-o").stdin(Stdio::null());
    command.arg(format!("runner.model_save_path={epochs}"));
    command.arg(format!("runner.train_data_dir={DATA}"));
    command.args(["runner.epochs=1", "runner.train_batch_size=100", "runner.print_interval=1"]);
    command.args(["hyper_parameters.sparse_feature_number=521", "runner.sync_mode=sync"]);
    // Folders of runs are made where it is.
    let here = tempfile::tempdir().unwrap();
    command.args(flags).current_dir(&here).output().unwrap()
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

const MODES: [&[&str]; 3] = [&[], &["--servers", "1", "--workers", "2"], &["--ranks", "2"]];

/// Nothing was trained, and the target is named.
fn refused(output: &Output, named: &str) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(named), "{named} is not in\n{said}");
    assert!(!said.contains("batch: 0"), "it has trained\n{said}");
}

#[test]
fn models_that_cannot_be_saved_are_not_trained() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let foreign = dir.path().join("foreign");
    fs::create_dir_all(foreign.join("0")).unwrap();
    fs::write(foreign.join("0/thesis.txt"), "precious").unwrap();
    for mode in MODES {
        let output = train(&file.to_string_lossy(), mode);
        refused(&output, &format!("{}: it is in the way", file.display()));
        let output = train(&foreign.to_string_lossy(), mode);
        refused(&output, "the directory holds 'thesis.txt'");
        // Nobody, root included, makes folders in /proc.
        if Path::new("/proc/self").exists() {
            refused(&train("/proc/models", mode), "cannot write /proc/models");
        }
    }
    assert_eq!(fs::read_to_string(foreign.join("0/thesis.txt")).unwrap(), "precious");
}

#[test]
fn checkpoints_and_reports_are_tried_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let (file, epochs) = (file.to_string_lossy(), dir.path().join("epochs"));
    let epochs = epochs.to_string_lossy();
    let inside = format!("{file}/report.json");
    for mode in MODES {
        refused(&train(&epochs, &[mode, &["--checkpoint-dir", &file]].concat()), &file);
        refused(&train(&epochs, &[mode, &["--report", &inside]].concat()), &file);
        refused(&train(&epochs, &[mode, &["--logdir", &file]].concat()), &file);
        let folder = dir.path().to_string_lossy();
        refused(&train(&epochs, &[mode, &["--report", &folder]].concat()), "it is in the way");
    }
    assert!(!Path::new(&*epochs).exists());
}

#[test]
fn a_full_disk_is_no_mistake_in_the_flags() {
    let dir = tempfile::tempdir().unwrap();
    let epochs = dir.path().join("epochs");
    let epochs = epochs.to_string_lossy();
    if Path::new("/dev/full").exists() {
        for mode in MODES {
            let output = train(&epochs, &[mode, &["--report", "/dev/full"]].concat());
            assert_eq!(output.status.code(), Some(1), "{}", said(&output));
            assert!(said(&output).contains("No space left"), "{}", said(&output));
        }
    } else {
        assert!(train(&epochs, &[]).status.success());
    }
    let allowed = Command::new("unshare").args(["-rm", "true"]).output();
    if !allowed.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: mount namespaces are not allowed here");
        return;
    }
    let line = "mkdir full && mount -t tmpfs -o size=16k none full && \
                exec \"$0\" export epochs/0 --to full/model";
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", line, env!("CARGO_BIN_EXE_regatta")])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("No space left on device"), "{}", said(&output));
}
