//! Parts of training on their own, each beside what the machine could do at best, measured in the
//! same run.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use regatta_bench::dense::{Runner, W1};
use regatta_bench::{limits, parser, ps, rows};
use serde::Serialize;

/// Tables, sockets, parser and executor against memory, loopback, plain reads and multiply-add
/// peak.
#[derive(Parser)]
struct Args {
    /// What to measure.
    #[arg(long, value_delimiter = ',', default_values_t = PARTS.map(String::from))]
    only: Vec<String>,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Rows of the table, for `rows`.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Floats per row, for `rows` and `wire`.
    #[arg(long, default_value_t = 9)]
    dim: usize,
    /// Keys per request, for `rows`.
    #[arg(long, default_value_t = 10_000)]
    keys: usize,
    /// Update rule, for `rows`: adam or adagrad.
    #[arg(long, default_value = "adam")]
    rule: String,
    /// One JSON line per figure instead of a table.
    #[arg(long)]
    json: bool,
    /// Where files are written; a temporary folder otherwise.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Be the server.
    #[arg(long, hide = true)]
    serve: bool,
}

const PARTS: [&str; 6] = ["memory", "rows", "wire", "parser", "step", "files"];

/// One figure and its limit, in the same unit.
#[derive(Serialize)]
struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    limit: f64,
    limit_is: &'static str,
    /// Of the limit; 1 is as fast as the machine.
    share: f64,
    /// Further numbers of the same measurement.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    more: serde_json::Value,
}

impl Figure {
    /// Where more is better.
    fn rate(
        what: String,
        value: f64,
        unit: &'static str,
        limit: f64,
        limit_is: &'static str,
    ) -> Figure {
        Figure {
            what,
            value,
            unit,
            limit,
            limit_is,
            share: value / limit,
            more: serde_json::Value::Null,
        }
    }

    /// Where less is better.
    fn time(
        what: String,
        value: f64,
        unit: &'static str,
        limit: f64,
        limit_is: &'static str,
    ) -> Figure {
        Figure {
            what,
            value,
            unit,
            limit,
            limit_is,
            share: limit / value,
            more: serde_json::Value::Null,
        }
    }

    #[expect(clippy::print_stdout, reason = "figures are this program's output")]
    fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
        } else {
            println!(
                "{:<34} {:>9.2} {:<8} {:>9.2} {:<36} {:>4.0} %",
                self.what,
                self.value,
                self.unit,
                self.limit,
                self.limit_is,
                100.0 * self.share
            );
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.serve {
        return ps::serve(args.dim, false);
    }
    let temporary = tempfile::tempdir()?;
    let folder = args.folder.clone().unwrap_or_else(|| temporary.path().to_path_buf());
    for part in &args.only {
        let figures = match part.as_str() {
            "memory" => vec![memory_figure()],
            "rows" => row_figures(&args)?,
            "wire" => wire_figures(&args)?,
            "parser" => parser_figures(&folder)?,
            "step" => step_figures(&args)?,
            "files" => file_figures(&args, &folder)?,
            other => bail!("unknown part '{other}' (known: {})", PARTS.join(", ")),
        };
        figures.iter().try_for_each(|f| f.print(args.json))?;
    }
    Ok(())
}

/// The yardstick of what moves whole buffers.
fn memory_figure() -> Figure {
    let copied = limits::copy_gb_per_sec() / 2.0;
    Figure::rate("a long array copied".into(), copied, "GB/s", copied, "itself")
}

fn row_figures(args: &Args) -> Result<Vec<Figure>> {
    let options = rows::Options {
        rows: args.rows,
        dim: args.dim,
        rule: args.rule.clone(),
        keys: args.keys,
        seconds: args.seconds,
    };
    let r = rows::measure(&options)?;
    let name = |what: &str| {
        format!("{what} of a row, {} M rows, dim {}", args.rows as f64 / 1e6, args.dim)
    };
    let copy = limits::copy_gb_per_sec();
    let more = serde_json::to_value(&r)?;
    Ok(vec![
        Figure {
            more,
            ..Figure::time(name("pull"), r.pull_ns, "ns", r.pull_limit_ns, "random lines of memory")
        },
        Figure::time(
            name("push"),
            r.push_ns,
            "ns",
            r.push_limit_ns,
            "random lines, there and back",
        ),
        Figure::rate(
            "floats pulled from the table".into(),
            4.0 * args.dim as f64 / r.pull_ns,
            "GB/s",
            copy / 2.0,
            "memory copied",
        ),
    ])
}

