//! Training against parameter servers equals training in one process, where it should.

mod common;

use common::*;
use regatta_optim::{Adagrad, Adam, Momentum, Rule, Schedule, Sgd};
use regatta_passes::Optimizer;
use regatta_ps::{AsyncConfig, Mode};

const STEPS: u64 = 50;

fn optimizers() -> Vec<(&'static str, Optimizer)> {
    vec![
        ("sgd", Optimizer::new(Rule::Sgd(Sgd {}), 0.2)),
        ("momentum", Optimizer::new(Rule::Momentum(Momentum { mu: 0.9, nesterov: false }), 0.05)),
        ("adagrad", Optimizer::new(Rule::Adagrad(Adagrad::default()), 0.05)),
        ("adam", Optimizer::new(Rule::Adam(Adam::default()), 0.01)),
    ]
}

/// Parameters of one process beside those of servers. Rows that no batch touched are not on any
/// server.
fn compare(what: &str, scope: &regatta_exec::Scope, model: &Model, outcome: &Outcome) {
    for (spec, values) in model.split.dense.iter().zip(&outcome.dense) {
        let local = scope.get(&spec.name).unwrap().f32();
        assert_close(&format!("{what} {}", spec.name), local, values, 1e-5);
    }
    let table = scope.get("table").unwrap().f32();
    let mut compared = 0;
    for (id, row) in outcome.rows.iter().enumerate().filter(|(_, row)| !row.is_empty()) {
        let local = &table[id * DIM as usize..(id + 1) * DIM as usize];
        assert_close(&format!("{what} row {id}"), local, row, 1e-5);
        compared += 1;
    }
    assert!(compared > 30, "{what}: only {compared} rows on the servers");
}

#[test]
fn sync_equals_one_process_on_the_merged_batch() {
    for (name, optimizer) in optimizers() {
        // Adam and Momentum move every row they ever touched only when it is touched again, on one
        // machine and on servers alike, but Adam's powers are per table there and per row here.
        let model = model(&optimizer);
        for workers in 1..=3usize {
            let sizes: Vec<u64> = (0..workers as u64).map(|w| 6 + 2 * w).collect();
            let total: u64 = sizes.iter().sum();
            let merged: Vec<_> = (0..STEPS).map(|t| batch(t * total, total)).collect();
            let (local, scope) = train_locally(&model, &merged);
            let parts: Vec<Vec<_>> = (0..workers)
                .map(|w| {
                    let before: u64 = sizes[..w].iter().sum();
                    (0..STEPS).map(|t| batch(t * total + before, sizes[w])).collect()
                })
                .collect();
            for servers in 1..=3usize {
                let what = format!("{name}, {workers} workers, {servers} servers");
                let outcome = train_on_servers(&model, job(servers, workers, Mode::Sync), &parts);
                for (step, local) in local.iter().enumerate() {
                    let mean: f64 = (0..workers)
                        .map(|w| f64::from(outcome.losses[w][step]) * sizes[w] as f64)
                        .sum::<f64>()
                        / total as f64;
                    let difference = (mean - f64::from(*local)).abs();
                    assert!(difference < 1e-5, "{what}, step {step}: {mean} and {local}");
                }
                compare(&what, &scope, &model, &outcome);
                assert!(outcome.stats.iter().all(|s| s.steps == STEPS), "{what}");
            }
        }
    }
}

#[test]
fn the_number_of_servers_changes_no_bit() {
    let model = model(&optimizers()[3].1);
    let parts: Vec<Vec<_>> =
        (0..2).map(|w| (0..20).map(|t| batch(t * 20 + w * 10, 10)).collect()).collect();
    let one = train_on_servers(&model, job(1, 2, Mode::Sync), &parts);
    for servers in [2, 3, 7] {
        let many = train_on_servers(&model, job(servers, 2, Mode::Sync), &parts);
        assert_eq!(one.losses, many.losses, "{servers} servers");
        assert_eq!(one.dense, many.dense, "{servers} servers");
        assert_eq!(one.rows, many.rows, "{servers} servers");
    }
}

