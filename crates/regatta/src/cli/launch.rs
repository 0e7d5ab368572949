//! `regatta launch`, also known as `fleetrun`: starts a program as the processes of a job.

use std::time::Instant;

use anyhow::Result;
use regatta_cluster::Env;
use regatta_launch::flags::Flags;
use regatta_launch::{ThisProgram, run};

use super::Outcome;

/// Starts a program as the processes of a job, on one machine or the local part of several.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,
    /// What to start: a binary, a script, -m with a module of Python, or regatta train, with its
    /// arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args, this: &ThisProgram) -> Result<Outcome> {
    let started = Instant::now();
    if args.flags.emit.is_some() {
        print!("{}", run::emit(&args.flags, &Env::process(), &args.command)?);
        return Ok(Outcome::Done);
    }
    let report = run::launch(&args.flags, &Env::process(), &args.command, this, started)?;
    if args.flags.timing {
        println!("{}", run::timing_line(&report));
    }
    Ok(super::job::failed(&report.outcome).unwrap_or(Outcome::Done))
}
