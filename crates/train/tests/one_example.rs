//! The walks of ARCHITECTURE.md on three lines of data, in every kind of training: a file goes in,
//! a checkpoint comes out, and the value at every stop on the way is the one computed by hand.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use regatta_checkpoint::{Checkpoint, CheckpointConfig, CheckpointDir};
use regatta_collective::Group;
use regatta_data::{
    Batch, Batches, DataLoader, Dataset, Format, LoaderOptions, Position, Schema, Slot, Source,
    Stages,
};
use regatta_exec::{Options, Scope, run_startup};
use regatta_ir::{Embedding, Fc, Initializer, ParamAttr, Programs};
use regatta_optim::{Rule, Sgd};
use regatta_passes::{Backward, Optimizer, data_parallel, minimize, split_trainer};
use regatta_ps::message::ServerStats;
use regatta_ps::{AsyncConfig, Client, JobToken, Mode, Server};
use regatta_tensor::{DType, Tensor};
use regatta_train::job::{client_config, server_config, worker_startup};
use regatta_train::observe::Event;
use regatta_train::{
    Backend, Data, Error, Family, Farewell, Feed, Geo, Job, Local, RankPlan, Ranks, RunSpec,
    Servers, Session, When, leave,
};

/// Label and item of each example.
const LINES: &str = "1 1.0 1 3\n1 0.0 1 5\n1 1.0 1 3\n";
const EXAMPLES: [(f32, u64); 3] = [(1.0, 3), (0.0, 5), (1.0, 3)];
const RATE: f32 = 0.125;
/// Initial values: every row, the weight, the bias.
const INITIAL: [f32; 3] = [0.5, 1.0, 0.0];

/// What training must come to: `weight * row(item) + bias` is fitted to the label, one example a
/// step.
#[derive(Debug, PartialEq)]
struct Expected {
    losses: Vec<f32>,
    rows: BTreeMap<u64, f32>,
    weight: f32,
    bias: f32,
}

fn by_hand() -> Expected {
    let [row, mut weight, mut bias] = INITIAL;
    let (mut rows, mut losses) = (BTreeMap::new(), Vec::new());
    for (label, item) in EXAMPLES {
        let row = rows.entry(item).or_insert(row);
        let error = weight * *row + bias - label;
        losses.push(error * error);
        let slope = 2.0 * error;
        let (of_row, of_weight) = (slope * weight, slope * *row);
        *row -= RATE * of_row;
        weight -= RATE * of_weight;
        bias -= RATE * slope;
    }
    Expected { losses, rows, weight, bias }
}

struct Model {
    programs: Programs,
    loss: String,
}

fn model() -> Model {
    let mut b = regatta_ops::builder(1);
    let label = b.data("label", DType::F32, &[-1, 1]).unwrap();
    let item = b.data("item", DType::U64, &[-1, 1]).unwrap();
    let constant = |name: &str, value: f32| {
        ParamAttr::with_init(Initializer::Constant(f64::from(value))).named(name)
    };
    let mut table = Embedding::new(8, 1);
    table.table = constant("rows", INITIAL[0]);
    let row = b.embedding(&[&item], &table).unwrap();
    let row = b.reshape(&row, &[-1, 1]).unwrap();
    let (weight, bias) = (constant("weight", INITIAL[1]), constant("bias", INITIAL[2]));
    let layer = Fc { weight, bias: Some(bias), ..Fc::new(1) };
    let predicted = b.fc_with(&row, &layer).unwrap();
    let cost = b.square_error_cost(&predicted, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), f64::from(RATE));
    let programs = minimize(&b.finish(), &loss, &sgd, &Backward::default()).unwrap().programs;
    Model { programs, loss }
}

/// Data that keep what passes through them.
struct Watched {
    loader: DataLoader,
    read: Vec<(f32, u64)>,
}

struct WatchedPass<'a> {
    batches: Batches,
    read: &'a mut Vec<(f32, u64)>,
}

impl Data for Watched {
    fn begin_pass(
        &mut self,
        epoch: u64,
        from: &Position,
    ) -> Result<(Box<dyn Feed + '_>, Stages), Error> {
        let batches = self.loader.resume(epoch, from)?;
        Ok((Box::new(WatchedPass { batches, read: &mut self.read }), Stages::default()))
    }
}

