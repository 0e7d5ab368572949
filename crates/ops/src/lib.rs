//! The ops that programs are made of. One file per op (or family): slots and attributes, shape
//! inference, gradient rule and CPU kernel side by side.
//!
//! ```
//! use regatta_ir::Act;
//! use regatta_tensor::DType;
//! let mut b = regatta_ops::builder(42);
//! let x = b.data("x", DType::F32, &[-1, 13]).unwrap();
//! let y = b.fc(&x, 1, Act::None).unwrap();
//! assert_eq!(b.ty(&y).unwrap().to_string(), "f32[-1, 1]");
//! ```
//!
//! Reading order: [`OpDef`], [`Io`] and [`StepCtx`] (what a kernel sees), [`comm`] (other ranks),
//! [`registry`], one op file such as `op/fc.rs`, `half` (ops on 16-bit floats), [`dynamic`] (what
//! no program can have), [`interp`] (the reference interpreter of the tests).

pub mod comm;
mod def;
pub mod dynamic;
mod half;
mod infer;
pub mod interp;
mod io;
pub mod metrics;
mod op;
pub mod registry;

pub use def::{Batch, Grad, GradCtx, Kernel, KernelError, OpDef, Sample, Spec, StepCtx};
pub use infer::Infer;
pub use io::{Buf, Io};
pub use op::{Draw, schedule_of, schedule_op, update_op, update_rule};
pub use registry::{OPS, Registry};

/// A builder over all ops; `seed` decides the initial values of all parameters.
pub fn builder(seed: u64) -> regatta_ir::Builder {
    regatta_ir::Builder::new(&OPS, seed)
}
