//! One start of a command: its output and its folders are watched, and faults are dealt out.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::count::{self, BATCH, EXAMPLES};
use crate::plan::{Blow, Fault, Job, Mode, Moment, Shape, Start};
use crate::system::{self, MARK};

/// A start that takes longer, stops aside, hangs.
const LIMIT: Duration = Duration::from_secs(150);
/// How often folders are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// `regatta train` for a job in its folder.
pub(crate) fn command(job: &Job, shape: Shape, data: &Path, dir: &Path) -> Command {
    let config = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/rank/logistic_regression/config.yaml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    for name in regatta_cluster::names::PLACE {
        command.env_remove(name);
    }
    command.arg("train").arg("-m").arg(config).arg("-o");
    let data = data.join(if job.divides_records() { count::ONE } else { count::SEVERAL });
    command.arg(format!("runner.train_data_dir={}", data.display()));
    command.arg(format!("runner.model_save_path={}", dir.join("model").display()));
    command.args(["runner.data_format=multislot", "runner.reader_type=QueueDataset"]);
    command.arg("runner.print_interval=10");
    if !job.divides_records() {
        command.arg("runner.split_file_list=True");
    }
    command.arg(format!("runner.train_batch_size={BATCH}"));
    command.arg(format!("runner.epochs={}", job.mode.epochs()));
    command.args(["hyper_parameters.sparse_inputs_slots=2", "hyper_parameters.dense_input_dim=1"]);
    command.arg(format!("hyper_parameters.sparse_feature_number={}", EXAMPLES + 1));
    if job.mode.is_exact() {
        // With states and statistics there is more that could differ.
        command.arg("hyper_parameters.optimizer.class=adam");
        command.arg("hyper_parameters.optimizer.learning_rate=0.01");
    } else {
        command.arg("hyper_parameters.optimizer.class=sgd");
        command.arg("hyper_parameters.optimizer.learning_rate=0.02");
        command.arg("runner.use_auc=False");
    }
    match job.mode {
        Mode::Geo => _ = command.arg("runner.geo_step=4"),
        Mode::Bounded => _ = command.arg("runner.staleness=3"),
        _ => {}
    }
    match job.mode {
        Mode::Local => {}
        Mode::Ranks => _ = command.arg("--ranks").arg(shape.workers.to_string()),
        mode => {
            command.arg(format!("runner.sync_mode={}", mode.name()));
            command.arg("--servers").arg(shape.servers.to_string());
            command.arg("--workers").arg(shape.workers.to_string());
        }
    }
    if job.has_checkpoints {
        command.arg("--checkpoint-dir").arg(dir.join("checkpoints"));
        command.args(["--checkpoint-steps", "50"]);
        command.arg("--checkpoint-full-every").arg(job.full_every.to_string());
    }
    if job.max_restart > 0 {
        command.arg("--max-restart").arg(job.max_restart.to_string());
    }
    command
}

/// How a start of the command ended.
pub(crate) struct Ended {
    /// The exit code; 128 and the number of the signal that ended it; nothing if it did not end.
    pub(crate) code: Option<i32>,
    /// Faults that came to their moment.
    pub(crate) dealt: usize,
    pub(crate) has_panicked: bool,
    pub(crate) log: PathBuf,
}

/// Starts the command, deals out the faults, and waits for its end.
pub(crate) fn run(
    job: &Job,
    start: &Start,
    data: &Path,
    dir: &Path,
    mark: &str,
    number: usize,
) -> Ended {
    let mut command = command(job, start.shape, data, dir);
    let log = dir.join(format!("start-{number}.log"));
    let [tmp, here] = ["tmp", "here"].map(|name| dir.join(name));
    std::fs::create_dir_all(&tmp).unwrap();
    std::fs::create_dir_all(&here).unwrap();
    command.env("TMPDIR", tmp).current_dir(here).env(MARK, mark).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = lines(&mut child);
    let mut watch = Watch {
        child,
        lines,
        log: File::create(&log).unwrap(),
        dir,
        last_epoch: job.mode.epochs() - 1,
        faults: start.faults.iter().copied().collect(),
        seen: Seen::default(),
        stopped: Vec::new(),
        has_panicked: false,
    };
    let stops = start.faults.iter().map(|fault| match fault.blow {
        Blow::Stop(time) => time,
        _ => Duration::ZERO,
    });
    let code = watch.until_end(Instant::now() + LIMIT + stops.sum());
    if code.is_none() {
        system::end_processes(mark);
        let _ = watch.child.wait();
    }
    let dealt = start.faults.len() - watch.faults.len();
    Ended { code, dealt, has_panicked: watch.has_panicked, log }
}