impl Feed for WatchedPass<'_> {
    fn next(&mut self) -> Result<Option<Batch>, Error> {
        let batch = self.batches.next()?;
        if let Some(batch) = &batch {
            let label = batch.get("label").unwrap().as_dense().unwrap().f32()[0];
            self.read.push((label, batch.get("item").unwrap().as_dense().unwrap().u64()[0]));
        }
        Ok(batch)
    }

    fn done(&mut self, batch: Batch, _: &[Tensor]) -> Result<(), Error> {
        self.batches.recycle(batch);
        Ok(())
    }
}

fn data(dir: &Path) -> Watched {
    let file = dir.join("three_lines.txt");
    std::fs::write(&file, LINES).unwrap();
    let schema = Schema::new(vec![Slot::dense("label", 1), Slot::fixed_ids("item", 1)]).unwrap();
    let source = Source::files(schema, Format::MultiSlot, vec![file]).unwrap();
    let loader = DataLoader::new(source, LoaderOptions::new(1)).unwrap();
    Watched { loader, read: Vec::new() }
}

/// What a run leaves behind.
struct Seen {
    read: Vec<(f32, u64)>,
    losses: Vec<f32>,
    steps: u64,
    checkpoint: Checkpoint,
    servers: Vec<ServerStats>,
    /// Rows as servers know them, if there are any.
    rows: BTreeMap<u64, f32>,
    scope: Scope,
}

fn spec(model: &Model, dir: &Path) -> RunSpec {
    let config = CheckpointConfig::new(dir.join("checkpoints"));
    let checkpoint = CheckpointConfig { step_interval: Some(2), ..config };
    RunSpec {
        model: "three lines".into(),
        program: model.programs.main.clone(),
        epochs: 1,
        fetch: vec![model.loss.clone()],
        heads: true,
        meters: vec![],
        reset_meters: false,
        allow_non_finite_loss: false,
        print_interval: 1,
        seed: 1,
        learning_rate: None,
        settings: serde_json::json!({}),
        fixed: vec![],
        folders: vec![],
        validation: None,
        checkpoint: Some(checkpoint.into()),
    }
}

/// The walk: a file, the hub, a backend, a checkpoint.
fn walk(
    model: &Model,
    dir: &Path,
    family: Family,
    backend: &mut dyn Backend,
    mut scope: Scope,
) -> Seen {
    let mut losses = Vec::new();
    let mut observer = |event: &Event<'_>| {
        if let Event::Batch(batch) = event {
            losses.extend(batch.loss);
        }
    };
    let mut data = data(dir);
    let session = Session::open(spec(model, dir), family, true, &mut observer).unwrap();
    let trained = session.train(backend, &mut scope, &mut data, &mut (), &mut observer).unwrap();
    assert_eq!(trained.report.epochs[0].examples, 3);
    backend.pull_parameters(&mut scope).unwrap();
    let inspect = |client: &Client, id: u64| {
        let found = client.inspect("rows", id).unwrap();
        found.map(|row| (id, row.parts[0].1[0]))
    };
    let rows = backend.client().map(|client| (0..8).filter_map(|id| inspect(client, id)).collect());
    let steps = backend.step();
    let Farewell { servers, lost } = leave(backend).unwrap();
    assert!(lost.is_empty(), "{lost:?}");
    let newest = CheckpointDir::open(dir.join("checkpoints")).newest_complete().unwrap().unwrap();
    let checkpoint = Checkpoint::open(newest.path).unwrap();
    let rows = rows.unwrap_or_default();
    Seen { read: data.read, losses, steps, checkpoint, servers, rows, scope }
}

/// The stops that every kind of training crosses.
fn check(kind: &str, seen: &Seen) {
    let expected = by_hand();
    // data: the lines became the batches that were computed.
    assert_eq!(seen.read, EXAMPLES, "{kind}: data");
    // train: the hub has counted every step, with the loss that the program computed.
    assert_eq!(seen.losses, expected.losses, "{kind}: losses");
    assert_eq!(seen.steps, 3, "{kind}: steps of the backend");
    // optim: the formula, in place or on a server.
    let value = |name: &str| seen.scope.get(name).unwrap().f32()[0];
    assert_eq!((value("weight"), value("bias")), (expected.weight, expected.bias), "{kind}");
    // checkpoint: the last one says that the job is done, after three steps.
    let manifest = seen.checkpoint.manifest();
    assert_eq!(manifest.progress.global_step, 3, "{kind}: {:?}", manifest.progress);
    assert_eq!(manifest.rng["step"], 3, "{kind}: manifest");
    // One after step 0, perhaps one after step 2, and one at the end.
    assert!(manifest.serial >= 1, "{kind}: serial {}", manifest.serial);
}

