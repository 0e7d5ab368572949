//! `regatta programs`.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::ir::{Program, Regularizer};
use crate::listing::{Inputs, Listing};
use crate::passes::Clip;
use crate::quickstart::{fit_a_line, mlp};
use clap::ValueEnum;
use regatta_exec::Options;
use regatta_fleet::collective::{optimizer_for, plan_ranks_watched};
use regatta_passes::pipeline::Rewrite;
use regatta_passes::{split_server, split_trainer};
use regatta_ps::Mode;
use regatta_rec::Config;
use regatta_rec::network::Network;
use regatta_rec::run::strategy;
use regatta_train::When;
use regatta_train::job::server_partitions;

use super::mlp::OptimizerName;
use super::{Outcome, count, positive};

/// Print the programs of a model after each compiler pass, from what the builder made to what the
/// executor runs.
#[derive(Debug, clap::Args)]
#[command(override_usage = "regatta programs <fit-a-line|mlp|-m CONFIG> [OPTIONS]")]
#[command(after_help = "\
Compiler passes are listed in the order in which they are applied; those that change nothing are
left out. The last program of each role is what the executor runs: ops joined, variables with the
memory they share (buffer=) and with every dimension known.

Examples:
  regatta programs -m models/rank/dnn/config.yaml
  regatta programs -m models/rank/dnn/config.yaml --role trainer --batch 512
  regatta programs mlp --optimizer adam --clip-norm 1 --l2 0.01")]
