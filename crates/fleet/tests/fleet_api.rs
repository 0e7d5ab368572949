//! The calls of a training program, in jobs whose processes are threads with an environment each.

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use common::{batch, forward, train_locally};
use regatta_cluster::Env;
use regatta_data::Batch;
use regatta_exec::{Options, Scope, run_startup};
use regatta_fleet::{
    DistributedStrategy, Error, Fleet, FleetExecutor, PaddleCloudRoleMaker, ReduceOp, metrics,
};
use regatta_ir::Programs;
use regatta_optim::{Adam, Rule, Sgd};
use regatta_passes::Optimizer;
use regatta_tensor::Value;

/// Ports that are free now. One test after the other takes some, so that no two get the same.
fn endpoints(n: usize) -> Vec<String> {
    static TAKEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap();
    let mut found = Vec::new();
    while found.len() < n {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if !taken.contains(&port) {
            taken.push(port);
            found.push(format!("127.0.0.1:{port}"));
        }
    }
    found
}

fn worker_env(servers: &[String], workers: usize, worker: usize) -> Env {
    Env::from([
        ("PADDLE_PSERVERS_IP_PORT_LIST", servers.join(",")),
        ("TRAINING_ROLE", "TRAINER".to_string()),
        ("PADDLE_TRAINERS_NUM", workers.to_string()),
        ("PADDLE_TRAINER_ID", worker.to_string()),
    ])
}

fn server_env(servers: &[String], workers: usize, server: usize) -> Env {
    let (ip, port) = servers[server].split_once(':').unwrap();
    Env::from([
        ("PADDLE_PSERVERS_IP_PORT_LIST", servers.join(",")),
        ("TRAINING_ROLE", "PSERVER".to_string()),
        ("PADDLE_TRAINERS_NUM", workers.to_string()),
        ("POD_IP", ip.to_string()),
        ("PADDLE_PORT", port.to_string()),
    ])
}

fn fleet(env: Env) -> Fleet {
    Fleet::init(PaddleCloudRoleMaker::from_env(env), false, None).unwrap()
}

fn sgd() -> Optimizer {
    Optimizer::new(Rule::Sgd(Sgd {}), 0.3)
}

fn synchronous() -> DistributedStrategy {
    DistributedStrategy { a_sync: false, ..Default::default() }
}

/// A worker with its program and initial values.
struct Worker {
    fleet: Fleet,
    programs: Programs,
    loss: String,
    scope: Scope,
    executor: FleetExecutor,
}

fn minimized(fleet: &Fleet, optimizer: &Optimizer, strategy: &DistributedStrategy) -> Programs {
    let (programs, loss) = forward();
    let optimizer = fleet.distributed_optimizer(optimizer.clone(), strategy.clone()).unwrap();
    optimizer.minimize(&programs, &loss).unwrap().programs
}

fn worker(env: Env, optimizer: &Optimizer, strategy: &DistributedStrategy) -> Worker {
    let fleet = fleet(env);
    let programs = minimized(&fleet, optimizer, strategy);
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    let executor = fleet.executor(Options::default()).unwrap();
    Worker { fleet, programs, loss: forward().1, scope, executor }
}

impl Worker {
    fn step(&mut self, batch: &Batch) -> f32 {
        let feeds: Vec<(&str, &Value)> = batch.iter().collect();
        self.executor.run(&mut self.scope, &feeds, &[&self.loss]).unwrap()[0].f32()[0]
    }
}

/// Runs servers and workers to their ends; every server must end by itself.
fn job<T: Send>(
    servers: usize,
    workers: usize,
    serve: impl Fn(&Fleet) -> Result<(), Error> + Sync,
    strategy: &DistributedStrategy,
    train: impl Fn(Worker) -> T + Sync,
) -> Vec<T> {
    let (endpoints, optimizer) = (endpoints(servers), sgd());
    let (endpoints, optimizer, serve, train) = (&endpoints, &optimizer, &serve, &train);
    thread::scope(|s| {
        let servers: Vec<_> = (0..servers)
            .map(|i| {
                s.spawn(move || {
                    let fleet = fleet(server_env(endpoints, workers, i));
                    minimized(&fleet, optimizer, strategy);
                    serve(&fleet)
                })
            })
            .collect();
        let workers: Vec<_> = (0..workers)
            .map(|i| {
                s.spawn(move || {
                    let env = worker_env(endpoints, workers, i);
                    train(worker(env, optimizer, strategy))
                })
            })
            .collect();
        let results = workers.into_iter().map(|w| w.join().unwrap()).collect();
        servers.into_iter().for_each(|s| s.join().unwrap().unwrap());
        results
    })
}

