//! Measures pulls and pushes against a parameter server in a process of its own.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Parser;
use regatta_bench::ps::{Options, measure, serve};

/// Keys per second of pulls and pushes over real sockets, and bytes per row.
#[derive(Parser)]
struct Args {
    /// Keys per request.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 2600, 10_000, 50_000])]
    keys: Vec<usize>,
    /// Floats per row.
    #[arg(long, default_value_t = 8)]
    dim: usize,
    /// Requests under way at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    in_flight: Vec<usize>,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rows of the table that requests choose from.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Rows of the table whose memory is measured; 0 leaves that out.
    #[arg(long, default_value_t = 10_000_000)]
    memory_rows: u64,
    /// Also write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Be the server.
    #[arg(long, hide = true)]
    serve: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.serve {
        return serve(args.dim);
    }
    let me = std::env::current_exe()?;
    let options = Options {
        keys: args.keys,
        dim: args.dim,
        in_flight: args.in_flight,
        seconds: args.seconds,
        rows: args.rows,
        memory_rows: args.memory_rows,
    };
    let report = measure(&options, || {
        let mut command = Command::new(&me);
        command.args(["--serve", "--dim", &options.dim.to_string()]);
        command
    })?;
    print!("{report}");
    if let Some(path) = args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
