//! Time of an all-reduce, by size: ranks are processes of this machine.
//!
//! ```sh
//! cargo run --release -p regatta-bench --bin all_reduce -- --ranks 2 --transport memory
//! ```
//!
//! One JSON line per size: the median time of an operation on rank 0, and the bytes of the buffer
//! divided by it. `bench/compare/all_reduce` runs this beside gloo and OpenMPI.

use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use regatta_collective::{Group, GroupConfig, ReduceOp, Transport, Wire};
use regatta_net::{Encryption, JobToken};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;

/// Default sizes of the buffer, in bytes.
const SIZES: [usize; 7] = [4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 100 << 20];

#[derive(Parser)]
struct Options {
    /// How many processes.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// What carries the data.
    #[arg(long, value_enum, default_value = "memory")]
    transport: Carrier,
    /// The format of the values on their way.
    #[arg(long, value_enum, default_value = "f32")]
    wire: Format,
    /// Sizes of the buffer, in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = SIZES)]
    bytes: Vec<usize>,
    /// Which rank this process is; set by the first process for the others.
    #[arg(long, hide = true)]
    rank: Option<usize>,
    /// Where each rank listens.
    #[arg(long, hide = true, value_delimiter = ',')]
    endpoints: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Carrier {
    Memory,
    Unix,
    Tcp,
    /// TCP with TLS, as between machines.
    Tls,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    F32,
    Bf16,
    F16,
}

fn main() -> Result<()> {
    let options = Options::parse();
    match options.rank {
        Some(rank) => measure(&options, rank),
        None => start_all(&options),
    }
}

/// Rank 0 is this process, so that its output and its exit code are those of the run.
fn start_all(options: &Options) -> Result<()> {
    ensure!(options.ranks > 0, "--ranks must be at least 1");
    let sockets: Vec<TcpListener> =
        (0..options.ranks).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let endpoints: Vec<String> =
        sockets.iter().map(|s| Ok(s.local_addr()?.to_string())).collect::<Result<_>>()?;
    drop(sockets);
    let program = std::env::current_exe()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let start = |rank: usize| -> Result<Child> {
        Command::new(&program)
            .args(&arguments)
            .args(["--rank", &rank.to_string(), "--endpoints", &endpoints.join(",")])
            .spawn()
            .context("cannot start a rank")
    };
    let mut children = (0..options.ranks).map(start).collect::<Result<Vec<_>>>()?;
    for (rank, child) in children.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            bail!("rank {rank} ended with {status}");
        }
    }
    Ok(())
}

/// One core per rank when there are enough, as mpirun does by default: whether the scheduler puts
/// two ranks on one core would otherwise decide the result.
fn bind_to_core(options: &Options, rank: usize) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    if options.ranks <= cores {
        let mut set = CpuSet::new();
        set.set(rank);
        sched_setaffinity(None, &set).context("cannot bind to a core")?;
    }
    Ok(())
}

fn measure(options: &Options, rank: usize) -> Result<()> {
    bind_to_core(options, rank)?;
    let mut config =
        GroupConfig::new(rank, options.endpoints.clone(), JobToken::new("all_reduce benchmark"));
    if matches!(options.transport, Carrier::Tls) {
        config.token = config.token.encrypted(Encryption::Always);
    }
    config.transport = match options.transport {
        Carrier::Memory => Transport::SharedMemory,
        Carrier::Unix => Transport::Unix,
        Carrier::Tcp | Carrier::Tls => Transport::Tcp,
    };
    let wire = match options.wire {
        Format::F32 => Wire::F32,
        Format::Bf16 => Wire::Bf16,
        Format::F16 => Wire::F16,
    };
    let mut group = Group::connect(config)?;
    for bytes in &options.bytes {
        let times = times(&mut group, *bytes, wire)?;
        if rank == 0 {
            let median = times[times.len() / 2];
            let speed = *bytes as f64 / median / 1e9;
            println!("{}", json!({"bytes": bytes, "us": median * 1e6, "gb_per_s": speed}));
        }
    }
    Ok(())
}

/// How often an operation on `bytes` is repeated; the same formula is in the other engines'
/// programs.
fn repeats(bytes: usize) -> usize {
    ((160 << 20) / bytes.max(1)).clamp(4, 1000)
}

/// Seconds of each operation, sorted. Zeros stay zeros: sums do not grow out of range.
fn times(group: &mut Group, bytes: usize, wire: Wire) -> Result<Vec<f64>> {
    let mut data = vec![0f32; bytes / 4];
    let n = repeats(bytes);
    let mut times = Vec::with_capacity(n);
    for i in 0..n / 10 + 2 + n {
        let start = Instant::now();
        group.all_reduce("buffer", &mut data, ReduceOp::Sum, wire)?;
        if i >= n / 10 + 2 {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}
