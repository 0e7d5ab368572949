//! `regatta checkpoint`: what checkpoints hold, whether they are whole, and how they differ.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use regatta_checkpoint::{
    BlockBuffer, Change, Checkpoint, CheckpointDir, Content, Event, Kind, MANIFEST_FILE, Manifest,
    Moment, Row, RowBody, SavedTable, State, diff, history,
};

use super::{Outcome, plural};

/// Lists, explains, checks and compares checkpoints.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  regatta checkpoint list checkpoints
  regatta checkpoint inspect checkpoints/checkpoint_12 --id 4711
  regatta checkpoint verify checkpoints
  regatta checkpoint diff checkpoints/checkpoint_11 checkpoints/checkpoint_12")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Shows all checkpoints of a directory, and why some of them cannot be used.
    List {
        /// The directory that holds them.
        dir: PathBuf,
    },
    /// Explains a checkpoint, or one id of its tables.
    Inspect {
        /// A checkpoint, or a directory whose newest one is meant.
        path: PathBuf,
        /// An id: its values, its counters, and which checkpoint changed it.
        #[arg(long, value_name = "N")]
        id: Option<u64>,
        /// The table of the id; all tables if it is not given.
        #[arg(long, value_name = "NAME", requires = "id")]
        table: Option<String>,
    },
    /// The same as `regatta verify`.
    Verify {
        /// A checkpoint, or a directory of checkpoints.
        path: PathBuf,
    },
    /// Compares two checkpoints, variable by variable; exit code 1 if they differ.
    Diff {
        /// The first: a checkpoint, or a directory whose newest one is meant.
        first: PathBuf,
        /// The second.
        second: PathBuf,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut out = io::stdout().lock();
    match &args.command {
        Command::List { dir } => run_list(&mut out, dir),
        Command::Inspect { path, id: None, .. } => run_inspect(&mut out, &open(path)?),
        Command::Inspect { path, id: Some(id), table } => {
            run_inspect_id(&mut out, &open(path)?, *id, table.as_deref())
        }
        Command::Verify { path } => super::verify::verified(path),
        Command::Diff { first, second } => run_diff(&mut out, &open(first)?, &open(second)?),
    }
}

/// Whether a path is meant as one checkpoint rather than as a directory of them.
fn is_checkpoint(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    path.join(MANIFEST_FILE).exists() || name.is_some_and(|name| name.starts_with("checkpoint_"))
}

fn must_exist(path: &Path) -> anyhow::Result<()> {
    if !path.is_dir() {
        bail!("{} is not a directory", path.display());
    }
    Ok(())
}

/// The checkpoint that a path means.
fn open(path: &Path) -> anyhow::Result<Checkpoint> {
    must_exist(path)?;
    if is_checkpoint(path) {
        return Ok(Checkpoint::open(path)?);
    }
    let newest = CheckpointDir::open(path).newest_complete()?;
    let newest =
        newest.with_context(|| format!("{} holds no complete checkpoint", path.display()))?;
    Ok(Checkpoint::open(newest.path)?)
}

fn run_list(out: &mut impl Write, dir: &Path) -> anyhow::Result<Outcome> {
    must_exist(dir)?;
    let entries = CheckpointDir::open(dir).list()?;
    if entries.is_empty() {
        writeln!(out, "{} holds no checkpoints", dir.display())?;
        return Ok(Outcome::Done);
    }
    for entry in entries {
        let name = entry.path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into());
        match &entry.state {
            State::Complete(m) => writeln!(out, "{name}  complete  {}", summary(m))?,
            State::Incomplete(reason) => writeln!(out, "{name}  incomplete: {reason}")?,
        }
    }
    Ok(Outcome::Done)
}

/// The main things about a checkpoint in one line.
fn summary(m: &Manifest) -> String {
    let bytes: u64 = m.parts.iter().map(|part| part.bytes).sum();
    format!(
        "{}, mode {}, epoch {}, step {} ({} in all), {}, {}, {}, {}",
        kind_text(m.kind),
        m.mode,
        m.progress.epoch,
        m.progress.step,
        m.progress.global_step,
        plural(m.topology.servers, "server"),
        plural(m.topology.workers, "worker"),
        plural(m.parts.len(), "file"),
        size(bytes)
    )
}

