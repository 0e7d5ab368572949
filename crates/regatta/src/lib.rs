//! Regatta trains models that are programs: build one, let compiler passes rewrite it, run it.
//!
//! This crate gathers the others under one name and adds what needs several of them. It holds no
//! kernels, formats or protocols of its own.
//!
//! ```
//! use regatta::prelude::*;
//!
//! // One weight, to be found: y = 3 x.
//! let mut b = builder(7);
//! let x = b.data("x", DType::F32, &[-1, 1])?;
//! let y = b.data("y", DType::F32, &[-1, 1])?;
//! let predicted = b.fc(&x, 1, Act::None)?;
//! let cost = b.square_error_cost(&predicted, &y)?;
//! let loss = b.mean(&cost)?;
//! let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.5);
//! let programs = minimize(&b.finish(), loss.name(), &sgd, &Backward::default())?.programs;
//!
//! let mut scope = Scope::new();
//! run_startup(&programs.startup, &mut scope)?;
//! let mut executor = Executor::new(programs.main, Options::default())?;
//! let xs = Value::from(Tensor::from_f32(&[2, 1], vec![1.0, -1.0])?);
//! let ys = Value::from(Tensor::from_f32(&[2, 1], vec![3.0, -3.0])?);
//! for _ in 0..20 {
//!     executor.run(&mut scope, &[("x", &xs), ("y", &ys)], &[loss.name()])?;
//! }
//! assert!((scope.get("fc_0.w_0").unwrap().f32()[0] - 3.0).abs() < 1e-3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order: [`prelude`], [`io`] (save and load what a [`Scope`](exec::Scope) holds),
//! [`quickstart`] (the two models that the command line trains), [`cli`] (the whole command line,
//! for programs that carry it inside them).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod cli;
pub mod io;
pub mod listing;
pub mod quickstart;

pub use regatta_checkpoint as checkpoint;
pub use regatta_data as data;
pub use regatta_exec as exec;
pub use regatta_fleet as fleet;
pub use regatta_ir as ir;
pub use regatta_ops as ops;
pub use regatta_optim as optim;
pub use regatta_passes as passes;
pub use regatta_predict as predict;
pub use regatta_tensor as tensor;
pub use regatta_train as train;

/// What a training script needs, in one `use`.
pub mod prelude {
    pub use crate::io::{Predictor, load_persistables, save_inference_model, save_persistables};
    pub use regatta_exec::{Executor, Options, Scope, run_startup};
    pub use regatta_fleet::{
        DistributedStrategy, Fleet, FleetExecutor, PaddleCloudRoleMaker, Role, UserDefinedRoleMaker,
    };
    pub use regatta_ir::{Act, Builder, Initializer, ParamAttr, Program, Programs, Var};
    pub use regatta_ops::builder;
    pub use regatta_optim::{Adagrad, Adam, Momentum, Rule, Schedule, Sgd};
    pub use regatta_passes::{Backward, Clip, Optimizer, clone_for_test, minimize, prune};
    pub use regatta_tensor::{DType, Data, Ragged, Tensor, Value};
}

/// Compiles and runs the code of the document.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/api.md")]
struct ApiDocument;
