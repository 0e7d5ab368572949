//! `regatta features`: what becomes of the columns of the data.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use regatta_features::{
    FeatureProfile, Profile, Row, RowValues, SlotKind, Transform, Value, hash_id,
};
use regatta_rec::data::{transform, visit_rows};
use regatta_rec::{Config, learn, with_learned};
use regatta_train::observe::Event;

use super::{Outcome, plural};

/// Shows what the declared features make of the data: the first lines, and statistics of every
/// feature.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Collisions are different values that have the same id because there are too few buckets: below 5 %
is usual. Values that are not in a vocabulary all have the id 1, missing ones the id 0.

Examples:
  regatta features -m config.yaml --data logs/day-1.csv
  regatta features -m config.yaml --lines 0 --top 10
  regatta features -m config.yaml --learn learned.json
  regatta features --hash u4711 --buckets 100000")]
pub(crate) struct Args {
    /// The YAML file with the section `features`.
    #[arg(short = 'm', long = "config", value_name = "CONFIG", required_unless_present = "hash")]
    config: Option<PathBuf>,
    /// A file or a directory; else the training data of the configuration.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Lines that are shown.
    #[arg(long, value_name = "N", default_value_t = 2)]
    lines: usize,
    /// Most frequent values that are shown.
    #[arg(long, value_name = "N", default_value_t = 3)]
    top: usize,
    /// Learn vocabularies, boundaries, means and deviations from the training data, and write them
    /// here, for runner.features_learned.
    #[arg(long, value_name = "FILE")]
    learn: Option<PathBuf>,
    /// Print the id of a value of kind hash.
    #[arg(long, value_name = "VALUE", requires = "buckets", conflicts_with = "config")]
    hash: Option<String>,
    /// The number of ids.
    #[arg(long, value_name = "N", requires = "hash", value_parser = clap::value_parser!(u64).range(1..))]
    buckets: Option<u64>,
    /// Values that override the file.
    #[arg(short = 'o', long = "opt", value_name = "section.key=value", num_args = 1..)]
    overrides: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    if let (Some(value), Some(buckets)) = (&args.hash, args.buckets) {
        println!("{}", hash_id(value.trim().as_bytes(), buckets));
        return Ok(Outcome::Done);
    }
    let path = args.config.as_deref().unwrap_or(Path::new("config.yaml"));
    let config = Config::load(path, &args.overrides)?;
    if config.features.is_none() {
        anyhow::bail!("{}: there is no section `features`", path.display());
    }
    let mut note = |event: &Event<'_>| {
        if let Event::Note(text) = event {
            eprintln!("note: {text}");
        }
    };
    let config = match args.learn {
        Some(_) => learn(&config, &mut note)?,
        None => with_learned(&config, &regatta_rec::Place::Alone, &mut note)?,
    };
    if let (Some(to), Some(set)) = (&args.learn, &config.features) {
        let text = serde_json::to_string(&set.learned)?;
        std::fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))?;
        println!(
            "{} learned, written to {}",
            plural(set.learned.features.len(), "feature"),
            to.display()
        );
    }
    let transform = transform(&config)?;
    let seen = look(args, &config, &transform)?;
    print(&transform, seen, args.top)?;
    Ok(Outcome::Done)
}

/// What was seen of the data.
struct Seen {
    profile: Profile,
    /// The first lines, and what became of them.
    first: Vec<(Vec<String>, Result<Row, String>)>,
}

