//! Data that arrive while training: the keys of training by days, and `runner.online.*`.

use std::time::Duration;

use regatta_data::Synthetic;
use std::path::Path;

use regatta_data::arrivals::{Days, DaysOptions, End, MessagesOptions, TailOptions, is_messages};

use super::Reading;
use super::keys::TAIL;
use super::resolver::Resolver;

/// Data that arrive while training.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// Days, each divided into passes.
    Days(DayTraining),
    /// Files or messages, whenever they come.
    Stream(Streaming),
}

/// Training by days, as PaddleRec's online trainer does it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayTraining {
    /// Which days, and how they are divided.
    pub options: DaysOptions,
    /// Data passes of a day.
    pub passes_per_day: u32,
    /// A whole model after each N-th pass of a day.
    pub checkpoint_per_pass: u32,
    /// The changes of the model after each N-th pass of a day, if at all.
    pub save_delta_frequency: Option<u32>,
    /// A model to serve before the first pass.
    pub save_first_base: bool,
}

/// Training on files or messages whenever they come.
#[derive(Debug, Clone, PartialEq)]
pub struct Streaming {
    /// Where they come from.
    pub source: StreamSource,
    /// A model is saved after this many examples.
    pub save_examples: Option<u64>,
    /// Also when the last one is this old.
    pub save_every: Duration,
    /// Newest saved models that are kept; all if not said.
    pub keep_models: Option<usize>,
}

/// Where files or messages come from.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamSource {
    /// Files that are moved into a directory.
    Tail(TailOptions),
    /// Messages of Redis or Kafka.
    Messages(MessagesOptions),
}

const START_DAY: &str = "runner.start_day";
/// Keys of training by days.
const OF_DAYS: [&str; 9] = [
    "runner.end_day",
    "runner.split_interval",
    "runner.split_per_pass",
    "runner.checkpoint_per_pass",
    "runner.save_delta_frequency",
    "runner.save_first_base",
    "runner.data_donefile",
    "runner.data_sleep_second",
    "runner.data_wait_limit",
];
/// Keys of other data that arrive, of all kinds and of one.
const OF_STREAMS: [&str; 5] =
    ["idle_seconds", "stop_file", "save_examples", "save_seconds", "keep_models"];
const OF_TAIL: [&str; 1] = ["files_per_pass"];
const OF_MESSAGES: [&str; 2] = ["messages_per_pass", "linger_seconds"];

fn online(name: &str) -> String {
    format!("runner.online.{name}")
}

/// What arrives, if anything does. The training data are then read without leaving any out.
pub(super) fn resolve_arrivals(r: &mut Resolver, train: &mut Reading) -> Option<Arrivals> {
    let start = r.text(START_DAY).filter(|day| !day.is_empty());
    let is_stream = |data: &String| data.starts_with(TAIL) || is_messages(Path::new(data));
    let stream = train.data.clone().filter(is_stream);
    let arrivals = match (start, stream) {
        (None, None) => None,
        (Some(first), None) => resolve_days(r, train, first).map(Arrivals::Days),
        (None, Some(url)) => Some(Arrivals::Stream(resolve_stream(r, &url))),
        (Some(_), Some(url)) => {
            r.problem(START_DAY, format!("days are folders of a directory, not {url}"));
            None
        }
    };
    if !matches!(arrivals, Some(Arrivals::Days(_))) {
        leave_out(r, OF_DAYS.iter().map(|key| key.to_string()), "runner.start_day is not set");
    }
    let source = match &arrivals {
        Some(Arrivals::Stream(stream)) => Some(&stream.source),
        _ => None,
    };
    let mut unused = |names: &[&str], reason: &str| {
        leave_out(r, names.iter().map(|name| online(name)), reason);
    };
    if source.is_none() {
        unused(&OF_STREAMS, "runner.train_data_dir is no tail: and no stream of messages");
    }
    if !matches!(source, Some(StreamSource::Tail(_))) {
        unused(&OF_TAIL, "runner.train_data_dir is no tail:");
    }
    if !matches!(source, Some(StreamSource::Messages(_))) {
        unused(&OF_MESSAGES, "runner.train_data_dir is no stream of messages");
    }
    if arrivals.is_some() {
        check_reading(r, train);
    }
    arrivals
}

