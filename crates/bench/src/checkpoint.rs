//! Saving and loading a table beside plain writes and reads of as many bytes, in one run on one
//! disk, and training while a checkpoint is made.
//!
//! Every round does all of them in turn, and in every other round ours come first: disks that allow
//! bursts are slower for the second one. Writes end with an fsync on both sides. Reads are measured
//! twice: with the file dropped from the page cache on both sides, and with the file in it. A plain
//! read goes through one buffer, as `dd` does; a load leaves a table that can be trained, so a
//! plain read of the whole file into fresh memory is measured, too.
//!
//! A virtual machine may give free memory back to its host, and then the first use of a page takes
//! longer than reading it from the disk. So before every measurement, of ours and of plain ones,
//! as much memory as they need is used once.
//!
//! Training is the dense part of a click model on one thread, with a pull before and a push after
//! every step, to the table that is being saved.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memmap2::MmapMut;
use regatta_checkpoint::{
    Checkpoint, CheckpointDir, Kind, Manifest, Progress, Topology, save_table,
};
use regatta_exec::Options as ExecOptions;
use regatta_optim::{Adam, Rule};
use regatta_table::{
    Accessor, Initializer, PlainConfig, PullMode, SaveMode, Scope, Scratch, SparseConfig,
    SparseTable, TableId,
};
use regatta_tensor::Rng;
use serde::Serialize;

use crate::dense::{Runner, W1};

/// Bytes per call of plain writes and reads.
const CALL_BYTES: usize = 1 << 20;
/// Bytes of a page of memory, at least.
const PAGE: usize = 4096;
/// Keys of a push that is timed while a checkpoint is made: a batch of 100 examples with 26 slots.
const PUSH_KEYS: usize = 2600;
/// Examples of a training step, and lookups of each.
const BATCH: usize = 512;
const SLOTS: usize = 26;
/// How long training is measured without a checkpoint, at least.
const TRAIN_SECONDS: f64 = 1.0;
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
    /// Geometric mean over the rounds of plain time over our time.
    pub ratios: Ratios,
    /// Bytes and seconds of a delta after a tenth of the rows changed.
    pub delta: Delta,
    /// What pushes notice of a checkpoint.
    pub stall: Stall,
    /// What training notices of a checkpoint.
    pub training: Training,
}

/// Seconds of one round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Seconds {
    /// Plain write with fsync.
    pub write: f64,
    /// Save of a checkpoint, from the snapshot to its publication.
    pub save: f64,
    /// Plain read, not in the page cache.
    pub read_cold: f64,
    /// Load, not in the page cache.
    pub load_cold: f64,
    /// Plain read into fresh memory, in the page cache.
    pub read_memory: f64,
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
    /// Of loads from the page cache, to a read into fresh memory.
    pub load_memory: f64,
}

/// A delta.
#[derive(Debug, Clone, Serialize)]
pub struct Delta {
    /// Its size.
    pub bytes: u64,
    /// To save it.
    pub save_seconds: f64,
}

/// Pushes of 2,600 rows one after the other, with and without a checkpoint in flight.
#[derive(Debug, Clone, Serialize)]
pub struct Stall {
    /// Of the snapshot: all shards locked once.
    pub cut_us: f64,
    /// Pushes per second without a checkpoint.
    pub pushes_before: f64,
    /// Pushes per second while one is made.
    pub pushes_during: f64,
    /// The longest push while one is made.
    pub longest_push_ms: f64,
}