fn wire_figures(args: &Args) -> Result<Vec<Figure>> {
    let me = std::env::current_exe()?;
    let options = ps::Options {
        keys: vec![2600, 10_000, 52_000],
        dim: args.dim,
        in_flight: vec![1],
        seconds: args.seconds,
        rows: args.rows.min(1_000_000),
        memory_rows: 0,
        files: None,
    };
    let report = ps::measure(&options, || {
        let mut command = Command::new(&me);
        command.args(["--serve", "--dim", &options.dim.to_string()]);
        command
    })?;
    let bare = |keys: usize| {
        let found = report.speeds.iter().find(|s| s.what == "bare pull" && s.keys == keys);
        found.map(|s| s.gb_per_sec).context("the bare socket was measured")
    };
    let mut out = Vec::new();
    for s in report.speeds.iter().filter(|s| s.what != "bare pull") {
        let name = format!("{} of {} keys, {}", s.what, s.keys, s.transport);
        let limit = bare(s.keys)?;
        let mut f =
            Figure::rate(name, s.gb_per_sec, "GB/s", limit, "the same bytes, bare TCP socket");
        f.more = serde_json::to_value(s)?;
        out.push(f);
    }
    Ok(out)
}

fn parser_figures(folder: &std::path::Path) -> Result<Vec<Figure>> {
    let r = parser::measure(&folder.join("parser"), 60_000)?;
    let more = serde_json::to_value(&r)?;
    let f = Figure::rate(
        "MultiSlot text into batches".into(),
        r.gb_per_sec,
        "GB/s",
        r.read_gb_per_sec,
        "plain reads of the file",
    );
    Ok(vec![Figure { more, ..f }])
}

fn step_figures(args: &Args) -> Result<Vec<Figure>> {
    let mut out = Vec::new();
    for batch in [128, 512, 2048] {
        let mut runner = Runner::new(&W1, batch, regatta_exec::Options::default())?;
        (0..3).try_for_each(|i| runner.step(i).map(|_| ()))?;
        let (mut times, start, mut peak) = (Vec::new(), Instant::now(), 0.0f64);
        while start.elapsed().as_secs_f64() < args.seconds || times.len() < 5 {
            let begin = Instant::now();
            runner.step(times.len())?;
            times.push(begin.elapsed().as_secs_f64());
            // Between the steps, so that both meet the same clock.
            peak = peak.max(regatta_kernels::peak::fma_gflops_once());
        }
        times.sort_by(f64::total_cmp);
        let gflops = batch as f64 * W1.mflop / 1e3 / times[times.len() / 2];
        let name = format!("training step of layers, batch {batch}");
        out.push(Figure::rate(name, gflops, "GFLOP/s", peak, "multiply-adds in registers"));
    }
    Ok(out)
}

fn file_figures(args: &Args, folder: &std::path::Path) -> Result<Vec<Figure>> {
    let me = std::env::current_exe()?;
    let options = ps::Options {
        keys: vec![],
        dim: args.dim,
        in_flight: vec![],
        seconds: args.seconds,
        rows: args.rows,
        memory_rows: 0,
        files: Some((args.rows, folder.join("files"))),
    };
    std::fs::create_dir_all(folder.join("files"))?;
    let report = ps::measure(&options, || {
        let mut command = Command::new(&me);
        command.args(["--serve", "--dim", &options.dim.to_string()]);
        command
    })?;
    let r = report.files.context("files were measured")?;
    let name = |what: &str| format!("{what} a table of {} M rows", args.rows as f64 / 1e6);
    Ok(vec![
        Figure::time(name("save"), r.save_s, "s", r.write_s, "as many bytes to one file, on disk"),
        Figure::time(name("load"), r.load_s, "s", r.read_s, "as many bytes from one file"),
    ])
}
