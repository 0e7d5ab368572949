//! How data are read: which files, which format, which kind of dataset.

use regatta_data::Synthetic;

use super::formats::{FormatSpec, Formats};
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
    pub pipe_command: Option<String>,
    /// The key of the batch size, for messages.
    pub batch_key: &'static str,
    /// Examples per batch.
    pub batch_size: Option<usize>,
    /// Leave out an incomplete last batch.
    pub drop_last: bool,
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
    let (format, pipe_command) =
        format_and_pipe(r, formats, "runner.train_reader_path", data.as_deref(), reader, false);
    let loader = matches!(reader, Reader::Loader { .. });
    let drop_last = r.bool("runner.drop_last").unwrap_or_else(|| {
        r.derive_value("runner.drop_last", HyperValue::Bool(loader));
        loader
    });
    Reading {
        data_key: "runner.train_data_dir",
        data,
        format,
        reader,
        pipe_command,
        batch_key: "runner.train_batch_size",
        batch_size: r.int("runner.train_batch_size").map(|n| n as usize),
        drop_last,
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
    let (format, pipe_command) =
        format_and_pipe(r, formats, "runner.infer_reader_path", data.as_deref(), reader, analogy);
    let batch_size = r.int("runner.infer_batch_size").map(|n| n as usize);
    Reading {
        data_key: "runner.test_data_dir",
        data,
        format,
        reader,
        pipe_command,
        batch_key: "runner.infer_batch_size",
        batch_size: batch_size.or(train.batch_size),
        drop_last: false,
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

/// The format of the files and the command that they go through. Commands belong to the queue and
/// in-memory readers, and print MultiSlot text unless `data_format` says otherwise.
fn format_and_pipe(
    r: &mut Resolver,
    formats: &Formats,
    reader_key: &str,
    data: Option<&str>,
    reader: Reader,
    analogy: bool,
) -> (Option<FormatSpec>, Option<String>) {
    const PIPE: &str = "runner.pipe_command";
    let training = reader_key == "runner.train_reader_path";
    // The key may have been taken for the training data already.
    let taken = r.settings.iter().find(|s| s.key == PIPE).map(|s| s.value.clone());
    let command = match taken {
        Some(HyperValue::Str(command)) => Some(command),
        _ => r.text(PIPE),
    };
    let piped = !matches!(reader, Reader::Loader { .. });
    if data.is_some_and(Synthetic::is_url) {
        // Synthetic examples are records already.
        if r.text(reader_key).is_some() {
            r.unused(reader_key, "the data are synthetic");
        }
        if training {
            r.unused(PIPE, "the data are synthetic");
        }
        return (None, None);
    }
    match command {
        Some(command) if piped => {
            if r.text(reader_key).is_some() {
                r.unused(reader_key, "runner.pipe_command reads the files");
            }
            let name = formats.chosen.clone().unwrap_or_else(|| "multislot".into());
            (formats.spec(r, &name, analogy), Some(command))
        }
        command => {
            if command.is_some() && training {
                let reason = "only QueueDataset and InmemoryDataset read through a command";
                r.unused(PIPE, reason);
            }
            (formats.of(r, reader_key, analogy), None)
        }
    }
}