/// A process that has everything: all values are in its scope and in its checkpoint.
fn check_whole(kind: &str, seen: &Seen) {
    let expected = by_hand();
    let saved = seen.checkpoint.tensors("model.safetensors").unwrap().tensors;
    for table in [seen.scope.get("rows").unwrap(), &saved["rows"]] {
        for (id, row) in (0..).zip(table.f32()) {
            assert_eq!(row, expected.rows.get(&id).unwrap_or(&INITIAL[0]), "{kind}: row {id}");
        }
    }
    assert_eq!(saved["weight"].f32(), [expected.weight], "{kind}: checkpoint");
}

/// Servers: requests have come, rows are theirs, and their parts are in the checkpoint.
fn check_servers(kind: &str, seen: &Seen) {
    assert_eq!(seen.rows, by_hand().rows, "{kind}: rows of the servers");
    let server = &seen.servers[0];
    assert_eq!(server.tables["rows"].rows, 2, "{kind}: {server:?}");
    let parts = &seen.checkpoint.manifest().parts;
    assert!(parts.iter().any(|part| part.name.starts_with("server-")), "{kind}: {parts:?}");
}

#[test]
fn in_one_process() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let mut scope = Scope::new();
    run_startup(&model.programs.startup, &mut scope).unwrap();
    let mut local = Local::new(model.programs.main.clone(), Options::default()).unwrap();
    let seen = walk(&model, dir.path(), Family::Whole, &mut local, scope);
    check("local", &seen);
    check_whole("local", &seen);
}

#[test]
fn as_a_rank() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let mut scope = Scope::new();
    let mut each = model.programs.clone();
    each.main = data_parallel(&each.main).unwrap();
    run_startup(&each.startup, &mut scope).unwrap();
    let plan =
        RankPlan { each, then: None, when: When::Never, sharded: false, keeps_unsent: false };
    let group = Group::in_memory(1).unwrap().remove(0);
    let (programs, options) = (&model.programs, Options::default());
    let mut rank = Ranks::new(programs, plan, group, options, &model.loss, "").unwrap();
    let seen = walk(&model, dir.path(), Family::Whole, &mut rank, scope);
    check("ranks", &seen);
    check_whole("ranks", &seen);
}

#[test]
fn with_servers_in_every_mode() {
    let asynchronous = AsyncConfig { pull_ahead: 0, ..AsyncConfig::default() };
    let modes = [
        Mode::Sync,
        Mode::HalfAsync,
        Mode::Bounded { staleness: 1 },
        Mode::Async(asynchronous),
        Mode::Async(AsyncConfig::default()),
        Mode::Geo { every: 1 },
    ];
    let model = model();
    for mode in modes {
        let dir = tempfile::tempdir().unwrap();
        let seen = with_servers(&model, mode, dir.path());
        check(mode.name(), &seen);
        check_servers(mode.name(), &seen);
    }
}

fn with_servers(model: &Model, mode: Mode, dir: &Path) -> Seen {
    let split = split_trainer(&model.programs).unwrap();
    let endpoints = vec!["127.0.0.1:0".to_string()];
    let mut job = Job::new(endpoints, 1, mode, JobToken::new("one example"));
    let server = Server::start(server_config(&split, &job, 0).unwrap()).unwrap();
    job.endpoints = vec![server.endpoint()];
    thread::scope(|s| {
        let served = s.spawn(|| server.run());
        let client = Client::connect(client_config(&split, &job, 0)).unwrap();
        let (mut scope, options) = (Scope::new(), Options::default());
        let mut backend: Box<dyn Backend> = match mode {
            Mode::Geo { every } => {
                run_startup(&model.programs.startup, &mut scope).unwrap();
                Box::new(Geo::new(&model.programs, &split, every, client, options).unwrap())
            }
            mode => {
                run_startup(&worker_startup(&model.programs.startup, &split), &mut scope).unwrap();
                Box::new(Servers::new(&split, mode, client, options).unwrap())
            }
        };
        let seen = walk(model, dir, Family::Servers, &mut *backend, scope);
        // The server ends when the connection is closed.
        drop(backend);
        served.join().unwrap().unwrap();
        seen
    })
}