fn serve(fleet: &Fleet) -> Result<(), Error> {
    fleet.init_server(None, &[])?;
    fleet.run_server()
}

/// Values of a saved model of one process or many, by name.
fn dense_of(scope: &Scope) -> Vec<Vec<f32>> {
    let names = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"];
    names.iter().map(|name| scope.get(name).unwrap().f32().to_vec()).collect()
}

fn assert_close(a: &[Vec<f32>], b: &[Vec<f32>]) {
    for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn two_synchronous_workers_equal_one_on_both_batches() {
    const STEPS: u64 = 12;
    let results = job(2, 2, serve, &synchronous(), |mut w| {
        let own = w.fleet.worker_index() as u64;
        let losses: Vec<f32> = (0..STEPS).map(|t| w.step(&batch(16 * t + 8 * own, 8))).collect();
        w.fleet.stop_worker(&mut w.scope).unwrap();
        (losses, dense_of(&w.scope))
    });
    let local = common::model(&sgd());
    let batches: Vec<Batch> = (0..STEPS).map(|t| batch(16 * t, 16)).collect();
    let (losses, scope) = train_locally(&local, &batches);
    assert_close(&results[0].1, &dense_of(&scope));
    assert_eq!(results[0].1, results[1].1);
    for (t, loss) in losses.iter().enumerate() {
        let both = (results[0].0[t] + results[1].0[t]) / 2.0;
        assert!((both - loss).abs() < 1e-5, "step {t}: {both} {loss}");
    }
}

#[test]
fn a_pass_over_batches_is_the_same_as_steps() {
    let train = |stepwise: bool| {
        job(1, 2, serve, &synchronous(), |mut w| {
            let own = w.fleet.worker_index() as u64;
            let mut batches = (0..6).map(|t| batch(16 * t + 8 * own, 8));
            if stepwise {
                batches.by_ref().for_each(|b| _ = w.step(&b));
            }
            let loss = [w.loss.as_str()];
            w.executor
                .train(
                    &mut w.scope,
                    &loss,
                    || Ok(batches.next()),
                    |fetched, _| {
                        assert!(fetched[0].f32()[0].is_finite());
                        Ok(())
                    },
                )
                .unwrap();
            w.fleet.stop_worker(&mut w.scope).unwrap();
            dense_of(&w.scope)
        })
    };
    assert_close(&train(true)[0], &train(false)[0]);
}

/// As in Paddle's guide: the server is only run, the worker only trains. Everything ends by itself.
#[test]
fn a_program_may_forget_to_start_and_to_stop() {
    let results = job(1, 2, Fleet::run_server, &DistributedStrategy::new(), |mut w| {
        let own = w.fleet.worker_index() as u64;
        (0..60).map(|t| w.step(&batch(16 * (t % 4) + 8 * own, 8))).collect::<Vec<f32>>()
    });
    for losses in results {
        let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
        assert!(mean(&losses[48..]) < mean(&losses[..12]), "{losses:?}");
    }
}

#[test]
fn every_mode_learns_step_by_step() {
    let with = |change: fn(&mut DistributedStrategy)| {
        let mut strategy = DistributedStrategy::new();
        change(&mut strategy);
        strategy
    };
    for strategy in [
        with(|s| s.a_sync_configs.half_async = true),
        with(|s| s.a_sync_configs.staleness = Some(1)),
        with(|s| s.a_sync_configs.k_steps = 3),
        with(|s| {
            s.a_sync_configs.max_merge_var_num = 4;
            s.a_sync_configs.send_wait_times = Some(1000);
        }),
    ] {
        let results = job(1, 2, serve, &strategy, |mut w| {
            let own = w.fleet.worker_index() as u64;
            let losses: Vec<f32> =
                (0..60).map(|t| w.step(&batch(16 * (t % 4) + 8 * own, 8))).collect();
            w.fleet.stop_worker(&mut w.scope).unwrap();
            losses
        });
        for losses in results {
            let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
            assert!(mean(&losses[48..]) < mean(&losses[..12]), "{:?}", strategy.changed());
        }
    }
}

/// Workers with different numbers of batches: the one that is done does not hold up the other.
#[test]
fn uneven_synchronous_workers_finish() {
    let sums = job(1, 2, serve, &synchronous(), |mut w| {
        let steps = if w.fleet.is_first_worker() { 3 } else { 7 };
        (0..steps).for_each(|t| _ = w.step(&batch(8 * t, 8)));
        let sum = w.fleet.util().all_reduce(&[steps as f64], ReduceOp::Sum).unwrap();
        // And together again.
        w.step(&batch(100, 8));
        sum
    });
    assert_eq!(sums, [vec![10.0], vec![10.0]]);
}

#[test]
fn values_and_measures_of_all_workers() {
    let check = |fleet: &Fleet, workers: usize| {
        let index = fleet.worker_index() as f64;
        let (util, n) = (fleet.util(), workers as f64);
        let all: Vec<f64> = (0..workers).map(|i| i as f64).collect();
        assert_eq!(util.all_reduce(&[index, 1.0], ReduceOp::Sum).unwrap()[1], n);
        assert_eq!(util.all_reduce(&[index], ReduceOp::Gather).unwrap(), all);
        let gathered = util.all_gather(&[index, -index]).unwrap();
        assert_eq!(gathered[workers - 1], [n - 1.0, 1.0 - n]);
        util.barrier().unwrap();
        assert_eq!(metrics::sum(fleet, &[1.0, 2.0]).unwrap(), [n, 2.0 * n]);
        assert_eq!(metrics::max(fleet, &[index]).unwrap(), [n - 1.0]);
        assert_eq!(metrics::min(fleet, &[index]).unwrap(), [0.0]);
        assert_eq!(metrics::mae(fleet, 6.0 * (index + 1.0), 3.0).unwrap(), n + 1.0);
        assert_eq!(metrics::mse(fleet, 8.0, 2.0).unwrap(), 4.0);
        assert_eq!(metrics::rmse(fleet, 8.0, 2.0).unwrap(), 2.0);
        assert_eq!(metrics::acc(fleet, 3.0, 4.0).unwrap(), 0.75);
        let auc = metrics::auc(fleet, &[1.0, 0.0, 1.0], &[1.0, 1.0, 0.0]).unwrap();
        assert_eq!(auc, 2.5 / 4.0);
        let files: Vec<String> = (0..5).map(|i| format!("part-{i}")).collect();
        let mine = util.get_file_shard(&files).unwrap();
        let shares = util.all_gather(&[mine.len() as f64]).unwrap().concat();
        assert_eq!(shares.iter().sum::<f64>(), 5.0);
        assert!(metrics::auc(fleet, &[1.0], &[]).is_err());
        let nothing = metrics::acc(fleet, 0.0, 0.0).unwrap_err();
        assert_eq!(nothing.to_string(), "acc: no worker has an example");
    };
    job(1, 3, serve, &DistributedStrategy::new(), |mut w| {
        w.fleet.init_worker(&mut w.scope).unwrap();
        check(&w.fleet, 3);
        w.fleet.stop_worker(&mut w.scope).unwrap();
    });
    check(&fleet(Env::default()), 1);
}

/// Trains a little, saves, and returns what a job on the same data would continue with.
fn saved(dir: &Path) -> Vec<Vec<f32>> {
    let mut results = job(2, 1, serve, &synchronous(), |mut w| {
        (0..5).for_each(|t| _ = w.step(&batch(8 * t, 8)));
        w.fleet.save_persistables(&mut w.scope, dir).unwrap();
        let found = w.fleet.shrink(&mut w.scope, 30).unwrap();
        assert_eq!(found, 0);
        w.fleet.stop_worker(&mut w.scope).unwrap();
        dense_of(&w.scope)
    });
    results.remove(0)
}

#[test]
fn data_passes_begin_and_end() {
    job(1, 1, serve, &synchronous(), |mut w| {
        let fleet = w.fleet.clone();
        let order = |outcome: Result<(), Error>| outcome.unwrap_err().to_string();
        assert!(order(fleet.end_pass()).contains("no data pass has begun"));
        for pass in 0..2 {
            let guard = fleet.data_pass().unwrap();
            assert!(order(fleet.begin_pass()).contains("a data pass has begun already"));
            w.step(&batch(8 * pass, 8));
            match pass {
                0 => guard.end().unwrap(),
                _ => drop(guard),
            }
            // The guard has ended it, so that the next one can begin.
            fleet.begin_pass().unwrap();
            fleet.end_pass().unwrap();
        }
        fleet.stop_worker(&mut w.scope).unwrap();
    });
}

#[test]
fn servers_start_from_what_others_have_saved() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    let dense = saved(&dir);
    let (_, first_values) = train_locally(&common::model(&sgd()), &[]);
    let text = dir.to_str().unwrap();
    let resume = |names: &[&str], servers: usize| {
        let from = |fleet: &Fleet| {
            fleet.init_server(Some(text), names)?;
            fleet.run_server()
        };
        let results = job(servers, 2, from, &synchronous(), |mut w| {
            w.fleet.init_worker(&mut w.scope).unwrap();
            let now = dense_of(&w.scope);
            let dir = root.path().join("predict");
            let inputs = ["user", "tags", "dense"];
            let outputs = ["fc_1.tmp_0"];
            w.fleet.save_inference_model(&mut w.scope, &dir, &inputs, &outputs).unwrap();
            w.fleet.stop_worker(&mut w.scope).unwrap();
            now
        });
        let model = regatta_checkpoint::load_inference_model(root.path().join("predict")).unwrap();
        let table = model.params.iter().find(|(name, _)| name == "table").unwrap().1.clone();
        assert_eq!(results[0], results[1]);
        (results[0].clone(), table.f32().to_vec())
    };
    // Everything, on another number of servers.
    let (all, table) = resume(&[], 1);
    assert_eq!(all, dense);
    // Named variables only: the others have their initial values.
    let (named, same_table) = resume(&["table", "fc_0.w_0"], 3);
    assert_eq!(named[0], dense[0]);
    assert_eq!(named[2..], dense_of(&first_values)[2..]);
    assert_eq!(table, same_table);
    let (_, fresh) = resume(&["fc_1.w_0"], 2);
    assert_ne!(table, fresh);
}

