//! Training with a part of the rows in memory, beside the same with all of them:
//! `cargo bench -p regatta-table --bench tier`.
//! After `--`: `--rows=N`, `--percent=P` of the rows in memory, `--ahead=N` batches, `--rounds=N`,
//! `--batches=N` per round, `--dir=DIR` for the cold rows.
//!
//! Rows of dimension 9 with Adam. A batch has the distinct ids of 26 slots x 512 examples, drawn
//! from zipf distributions (exponent 1.05) over vocabularies of different sizes. A step pulls, computes for 7.3 ms, which
//! is what a click model of this size takes, and pushes. Rounds are interleaved: compare within a
//! line. At the end all rows of both tables are compared bit by bit. Then how long a snapshot with
//! most rows cold stops the table.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use regatta_optim::{Adam, Rule};
use regatta_table::{
    Accessor, Initializer, PlainConfig, PullMode, SaveMode, Scope, Scratch, SparseConfig,
    SparseTable, TableId, TierConfig,
};
use regatta_tensor::{Rng, RowIndex, rng::mix};

const DIM: usize = 9;
const ROW_BYTES: u64 = 4 * 3 * DIM as u64;
const EXAMPLES: usize = 512;
const SLOTS: usize = 26;
const EXPONENT: f64 = 1.05;
const COMPUTE: Duration = Duration::from_micros(7300);

fn value(flag: &str, usual: u64) -> u64 {
    let own = std::env::args().find_map(|arg| arg.strip_prefix(flag)?.parse().ok());
    own.unwrap_or(usual)
}

/// The ids of each slot: the first one and how many. Vocabularies differ by up to 20,000.
fn slots(n_rows: u64) -> Vec<(u64, u64)> {
    let share = |i: usize| 20_000f64.powf(-(i as f64) / (SLOTS - 1) as f64);
    let whole: f64 = (0..SLOTS).map(share).sum();
    let mut first = 0;
    let slot = |i: usize| {
        let n = ((n_rows as f64 * share(i) / whole) as u64).max(1);
        first += n;
        (first - n, n)
    };
    (0..SLOTS).map(slot).collect()
}

/// What the ranks below `n` have of the weight of all, times a constant.
fn span(n: u64) -> f64 {
    1.0 - (n as f64 + 1.0).powf(1.0 - EXPONENT)
}

/// The distinct keys of a batch, in order of first appearance.
fn batch(slots: &[(u64, u64)], number: u64, index: &mut RowIndex) -> Vec<u64> {
    let rng = Rng::new(17, number);
    index.clear(EXAMPLES * SLOTS);
    let draw = |i: usize| {
        let (first, n) = slots[i % SLOTS];
        let part = 1.0 - span(n) * rng.unit_f64(i as u64);
        let rank = part.powf(1.0 / (1.0 - EXPONENT)) as u64 - 1;
        mix(first + rank.min(n - 1))
    };
    (0..EXAMPLES * SLOTS).map(draw).filter(|key| index.insert(*key).1).collect()
}

/// All keys, the most frequent ones last.
fn by_frequency(slots: &[(u64, u64)]) -> Vec<u64> {
    let frequency = |n: u64, rank: u64| (rank as f64 + 1.5).powf(-EXPONENT) / span(n);
    let of_slot = |&(first, n): &(u64, u64)| {
        (0..n).map(move |rank| (frequency(n, rank) as f32, mix(first + rank)))
    };
    let mut keys: Vec<(f32, u64)> = slots.iter().flat_map(of_slot).collect();
    keys.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    keys.into_iter().map(|(_, key)| key).collect()
}

fn table(tier: Option<TierConfig>) -> SparseTable {
    let initializer = Initializer::Uniform { low: -0.1, high: 0.1 };
    let plain = PlainConfig { initializer, ..PlainConfig::new(DIM, Rule::Adam(Adam::default())) };
    let config = SparseConfig::new(TableId(0), 1, Accessor::Plain(plain));
    SparseTable::new(SparseConfig { tier, ..config }).unwrap()
}

/// Makes all rows, the most frequent ones last: they are in memory at the end, as they are after
/// some thousand batches.
fn fill(table: &SparseTable, keys: &[u64]) {
    let mut scratch = Scratch::default();
    let mut out = vec![0.0; DIM << 16];
    table.reserve(keys.len()).unwrap();
    for keys in keys.chunks(1 << 16) {
        let out = &mut out[..keys.len() * DIM];
        table.pull(keys, out, PullMode::Train, &mut scratch).unwrap();
    }
}

