//! `regatta infer`: evaluates the epochs that `regatta train` has saved.

use std::path::PathBuf;

use regatta_cluster::{Env, Place};

use super::Outcome;
use super::ps::{PsArgs, Work, at_most_64, run_place, supervise_infer};
use super::train::{RunArgs, run_with};

/// Evaluates saved epochs on the test data of a PaddleRec configuration file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// Let so many servers load the epoch, each a process of its own; workers ask them for rows.
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = at_most_64)]
    servers: usize,
    /// Let so many workers share the test data, each a process of its own.
    #[arg(long, value_name = "W", default_value_t = 0, value_parser = at_most_64)]
    workers: usize,
    /// Where a worker leaves its part of the report; set by the process that starts the others.
    #[arg(long, hide = true, value_name = "FILE")]
    part_report: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let ps = PsArgs {
        servers: args.servers,
        workers: args.workers,
        allow_worker_loss: false,
        max_restart: 0,
        part_report: args.part_report.clone(),
    };
    if args.run.is_printing() {
        return run_with(&args.run, regatta_rec::infer);
    }
    let env = Env::process();
    match Place::from_env(&env)? {
        Place::Local if ps.is_wanted() => supervise_infer(&args.run, &ps),
        Place::ParameterServer(place) if !ps.is_wanted() => {
            run_place(Work::Infer, &args.run, &ps, &place, &env)
        }
        place if ps.is_wanted() => anyhow::bail!(
            "the environment says that this is {place} of a job, so --servers and --workers have no \
             place here"
        ),
        // One process, or a rank that evaluates on its own.
        _ => run_with(&args.run, regatta_rec::infer),
    }
}
