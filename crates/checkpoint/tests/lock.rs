//! Two processes and one folder.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use regatta_checkpoint::{Check, Manifest, Progress, Topology};
use regatta_checkpoint::{CheckpointDir, FolderLock, LOCK_FILE, Resume, verify_all};

/// Not a test of its own: a process that holds the lock of its directory until its input ends.
#[test]
#[ignore = "run by the tests below"]
fn child() {
    let lock = FolderLock::take(".", "job blue").unwrap();
    println!("\nlocked");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(lock);
}

/// A process that holds the lock of `dir`.
fn hold(dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let mut words = lines.map(|line| line.unwrap());
    assert!(words.any(|line| line == "locked"), "the process has not got the lock");
    child
}

#[test]
fn the_second_job_hears_who_holds_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = hold(dir.path());
    let error = FolderLock::take(dir.path(), "job red").unwrap_err().to_string();
    let holder = format!("job blue (process {}", first.id());
    assert!(error.contains(&holder), "{error}");
    assert!(error.starts_with(&dir.path().display().to_string()), "{error}");
    // A job that ends leaves nothing behind.
    first.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(first.wait().unwrap().success());
    assert!(!dir.path().join(LOCK_FILE).exists());
    let lock = FolderLock::take(dir.path(), "job red").unwrap();
    assert_eq!(lock.warning(), None);
    let error = FolderLock::take(dir.path(), "job green").unwrap_err().to_string();
    assert!(error.contains("job red"), "{error}");
}

#[test]
fn a_killed_job_leaves_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = hold(dir.path());
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(dir.path().join(LOCK_FILE).exists(), "the file stays, the lock does not");
    drop(FolderLock::take(dir.path(), "job red").unwrap());
    assert!(!dir.path().join(LOCK_FILE).exists());
}

#[test]
#[cfg(target_os = "linux")]
fn a_link_in_the_place_of_the_file_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join(LOCK_FILE)).unwrap();
    FolderLock::take(dir.path(), "job red").unwrap_err();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn checkpoints_do_not_see_the_file() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("deep").join("checkpoints");
    let lock = FolderLock::take(&path, "job red").unwrap();
    let dir = CheckpointDir::open(&path);
    assert_eq!(dir.list().unwrap(), []);
    assert_eq!(dir.choose(&Resume::Auto, Check::Checksums).unwrap().checkpoint, None);
    for serial in 0..3 {
        let manifest = Manifest::new("0123", Topology::default(), Progress::default());
        dir.begin(serial).unwrap().publish(manifest).unwrap();
    }
    assert_eq!(dir.rotate(1).unwrap(), [0, 1]);
    assert_eq!(verify_all(&dir, Check::Checksums).unwrap(), (1, vec![]));
    assert!(path.join(LOCK_FILE).exists());
    // The folder goes with the last of its contents.
    dir.remove_all().unwrap();
    drop(lock);
    assert!(!path.exists());
}
