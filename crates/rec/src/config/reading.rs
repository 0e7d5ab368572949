//! How data are read: which files, which format, which kind of dataset.

use std::time::Duration;

use regatta_data::Synthetic;

use super::formats::{FormatSpec, Formats};
use super::paddle_readers::format_of_command;
use super::resolver::Resolver;
use crate::HyperValue;
use crate::zoo::{Evaluation, Model};

/// How training or test data are read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The key of the directory, for messages.
    pub data_key: &'static str,
    /// A directory, or the URL of a synthetic source.
    pub data: Option<String>,
    /// Format of the files; a synthetic source needs none.
    pub format: Option<FormatSpec>,
    /// The kind of dataset.
    pub reader: Reader,
    /// Shell command that files go through.
    pub pipe_command: Option<PipeCommand>,
    /// Whether one of PaddleRec's scripts was named that is built in.
    pub builtin: bool,
    /// The key of the batch size, for messages.
    pub batch_key: &'static str,
    /// Examples per batch.
    pub batch_size: Option<usize>,
    /// Leave out an incomplete last batch.
    pub drop_last: bool,
    /// Keep it all the same if there is no complete one: nobody has written `drop_last`.
    pub keep_only_batch: bool,
    /// Malformed lines that may be skipped per data pass.
    pub max_bad_lines: u64,
    /// What shuffles and samples follow from.
    pub seed: u64,
}

impl Reading {
    /// The same data, all of them and in their order, however they are read otherwise.
    pub fn in_order(&self) -> Reading {
        Reading { reader: Reader::Loader { shuffle_buffer: 0 }, drop_last: false, ..self.clone() }
    }
}

/// A shell command that files go through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipeCommand {
    /// As written.
    pub text: String,
    /// How long it may write nothing; `None` waits for ever.
    pub timeout: Option<Duration>,
}

/// Kinds of datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// One thread, in file order, with a shuffle buffer of that many records.
    Loader {
        /// Records in the buffer; 0 keeps the order.
        shuffle_buffer: usize,
    },
    /// Several threads, as batches get ready.
    Queue {
        /// Threads that read files.
        threads: usize,
    },
    /// All records in memory.
    Memory {
        /// Threads that load files.
        threads: usize,
        /// A new order in every epoch.
        shuffle: bool,
    },
}

/// How training data are read.
pub(super) fn train_reading(
    r: &mut Resolver,
    formats: &Formats,
    thread_num: usize,
    seed: u64,
) -> Reading {
    let data = r.text("runner.train_data_dir");
    let kind = r.text("runner.reader_type").unwrap_or_default();
    let threads = r.int("runner.reader_threads").map_or(thread_num, |n| n as usize);
    let shuffle_buffer = r.int("runner.shuffle_buffer").unwrap_or_default() as usize;
    let local_shuffle = r.bool("runner.local_shuffle").unwrap_or_default();
    let reader = reader(&kind, threads, shuffle_buffer, local_shuffle);
    if shuffle_buffer > 0 && (!matches!(reader, Reader::Loader { .. }) || kind == "RecDataset") {
        r.problem("runner.shuffle_buffer", format!("{kind} has no shuffle buffer"));
    }
    if local_shuffle && !matches!(reader, Reader::Memory { .. }) {
        r.problem("runner.local_shuffle", format!("{kind} does not hold the data in memory"));
    }
    let command = resolve_pipe(r);
    let builtin = builtin_format(r, formats, reader, (&data, &command));
    let command = command.filter(|_| builtin.is_none());
    let used = command.is_some() && has_pipe(reader, data.as_deref());
    if !used && builtin.is_none() {
        let reason = match &command {
            Some(_) if data.as_deref().is_some_and(Synthetic::is_url) => "the data are synthetic",
            Some(_) => "only QueueDataset and InmemoryDataset read through a command",
            None => "runner.pipe_command is not set",
        };
        r.unused(PIPE, reason);
        r.unused(PIPE_TIMEOUT, reason);
    }
    let pipe_command = command.filter(|_| used);
    let format = match builtin {
        Some(name) => formats.spec(r, name, false),
        None => format_of(r, formats, "runner.train_reader_path", (&data, &pipe_command), false),
    };
    let loader = matches!(reader, Reader::Loader { .. });
    let written = match r.value("runner.drop_last") {
        Some(HyperValue::Bool(drop)) => Some(drop),
        _ => None,
    };
    let drop_last = written.unwrap_or(loader);
    Reading {
        data_key: "runner.train_data_dir",
        data,
        format,
        reader,
        pipe_command,
        builtin: builtin.is_some(),
        batch_key: "runner.train_batch_size",
        batch_size: r.int("runner.train_batch_size").map(|n| n as usize),
        drop_last,
        keep_only_batch: written.is_none(),
        max_bad_lines: r.int("runner.max_bad_lines").unwrap_or_default(),
        seed,
    }
}

