//! Workers that train their own copies, and ids that have to earn their rows.

mod common;

use std::thread;

use common::*;
use regatta_exec::{Executor, Options, Scope, run_startup};
use regatta_optim::{Adam, Rule, Sgd};
use regatta_passes::Optimizer;
use regatta_ps::{AsyncConfig, Client, Mode, PullSpec, Server};
use regatta_table::Admission;
use regatta_tensor::Value;
use regatta_train::job::{client_config, server_config};
use regatta_train::{Backend, Geo, Job};

fn sgd() -> Optimizer {
    Optimizer::new(Rule::Sgd(Sgd {}), 0.2)
}

/// What a worker in geo mode has in the end: its losses, its copy of every parameter, and what the
/// servers hold (rows that nobody trained are empty).
struct Copied {
    losses: Vec<f32>,
    copy: Vec<Vec<f32>>,
    server_dense: Vec<Vec<f32>>,
    server_rows: Vec<Vec<f32>>,
}

fn names(model: &Model) -> Vec<String> {
    let dense = model.split.dense.iter().map(|d| d.name.clone());
    dense.chain(["table".to_string()]).collect()
}

fn values(scope: &Scope, model: &Model) -> Vec<Vec<f32>> {
    names(model).iter().map(|name| scope.get(name).unwrap().f32().to_vec()).collect()
}

fn train_copies(
    model: &Model,
    every: u64,
    servers: usize,
    batches: &[Vec<regatta_data::Batch>],
) -> Vec<Copied> {
    let mut job = job(servers, batches.len(), Mode::Geo { every });
    let servers: Vec<Server> = (0..servers)
        .map(|i| Server::start(server_config(&model.split, &job, i).unwrap()).unwrap())
        .collect();
    job.endpoints = servers.iter().map(Server::endpoint).collect();
    let job = &job;
    thread::scope(|s| {
        let servers: Vec<_> = servers.into_iter().map(|server| s.spawn(|| server.run())).collect();
        let workers: Vec<_> = batches
            .iter()
            .enumerate()
            .map(|(w, batches)| s.spawn(move || train_copy(model, job, every, w, batches)))
            .collect();
        let copies = workers.into_iter().map(|w| w.join().unwrap()).collect();
        servers.into_iter().for_each(|server| drop(server.join().unwrap().unwrap()));
        copies
    })
}

fn train_copy(
    model: &Model,
    job: &Job,
    every: u64,
    worker: usize,
    batches: &[regatta_data::Batch],
) -> Copied {
    let client = Client::connect(client_config(&model.split, job, worker)).unwrap();
    let mut scope = Scope::new();
    run_startup(&model.programs.startup, &mut scope).unwrap();
    let (programs, split) = (&model.programs, &model.split);
    let mut geo = Geo::new(programs, split, every, client, Options::default()).unwrap();
    geo.start(&mut scope, false).unwrap();
    let losses = losses_of(&mut geo, &mut scope, &model.loss, batches).unwrap();
    let copy = values(&scope, model);
    let client = geo.client().unwrap();
    client.barrier("trained").unwrap();
    let mut server_dense: Vec<Vec<f32>> =
        copy[..split.dense.len()].iter().map(|v| vec![0.0; v.len()]).collect();
    let keys: &[&[u64]] = &[&[]];
    let wanted = PullSpec { step: 0, test: true, dense: true, keys, counts: &[] };
    let ticket = client.pull(&wanted).unwrap();
    let mut dense: Vec<&mut [f32]> = server_dense.iter_mut().map(Vec::as_mut_slice).collect();
    client.finish_pull(ticket, &mut [&mut []], &mut dense).unwrap();
    let server_rows = (0..ROWS as u64)
        .map(|id| client.inspect("table", id).unwrap())
        .map(|found| found.map(|row| row.parts[0].1.clone()).unwrap_or_default())
        .collect();
    client.barrier("read").unwrap();
    client.leave().unwrap();
    Copied { losses, copy, server_dense, server_rows }
}

#[test]
fn geo_with_one_worker_is_local_training() {
    geo_is_local(&model(&sgd()), (0..30).map(|t| batch(t * 8, 8)).collect());
}

#[test]
fn signed_ids_train_in_geo_mode() {
    geo_is_local(&signed_model(&sgd()), (0..30).map(|t| signed_batch(t * 8, 8)).collect());
}

fn geo_is_local(model: &Model, batches: Vec<regatta_data::Batch>) {
    let (local, scope) = train_locally(model, &batches);
    for (every, servers) in [(1, 1), (4, 2), (100, 3)] {
        let copies = train_copies(model, every, servers, std::slice::from_ref(&batches));
        assert_close("losses", &copies[0].losses, &local, 1e-6);
        // The last bit of a row's first value may differ between a server and a program.
        for (name, (copy, local)) in
            names(model).iter().zip(copies[0].copy.iter().zip(values(&scope, model)))
        {
            assert_close(&format!("{name}, every {every}"), copy, &local, 1e-6);
        }
    }
}

