//! What each op becomes: launches of kernels.
//!
//! A kind that is not in [`KERNELS`] cannot run on a device. Ops that only rename values
//! (`reshape`, `assign`) launch nothing, nor do constants.

mod elementwise;
mod lookup;
mod loss;
mod matrix;
mod norm;
mod reduce;
mod shape;

use regatta_ir::{Layout, Op, VarType};
use regatta_tensor::DType;

use super::builder::Builder;
use super::chain::{Chain, Operand, Step};
use super::launch::{Arg, Count, Launch, Place, Work};
use super::{refused, unsupported};
use crate::Error;

/// Makes the launches of one op.
type Rule = fn(&mut Lower<'_, '_>) -> Result<(), Error>;

/// Every kind that devices run.
const KERNELS: &[&[(&str, Rule)]] = &[
    elementwise::RULES,
    lookup::RULES,
    loss::RULES,
    matrix::RULES,
    norm::RULES,
    reduce::RULES,
    shape::RULES,
];

/// The kinds of ops that devices run, in alphabetical order.
pub fn device_kinds() -> Vec<&'static str> {
    let mut kinds: Vec<_> = KERNELS.iter().flat_map(|rules| rules.iter()).map(|r| r.0).collect();
    kinds.sort_unstable();
    kinds
}

/// Checks that devices run this kind.
pub(super) fn check_kind(op: &Op) -> Result<(), Error> {
    rule_of(op).map(|_| ())
}

fn rule_of(op: &Op) -> Result<Rule, Error> {
    let found = KERNELS.iter().flat_map(|rules| rules.iter()).find(|rule| rule.0 == op.kind);
    found.map(|rule| rule.1).ok_or_else(|| Error::NoDeviceKernel {
        op: op.kind.clone(),
        output: op.output_vars().next().unwrap_or_default().to_string(),
        kinds: device_kinds(),
    })
}

/// Adds the launches of an op.
pub(super) fn lower(op: &Op, builder: &mut Builder<'_>) -> Result<(), Error> {
    rule_of(op)?(&mut Lower { op, to: builder })
}

/// An op on its way to launches.
pub(super) struct Lower<'o, 'b> {
    pub(super) op: &'o Op,
    pub(super) to: &'o mut Builder<'b>,
}

impl Lower<'_, '_> {
    fn ty_of(&self, var: &str) -> &VarType {
        self.to.ty(var)
    }

    /// The type of the first variable of a slot, input or output.
    fn ty(&self, slot: &str) -> &VarType {
        let var = self.op.input_var(slot).or_else(|| self.op.output_var(slot));
        self.ty_of(var.unwrap_or_default())
    }

    /// Its dimensions.
    fn dims(&self, slot: &str) -> Vec<u32> {
        self.ty(slot).shape.iter().map(|&d| d as u32).collect()
    }

    /// The elements of a variable.
    fn count_of(&self, var: &str) -> Count {
        self.to.count(var)
    }

    /// The elements of the first variable of a slot.
    fn count(&self, slot: &str) -> Count {
        let var = self.op.input_var(slot).or_else(|| self.op.output_var(slot));
        self.count_of(var.unwrap_or_default())
    }

    /// Elements of a slot whose number does not change from batch to batch.
    fn len(&self, slot: &str) -> u32 {
        self.count(slot).each
    }

    /// The floats of an input variable.
    fn floats_of(&mut self, var: &str) -> Result<Place, Error> {
        let ty = self.ty_of(var);
        if ty.dtype != DType::F32 || ty.layout == Layout::Ragged {
            return Err(unsupported(self.op, var, ty));
        }
        self.to.place(var).ok_or_else(|| refused(self.op, format!("nobody makes '{var}'")))
    }

    /// The floats of the input in a slot.
    fn floats(&mut self, slot: &str) -> Result<Place, Error> {
        let var = self.op.input_var(slot);
        let var = var.ok_or_else(|| refused(self.op, format!("it has no '{slot}'")))?;
        self.floats_of(var)
    }

    /// The integers of the input in a slot.
    fn ints(&mut self, slot: &str) -> Result<Place, Error> {
        let var = self.op.input_var(slot).unwrap_or_default();
        let ty = self.ty_of(var);
        if ty.dtype.is_float() || ty.layout != Layout::Dense {
            return Err(unsupported(self.op, var, ty));
        }
        self.to.place(var).ok_or_else(|| refused(self.op, format!("nobody makes '{var}'")))
    }

    /// Memory for the output in a slot, if it is wanted.
    fn wanted(&mut self, slot: &str) -> Result<Option<Place>, Error> {
        match self.op.output_var(slot) {
            Some(var) => self.make(var).map(Some),
            None => Ok(None),
        }
    }

    /// Memory for the output in a slot.
    fn out(&mut self, slot: &str) -> Result<Place, Error> {
        let var = self.op.output_var(slot);
        let var = var.ok_or_else(|| refused(self.op, format!("it has no '{slot}'")))?;
        self.make(var)
    }

    /// Memory for an output variable.
    fn make(&mut self, var: &str) -> Result<Place, Error> {
        let ty = self.ty_of(var);
        if ty.dtype != DType::F32 || ty.layout == Layout::Ragged {
            return Err(unsupported(self.op, var, ty));
        }
        Ok(self.to.make(var))
    }

    /// A float attribute.
    fn float(&self, attr: &str) -> Result<f32, Error> {
        Ok(self.op.float(attr)? as f32)
    }

    fn launch(&mut self, kernel: &'static str, work: Work, args: Vec<Arg>) {
        self.to.launches.push(Launch { kernel, work, args, chain: None });
    }

    /// Says what the last launch does to single elements, so that neighbours can join it.
    fn as_chain(&mut self, n: Count, first: Operand, steps: Vec<Step>, out: Place) {
        if let Some(launch) = self.to.launches.last_mut() {
            launch.chain = Some(Chain { n, first, steps, out });
        }
    }

    /// A launch with one item for each of `n` elements.
    fn each(&mut self, kernel: &'static str, n: Count, args: Vec<Arg>) {
        self.launch(kernel, Work::Items(n), args);
    }
}

/// Counts a negative dimension from the end.
fn axis_of(op: &Op, attr: &str, rank: usize) -> Result<usize, Error> {
    let given = op.int(attr)?;
    let at = if given < 0 { given + rank as i64 } else { given };
    usize::try_from(at)
        .ok()
        .filter(|&at| at < rank)
        .ok_or_else(|| refused(op, format!("{attr} {given} is no dimension of {rank}")))
}

/// Elements before, in, and behind a dimension.
fn around(dims: &[u32], axis: usize) -> (u32, u32, u32) {
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}