/// How test data are read.
pub(super) fn test_reading(
    r: &mut Resolver,
    formats: &Formats,
    model: &Model,
    train: &Reading,
) -> Reading {
    let data = r.text("runner.test_data_dir");
    let kind = r.text("runner.infer_reader_type").unwrap_or_default();
    let threads = match train.reader {
        Reader::Queue { threads } | Reader::Memory { threads, .. } => threads,
        Reader::Loader { .. } => 1,
    };
    let reader = reader(&kind, threads, 0, false);
    let analogy = model.evaluation == Evaluation::Analogy;
    let pipe_command = train.pipe_command.clone().filter(|_| has_pipe(reader, data.as_deref()));
    let format = format_of(r, formats, "runner.infer_reader_path", (&data, &pipe_command), analogy);
    // The same files are of the same format, whatever the other reader is called.
    let same = train.builtin && data == train.data;
    let format = if same { train.format.clone() } else { format };
    let batch_size = r.int("runner.infer_batch_size").map(|n| n as usize);
    Reading {
        data_key: "runner.test_data_dir",
        data,
        format,
        reader,
        pipe_command,
        builtin: same,
        batch_key: "runner.infer_batch_size",
        batch_size: batch_size.or(train.batch_size),
        drop_last: false,
        keep_only_batch: false,
        max_bad_lines: train.max_bad_lines,
        seed: train.seed,
    }
}

fn reader(kind: &str, threads: usize, shuffle_buffer: usize, shuffle: bool) -> Reader {
    match kind {
        "QueueDataset" => Reader::Queue { threads },
        "InmemoryDataset" => Reader::Memory { threads, shuffle },
        _ => Reader::Loader { shuffle_buffer },
    }
}

/// The format of the files. A command prints MultiSlot text unless `data_format` says otherwise.
fn format_of(
    r: &mut Resolver,
    formats: &Formats,
    reader_key: &str,
    (data, command): (&Option<String>, &Option<PipeCommand>),
    analogy: bool,
) -> Option<FormatSpec> {
    // Synthetic examples are records already.
    let reason = match command {
        _ if data.as_deref().is_some_and(Synthetic::is_url) => "the data are synthetic",
        Some(_) => "runner.pipe_command reads the files",
        None => return formats.of(r, reader_key, analogy),
    };
    if r.text(reader_key).is_some() {
        r.unused(reader_key, reason);
    }
    let name = formats.chosen.clone().unwrap_or_else(|| "multislot".into());
    command.as_ref().and_then(|_| formats.spec(r, &name, analogy))
}

/// The format behind a script of PaddleRec's that is named as the command and is not there.
fn builtin_format(
    r: &mut Resolver,
    formats: &Formats,
    reader: Reader,
    (data, command): (&Option<String>, &Option<PipeCommand>),
) -> Option<&'static str> {
    let command = command.as_ref().filter(|_| has_pipe(reader, data.as_deref()))?;
    let chosen = formats.chosen.is_some();
    let name = format_of_command(formats.model, &command.text, &r.dir).filter(|_| !chosen)?;
    r.unused(PIPE, "the script is not in this folder; the reader of that name is built in");
    r.unused(PIPE_TIMEOUT, "the reader is built in");
    let key = "runner.train_reader_path";
    if r.text(key).is_some() {
        r.unused(key, "runner.pipe_command names the reader");
    }
    Some(name)
}

/// Whether files go through a command: only those of the queue and in-memory readers do.
fn has_pipe(reader: Reader, data: Option<&str>) -> bool {
    !matches!(reader, Reader::Loader { .. }) && !data.is_some_and(Synthetic::is_url)
}

const PIPE: &str = "runner.pipe_command";
const PIPE_TIMEOUT: &str = "runner.pipe_timeout";

fn resolve_pipe(r: &mut Resolver) -> Option<PipeCommand> {
    let (text, seconds) = (r.text(PIPE), r.int(PIPE_TIMEOUT).unwrap_or_default());
    let timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
    text.map(|text| PipeCommand { text, timeout })
}
