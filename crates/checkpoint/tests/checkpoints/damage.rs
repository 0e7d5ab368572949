//! Truncated, flipped, missing, foreign and half-copied files: each is named, and an older
//! checkpoint is used instead.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use regatta_checkpoint::{Check, CheckpointDir, Kind, MANIFEST_FILE, Resume, TableReader, verify};
use regatta_table::SparseTable;

use crate::{adam_config, checkpoint, train};

const ROWS: &str = "emb.0-of-1.rows";

/// Two checkpoints; the damage is done to the second.
fn two(root: &Path) -> CheckpointDir {
    let dir = CheckpointDir::open(root);
    let table = SparseTable::new(adam_config(9)).unwrap();
    for _ in 0..2 {
        train(&table, 0..6000);
        checkpoint(&dir, &table, Kind::Full);
    }
    dir
}

/// Does damage; gives what `verify` says, and makes sure that the older one is chosen.
fn after(damage: impl FnOnce(&Path)) -> Vec<String> {
    let root = tempfile::tempdir().unwrap();
    let dir = two(root.path());
    assert_eq!(verify(&dir.path_of(1), Check::Checksums), []);
    damage(&dir.path_of(1));
    let choice = dir.choose(&Resume::Auto, Check::Checksums).unwrap();
    assert_eq!(choice.checkpoint.unwrap().path(), dir.path_of(0));
    assert_eq!(choice.passed_over.len(), 1);
    assert_eq!(choice.passed_over[0].path, dir.path_of(1));
    let problems = verify(&dir.path_of(1), Check::Checksums);
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(!texts.is_empty());
    texts.iter().for_each(|text| assert!(text.contains("checkpoint_1"), "{text}"));
    texts
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << (at % 8);
    fs::write(path, bytes).unwrap();
}

fn cut_off(path: &Path, by: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - by).unwrap();
}

fn one(texts: Vec<String>, parts: &[&str]) {
    assert_eq!(texts.len(), 1, "{texts:?}");
    parts.iter().for_each(|part| assert!(texts[0].contains(part), "{texts:?} lacks {part}"));
}

#[test]
fn truncated_files() {
    one(after(|p| cut_off(&p.join(ROWS), 1)), &[ROWS, "truncated"]);
    one(after(|p| cut_off(&p.join("dense.safetensors"), 4)), &["dense.safetensors", "bytes"]);
    one(after(|p| cut_off(&p.join(MANIFEST_FILE), 3)), &[MANIFEST_FILE, "cut off"]);
    one(after(|p| cut_off(&p.join(MANIFEST_FILE), 100)), &[MANIFEST_FILE, "cut off"]);
    one(after(|p| fs::write(p.join(ROWS), "").unwrap()), &[ROWS, "truncated: 0 bytes"]);
}

#[test]
fn flipped_bits_in_rows_are_located() {
    let root = tempfile::tempdir().unwrap();
    let dir = two(root.path());
    let path = dir.path_of(1).join(ROWS);
    let size = fs::metadata(&path).unwrap().len();
    assert!(TableReader::open(&path).unwrap().n_blocks() > 2, "{size} bytes");
    // Two different blocks.
    flip(&path, 5000);
    flip(&path, size as usize / 2);
    let problems = verify(&dir.path_of(1), Check::Checksums);
    assert_eq!(problems.len(), 2, "{problems:?}");
    for (problem, at) in problems.iter().zip([5000, size / 2]) {
        let begin = problem.offset.unwrap();
        assert!(begin <= at && at < begin + 300_000, "{problem}");
        assert!(problem.to_string().contains("is damaged: its checksum is"), "{problem}");
    }
    assert_eq!(verify(&dir.path_of(1), Check::Sizes), [], "sizes are not enough");
}

#[test]
fn flipped_bits_elsewhere() {
    one(after(|p| flip(&p.join(ROWS), 30)), &[ROWS, "the head is damaged", "at byte 0"]);
    let end = |p: &Path| fs::metadata(p.join(ROWS)).unwrap().len() as usize;
    one(after(|p| flip(&p.join(ROWS), end(p) - 60)), &[ROWS, "damaged"]);
    one(after(|p| flip(&p.join(ROWS), end(p) - 150)), &[ROWS, "the index is damaged"]);
    one(after(|p| flip(&p.join("worker-0.bin"), 2)), &["worker-0.bin", "damaged"]);
    one(after(|p| flip(&p.join(MANIFEST_FILE), 300)), &[MANIFEST_FILE]);
    let dense = after(|p| {
        let path = p.join("dense.safetensors");
        let len = fs::metadata(&path).unwrap().len() as usize;
        flip(&path, len - 1);
    });
    one(dense, &["dense.safetensors", "damaged", "(in 'fc.w')"]);
}