fn kind_text(kind: Kind) -> String {
    match kind {
        Kind::Full => "full".to_string(),
        Kind::Delta { base } => format!("delta on {base}"),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

fn run_inspect(out: &mut impl Write, checkpoint: &Checkpoint) -> anyhow::Result<Outcome> {
    let m = checkpoint.manifest();
    writeln!(out, "{}: {}", checkpoint.path().display(), summary(m))?;
    writeln!(out, "program {}, training mode {}", m.program_hash, m.topology.mode)?;
    writeln!(out, "learning rate {} after {} steps", m.learning_rate.value, m.learning_rate.step)?;
    for w in &m.progress.workers {
        let (worker, epoch, batches, examples) = (w.worker, w.epoch, w.batches, w.examples);
        writeln!(out, "worker {worker}: epoch {epoch}, {batches} batches, {examples} examples")?;
    }
    for (name, value) in &m.rng {
        writeln!(out, "random state {name}: {value}")?;
    }
    for part in &m.parts {
        let what = match &part.content {
            Content::Tensors => "tensors".to_string(),
            Content::Bytes => "bytes".to_string(),
            Content::Table { table, rows, candidates, removed } => format!(
                "table {table}: {rows} rows, {candidates} waiting for admission, {removed} removed"
            ),
        };
        writeln!(out, "  {}  {}  {}  {what}", part.name, size(part.bytes), part.checksum)?;
    }
    for part in checkpoint.tensor_parts() {
        for (name, tensor) in checkpoint.tensors(&part.name)?.tensors {
            writeln!(out, "  {}: {name} {}{:?}", part.name, tensor.dtype(), tensor.shape())?;
        }
    }
    for name in checkpoint.tables() {
        let table = checkpoint.table(&name)?;
        let parts: Vec<String> = table.parts().iter().map(|(p, n)| format!("{p} {n}")).collect();
        writeln!(out, "  rows of {name}: {}, day {}", parts.join(", "), table.day())?;
    }
    Ok(Outcome::Done)
}

fn run_inspect_id(
    out: &mut impl Write,
    checkpoint: &Checkpoint,
    id: u64,
    table: Option<&str>,
) -> anyhow::Result<Outcome> {
    let names = table.map_or_else(|| checkpoint.tables(), |name| vec![name.to_string()]);
    if names.is_empty() {
        bail!("{} holds no tables", checkpoint.path().display());
    }
    let dir = CheckpointDir::open(checkpoint.path().parent().unwrap_or(Path::new(".")));
    for name in names {
        let table = checkpoint.table(&name)?;
        let mut buffer = BlockBuffer::default();
        match table.find(id, &mut buffer)? {
            None => writeln!(out, "table {name}: id {id} is not there")?,
            Some(row) => print_row(out, &table, &row)?,
        }
        for Moment { serial, event } in history(&dir, &name, id)? {
            writeln!(out, "  checkpoint_{serial}: {}", event_text(&event))?;
        }
    }
    Ok(Outcome::Done)
}

fn print_row(out: &mut impl Write, table: &SavedTable, row: &Row<'_>) -> io::Result<()> {
    let (name, id, days) = (table.name(), row.key, row.unseen_days);
    let mut words = match row.body {
        RowBody::Candidate { appearances } => {
            let seen = format!("seen {appearances} times, unseen for {days} days");
            return writeln!(out, "table {name}: id {id} waits for admission, {seen}");
        }
        RowBody::Base(words) | RowBody::Extended(words) => words,
    };
    let changed = if row.changed { "pushed" } else { "not pushed" };
    writeln!(
        out,
        "table {name}: id {id} is a row, unseen for {days} days, {changed} since it was last saved \
         for serving"
    )?;
    for (part, len) in table.parts() {
        let Some(values) = words.split_off(..*len) else {
            return writeln!(out, "  {part}: not yet earned");
        };
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        writeln!(out, "  {part}: {}", values.join(" "))?;
    }
    Ok(())
}

fn event_text(event: &Event) -> String {
    match event {
        Event::Absent => "not there".to_string(),
        Event::Appeared => "there for the first time among the kept checkpoints".to_string(),
        Event::Same => "the same as before".to_string(),
        Event::Changed => "changed".to_string(),
        Event::Gone => "gone".to_string(),
        Event::Unreadable(reason) => format!("cannot be read: {reason}"),
    }
}

fn run_diff(
    out: &mut impl Write,
    first: &Checkpoint,
    second: &Checkpoint,
) -> anyhow::Result<Outcome> {
    let diffs = diff(first, second)?;
    for variable in &diffs {
        writeln!(out, "{}: {}", variable.name, variable.change)?;
    }
    let equal = diffs.iter().all(|variable| variable.change == Change::Equal);
    Ok(if equal { Outcome::Done } else { Outcome::GoalMissed })
}
