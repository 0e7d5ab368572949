//! Trainer programs on a device: forward, backward and dense updates become launches of kernels on
//! buffers that stay there.
//!
//! What travels is one upload per batch and what is fetched. Rows of tables are not part of a
//! batch: they lie in an [`Arena`](regatta_device::Arena), weights first, then optimizer state. Its
//! owner (the window planner of GPUBox) moves rows in and out, and says for each distinct row of a
//! batch in which slot it lies.
//!
//! ```text
//! host   Lookup::prepare            ids -> distinct keys, ids as row numbers
//! host   (planner)                  keys -> slots of the arena
//! host   Preparer::prepare          -> DeviceBatch: inputs, slots by segment, positions by row
//! queue  DeviceProgram::upload      DeviceBatch -> DeviceInputs, on either queue
//! queue  DeviceProgram::compute     forward and backward; gradients of rows and dense ones stay
//! queue  DeviceProgram::apply       dense parameters take their step, at a learning rate
//! queue  (planner)                  Device::update_rows, from DeviceProgram::row_grads
//! host   DeviceProgram::fetch       waits, and brings what was asked for
//! ```
//!
//! An op without a kernel is an error when the program is made, which names it and lists
//! [`device_kinds`]. Metrics run on the host from what was fetched.
//!
//! Reading order: [`DeviceProgram`] (`program`), [`Preparer`] and [`DeviceBatch`] (`batch`,
//! `lookups`), `plan` (launches for one batch size), `lower` (what each op becomes), `chain`
//! (neighbours are joined), `memory` (temporaries share buffers), `values` (parameters, states and
//! their updates), [`DeviceGroup`] (`group`, `parts`: several devices).

mod batch;
mod builder;
mod chain;
mod codes;
mod group;
mod launch;
mod lookups;
mod lower;
mod memory;
mod parts;
mod plan;
mod program;
mod values;

use regatta_ir::{Op, VarType};

pub use batch::{DeviceBatch, Preparer};
pub use group::{DeviceGroup, ELSEWHERE, GroupTable};
pub use lower::device_kinds;
pub use parts::{GroupBatch, TableKeys};
pub use program::{DeviceInputs, DeviceProgram, RowGrads};
pub use values::States;

use crate::Error;

/// An op that a device cannot run as it is.
fn refused(op: &Op, reason: String) -> Error {
    let output = op.output_vars().next().unwrap_or_default().to_string();
    Error::DeviceOp { op: op.kind.clone(), output, reason }
}

/// A variable of a type that kernels do not take.
fn unsupported(op: &Op, var: &str, ty: &VarType) -> Error {
    refused(op, format!("'{var}' is {ty}; devices compute with f32 (labels are i64 inputs)"))
}
