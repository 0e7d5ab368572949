//! Workers that use rows again for some steps: what they compute with, what they ask for, and that no
//! value is older than the mode promises.

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use common::*;
use regatta_data::{Batch, Records, Schema, Slot};
use regatta_exec::{Executor, Options, Scope, run_startup};
use regatta_fleet::Error;
use regatta_fleet::ps::{Job, PsTrainer, RowCounts, Run, client_config, server_config};
use regatta_ir::{Embedding, Initializer, ParamAttr};
use regatta_optim::{Rule, Sgd};
use regatta_passes::{Backward, Optimizer, minimize, split_trainer};
use regatta_ps::message::{CutTaken, ServerStats};
use regatta_ps::{AsyncConfig, Client, CutOrder, Mode, Server};
use regatta_table::Admission;
use regatta_tensor::{DType, Tensor, Value};

const STEPS: u64 = 60;

fn batches() -> Vec<Batch> {
    (0..STEPS).map(|t| batch(t * 4, 4)).collect()
}

/// Keys of a batch.
fn keys(batch: &Batch) -> Vec<u64> {
    let ids = |name: &str| match batch.get(name).unwrap() {
        Value::Dense(t) => t.u64().to_vec(),
        Value::Ragged(r) => r.u64().to_vec(),
    };
    let mut keys = [ids("user"), ids("tags")].concat();
    keys.sort_unstable();
    keys.dedup();
    // The padding is no key.
    keys.retain(|key| *key != 0);
    keys
}

/// What a single worker computes with a row, as the rule says it.
struct Oracle<'a> {
    model: &'a Model,
    /// Steps for which rows are used again.
    steps: u64,
    /// Steps that a worker asks ahead, so that its values miss as many updates.
    ahead: usize,
    /// Steps after which the worker has come to a cut.
    cuts: &'a [u64],
}

impl Oracle<'_> {
    /// Losses, and where rows came from.
    fn train(&self, batches: &[Batch]) -> (Vec<f32>, RowCounts) {
        let mut scope = Scope::new();
        run_startup(&self.model.programs.startup, &mut scope).unwrap();
        let main = self.model.programs.main.clone();
        let mut executor = Executor::new(main, Options::default()).unwrap();
        // All parameters after 0, 1, 2, ... updates.
        let mut versions = vec![self.parameters(&scope)];
        let mut copies: HashMap<u64, (usize, Vec<f32>)> = HashMap::new();
        let (mut losses, mut counts) = (Vec::new(), RowCounts::default());
        for (step, batch) in batches.iter().enumerate() {
            if self.cuts.contains(&(step as u64)) {
                copies.clear();
            }
            let mut used = versions[step.saturating_sub(self.ahead)].clone();
            let table = used.last_mut().unwrap();
            for key in keys(batch) {
                let row = &mut table[key as usize * DIM as usize..][..DIM as usize];
                match copies.get(&key).filter(|(asked, _)| asked + self.steps as usize >= step) {
                    Some((_, copy)) => {
                        row.copy_from_slice(copy);
                        counts.copied += 1;
                    }
                    None => {
                        copies.insert(key, (step, row.to_vec()));
                        counts.pulled += 1;
                    }
                }
            }
            self.set(&mut scope, &used);
            let feeds: Vec<(&str, &Value)> = batch.iter().collect();
            losses.push(executor.run(&mut scope, &feeds, &[&self.model.loss]).unwrap()[0].f32()[0]);
            // The update, which does not depend on the values, is made on the newest ones.
            let mut next = versions[step].clone();
            for ((next, now), before) in next.iter_mut().zip(self.parameters(&scope)).zip(&used) {
                for ((next, now), before) in next.iter_mut().zip(now).zip(before) {
                    *next += now - before;
                }
            }
            versions.push(next);
        }
        (losses, counts)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.model.split.dense.iter().map(|d| d.name.as_str()).chain(["table"])
    }

    fn parameters(&self, scope: &Scope) -> Vec<Vec<f32>> {
        self.names().map(|name| scope.get(name).unwrap().f32().to_vec()).collect()
    }

    fn set(&self, scope: &mut Scope, values: &[Vec<f32>]) {
        for (name, values) in self.names().zip(values) {
            scope.get_mut(name).unwrap().f32_mut().copy_from_slice(values);
        }
    }
}

