//! Pulls and pushes against large tables: `cargo bench -p regatta-table`.
//! After `--`: `--large` adds 20 M rows, `--rows=N` takes one size, `--rule=adam` one rule, `--tier`
//! gives the tables a tier with memory for all rows.
//!
//! Requests hold the distinct ids of batches of 26 slots x 2048 examples, drawn from a zipf
//! distribution (exponent 1.05) over all rows of the table; one thread. 40 requests are timed in
//! nine passes, and each counts with its best time. "B/row" is what a row takes beyond its floats
//! by the table's own count, and by the memory of the process ("resident", request buffers
//! included). The memory figures of the machine come from the same run. "pair" is a pull and then a
//! push of the same keys, which uses what the pull found; "push" is one alone.

use std::hint::black_box;
use std::time::Instant;

use regatta_optim::{Adagrad, Adam, Rule};
use regatta_table::{
    Accessor, Initializer, PlainConfig, PullMode, Scratch, SparseConfig, SparseTable, TableId,
    TierConfig,
};
use regatta_tensor::{Rng, RowIndex, rng::mix};

const BATCH: usize = 26 * 2048;
const N_REQUESTS: usize = 40;
const N_PASSES: usize = 9;

fn key(rank: u64) -> u64 {
    mix(rank)
}

/// The distinct keys of each batch, in order of first appearance.
fn zipf_requests(n_rows: u64) -> Vec<Vec<u64>> {
    let rng = Rng::new(17, n_rows);
    let exponent = 1.0 - 1.05f64;
    let span = (n_rows as f64 + 1.0).powf(exponent) - 1.0;
    let mut index = RowIndex::default();
    let request = |r: usize| {
        index.clear(BATCH);
        let draw = |i: usize| {
            let u = rng.unit_f64((r * BATCH + i) as u64);
            ((span * u + 1.0).powf(1.0 / exponent) as u64 - 1).min(n_rows - 1)
        };
        let keys = (0..BATCH).map(|i| key(draw(i)));
        keys.filter(|key| index.insert(*key).1).collect()
    };
    (0..N_REQUESTS).map(request).collect()
}

/// As many distinct keys, each row equally likely.
fn uniform_requests(n_rows: u64, len: usize) -> Vec<Vec<u64>> {
    let rng = Rng::new(18, n_rows);
    let request = |r: usize| {
        let mut keys: Vec<u64> =
            (0..len).map(|i| key(rng.u64((r * len + i) as u64) % n_rows)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.sort_unstable_by_key(|key| mix(*key));
        keys
    };
    (0..N_REQUESTS).map(request).collect()
}

/// The best time of every request in several passes over all of them, in nanoseconds per key.
fn best(requests: &[Vec<u64>], mut run: impl FnMut(&[u64])) -> f64 {
    let mut times = vec![f64::INFINITY; requests.len()];
    for _ in 0..N_PASSES {
        for (keys, best) in requests.iter().zip(&mut times) {
            let start = Instant::now();
            run(keys);
            *best = best.min(start.elapsed().as_nanos() as f64);
        }
    }
    let n_keys: usize = requests.iter().map(Vec::len).sum();
    times.iter().sum::<f64>() / n_keys as f64
}

fn fill(table: &SparseTable, n_rows: u64) -> f64 {
    let mut scratch = Scratch::default();
    let width = table.pull_width();
    let mut out = vec![0.0; BATCH * width];
    let start = Instant::now();
    for first in (0..n_rows).step_by(BATCH) {
        let keys: Vec<u64> = (first..n_rows.min(first + BATCH as u64)).map(key).collect();
        let out = &mut out[..keys.len() * width];
        table.pull(&keys, out, PullMode::Train, &mut scratch).unwrap();
    }
    start.elapsed().as_nanos() as f64 / n_rows as f64
}

/// Bytes of this process that are in memory, where the system tells.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map_or(f64::NAN, |pages: f64| pages * 4096.0)
}

struct Figures {
    pull: f64,
    push: f64,
    pair: f64,
}

