//! `regatta data`: synthetic data into files.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use regatta_data::{Batch, Records, Synthetic, TextFormat, write_synthetic};
use regatta_rec::data::criteo_keys;
use regatta_tensor::Value;
use regatta_train::metrics::exact_auc;

use super::{Outcome, plural};

/// Makes data files.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Synth(SynthArgs),
}

/// Writes a synthetic source to files.
#[derive(Debug, clap::Args)]
struct SynthArgs {
    /// The source, such as synthetic://ctr?examples=100000&slots=26.
    url: String,
    /// The directory for the files.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of files.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::count)]
    files: usize,
    /// What the lines look like.
    #[arg(long, value_enum, default_value_t = LineFormat::Multislot)]
    format: LineFormat,
    /// Also report the best AUC that any model can reach on these examples.
    #[arg(long)]
    oracle: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum LineFormat {
    Multislot,
    Criteo,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let Command::Synth(args) = &args.command;
    let source = Synthetic::parse(&args.url)?;
    let format = match args.format {
        LineFormat::Multislot => TextFormat::MultiSlot,
        LineFormat::Criteo => TextFormat::Criteo(criteo_keys(&source.schema())),
    };
    let oracle = args.oracle.then(|| oracle_auc(&source)).transpose()?;
    match write_synthetic(&source, &args.out, args.files, &format) {
        Ok(files) => {
            writeln!(io::stdout(), "{} in {}", plural(files.len(), "file"), args.out.display())?;
            if let Some(auc) = oracle {
                writeln!(io::stdout(), "oracle AUC {auc:.4}")?;
            }
            Ok(Outcome::Done)
        }
        Err(error) => {
            eprintln!("error: {error}");
            Ok(Outcome::GoalMissed)
        }
    }
}

/// The AUC of the probabilities that labels were drawn with.
fn oracle_auc(source: &Synthetic) -> anyhow::Result<f64> {
    const BLOCK: usize = 1024;
    let mut scores: Vec<(f32, bool)> = Vec::new();
    for start in (0..source.examples()).step_by(BLOCK) {
        let block = start..(start + BLOCK as u64).min(source.examples());
        let mut records = Records::new(&source.schema());
        source.generate(block.clone(), &mut records);
        let batch = Batch::assemble(records, Vec::new());
        let labels = batch.values().first().and_then(Value::as_dense);
        for (label, example) in labels.iter().flat_map(|l| l.i64()).zip(block) {
            let Some(p) = source.probability(example) else {
                bail!("--oracle: {source} does not draw its labels with a known probability");
            };
            scores.push((p as f32, *label == 1));
        }
    }
    exact_auc(&scores).context("--oracle: all labels are the same, so there is no AUC")
}
