//! `regatta plan`: how large a cluster a model needs.

use std::io::{self, Write};
use std::path::PathBuf;

use regatta_plan::{Cluster, Workload, calibrate::calibrate, survey};
use regatta_rec::Config;
use regatta_train::report::write_json;

use super::Outcome;

/// Predicts memory, bytes, bottleneck and speed of a model on clusters of any size.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The YAML file of the model.
    #[arg(short = 'm', long = "config", value_name = "CONFIG")]
    config: PathBuf,
    /// The YAML file of the cluster: machines, data and figures.
    #[arg(long, value_name = "FILE", required_unless_present = "calibrate")]
    cluster: Option<PathBuf>,
    /// Measure this machine with this model for some seconds, and print the section `figures` of a
    /// cluster file.
    #[arg(long, conflicts_with = "cluster")]
    calibrate: bool,
    /// Values that override the file of the model.
    #[arg(short = 'o', long = "opt", value_name = "section.key=value", num_args = 1..)]
    overrides: Vec<String>,
    /// Also write the cluster plan as JSON.
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    report: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = Config::load(&args.config, &args.overrides)?;
    let Some(path) = &args.cluster else {
        write!(io::stdout(), "{}", calibrate(&config)?)?;
        return Ok(Outcome::Done);
    };
    let cluster = Cluster::load(path)?;
    let plan = survey(&Workload::new(&config, &cluster.data)?, &cluster);
    write!(io::stdout(), "{plan}")?;
    if let Some(path) = &args.report {
        write_json(&serde_json::to_value(&plan)?, path)?;
    }
    Ok(Outcome::Done)
}
