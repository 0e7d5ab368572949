//! Saving and loading a table beside plain writes and reads of as many bytes, in one run on one disk.
//!
//! Every round does all of them in turn. Writes end with an fsync on both sides. Reads are measured
//! twice: with the file dropped from the page cache on both sides, and with the file in it. A plain
//! read goes through one buffer, as `dd` does; a load leaves a table that can be trained.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use regatta_checkpoint::{
    Checkpoint, CheckpointDir, Kind, Manifest, Progress, Topology, save_table,
};
use regatta_optim::{Adam, Rule};
use regatta_table::{
    Accessor, Initializer, PlainConfig, PullMode, SaveMode, Scope, Scratch, SparseConfig,
    SparseTable, TableId,
};
use regatta_tensor::Rng;
use serde::Serialize;

/// Bytes per call of plain writes and reads.
const CALL_BYTES: usize = 1 << 20;
/// Keys of a push that is timed while a checkpoint is made: a batch of 100 examples with 26 slots.
const PUSH_KEYS: usize = 2600;
/// One row in this many changes between a full checkpoint and a delta.
const CHANGED: u64 = 10;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rows of the table.
    pub rows: u64,
    /// Weights per row.
    pub dim: usize,
    /// Threads that load.
    pub threads: usize,
    /// Measurements.
    pub rounds: usize,
    /// A directory on the disk to be measured.
    pub dir: PathBuf,
}

/// All figures.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Rows of the table.
    pub rows: u64,
    /// Floats per row, state included.
    pub floats_per_row: usize,
    /// Threads that load.
    pub threads: usize,
    /// Bytes of a full checkpoint.
    pub bytes: u64,
    /// Medians of all rounds, in seconds.
    pub seconds: Seconds,
    /// Median over the rounds of plain time over our time.
    pub ratios: Ratios,
    /// Bytes and seconds of a delta after a tenth of the rows changed.
    pub delta: Delta,
    /// What training notices of a checkpoint.
    pub stall: Stall,
}

/// Seconds of one round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Seconds {
    /// Plain write with fsync.
    pub write: f64,
    /// Save of a checkpoint, from the cut to its publication.
    pub save: f64,
    /// Plain read, not in the page cache.
    pub read_cold: f64,
    /// Load, not in the page cache.
    pub load_cold: f64,
    /// Plain read, in the page cache.
    pub read_warm: f64,
    /// Load, in the page cache.
    pub load_warm: f64,
}

/// How close we come to plain writes and reads.
#[derive(Debug, Clone, Serialize)]
pub struct Ratios {
    /// Of saves.
    pub save: f64,
    /// Of loads from disk.
    pub load_cold: f64,
    /// Of loads from the page cache.
    pub load_warm: f64,
}

/// A delta.
#[derive(Debug, Clone, Serialize)]
pub struct Delta {
    /// Its size.
    pub bytes: u64,
    /// To save it.
    pub save_seconds: f64,
}

/// Pushes of 2,600 rows one after the other, with and without a checkpoint under way.
#[derive(Debug, Clone, Serialize)]
pub struct Stall {
    /// Of the cut: all shards locked once.
    pub cut_us: f64,
    /// Pushes per second without a checkpoint.
    pub pushes_before: f64,
    /// Pushes per second while one is made.
    pub pushes_during: f64,
    /// The longest push while one is made.
    pub longest_push_ms: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, r) = (&self.seconds, &self.ratios);
        let mb = self.bytes as f64 / 1e6;
        writeln!(
            f,
            "{} rows of {} floats, {mb:.0} MB, {} threads to load",
            self.rows, self.floats_per_row, self.threads
        )?;
        writeln!(f, "               plain s    MB/s   ours s    MB/s   of plain")?;
        let lines = [
            ("write", s.write, s.save, r.save),
            ("read, cold", s.read_cold, s.load_cold, r.load_cold),
            ("read, cached", s.read_warm, s.load_warm, r.load_warm),
        ];
        for (name, plain, ours, ratio) in lines {
            writeln!(
                f,
                "{name:13}  {plain:>7.3}  {:>6.0}  {ours:>7.3}  {:>6.0}  {:>7.0} %",
                mb / plain,
                mb / ours,
                ratio * 100.0
            )?;
        }
        let (d, t) = (&self.delta, &self.stall);
        writeln!(
            f,
            "delta of a tenth of the rows: {:.0} MB in {:.3} s",
            d.bytes as f64 / 1e6,
            d.save_seconds
        )?;
        writeln!(
            f,
            "cut {:.0} us; pushes per second {:.0} before, {:.0} during ({:.0} %), the longest \
             {:.1} ms",
            t.cut_us,
            t.pushes_before,
            t.pushes_during,
            100.0 * t.pushes_during / t.pushes_before,
            t.longest_push_ms
        )
    }
}

