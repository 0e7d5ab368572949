//! Ops whose results are a range of their input as it lies in memory: they cost no copy.

use std::sync::Arc;

use regatta_ir::{Layout, Op};
use smallvec::SmallVec;

use crate::value::{Type, Value};

/// Where each result begins, in elements of the input.
pub(crate) type Offsets = SmallVec<[usize; 1]>;

/// The offsets of an op that only looks at a part of its input; nothing for others.
pub(crate) fn offsets(op: &Op, ins: &[Arc<Type>], outs: &[Arc<Type>]) -> Option<Offsets> {
    let x = ins.first().filter(|ty| ty.var.layout == Layout::Dense)?;
    match op.kind.as_str() {
        "reshape" | "assign" => Some(SmallVec::from_elem(0, 1)),
        "slice" => {
            let start = first_dimension(op.int("axis").ok()?, op.int("start").ok()?, x)?;
            Some(SmallVec::from_elem(start, 1))
        }
        "strided_slice" => {
            let of = |name: &str| op.ints(name).ok();
            let (axes, starts, strides) = (of("axes")?, of("starts")?, of("strides")?);
            match (&axes[..], &starts[..], &strides[..]) {
                ([axis], [start], [1]) => {
                    Some(SmallVec::from_elem(first_dimension(*axis, *start, x)?, 1))
                }
                _ => None,
            }
        }
        "split" => {
            first_dimension(op.int("axis").ok()?, 0, x)?;
            let mut next = 0;
            Some(outs.iter().map(|ty| (next, next += ty.numel).0).collect())
        }
        _ => None,
    }
}

/// The offset of a position of the first dimension; nothing if the axis is another one.
fn first_dimension(axis: i64, start: i64, x: &Type) -> Option<usize> {
    let (rank, rows) = (x.dims.len() as i64, *x.dims.first()? as i64);
    if axis != 0 && axis != -rank {
        return None;
    }
    let start = if start < 0 { (start + rows).max(0) } else { start.min(rows) };
    Some(start as usize * (x.numel / x.dims[0].max(1)))
}

/// The results, which share the memory of the input.
pub(crate) fn views(value: &Value, offsets: &Offsets, outs: &[Arc<Type>]) -> SmallVec<[Value; 2]> {
    let Value::Dense(dense) = value else { return SmallVec::new() };
    let parts = offsets.iter().zip(outs);
    parts.map(|(offset, ty)| Value::Dense(dense.part(*offset, ty.numel))).collect()
}
