//! Jobs of all modes that meet faults, and must lose nothing.
//!
//! Every job is started as a user would start it. While it trains, its processes are killed or
//! stopped at moments that follow from a seed; then the same command is given again until it says
//! that all is done. After that every example is counted (`count`), and what is left of the job is
//! looked for.
//!
//! `cargo test -p regatta --test chaos` runs some jobs. The whole takes longer:
//!
//! ```sh
//! REGATTA_CHAOS_JOBS=200 REGATTA_CHAOS_SEED=1 cargo test --release -p regatta --test chaos -- --nocapture
//! ```

mod count;
mod plan;
mod run;
mod system;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use count::{Counts, Reference, Values, difference, read_values};
use plan::{Job, MODES, Mode, Part, Shape, Start};
use regatta_cluster::Env;

/// Starts without faults after which a job should be done.
const CLEAN_STARTS: usize = 2;
/// Jobs of every build, all modes among them, and a seed that gives them different faults.
const SHORT_JOBS: usize = 10;
const SEED: usize = 184;

/// What the variables say.
struct Settings {
    part: Part,
    seed: u64,
    jobs: Vec<usize>,
    at_once: usize,
}

impl Settings {
    fn new(env: &Env) -> Settings {
        let number = |name: &str| env.parse::<usize>(name, "a number").unwrap();
        let jobs = number("REGATTA_CHAOS_JOBS");
        let only = number("REGATTA_CHAOS_ONLY");
        Settings {
            part: if jobs.is_some() { Part::Whole } else { Part::Short },
            seed: number("REGATTA_CHAOS_SEED").unwrap_or(SEED) as u64,
            jobs: only.map_or_else(|| (0..jobs.unwrap_or(SHORT_JOBS)).collect(), |i| vec![i]),
            at_once: number("REGATTA_CHAOS_AT_ONCE").unwrap_or(4),
        }
    }

    /// The command that repeats one job.
    fn repeat(&self, job: usize) -> String {
        let whole = match self.part {
            Part::Whole => "REGATTA_CHAOS_JOBS=1 ",
            Part::Short => "",
        };
        let release = if cfg!(debug_assertions) { "" } else { "--release " };
        format!(
            "{whole}REGATTA_CHAOS_SEED={} REGATTA_CHAOS_ONLY={job} \
             cargo test {release}-p regatta --test chaos -- --nocapture",
            self.seed
        )
    }
}

/// Values that the first job that needs them computes, and the others wait for.
type SharedValues = Arc<OnceLock<Values>>;

/// What jobs are compared with; made when it is first needed.
struct Expected {
    dir: PathBuf,
    data: PathBuf,
    reference: OnceLock<Reference>,
    /// By mode and number of workers.
    exact: Mutex<BTreeMap<(Mode, usize), SharedValues>>,
}

impl Expected {
    fn new(dir: &Path) -> Expected {
        let data = dir.join("data");
        count::write_data(&data);
        Expected { dir: dir.into(), data, reference: OnceLock::new(), exact: Mutex::default() }
    }

    /// Trains without faults.
    fn undisturbed(&self, mode: Mode, workers: usize) -> PathBuf {
        let servers = usize::from(!matches!(mode, Mode::Local | Mode::Ranks));
        let start = Start { shape: Shape { servers, workers }, faults: Vec::new() };
        let starts = vec![start.clone()];
        let (has_checkpoints, full_every, max_restart) = (false, 1, 0);
        let job = Job { index: 0, mode, has_checkpoints, full_every, max_restart, starts };
        let name = format!("undisturbed-{}-{workers}", mode.name());
        let dir = self.dir.join(&name);
        std::fs::create_dir(&dir).unwrap();
        let mark = format!("{}-{name}", std::process::id());
        let ended = run::run(&job, &start, &self.data, &dir, &mark, 0);
        let log = || std::fs::read_to_string(&ended.log).unwrap();
        assert_eq!(ended.code, Some(0), "{}", log());
        dir.join("model")
    }

    fn reference(&self) -> &Reference {
        self.reference.get_or_init(|| {
            let model = self.undisturbed(Mode::HalfAsync, 1);
            let [first, second] = ["0", "1"].map(|epoch| read_values(&model.join(epoch)).unwrap());
            Reference::new(&first, &second)
        })
    }

    fn exact(&self, mode: Mode, workers: usize) -> SharedValues {
        let values = self.exact.lock().unwrap().entry((mode, workers)).or_default().clone();
        values.get_or_init(|| {
            let model = self.undisturbed(mode, workers);
            read_values(&model.join((mode.epochs() - 1).to_string())).unwrap()
        });
        values
    }
}

/// How a job went.
#[derive(Default)]
struct Outcome {
    starts: usize,
    faults: usize,
    counts: Counts,
    differs: usize,
    wrong_exits: usize,
    left: usize,
    problems: Vec<String>,
}

fn run_job(job: &Job, expected: &Expected, dir: &Path) -> Outcome {
    let mark = format!("{}-{}", std::process::id(), job.index);
    let mut outcome = Outcome::default();
    std::fs::create_dir(dir).unwrap();
    let last = job.starts.len() - 1;
    loop {
        let number = outcome.starts;
        outcome.starts += 1;
        let start = &job.starts[number.min(last)];
        let ended = run::run(job, start, &expected.data, dir, &mark, number);
        outcome.faults += ended.dealt;
        outcome.look_for_rest(number, &mark, dir);
        if ended.has_panicked {
            outcome.wrong_exit(number, "a process panicked".into());
        }
        match ended.code {
            Some(0) => {
                outcome.compare(job, start, expected, dir);
                return outcome;
            }
            None => outcome.wrong_exit(number, "it hangs".into()),
            Some(code) if ended.dealt == 0 => {
                outcome.wrong_exit(number, format!("exit code {code} without a fault"));
            }
            Some(_) => {}
        }
        if number >= last + CLEAN_STARTS - 1 {
            outcome.problems.push("the job does not come to its end".into());
            return outcome;
        }
    }
}

