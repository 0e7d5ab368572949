//! Directories of checkpoints: what is listed, kept and removed.

use std::fs;

use regatta_checkpoint::{
    Check, CheckpointDir, Kind, MANIFEST_FILE, Manifest, Part, Resume, State, write_bytes,
};
use regatta_table::{SaveMode, SparseTable};

use crate::{adam_config, checkpoint, manifest, train};

fn serials(dir: &CheckpointDir) -> Vec<u64> {
    let entries = dir.list().unwrap();
    entries.iter().filter(|e| e.manifest().is_some()).map(|e| e.serial).collect()
}

/// A checkpoint with one small part.
fn small(dir: &CheckpointDir, serial: u64, kind: Kind) {
    let draft = dir.begin(serial).unwrap();
    let part = write_bytes(draft.path(), "a.bin", b"abc").unwrap();
    draft.publish(Manifest { kind, ..manifest(vec![part]) }).unwrap();
}

#[test]
fn a_directory_that_is_not_there_has_no_checkpoints() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path().join("none"));
    assert_eq!(dir.list().unwrap(), []);
    assert_eq!(dir.next_serial().unwrap(), 0);
    assert!(dir.rotate(3).unwrap().is_empty());
    let choice = dir.choose(&Resume::Auto, Check::Checksums).unwrap();
    assert_eq!((choice.checkpoint, choice.passed_over), (None, vec![]));
    let error = dir.choose(&Resume::Latest, Check::Checksums).unwrap_err().to_string();
    assert!(error.contains("there is no checkpoint to resume from"), "{error}");
    assert!(!dir.path().exists(), "looking changes nothing");
}

#[test]
fn the_newest_are_kept_and_everything_foreign_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    let foreign = [
        "checkpoint_old",
        "checkpoint_007",
        "notes.txt",
        "checkpoint_",
        ".checkpoint_x.1",
        "other_1",
    ];
    for name in foreign {
        fs::write(root.path().join(name), "mine").unwrap();
    }
    for serial in 0..5 {
        small(&dir, serial, Kind::Full);
        dir.rotate(2).unwrap();
    }
    assert_eq!(serials(&dir), [3, 4]);
    assert_eq!(dir.rotate(0).unwrap(), [3], "the last one stays");
    assert_eq!(serials(&dir), [4]);
    for name in foreign {
        assert_eq!(fs::read_to_string(root.path().join(name)).unwrap(), "mine");
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), foreign.len() + 1);
    dir.remove_all().unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), foreign.len());
}

#[test]
fn serial_zero_is_a_checkpoint_like_any_other() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    small(&dir, 0, Kind::Full);
    let choice = dir.choose(&Resume::Auto, Check::Checksums).unwrap();
    assert_eq!(choice.checkpoint.unwrap().manifest().serial, 0);
    assert_eq!(dir.next_serial().unwrap(), 1);
}

#[test]
fn what_a_kept_delta_builds_on_is_kept() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    small(&dir, 0, Kind::Full);
    small(&dir, 1, Kind::Full);
    small(&dir, 2, Kind::Delta { base: 1 });
    small(&dir, 3, Kind::Delta { base: 2 });
    assert_eq!(dir.rotate(1).unwrap(), [0]);
    assert_eq!(serials(&dir), [1, 2, 3]);
    small(&dir, 4, Kind::Full);
    assert_eq!(dir.rotate(1).unwrap(), [1, 2, 3]);
    assert_eq!(serials(&dir), [4]);
}

#[test]
fn drafts_are_shown_and_removed_once_they_cannot_be_published() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    // A process that was killed in the middle of checkpoint 0, and this one, which is at it again.
    let killed = root.path().join(".checkpoint_0.77-0");
    fs::create_dir(&killed).unwrap();
    fs::write(killed.join("a.bin"), "ab").unwrap();
    let entries = dir.list().unwrap();
    assert!(entries[0].is_draft());
    let State::Incomplete(reason) = &entries[0].state else { panic!("{entries:?}") };
    assert!(reason.starts_with("never published"), "{reason}");
    let choice = dir.choose(&Resume::Auto, Check::Checksums).unwrap();
    assert_eq!(
        (choice.checkpoint, choice.passed_over.len()),
        (None, 1),
        "begins anew, and says so"
    );
    dir.rotate(3).unwrap();
    assert!(killed.exists(), "it may yet be published");
    small(&dir, 0, Kind::Full);
    let open = dir.begin(1).unwrap();
    dir.rotate(3).unwrap();
    assert!(!killed.exists());
    assert!(open.path().exists());
    let path = open.path().to_path_buf();
    drop(open);
    assert!(!path.exists());
}