#[test]
fn one_worker_without_running_ahead_equals_one_process_in_every_mode() {
    let waiting = AsyncConfig { pull_ahead: 0, ..AsyncConfig::default() };
    for (name, optimizer) in optimizers() {
        let model = model(&optimizer);
        let batches: Vec<_> = (0..STEPS).map(|t| batch(t * 8, 8)).collect();
        let (local, scope) = train_locally(&model, &batches);
        for mode in
            [Mode::HalfAsync, Mode::Async(waiting), Mode::Bounded { staleness: 3 }, Mode::Sync]
        {
            let what = format!("{name} {}", mode.name());
            let outcome = train_on_servers(&model, job(2, 1, mode), std::slice::from_ref(&batches));
            assert_close(&what, &outcome.losses[0], &local, 1e-5);
            compare(&what, &scope, &model, &outcome);
        }
    }
}

#[test]
fn signed_ids_train_on_servers_as_in_one_process() {
    for (name, optimizer) in optimizers() {
        let model = signed_model(&optimizer);
        let merged: Vec<_> = (0..STEPS).map(|t| signed_batch(t * 12, 12)).collect();
        let (local, scope) = train_locally(&model, &merged);
        let part = |w: u64| (0..STEPS).map(|t| signed_batch(t * 12 + w * 6, 6)).collect();
        let outcome = train_on_servers(&model, job(2, 2, Mode::Sync), &[part(0), part(1)]);
        for (step, local) in local.iter().enumerate() {
            let mean = (outcome.losses[0][step] + outcome.losses[1][step]) / 2.0;
            assert!((mean - local).abs() < 1e-5, "{name}, step {step}: {mean} and {local}");
        }
        compare(name, &scope, &model, &outcome);
    }
}

#[test]
fn learning_rate_schedules_work_on_servers() {
    let schedule = Schedule::Exponential { decay_steps: 5, decay_rate: 0.7, staircase: false };
    let optimizer = Optimizer { schedule, ..optimizers()[0].1.clone() };
    let model = model(&optimizer);
    let batches: Vec<_> = (0..30).map(|t| batch(t * 8, 8)).collect();
    let (local, _) = train_locally(&model, &batches);
    for mode in [Mode::Sync, Mode::HalfAsync] {
        let outcome = train_on_servers(&model, job(2, 1, mode), std::slice::from_ref(&batches));
        assert_close(mode.name(), &outcome.losses[0], &local, 1e-5);
    }
}

#[test]
fn a_worker_that_ends_early_lets_the_others_go_on() {
    let model = model(&optimizers()[0].1);
    let parts: Vec<Vec<_>> = [5u64, 12].map(|n| (0..n).map(|t| batch(t * 8, 8)).collect()).into();
    let bounded = Mode::Bounded { staleness: 2 };
    for mode in [Mode::HalfAsync, Mode::Async(AsyncConfig::default()), Mode::Sync, bounded] {
        let outcome = train_on_servers(&model, job(2, 2, mode), &parts);
        assert_eq!((outcome.losses[0].len(), outcome.losses[1].len()), (5, 12));
        let steps = if mode == Mode::Sync { 12 } else { 17 };
        assert!(outcome.stats.iter().all(|s| s.steps == steps), "{mode:?}");
    }
}

#[test]
fn nobody_is_further_ahead_than_the_bound() {
    let model = model(&optimizers()[0].1);
    let parts: Vec<Vec<_>> =
        (0..3).map(|w| (0..40).map(|t| batch(t * 24 + w * 8, 8)).collect()).collect();
    for staleness in [0, 1, 4] {
        let mode = Mode::Bounded { staleness };
        let outcome = train_on_servers(&model, job(2, 3, mode), &parts);
        for s in &outcome.stats {
            assert!(s.largest_staleness <= staleness, "{} > {staleness}", s.largest_staleness);
            assert_eq!(s.steps, 120);
        }
    }
}
