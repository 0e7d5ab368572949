//! One op on several threads, each with some of the examples, as programs divide a batch.
//!
//! A program says which inputs hold examples. Here it has to be clear from slots and shapes: an
//! input that holds values of layers (`W`, `Bias`, ...) holds none, others do if their first
//! dimension is that of the first input. Where it is not clear, one thread does it all.

use regatta_ir::{Layout, Op, OpSet, VarType};
use regatta_ops::{Batch, Kernel, OPS, Spec};
use std::sync::{Arc, Mutex};

use crate::Result;
use crate::global::lock;
use crate::template::Template;
use crate::value::Type;

/// An op on fewer elements than this is done before other threads have woken up.
const WORTH: usize = 1 << 15;

/// Slots that hold what layers have learned, not examples.
const LEARNED: &[&str] = &[
    "W", "Bias", "Scale", "Mean", "Variance", "Alpha", "WeightIh", "WeightHh", "BiasIh", "BiasHh",
];

/// How one prepared op is divided.
pub(crate) struct Split {
    op: Op,
    /// Types as a program would declare them: -1 where examples are.
    declared: Vec<VarType>,
    outs: Vec<VarType>,
    /// Whether each input holds examples.
    pub(crate) ins_hold: Vec<bool>,
    /// Whether each output holds examples; others are sums over them.
    pub(crate) outs_hold: Vec<bool>,
    pub(crate) rows: usize,
    kernels: Mutex<Vec<(usize, Kernel)>>,
}

impl Split {
    /// How to divide an op, if it can and if it is worth it.
    pub(crate) fn of(template: &Template, ins: &[Arc<Type>], outs: &[Arc<Type>]) -> Option<Split> {
        let op = &template.op;
        let size: usize = ins.iter().chain(outs).map(|ty| ty.numel).sum();
        let possible = size >= WORTH
            && template.in_place.is_empty()
            && (template.def.batch)(op) != Batch::Whole
            && ins.iter().chain(outs).all(|ty| ty.var.layout == Layout::Dense);
        let rows = ins.first()?.dims.first().copied().filter(|rows| possible && *rows > 1)?;
        let ins_hold = holders(op, ins, rows)?;
        let hold = |ty: &Arc<Type>, holds: &bool| {
            let mut var = ty.var.clone();
            if *holds {
                var.shape[0] = -1;
            }
            var
        };
        let declared: Vec<VarType> = ins.iter().zip(&ins_hold).map(|(t, h)| hold(t, h)).collect();
        // What a program would infer tells which outputs hold examples.
        let inferred = OPS.infer(op, &declared).ok()?;
        let mut outs_hold = Vec::new();
        for (inferred, actual) in inferred.iter().zip(outs) {
            let unknown = inferred.shape.iter().filter(|&&d| d < 0).count();
            let holds = inferred.shape.first() == Some(&-1);
            let fits = if holds { unknown == 1 && actual.dims[0] == rows } else { unknown == 0 };
            // Sums are added up as floats.
            let can_be_summed = holds || actual.var.dtype == regatta_tensor::DType::F32;
            if !fits || !can_be_summed {
                return None;
            }
            outs_hold.push(holds);
        }
        let outs = outs.iter().map(|ty| ty.var.clone()).collect();
        let (op, kernels) = (op.clone(), Mutex::default());
        Some(Split { op, declared, outs, ins_hold, outs_hold, rows, kernels })
    }

    /// Runs something with a kernel for that many examples which no other thread has.
    pub(crate) fn with_kernel<T>(
        &self,
        rows: usize,
        ins: &[Arc<Type>],
        run: impl FnOnce(&mut Kernel) -> Result<T>,
    ) -> Result<T> {
        let free = {
            let mut kernels = lock(&self.kernels);
            let at = kernels.iter().position(|(size, _)| *size == rows);
            at.map(|at| kernels.swap_remove(at).1)
        };
        let mut kernel = match free {
            Some(kernel) => kernel,
            None => self.new_kernel(rows, ins)?,
        };
        let done = run(&mut kernel);
        lock(&self.kernels).push((rows, kernel));
        done
    }

    fn new_kernel(&self, rows: usize, ins: &[Arc<Type>]) -> Result<Kernel> {
        let part = |var: &VarType, holds: &bool| {
            let mut var = var.clone();
            if *holds {
                var.shape[0] = rows as i64;
            }
            var
        };
        let ins: Vec<VarType> =
            ins.iter().zip(&self.ins_hold).map(|(ty, holds)| part(&ty.var, holds)).collect();
        let outs: Vec<VarType> =
            self.outs.iter().zip(&self.outs_hold).map(|(var, holds)| part(var, holds)).collect();
        let spec = Spec { op: &self.op, declared: &self.declared, ins: &ins, outs: &outs };
        Ok(OPS.kernel(&spec)?)
    }
}

/// Which inputs hold examples; nothing where that is not clear.
fn holders(op: &Op, ins: &[Arc<Type>], rows: usize) -> Option<Vec<bool>> {
    let slots = op.inputs.iter().flat_map(|(slot, vars)| vars.iter().map(move |_| slot.as_str()));
    let rank = ins[0].dims.len();
    let holds = slots.zip(ins).map(|(slot, ty)| {
        let same_rows = ty.dims.first() == Some(&rows);
        match () {
            () if LEARNED.contains(&slot) => Some(false),
            () if !same_rows => Some(false),
            // A matrix beside a matrix of as many rows: the right side of a product or examples.
            () if op.kind.starts_with("matmul") && ty.dims.len() < 3 => None,
            // Fewer dimensions than the first input: it may be repeated for every example.
            () if ty.dims.len() < rank && op.kind.starts_with("elementwise") => None,
            () => Some(true),
        }
    });
    holds.collect()
}

/// The examples of each of `parts` threads.
pub(crate) fn ranges(rows: usize, parts: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..parts).map(move |i| rows * i / parts..rows * (i + 1) / parts)
}
