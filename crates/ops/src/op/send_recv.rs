//! `graph_send_recv`: rows of X sent along edges to rows of the result, where those that arrive are
//! added up, averaged, or compared (`reduce` is `sum`, `mean`, `max` or `min`). A row that nothing
//! reaches is 0. Also the reduction of segments, with row numbers as senders.

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Schema, VarType};
use regatta_tensor::Tensor;

use super::index::{indices, position};
use crate::def::{NO_SECOND, no_samples, spread};
use crate::{Batch, Grad, Infer, Kernel, KernelError, OpDef, Sample, Spec};

const ATTRS: &[AttrDef] = &[("reduce", AttrKind::Str("sum")), ("out_size", AttrKind::Int(-1))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "graph_send_recv",
            inputs: &[one("X"), one("Src"), one("Dst")],
            outputs: &[one("Out")],
            attrs: ATTRS,
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Src", "Dst", "Out"]))),
        kernel: forward,
        batch: |_| Batch::RowsOf(&[]),
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "graph_send_recv_grad",
            inputs: &[one("X"), one("Src"), one("Dst"), one("Out"), one("dOut")],
            outputs: &[one("dX")],
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![i.floats("X")?.clone()]),
        grad: NO_SECOND,
        kernel: backward,
        batch: |_| Batch::RowsOf(&[]),
        samples: no_samples,
    },
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reduce {
    Sum,
    Mean,
    Max,
    Min,
}

fn reduce(name: &str) -> Option<Reduce> {
    Some(match name {
        "sum" => Reduce::Sum,
        "mean" => Reduce::Mean,
        "max" => Reduce::Max,
        "min" => Reduce::Min,
        _ => return None,
    })
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    let (src, dst) = (indices(i, "Src")?, indices(i, "Dst")?);
    if src.shape.len() != 1 {
        return Err(i.wrong("Src", "i64 with one dimension"));
    }
    i.expect("Dst", src)?;
    if x.shape.is_empty() || dst.shape.len() != 1 {
        return Err(i.wrong("X", "f32 with at least one dimension"));
    }
    let name = i.op.str("reduce")?;
    if reduce(name).is_none() {
        let reason = format!("is \"{name}\", but should be \"sum\", \"mean\", \"max\" or \"min\"");
        return Err(i.bad_attr("reduce", reason));
    }
    let mut out = x.clone();
    if let n @ 0.. = i.op.int("out_size")? {
        out.shape[0] = n;
    }
    Ok(vec![out])
}

/// The edges of one op.
struct Edges {
    reduce: Reduce,
    senders: usize,
    receivers: usize,
    width: usize,
    /// Rows that arrived at each receiver; counted by each run.
    arrived: Vec<u32>,
}

impl Edges {
    fn new(s: &Spec<'_>, receivers: usize) -> Result<Edges, Error> {
        let dims = s.dims(0);
        let reduce = reduce(s.op.str("reduce")?).unwrap_or(Reduce::Sum);
        let width = dims[1..].iter().product();
        Ok(Edges { reduce, senders: dims[0], receivers, width, arrived: vec![0; receivers] })
    }

    /// Calls `f` with the places of sender and receiver, and which row this is at the receiver.
    fn each(
        &mut self,
        src: &[i64],
        dst: &[i64],
        mut f: impl FnMut(usize, usize, u32),
    ) -> Result<(), KernelError> {
        self.arrived.fill(0);
        for (&from, &to) in src.iter().zip(dst) {
            let from = position(from, self.senders, 0)?;
            let to = position(to, self.receivers, 0)?;
            f(from * self.width, to * self.width, self.arrived[to]);
            self.arrived[to] += 1;
        }
        Ok(())
    }
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let mut edges = Edges::new(s, s.outs[0].shape[0] as usize)?;
    let (reduce, width) = (edges.reduce, edges.width);
    Ok(Box::new(move |io, _| {
        let (x, out) = (io.f32(0), io.out_f32(0));
        out.fill(0.0);
        edges.each(io.i64(1), io.i64(2), |from, to, nth| {
            let rows = out[to..to + width].iter_mut().zip(&x[from..from + width]);
            match reduce {
                _ if nth == 0 => rows.for_each(|(o, &x)| *o = x),
                Reduce::Sum | Reduce::Mean => rows.for_each(|(o, &x)| *o += x),
                Reduce::Max => rows.for_each(|(o, &x)| *o = if x > *o { x } else { *o }),
                Reduce::Min => rows.for_each(|(o, &x)| *o = if x < *o { x } else { *o }),
            }
        })?;
        if reduce == Reduce::Mean && width > 0 {
            for (row, &n) in out.chunks_exact_mut(width).zip(&edges.arrived).filter(|r| *r.1 > 1) {
                row.iter_mut().for_each(|o| *o /= n as f32);
            }
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let mut edges = Edges::new(s, s.dims(3)[0])?;
    let (reduce, width) = (edges.reduce, edges.width);
    let mut counts = vec![0u32; edges.receivers];
    Ok(Box::new(move |io, _| {
        let (x, src, dst) = (io.f32(0), io.i64(1), io.i64(2));
        let (out, d, dx) = (io.f32(3), io.f32(4), io.out_f32(0));
        dx.fill(0.0);
        edges.each(src, dst, |_, _, _| {})?;
        counts.copy_from_slice(&edges.arrived);
        edges.each(src, dst, |from, to, _| {
            let share = match reduce {
                Reduce::Mean => 1.0 / counts[to / width.max(1)] as f32,
                _ => 1.0,
            };
            for i in 0..width {
                let flows =
                    matches!(reduce, Reduce::Sum | Reduce::Mean) || x[from + i] == out[to + i];
                dx[from + i] += if flows { share * d[to + i] } else { 0.0 };
            }
        })
    }))
}

fn samples() -> Vec<Sample> {
    let of = |name, reduce: &str| {
        let ids = |x: [i64; 4]| Tensor::from_i64(&[4], x.to_vec()).expect("lengths agree");
        Sample::x(name, spread(&[3, 2], -1.0, 1.0))
            .with("Src", ids([0, 1, 2, 0]))
            .with("Dst", ids([1, 2, 1, 0]))
            .attr("reduce", reduce)
    };
    vec![
        of("added up", "sum").attr("out_size", 4),
        of("averaged", "mean"),
        of("largest", "max"),
        of("smallest", "min"),
    ]
}
