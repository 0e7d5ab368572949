//! A program that uses `Fleet` gets checkpoints by handing over a `CheckpointConfig`: started again
//! after a crash, it ends with the bits of a run that never stopped, in every kind of training.

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::thread;

use common::{batch, forward};
use regatta_checkpoint::{CheckpointConfig, CheckpointDir};
use regatta_cluster::Env;
use regatta_data::{Batch, Position, Stages};
use regatta_exec::{Options, Scope, run_startup};
use regatta_fleet::{DistributedStrategy, Fleet, PaddleCloudRoleMaker, TrainConfig};
use regatta_optim::{Adam, Rule};
use regatta_passes::Optimizer;
use regatta_train::observe::Event;
use regatta_train::report::Report;
use regatta_train::{Data, Error, Feed, Sharing};

/// Batches of a worker in every data pass: enough that a checkpoint is complete before the last one.
const BATCHES: u64 = 200;

/// The data of a worker. Where somebody is to crash, they last until this directory has a complete
/// checkpoint, however slow the disk is: reading fails then, or ends if another worker crashes.
struct Batches<'a> {
    worker: u64,
    until: Option<&'a Path>,
    crashes: bool,
}

struct Pass<'a> {
    worker: u64,
    next: u64,
    until: Option<&'a Path>,
    crashes: bool,
}

impl Data for Batches<'_> {
    fn begin_pass(
        &mut self,
        _: u64,
        from: &Position,
    ) -> Result<(Box<dyn Feed + '_>, Stages), Error> {
        let Batches { worker, until, crashes } = *self;
        let pass = Pass { worker, next: from.batches, until, crashes };
        Ok((Box::new(pass), Stages::default()))
    }

    fn sharing(&self) -> Sharing {
        Sharing::Everything
    }
}

impl Feed for Pass<'_> {
    fn next(&mut self) -> Result<Option<Batch>, Error> {
        let is_saved = self.until.is_none_or(has_checkpoint);
        if self.crashes && is_saved {
            return Err(Error::Store("crash".into()));
        }
        // Checkpoints are made while worker 0 trains, so it does not end before there is one.
        if self.next >= BATCHES && !self.crashes && is_saved {
            return Ok(None);
        }
        self.next += 1;
        Ok(Some(batch(16 * (self.next % 10) + 8 * self.worker, 8)))
    }
}

fn has_checkpoint(dir: &Path) -> bool {
    CheckpointDir::open(dir).newest_complete().is_ok_and(|newest| newest.is_some())
}

struct Trained {
    report: Report,
    dense: Vec<Vec<f32>>,
}

