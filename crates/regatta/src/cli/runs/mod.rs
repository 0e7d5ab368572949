//! `regatta runs`: what was trained, and how runs compare. Every run has a folder ([`folder`]).

mod chart;
mod compare;
mod find;
pub(super) mod folder;
mod time;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use regatta_checkpoint::FolderLock;
use serde_json::Value;

use super::Outcome;

/// Where folders of runs are made, below the current directory.
const RUNS: &str = "runs";
/// The link to the run that began last.
const LATEST: &str = "latest";
/// What a run says about itself.
const ABOUT: &str = "run.json";
/// A line of JSON for each epoch.
const METRICS: &str = "metrics.jsonl";
/// The report of a run that has reached its end.
const REPORT: &str = "report.json";

/// Lists, shows and compares runs of `regatta train`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  regatta runs list
  regatta runs show latest
  regatta runs compare 20261118-195203-dnn latest --chart curves.svg")]
pub(crate) struct Args {
    /// The folder that holds the runs.
    #[arg(long, value_name = "DIR", default_value = RUNS, global = true)]
    dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Shows all runs, the oldest first.
    List,
    /// Shows a run with the measures of its epochs.
    Show {
        /// Its folder, the name of it below `runs`, the name that --name gave it, or `latest`.
        run: String,
        #[command(flatten)]
        chart: ChartArgs,
    },
    /// Shows the settings in which runs differ, and their measures side by side.
    Compare {
        /// Their folders or names.
        #[arg(required = true, num_args = 2..)]
        runs: Vec<String>,
        #[command(flatten)]
        chart: ChartArgs,
    },
}

#[derive(Debug, clap::Args)]
struct ChartArgs {
    /// Draw the measures by epoch, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    chart: Option<PathBuf>,
    /// A measure to draw; else loss and auc.
    #[arg(long = "metric", value_name = "NAME", requires = "chart")]
    metrics: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut out = io::stdout().lock();
    match &args.command {
        Command::List => list(&mut out, &args.dir)?,
        Command::Show { run, chart } => {
            let run = find::named(&args.dir, run)?;
            show(&mut out, &run)?;
            draw(&mut out, &[run], chart)?;
        }
        Command::Compare { runs, chart } => {
            let runs: Vec<Run> =
                runs.iter().map(|run| find::named(&args.dir, run)).collect::<Result<_>>()?;
            compare::compare(&mut out, &runs)?;
            draw(&mut out, &runs, chart)?;
        }
    }
    Ok(Outcome::Done)
}

/// A run as its folder tells of it.
struct Run {
    dir: PathBuf,
    name: String,
    model: String,
    /// The configuration file.
    config: PathBuf,
    started: String,
    /// Where epochs are saved.
    epochs: PathBuf,
    settings: Value,
}

/// Measures of an epoch by name; those of the validation data begin with `validation/`.
type Measures = BTreeMap<String, f64>;

impl Run {
    /// The run of a folder; none if it is not the folder of a run.
    ///
    /// # Errors
    /// If what it says about itself cannot be read.
    fn at(dir: &Path) -> Result<Option<Run>> {
        let path = dir.join(ABOUT);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let about: Value = serde_json::from_str(&text)
            .with_context(|| format!("{}: this is no description of a run", path.display()))?;
        let word = |key: &str| -> Result<String> {
            let word = about[key].as_str().map(str::to_string);
            word.with_context(|| format!("{}: '{key}' is missing", path.display()))
        };
        Ok(Some(Run {
            dir: std::path::absolute(dir)?,
            name: word("name")?,
            model: word("model")?,
            config: PathBuf::from(word("config")?),
            started: word("started")?,
            epochs: PathBuf::from(word("epochs")?),
            settings: about["settings"].clone(),
        }))
    }

    /// The name of the folder.
    fn folder(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn is_done(&self) -> bool {
        self.dir.join(REPORT).exists()
    }

    /// Whether a process trains there.
    fn is_held(&self) -> bool {
        let taken = FolderLock::take(&self.dir, "regatta runs");
        matches!(taken, Err(regatta_checkpoint::Error::Refused { .. }))
    }

    fn makes_checkpoints(&self) -> bool {
        self.settings.pointer("/runner/checkpoint").is_some()
    }

    fn status(&self) -> &'static str {
        match (self.is_done(), self.is_held()) {
            (true, _) => "done",
            (false, true) => "training",
            (false, false) => "stopped",
        }
    }

    /// Measures of each epoch. An epoch that was trained again counts once, and the last line of a
    /// killed process, which may be cut off, not at all.
    fn measures(&self) -> BTreeMap<u64, Measures> {
        let text = std::fs::read_to_string(self.dir.join(METRICS)).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter_map(|line| Some((line["epoch"].as_u64()?, measures_of(&line)))).collect()
    }
}