#[test]
fn unknown_names_and_missing_files_are_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    saved(&dir);
    let servers = endpoints(1);
    let start = |dir: Option<&str>, names: &[&str]| {
        let fleet = fleet(server_env(&servers, 1, 0));
        minimized(&fleet, &sgd(), &synchronous());
        fleet.init_server(dir, names).unwrap_err().to_string()
    };
    let text = dir.to_str();
    let error = start(text, &["tabel"]);
    assert!(error.contains("'tabel'") && error.contains("known: table, fc_0.w_0"), "{error}");
    let error = start(None, &["table"]);
    assert!(error.contains("none is given"), "{error}");
    std::fs::remove_file(dir.join("server-1-of-2.safetensors")).unwrap();
    let error = start(text, &[]);
    assert!(error.contains("server-1-of-2.safetensors missing"), "{error}");
    let fleet = fleet(server_env(&servers, 1, 0));
    minimized(&fleet, &Optimizer::new(Rule::Adam(Adam::default()), 0.1), &synchronous());
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(fleet.init_server(text, &[]).is_err());
}

#[test]
fn a_model_can_be_loaded_into_a_running_job() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    let dense = saved(&dir);
    job(1, 2, serve, &DistributedStrategy::new(), |mut w| {
        w.step(&batch(0, 8));
        w.fleet.barrier_worker().unwrap();
        w.fleet.load_model(&mut w.scope, &dir).unwrap();
        w.fleet.barrier_worker().unwrap();
        w.fleet.pull_parameters(&mut w.scope).unwrap();
        assert_eq!(dense_of(&w.scope), dense);
        w.fleet.stop_worker(&mut w.scope).unwrap();
    });
}

