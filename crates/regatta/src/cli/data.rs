//! `regatta data`: synthetic data into files.

use std::io::{self, Write};
use std::path::PathBuf;

use regatta_data::{Synthetic, TextFormat, write_synthetic};
use regatta_rec::data::criteo_keys;

use super::Outcome;

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
    match write_synthetic(&source, &args.out, args.files, &format) {
        Ok(files) => {
            writeln!(io::stdout(), "{} files in {}", files.len(), args.out.display())?;
            Ok(Outcome::Done)
        }
        Err(error) => {
            eprintln!("error: {error}");
            Ok(Outcome::GoalMissed)
        }
    }
}