/// Checks what was written for keys, and leaves them out.
fn leave_out(r: &mut Resolver, keys: impl Iterator<Item = String>, reason: &str) {
    for key in keys {
        r.value(&key);
        r.unused(&key, reason);
    }
}

/// Every example is trained, also those of an incomplete batch: the next one comes with the next
/// data pass.
fn check_reading(r: &mut Resolver, train: &mut Reading) {
    if train.drop_last && !train.keep_only_batch {
        let reason =
            "True cannot be honoured: examples at the end of every data pass would be lost";
        r.problem("runner.drop_last", reason.into());
    }
    train.drop_last = false;
    if r.is_set("runner.validation.data_dir") {
        let reason = "cannot be honoured: epochs are judged, not data passes over data that arrive";
        r.problem("runner.validation.data_dir", reason.into());
    }
}

fn resolve_days(r: &mut Resolver, train: &Reading, first: String) -> Option<DayTraining> {
    let data = train.data.clone().unwrap_or_default();
    if data.is_empty() || Synthetic::is_url(&data) {
        let reason = "days are folders of runner.train_data_dir, which is no directory";
        r.problem(START_DAY, reason.into());
    }
    let last = r.text("runner.end_day").filter(|day| !day.is_empty()).unwrap_or_else(|| {
        r.problem("runner.end_day", "must be set for training by days".into());
        first.clone()
    });
    let mut int = |name: &str| r.int(&format!("runner.{name}")).unwrap_or_default() as u32;
    let (interval_minutes, intervals_per_pass) = (int("split_interval"), int("split_per_pass"));
    let checkpoint_per_pass = int("checkpoint_per_pass");
    let pause = Duration::from_secs(int("data_sleep_second").into());
    let limit = Some(Duration::from_secs(int("data_wait_limit").into()));
    let done_file = r.text("runner.data_donefile").filter(|name| !name.is_empty());
    let limit = limit.filter(|limit| !limit.is_zero());
    let options = DaysOptions {
        folder: data,
        first,
        last,
        interval_minutes,
        intervals_per_pass,
        done_file,
        pause,
        limit,
    };
    let save_delta_frequency = r.int("runner.save_delta_frequency").map(|n| n as u32);
    let save_first_base = r.bool("runner.save_first_base").unwrap_or_default();
    match Days::new(options.clone(), &regatta_data::Stores::new()) {
        Ok(days) => Some(DayTraining {
            options,
            passes_per_day: days.passes_per_day(),
            checkpoint_per_pass,
            save_delta_frequency,
            save_first_base,
        }),
        Err(e) => {
            r.problem(START_DAY, e.to_string());
            None
        }
    }
}

fn resolve_stream(r: &mut Resolver, url: &str) -> Streaming {
    let end = End { idle: seconds(r, "idle_seconds"), stop_file: r.path(&online("stop_file")) };
    let source = match url.strip_prefix(TAIL) {
        Some(folder) => {
            let folder = folder.to_string();
            let files_per_pass = r.int(&online("files_per_pass")).unwrap_or_default() as usize;
            StreamSource::Tail(TailOptions { folder, files_per_pass, end })
        }
        None => {
            let per_pass = r.int(&online("messages_per_pass")).unwrap_or_default();
            let linger = seconds(r, "linger_seconds").unwrap_or_default();
            let address = url.to_string();
            StreamSource::Messages(MessagesOptions { address, per_pass, linger, end })
        }
    };
    Streaming {
        source,
        save_examples: r.int(&online("save_examples")),
        save_every: seconds(r, "save_seconds").unwrap_or_default(),
        keep_models: r.int(&online("keep_models")).map(|n| n as usize),
    }
}

fn seconds(r: &mut Resolver, name: &str) -> Option<Duration> {
    let seconds = r.float(&online(name))?;
    let duration = Duration::try_from_secs_f64(seconds);
    if duration.is_err() {
        r.problem(&online(name), format!("{seconds} is no number of seconds"));
    }
    duration.ok()
}