impl Outcome {
    fn wrong_exit(&mut self, start: usize, what: String) {
        self.wrong_exits += 1;
        self.problems.push(format!("start {start}: {what}"));
    }

    /// Looks for processes and files of a start that has ended.
    fn look_for_rest(&mut self, start: usize, mark: &str, dir: &Path) {
        let processes = system::left_processes(mark);
        if !processes.is_empty() {
            self.left += processes.len();
            self.problems.push(format!("start {start} has left {}", processes.join(", ")));
        }
        for folder in ["tmp", "here"] {
            let files = system::left_files(&dir.join(folder));
            if !files.is_empty() {
                self.left += files.len();
                self.problems.push(format!("start {start} has left {files:?}"));
            }
        }
    }

    /// The job says that all is done.
    fn compare(&mut self, job: &Job, start: &Start, expected: &Expected, dir: &Path) {
        let epochs = job.mode.epochs();
        let values = match read_values(&dir.join("model").join((epochs - 1).to_string())) {
            Ok(values) => values,
            Err(problem) => return self.problems.push(problem),
        };
        let before = self.problems.len();
        if job.mode.is_exact() {
            let expected = expected.exact(job.mode, start.shape.workers);
            let difference = difference(expected.get().unwrap(), &values);
            self.differs += usize::from(difference.is_some());
            self.problems.extend(difference);
        } else {
            self.counts = expected.reference().count(&values, epochs);
            self.problems.extend(self.counts.describe());
        }
        if self.problems.len() > before {
            // Whatever it is, the job has not done what exit code 0 says.
            self.wrong_exits += 1;
        }
        for folder in ["model", "checkpoints"] {
            let drafts = system::hidden(&dir.join(folder));
            if !drafts.is_empty() {
                self.left += drafts.len();
                self.problems.push(format!("the finished job has left {drafts:?}"));
            }
        }
    }
}

/// Sums of all jobs of a mode.
fn summary(outcomes: &BTreeMap<usize, (Mode, Outcome)>) -> String {
    let mut text = format!(
        "{:<12}{:>6}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}\n",
        "mode", "jobs", "faults", "starts", "failed", "lost", "twice", "bits", "exits", "left"
    );
    for mode in MODES {
        let of: Vec<&Outcome> =
            outcomes.values().filter(|(m, _)| *m == mode).map(|(_, outcome)| outcome).collect();
        let sum = |f: fn(&Outcome) -> usize| of.iter().map(|outcome| f(outcome)).sum::<usize>();
        writeln!(
            text,
            "{:<12}{:>6}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}",
            mode.name(),
            of.len(),
            sum(|o| o.faults),
            sum(|o| o.starts),
            sum(|o| usize::from(!o.problems.is_empty())),
            sum(|o| o.counts.lost.len()),
            sum(|o| o.counts.repeated.len()),
            sum(|o| o.differs),
            sum(|o| o.wrong_exits),
            sum(|o| o.left)
        )
        .unwrap();
    }
    text
}

#[test]
fn faults_lose_nothing() {
    let settings = Settings::new(&Env::process());
    let dir = tempfile::tempdir().unwrap();
    let shared_memory = system::shared_memory();
    let expected = Expected::new(dir.path());
    println!("seed {}, {} jobs", settings.seed, settings.jobs.len());
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..settings.at_once {
            scope.spawn(|| {
                while let Some(index) = settings.jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let job = Job::new(settings.seed, *index, settings.part);
                    let outcome = report_job(&settings, &job, &expected, dir.path());
                    outcomes.lock().unwrap().insert(*index, (job.mode, outcome));
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    let n_met = outcomes.values().filter(|(_, outcome)| outcome.faults > 0).count();
    println!("{n_met} of {} jobs met a fault\n{}", outcomes.len(), summary(&outcomes));
    let left: Vec<_> = system::shared_memory().difference(&shared_memory).cloned().collect();
    let failed: Vec<usize> = outcomes
        .iter()
        .filter(|(_, (_, outcome))| !outcome.problems.is_empty())
        .map(|(index, _)| *index)
        .collect();
    if !failed.is_empty() {
        println!("the folders of failed jobs are in {}", dir.keep().display());
    }
    assert!(failed.is_empty(), "jobs {failed:?} failed");
    assert!(left.is_empty(), "{left:?}");
}

/// Runs a job and prints how it went.
fn report_job(settings: &Settings, job: &Job, expected: &Expected, dir: &Path) -> Outcome {
    let (started, folder) = (Instant::now(), dir.join(format!("job-{}", job.index)));
    let outcome = run_job(job, expected, &folder);
    let (seconds, n) = (started.elapsed().as_secs_f32(), outcome.starts);
    let how = if outcome.problems.is_empty() { "ok" } else { "FAILED" };
    let mut text = format!("{job}: {how}, {} faults, {n} starts, {seconds:.1} s", outcome.faults);
    if outcome.problems.is_empty() {
        std::fs::remove_dir_all(&folder).unwrap();
    } else {
        for problem in &outcome.problems {
            write!(text, "\n    {problem}").unwrap();
        }
        write!(text, "\n    folder {}", folder.display()).unwrap();
        write!(text, "\n    again: {}", settings.repeat(job.index)).unwrap();
    }
    println!("{text}");
    outcome
}