#[test]
fn publishing_checks_what_participants_report() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    let refusal = |change: &dyn Fn(&mut Vec<Part>, &std::path::Path)| {
        let draft = dir.begin(7).unwrap();
        let mut parts = vec![write_bytes(draft.path(), "a.bin", b"abc").unwrap()];
        change(&mut parts, draft.path());
        draft.publish(manifest(parts)).unwrap_err().to_string()
    };
    let missing = refusal(&|_, draft| fs::remove_file(draft.join("a.bin")).unwrap());
    assert!(missing.ends_with("a.bin is missing"), "{missing}");
    let short = refusal(&|_, draft| fs::write(draft.join("a.bin"), "ab").unwrap());
    assert!(short.ends_with("a.bin has 2 of 3 bytes"), "{short}");
    let twice = refusal(&|parts, _| parts.push(parts[0].clone()));
    assert!(twice.ends_with("two participants have written a.bin"), "{twice}");
    let extra = refusal(&|_, draft| fs::write(draft.join("b.bin"), "ab").unwrap());
    assert!(extra.ends_with("b.bin is there, but nobody reported it"), "{extra}");
    let escape = refusal(&|parts, _| parts[0].name = "../a.bin".into());
    assert!(escape.ends_with("'../a.bin' is no name for a part of a checkpoint"), "{escape}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "nothing is left");

    small(&dir, 7, Kind::Full);
    let taken = dir.begin(7).unwrap_err().to_string();
    assert!(taken.ends_with("there is a checkpoint with this serial already"), "{taken}");
    let draft = dir.begin(8).unwrap();
    let orphan = Manifest { kind: Kind::Delta { base: 3 }, ..manifest(vec![]) };
    let orphan = draft.publish(orphan).unwrap_err().to_string();
    assert!(orphan.ends_with("it builds on checkpoint 3, which is not there"), "{orphan}");
}

#[test]
fn saves_for_serving_are_not_resumed_from() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    let table = SparseTable::new(adam_config(2)).unwrap();
    train(&table, 0..10);
    checkpoint(&dir, &table, Kind::Full);
    let draft = dir.begin(1).unwrap();
    draft.publish(Manifest { mode: SaveMode::Base, ..manifest(vec![]) }).unwrap();
    let choice = dir.choose(&Resume::Auto, Check::Checksums).unwrap();
    assert_eq!(choice.checkpoint.unwrap().manifest().serial, 0);
    assert!(choice.passed_over[0].to_string().contains("mode `base`, which is for serving"));
    let path = Resume::Path(dir.path_of(1));
    assert!(dir.choose(&path, Check::Sizes).unwrap_err().to_string().contains("for serving"));
    let path = Resume::Path(dir.path_of(0));
    let choice = dir.choose(&path, Check::Checksums).unwrap();
    assert_eq!(choice.checkpoint.unwrap().path(), dir.path_of(0));
    assert_eq!(dir.choose(&Resume::None, Check::Checksums).unwrap().checkpoint, None);
}

#[test]
fn the_manifest_is_the_last_thing_that_appears() {
    // Whatever is copied without its manifest is not complete.
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    small(&dir, 0, Kind::Full);
    small(&dir, 1, Kind::Full);
    fs::remove_file(dir.path_of(1).join(MANIFEST_FILE)).unwrap();
    assert_eq!(serials(&dir), [0]);
    assert_eq!(dir.newest_complete().unwrap().unwrap().serial, 0);
    assert_eq!(dir.next_serial().unwrap(), 2, "its name is taken");
}
