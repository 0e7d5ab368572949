//! `regatta infer`: evaluates the epochs that `regatta train` has saved.

use super::Outcome;
use super::train::{RunArgs, run_with};

/// Evaluates saved epochs on the test data of a PaddleRec configuration file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    run_with(&args.run, regatta_rec::infer)
}