/// Does all measurements in a fresh directory within `options.dir`, which is removed afterwards.
///
/// # Errors
/// If something cannot be written or read, or what is loaded is not what was saved.
pub fn measure(options: &Options) -> Result<Report> {
    fs::create_dir_all(&options.dir)?;
    let folder = tempfile::tempdir_in(&options.dir).context("no room for the measurement")?;
    let table = filled(options)?;
    let mut rounds = Vec::new();
    let mut bytes = 0;
    for _ in 0..options.rounds.max(1) {
        let (round, size) = round(options, folder.path(), &table)?;
        rounds.push(round);
        bytes = size;
    }
    let ratio = |plain: fn(&Seconds) -> f64, ours: fn(&Seconds) -> f64| {
        median(rounds.iter().map(|s| plain(s) / ours(s)).collect())
    };
    let middle = |of: fn(&Seconds) -> f64| median(rounds.iter().map(of).collect());
    Ok(Report {
        rows: options.rows,
        floats_per_row: table.row_parts().iter().map(|(_, n)| n).sum(),
        threads: options.threads,
        bytes,
        seconds: Seconds {
            write: middle(|s| s.write),
            save: middle(|s| s.save),
            read_cold: middle(|s| s.read_cold),
            load_cold: middle(|s| s.load_cold),
            read_warm: middle(|s| s.read_warm),
            load_warm: middle(|s| s.load_warm),
        },
        ratios: Ratios {
            save: ratio(|s| s.write, |s| s.save),
            load_cold: ratio(|s| s.read_cold, |s| s.load_cold),
            load_warm: ratio(|s| s.read_warm, |s| s.load_warm),
        },
        delta: delta(folder.path(), &table, options)?,
        stall: stall(folder.path(), &table, options)?,
    })
}

fn config(dim: usize) -> SparseConfig {
    let initializer = Initializer::Uniform { low: -0.1, high: 0.1 };
    let plain = PlainConfig { initializer, ..PlainConfig::new(dim, Rule::Adam(Adam::default())) };
    SparseConfig::new(TableId(0), 1, Accessor::Plain(plain))
}

/// A table whose rows have been pushed once.
fn filled(options: &Options) -> Result<SparseTable> {
    let table = SparseTable::new(config(options.dim))?;
    for first in (0..options.rows).step_by(100_000) {
        let keys: Vec<u64> = (first..(first + 100_000).min(options.rows)).collect();
        push(&table, &keys, true)?;
    }
    Ok(table)
}

fn push(table: &SparseTable, keys: &[u64], create: bool) -> Result<()> {
    let scratch = &mut Scratch::default();
    let n = keys.len() * table.push_width();
    if create {
        table.pull(keys, &mut vec![0.0; n], PullMode::Train, scratch)?;
    }
    let gradients: Vec<f32> = (0..n).map(|i| (i % 1000) as f32 * 1e-3 - 0.5).collect();
    table.push_unique(keys, &gradients, 0.001, scratch)?;
    Ok(())
}

fn round(options: &Options, folder: &Path, table: &SparseTable) -> Result<(Seconds, u64)> {
    let dir = CheckpointDir::open(folder.join("checkpoints"));
    let (path, save) = timed(|| save(&dir, table, Kind::Full))?;
    let rows = path.join(ROWS);
    let bytes = fs::metadata(&rows)?.len();
    let plain = folder.join("plain");
    let ((), write) = timed(|| plain_write(&plain, bytes))?;
    let mut seconds = Seconds { write, save, ..Seconds::default() };
    drop_from_cache(&plain)?;
    seconds.read_cold = timed(|| plain_read(&plain))?.1;
    drop_from_cache(&rows)?;
    seconds.load_cold = load_time(&path, options)?;
    seconds.read_warm = timed(|| plain_read(&plain))?.1;
    seconds.load_warm = load_time(&path, options)?;
    fs::remove_file(&plain)?;
    dir.remove_all()?;
    Ok((seconds, bytes))
}

/// The part of the table in a checkpoint.
const ROWS: &str = "emb.0-of-1.rows";

fn save(dir: &CheckpointDir, table: &SparseTable, kind: Kind) -> Result<PathBuf> {
    let scope = match kind {
        Kind::Full => Scope::Rows(SaveMode::All),
        Kind::Delta { .. } => Scope::Changes,
    };
    let draft = dir.begin(dir.next_serial()?)?;
    let cut = table.cut(scope)?;
    let saved = save_table(draft.path(), ROWS, "emb", table, &cut)?;
    let mut manifest = Manifest::new("bench", Topology::default(), Progress::default());
    (manifest.kind, manifest.parts) = (kind, vec![saved.part]);
    let path = draft.publish(manifest)?;
    table.end_cut(cut, true)?;
    Ok(path)
}