/// A pass over some batches, with a checkpoint on the way if there is a folder for it.
struct Training<'a> {
    batches: std::slice::Iter<'a, Batch>,
    losses: Vec<f32>,
    checkpoint: Option<PathBuf>,
    cuts: Vec<u64>,
}

impl Run for Training<'_> {
    fn next(&mut self) -> Result<Option<Batch>, Error> {
        Ok(self.batches.next().cloned())
    }

    fn on_step(&mut self, _: &Client, got: &[Tensor], _: Batch) -> Result<Option<CutOrder>, Error> {
        self.losses.push(got[0].f32()[0]);
        let due = self.losses.len() == 20;
        let dir = self.checkpoint.clone().filter(|_| due);
        Ok(dir.map(|dir| CutOrder { dir, scope: Default::default() }))
    }

    fn at_cut(&mut self, step: u64) -> Result<String, Error> {
        self.cuts.push(step);
        Ok(String::new())
    }

    fn cut_taken(&mut self, client: &Client, _: CutTaken, _: Duration) -> Result<(), Error> {
        client.finish_written(client.written()?)?;
        Ok(())
    }
}

/// What a job of one worker comes to.
struct Trained {
    losses: Vec<f32>,
    counts: Option<RowCounts>,
    cuts: Vec<u64>,
    stats: Vec<ServerStats>,
}

/// Starts the servers of a job, and runs all workers in threads.
fn run_job<T: Send>(
    model: &Model,
    mut job: Job,
    worker: impl Fn(&Job, usize, Client) -> T + Sync,
) -> (Vec<T>, Vec<ServerStats>) {
    let start = |i| Server::start(server_config(&model.split, &job, i).unwrap()).unwrap();
    let servers: Vec<Server> = (0..job.endpoints.len()).map(start).collect();
    job.endpoints = servers.iter().map(Server::endpoint).collect();
    let (job, worker) = (&job, &worker);
    thread::scope(|s| {
        let servers: Vec<_> = servers.into_iter().map(|server| s.spawn(|| server.run())).collect();
        let run = |w: usize| {
            s.spawn(move || {
                let client = Client::connect(client_config(&model.split, job, w)).unwrap();
                worker(job, w, client)
            })
        };
        let workers: Vec<_> = (0..job.workers).map(run).collect();
        let results = workers.into_iter().map(|w| w.join().unwrap()).collect();
        (results, servers.into_iter().map(|s| s.join().unwrap().unwrap()).collect())
    })
}

fn trainer(model: &Model, job: &Job, client: Client, fetch: &str) -> (PsTrainer, Scope) {
    let mut scope = Scope::new();
    run_startup(&model.programs.startup, &mut scope).unwrap();
    let trainer = PsTrainer::new(&model.split, job.mode, client, Options::default(), &[fetch]);
    let mut trainer = trainer.unwrap();
    trainer.use_row_cache(job.row_cache()).unwrap();
    trainer.start(&mut scope, false).unwrap();
    (trainer, scope)
}

/// Trains one worker, in one pass or several.
fn train(model: &Model, job: Job, passes: &[&[Batch]], checkpoint: Option<&Path>) -> Trained {
    let (mut results, stats) = run_job(model, job, |job, _, client| {
        let (mut trainer, mut scope) = trainer(model, job, client, &model.loss);
        let checkpoint = checkpoint.map(Path::to_path_buf);
        let mut run = Training { batches: [].iter(), losses: vec![], checkpoint, cuts: vec![] };
        for batches in passes {
            run.batches = batches.iter();
            trainer.train_with(&mut scope, &mut run).unwrap();
        }
        trainer.client().leave().unwrap();
        (run.losses, trainer.take_row_counts(), run.cuts)
    });
    let (losses, counts, cuts) = results.remove(0);
    Trained { losses, counts, cuts, stats }
}

fn sgd() -> Optimizer {
    Optimizer::new(Rule::Sgd(Sgd {}), 0.5)
}

fn asynchronous(pull_ahead: u64) -> Mode {
    Mode::Async(AsyncConfig { pull_ahead, ..AsyncConfig::default() })
}

/// Rows that servers were asked for.
fn pulled(stats: &[ServerStats]) -> u64 {
    stats.iter().map(|s| s.tables["table"].pulled).sum()
}

