//! `regatta import`: text of Paddle's layouts becomes a saved epoch.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use regatta_checkpoint::server_parts::TableWeights;
use regatta_predict::files::{ParameterSpec, read_weights};
use regatta_rec::Config;

use super::Outcome;

/// Reads text files of weights, as `export` or Paddle writes them, into the folder of an epoch that
/// training, infer, predict and export take.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory of `part-` files with names.txt, or of `<table>.shard` folders.
    from: PathBuf,
    /// The folder to make.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// The YAML file of the model.
    #[arg(short = 'm', long = "config", value_name = "CONFIG")]
    config: PathBuf,
    /// Values that override the file.
    #[arg(short = 'o', long = "opt", value_name = "section.key=value", num_args = 1..)]
    overrides: Vec<String>,
    /// Which numbers of a row of a `part-` file are its weights, counted from 0 after the id.
    #[arg(long, value_name = "5,8-15")]
    columns: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = Config::load(&args.config, &args.overrides)?;
    let columns = args.columns.as_deref().map(parse_columns).transpose()?;
    let needed = regatta_rec::needed(&config)?;
    let wanted: Vec<ParameterSpec> = needed
        .iter()
        .map(|n| ParameterSpec {
            name: n.name.clone(),
            shape: n.shape.clone(),
            is_table: n.is_table,
        })
        .collect();
    if let Some(columns) = &columns
        && let Some(table) = wanted.iter().find(|w| w.is_table && w.shape[1] != columns.len())
    {
        let (n, name, dim) = (columns.len(), &table.name, table.shape[1]);
        bail!("--columns names {n} columns, but rows of table '{name}' have {dim} weights");
    }
    let mut weights = read_weights(&args.from, &wanted, columns.as_deref())?;
    let mut tables = Vec::new();
    let mut out = io::stdout().lock();
    for table in wanted.iter().filter(|w| w.is_table) {
        let (name, dim) = (table.name.clone(), table.shape[1]);
        let rows = weights.tables.remove(&name).context("every table was read")?;
        writeln!(out, "table {name}: {} rows of {dim} floats", rows.ids.len())?;
        tables.push(TableWeights { name, dim, ids: rows.ids, values: rows.values });
    }
    regatta_rec::import(&config, tables, &weights.dense, &args.to)?;
    writeln!(out, "model {}, written to {}", config.model.name, args.to.display())?;
    Ok(Outcome::Done)
}

/// `5,8-15` to the numbers that it stands for.
fn parse_columns(text: &str) -> anyhow::Result<Vec<usize>> {
    let number = |word: &str| {
        word.trim().parse::<usize>().with_context(|| format!("--columns: '{word}' is no column"))
    };
    let mut columns = Vec::new();
    for part in text.split(',') {
        let (from, to) = match part.split_once('-') {
            Some((from, to)) => (number(from)?, number(to)?),
            None => (number(part)?, number(part)?),
        };
        if from > to || to - from > 1 << 20 {
            bail!("--columns: '{part}' is no range of columns");
        }
        columns.extend(from..=to);
    }
    Ok(columns)
}
