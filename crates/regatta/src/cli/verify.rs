//! `regatta verify`: whether what is stored is as it was written.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use regatta_checkpoint::{add_checksums, verify_path};

use super::remote::local;
use super::{Outcome, plural};

/// Reads every byte of checkpoints, saved epochs and exported models and names every damaged file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 1 if anything is damaged or missing, 2 if there is nothing to verify.

Examples:
  regatta verify checkpoints
  regatta verify output_model/3
  regatta verify exported --add-checksums")]
pub(crate) struct Args {
    /// A checkpoint, a saved epoch, an exported model, or a directory of checkpoints or epochs; a
    /// path or the address of a remote store.
    path: PathBuf,
    /// First add checksums to files of a saved epoch that an earlier version wrote without.
    #[arg(long)]
    add_checksums: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let path = local(&args.path, None)?;
    if args.add_checksums {
        for name in add_checksums(&path)? {
            println!("{}: checksum added", path.join(name).display());
        }
    }
    verified(&path)
}

/// Verifies a local path and prints what it found.
pub(super) fn verified(path: &Path) -> anyhow::Result<Outcome> {
    let found = verify_path(path)?;
    let mut out = io::stdout().lock();
    for problem in &found.problems {
        writeln!(out, "{problem}")?;
    }
    let n = plural(found.n, found.what);
    if found.problems.is_empty() {
        let verb = if found.n == 1 { "is" } else { "are" };
        writeln!(out, "{n} {verb} whole")?;
        return Ok(Outcome::Done);
    }
    eprintln!("{} in {n}", plural(found.problems.len(), "problem"));
    Ok(Outcome::GoalMissed)
}
