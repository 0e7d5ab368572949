//! The calls of `Fleet` in collective training, over real sockets.

mod common;

use std::path::Path;

use common::*;
use regatta_checkpoint::load_persistables;
use regatta_data::Batch;
use regatta_exec::{Options, Scope, run_startup};
use regatta_fleet::{DistributedStrategy, Fleet, UserDefinedRoleMaker, metrics};
use regatta_optim::{Adam, Rule};
use regatta_passes::Optimizer;
use regatta_tensor::Value;

fn adam() -> Optimizer {
    Optimizer::new(Rule::Adam(Adam::default()), 0.01)
}

/// Trains as a rank; returns all parameters.
fn rank(endpoints: &[&str], id: usize, batches: &[Batch], step_by_step: bool) -> Vec<Vec<f32>> {
    let role = UserDefinedRoleMaker::collective(id, endpoints).unwrap();
    let fleet = Fleet::init(role, true, DistributedStrategy::default()).unwrap();
    let (forward, loss) = forward();
    let minimized =
        fleet.distributed_optimizer(adam(), None).unwrap().minimize(&forward, &loss).unwrap();
    let mut scope = Scope::new();
    run_startup(&minimized.programs.startup, &mut scope).unwrap();
    fleet.init_worker(&mut scope).unwrap();
    let mut executor = fleet.executor(Options::default()).unwrap();
    let mut examples = 0.0;
    if step_by_step {
        for batch in batches {
            let feeds: Vec<(&str, &Value)> = batch.iter().collect();
            executor.run(&mut scope, &feeds, &[&loss]).unwrap();
            examples += batch.examples() as f64;
        }
    } else {
        let mut rest = batches.iter().cloned();
        let on_step = |_: &[regatta_tensor::Tensor], batch: Batch| {
            examples += batch.examples() as f64;
            Ok(())
        };
        executor.train(&mut scope, &[&loss], || Ok(rest.next()), on_step).unwrap();
    }
    assert_eq!(metrics::sum(&fleet, &[examples]).unwrap(), [20.0 * 12.0]);
    fleet.stop_worker(&mut scope).unwrap();
    let names = minimized.programs.main.param_names();
    names.iter().map(|name| scope.get(name).unwrap().f32().to_vec()).collect()
}

/// Ports that were free a moment ago.
fn endpoints(n: usize) -> Vec<String> {
    let bind = |_| std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sockets: Vec<_> = (0..n).map(bind).collect();
    sockets.iter().map(|s| s.local_addr().unwrap().to_string()).collect()
}

/// What two ranks return that run at the same time.
fn two_ranks<T: Send>(run: impl Fn(&[&str], usize) -> T + Sync) -> Vec<T> {
    let endpoints = endpoints(2);
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let (endpoints, run) = (&endpoints, &run);
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..2).map(|id| s.spawn(move || run(endpoints, id))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn two_ranks_equal_one_process() {
    let model = model(&adam());
    let merged: Vec<Batch> = (0..20).map(|t| batch(t * 12, 12)).collect();
    let (_, scope) = train_locally(&model, &merged);
    let sizes = [(0, 7), (7, 5)];
    let parts =
        sizes.map(|(first, n)| (0..20).map(|t| batch(t * 12 + first, n)).collect::<Vec<_>>());
    for step_by_step in [true, false] {
        let ranks = two_ranks(|endpoints, id| rank(endpoints, id, &parts[id], step_by_step));
        assert!(ranks[0] == ranks[1], "ranks differ");
        for (name, values) in model.programs.main.param_names().iter().zip(&ranks[0]) {
            assert_close(name, scope.get(name).unwrap().f32(), values, 1e-5);
        }
    }
}

/// A rank that keeps a part of the optimizer state: begins with what is in `from`, trains, and
/// takes part in saving to `to`. Returns how many values it keeps.
fn sharded_rank(
    endpoints: &[&str],
    id: usize,
    batches: &[Batch],
    from: Option<&Path>,
    to: &Path,
) -> usize {
    let role = UserDefinedRoleMaker::collective(id, endpoints).unwrap();
    let strategy = DistributedStrategy::from_yaml("sharding: true\n").unwrap();
    let fleet = Fleet::init(role, true, strategy).unwrap();
    let (forward, loss) = forward();
    let minimized =
        fleet.distributed_optimizer(adam(), None).unwrap().minimize(&forward, &loss).unwrap();
    let mut scope = Scope::new();
    run_startup(&minimized.programs.startup, &mut scope).unwrap();
    fleet.init_worker(&mut scope).unwrap();
    if let Some(from) = from {
        fleet.load_model(&mut scope, from).unwrap();
    }
    let mut executor = fleet.executor(Options::default()).unwrap();
    for batch in batches {
        let feeds: Vec<(&str, &Value)> = batch.iter().collect();
        executor.run(&mut scope, &feeds, &[]).unwrap();
    }
    fleet.save_persistables(&mut scope, to).unwrap();
    fleet.stop_worker(&mut scope).unwrap();
    minimized.programs.main.persistables().filter(|v| scope.get(&v.name).is_some()).count()
}

/// Two jobs, the second going on from the files of the first, are one process on the merged
/// batches.
#[test]
fn ranks_with_parts_of_the_state_save_and_load_all_of_it() {
    let model = model(&adam());
    let merged: Vec<Batch> = (0..20).map(|t| batch(t * 12, 12)).collect();
    let dir = tempfile::tempdir().unwrap();
    let (half, whole) = (dir.path().join("half"), dir.path().join("whole"));
    let part = |t: u64, id: usize| if id == 0 { batch(t * 12, 7) } else { batch(t * 12 + 7, 5) };
    for (steps, from, to) in [(0..10, None, &half), (10..20, Some(half.as_path()), &whole)] {
        let done = steps.end as usize;
        let kept = two_ranks(|endpoints, id| {
            let batches: Vec<Batch> = steps.clone().map(|t| part(t, id)).collect();
            sharded_rank(endpoints, id, &batches, from, to)
        });
        let saved = load_persistables(&model.programs.main, to).unwrap();
        assert!(kept.iter().all(|n| *n < saved.len()), "{kept:?} of {} values", saved.len());
        let (_, scope) = train_locally(&model, &merged[..done]);
        for (name, tensor) in &saved {
            let what = format!("{name} after {done} steps");
            assert_close(&what, scope.get(name).unwrap().f32(), tensor.f32(), 1e-5);
        }
    }
}
