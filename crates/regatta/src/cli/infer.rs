//! `regatta infer`: evaluates the epochs that `regatta train` has saved.

use std::path::PathBuf;

use regatta_cluster::{Env, Place};
use regatta_launch::ThisProgram;

use super::Outcome;
use super::job::{Work, run_alone, run_place, supervise};
use super::job_args::{Carrier, PsArgs, at_most_64};
use super::runs::folder::epochs_of;
use super::train::RunArgs;

/// Evaluates saved epochs on the test data of a PaddleRec configuration file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// Let this many servers load the epoch, each a process of its own; workers pull rows from
    /// them.
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = at_most_64)]
    servers: usize,
    /// Divide the test data among this many workers, each a process of its own.
    #[arg(long, value_name = "W", default_value_t = 0, value_parser = at_most_64)]
    workers: usize,
    /// Write the scores of an epoch, as CSV: a line for each example, in the order of the data. Of
    /// several workers, each writes those of its part of the data, to FILE.0, FILE.1 and so on.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where a worker leaves its part of the report; set by the process that starts the others.
    #[arg(long, hide = true, value_name = "FILE")]
    part_report: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, this: &ThisProgram) -> anyhow::Result<Outcome> {
    let ps = PsArgs {
        servers: args.servers,
        workers: args.workers,
        allow_worker_loss: false,
        max_restart: 0,
        part_report: args.part_report.clone(),
    };
    let work = Work::Infer(args.out.as_deref());
    let mut run = args.run.clone();
    let env = Env::process();
    let place = Place::from_env(&env)?;
    // A job that was started elsewhere has been told by whoever started it.
    let is_asked = matches!(place, Place::Local) && !run.is_printing();
    if is_asked || run.run_dir().is_some() {
        run = epochs_of(&run)?.map_or(run.clone(), |setting| run.with(&setting));
    }
    if run.is_printing() {
        return run_alone(work, &run);
    }
    match place {
        Place::Local if ps.is_wanted() => supervise(work, &run, &ps, ps.kind(), false, this),
        place if ps.is_wanted() => anyhow::bail!(
            "this process is already {place} of a job (the environment says so); --servers and \
             --workers start a new job"
        ),
        place @ Place::ParameterServer(_) => {
            run_place(work, &run, &ps, Carrier::Auto, &place, &env)
        }
        // One process, or a rank that evaluates on its own.
        _ => run_alone(work, &run),
    }
}
