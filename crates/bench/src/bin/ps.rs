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
    /// Requests in flight at a time.
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
    /// Update rows by Adam instead of Adagrad; takes a third more memory.
    #[arg(long)]
    adam: bool,
    /// Only save and load a table of N rows.
    #[arg(long, value_name = "ROWS")]
    files: Option<u64>,
    /// Where tables are saved; a temporary folder otherwise.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
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
        return serve(args.dim, args.adam);
    }
    let me = std::env::current_exe()?;
    let temporary = tempfile::tempdir()?;
    let folder = args.folder.unwrap_or_else(|| temporary.path().to_path_buf());
    let only_files = args.files.is_some();
    let options = Options {
        keys: if only_files { vec![] } else { args.keys },
        dim: args.dim,
        in_flight: args.in_flight,
        seconds: args.seconds,
        rows: args.rows,
        memory_rows: if only_files { 0 } else { args.memory_rows },
        files: args.files.map(|rows| (rows, folder)),
    };
    let report = measure(&options, || {
        let mut command = Command::new(&me);
        command.args(["--serve", "--dim", &options.dim.to_string()]);
        command.args(args.adam.then_some("--adam"));
        command
    })?;
    print!("{report}");
    if let Some(path) = args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
