//! What other workers change while a large batch is computed.

mod common;

use std::sync::mpsc::sync_channel;
use std::thread;

use common::{assert_close, job};
use regatta_data::{Batch, Records, Schema, Slot};
use regatta_exec::{Executor, Options, Scope, run_startup};
use regatta_fleet::ps::{PsTrainer, client_config, server_config};
use regatta_ir::{Act, Programs};
use regatta_optim::{Rule, Sgd};
use regatta_passes::{Backward, Optimizer, Split, minimize, split_trainer};
use regatta_ps::{AsyncConfig, Client, Gradients, Mode, Server};
use regatta_tensor::{DType, Rng, Value};

const WIDTH: usize = 8;
const HIDDEN: i64 = 900;
/// Twice the smallest piece.
const ROWS: u64 = 1024;

struct Model {
    programs: Programs,
    split: Split,
    loss: String,
}

/// Wide enough that a batch is computed in two pieces.
fn model() -> Model {
    let mut b = regatta_ops::builder(4);
    let x = b.data("x", DType::F32, &[-1, WIDTH as i64]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let h = b.fc(&x, HIDDEN, Act::Tanh).unwrap();
    let h = b.fc(&h, HIDDEN, Act::Tanh).unwrap();
    let logits = b.fc(&h, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.1);
    let programs = minimize(&b.finish(), &loss, &sgd, &Backward::default()).unwrap().programs;
    let split = split_trainer(&programs).unwrap();
    Model { programs, split, loss }
}

fn batch(first: u64, n: u64) -> Batch {
    let slots = vec![Slot::label("label"), Slot::dense("x", WIDTH)];
    let mut records = Records::new(&Schema::new(slots).unwrap());
    for example in first..first + n {
        let rng = Rng::new(3, example);
        records.push_label(0, (rng.u64(99) % 2) as i64);
        (0..WIDTH as u64).for_each(|i| records.push_float(1, rng.unit_f32(i) - 0.5));
        records.end_record().unwrap();
    }
    Batch::assemble(records, vec![])
}

fn initialised(model: &Model) -> Scope {
    let mut scope = Scope::new();
    run_startup(&model.programs.startup, &mut scope).unwrap();
    scope
}

/// One process: the loss of a batch, and the values after it.
fn step_locally(model: &Model, scope: &mut Scope, batch: &Batch) -> f32 {
    let mut executor = Executor::new(model.programs.main.clone(), Options::default()).unwrap();
    let feeds: Vec<(&str, &Value)> = batch.iter().collect();
    executor.run(scope, &feeds, &[&model.loss]).unwrap()[0].f32()[0]
}

/// What worker 1 pushes.
fn push_of_the_other(model: &Model) -> Vec<Vec<f32>> {
    let of = |n: usize| (0..n).map(|i| ((i % 7) as f32 - 3.0) * 0.5).collect();
    model.split.dense.iter().map(|d| of(d.shape.iter().product())).collect()
}

/// The losses of worker 0 for two batches. The values for the second one are on their way when worker
/// 1 pushes, and the second one begins after that.
fn losses(model: &Model, dense_refresh: bool) -> Vec<f32> {
    let config = AsyncConfig { pull_ahead: 1, dense_refresh, ..AsyncConfig::default() };
    let mut job = job(2, 2, Mode::Async(config));
    let servers: Vec<Server> = (0..2)
        .map(|i| Server::start(server_config(&model.split, &job, i).unwrap()).unwrap())
        .collect();
    job.endpoints = servers.iter().map(Server::endpoint).collect();
    let (job, connect) = (&job, |w| Client::connect(client_config(&model.split, &job, w)).unwrap());
    let ((go, told), (done, awaited)) = (sync_channel(1), sync_channel(1));
    thread::scope(|s| {
        let servers: Vec<_> = servers.into_iter().map(|server| s.spawn(|| server.run())).collect();
        s.spawn(move || {
            let client = connect(1);
            client.barrier("start").unwrap();
            client.resume(0).unwrap();
            told.recv().unwrap();
            let pushed = push_of_the_other(model);
            let dense: Vec<&[f32]> = pushed.iter().map(Vec::as_slice).collect();
            let gradients = Gradients { step: 0, examples: 1, dense: &dense, tables: &[] };
            client.finish_push(client.push(&gradients).unwrap()).unwrap();
            done.send(()).unwrap();
            client.rest().unwrap();
            while client.idle().unwrap() {}
            client.leave().unwrap();
        });
        let mut scope = initialised(model);
        let options = Options::default();
        let mut trainer =
            PsTrainer::new(&model.split, job.mode, connect(0), options, &[&model.loss]).unwrap();
        trainer.start(&mut scope, false).unwrap();
        let mut batches = (0..2).map(|t| batch(t * ROWS, ROWS));
        let mut losses = Vec::new();
        let train = trainer.train(
            &mut scope,
            || Ok(batches.next()),
            |_, fetched, _| {
                losses.push(fetched[0].f32()[0]);
                if losses.len() == 1 {
                    go.send(()).unwrap();
                    awaited.recv().unwrap();
                }
                Ok(())
            },
        );
        train.unwrap();
        trainer.client().leave().unwrap();
        servers.into_iter().for_each(|s| drop(s.join().unwrap().unwrap()));
        losses
    })
}

#[test]
fn the_rest_of_a_batch_is_computed_with_what_others_have_changed() {
    let model = model();
    let mut scope = initialised(&model);
    let old = step_locally(&model, &mut initialised(&model), &batch(ROWS, ROWS));
    let first_half = step_locally(&model, &mut initialised(&model), &batch(ROWS, ROWS / 2));
    // The own push and that of the other worker, in any order.
    let first = step_locally(&model, &mut scope, &batch(0, ROWS));
    for (dense, pushed) in model.split.dense.iter().zip(push_of_the_other(&model)) {
        let values = scope.get_mut(&dense.name).unwrap().f32_mut();
        values.iter_mut().zip(pushed).for_each(|(v, g)| *v -= 0.1 * g);
    }
    let second_half = step_locally(&model, &mut scope, &batch(ROWS + ROWS / 2, ROWS / 2));
    let refreshed = (first_half + second_half) / 2.0;
    assert!((refreshed - old).abs() > 0.1, "{refreshed} and {old} must differ");
    assert_close("refreshed", &losses(&model, true), &[first, refreshed], 1e-4);
    assert_close("as pulled", &losses(&model, false), &[first, old], 1e-4);
}
