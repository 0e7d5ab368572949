//! Gradients of several ranks become one: `scale_by_share`, `all_reduce_start` and
//! `all_reduce_wait` for dense ones, `gather_rows_start` and `gather_rows_wait` for row-sparse
//! ones.
//!
//! An exchange is a pair of ops: the first copies the values away and lets them travel, the second
//! waits and writes the result over them. What stands between the two runs meanwhile.

use std::sync::Arc;

use regatta_ir::schema::{AttrDef, AttrKind, many, one};
use regatta_ir::{Error, Layout, Schema, VarType};
use regatta_tensor::{DType, RowIndex, RowSparse};

use crate::comm::{Exchange, Reply, Wire};
use crate::def::{linear, no_samples, whole};
use crate::{Grad, Infer, Io, Kernel, KernelError, OpDef, Spec};

const NOT_DIFFERENTIATED: Grad = Grad::None("it works on gradients");

/// Which exchange: the same in the op that starts it and the one that waits.
pub(crate) const NAME: AttrDef = ("name", AttrKind::RequiredStr);

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        // The mean over the examples of all ranks is the sum of the ranks' means, each times the
        // rank's part of the examples.
        schema: Schema {
            kind: "scale_by_share",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NOT_DIFFERENTIATED,
        kernel: |_| {
            let kernel: Kernel = Box::new(move |io, ctx| {
                let share = ctx.peers.share;
                io.out_f32(0).iter_mut().zip(io.f32(0)).for_each(|(o, x)| *o = x * share);
                Ok(())
            });
            Ok(kernel)
        },
        batch: linear,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "all_reduce_start",
            inputs: &[many("X")],
            outputs: &[one("Handle")],
            attrs: &[NAME, ("wire", AttrKind::Str("f32")), ("node_ranks", AttrKind::Int(0))],
        },
        infer: |i| {
            let wire: Result<Wire, String> = i.op.str("wire")?.parse();
            wire.map_err(|e| i.bad_attr("wire", e))?;
            dense_inputs(i)?;
            Ok(vec![handle()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let wire: Wire = s.op.str("wire")?.parse().expect("checked by infer");
            let node_ranks = s.op.int("node_ranks")?.max(0) as usize;
            start_floats(s, move |values| Exchange::AllReduce { values, wire, node_ranks })
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: wait_schema("all_reduce_wait"),
        infer: infer_wait,
        grad: NOT_DIFFERENTIATED,
        kernel: wait_floats,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "gather_rows_start",
            inputs: &[one("X")],
            outputs: &[one("Handle")],
            attrs: &[NAME],
        },
        infer: |i| match i.ty("X").layout {
            Layout::Rows => Ok(vec![handle()]),
            _ => Err(i.wrong("X", "a row-sparse gradient")),
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let name = exchange_name(s)?;
            let kernel: Kernel = Box::new(move |io, ctx| {
                let rows = io.rows(0);
                // Rows of a batch that does not count must not be touched by updates.
                let count = if ctx.peers.share == 0.0 { 0 } else { rows.rows.len() };
                let comm = ctx.peers.comm()?;
                let mut spare = comm.take_parts(&name);
                let own = spare.get_mut(comm.rank()).map(std::mem::take);
                let mut bytes = own.unwrap_or_default();
                encode_rows(rows, count, &mut bytes);
                comm.start(&name, Exchange::AllGather { bytes, spare })?;
                io.out_f32(0)[0] = 0.0;
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: wait_schema("gather_rows_wait"),
        infer: infer_wait,
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let name = exchange_name(s)?;
            let (height, width) = (s.outs[0].shape[0], s.outs[0].shape[1] as usize);
            let mut index = RowIndex::default();
            let kernel: Kernel = Box::new(move |io, ctx| {
                let comm = ctx.peers.comm()?;
                let Reply::Gathered(parts) = comm.wait(&name)? else {
                    return Err(KernelError("an exchange brought floats, not rows".into()));
                };
                let out = io.out_rows(0);
                out.width = width;
                out.height = height.max(0) as usize;
                merge_rows(&parts, out, &mut index)?;
                comm.give_parts(&name, parts);
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
];

/// What stands for an exchange that is in flight, so that its two ops depend on each other.
pub(crate) fn handle() -> VarType {
    VarType::f32([1])
}

pub(crate) fn exchange_name(s: &Spec<'_>) -> Result<Arc<str>, Error> {
    Ok(Arc::from(s.op.str("name")?))
}

/// Schema of an op that writes the result of an exchange over the values that were sent.
pub(crate) const fn wait_schema(kind: &'static str) -> Schema {
    Schema {
        kind,
        inputs: const { &[one("Handle"), many("X")] },
        outputs: const { &[many("XOut")] },
        attrs: const { &[NAME] },
    }
}

pub(crate) fn infer_wait(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    i.expect("Handle", &handle())?;
    Ok(i.many("X").to_vec())
}

pub(crate) fn dense_inputs(i: &Infer<'_>) -> Result<(), Error> {
    for (n, ty) in i.many("X").iter().enumerate() {
        if ty.layout != Layout::Dense || ty.dtype != DType::F32 {
            return Err(i.wrong_nth("X", n, "dense f32"));
        }
    }
    Ok(())
}

/// A kernel that copies all inputs into one buffer and starts an exchange with it.
pub(crate) fn start_floats(
    s: &Spec<'_>,
    exchange: impl Fn(Vec<f32>) -> Exchange + Send + 'static,
) -> Result<Kernel, Error> {
    let (name, n) = (exchange_name(s)?, s.ins.len());
    Ok(Box::new(move |io, ctx| {
        let comm = ctx.peers.comm()?;
        let mut values = comm.take_buffer(&name);
        values.clear();
        (0..n).for_each(|i| values.extend_from_slice(io.f32(i)));
        comm.start(&name, exchange(values))?;
        io.out_f32(0)[0] = 0.0;
        Ok(())
    }))
}

/// A kernel that waits for an exchange of floats and splits the result into all outputs.
pub(crate) fn wait_floats(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (name, n) = (exchange_name(s)?, s.outs.len());
    Ok(Box::new(move |io, ctx| {
        let comm = ctx.peers.comm()?;
        let values = floats(comm.wait(&name)?)?;
        scatter(io, n, &values)?;
        comm.give_buffer(&name, values);
        Ok(())
    }))
}

pub(crate) fn floats(reply: Reply) -> Result<Vec<f32>, KernelError> {
    match reply {
        Reply::Floats(values) => Ok(values),
        Reply::Gathered(_) => Err(KernelError("an exchange brought bytes, not floats".into())),
    }
}

fn scatter(io: &mut Io<'_>, n: usize, values: &[f32]) -> Result<(), KernelError> {
    let mut rest = values;
    for i in 0..n {
        let out = io.out_f32(i);
        let Some((now, later)) = rest.split_at_checked(out.len()) else {
            return Err(KernelError(format!("an exchange brought only {} floats", values.len())));
        };
        out.copy_from_slice(now);
        rest = later;
    }
    Ok(())
}

/// Writes row numbers and values of the first `count` rows over `bytes`.
pub fn encode_rows(rows: &RowSparse, count: usize, bytes: &mut Vec<u8>) {
    let values = &rows.values[..count * rows.width];
    bytes.resize(8 + 8 * count + 4 * values.len(), 0);
    let (head, rest) = bytes.split_at_mut(8);
    head.copy_from_slice(&(count as u64).to_le_bytes());
    let (row_bytes, value_bytes) = rest.split_at_mut(8 * count);
    let row_bytes = row_bytes.as_chunks_mut().0;
    row_bytes.iter_mut().zip(&rows.rows).for_each(|(to, row)| *to = row.to_le_bytes());
    let value_bytes = value_bytes.as_chunks_mut().0;
    value_bytes.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_le_bytes());
}

/// Adds up the rows of all ranks in the order of ranks. `out` knows its width and height.
///
/// # Errors
/// If bytes of a rank are no rows of such a matrix, naming the rank.
pub fn merge_rows(
    parts: &[Vec<u8>],
    out: &mut RowSparse,
    index: &mut RowIndex,
) -> Result<(), KernelError> {
    out.clear();
    let mut total = 0;
    for (rank, bytes) in parts.iter().enumerate() {
        let rows = EncodedRows::read(bytes, out.width, out.height)
            .ok_or_else(|| KernelError(format!("rank {rank} sent rows that do not fit")))?;
        total += rows.rows.len();
    }
    index.clear(total);
    for bytes in parts {
        let Some(rows) = EncodedRows::read(bytes, out.width, out.height) else { continue };
        rows.add_to(out, index);
    }
    Ok(())
}

/// What [`encode_rows`] has written.
struct EncodedRows<'a> {
    rows: &'a [[u8; 8]],
    values: &'a [[u8; 4]],
}

impl EncodedRows<'_> {
    /// `None` if the bytes are no rows of such a matrix.
    fn read(bytes: &[u8], width: usize, height: usize) -> Option<EncodedRows<'_>> {
        let (count, rest) = bytes.split_first_chunk::<8>()?;
        let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
        let n_values = count.checked_mul(width)?;
        if rest.len() != count.checked_mul(8)?.checked_add(n_values.checked_mul(4)?)? {
            return None;
        }
        let (rows, values) = rest.split_at(8 * count);
        let (rows, values) = (rows.as_chunks().0, values.as_chunks().0);
        let fits = |row: &[u8; 8]| height == 0 || u64::from_le_bytes(*row) < height as u64;
        rows.iter().all(fits).then_some(EncodedRows { rows, values })
    }

    /// As [`RowSparse::add_rows`].
    fn add_to(&self, out: &mut RowSparse, index: &mut RowIndex) {
        let width = out.width;
        for (row, values) in self.rows.iter().zip(self.values.chunks_exact(width.max(1))) {
            let row = u64::from_le_bytes(*row);
            let values = values.iter().map(|value| f32::from_le_bytes(*value));
            let (at, new) = index.insert(row);
            if new {
                out.rows.push(row);
                out.values.extend(values);
            } else {
                let sums = &mut out.values[at * width..(at + 1) * width];
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(rows: &RowSparse) -> Vec<u8> {
        // As if it had held more rows before.
        let mut bytes = vec![7; 999];
        encode_rows(rows, rows.rows.len(), &mut bytes);
        bytes
    }

    #[test]
    fn rows_of_ranks_are_added_up_in_their_order() {
        let rows = |rows: &[u64], values: &[f32]| RowSparse {
            rows: rows.to_vec(),
            values: values.to_vec(),
            width: 2,
            height: 9,
        };
        let parts =
            [rows(&[7, 2], &[1., 2., 3., 4.]), rows(&[], &[]), rows(&[3, 7], &[5., 6., 10., 20.])];
        let bytes: Vec<Vec<u8>> = parts.iter().map(encoded).collect();
        let mut out = RowSparse { width: 2, height: 9, ..RowSparse::default() };
        merge_rows(&bytes, &mut out, &mut RowIndex::default()).unwrap();
        assert_eq!(out, rows(&[7, 2, 3], &[11., 22., 3., 4., 5., 6.]));
    }

    #[test]
    fn malformed_rows_name_the_rank() {
        let good = encoded(&RowSparse { width: 1, height: 4, ..RowSparse::default() });
        let beyond = encoded(&RowSparse { rows: vec![4], values: vec![1.0], width: 1, height: 4 });
        for bad in [vec![], vec![1, 0, 0, 0, 0, 0, 0, 0], vec![255; 20], beyond] {
            let mut out = RowSparse { width: 1, height: 4, ..RowSparse::default() };
            let parts = [good.clone(), bad];
            let error = merge_rows(&parts, &mut out, &mut RowIndex::default()).unwrap_err();
            assert_eq!(error.to_string(), "rank 1 sent rows that do not fit");
        }
    }
}
