//! Times training steps of dense networks, alone or as one of the candidates of
//! `bench/compare/step`.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use regatta_bench::dense::{Runner, W1, W2, Workload};
use regatta_exec::Options;
use serde::{Deserialize, Serialize};

/// Training steps per second of a dense network: one JSON line per measurement.
#[derive(Parser)]
struct Args {
    /// w1: 247-400-400-400-2, relu, Adam; w2: 32-128-128-2, tanh, SGD; default: both.
    #[arg(long)]
    workload: Option<String>,
    /// Examples per batch; default: 128, 512 and 2048 for w1, 128 for w2.
    #[arg(long)]
    batch: Option<usize>,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Threads that share each batch.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Answer JSON requests {"workload", "batch", "seconds"} from standard input.
    #[arg(long)]
    interactive: bool,
}

#[derive(Deserialize)]
struct Request {
    workload: String,
    batch: usize,
    seconds: f64,
}

#[derive(Serialize)]
struct Answer {
    system: String,
    workload: String,
    batch: usize,
    threads: usize,
    steps: usize,
    step_ms_median: f64,
    step_ms_min: f64,
    examples_per_sec: f64,
    gflops: f64,
    /// Of one core, measured just before.
    fma_peak_gflops: f64,
    share_of_peak: f64,
    loss_first: f32,
    loss_step_10: f32,
    loss_last: f32,
}

const WARM_UP_STEPS: usize = 10;

fn main() -> Result<()> {
    let args = Args::parse();
    let mut runners: Vec<(String, usize, Runner)> = Vec::new();
    let mut answer = |request: Request| -> Result<()> {
        let workload = workload(&request.workload)?;
        let known =
            runners.iter().position(|(w, b, _)| *w == request.workload && *b == request.batch);
        let at = match known {
            Some(at) => at,
            None => {
                let options = Options { threads: args.threads, ..Options::default() };
                let runner = Runner::new(workload, request.batch, options)?;
                runners.push((request.workload.clone(), request.batch, runner));
                runners.len() - 1
            }
        };
        let result = measure(&mut runners[at].2, workload, &request, args.threads)?;
        print(&serde_json::to_string(&result)?);
        Ok(())
    };
    if args.interactive {
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            let request = serde_json::from_str(&line).context("a request is a JSON object");
            if let Err(e) = request.and_then(&mut answer) {
                print(&serde_json::json!({ "error": format!("{e:#}") }).to_string());
            }
        }
        return Ok(());
    }
    for (name, batches) in [("w1", &[128, 512, 2048][..]), ("w2", &[128][..])] {
        if args.workload.as_deref().is_some_and(|w| w != name) {
            continue;
        }
        for &batch in batches {
            let batch = args.batch.unwrap_or(batch);
            answer(Request { workload: name.into(), batch, seconds: args.seconds })?;
            if args.batch.is_some() {
                break;
            }
        }
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the answers are this program's output")]
fn print(line: &str) {
    println!("{line}");
}

fn workload(name: &str) -> Result<&'static Workload> {
    match name {
        "w1" => Ok(&W1),
        "w2" => Ok(&W2),
        _ => bail!("unknown workload '{name}' (w1, w2)"),
    }
}

fn measure(
    runner: &mut Runner,
    workload: &Workload,
    request: &Request,
    threads: usize,
) -> Result<Answer> {
    let peak = regatta_kernels::peak::fma_gflops();
    runner.reset()?;
    let loss_first = runner.step(0)?;
    let mut loss_step_10 = loss_first;
    for i in 1..WARM_UP_STEPS {
        loss_step_10 = runner.step(i)?;
    }
    let mut times: Vec<Duration> = Vec::new();
    let end = Instant::now() + Duration::from_secs_f64(request.seconds);
    let mut before = Instant::now();
    let mut loss_last = loss_step_10;
    while before < end || times.len() < 3 {
        loss_last = runner.step(WARM_UP_STEPS + times.len())?;
        let after = Instant::now();
        times.push(after - before);
        before = after;
    }
    times.sort();
    let median = times[times.len() / 2].as_secs_f64();
    let rate = request.batch as f64 / median;
    let gflops = rate * workload.mflop / 1e3;
    Ok(Answer {
        system: format!("regatta {}", env!("CARGO_PKG_VERSION")),
        workload: workload.name.to_string(),
        batch: request.batch,
        threads,
        steps: times.len(),
        step_ms_median: median * 1e3,
        step_ms_min: times[0].as_secs_f64() * 1e3,
        examples_per_sec: rate,
        gflops,
        fma_peak_gflops: peak,
        share_of_peak: gflops / (peak * threads as f64),
        loss_first,
        loss_step_10,
        loss_last,
    })
}