fn measures_of(report: &Value) -> Measures {
    let mut measures = Measures::new();
    let mut add = |prefix: &str, report: &Value| {
        let main = ["loss", "auc"].map(|name| (name, &report[name]));
        let others = report["metrics"].as_object().into_iter().flatten();
        for (name, value) in main.into_iter().chain(others.map(|(n, v)| (n.as_str(), v))) {
            measures.extend(value.as_f64().map(|value| (format!("{prefix}{name}"), value)));
        }
    };
    add("", report);
    add("validation/", &report["validation"]);
    measures.extend(report["seconds"].as_f64().map(|value| ("seconds".to_string(), value)));
    measures.extend(report["examples_per_sec"].as_f64().map(|v| ("examples_per_sec".into(), v)));
    measures
}

/// Settings that say where something is, not what is trained.
const PLACES: [&str; 4] = ["run_dir", "model_save_path", "infer_load_path", "checkpoint"];

/// In which settings two runs differ, in words; where they write does not count.
fn differences(old: &Value, new: &Value) -> Vec<String> {
    let (old, new) = (compare::flat(old), compare::flat(new));
    // What features have learned follows from the settings and the data.
    let is_setting = |name: &&String| !name.starts_with("learned_features.");
    let names: std::collections::BTreeSet<&String> =
        old.keys().chain(new.keys()).filter(is_setting).collect();
    let text = |value: Option<&String>| value.map_or("not set", String::as_str).to_string();
    let changed = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    changed.map(|n| format!("{n} was {} and is {}", text(old.get(n)), text(new.get(n)))).collect()
}

fn list(out: &mut impl Write, root: &Path) -> Result<()> {
    let runs = find::all(root)?;
    if runs.is_empty() {
        writeln!(out, "{} holds no runs", root.display())?;
        return Ok(());
    }
    let columns = ["loss", "auc", "validation/loss", "validation/auc"];
    let mut rows = Vec::new();
    for run in &runs {
        let measures = run.measures();
        let last = measures.values().next_back();
        let number = |name: &&str| last.and_then(|m| m.get(*name)).map(|x| format!("{x:.6}"));
        let first =
            [run.folder(), run.model.clone(), run.status().into(), measures.len().to_string()];
        let numbers = columns.iter().map(|name| number(name).unwrap_or_default());
        rows.push(first.into_iter().chain(numbers).chain([run.started.clone()]).collect());
    }
    let head = ["run", "model", "status", "epochs"].into_iter().chain(columns).chain(["started"]);
    table(out, &head.collect::<Vec<_>>(), &rows)
}

fn show(out: &mut impl Write, run: &Run) -> Result<()> {
    writeln!(out, "run            {} ({})", run.folder(), run.status())?;
    writeln!(out, "name           {}", run.name)?;
    writeln!(out, "model          {}", run.model)?;
    writeln!(out, "configuration  {}", run.config.display())?;
    writeln!(out, "started        {}", run.started)?;
    writeln!(out, "epochs         {}", run.epochs.display())?;
    let measures = run.measures();
    let names = compare::names(measures.values());
    let rows: Vec<Vec<String>> = measures
        .iter()
        .map(|(epoch, found)| {
            let number =
                |name: &String| found.get(name).map_or(String::new(), |x| format!("{x:.6}"));
            [epoch.to_string()].into_iter().chain(names.iter().map(number)).collect()
        })
        .collect();
    if rows.is_empty() {
        writeln!(out, "no epoch is done")?;
        return Ok(());
    }
    writeln!(out)?;
    let head: Vec<&str> = ["epoch"].into_iter().chain(names.iter().map(String::as_str)).collect();
    table(out, &head, &rows)
}

/// Writes columns below their names; those without any value are left out.
fn table(out: &mut impl Write, head: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let width = |i: usize| {
        let widest = rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        if widest == 0 { 0 } else { widest.max(head[i].chars().count()) }
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).filter(|(_, width)| **width > 0);
        let line: Vec<String> = cells.map(|(cell, &width)| format!("{cell:width$}")).collect();
        writeln!(out, "{}", line.join("  ").trim_end())
    };
    line(&mut head.iter().copied())?;
    for row in rows {
        line(&mut row.iter().map(String::as_str))?;
    }
    Ok(())
}

fn draw(out: &mut impl Write, runs: &[Run], args: &ChartArgs) -> Result<()> {
    let Some(path) = &args.chart else { return Ok(()) };
    chart::draw(runs, &args.metrics, path)?;
    writeln!(out, "chart written to {}", path.display())?;
    Ok(())
}
