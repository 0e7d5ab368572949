//! The calls of `Fleet` in collective training, over real sockets.

mod common;

use common::*;
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

#[test]
fn two_ranks_equal_one_process() {
    let model = model(&adam());
    let merged: Vec<Batch> = (0..20).map(|t| batch(t * 12, 12)).collect();
    let (_, scope) = train_locally(&model, &merged);
    let sizes = [(0, 7), (7, 5)];
    let parts =
        sizes.map(|(first, n)| (0..20).map(|t| batch(t * 12 + first, n)).collect::<Vec<_>>());
    for step_by_step in [true, false] {
        let endpoints = endpoints(2);
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        let (endpoints, parts) = (&endpoints, &parts);
        let ranks: Vec<_> = std::thread::scope(|s| {
            let run = |id: usize| s.spawn(move || rank(endpoints, id, &parts[id], step_by_step));
            let threads: Vec<_> = (0..2).map(run).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(ranks[0] == ranks[1], "ranks differ");
        for (name, values) in model.programs.main.param_names().iter().zip(&ranks[0]) {
            assert_close(name, scope.get(name).unwrap().f32(), values, 1e-5);
        }
    }
}