/// Lines of both outputs as they come.
fn lines(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = sync_channel(10_000);
    let streams: [Box<dyn Read + Send>; 2] =
        [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    for stream in streams {
        let sender = sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
    }
    lines
}

/// What has been seen since the last fault.
#[derive(Default)]
struct Seen {
    any_line: bool,
    batches: usize,
    checkpoints: BTreeSet<PathBuf>,
    is_writing: bool,
    is_saving: bool,
    last_epoch_done: bool,
}

struct Watch<'a> {
    child: Child,
    lines: Receiver<String>,
    log: File,
    dir: &'a Path,
    last_epoch: usize,
    faults: VecDeque<Fault>,
    seen: Seen,
    /// Stopped processes, and when they continue.
    stopped: Vec<(Instant, u32)>,
    has_panicked: bool,
}

impl Watch<'_> {
    fn until_end(&mut self, limit: Instant) -> Option<i32> {
        let mut are_closed = false;
        loop {
            match self.lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => self.line(&line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => are_closed = true,
            }
            self.look();
            self.deal();
            self.wake();
            if are_closed {
                std::thread::sleep(LOOK_EVERY);
            }
            // Outputs stay open while a process of the job lives; that is looked at later.
            if let Some(status) = self.child.try_wait().unwrap() {
                while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(200)) {
                    self.line(&line);
                }
                self.stopped.drain(..).for_each(|(_, pid)| system::signal(pid, Signal::CONT));
                return status.code().or_else(|| Some(128 + status.signal()?));
            }
            if Instant::now() > limit {
                return None;
            }
        }
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.log, "{line}");
        self.has_panicked |= line.contains("panicked at");
        let seen = &mut self.seen;
        seen.any_line |= line.contains("listening on") || line.contains("key  ");
        seen.batches += usize::from(line.contains("batch_id: "));
        seen.last_epoch_done |= line.contains(&format!("epoch: {} done", self.last_epoch));
    }

    fn look(&mut self) {
        match self.faults.front().map(|fault| fault.moment) {
            Some(Moment::Checkpoint(_)) => {
                let drafts = system::hidden(&self.dir.join("checkpoints"));
                self.seen.is_writing = !drafts.is_empty();
                self.seen.checkpoints.extend(drafts);
            }
            Some(Moment::Save) => {
                let model = self.dir.join("model");
                // The folder of an epoch is made under a hidden name, or the files in it are.
                let epochs = system::entries(&model);
                let mut folders = epochs.iter().map(|p| p.as_path()).chain([model.as_path()]);
                self.seen.is_saving = folders.any(|folder| !system::hidden(folder).is_empty());
            }
            _ => {}
        }
    }

    fn is_time(&self, moment: Moment) -> bool {
        let seen = &self.seen;
        match moment {
            Moment::Start => true,
            Moment::Rendezvous => seen.any_line,
            Moment::Middle(n) => seen.batches >= n,
            Moment::Checkpoint(n) => seen.is_writing && seen.checkpoints.len() >= n,
            Moment::Save => seen.is_saving,
            Moment::Shutdown => seen.last_epoch_done,
        }
    }

    /// Deals out the next fault if its moment has come and its process is there.
    fn deal(&mut self) {
        let Some(fault) = self.faults.front().filter(|fault| self.is_time(fault.moment)) else {
            return;
        };
        let Some(pid) = system::find(self.child.id(), fault.target) else { return };
        let _ = writeln!(self.log, "=== {fault}: process {pid}");
        match fault.blow {
            Blow::Kill => system::signal(pid, Signal::KILL),
            Blow::Term => system::signal(pid, Signal::TERM),
            Blow::Int => system::signal(pid, Signal::INT),
            Blow::Stop(time) => {
                system::signal(pid, Signal::STOP);
                self.stopped.push((Instant::now() + time, pid));
            }
        }
        self.faults.pop_front();
        self.seen = Seen::default();
    }

    /// Continues processes that were stopped long enough.
    fn wake(&mut self) {
        let now = Instant::now();
        self.stopped.retain(|(at, pid)| {
            if *at <= now {
                system::signal(*pid, Signal::CONT);
            }
            *at > now
        });
    }
}