/// Loads into a new table and makes sure that all rows are there. The old one is dropped untimed.
fn load_time(path: &Path, options: &Options) -> Result<f64> {
    let ((table, n), seconds) = timed(|| {
        let table = SparseTable::new(config(options.dim))?;
        let saved = Checkpoint::open(path)?.table("emb")?;
        let n = saved.load_into(&table, |_| true, options.threads)?;
        Ok((table, n))
    })?;
    ensure!(n as u64 == options.rows, "{n} rows were loaded instead of {}", options.rows);
    drop(table);
    Ok(seconds)
}

fn plain_write(path: &Path, bytes: u64) -> Result<()> {
    let mut buffer = vec![0u8; CALL_BYTES];
    let rng = Rng::new(1, 0);
    for (i, chunk) in buffer.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&rng.u64(i as u64).to_le_bytes()[..chunk.len()]);
    }
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let n = left.min(CALL_BYTES as u64) as usize;
        file.write_all(&buffer[..n])?;
        left -= n as u64;
    }
    Ok(file.sync_all()?)
}

fn plain_read(path: &Path) -> Result<()> {
    let mut buffer = vec![0u8; CALL_BYTES];
    let mut file = File::open(path)?;
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

/// Asks the system to forget a file that is on disk.
#[cfg(target_os = "linux")]
fn drop_from_cache(path: &Path) -> Result<()> {
    use rustix::fs::{Advice, fadvise};
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

#[cfg(not(target_os = "linux"))]
fn drop_from_cache(_: &Path) -> Result<()> {
    anyhow::bail!("files can be dropped from the page cache on Linux only")
}

fn delta(folder: &Path, table: &SparseTable, options: &Options) -> Result<Delta> {
    let dir = CheckpointDir::open(folder.join("deltas"));
    save(&dir, table, Kind::Full)?;
    let keys: Vec<u64> = (0..options.rows).step_by(CHANGED as usize).collect();
    push(table, &keys, false)?;
    let (path, save_seconds) = timed(|| save(&dir, table, Kind::Delta { base: 0 }))?;
    let bytes = fs::metadata(path.join(ROWS))?.len();
    dir.remove_all()?;
    Ok(Delta { bytes, save_seconds })
}

/// Pushes while another thread saves.
fn stall(folder: &Path, table: &SparseTable, options: &Options) -> Result<Stall> {
    let dir = CheckpointDir::open(folder.join("stall"));
    let (before, _) = pushes(table, options, |_, elapsed| elapsed > Duration::from_secs(1))?;
    let (cut, cut_seconds) = timed(|| Ok(table.cut(Scope::Rows(SaveMode::All))?))?;
    table.end_cut(cut, false)?;
    let done = AtomicBool::new(false);
    let ((during, longest), saved) = std::thread::scope(|scope| {
        let saver = scope.spawn(|| {
            let saved = save(&dir, table, Kind::Full);
            done.store(true, Ordering::Release);
            saved
        });
        let pushed = pushes(table, options, |n, _| n > 0 && done.load(Ordering::Acquire));
        let saved = saver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, anyhow::Error>((pushed?, saved))
    })?;
    saved?;
    dir.remove_all()?;
    Ok(Stall {
        cut_us: cut_seconds * 1e6,
        pushes_before: before,
        pushes_during: during,
        longest_push_ms: longest * 1e3,
    })
}

/// Pushes per second, and the longest one in seconds, until `stop` says so.
fn pushes(
    table: &SparseTable,
    options: &Options,
    stop: impl Fn(u64, Duration) -> bool,
) -> Result<(f64, f64)> {
    let rng = Rng::new(7, 0);
    let (begin, mut n, mut longest) = (Instant::now(), 0u64, 0.0f64);
    let gradients = vec![0.01; PUSH_KEYS * table.push_width()];
    let mut scratch = Scratch::default();
    while !stop(n, begin.elapsed()) {
        let at = |i: usize| rng.u64(n * PUSH_KEYS as u64 + i as u64) % options.rows;
        let keys: Vec<u64> = (0..PUSH_KEYS).map(at).collect();
        let ((), seconds) = timed(|| {
            table.push(&keys, &gradients, 0.001, &mut scratch)?;
            Ok(())
        })?;
        longest = longest.max(seconds);
        n += 1;
    }
    Ok((n as f64 / begin.elapsed().as_secs_f64(), longest))
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let begin = Instant::now();
    let done = work()?;
    Ok((done, begin.elapsed().as_secs_f64()))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_table_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_path_buf();
        let options = Options { rows: 5000, dim: 9, threads: 2, rounds: 1, dir };
        let report = measure(&options).unwrap();
        assert!(report.bytes > 5000 * 9 * 4, "{report}");
        assert!(report.delta.bytes < report.bytes / 5, "{report}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }
}
