//! `regatta programs`.

use std::io::{self, Write};

use clap::ValueEnum;
use regatta::ir::Regularizer;
use regatta::passes::Clip;
use regatta::quickstart::{fit_a_line, mlp, stages};

use super::mlp::OptimizerName;
use super::{Outcome, count, positive};

/// Print a model's program after each pass, from what the builder made to what the executor runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  regatta programs mlp --optimizer adam --clip-norm 1 --l2 0.01")]
pub(crate) struct Args {
    /// Which model.
    #[arg(value_enum)]
    model: ModelName,
    /// Update rule.
    #[arg(long, value_enum, default_value = "sgd")]
    optimizer: OptimizerName,
    /// Limit all gradients together to this norm.
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    clip_norm: Option<f64>,
    /// Penalty on the squares of parameters.
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    l2: Option<f64>,
    /// The batch size that bytes are reported for.
    #[arg(long, value_name = "N", default_value = "128", value_parser = count)]
    batch_size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModelName {
    FitALine,
    Mlp,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let model = match args.model {
        ModelName::FitALine => fit_a_line::model(1)?,
        ModelName::Mlp => mlp::model(1)?,
    };
    let mut optimizer = args.optimizer.with_rate(Some(0.01));
    optimizer.clip = args.clip_norm.map(Clip::GlobalNorm);
    optimizer.regularizer = args.l2.map(Regularizer::L2);
    let mut out = io::stdout().lock();
    for (i, stage) in stages(&model, &optimizer, args.batch_size)?.iter().enumerate() {
        let blank = if i > 0 { "\n" } else { "" };
        write!(out, "{blank}== {}. {}\n{}", i + 1, stage.title, stage.text)?;
    }
    Ok(Outcome::Done)
}
