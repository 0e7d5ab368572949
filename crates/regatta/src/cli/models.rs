//! `regatta models`: what the zoo holds.

use std::io::{self, Write};

use anyhow::anyhow;
use regatta_rec::zoo::{self, Model};
use regatta_rec::{Hyper, HyperValue};

use super::Outcome;

/// Lists the models, or the hyper-parameters of one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A model.
    name: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    match &args.name {
        None => list()?,
        Some(name) => {
            let model = zoo::find(name).ok_or_else(|| {
                let known: Vec<&str> = zoo::all().iter().map(|m| m.name).collect();
                anyhow!("there is no model '{name}'; there are {}", known.join(", "))
            })?;
            show(model)?;
        }
    }
    Ok(Outcome::Done)
}

fn list() -> io::Result<()> {
    let name = zoo::all().iter().map(|m| m.name.len()).max().unwrap_or(0);
    let group = zoo::all().iter().map(|m| m.group.len()).max().unwrap_or(0);
    for m in zoo::all() {
        writeln!(io::stdout(), "{:name$}  {:group$}  {}", m.name, m.group, m.summary)?;
    }
    Ok(())
}

fn show(model: &Model) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{} ({}): {}", model.name, model.group, model.summary)?;
    let optimizer = &model.optimizer;
    writeln!(out, "optimizer: {}, learning rate {}", optimizer.class, optimizer.learning_rate)?;
    let defaults = Hyper::defaults(model.keys);
    let value = |name: &str| {
        let found = defaults.iter().find(|(key, _)| *key == name);
        found.map(|(_, value): (&str, &HyperValue)| value.to_string()).unwrap_or_default()
    };
    let width = model.keys.iter().map(|k| k.name.len()).max().unwrap_or(0);
    let values = model.keys.iter().map(|k| value(k.name).len()).max().unwrap_or(0);
    for key in model.keys {
        writeln!(out, "  {:width$}  {:values$}  {}", key.name, value(key.name), key.doc)?;
    }
    Ok(())
}
