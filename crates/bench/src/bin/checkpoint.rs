//! Measures checkpoints of a table: saving and loading beside plain writes and reads of as many
//! bytes on the same disk, and what pushes and training notice while a checkpoint is made.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use regatta_bench::checkpoint::{Options, measure};

/// Seconds and bytes per second of saving and loading a table with Adam state.
#[derive(Parser)]
struct Args {
    /// Rows of the table.
    #[arg(long, default_value_t = 5_000_000)]
    rows: u64,
    /// Weights per row; Adam adds its state.
    #[arg(long, default_value_t = 9)]
    dim: usize,
    /// Threads that load.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Measurements, in an even number, because who comes first alternates.
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// Where to write; the disk of this directory is measured.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Also write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let Args { rows, dim, threads, rounds, dir, json } = args;
    let report = measure(&Options { rows, dim, threads, rounds, dir })?;
    print!("{report}");
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
