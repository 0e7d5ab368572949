//! The first chapter of Paddle's book with parameter servers, by the variables of its cluster
//! guide.
//!
//! Build it with `cargo build --release --example fluid_fit_a_line_ps`, then type, each in a
//! terminal of its own (or on a machine of its own, with its address in the place of 127.0.0.1):
//!
//! ```text
//! PADDLE_PSERVER_PORT=6174 PADDLE_PSERVER_IPS=127.0.0.1 PADDLE_TRAINERS=2 PADDLE_CURRENT_IP=127.0.0.1 \
//!     PADDLE_TRAINING_ROLE=PSERVER target/release/examples/fluid_fit_a_line_ps
//! PADDLE_PSERVER_PORT=6174 PADDLE_PSERVER_IPS=127.0.0.1 PADDLE_TRAINERS=2 PADDLE_TRAINER_ID=0 \
//!     PADDLE_TRAINING_ROLE=TRAINER target/release/examples/fluid_fit_a_line_ps
//! PADDLE_PSERVER_PORT=6174 PADDLE_PSERVER_IPS=127.0.0.1 PADDLE_TRAINERS=2 PADDLE_TRAINER_ID=1 \
//!     PADDLE_TRAINING_ROLE=TRAINER target/release/examples/fluid_fit_a_line_ps
//! ```
//!
//! The server prints `Server listening on 127.0.0.1:6174`, the trainers begin when both are there,
//! and all end by themselves. Two trainers with batches of 20 take the steps of one with batches of
//! 40.

use std::process::ExitCode;

use regatta::prelude::*;
use regatta::quickstart::fit_a_line::{Examples, FEATURES, Housing};

/// The features and prices of some houses.
fn feed(houses: &Examples, rows: &[usize]) -> Result<(Value, Value), Box<dyn std::error::Error>> {
    let features = |row: &usize| &houses.x[row * FEATURES..][..FEATURES];
    let x = rows.iter().flat_map(features).copied().collect();
    let y = rows.iter().map(|row| houses.y[*row]).collect();
    let n = rows.len();
    Ok((Tensor::from_f32(&[n, FEATURES], x)?.into(), Tensor::from_f32(&[n, 1], y)?.into()))
}

/// The order of houses in a pass.
fn shuffled(houses: &Examples, pass: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..houses.len()).collect();
    regatta::data::Rng::new(1, &[pass]).shuffle(&mut order);
    order
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|n| n.parse::<usize>());
    let batch_size = arguments.next().unwrap_or(Ok(20))?;
    let passes = arguments.next().unwrap_or(Ok(100))? as u64;

    let mut b = builder(42);
    let x = b.data("x", DType::F32, &[-1, 13])?;
    let y_predict = b.fc(&x, 1, Act::None)?;
    let y = b.data("y", DType::F32, &[-1, 1])?;
    let cost = b.square_error_cost(&y_predict, &y)?;
    let avg_cost = b.mean(&cost)?;
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.01);
    let strategy = DistributedStrategy { a_sync: false, ..Default::default() };
    let fleet = Fleet::init(PaddleCloudRoleMaker::new(), false, strategy)?;
    let trained = fleet.distributed_optimizer(sgd, None)?.minimize(&b.finish(), avg_cost.name())?;
    if fleet.is_server() {
        return Ok(fleet.run_server().map(|()| ExitCode::SUCCESS)?);
    }

    let houses = Housing::synthetic(1).train;
    let mut scope = Scope::new();
    run_startup(&trained.programs.startup, &mut scope)?;
    let mut exe = fleet.executor(Options::default())?;
    for pass in 0..passes {
        for rows in shuffled(&houses, pass).chunks(batch_size * fleet.worker_num()) {
            let (x, y) = feed(&houses, &fleet.util().share(rows))?;
            let fetched = exe.run(&mut scope, &[("x", &x), ("y", &y)], &[avg_cost.name()])?;
            if fetched[0].f32()[0] < 10.0 {
                println!("pass {pass}: cost {:.4}", fetched[0].f32()[0]);
                return Ok(ExitCode::SUCCESS);
            }
        }
        fleet.save_persistables(&mut scope, "fit_a_line.model")?;
    }
    Ok(ExitCode::FAILURE)
}