/// Gradients go to the servers in every step, also those of rows that were not pulled for it.
#[test]
fn rows_are_as_old_as_the_rule_says() {
    let model = model(&sgd());
    let batches = batches();
    let modes = [(asynchronous(0), 0), (asynchronous(1), 1), (asynchronous(3), 3)];
    for (mode, ahead) in modes.into_iter().chain([(Mode::Bounded { staleness: 5 }, 0)]) {
        let rule = |steps| Oracle { model: &model, steps, ahead, cuts: &[] };
        let (newest, _) = rule(0).train(&batches);
        for steps in [1, 2, 5] {
            let what = format!("{}, {ahead} ahead, {steps} steps", mode.name());
            let job = job(2, 1, mode).with_row_cache(steps).unwrap();
            let outcome = train(&model, job, &[&batches], None);
            let (losses, counts) = rule(steps).train(&batches);
            assert_close(&what, &outcome.losses, &losses, 2e-5);
            assert_eq!(outcome.counts, Some(counts), "{what}");
            assert_eq!(pulled(&outcome.stats), counts.pulled, "{what}");
            assert!(counts.copied > counts.pulled / 4, "{what}: {counts:?}");
            let differs = losses.iter().zip(&newest).any(|(a, b)| (a - b).abs() > 1e-3);
            assert!(differs, "{what}: it makes no difference how old rows are");
        }
    }
}

#[test]
fn without_steps_every_row_is_pulled() {
    let model = model(&sgd());
    let batches = batches();
    let job = job(1, 1, asynchronous(0)).with_row_cache(0).unwrap();
    let outcome = train(&model, job, &[&batches], None);
    assert_eq!(outcome.counts, None);
    let all: usize = batches.iter().map(|batch| keys(batch).len()).sum();
    assert_eq!(pulled(&outcome.stats), all as u64);
}

/// Servers may load or remove rows between passes.
#[test]
fn a_pass_begins_without_copies() {
    let model = model(&sgd());
    let batches = batches();
    let job = job(2, 1, asynchronous(1)).with_row_cache(4).unwrap();
    let (first, second) = batches.split_at(33);
    let outcome = train(&model, job, &[first, second], None);
    let mut pulled = 0;
    for pass in [first, second] {
        pulled += Oracle { model: &model, steps: 4, ahead: 1, cuts: &[] }.train(pass).1.pulled;
    }
    assert_eq!(outcome.counts.unwrap().pulled, pulled);
}

/// Requests that were under way get no values at a cut. They are made again, and whoever goes on from
/// the checkpoint begins as this worker goes on: without copies.
#[test]
fn a_worker_goes_on_without_copies_after_a_cut() {
    let model = model(&sgd());
    let batches = batches();
    for ahead in [0, 1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let job = job(2, 1, asynchronous(ahead)).with_row_cache(4).unwrap();
        let outcome = train(&model, job, &[&batches], Some(dir.path()));
        let [cut] = outcome.cuts[..] else { panic!("{ahead} ahead: {:?}", outcome.cuts) };
        assert!((20..30).contains(&cut), "{ahead} ahead: after {cut} steps");
        let rule = |cuts| Oracle { model: &model, steps: 4, ahead: ahead as usize, cuts };
        let (losses, counts) = rule(&outcome.cuts).train(&batches);
        assert_eq!(outcome.counts, Some(counts), "{ahead} ahead");
        assert!(rule(&[]).train(&batches).1.pulled < counts.pulled, "{ahead} ahead");
        if ahead == 0 {
            assert_close("losses", &outcome.losses, &losses, 2e-5);
        }
    }
}

#[test]
fn ids_that_servers_count_are_refused() {
    let model = model(&sgd());
    for admission in [Admission::CountFilter(2), Admission::Probability(0.5)] {
        let mut job = job(1, 1, asynchronous(0)).with_row_cache(2).unwrap();
        job.admission = admission;
        run_job(&model, job, |job, _, client| {
            let options = Options::default();
            let mut trainer = PsTrainer::new(&model.split, job.mode, client, options, &[]).unwrap();
            let error = trainer.use_row_cache(job.row_cache()).unwrap_err().to_string();
            assert!(error.contains("row_cache") && error.contains("'table'"), "{error}");
            trainer.client().leave().unwrap();
        });
    }
}

