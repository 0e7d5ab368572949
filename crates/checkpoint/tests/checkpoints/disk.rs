//! A disk that fills up in the middle of a checkpoint: the one before stays usable.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output};

use regatta_checkpoint::{Check, CheckpointDir, Kind, Resume, save_table, verify};
use regatta_table::{SaveMode, Scope, SparseTable};

use crate::{adam_config, checkpoint, contents, load, train};

/// Not a test of its own: the part that runs in the limited child process, in its directory.
#[test]
#[ignore = "run by the tests below"]
fn child() {
    let dir = CheckpointDir::open(Path::new("checkpoints"));
    let table = SparseTable::new(adam_config(9)).unwrap();
    train(&table, 0..1000);
    checkpoint(&dir, &table, Kind::Full);
    let stored = contents(&table);

    train(&table, 0..40_000);
    let draft = dir.begin(1).unwrap();
    let snapshot = table.snapshot(Scope::Rows(SaveMode::All)).unwrap();
    let error = save_table(draft.path(), "emb.rows", "emb", &table, &snapshot).unwrap_err();
    println!("save: {error}");
    table.end_snapshot(snapshot, false).unwrap();
    drop(draft);

    // Only the old one is there, it is whole, and once there is room the next save works.
    assert_eq!(dir.list().unwrap().len(), 1);
    assert_eq!(verify(&dir.path_of(0), Check::Checksums), []);
    let choice = dir.choose(&Resume::Auto, Check::Checksums).unwrap();
    assert_eq!(choice.checkpoint.unwrap().path(), dir.path_of(0));
    let loaded = load(&dir.path_of(0), adam_config(9), 1);
    assert_eq!(contents(&loaded), stored);
    train(&loaded, 500..700);
    checkpoint(&dir, &loaded, Kind::Delta { base: 0 });
    assert_eq!(contents(&load(&dir.path_of(1), adam_config(9), 1)), contents(&loaded));
}

fn check(output: &Output, reason: &str) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("save: cannot write checkpoints/.checkpoint_1."), "{text}");
    assert!(text.contains(reason), "{text}");
}

#[test]
fn a_limit_on_file_sizes() {
    // 1 MiB or half of it, depending on the shell; the rows take more. The signal that goes with
    // the limit would end the process, so it is ignored.
    let dir = tempfile::tempdir().unwrap();
    let line =
        "trap '' XFSZ; ulimit -f 1024; exec \"$0\" --exact disk::child --ignored --nocapture";
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", line])
        .arg(program)
        .current_dir(dir.path())
        .output()
        .unwrap();
    check(&output, "File too large");
}

#[test]
fn a_full_file_system() {
    // A file system of 2 MiB in a mount namespace of its own; not every machine allows that.
    let allowed = Command::new("unshare").args(["-rm", "true"]).output();
    if !allowed.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: mount namespaces are not allowed here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let line = "mkdir full && mount -t tmpfs -o size=2m none full && cd full && \
                exec \"$0\" --exact disk::child --ignored --nocapture";
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", line])
        .arg(std::env::current_exe().unwrap())
        .current_dir(dir.path())
        .output()
        .unwrap();
    check(&output, "No space left on device");
}
