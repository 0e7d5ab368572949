//! What happens to a job, from a seed: its kind and size, and which faults it meets when.

use std::fmt;
use std::time::Duration;

use regatta_tensor::Rng;

/// How the processes of a job train together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Async,
    Sync,
    Geo,
    HalfAsync,
    Ranks,
    Bounded,
    Local,
}

pub(crate) const MODES: [Mode; 7] =
    [Mode::Async, Mode::Sync, Mode::Geo, Mode::HalfAsync, Mode::Ranks, Mode::Bounded, Mode::Local];

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Async => "async",
            Mode::Sync => "sync",
            Mode::Geo => "geo",
            Mode::HalfAsync => "half_async",
            Mode::Ranks => "ranks",
            Mode::Bounded => "bounded",
            Mode::Local => "local",
        }
    }

    /// Whether a fault must not change a single bit.
    pub(crate) fn is_exact(self) -> bool {
        matches!(self, Mode::Sync | Mode::Ranks | Mode::Local)
    }

    /// Enough for a run of a second or two.
    pub(crate) fn epochs(self) -> usize {
        if self == Mode::Geo { 8 } else { 3 }
    }
}

/// The number of processes; ranks are workers here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) servers: usize,
    pub(crate) workers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The process that the user has started, the only one in local mode.
    Launcher,
    Guardian,
    Server(usize),
    Worker(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    Kill,
    Term,
    Int,
    /// Stopped, and continued after this time.
    Stop(Duration),
}

/// When a fault comes: what is seen in the output or in the folders of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The process is there.
    Start,
    /// A server listens, or a process has said something; no batch is done.
    Rendezvous,
    /// This many lines of batches were printed.
    Middle(usize),
    /// This many checkpoints were begun, and the last of them is being written.
    Checkpoint(usize),
    /// A model is being saved.
    Save,
    /// The last epoch is done.
    Shutdown,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) target: Target,
    pub(crate) blow: Blow,
    pub(crate) moment: Moment,
}

/// One start of the command, and the faults that it meets one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) shape: Shape,
    pub(crate) faults: Vec<Fault>,
}

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) index: usize,
    pub(crate) mode: Mode,
    pub(crate) has_checkpoints: bool,
    /// Every n-th checkpoint is full.
    pub(crate) full_every: usize,
    pub(crate) max_restart: usize,
    /// The last one has no faults; it is repeated if need be.
    pub(crate) starts: Vec<Start>,
}

impl Job {
    /// Every second job has one file, which workers divide record by record. With another number of
    /// workers its epoch would begin again, and what is exact depends on the division.
    pub(crate) fn divides_records(&self) -> bool {
        let mut workers = self.starts.iter().map(|start| start.shape.workers);
        let first = workers.next();
        let same = workers.all(|n| Some(n) == first);
        !self.index.is_multiple_of(2) && same && !self.mode.is_exact()
    }
}

/// How hard the faults are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// For every build: stops of 3 s, one fault in each start.
    Short,
    /// Stops of up to 30 s, several faults in a row.
    Whole,
}

