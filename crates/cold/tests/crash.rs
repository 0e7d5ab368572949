//! A process that is killed while it writes leaves a directory that the next one cleans.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use regatta_cold::{Error, Options, Store};

const WORDS: usize = 27;

fn options() -> Options {
    Options { segment_bytes: 1 << 20, ..Options::new(WORDS) }
}

/// What the killed process runs: it puts, releases and compacts until it dies. The directory comes
/// by its input, and a line leaves for every segment.
#[test]
#[ignore = "the other test starts it"]
fn child() {
    let mut dir = String::new();
    std::io::stdin().read_line(&mut dir).unwrap();
    let store = Store::open(Path::new(dir.trim()), &options()).unwrap();
    // Written and never released, so that there is a file whenever the process dies.
    for hash in 0..8000 {
        store.put(hash, 0, &[hash as u32; WORDS]).unwrap();
    }
    store.flush().unwrap();
    let mut old = Vec::new();
    for hash in 8000..u64::MAX {
        old.push(store.put(hash, 0, &[hash as u32; WORDS]).unwrap());
        if old.len() == 8000 {
            store.release(&old[..5000]).unwrap();
            store.compact(|_, _, _| true).unwrap();
            old.clear();
            println!("a segment");
        }
    }
}

fn start(dir: &Path) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.take().unwrap(), "{}", dir.display()).unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (child, lines.filter(|line| line.contains("a segment")))
}

#[test]
fn what_a_killed_process_left_is_cleaned() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("rows");
    for round in 0..5 {
        // The pipe stays open: without it the process would end by itself.
        let (mut child, mut lines) = start(&dir);
        assert_eq!(lines.by_ref().take(3 + 2 * round).count(), 3 + 2 * round);
        let refused = Store::open(&dir, &options());
        let owner = child.id().to_string();
        assert!(matches!(refused, Err(Error::InUse { owner: o, .. }) if o == owner));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(fs::read_dir(&dir).unwrap().count() > 1, "it left something");
        let store = Store::open(&dir, &options()).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "only the lock is left");
        let number = store.put(5, 6, &[7; WORDS]).unwrap();
        store.flush().unwrap();
        assert_eq!(store.read(&[number]).unwrap().get(0).unwrap().words, [7; WORDS]);
    }
    assert!(!dir.exists());
}