/// A table whose only row is moved by as much as a worker says in every step.
fn counter() -> (Model, String) {
    let mut b = regatta_ops::builder(1);
    let id = b.data("id", DType::U64, &[-1, 1]).unwrap();
    let weight = b.data("weight", DType::F32, &[-1, 1]).unwrap();
    let zeros = ParamAttr::with_init(Initializer::Constant(0.0)).named("table");
    let spec = Embedding { table: zeros, ..Embedding::new(4, 1) };
    let row = b.embedding(&[&id], &spec).unwrap();
    let row = b.reshape(&row, &[-1, 1]).unwrap();
    let moved = b.elementwise_mul(&row, &weight).unwrap();
    let loss = b.mean(&moved).unwrap().name().to_string();
    let optimizer = Optimizer::new(Rule::Sgd(Sgd {}), 1.0);
    let programs = minimize(&b.finish(), &loss, &optimizer, &Backward::default()).unwrap().programs;
    let split = split_trainer(&programs).unwrap();
    (Model { programs, split, loss }, row.name().to_string())
}

fn counter_batch(weight: f32) -> Batch {
    let schema = Schema::new(vec![Slot::fixed_ids("id", 1), Slot::dense("weight", 1)]).unwrap();
    let mut records = Records::new(&schema);
    records.push_id(0, 3);
    records.push_float(1, weight);
    records.end_record().unwrap();
    Batch::assemble(records, vec![])
}

/// The row counts the updates of a fast worker and, times 1024, those of a slow one, which makes a
/// step only when the fast one can go no further. The values that the fast one computes with have
/// all updates but those of the last `staleness` steps, and in the worst case no others.
#[test]
fn no_row_is_older_than_the_bound() {
    const SLOW: f32 = 1024.0;
    let (model, row) = counter();
    for (staleness, steps) in [(1, 1), (3, 1), (3, 2), (4, 4), (5, 3)] {
        let lead = staleness - steps;
        let mode = Mode::Bounded { staleness };
        let job = job(1, 2, mode).with_row_cache(steps).unwrap();
        let (tell, told) = sync_channel(STEPS as usize);
        let slow = Pace::Slow { other: told, lead, own: 0, others: 0 };
        let paces = Mutex::new([Some(Pace::Fast(tell)), Some(slow)]);
        let (results, stats) = run_job(&model, job, |job, worker, client| {
            let (mut trainer, mut scope) = trainer(&model, job, client, &row);
            let mut pace = paces.lock().unwrap()[worker].take().unwrap();
            let batch = counter_batch(if worker == 0 { 1.0 } else { SLOW });
            let mut rest = (0..STEPS).map(|_| batch.clone());
            let mut seen = Vec::new();
            let on_step = |_: usize, fetched: &[Tensor], _| {
                seen.push(-fetched[0].f32()[0]);
                pace.after_step();
                Ok(())
            };
            trainer.train(&mut scope, || Ok(rest.next()), on_step).unwrap();
            trainer.client().leave().unwrap();
            (seen, trainer.take_row_counts().unwrap())
        });
        let what = format!("staleness {staleness}, {steps} steps");
        let (seen, counts) = &results[0];
        assert!(counts.copied > 0, "{what}");
        let missing = seen.iter().zip(0u64..).map(|(value, step)| {
            let (slow, fast) = ((value / SLOW).floor(), value % SLOW);
            step.saturating_sub((slow as u64).min(fast as u64))
        });
        assert_eq!(missing.max(), Some(staleness), "{what}: {seen:?}");
        assert_eq!(stats[0].largest_staleness, lead, "{what}");
    }
}

/// How a worker and the other one wait for each other.
enum Pace {
    /// Tells of every step.
    Fast(SyncSender<()>),
    /// Waits until the other one has made so many steps more than itself, or all.
    Slow { other: Receiver<()>, lead: u64, own: u64, others: u64 },
}

impl Pace {
    fn after_step(&mut self) {
        match self {
            Pace::Fast(tell) => tell.send(()).unwrap(),
            Pace::Slow { other, lead, own, others } => {
                *own += 1;
                while *others < (*own + *lead).min(STEPS) {
                    let told = other.recv_timeout(Duration::from_secs(30));
                    told.expect("the fast worker may go on");
                    *others += 1;
                }
            }
        }
    }
}
