//! `regatta infer`: evaluates the epochs that `regatta train` has saved.

use std::path::{Path, PathBuf};

use regatta_cluster::{Env, Place};

use super::Outcome;
use super::ps::{PsArgs, Work, at_most_64, run_place, supervise_infer};
use super::scores;
use super::train::{RunArgs, run_loaded};

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
    /// Write the scores of an epoch, as CSV: a line for each example, in the order of the data. Of
    /// several workers, each writes those of its share, to FILE.0, FILE.1 and so on.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
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
    let out = args.out.as_deref();
    if args.run.is_printing() {
        return run_alone(&args.run, out);
    }
    let env = Env::process();
    match Place::from_env(&env)? {
        Place::Local if ps.is_wanted() => supervise_infer(&args.run, &ps, out),
        Place::ParameterServer(place) if !ps.is_wanted() => {
            run_place(Work::Infer(out), &args.run, &ps, &place, &env)
        }
        place if ps.is_wanted() => anyhow::bail!(
            "the environment says that this is {place} of a job, so --servers and --workers have no \
             place here"
        ),
        // One process, or a rank that evaluates on its own.
        _ => run_alone(&args.run, out),
    }
}

fn run_alone(run: &RunArgs, out: Option<&Path>) -> anyhow::Result<Outcome> {
    let mut config = run.load()?;
    out.map_or(Ok(()), |_| scores::prepare(&mut config))?;
    run_loaded(&config, run, |config, observer| {
        scores::written(out, observer, |observer| regatta_rec::infer(config, observer))
    })
}
