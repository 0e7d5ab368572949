//! Training of `dnn` from MultiSlot files against its compute step alone, on batches that are
//! already in memory: how much reading costs beside training.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use regatta_data::{Batch, Batches, Synthetic, TextFormat, write_synthetic};
use regatta_exec::{Scope, run_startup};
use regatta_rec::Config;
use regatta_rec::data::Data;
use regatta_rec::network::Network;
use regatta_tensor::Tensor;
use regatta_train::{Feed, Local, run_feed};
use serde::Serialize;

/// Examples per second of dnn (26 slots, dim 9, fully connected 400-400-400, Adam): one JSON line
/// per round, and one with the medians.
#[derive(Parser)]
struct Args {
    /// Examples in the files.
    #[arg(long, default_value_t = 40_960)]
    examples: u64,
    /// Examples per batch.
    #[arg(long, default_value_t = 512)]
    batch: usize,
    /// Threads that share each batch.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Threads that read files.
    #[arg(long, default_value_t = 1)]
    readers: usize,
    /// Rounds, each with a data pass over the files and as many steps from memory.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Fail if training reaches less than this share of the compute step alone.
    #[arg(long)]
    at_least: Option<f64>,
    /// Directory for the files; they are kept there. Else a temporary one.
    #[arg(long)]
    data: Option<PathBuf>,
}

#[derive(Serialize)]
struct Round {
    round: usize,
    train_examples_per_sec: f64,
    compute_examples_per_sec: f64,
    share: f64,
    wait_seconds: f64,
    read_seconds: f64,
    parse_seconds: f64,
    megabytes_per_sec: f64,
}

/// Batches in memory that the compute step goes round.
const IN_MEMORY: usize = 64;

fn main() -> Result<()> {
    let args = Args::parse();
    let temp = tempfile::tempdir()?;
    let dir = args.data.clone().unwrap_or_else(|| temp.path().join("data"));
    if !dir.exists() {
        let url = format!("synthetic://ctr?examples={}&slots=26&vocab=10000", args.examples);
        write_synthetic(&Synthetic::parse(&url)?, &dir, 8, &TextFormat::MultiSlot)?;
    }
    let file = temp.path().join("config.yaml");
    std::fs::write(&file, yaml(&args, &dir))?;
    let config = Config::load(&file, &[])?;
    let network = Network::build(&config)?;
    let mut data = Data::open(&config, &config.runner.train, &network.schema)?;
    let mut scope = Scope::new();
    run_startup(&network.train.startup, &mut scope)?;
    let backend = Local::new(network.train.main.clone(), regatta_rec::run::options(&config))?;
    let mut trainer = Trainer { backend, scope };
    let kept = keep(&mut data.pass(0)?.0)?;
    let rows = kept.iter().map(Batch::examples).sum::<usize>() as u64;
    let mut kept = Cycle { batches: kept.into(), examples: 0, most: rows };
    trainer.run(&mut kept)?;
    let megabytes = bytes(&dir)? as f64 / 1e6;

    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        // Both within the same second or two, so that a busy machine slows both.
        let (examples, train_seconds, stages) = pass(&mut trainer, &mut data, round as u64)?;
        let compute = compute(&mut trainer, &mut kept, examples)?;
        let train = examples as f64 / train_seconds;
        let result = Round {
            round,
            train_examples_per_sec: train,
            compute_examples_per_sec: compute,
            share: train / compute,
            wait_seconds: stages.wait.as_secs_f64(),
            read_seconds: stages.read.as_secs_f64(),
            parse_seconds: stages.parse.as_secs_f64(),
            megabytes_per_sec: megabytes / (stages.read + stages.parse).as_secs_f64(),
        };
        println!("{}", serde_json::to_string(&result)?);
        rounds.push(result);
    }
    let median = |of: fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let share = median(|r| r.share);
    let (train, compute) =
        (median(|r| r.train_examples_per_sec), median(|r| r.compute_examples_per_sec));
    println!(
        "{}",
        serde_json::json!({
            "median_share": share,
            "train_examples_per_sec": train,
            "compute_examples_per_sec": compute,
            "batch": args.batch, "threads": args.threads, "readers": args.readers,
        })
    );
    if let Some(floor) = args.at_least {
        ensure!(share >= floor, "training reaches {share:.3} of the compute step, not {floor}");
    }
    Ok(())
}

fn yaml(args: &Args, dir: &std::path::Path) -> String {
    format!(
        "model: dnn
runner:
  train_data_dir: {dir:?}
  data_format: multislot
  reader_type: QueueDataset
  drop_last: True
  train_batch_size: {}
  thread_num: {}
  reader_threads: {}
hyper_parameters:
  optimizer: {{class: Adam, learning_rate: 0.001}}
  sparse_inputs_slots: 27
  sparse_feature_number: 260001
  sparse_feature_dim: 9
  dense_input_dim: 13
  fc_sizes: [400, 400, 400]
",
        args.batch, args.threads, args.readers
    )
}

/// The first batches of a data pass.
fn keep(batches: &mut Batches) -> Result<Vec<Batch>> {
    let mut kept = Vec::new();
    while kept.len() < IN_MEMORY
        && let Some(batch) = batches.next()?
    {
        kept.push(batch);
    }
    Ok(kept)
}

/// One data pass over the files: examples, seconds and where readers spent theirs.
fn pass(
    trainer: &mut Trainer,
    data: &mut Data,
    epoch: u64,
) -> Result<(u64, f64, regatta_data::Stages)> {
    let start = Instant::now();
    let (mut batches, _) = data.pass(epoch)?;
    trainer.run(&mut batches)?;
    let examples = batches.position().examples;
    Ok((examples, start.elapsed().as_secs_f64(), batches.stages()))
}

/// Examples per second of steps on batches in memory.
fn compute(trainer: &mut Trainer, kept: &mut Cycle, examples: u64) -> Result<f64> {
    let start = Instant::now();
    (kept.examples, kept.most) = (0, examples);
    trainer.run(kept)?;
    Ok(kept.examples as f64 / start.elapsed().as_secs_f64())
}

/// A model in training, in this process.
struct Trainer {
    backend: Local,
    scope: Scope,
}

impl Trainer {
    fn run(&mut self, feed: &mut dyn Feed) -> Result<()> {
        Ok(run_feed(&mut self.backend, &mut self.scope, feed)?)
    }
}

/// Batches in memory, again and again, up to a number of examples.
struct Cycle {
    batches: VecDeque<Batch>,
    examples: u64,
    most: u64,
}

impl Feed for Cycle {
    fn next(&mut self) -> Result<Option<Batch>, regatta_train::Error> {
        Ok(if self.examples < self.most { self.batches.pop_front() } else { None })
    }

    fn done(&mut self, batch: Batch, _: &[Tensor]) -> Result<(), regatta_train::Error> {
        self.examples += batch.examples() as u64;
        self.batches.push_back(batch);
        Ok(())
    }
}

fn bytes(dir: &std::path::Path) -> Result<u64> {
    std::fs::read_dir(dir)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}