fn measure(table: &SparseTable, requests: &[Vec<u64>]) -> Figures {
    let width = table.pull_width();
    let mut scratch = Scratch::default();
    let mut out = vec![0.0; BATCH * width];
    let gradients: Vec<f32> =
        (0..BATCH * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 500.0).collect();
    let scratch = &mut scratch;
    let pull = best(requests, |keys| {
        let out = &mut out[..keys.len() * width];
        black_box(table.pull(keys, out, PullMode::Train, scratch).unwrap());
    });
    let push = best(requests, |keys| {
        let gradients = &gradients[..keys.len() * width];
        black_box(table.push(keys, gradients, 1e-4, scratch).unwrap());
    });
    let pair = best(requests, |keys| {
        let (gradients, out) = (&gradients[..keys.len() * width], &mut out[..keys.len() * width]);
        black_box(table.pull(keys, out, PullMode::Train, scratch).unwrap());
        black_box(table.push(keys, gradients, 1e-4, scratch).unwrap());
    });
    Figures { pull, push, pair }
}

/// Copy bandwidth, and the time of independent reads of random cache lines, plain and prefetched
/// by the processor only.
fn memory() {
    let len = 64 << 20;
    let from = vec![1u64; len / 2];
    let mut to = vec![0u64; len / 2];
    let mut copy = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        copy = copy.min(start.elapsed().as_nanos() as f64);
    }
    let bytes = (2 * size_of_val(from.as_slice())) as f64;
    println!("memory: copy {:.1} GB/s (read + write)", bytes / copy);
    let rng = Rng::new(1, 1);
    let at: Vec<u32> = (0..1 << 20).map(|i| (rng.u64(i) % (len as u64 / 2)) as u32).collect();
    let mut lines = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        let sum: u64 = at.iter().map(|at| from[*at as usize]).sum();
        black_box(sum);
        lines = lines.min(start.elapsed().as_nanos() as f64 / at.len() as f64);
    }
    println!("memory: {lines:.1} ns per random cache line of 256 MB, independent reads\n");
}

fn main() {
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    memory();
    let mut sizes = vec![1_000_000, 10_000_000];
    if has("--large") {
        sizes.push(20_000_000);
    }
    let value = |flag: &str| std::env::args().find_map(|a| Some(a.strip_prefix(flag)?.to_string()));
    if let Some(rows) = value("--rows=") {
        sizes = vec![rows.parse().unwrap()];
    }
    let wanted_rule = value("--rule=").unwrap_or_default();
    let rules = [
        ("dim 8 adagrad", 8, Rule::Adagrad(Adagrad::default())),
        ("dim 9 adam", 9, Rule::Adam(Adam::default())),
    ];
    println!(
        "{:<14} {:>9} {:>5} {:<8} {:>7} {:>7} {:>7} {:>7} {:>9} {:>7} {:>9}",
        "ns per key",
        "rows",
        "huge",
        "ids",
        "create",
        "pull",
        "push",
        "pair",
        "keys/req",
        "B/row",
        "resident"
    );
    for &n_rows in &sizes {
        let zipf = zipf_requests(n_rows);
        let uniform = uniform_requests(n_rows, zipf[0].len());
        for (name, dim, rule) in rules.iter().filter(|(name, ..)| name.contains(&wanted_rule)) {
            for huge_pages in [true, false] {
                let initializer = Initializer::Uniform { low: -0.1, high: 0.1 };
                let plain = PlainConfig { initializer, ..PlainConfig::new(*dim, *rule) };
                let config = SparseConfig::new(TableId(0), 1, Accessor::Plain(plain));
                let folder = tempfile::tempdir().unwrap();
                let dir = folder.path().join("cold");
                let tier = TierConfig { memory_bytes: 1 << 40, dir, lookahead: 8 };
                let tier = has("--tier").then_some(tier);
                let table = SparseTable::new(SparseConfig { huge_pages, tier, ..config }).unwrap();
                let before = resident();
                let create = fill(&table, n_rows);
                let grown = (resident() - before) / n_rows as f64;
                let stats = table.stats().unwrap();
                let floats: usize = table.row_parts().iter().map(|(_, len)| len).sum();
                let extra = stats.bytes as f64 / stats.rows as f64 - 4.0 * floats as f64;
                let extra_resident = grown - 4.0 * floats as f64;
                for (ids, requests) in [("zipf", &zipf), ("uniform", &uniform)] {
                    let Figures { pull, push, pair } = measure(&table, requests);
                    println!(
                        "{name:<14} {n_rows:>9} {huge_pages:>5} {ids:<8} {create:>7.1} {pull:>7.1} \
                         {push:>7.1} {pair:>7.1} {:>9} {extra:>7.1} \
                         {extra_resident:>9.1}",
                        requests[0].len()
                    );
                }
            }
        }
    }
}
