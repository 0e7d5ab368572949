//! Broken files and full disks, by both read engines: an error that names table and file, a table
//! that refuses everything from then on, never a wrong row.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_cold::EngineChoice;
use regatta_optim::{Rule, Sgd};

use crate::{
    Accessor, Error, PlainConfig, PullMode, SaveMode, Scope, Scratch, SparseConfig, SparseTable,
    TableId, TierConfig,
};

const N_KEYS: u64 = 2000;

/// A table of 16 rows in memory and the others in files, of which row `k` is `[k; 12]`; none where
/// io_uring is forbidden.
fn filled(dir: &Path, engine: EngineChoice) -> Option<SparseTable> {
    let tier = TierConfig { memory_bytes: 16 * 48, dir: dir.into(), lookahead: 1 };
    let plain = PlainConfig::new(12, Rule::Sgd(Sgd::default()));
    let config = SparseConfig::new(TableId(3), 1, Accessor::Plain(plain));
    let config = SparseConfig { n_shards: 2, tier: Some(tier), ..config };
    let table = match SparseTable::with_engine(config, engine) {
        Err(Error::Cold { what, .. }) if what.contains("io_uring") => return None,
        made => made.unwrap(),
    };
    let keys: Vec<u64> = (0..N_KEYS).collect();
    let gradients: Vec<f32> = keys.iter().flat_map(|key| [-(*key as f32); 12]).collect();
    pull(&table, &keys, PullMode::Train).unwrap();
    table.push(&keys, &gradients, 1.0, &mut Scratch::default()).unwrap();
    table.tier.as_ref().unwrap().core.store.flush().unwrap();
    Some(table)
}

fn pull(table: &SparseTable, keys: &[u64], mode: PullMode<'_>) -> Result<(), Error> {
    let mut out = vec![f32::NAN; keys.len() * 12];
    table.pull(keys, &mut out, mode, &mut Scratch::default())?;
    // Rows of before the first push are zeros.
    let right = |(key, row): (&u64, &[f32])| {
        row.iter().all(|x| *x == *key as f32) || row.iter().all(|x| *x == 0.0)
    };
    assert!(keys.iter().zip(out.chunks(12)).all(right), "a wrong row");
    Ok(())
}

fn each_engine(test: impl Fn(&SparseTable, &Path)) {
    for engine in [EngineChoice::Ring, EngineChoice::Threads] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("cold");
        let Some(table) = filled(&dir, engine) else { continue };
        test(&table, &dir);
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|e| e == "cold")).collect()
}

/// Whatever it is asked for, the answer is the first failure.
fn assert_refuses(table: &SparseTable, error: &Error, cause: &str) {
    let text = error.to_string();
    assert!(matches!(error, Error::Cold { .. }), "{error:?}");
    assert!(text.starts_with("table 3: ") && text.contains(cause), "{text}");
    let scratch = &mut Scratch::default();
    let answers = [
        pull(table, &[1], PullMode::Train).err(),
        pull(table, &[1], PullMode::Test).err(),
        table.push(&[1], &[0.0; 12], 1.0, scratch).err(),
        table.prefetch(&[1], scratch).err(),
        table.export(0, SaveMode::All).err(),
        table.snapshot(Scope::Rows(SaveMode::All)).err(),
        table.shrink(None).err(),
        table.inspect(1).err(),
        table.import([]).err().or(table.clear().err()),
    ];
    for answer in answers {
        assert_eq!(answer.as_ref(), Some(error));
    }
}

fn pull_all(table: &SparseTable, mode: PullMode<'_>) -> Error {
    let keys: Vec<u64> = (0..N_KEYS).collect();
    let error = keys.chunks(100).find_map(|keys| pull(table, keys, mode).err());
    error.expect("a broken file is met")
}

#[test]
fn a_flipped_byte_is_an_error_of_the_table() {
    for mode in [PullMode::Train, PullMode::Test] {
        each_engine(|table, dir| {
            for file in files(dir) {
                let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, 4096 + 20).unwrap();
                file.write_all_at(&[byte[0] ^ 0x10], 4096 + 20).unwrap();
            }
            let error = pull_all(table, mode);
            assert!(error.to_string().contains(dir.to_str().unwrap()), "{error}");
            assert_refuses(table, &error, "wrong checksum at byte");
        });
    }
}

#[test]
fn a_short_file_is_an_error_of_the_table() {
    each_engine(|table, dir| {
        for file in files(dir) {
            OpenOptions::new().write(true).open(file).unwrap().set_len(4096 + 512).unwrap();
        }
        let error = table.export(1, SaveMode::All).unwrap_err();
        assert_refuses(table, &error, "bytes at byte");
    });
}

#[test]
fn a_failed_write_is_an_error_of_the_table() {
    each_engine(|table, dir| {
        fs::remove_dir_all(dir).unwrap();
        let keys: Vec<u64> = (N_KEYS..20 * N_KEYS).collect();
        let failed = keys.chunks(50).find_map(|keys| pull(table, keys, PullMode::Train).err());
        assert_refuses(table, &failed.unwrap(), ".cold: cannot create at byte 0");
    });
}

#[test]
fn a_failure_ahead_of_use_is_told_to_whoever_comes_next() {
    each_engine(|table, dir| {
        for file in files(dir) {
            OpenOptions::new().write(true).open(file).unwrap().set_len(4096).unwrap();
        }
        let keys: Vec<u64> = (0..N_KEYS).collect();
        let scratch = &mut Scratch::default();
        let failed = keys.iter().find_map(|key| {
            table
                .prefetch(&[*key], scratch)
                .err()
                .or_else(|| pull(table, &[*key], PullMode::Train).err())
        });
        assert_refuses(table, &failed.unwrap(), "bytes at byte");
    });
}

/// Unmounts at the end of a test, whatever happened in it.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(self.0).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn a_full_disk_is_an_error_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=512k", "none"]).arg(folder.path());
    if !mount.output().is_ok_and(|done| done.status.success()) {
        eprintln!("not tested: no tmpfs can be mounted");
        return;
    }
    let _mounted = Mounted(folder.path());
    for engine in [EngineChoice::Ring, EngineChoice::Threads] {
        let dir = folder.path().join("cold");
        let Some(table) = filled(&dir, engine) else { continue };
        let keys: Vec<u64> = (N_KEYS..100 * N_KEYS).collect();
        let failed = keys.chunks(50).find_map(|keys| pull(&table, keys, PullMode::Train).err());
        assert_refuses(&table, &failed.unwrap(), "No space left on device");
    }
}