/// Numbers that follow from the seed and the job.
struct Draw {
    rng: Rng,
    position: u64,
}

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.position += 1;
        (self.rng.u64(self.position) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

impl Job {
    pub(crate) fn new(seed: u64, index: usize, part: Part) -> Job {
        if part == Part::Whole && index < 2 * TAKING_OVER.len() {
            return Job::with_stalled_worker(index);
        }
        let mut draw = Draw { rng: Rng::new(seed, index as u64), position: 0 };
        let mode = MODES[index % MODES.len()];
        let is_alone = mode == Mode::Local;
        let has_checkpoints = !draw.one_in(6);
        let full_every =
            if has_checkpoints && !matches!(mode, Mode::Local | Mode::Ranks) && draw.one_in(3) {
                3
            } else {
                1
            };
        let max_restart = if has_checkpoints && !is_alone && draw.one_in(2) { 2 } else { 0 };
        let mut shape = Shape { servers: 1 + draw.below(2), workers: 1 + draw.below(3) };
        if is_alone {
            shape = Shape { servers: 0, workers: 1 };
        } else if mode == Mode::Ranks {
            shape = Shape { servers: 0, workers: 2 + draw.below(2) };
        }
        let n_faulty = 1 + if part == Part::Whole { draw.below(3) } else { 0 };
        let mut starts = Vec::new();
        for i in 0..=n_faulty {
            if i > 0 && draw.one_in(3) {
                shape = resized(mode, shape, &mut draw);
            }
            // A job that restarts itself or continues without a worker can be hit again.
            let n_faults = match (i == n_faulty, part) {
                (true, _) => 0,
                (false, Part::Whole) => 1 + draw.below(2),
                (false, Part::Short) => 1,
            };
            let faults =
                (0..n_faults).map(|_| fault(mode, shape, has_checkpoints, part, &mut draw));
            starts.push(Start { shape, faults: faults.collect() });
        }
        Job { index, mode, has_checkpoints, full_every, max_restart, starts }
    }
}

/// Modes whose workers take over the data of a lost one.
const TAKING_OVER: [Mode; 3] = [Mode::Async, Mode::HalfAsync, Mode::Geo];

impl Job {
    /// A worker stands still for longer than servers wait for it, and wakes up again.
    fn with_stalled_worker(index: usize) -> Job {
        let shape = Shape { servers: 2, workers: 2 };
        let stall = Fault {
            target: Target::Worker(1),
            blow: Blow::Stop(Duration::from_secs(30)),
            moment: Moment::Middle(5),
        };
        Job {
            index,
            mode: TAKING_OVER[index % TAKING_OVER.len()],
            has_checkpoints: true,
            full_every: 1,
            max_restart: if index < TAKING_OVER.len() { 0 } else { 2 },
            starts: [vec![stall], vec![]].map(|faults| Start { shape, faults }).into(),
        }
    }
}

/// Other numbers of processes where a job can resume with them, and the result can be compared.
fn resized(mode: Mode, shape: Shape, draw: &mut Draw) -> Shape {
    match mode {
        Mode::Local | Mode::Ranks => shape,
        Mode::Sync => Shape { servers: 1 + draw.below(3), ..shape },
        _ => Shape { servers: 1 + draw.below(3), workers: 1 + draw.below(3) },
    }
}

fn fault(mode: Mode, shape: Shape, has_checkpoints: bool, part: Part, draw: &mut Draw) -> Fault {
    let target = match draw.below(10) {
        _ if mode == Mode::Local => Target::Launcher,
        0 => Target::Guardian,
        1 | 2 => Target::Launcher,
        3..=5 if shape.servers > 0 => Target::Server(draw.below(shape.servers)),
        _ => Target::Worker(draw.below(shape.workers)),
    };
    let seconds = if part == Part::Whole { 3 + draw.below(28) } else { 3 };
    let blow = match draw.below(10) {
        _ if target == Target::Guardian => Blow::Kill,
        0..=4 => Blow::Kill,
        5 => Blow::Term,
        6 => Blow::Int,
        _ => Blow::Stop(Duration::from_secs(seconds as u64)),
    };
    let moment = match draw.below(10) {
        0 => Moment::Start,
        1 => Moment::Rendezvous,
        2 | 3 if has_checkpoints => Moment::Checkpoint(1 + draw.below(6)),
        4 => Moment::Save,
        5 => Moment::Shutdown,
        _ => Moment::Middle(1 + draw.below(120)),
    };
    Fault { target, blow, moment }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.blow {
            Blow::Kill => write!(f, "KILL ")?,
            Blow::Term => write!(f, "TERM ")?,
            Blow::Int => write!(f, "INT ")?,
            Blow::Stop(time) => write!(f, "STOP {} s ", time.as_secs())?,
        }
        match self.target {
            Target::Launcher => write!(f, "launcher ")?,
            Target::Guardian => write!(f, "guardian ")?,
            Target::Server(i) => write!(f, "server {i} ")?,
            Target::Worker(i) => write!(f, "worker {i} ")?,
        }
        match self.moment {
            Moment::Start => write!(f, "at start-up"),
            Moment::Rendezvous => write!(f, "at rendezvous"),
            Moment::Middle(n) => write!(f, "after {n} lines"),
            Moment::Checkpoint(n) => write!(f, "in checkpoint {n}"),
            Moment::Save => write!(f, "while saving"),
            Moment::Shutdown => write!(f, "at shutdown"),
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} {}", self.index, self.mode.name())?;
        match (self.has_checkpoints, self.full_every) {
            (false, _) => write!(f, ", no checkpoints")?,
            (true, 1) => {}
            (true, _) => write!(f, ", deltas")?,
        }
        if self.max_restart > 0 {
            write!(f, ", --max-restart {}", self.max_restart)?;
        }
        for (i, start) in self.starts.iter().enumerate() {
            let Shape { servers, workers } = start.shape;
            if i == 0 || self.starts[i - 1].shape != start.shape {
                write!(f, "; {servers}+{workers}")?;
            } else if !start.faults.is_empty() {
                write!(f, "; again")?;
            }
            let faults: Vec<String> = start.faults.iter().map(Fault::to_string).collect();
            if !faults.is_empty() {
                write!(f, ": {}", faults.join(", "))?;
            }
        }
        Ok(())
    }
}