pub(crate) struct Args {
    /// A built-in model instead of a YAML file.
    #[arg(value_enum, required_unless_present = "config", conflicts_with = "config")]
    model: Option<ModelName>,
    /// The YAML file of a model.
    #[arg(short = 'm', long = "config", value_name = "CONFIG")]
    config: Option<PathBuf>,
    /// Values that override the file.
    #[arg(short = 'o', long = "opt", value_name = "section.key=value", num_args = 1..)]
    #[arg(conflicts_with = "model")]
    overrides: Vec<String>,
    /// Whose programs; those of one process without it.
    #[arg(long, value_enum, conflicts_with = "model")]
    role: Option<Role>,
    /// Examples of the batch that the executor runs [default: the configured batch size; 128 for a
    /// built-in model].
    #[arg(long, alias = "batch-size", value_name = "N", value_parser = count)]
    batch: Option<usize>,
    /// Servers of a job, with --role server [default: 1].
    #[arg(long, value_name = "N", value_parser = count)]
    servers: Option<usize>,
    /// Ranks of a job, with --role rank [default: 2].
    #[arg(long, value_name = "N", value_parser = count)]
    ranks: Option<usize>,
    /// Update rule of a built-in model.
    #[arg(long, value_enum, default_value = "sgd", conflicts_with = "config")]
    optimizer: OptimizerName,
    /// Limit all gradients of a built-in model together to this norm.
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    #[arg(conflicts_with = "config")]
    clip_norm: Option<f64>,
    /// L2 regularization of a built-in model.
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    #[arg(conflicts_with = "config")]
    l2: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModelName {
    FitALine,
    Mlp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// A worker with parameter servers: what it runs, pulls and pushes.
    Trainer,
    /// The parameter servers: tables, dense parameters and update rules.
    Server,
    /// Rank 0 of a job without servers.
    Rank,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    if args.servers.is_some() && args.role != Some(Role::Server) {
        anyhow::bail!("--servers is the number of servers with --role server");
    }
    if args.ranks.is_some() && args.role != Some(Role::Rank) {
        anyhow::bail!("--ranks is the number of ranks with --role rank");
    }
    let listing = match (&args.config, args.model) {
        (Some(path), _) => of_config(args, &Config::load(path, &args.overrides)?)?,
        (None, Some(model)) => of_model(args, model)?,
        (None, None) => anyhow::bail!("name a built-in model or a configuration with -m"),
    };
    let mut out = io::stdout().lock();
    for (i, stage) in listing.stages().iter().enumerate() {
        let blank = if i > 0 { "\n" } else { "" };
        write!(out, "{blank}== {}. {}\n{}", i + 1, stage.title, stage.text)?;
    }
    Ok(Outcome::Done)
}

fn of_model(args: &Args, name: ModelName) -> anyhow::Result<Listing> {
    let model = match name {
        ModelName::FitALine => fit_a_line::model(1)?,
        ModelName::Mlp => mlp::model(1)?,
    };
    let mut optimizer = args.optimizer.with_rate(Some(0.01));
    optimizer.clip = args.clip_norm.map(Clip::GlobalNorm);
    optimizer.regularizer = args.l2.map(Regularizer::L2);
    Ok(Listing::of_model(&model, &optimizer, args.batch.unwrap_or(128))?)
}

fn of_config(args: &Args, config: &Config) -> anyhow::Result<Listing> {
    let batch = || match args.batch.or(config.runner.train.batch_size) {
        Some(batch) => Ok(batch),
        None => Err(anyhow::anyhow!(
            "the configuration has no runner.train_batch_size; say with --batch for which batch \
             size"
        )),
    };
    match args.role {
        None => of_process(config, batch()?),
        Some(Role::Trainer) => of_trainer(config, batch()?),
        Some(Role::Server) => of_servers(config, args.servers.unwrap_or(1)),
        Some(Role::Rank) => of_rank(config, batch()?, args.ranks.unwrap_or(2)),
    }
}

fn options(config: &Config) -> Options {
    let runner = &config.runner;
    let (threads, check_nan_inf) = (runner.thread_num, runner.check_nan_inf);
    Options { threads, check_nan_inf, ..Options::default() }
}

fn of_process(config: &Config, batch: usize) -> anyhow::Result<Listing> {
    let mut listing = Listing::default();
    let network = Network::build_watched(config, &config.optimizer, &mut |name, about, made| {
        listing.add(name, about, made);
    })?;
    let (main, fetch) = (&network.train.main, network.fetches());
    listing.add_execution(main, options(config), &Inputs::of(batch), &fetch)?;
    Ok(listing)
}

fn of_trainer(config: &Config, batch: usize) -> anyhow::Result<Listing> {
    let mode = config.runner.distributed.mode;
    if let Mode::Geo { every } = mode {
        let mut listing = of_process(config, batch)?;
        let network = Network::build(config)?;
        let exchange = split_trainer(&network.train)?.exchange;
        let tables = exchange.tables.iter().map(|table| table.name.clone());
        let all: Vec<String> = tables.chain(exchange.params).collect();
        let title = format!(
            "geo: a worker runs the whole program and exchanges differences every {every} steps"
        );
        listing.add_text(&title, &format!("  {}\n", all.join("\n  ")));
        return Ok(listing);
    }
    let mut listing = Listing::default();
    let network = Network::build_watched(config, &config.optimizer, &mut |name, about, made| {
        listing.add(name, about, made);
    })?;
    let split = split_trainer(&network.train)?;
    listing.add_text("split_trainer: what a worker pulls, runs and pushes", &split.to_string());
    let mut fetch = network.fetches();
    fetch.extend(split.exchange.fetches());
    let inputs = Inputs { batch, pulled: &split.exchange.tables };
    listing.add_execution(&split.trainer, options(config), &inputs, &fetch)?;
    Ok(listing)
}

fn of_servers(config: &Config, servers: usize) -> anyhow::Result<Listing> {
    let network = Network::build(config)?;
    let split = split_trainer(&network.train)?;
    let rules = match config.runner.distributed.mode {
        Mode::Geo { .. } => "; in geo mode workers apply these rules, and servers add differences",
        _ => "",
    };
    let mut listing = Listing::default();
    for server in 0..servers {
        let partitions = server_partitions(&split, servers, server);
        let programs = split_server(&split, &network.train.startup, &partitions)?;
        let title =
            format!("split_server: what server {server} of {servers} keeps and updates{rules}");
        listing.add_text(&title, &programs.main.to_string());
        let title = format!("split_server: initial values of server {server} of {servers}");
        listing.add_text(&title, &programs.startup.to_string());
    }
    Ok(listing)
}

fn of_rank(config: &Config, batch: usize, ranks: usize) -> anyhow::Result<Listing> {
    let strategy = strategy(config)?;
    let optimizer = optimizer_for(&config.optimizer, &strategy)?;
    let mut listing = Listing::default();
    let watch = &mut |name: &str, about: &str, made: &dyn Rewrite| listing.add(name, about, made);
    let network = Network::build_watched(config, &optimizer, watch)?;
    let plan = plan_ranks_watched(&network.train, &strategy, 0, ranks, watch)?;
    let mut fetch = network.fetches();
    if matches!(plan.when, When::Adaptive { .. }) {
        fetch.push(&network.loss);
    }
    let options = options(config);
    listing.add_execution(&plan.each.main, options.clone(), &Inputs::of(batch), &fetch)?;
    if let Some(then) = &plan.then {
        add_second(&mut listing, then, options)?;
    }
    Ok(listing)
}

/// The program that runs after some of the steps, on one thread.
fn add_second(listing: &mut Listing, program: &Program, options: Options) -> anyhow::Result<()> {
    let options = Options { threads: 1, ..options };
    listing.add_execution(program, options, &Inputs::of(1), &[])?;
    Ok(())
}