/// Two data passes with a checkpoint after every third step; until the first one, if it crashes.
fn train(
    env: Env,
    (collective, a_sync): (bool, bool),
    dir: &Path,
    // Whether this process crashes, and whether any does.
    (crashes, some_crash): (bool, bool),
) -> Result<Trained, regatta_fleet::Error> {
    let fleet = Fleet::init(PaddleCloudRoleMaker::from_env(env), collective, None)?;
    let (forward, loss) = forward();
    let adam = Optimizer::new(Rule::Adam(Adam::default()), 0.01);
    let strategy = DistributedStrategy { a_sync, ..Default::default() };
    let strategy = (!collective).then_some(strategy);
    let minimized = fleet.distributed_optimizer(adam, strategy)?.minimize(&forward, &loss)?;
    if fleet.is_server() {
        fleet.run_server()?;
        let report = Report {
            config: serde_json::json!({}),
            epochs: vec![],
            peak_rss_mb: 0.0,
            resumed_from: None,
            device: None,
            best_epoch: None,
            checkpoints: vec![],
        };
        return Ok(Trained { report, dense: vec![] });
    }
    let mut scope = Scope::new();
    run_startup(&minimized.programs.startup, &mut scope)?;
    let mut executor = fleet.executor(Options::default())?;
    let checkpoint = CheckpointConfig { step_interval: Some(3), ..CheckpointConfig::new(dir) };
    let config = TrainConfig { epochs: 2, checkpoint: Some(checkpoint), ..TrainConfig::new(loss) };
    let (worker, until) = (fleet.worker_index() as u64, some_crash.then_some(dir));
    let mut data = Batches { worker, until, crashes };
    let report = executor.train_epochs(&mut scope, &mut data, &config, &mut |_: &Event<'_>| {})?;
    fleet.stop_worker(&mut scope)?;
    let names = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"];
    let dense = names.iter().map(|name| scope.get(name).unwrap().f32().to_vec()).collect();
    Ok(Trained { report, dense })
}

/// A server and two workers; what the first worker has to say.
fn job(dir: &Path, crashes: bool) -> Result<Trained, regatta_fleet::Error> {
    let (first, served) = try_job(dir, false, [crashes; 2]);
    assert_eq!(served.is_ok(), first.is_ok());
    first
}

type Outcome = Result<Trained, regatta_fleet::Error>;

/// What the first of two workers and the server have to say.
fn try_job(dir: &Path, a_sync: bool, crashes: [bool; 2]) -> (Outcome, Outcome) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let env = |role: &str, id: usize| {
        Env::from([
            ("PADDLE_PSERVERS_IP_PORT_LIST", format!("127.0.0.1:{port}")),
            ("TRAINING_ROLE", role.to_string()),
            ("PADDLE_TRAINERS_NUM", "2".to_string()),
            ("PADDLE_TRAINER_ID", id.to_string()),
            ("POD_IP", "127.0.0.1".to_string()),
            ("PADDLE_PORT", port.to_string()),
        ])
    };
    thread::scope(|s| {
        let run = |role: &'static str, id: usize| {
            let env = env(role, id);
            let some_crash = crashes.contains(&true);
            let crashes = role == "TRAINER" && crashes[id];
            s.spawn(move || train(env, (false, a_sync), dir, (crashes, some_crash)))
        };
        let server = run("PSERVER", 0);
        let workers = [run("TRAINER", 0), run("TRAINER", 1)];
        let mut outcomes = workers.map(|worker| worker.join().unwrap()).into_iter();
        let served = server.join().unwrap();
        (outcomes.next().unwrap(), served)
    })
}

/// Crashes after a checkpoint, then runs to the end; compares with a run that never stopped.
fn check(kind: &str, run: impl Fn(&Path, bool) -> Result<Trained, regatta_fleet::Error>) {
    let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = run(whole.path(), false).unwrap();
    // One is not begun before the last is written, and one is made at the end.
    assert!(expected.report.checkpoints.len() >= 2, "{kind}: {:?}", expected.report.checkpoints);
    let error = run(broken.path(), true).err().unwrap_or_else(|| panic!("{kind}: no crash"));
    assert!(!error.to_string().is_empty());
    let resumed = run(broken.path(), false).unwrap();
    assert!(resumed.report.resumed_from.is_some(), "{kind}: it has not resumed");
    assert_eq!(resumed.dense, expected.dense, "{kind}");
    let loss = |trained: &Trained| trained.report.epochs.iter().map(|e| e.loss).collect::<Vec<_>>();
    assert_eq!(loss(&resumed), loss(&expected), "{kind}");
}

#[test]
fn a_local_program_resumes() {
    check("local", |dir, crashes| train(Env::default(), (false, false), dir, (crashes, crashes)));
}

#[test]
fn a_rank_resumes() {
    check("ranks", |dir, crashes| train(Env::default(), (true, false), dir, (crashes, crashes)));
}

#[test]
fn a_job_with_servers_resumes() {
    check("servers", job);
}

/// Nobody else can read the data of the second worker, and nobody says that they were trained.
#[test]
fn data_that_are_lost_with_a_worker_are_reported_by_all() {
    let dir = tempfile::tempdir().unwrap();
    let (first, server) = try_job(dir.path(), true, [false, true]);
    let error = first.err().unwrap().to_string();
    assert!(error.contains("data of epoch 0 are not trained: worker 1 is lost"), "{error}");
    assert!(error.contains("resumes from its newest checkpoint"), "{error}");
    assert!(server.is_err());
    // The job resumes before the data that were lost.
    let (first, server) = try_job(dir.path(), true, [false; 2]);
    let report = first.unwrap().report;
    assert!(server.is_ok() && report.resumed_from.is_some());
    assert_eq!(report.epochs.len(), 2);
}