/// Without a job, the same program trains alone and equals plain training.
#[test]
fn a_local_run_is_the_same_program() {
    let root = tempfile::tempdir().unwrap();
    let mut w = worker(Env::default(), &sgd(), &synchronous());
    assert!(w.fleet.is_worker() && w.fleet.is_first_worker() && !w.fleet.is_server());
    assert_eq!((w.fleet.worker_num(), w.fleet.server_num()), (1, 0));
    w.fleet.init_worker(&mut w.scope).unwrap();
    let batches: Vec<Batch> = (0..5).map(|t| batch(8 * t, 8)).collect();
    let losses: Vec<f32> = batches.iter().map(|b| w.step(b)).collect();
    let (expected, scope) = train_locally(&common::model(&sgd()), &batches);
    assert_eq!(losses, expected);
    assert_eq!(dense_of(&w.scope), dense_of(&scope));
    w.fleet.barrier_worker().unwrap();
    w.fleet.save_persistables(&mut w.scope, root.path()).unwrap();
    let before = dense_of(&w.scope);
    w.step(&batches[0]);
    w.fleet.load_model(&mut w.scope, root.path()).unwrap();
    assert_eq!(dense_of(&w.scope), before);
    assert!(w.fleet.distributed_model(w.programs.clone()).main == w.programs.main);
    w.fleet.stop_worker(&mut w.scope).unwrap();
    w.fleet.stop_worker(&mut w.scope).unwrap();
}

