//! Cold batch reads through the store against raw io_uring of the same pages, and by both engines.
//!
//! `cargo bench -p regatta-cold [-- DIR [GIGABYTES]]`: rows of dimension 9 with Adam (27 words), random
//! batches of 4096, 8 under way. Rounds are interleaved; compare within a line.

#![expect(unsafe_code, reason = "the raw reads that the store is compared with")]

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use regatta_cold::{EngineChoice, Options, RecordNo, Store};
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

const WORDS: usize = 27;
const BATCH: usize = 4096;
const UNDER_WAY: usize = 8;
const N_BATCHES: usize = 20;
const ROUNDS: u64 = 21;
const PAGE: usize = 4096;
const DEPTH: usize = 256;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let base = args.first().map_or_else(std::env::temp_dir, PathBuf::from);
    let gigabytes: f64 = args.get(1).map_or(4.0, |text| text.parse().expect("gigabytes"));
    let n_rows = (gigabytes * 1e9 / 124.0) as u64;
    let folder = tempfile::tempdir_in(base).expect("a folder");
    let stores = [EngineChoice::Ring, EngineChoice::Threads]
        .map(|engine| fill(&folder.path().join(format!("{engine:?}")), engine, n_rows));
    let files = open_files(&folder.path().join("Ring"));
    println!("{n_rows} rows of {WORDS} words in {} segments, batches of {BATCH}", files.len());
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let raw = measured(|| raw(&files, &stores[0], 3 * round));
        let ring = measured(|| through(&stores[0], n_rows, 3 * round + 1));
        let threads = measured(|| through(&stores[1], n_rows, 3 * round + 2));
        println!(
            "rows/s (CPU us/row): raw {:.0} k ({:.1}), io_uring {:.0} k ({:.1}), threads {:.0} k ({:.1}); \
             io_uring/raw {:.2}, threads/io_uring {:.2}",
            raw.0 / 1e3,
            raw.1,
            ring.0 / 1e3,
            ring.1,
            threads.0 / 1e3,
            threads.1,
            ring.0 / raw.0,
            threads.0 / ring.0
        );
        ratios[0].push(ring.0 / raw.0);
        ratios[1].push(threads.0 / ring.0);
    }
    let [raw, threads] = ratios.map(median);
    println!("medians: io_uring/raw {raw:.2}, threads/io_uring {threads:.2}");
    println!("{:?}", stores[0].stats());
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Rows per second, and microseconds of all threads per row.
fn measured(read: impl FnOnce()) -> (f64, f64) {
    let (since, cpu) = (Instant::now(), cpu_seconds());
    read();
    let rows = (N_BATCHES * BATCH) as f64;
    (rows / since.elapsed().as_secs_f64(), 1e6 * (cpu_seconds() - cpu) / rows)
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

fn fill(dir: &Path, engine: EngineChoice, n_rows: u64) -> Store {
    let store = Store::open(dir, &Options { engine, ..Options::new(WORDS) }).expect("a store");
    let since = Instant::now();
    let step = u64::MAX / n_rows;
    let rows = (0..n_rows).map(|i| (i * step, 0, [i as u32; WORDS]));
    store.load_sorted(rows, |_, _| ()).expect("a disk with room");
    let seconds = since.elapsed().as_secs_f64();
    println!("{:?}: loaded {:.2} M rows/s", store.info(), n_rows as f64 / seconds / 1e6);
    store
}

/// The same random rows for every seed.
fn numbers(n_rows: u64, seed: u64) -> impl FnMut() -> u64 {
    let mut random = seed + 1;
    move || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 20) % n_rows
    }
}

/// Reads batches, several under way.
fn through(store: &Store, n_rows: u64, seed: u64) {
    let mut next = numbers(n_rows, seed);
    // The open segment has number 0, loaded ones follow.
    let first = u64::from(store.info().records_per_segment);
    let mut tickets = VecDeque::new();
    let mut sum = 0_u64;
    for _ in 0..N_BATCHES {
        let batch: Vec<_> =
            (0..BATCH).map(|_| RecordNo::from_u32((first + next()) as u32)).collect();
        tickets.push_back(store.submit(&batch).expect("a healthy store"));
        if tickets.len() == UNDER_WAY {
            let held = tickets.pop_front().expect("eight of them").wait().expect("right rows");
            sum += held.iter().flatten().map(|r| u64::from(r.words[0])).sum::<u64>();
        }
    }
    for ticket in tickets {
        let held = ticket.wait().expect("right rows");
        sum += held.iter().flatten().map(|r| u64::from(r.words[0])).sum::<u64>();
    }
    std::hint::black_box(sum);
}

fn open_files(dir: &Path) -> Vec<File> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "cold"));
    paths.sort();
    let direct = OFlags::DIRECT.bits() as i32;
    let open = |path| OpenOptions::new().read(true).custom_flags(direct).open(path);
    paths.iter().map(|path| open(path).expect("a file")).collect()
}

/// Does nothing but read the pages of such batches: sorted within a batch, each once, 256 under way,
/// one thread. Rows are drawn anew, so that no cache of the disk helps whoever comes second.
fn raw(files: &[File], store: &Store, seed: u64) {
    let per_page = store.info().records_per_page as u64;
    let per_segment = u64::from(store.info().records_per_segment);
    let n_rows = store.stats().live;
    let mut next = numbers(n_rows, seed);
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    let mut ring: IoUring = builder.build(DEPTH as u32).expect("io_uring of Linux 6.1");
    let mut memory = vec![0_u8; (DEPTH + 1) * PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let mut free: Vec<usize> = (0..DEPTH).collect();
    for _ in 0..N_BATCHES {
        let mut batch: Vec<(u64, u64)> = (0..BATCH)
            .map(|_| next())
            .map(|row| (row / per_segment, 1 + row % per_segment / per_page))
            .collect();
        batch.sort_unstable();
        batch.dedup();
        for (file, page) in batch {
            if free.is_empty() {
                reap(&mut ring, &mut free, 1);
            }
            let place = free.pop().expect("one has been freed");
            let to = memory[start + place * PAGE..].as_mut_ptr();
            let fd = types::Fd(files[file as usize].as_raw_fd());
            let entry = opcode::Read::new(fd, to, PAGE as u32).offset(page * PAGE as u64);
            let entry = entry.build().user_data(place as u64);
            // SAFETY: `memory` and `files` outlive all reads, and nobody else uses this place.
            unsafe { ring.submission().push(&entry) }.expect("as many entries as places");
        }
    }
    let left = DEPTH - free.len();
    reap(&mut ring, &mut free, left);
}

fn reap(ring: &mut IoUring, free: &mut Vec<usize>, at_least: usize) {
    let before = free.len();
    while free.len() < before + at_least {
        ring.submit_and_wait(1).expect("a working ring");
        for done in ring.completion() {
            assert_eq!(done.result(), PAGE as i32);
            free.push(done.user_data() as usize);
        }
    }
}