/// Training steps with and without a checkpoint in flight, in turns.
#[derive(Debug, Clone, Serialize)]
pub struct Training {
    /// Steps per second without a checkpoint, median of the rounds.
    pub steps_before: f64,
    /// Steps per second while one is made, median of the rounds.
    pub steps_during: f64,
    /// The second over the first; the geometric mean of the rounds.
    pub ratio: f64,
    /// The longest step of both, in milliseconds.
    pub longest_before_ms: f64,
    /// While a checkpoint is made.
    pub longest_during_ms: f64,
    /// How long a save takes beside training, median of the rounds.
    pub save_seconds: f64,
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
            ("into memory", s.read_memory, s.load_warm, r.load_memory),
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
        let (d, t, n) = (&self.delta, &self.stall, &self.training);
        writeln!(
            f,
            "delta of a tenth of the rows: {:.0} MB in {:.3} s",
            d.bytes as f64 / 1e6,
            d.save_seconds
        )?;
        writeln!(
            f,
            "snapshot {:.0} us; pushes per second {:.0} before, {:.0} during ({:.0} %), the \
             longest {:.1} ms",
            t.cut_us,
            t.pushes_before,
            t.pushes_during,
            100.0 * t.pushes_during / t.pushes_before,
            t.longest_push_ms
        )?;
        writeln!(
            f,
            "training steps per second {:.1} before, {:.1} during ({:.0} %), the longest {:.1} ms \
             before, {:.1} ms during; a save beside training takes {:.3} s",
            n.steps_before,
            n.steps_during,
            100.0 * n.ratio,
            n.longest_before_ms,
            n.longest_during_ms,
            n.save_seconds
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
    for i in 0..options.rounds.max(1) {
        let (round, size) = round(options, folder.path(), &table, i % 2 == 1)?;
        rounds.push(round);
        bytes = size;
    }
    let ratio = |plain: fn(&Seconds) -> f64, ours: fn(&Seconds) -> f64| {
        geometric_mean(rounds.iter().map(|s| plain(s) / ours(s)).collect())
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
            read_memory: middle(|s| s.read_memory),
            read_warm: middle(|s| s.read_warm),
            load_warm: middle(|s| s.load_warm),
        },
        ratios: Ratios {
            save: ratio(|s| s.write, |s| s.save),
            load_cold: ratio(|s| s.read_cold, |s| s.load_cold),
            load_warm: ratio(|s| s.read_warm, |s| s.load_warm),
            load_memory: ratio(|s| s.read_memory, |s| s.load_warm),
        },
        delta: delta(folder.path(), &table, options)?,
        stall: stall(folder.path(), &table, options)?,
        training: training(folder.path(), &table, options)?,
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
    table.push(keys, &gradients, 0.001, scratch)?;
    Ok(())
}

/// One round; `ours` says who comes first.
fn round(
    options: &Options,
    folder: &Path,
    table: &SparseTable,
    ours: bool,
) -> Result<(Seconds, u64)> {
    let dir = CheckpointDir::open(folder.join("checkpoints"));
    let plain = folder.join("plain");
    // The size is known before the first save: rows of one size, and an index.
    let bytes = options.rows * (table.base_len() as u64 * 4 + 12);
    let mut seconds = Seconds::default();
    // For the file in the page cache, the table and its index.
    let fetch = || fetch_memory(3 * bytes as usize);
    let path;
    (seconds.write, (path, seconds.save)) = in_turns(
        ours,
        || Ok(timed_after(fetch, || plain_write(&plain, bytes))?.1),
        || timed_after(fetch, || save(&dir, table, Kind::Full)),
    )?;
    let rows = path.join(ROWS);
    drop_from_cache(&plain)?;
    drop_from_cache(&rows)?;
    let read = || Ok(timed_after(fetch, || plain_read(&plain))?.1);
    let load = || load_time(&path, options, fetch);
    (seconds.read_cold, seconds.load_cold) = in_turns(ours, read, load)?;
    (seconds.read_warm, seconds.load_warm) = in_turns(ours, read, load)?;
    seconds.read_memory = timed_after(fetch, || Ok(fs::read(&plain)?))?.1;
    let bytes = fs::metadata(&rows)?.len();
    fs::remove_file(&plain)?;
    dir.remove_all()?;
    Ok((seconds, bytes))
}

/// Uses so much memory once, in large pages as tables do, and gives it back.
fn fetch_memory(bytes: usize) -> Result<()> {
    let mut memory = MmapMut::map_anon(bytes)?;
    #[cfg(target_os = "linux")]
    memory.advise(memmap2::Advice::HugePage)?;
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
    Ok(())
}

/// Seconds of `what`, which comes after something that is not timed.
fn timed_after<T>(
    before: impl Fn() -> Result<()>,
    what: impl FnOnce() -> Result<T>,
) -> Result<(T, f64)> {
    before()?;
    timed(what)
}

fn in_turns<A, B>(
    second_first: bool,
    first: impl FnOnce() -> Result<A>,
    second: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    if second_first {
        let second = second()?;
        return Ok((first()?, second));
    }
    Ok((first()?, second()?))
}

/// The part of the table in a checkpoint.
const ROWS: &str = "emb.0-of-1.rows";

fn save(dir: &CheckpointDir, table: &SparseTable, kind: Kind) -> Result<PathBuf> {
    let scope = match kind {
        Kind::Full => Scope::Rows(SaveMode::All),
        Kind::Delta { .. } => Scope::Changes,
    };
    let draft = dir.begin(dir.next_serial()?)?;
    let cut = table.snapshot(scope)?;
    let saved = save_table(draft.path(), ROWS, "emb", table, &cut)?;
    let mut manifest = Manifest::new("bench", Topology::default(), Progress::default());
    (manifest.kind, manifest.parts) = (kind, vec![saved.part]);
    let path = draft.publish(manifest)?;
    table.end_snapshot(cut, true)?;
    Ok(path)
}

/// Loads into a new table and makes sure that all rows are there. The old one is dropped untimed.
fn load_time(path: &Path, options: &Options, before: impl Fn() -> Result<()>) -> Result<f64> {
    let ((table, n), seconds) = timed_after(before, || {
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
    let (cut, cut_seconds) = timed(|| Ok(table.snapshot(Scope::Rows(SaveMode::All))?))?;
    table.end_snapshot(cut, false)?;
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

/// Trains with and without another thread that saves, in turns.
fn training(folder: &Path, table: &SparseTable, options: &Options) -> Result<Training> {
    let dir = CheckpointDir::open(folder.join("training"));
    let mut worker = Worker::new(table, options.rows)?;
    worker.train(|n, _| n == 3)?;
    let mut rounds = Vec::new();
    for _ in 0..options.rounds.max(1) {
        let before = worker.train(|_, elapsed| elapsed.as_secs_f64() > TRAIN_SECONDS)?;
        let done = AtomicBool::new(false);
        let (during, saved) = std::thread::scope(|scope| {
            let saver = scope.spawn(|| {
                let saved = timed(|| save(&dir, table, Kind::Full));
                done.store(true, Ordering::Release);
                saved
            });
            let during = worker.train(|n, _| n > 0 && done.load(Ordering::Acquire));
            let saved = saver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (during, saved)
        });
        rounds.push((before, during?, saved?.1));
        dir.remove_all()?;
    }
    let longest = |ms: f64, pace: &Pace| ms.max(pace.longest * 1e3);
    Ok(Training {
        steps_before: median(rounds.iter().map(|(before, ..)| before.per_second).collect()),
        steps_during: median(rounds.iter().map(|(_, during, _)| during.per_second).collect()),
        ratio: geometric_mean(
            rounds
                .iter()
                .map(|(before, during, _)| during.per_second / before.per_second)
                .collect(),
        ),
        longest_before_ms: rounds.iter().map(|(before, ..)| before).fold(0.0, longest),
        longest_during_ms: rounds.iter().map(|(_, during, _)| during).fold(0.0, longest),
        save_seconds: median(rounds.iter().map(|(_, _, seconds)| *seconds).collect()),
    })
}

/// How fast steps were, and the longest one, in seconds.
struct Pace {
    per_second: f64,
    longest: f64,
}

/// Trains the dense part of a click model against a table.
struct Worker<'t> {
    table: &'t SparseTable,
    rows: u64,
    runner: Runner,
    scratch: Scratch,
    n: u64,
}

impl<'t> Worker<'t> {
    fn new(table: &'t SparseTable, rows: u64) -> Result<Worker<'t>> {
        let runner = Runner::new(&W1, BATCH, ExecOptions::default())?;
        Ok(Worker { table, rows, runner, scratch: Scratch::default(), n: 0 })
    }

    fn train(&mut self, stop: impl Fn(u64, Duration) -> bool) -> Result<Pace> {
        let (begin, mut n, mut longest) = (Instant::now(), 0, 0.0f64);
        while !stop(n, begin.elapsed()) {
            longest = longest.max(timed(|| self.step())?.1);
            n += 1;
        }
        Ok(Pace { per_second: n as f64 / begin.elapsed().as_secs_f64(), longest })
    }

    /// Pulls the rows of a batch, computes, and pushes their gradients.
    fn step(&mut self) -> Result<()> {
        let keys = self.keys();
        let mut values = vec![0.0; keys.len() * self.table.pull_width()];
        self.table.pull(&keys, &mut values, PullMode::Train, &mut self.scratch)?;
        self.runner.step(self.n as usize)?;
        values.iter_mut().for_each(|value| *value *= 1e-3);
        self.table.push(&keys, &values, 0.001, &mut self.scratch)?;
        self.n += 1;
        Ok(())
    }

    /// Distinct ids of a batch, of which few are frequent, as in click logs.
    fn keys(&self) -> Vec<u64> {
        let rng = Rng::new(11, 0);
        let draw = |i: usize| {
            let uniform =
                rng.u64(self.n * (BATCH * SLOTS) as u64 + i as u64) as f64 / u64::MAX as f64;
            ((uniform.powi(4) * self.rows as f64) as u64).min(self.rows - 1)
        };
        let mut keys: Vec<u64> = (0..BATCH * SLOTS).map(draw).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
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

fn geometric_mean(values: Vec<f64>) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
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