#[test]
fn missing_files() {
    one(after(|p| fs::remove_file(p.join(ROWS)).unwrap()), &[ROWS, ": missing"]);
    one(
        after(|p| fs::remove_file(p.join("dense.safetensors")).unwrap()),
        &["dense.safetensors: missing"],
    );
    one(after(|p| fs::remove_file(p.join(MANIFEST_FILE)).unwrap()), &["there is no manifest.json"]);
}

#[test]
fn foreign_versions_and_files() {
    let version = after(|p| {
        let path = p.join(MANIFEST_FILE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"format\": 1", "\"format\": 99")).unwrap();
    });
    one(version, &["format version 99 is not supported (only 1)"]);
    let rows = after(|p| {
        let path = p.join(ROWS);
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 7;
        fs::write(&path, bytes).unwrap();
    });
    one(rows, &[ROWS, "format version 7 is not supported (only 1)"]);
    one(
        after(|p| fs::write(p.join(ROWS), vec![b'x'; 4096]).unwrap()),
        &[ROWS, "not a table's file"],
    );
    one(
        after(|p| fs::write(p.join("core"), "x").unwrap()),
        &["core", "not part of the checkpoint"],
    );
}

#[test]
fn half_uploaded_and_mixed_up_files() {
    // Some tools reserve the whole file first: the size is right, the rest is zeros.
    let zeros = after(|p| {
        let path = p.join(ROWS);
        let mut bytes = fs::read(&path).unwrap();
        let half = bytes.len() / 2;
        bytes[half..].fill(0);
        fs::write(&path, bytes).unwrap();
    });
    one(zeros, &[ROWS, "truncated or not written completely"]);
    // A good file of another checkpoint, of the same size.
    let mixed = after(|p| {
        fs::copy(p.parent().unwrap().join("checkpoint_0").join(ROWS), p.join(ROWS))
            .map(|_| ())
            .unwrap();
    });
    one(mixed, &[ROWS, "it is of another checkpoint"]);
    let renamed = after(|p| {
        fs::remove_dir_all(p).unwrap();
        let other = p.parent().unwrap().join("checkpoint_0");
        fs::create_dir(p).unwrap();
        for entry in fs::read_dir(other).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), p.join(entry.file_name())).unwrap();
        }
        fs::remove_file(p.join(ROWS)).unwrap();
    });
    one(renamed, &[ROWS]);
}

#[test]
fn damage_to_a_base_is_damage_to_its_deltas() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    let table = SparseTable::new(adam_config(3)).unwrap();
    for kind in [Kind::Full, Kind::Full, Kind::Delta { base: 1 }] {
        train(&table, 0..100);
        checkpoint(&dir, &table, kind);
    }
    flip(&dir.path_of(1).join(ROWS), 500);
    let problems = verify(&dir.path_of(2), Check::Checksums);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].path.starts_with(dir.path_of(1)));
    let choice = dir.choose(&Resume::Latest, Check::Checksums).unwrap();
    assert_eq!(choice.checkpoint.unwrap().path(), dir.path_of(0));
    assert_eq!(choice.passed_over.len(), 2);
}

#[test]
fn when_nothing_is_good_the_user_decides() {
    let root = tempfile::tempdir().unwrap();
    let dir = two(root.path());
    for serial in 0..2 {
        flip(&dir.path_of(serial).join(ROWS), 5000);
    }
    let error = dir.choose(&Resume::Auto, Check::Checksums).unwrap_err().to_string();
    assert!(
        error.contains("none of 2 checkpoints can be used (--resume none begins anew)"),
        "{error}"
    );
    assert_eq!(error.matches("is not used: ").count(), 2, "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Any flipped bit of any file is found, and nothing that is read panics.
    #[test]
    fn no_flipped_bit_goes_unnoticed(file in 0usize..4, at in any::<prop::sample::Index>()) {
        let root = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::open(root.path());
        let table = SparseTable::new(adam_config(2)).unwrap();
        train(&table, 0..30);
        checkpoint(&dir, &table, Kind::Full);
        let name = [ROWS, "dense.safetensors", "worker-0.bin", MANIFEST_FILE][file];
        let path = dir.path_of(0).join(name);
        let len = fs::metadata(&path).unwrap().len() as usize;
        flip(&path, at.index(len));
        prop_assert!(!verify(&dir.path_of(0), Check::Checksums).is_empty());
        prop_assert!(dir.choose(&Resume::Latest, Check::Checksums).is_err());
    }
}
