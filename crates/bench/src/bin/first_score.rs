//! How soon a large model answers: an export of the click model with many rows is written straight
//! from ids, then fresh processes open it and score one example.
//!
//! ```sh
//! cargo run --release -p regatta-bench --bin first_score -- --rows 10000000
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use regatta_bench::click_model;
use regatta_predict::{InputKind, Model};
use regatta_tensor::{Rng, Tensor, Value};
use serde::{Deserialize, Serialize};

/// Milliseconds from the start of a process to its first score.
#[derive(Parser)]
struct Args {
    /// Rows of the table.
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Where the export is made, and kept if this is given.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Processes; the median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Fail if a process takes longer than N milliseconds.
    #[arg(long)]
    below: Option<f64>,
    /// Score one example with this model and print the times; for the processes that are started.
    #[arg(long, hide = true)]
    open: Option<PathBuf>,
}

/// What a process reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Times {
    open_ms: f64,
    first_score_ms: f64,
    /// 1,000 more examples, each on its own.
    next_scores_ms: f64,
    peak_rss_mb: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    match &args.open {
        Some(model) => println!("{}", serde_json::to_string(&score_first(model)?)?),
        None => measure(&args)?,
    }
    Ok(())
}

fn measure(args: &Args) -> Result<()> {
    let temp = tempfile::tempdir()?;
    let dir = args.dir.as_deref().unwrap_or(temp.path());
    let model = dir.join(format!("click-{}", args.rows));
    if !model.exists() {
        let start = Instant::now();
        click_model::export(dir, args.rows, &model)?;
        println!("an export of {} rows in {:.1} s", args.rows, start.elapsed().as_secs_f64());
    }
    let mut all = Vec::new();
    for cold in [true, false] {
        let (mut rounds, mut processes) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            if cold {
                drop_from_page_cache(&model)?;
            }
            let start = Instant::now();
            let output =
                Command::new(std::env::current_exe()?).arg("--open").arg(&model).output()?;
            processes.push(start.elapsed().as_secs_f64() * 1e3);
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            rounds.push(serde_json::from_slice::<Times>(&output.stdout)?);
        }
        let of = |f: fn(&Times) -> f64| median(rounds.iter().map(f).collect());
        println!(
            "{}: open {:.1} ms, first score {:.1} ms, 1000 more {:.1} ms; the whole process {:.1} \
             ms, {:.0} MB",
            if cold { "files not in memory" } else { "files in memory" },
            of(|t| t.open_ms),
            of(|t| t.first_score_ms),
            of(|t| t.next_scores_ms),
            median(processes.clone()),
            of(|t| t.peak_rss_mb),
        );
        all.push(of(|t| t.open_ms + t.first_score_ms));
    }
    if let Some(limit) = args.below {
        ensure!(all.iter().all(|ms| *ms < limit), "{all:?} ms to the first score, not {limit}");
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn score_first(model: &Path) -> Result<Times> {
    let start = Instant::now();
    let model = Model::open(model)?;
    let mut session = model.session()?;
    let open = start.elapsed();
    let rows = model.manifest().tables.first().context("a table")?.rows;
    let examples: Vec<Vec<Value>> =
        (0..1001).map(|i| example(&model, i, rows)).collect::<Result<_>>()?;
    let mut score = |example: &[Value]| -> Result<f32> {
        let names = model.inputs().iter().map(|input| input.name.as_str());
        let feeds: Vec<(&str, &Value)> = names.zip(example).collect();
        Ok(session.score(&feeds)?[0].f32()[0])
    };
    let start = Instant::now();
    score(&examples[0])?;
    let first = start.elapsed();
    let start = Instant::now();
    for example in &examples[1..] {
        score(example)?;
    }
    let next = start.elapsed();
    ensure!(session.missing_ids() == 0, "ids have no rows");
    Ok(Times {
        open_ms: open.as_secs_f64() * 1e3,
        first_score_ms: first.as_secs_f64() * 1e3,
        next_scores_ms: next.as_secs_f64() * 1e3,
        peak_rss_mb: peak_rss_mb(),
    })
}

/// A drawn example, as a batch of one.
fn example(model: &Model, number: u64, rows: u64) -> Result<Vec<Value>> {
    let rng = Rng::new(11, number);
    let of = |(i, input): (usize, &regatta_predict::Input)| {
        let i = i as u64;
        let tensor = match input.kind {
            InputKind::Ids(n) => Tensor::from_u64(&[1, n], vec![rng.u64(i) % rows; n])?,
            InputKind::Floats(n) => Tensor::from_f32(&[1, n], vec![rng.unit_f32(i); n])?,
            other => anyhow::bail!("the click model takes no {other}"),
        };
        Ok(tensor.into())
    };
    model.inputs().iter().enumerate().map(of).collect()
}

fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

#[cfg(target_os = "linux")]
fn drop_from_page_cache(folder: &Path) -> Result<()> {
    use rustix::fs::{Advice, fadvise};
    for entry in std::fs::read_dir(folder)? {
        let file = std::fs::File::open(entry?.path())?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn drop_from_page_cache(_: &Path) -> Result<()> {
    anyhow::bail!("files are dropped from memory as Linux lets it")
}
