//! `regatta mlp`.

use std::time::Instant;

use crate::optim::{Adagrad, Adam, Momentum, Rule, Sgd};
use crate::passes::Optimizer;
use crate::quickstart::Mlp;
use crate::quickstart::mlp::Options;
use clap::ValueEnum;

use super::progress::Progress;
use super::{Outcome, count, positive, threads};

/// A 32-128-128-2 classifier on endless built-in data.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0  trained
  1  the cost is no longer a number
  2  wrong flags

Example:
  regatta mlp --optimizer adam --threads 2")]
pub(crate) struct Args {
    /// Steps to train.
    #[arg(long, value_name = "N", default_value = "1001", value_parser = count)]
    steps: usize,
    /// Examples per step.
    #[arg(long, value_name = "N", default_value = "128", value_parser = count)]
    batch_size: usize,
    /// Update rule.
    #[arg(long, value_enum, default_value = "sgd")]
    optimizer: OptimizerName,
    /// Its learning rate [default: 0.01, for adam 0.001]
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    learning_rate: Option<f64>,
    /// Threads that share a batch.
    #[arg(long, value_name = "N", default_value = "1", value_parser = threads)]
    threads: usize,
    /// Decides initial weights and examples.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the cost of every N-th step.
    #[arg(long, value_name = "N", default_value = "100", value_parser = count)]
    log_every: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerName {
    Sgd,
    Momentum,
    Adagrad,
    Adam,
}

impl OptimizerName {
    /// The rule with the given learning rate, or with one that suits the built-in data.
    pub(crate) fn with_rate(self, learning_rate: Option<f64>) -> Optimizer {
        let (rule, usual) = match self {
            OptimizerName::Sgd => (Rule::Sgd(Sgd {}), 0.01),
            OptimizerName::Momentum => (Rule::Momentum(Momentum::default()), 0.01),
            OptimizerName::Adagrad => (Rule::Adagrad(Adagrad::default()), 0.01),
            OptimizerName::Adam => (Rule::Adam(Adam::default()), 0.001),
        };
        Optimizer::new(rule, learning_rate.unwrap_or(usual))
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let optimizer = args.optimizer.with_rate(args.learning_rate);
    let Args { steps, batch_size, threads, seed, .. } = *args;
    let mut mlp = Mlp::new(&Options { batch_size, optimizer, threads, seed })?;
    let progress = Progress::new(steps as u64, "steps");
    let start = Instant::now();
    for step in 0..steps {
        let cost = mlp.step(step as u64)?;
        if step % args.log_every == 0 || step + 1 == steps || !cost.is_finite() {
            progress.line(format!("step{step} cost={cost:.6}"))?;
        }
        if !cost.is_finite() {
            eprintln!("not reached: the cost is no longer a number; try a smaller --learning-rate");
            return Ok(Outcome::GoalMissed);
        }
        progress.advance(|| format!("cost {cost:.4}"));
    }
    let seconds = start.elapsed().as_secs_f64();
    progress.finish();
    let (cost, accuracy) = mlp.test()?;
    progress.line(format!("test cost={cost:.6} accuracy={accuracy:.4}"))?;
    let examples = (steps * batch_size) as f64;
    progress.line(format!(
        "{:.0} examples/s ({examples} in {seconds:.2} s, {threads} thread{})",
        examples / seconds,
        if threads == 1 { "" } else { "s" }
    ))?;
    Ok(Outcome::Done)
}
