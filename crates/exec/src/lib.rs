//! Runs programs: a program and the shapes of its inputs become an execution plan (memory placed,
//! kernels prepared), which is then run many times without allocating.
//!
//! ```
//! use regatta_exec::{Executor, Options, Scope, run_startup};
//! use regatta_ir::Act;
//! use regatta_tensor::{DType, Tensor, Value};
//!
//! let mut b = regatta_ops::builder(1);
//! let x = b.data("x", DType::F32, &[-1, 3]).unwrap();
//! let y = b.fc(&x, 2, Act::Relu).unwrap();
//! let programs = b.finish();
//!
//! let mut scope = Scope::new();
//! run_startup(&programs.startup, &mut scope).unwrap();
//! let mut executor = Executor::new(programs.main, Options::default()).unwrap();
//! let batch = Value::from(Tensor::from_f32(&[2, 3], vec![1.0; 6]).unwrap());
//! let fetched = executor.run(&mut scope, &[("x", &batch)], &[y.name()]).unwrap();
//! assert_eq!(fetched[0].shape(), &[2, 2]);
//! ```
//!
//! It does not know whether other processes exist.
//!
//! Reading order: [`Scope`], `memory` (whether the values fit), `startup` (initial values),
//! [`Executor`], `plan` (shapes and memory), `segment` (the running loop), [`Lookup`] (the ids of a
//! batch become keys and a small local table), [`device`] (the same programs on a device).

mod arena;
pub mod device;
mod error;
mod executor;
mod lookup;
mod mapped;
mod memory;
mod plan;
mod scope;
mod segment;
mod startup;

pub use error::Error;
pub use executor::{Executor, MemoryUse, Options};
pub use lookup::Lookup;
pub use memory::{AvailableMemory, MemoryShortage, available_memory, check_memory, gigabytes};
pub use scope::Scope;
pub use segment::RoleTimes;
pub use startup::run_startup;