#[test]
fn calls_in_the_wrong_order_say_what_to_call_first() {
    let servers = endpoints(1);
    let refused = |result: Result<(), Error>, want: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(want), "{error}\nexpected: {want}");
    };
    let w = fleet(worker_env(&servers, 2, 0));
    let mut scope = Scope::new();
    refused(w.init_worker(&mut scope), "init_worker: call minimize of the distributed optimizer");
    refused(w.executor(Options::default()).map(|_| ()), "executor: call minimize");
    refused(w.run_server(), "run_server: this process is worker 0, not a server");
    minimized(&w, &sgd(), &synchronous());
    refused(w.init_worker(&mut scope), "parameter 'fc_0.w_0' is not initialised: run the startup");
    refused(w.barrier_worker(), "barrier_worker: call init_worker, or run a step, first");
    refused(w.util().all_gather(&[1.0]).map(|_| ()), "call init_worker, or run a step, first");
    let again = w.distributed_optimizer(sgd(), None).unwrap();
    let (programs, loss) = forward();
    refused(again.minimize(&programs, &loss).map(|_| ()), "this fleet has a program already");
    let server = fleet(server_env(&servers, 2, 0));
    refused(server.init_server(None, &[]), "init_server: call minimize of the distributed");
    minimized(&server, &sgd(), &synchronous());
    refused(server.init_worker(&mut scope), "this process is server 0, which calls init_server");
    refused(server.executor(Options::default()).map(|_| ()), "this process is server 0");
    server.init_server(None, &[]).unwrap();
    refused(server.init_server(None, &[]), "this server has been started already");
    drop(server);
    let mut local = worker(Env::default(), &sgd(), &synchronous());
    local.fleet.stop_worker(&mut local.scope).unwrap();
    let feeds: Vec<(&str, &Value)> = vec![];
    let late = local.executor.run(&mut local.scope, &feeds, &[]).map(|_| ());
    refused(late, "stop_worker was called");
}

#[test]
fn strategies_are_checked_at_once() {
    let all = |s: DistributedStrategy| {
        Fleet::init(PaddleCloudRoleMaker::from_env(Env::default()), false, s).map(|_| ())
    };
    let lamb = DistributedStrategy { lamb: true, ..Default::default() };
    assert!(all(lamb).unwrap_err().to_string().contains("lamb is for collective training"));
    let fleet = fleet(Env::default());
    let pipeline = DistributedStrategy { pipeline: true, ..Default::default() };
    let error = fleet.distributed_optimizer(sgd(), pipeline).err().unwrap();
    assert_eq!(error.to_string(), "strategy: pipeline is not implemented");
    let mut threads = DistributedStrategy::new();
    threads.execution_strategy.num_threads = 2;
    minimized(&fleet, &sgd(), &threads);
    let options = |threads| Options { threads, ..Options::default() };
    assert!(fleet.executor(options(1)).is_ok() && fleet.executor(options(2)).is_ok());
    let error = fleet.executor(options(3)).err().unwrap().to_string();
    assert!(error.contains("execution_strategy.num_threads is 2"), "{error}");
}
