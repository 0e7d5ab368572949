//! A small click model, its data, and parameter-server jobs in threads over real sockets.
#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod ranks;

use std::thread;

use regatta_data::{Batch, Records, Schema, Slot};
use regatta_exec::{Executor, Options, Scope, run_startup};
use regatta_ir::{Act, Embedding, Programs};
use regatta_passes::{Backward, Optimizer, Split, minimize, split_trainer};
use regatta_ps::{Client, JobToken, Mode, Server};
use regatta_tensor::{DType, Rng, Value};
use regatta_train::job::{client_config, server_config};
use regatta_train::{Backend, Feed, Job, Servers, run_feed};

pub(crate) const DIM: i64 = 3;
pub(crate) const ROWS: i64 = 40;

pub(crate) struct Model {
    pub(crate) programs: Programs,
    pub(crate) split: Split,
    pub(crate) loss: String,
}

/// Two slots over one table (one of them multi-valued, with padding), dense features, two layers;
/// and the name of the loss.
pub(crate) fn forward() -> (Programs, String) {
    let mut b = regatta_ops::builder(11);
    let user = b.data("user", DType::U64, &[-1, 2]).unwrap();
    let tags = b.sparse_data("tags").unwrap();
    let dense = b.data("dense", DType::F32, &[-1, 4]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let mut spec = Embedding { padding_idx: Some(0), ..Embedding::new(ROWS, DIM) };
    spec.table = spec.table.named("table");
    let e = b.embedding(&[&user, &tags], &spec).unwrap();
    let e = b.reshape(&e, &[-1, 3 * DIM]).unwrap();
    let x = b.concat(&[&e, &dense], 1).unwrap();
    let h = b.fc(&x, 8, Act::Tanh).unwrap();
    let logits = b.fc(&h, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    (b.finish(), loss)
}

/// The same with updates.
pub(crate) fn model(optimizer: &Optimizer) -> Model {
    let (programs, loss) = forward();
    let programs = minimize(&programs, &loss, optimizer, &Backward::default()).unwrap().programs;
    let split = split_trainer(&programs).unwrap();
    Model { programs, split, loss }
}

/// The same data in another form: signed ids, a lookup for each column of them.
pub(crate) fn signed_model(optimizer: &Optimizer) -> Model {
    let mut b = regatta_ops::builder(11);
    let mut spec = Embedding { padding_idx: Some(0), ..Embedding::new(ROWS, DIM) };
    spec.table = spec.table.named("table");
    let columns = ["first", "second"].map(|name| b.data(name, DType::I64, &[-1, 1]).unwrap());
    let pair = b.concat(&[&columns[0], &columns[1]], 1).unwrap();
    let dense = b.data("dense", DType::F32, &[-1, 4]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let flat = columns.map(|ids| {
        let vectors = b.embedding(&[&ids], &spec).unwrap();
        b.reshape(&vectors, &[-1, DIM]).unwrap()
    });
    // Once more, as one array of ids.
    let pair = b.embedding(&[&pair], &spec).unwrap();
    let pair = b.reduce_max(&pair, &[1], false).unwrap();
    let x = b.concat(&[&flat[0], &flat[1], &pair, &dense], 1).unwrap();
    let h = b.fc(&x, 8, Act::Tanh).unwrap();
    let logits = b.fc(&h, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let programs = b.finish();
    let programs = minimize(&programs, &loss, optimizer, &Backward::default()).unwrap().programs;
    let split = split_trainer(&programs).unwrap();
    Model { programs, split, loss }
}

/// Examples of [`batch`] for [`signed_model`].
pub(crate) fn signed_batch(first: u64, n: u64) -> Batch {
    let slots = vec![Slot::label("label"), Slot::ints("first", 1), Slot::ints("second", 1)];
    let slots = [slots, vec![Slot::dense("dense", 4)]].concat();
    let mut records = Records::new(&Schema::new(slots).unwrap());
    let batch = batch(first, n);
    let dense = |name: &str| batch.get(name).unwrap().as_dense().unwrap();
    for row in 0..n as usize {
        records.push_label(0, dense("label").i64()[row]);
        records.push_int(1, dense("user").u64()[2 * row] as i64);
        records.push_int(2, dense("user").u64()[2 * row + 1] as i64);
        dense("dense").f32()[4 * row..4 * row + 4].iter().for_each(|&x| records.push_float(3, x));
        records.end_record().unwrap();
    }
    Batch::assemble(records, vec![])
}

pub(crate) fn schema() -> Schema {
    Schema::new(vec![
        Slot::label("label"),
        Slot::fixed_ids("user", 2),
        Slot::ids("tags"),
        Slot::dense("dense", 4),
    ])
    .unwrap()
}

/// Examples `first..first + n` of an endless sequence.
pub(crate) fn batch(first: u64, n: u64) -> Batch {
    batch_of(&[(first, n)])
}

/// Several such ranges, given by `(first, n)`, in one batch.
pub(crate) fn batch_of(ranges: &[(u64, u64)]) -> Batch {
    let mut records = Records::new(&schema());
    for example in ranges.iter().flat_map(|&(first, n)| first..first + n) {
        let rng = Rng::new(5, example);
        let ids: Vec<u64> = (0..2).map(|i| rng.u64(i) % ROWS as u64).collect();
        let dense: Vec<f32> = (0..4).map(|i| rng.unit_f32(10 + i) - 0.5).collect();
        records.push_label(0, i64::from(ids[0].is_multiple_of(3) || dense[0] > 0.3));
        ids.iter().for_each(|&id| records.push_id(1, id));
        (0..1 + example % 3).for_each(|i| records.push_id(2, rng.u64(20 + i) % ROWS as u64));
        dense.iter().for_each(|&x| records.push_float(3, x));
        records.end_record().unwrap();
    }
    Batch::assemble(records, vec![])
}

/// Losses and final parameters of one process.
pub(crate) fn train_locally(model: &Model, batches: &[Batch]) -> (Vec<f32>, Scope) {
    let mut scope = Scope::new();
    run_startup(&model.programs.startup, &mut scope).unwrap();
    let mut executor = Executor::new(model.programs.main.clone(), Options::default()).unwrap();
    let losses = batches
        .iter()
        .map(|batch| {
            let feeds: Vec<(&str, &Value)> = batch.iter().collect();
            executor.run(&mut scope, &feeds, &[&model.loss]).unwrap()[0].f32()[0]
        })
        .collect();
    (losses, scope)
}

/// What a job leaves behind: per worker its losses, and the final parameters.
pub(crate) struct Outcome {
    pub(crate) losses: Vec<Vec<f32>>,
    pub(crate) dense: Vec<Vec<f32>>,
    pub(crate) rows: Vec<Vec<f32>>,
    /// What servers know of each id: a row, how often it was seen, or nothing.
    pub(crate) found: Vec<String>,
    pub(crate) stats: Vec<regatta_ps::message::ServerStats>,
}

pub(crate) fn job(servers: usize, workers: usize, mode: Mode) -> Job {
    let endpoints = vec!["127.0.0.1:0".to_string(); servers];
    Job::new(endpoints, workers, mode, JobToken::new("test"))
}

/// Runs servers and workers in threads; worker `w` trains on `batches[w]`.
pub(crate) fn train_on_servers(model: &Model, mut job: Job, batches: &[Vec<Batch>]) -> Outcome {
    let servers: Vec<Server> = (0..job.endpoints.len())
        .map(|i| Server::start(server_config(&model.split, &job, i).unwrap()).unwrap())
        .collect();
    job.endpoints = servers.iter().map(Server::endpoint).collect();
    let job = &job;
    thread::scope(|s| {
        let servers: Vec<_> = servers.into_iter().map(|server| s.spawn(|| server.run())).collect();
        let workers: Vec<_> = batches
            .iter()
            .enumerate()
            .map(|(w, batches)| s.spawn(move || worker(model, job, w, batches)))
            .collect();
        let mut results: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        let stats = servers.into_iter().map(|s| s.join().unwrap().unwrap()).collect();
        let (_, dense, found) = results[0].clone();
        let losses = results.drain(..).map(|r| r.0).collect();
        let (found, rows) = found.into_iter().unzip();
        Outcome { losses, dense, rows, found, stats }
    })
}

type Trained = (Vec<f32>, Vec<Vec<f32>>, Vec<(String, Vec<f32>)>);

fn worker(model: &Model, job: &Job, w: usize, batches: &[Batch]) -> Trained {
    let client = Client::connect(client_config(&model.split, job, w)).unwrap();
    let mut scope = Scope::new();
    run_startup(&model.programs.startup, &mut scope).unwrap();
    let mut backend = Servers::new(&model.split, job.mode, client, Options::default()).unwrap();
    backend.start(&mut scope, false).unwrap();
    let losses = losses_of(&mut backend, &mut scope, &model.loss, batches).unwrap();
    backend.barrier("trained").unwrap();
    backend.pull_parameters(&mut scope).unwrap();
    let client = backend.client().unwrap();
    let dense = model.split.dense.iter().map(|d| scope.get(&d.name).unwrap().f32().to_vec());
    let rows = (0..ROWS as u64).map(|id| match client.inspect("table", id).unwrap() {
        Some(found) if found.parts.is_empty() => (found.detail, vec![]),
        Some(found) => ("row".to_string(), found.parts[0].1.clone()),
        None => ("nothing".to_string(), vec![]),
    });
    let result = (losses, dense.collect(), rows.collect());
    client.barrier("read").unwrap();
    client.leave().unwrap();
    result
}

/// One data pass over these batches; returns the loss of every step.
pub(crate) fn losses_of(
    backend: &mut dyn Backend,
    scope: &mut Scope,
    loss: &str,
    batches: &[Batch],
) -> Result<Vec<f32>, regatta_train::Error> {
    backend.set_fetch(&[loss]);
    let mut list = List { batches: batches.iter().cloned().collect(), losses: Vec::new() };
    run_feed(backend, scope, &mut list)?;
    Ok(list.losses)
}

/// Batches in memory, and the losses of their steps.
struct List {
    batches: std::collections::VecDeque<Batch>,
    losses: Vec<f32>,
}

impl Feed for List {
    fn next(&mut self) -> Result<Option<Batch>, regatta_train::Error> {
        Ok(self.batches.pop_front())
    }

    fn done(
        &mut self,
        _: Batch,
        fetched: &[regatta_tensor::Tensor],
    ) -> Result<(), regatta_train::Error> {
        self.losses.push(fetched[0].f32()[0]);
        Ok(())
    }
}

pub(crate) fn assert_close(what: &str, a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= tolerance, "{what}[{i}]: {a} and {b}");
    }
}