fn look(args: &Args, config: &Config, transform: &Transform) -> anyhow::Result<Seen> {
    let mut reading = config.runner.train.clone();
    if let Some(data) = &args.data {
        // Paths of flags start from here, those of the file from its folder.
        reading.data = Some(std::path::absolute(data)?.to_string_lossy().into_owned());
        reading.data_key = "--data";
    }
    let seen = Seen { profile: Profile::new(transform), first: Vec::new() };
    let seen = Arc::new(Mutex::new(Some(seen)));
    let (shared, own, lines) = (seen.clone(), transform.clone(), args.lines);
    let visit = move |row: &[Value<'_>]| {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Seen { profile, first }) = &mut *shared else { return };
        profile.add(row);
        if first.len() < lines {
            let raw = row.iter().map(text).collect();
            first.push((raw, own.row(row).map_err(|e| e.to_string())));
        }
    };
    visit_rows(config, &reading, transform.columns().to_vec(), Arc::new(Mutex::new(visit)))?;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
    seen.context("the data have been read")
}

fn text(value: &Value<'_>) -> String {
    match value {
        Value::Missing => String::new(),
        Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
        Value::Int(x) => x.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Single(x) => x.to_string(),
        Value::List(values) => values.iter().map(text).collect::<Vec<_>>().join(" "),
    }
}

fn print(transform: &Transform, seen: Seen, top: usize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let columns = transform.columns();
    for (n, (raw, row)) in seen.first.iter().enumerate() {
        writeln!(out, "row {}", n + 1)?;
        let values = columns.iter().zip(raw).map(|(column, text)| format!("{column}={text}"));
        writeln!(out, "  read    {}", values.collect::<Vec<_>>().join(" "))?;
        match row {
            Ok(row) => {
                for (slot, values) in transform.slots().iter().zip(row) {
                    let dense = match slot.kind {
                        SlotKind::Floats(_) => dense_names(transform, &slot.name),
                        _ => String::new(),
                    };
                    writeln!(out, "  becomes {} = {}{dense}", slot.name, shown(values))?;
                }
            }
            Err(reason) => writeln!(out, "  is malformed: {reason}")?,
        }
    }
    if !seen.first.is_empty() {
        writeln!(out)?;
    }
    let rows = seen.profile.rows();
    let found = seen.profile.finish(top);
    let (features, rows) = (plural(found.len(), "feature"), plural(rows as usize, "row"));
    writeln!(out, "{features}, {rows}")?;
    table(&mut out, &found)
}

/// The features that the floats of a slot come from.
fn dense_names(transform: &Transform, slot: &str) -> String {
    let all = transform.features().all().iter().filter(|f| f.kind.is_dense());
    let names: Vec<&str> = all.map(|f| f.name.as_str()).collect();
    match names.is_empty() || slot != regatta_features::DENSE {
        true => String::new(),
        false => format!("  ({})", names.join(", ")),
    }
}

fn shown(values: &RowValues) -> String {
    fn list<T: ToString>(values: &[T]) -> String {
        let all: Vec<String> = values.iter().map(T::to_string).collect();
        if all.is_empty() { "nothing".into() } else { all.join(" ") }
    }
    match values {
        RowValues::Label(v) => list(v),
        RowValues::Ids(v) => list(v),
        RowValues::Floats(v) => list(v),
    }
}

fn table(out: &mut impl Write, features: &[FeatureProfile]) -> io::Result<()> {
    let percent = |x: f64| format!("{:.1} %", 100.0 * x);
    let mut lines = vec![
        [
            "feature",
            "kind",
            "coverage",
            "per row",
            "distinct",
            "collisions",
            "unknown",
            "range",
            "most frequent",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for f in features {
        let top = f.top.iter().map(|(value, n)| format!("{value} ({n})"));
        lines.push(vec![
            f.name.clone(),
            f.kind.to_string(),
            percent(f.coverage),
            format!("{:.2}", f.values_per_row),
            format!("{}{}", if f.is_lower_bound { "over " } else { "" }, f.distinct),
            f.collisions.map(percent).unwrap_or_default(),
            f.unknown.map(percent).unwrap_or_default(),
            f.range
                .map(|(low, mean, high)| format!("{low} to {high}, mean {mean:.4}"))
                .unwrap_or_default(),
            top.collect::<Vec<_>>().join(" "),
        ]);
    }
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..9).map(width).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