/// With Adam, a row moves as it would in one process that has made the steps of all workers.
#[test]
fn rows_in_geo_mode_count_the_steps_of_all_workers() {
    let model = model(&Optimizer::new(Rule::Adam(Adam::default()), 0.05));
    let batches: Vec<_> = (0..6).map(|t| batch(t * 8, 8)).collect();
    let mut scope = Scope::new();
    run_startup(&model.programs.startup, &mut scope).unwrap();
    let mut executor = Executor::new(model.programs.main.clone(), Options::default()).unwrap();
    let ops = &model.programs.main.block().ops;
    let update = ops.iter().find(|op| op.kind == "adam" && op.ins("Param")[0] == "table").unwrap();
    for (t, batch) in batches.iter().enumerate() {
        for (name, beta) in update.ins("States")[2..].iter().zip([0.9f64, 0.999]) {
            let power = beta.powi(1 + 3 * t as i32) as f32;
            scope.get_mut(name).unwrap().f32_mut()[0] = power;
        }
        let feeds: Vec<(&str, &Value)> = batch.iter().collect();
        executor.run(&mut scope, &feeds, &[]).unwrap();
    }
    // The other two workers have nothing to train on, so that nothing but their number matters.
    let copies = train_copies(&model, 100, 1, &[batches, vec![], vec![]]);
    for (name, (copy, one)) in
        names(&model).iter().zip(copies[0].copy.iter().zip(values(&scope, &model)))
    {
        assert_close(name, copy, &one, 1e-5);
    }
}

/// The loss of a batch with given parameters, which stay as they are.
fn loss(model: &Model, scope: &Scope, batch: &regatta_data::Batch) -> f32 {
    let mut copy = Scope::new();
    scope.names().iter().for_each(|name| copy.set(name, scope.get(name).unwrap().clone()));
    let mut executor = Executor::new(model.programs.main.clone(), Options::default()).unwrap();
    let feeds: Vec<(&str, &Value)> = batch.iter().collect();
    executor.run(&mut copy, &feeds, &[&model.loss]).unwrap()[0].f32()[0]
}

#[test]
fn what_several_copies_send_trains_the_servers_values() {
    let model = model(&sgd());
    let parts: Vec<Vec<_>> =
        (0..3).map(|w| (0..60).map(|t| batch(t * 24 + w * 8, 8)).collect()).collect();
    let copies = train_copies(&model, 3, 2, &parts);
    let mut scope = Scope::new();
    run_startup(&model.programs.startup, &mut scope).unwrap();
    let test: Vec<_> = (0..20).map(|t| batch(t * 8, 8)).collect();
    let mean = |scope: &Scope| test.iter().map(|b| loss(&model, scope, b)).sum::<f32>() / 20.0;
    let untrained = mean(&scope);
    for (spec, values) in model.split.dense.iter().zip(&copies[0].server_dense) {
        scope.get_mut(&spec.name).unwrap().f32_mut().copy_from_slice(values);
    }
    let table = scope.get_mut("table").unwrap().f32_mut();
    let held = copies[0].server_rows.iter().enumerate().filter(|(_, row)| !row.is_empty());
    for (id, row) in held {
        table[id * DIM as usize..][..DIM as usize].copy_from_slice(row);
    }
    let trained = mean(&scope);
    assert!(trained < untrained - 0.02, "{untrained} to {trained}");
}

/// How often each id stands in a batch, padding left out.
fn appearances(batch: &regatta_data::Batch) -> Vec<u32> {
    let mut counts = vec![0; ROWS as usize];
    for slot in ["user", "tags"] {
        let ids = match batch.get(slot).unwrap() {
            Value::Dense(t) => t.u64(),
            Value::Ragged(r) => r.u64(),
        };
        ids.iter().filter(|id| **id != 0).for_each(|id| counts[*id as usize] += 1);
    }
    counts
}

/// What a worker has learned of rows that nobody else trains is on the servers in the end, all of
/// it.
#[test]
fn rows_of_one_worker_are_the_same_on_the_servers() {
    let model = model(&sgd());
    let parts: Vec<Vec<_>> =
        (0..2).map(|w| (0..3).map(|t| batch(t * 16 + w * 8, 8)).collect()).collect();
    let copies = train_copies(&model, 2, 2, &parts);
    let trained: Vec<Vec<u32>> = parts
        .iter()
        .map(|batches| {
            batches.iter().fold(vec![0; ROWS as usize], |sum, b| {
                sum.iter().zip(appearances(b)).map(|(s, n)| s + n).collect()
            })
        })
        .collect();
    let mut own = 0;
    for (id, row) in copies[0].server_rows.iter().enumerate() {
        let by: Vec<usize> = (0..2).filter(|&w| trained[w][id] > 0).collect();
        let [worker] = by[..] else { continue };
        let copy = &copies[worker].copy.last().unwrap()[id * DIM as usize..][..DIM as usize];
        assert_close(&format!("row {id}"), row, copy, 1e-6);
        own += 1;
    }
    assert!(own > 0, "every row was trained by both");
}

#[test]
fn an_id_gets_its_row_when_it_has_appeared_often_enough() {
    const NEEDED: u32 = 6;
    let model = model(&sgd());
    let batches: Vec<_> = (0..7).map(|t| batch(t * 8, 8)).collect();
    for mode in [Mode::HalfAsync, Mode::Async(AsyncConfig::default()), Mode::Sync] {
        for n in 1..=batches.len() {
            let mut job = job(2, 1, mode);
            job.admission = Admission::CountFilter(NEEDED);
            let outcome = train_on_servers(&model, job, &[batches[..n].to_vec()]);
            let mut seen = vec![0; ROWS as usize];
            for batch in &batches[..n] {
                seen.iter_mut().zip(appearances(batch)).for_each(|(s, n)| *s += n);
            }
            let has_row: Vec<bool> = outcome.found.iter().map(|f| f == "row").collect();
            let expected: Vec<bool> = seen.iter().map(|s| *s >= NEEDED).collect();
            assert_eq!(has_row, expected, "{mode:?} after {n} batches");
            for (id, found) in outcome.found.iter().enumerate().filter(|(id, _)| !has_row[*id]) {
                let expected = match seen[id] {
                    0 => "nothing".to_string(),
                    n => format!("not admitted yet, seen {n} times"),
                };
                assert_eq!(*found, expected, "{mode:?}, id {id} after {n} batches");
            }
        }
    }
}
