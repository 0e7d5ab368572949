//! The first chapter of Paddle's book on one machine: house prices from 13 features.
//! `fluid_fit_a_line_ps.rs` is the same program with parameter servers; compare them with `diff`.
//!
//! Type `cargo run --release --example fluid_fit_a_line_local`. The exit code is 0 as soon as the
//! cost of a batch is below 10, and 1 if it never is. Examples per batch and the number of passes
//! can be given: `... fluid_fit_a_line_local 40 3`.

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
    let trained = minimize(&b.finish(), avg_cost.name(), &sgd, &Backward::default())?;

    let houses = Housing::synthetic(1).train;
    let mut scope = Scope::new();
    run_startup(&trained.programs.startup, &mut scope)?;
    let mut exe = Executor::new(trained.programs.main.clone(), Options::default())?;
    for pass in 0..passes {
        for rows in shuffled(&houses, pass).chunks(batch_size) {
            let (x, y) = feed(&houses, rows)?;
            let fetched = exe.run(&mut scope, &[("x", &x), ("y", &y)], &[avg_cost.name()])?;
            if fetched[0].f32()[0] < 10.0 {
                println!("pass {pass}: cost {:.4}", fetched[0].f32()[0]);
                return Ok(ExitCode::SUCCESS);
            }
        }
        save_persistables(&trained.programs.main, &scope, "fit_a_line.model")?;
    }
    Ok(ExitCode::FAILURE)
}