/// Trains on batches and gives the time that it took: all of it, and pulls and pushes of it.
fn train(table: &SparseTable, batches: &[Vec<u64>], ahead: usize) -> [Duration; 3] {
    let [mut pulls, mut pushes] = [Duration::ZERO; 2];
    let (mut scratch, mut other) = (Scratch::default(), Scratch::default());
    let mut room = vec![0.0; DIM * EXAMPLES * SLOTS];
    let start = Instant::now();
    let first = batches.iter().take(ahead);
    first.for_each(|keys| table.prefetch(keys, &mut other).unwrap());
    for (i, keys) in batches.iter().enumerate() {
        if let Some(keys) = batches.get(i + ahead).filter(|_| ahead > 0) {
            table.prefetch(keys, &mut other).unwrap();
        }
        let out = &mut room[..keys.len() * DIM];
        let pull = Instant::now();
        table.pull(keys, out, PullMode::Train, &mut scratch).unwrap();
        pulls += pull.elapsed();
        let computed = Instant::now();
        out.iter_mut().for_each(|x| *x = *x * 0.01 + 0.001);
        while computed.elapsed() < COMPUTE {
            black_box(&mut *out);
        }
        let push = Instant::now();
        table.push(keys, out, 1e-3, &mut scratch).unwrap();
        pushes += push.elapsed();
    }
    [start.elapsed(), pulls, pushes]
}

fn compare(all: &SparseTable, tiered: &SparseTable) {
    let mut n = 0;
    for shard in 0..all.n_shards() {
        let [a, b] = [all, tiered].map(|t| t.export(shard, SaveMode::All).unwrap());
        assert_eq!(a.len(), b.len());
        n += a.len();
        assert!(a.rows().zip(b.rows()).all(|(a, b)| a == b), "rows differ");
    }
    println!("{n} rows are equal bit by bit");
}

/// The longest time that a snapshot and its end stop the table, and how long the save takes.
fn save(table: &SparseTable) {
    for scope in [Scope::Rows(SaveMode::All), Scope::Changes] {
        let start = Instant::now();
        let snapshot = table.snapshot(scope).unwrap();
        let stall = start.elapsed();
        let (mut exported, mut n) = (table.export_snapshot(&snapshot), 0);
        while exported.next(|row| n += u64::from(black_box(row).changed)).unwrap().is_some() {}
        let saved = start.elapsed();
        table.end_snapshot(snapshot, true).unwrap();
        let ended = (start.elapsed() - saved) / table.n_shards() as u32;
        println!(
            "{scope:?}: snapshot stops for {stall:?}, {n} rows in {saved:?}, its end for {ended:?} \
             per shard"
        );
    }
}

fn main() {
    let (n_rows, percent) = (value("--rows=", 10_000_000), value("--percent=", 10));
    let (ahead, rounds) = (value("--ahead=", 8) as usize, value("--rounds=", 5));
    let n_batches = value("--batches=", 400);
    let dir = std::env::args().find_map(|arg| arg.strip_prefix("--dir=").map(PathBuf::from));
    let folder = tempfile::tempdir_in(dir.unwrap_or_else(std::env::temp_dir)).unwrap();
    let memory_bytes = n_rows * ROW_BYTES * percent / 100;
    let dir = folder.path().join("cold");
    let tiered = table(Some(TierConfig { memory_bytes, dir, lookahead: ahead }));
    let all = table(None);
    let slots = slots(n_rows);
    let keys = by_frequency(&slots);
    for table in [&all, &tiered] {
        let start = Instant::now();
        fill(table, &keys);
        println!("{} rows made in {:?}", keys.len(), start.elapsed());
    }
    let mut index = RowIndex::default();
    let mut ratios = Vec::new();
    // The first round warms the rows and does not count.
    for round in 0..=rounds {
        let first = round * n_batches;
        let batches: Vec<_> =
            (first..first + n_batches).map(|i| batch(&slots, i, &mut index)).collect();
        let before = tiered.stats().unwrap();
        let [a, b] = [(&all, 0), (&tiered, ahead)].map(|(table, ahead)| {
            let [whole, pulls, pushes] = train(table, &batches, ahead).map(|t| t.as_secs_f64());
            let per_batch = [pulls, pushes].map(|t| 1e3 * t / n_batches as f64);
            println!("  pull {:.2} ms, push {:.2} ms per batch", per_batch[0], per_batch[1]);
            (n_batches as usize * EXAMPLES) as f64 / whole
        });
        let now = tiered.stats().unwrap();
        println!(
            "round {round}: {:.1} -> {:.1} k examples/s: {:.3}; {} keys/batch, {} cold, {:.2} ms \
             waited per batch, disk {} MB, left out {}",
            a / 1e3,
            b / 1e3,
            b / a,
            batches[0].len(),
            (now.cold_reads - before.cold_reads) / n_batches,
            (now.wait_micros - before.wait_micros) as f64 / 1e3 / n_batches as f64,
            now.disk_bytes >> 20,
            now.left_out - before.left_out,
        );
        if round > 0 {
            ratios.push(b / a);
        }
    }
    ratios.sort_by(f64::total_cmp);
    println!("median {:.3}", ratios[ratios.len() / 2]);
    compare(&all, &tiered);
    save(&tiered);
    println!("{:?}", tiered.stats().unwrap());
}
