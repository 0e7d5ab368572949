//! Training programs on one machine or many.
//!
//! A program that trains on one machine becomes a distributed one by a few lines: [`Fleet::init`]
//! finds out what this process is, [`Fleet::distributed_optimizer`] takes the optimizer, and
//! [`Fleet::executor`] runs what `minimize` made: alone, or against parameter servers.
//!
//! ```
//! use regatta_exec::{Options, Scope, run_startup};
//! use regatta_fleet::{Fleet, PaddleCloudRoleMaker};
//! use regatta_ir::Act;
//! use regatta_optim::{Rule, Sgd};
//! use regatta_passes::Optimizer;
//! use regatta_tensor::{DType, Tensor, Value};
//!
//! let mut b = regatta_ops::builder(7);
//! let x = b.data("x", DType::F32, &[-1, 1])?;
//! let y = b.data("y", DType::F32, &[-1, 1])?;
//! let predicted = b.fc(&x, 1, Act::None)?;
//! let cost = b.square_error_cost(&predicted, &y)?;
//! let loss = b.mean(&cost)?;
//!
//! let fleet = Fleet::init(PaddleCloudRoleMaker::new(), false, None)?;
//! let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.5);
//! let optimizer = fleet.distributed_optimizer(sgd, None)?;
//! let programs = optimizer.minimize(&b.finish(), loss.name())?.programs;
//! if fleet.is_server() {
//!     return Ok(fleet.run_server()?);
//! }
//! let mut scope = Scope::new();
//! run_startup(&programs.startup, &mut scope)?;
//! let mut executor = fleet.executor(Options::default())?;
//! let xs = Value::from(Tensor::from_f32(&[2, 1], vec![1.0, -1.0])?);
//! let ys = Value::from(Tensor::from_f32(&[2, 1], vec![3.0, -3.0])?);
//! for _ in 0..20 {
//!     executor.run(&mut scope, &[("x", &xs), ("y", &ys)], &[loss.name()])?;
//! }
//! fleet.stop_worker(&mut scope)?;
//! assert!((scope.get("fc_0.w_0").unwrap().f32()[0] - 3.0).abs() < 1e-3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order: [`strategy`] (the settings of a user), `role` (what this process is), `fleet`
//! (the calls), [`Util`] and [`metrics`] (numbers of all workers), [`collective`] (what a strategy
//! makes of a program for ranks), [`DistributeTranspiler`] (the programs of servers and trainers,
//! to look at), [`yaml`].

pub mod collective;
mod error;
mod fleet;
pub mod metrics;
mod role;
mod security;
pub mod strategy;
mod transpiler;
mod util;
pub mod yaml;

use std::io::Write;

pub use error::Error;
pub use fleet::{DataPass, DistributedOptimizer, Fleet, FleetExecutor, TrainConfig};
pub use regatta_ps::message::ReduceOp;
pub use role::{PaddleCloudRoleMaker, Role, RoleMaker, UserDefinedRoleMaker};
pub use security::job_token;
pub use strategy::DistributedStrategy;
pub use transpiler::{DistributeTranspiler, parse_endpoints};
pub use util::Util;

/// Devices that the environment leaves to this process: `FLAGS_selected_gpus` and
/// `CUDA_VISIBLE_DEVICES`.
///
/// # Errors
/// If a variable is no list of numbers, or they contradict each other.
pub fn devices() -> Result<regatta_cluster::Devices, Error> {
    Ok(regatta_cluster::Devices::from_env(&regatta_cluster::Env::process())?)
}

/// Writes a line for the user to standard error, in one call: several processes may share it.
pub fn notify(line: &dyn std::fmt::Display) {
    // Training continues when nobody reads its lines any more.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
