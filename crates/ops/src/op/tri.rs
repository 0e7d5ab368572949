//! `tril_triu`: matrices `[.., rows, cols]` with zeros above (`lower`) or below a diagonal;
//! diagonal 1 is the one above the main diagonal, -1 the one below it. Its gradient is the same of
//! `dOut`.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};

use super::element::{Element, by_dtype};
use crate::def::{linear, spread};
use crate::{Grad, Infer, Kernel, OpDef, Sample, Spec};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "tril_triu",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[("diagonal", AttrKind::Int(0)), ("lower", AttrKind::Bool(true))],
    },
    infer,
    grad: Grad::Rule(|g| {
        let (Some(dx), Some(dout)) = (g.din("X"), g.dout("Out")) else { return Ok(vec![]) };
        let mut op = Op::new("tril_triu");
        op.attrs = g.op.attrs.clone();
        Ok(vec![op.input("X", &dout).output("Out", &dx)])
    }),
    kernel: |s| by_dtype!(s.ins[0], forward(s)),
    batch: linear,
    samples: || {
        let of = |name, shape: &[usize], diagonal: i64, lower: bool| {
            let sample = Sample::x(name, spread(shape, -1.0, 1.0));
            sample.attr("diagonal", diagonal).attr("lower", lower)
        };
        vec![
            of("lower", &[3, 4], 0, true),
            of("upper", &[4, 3], 0, false),
            of("lower, without the diagonal", &[2, 3, 3], -1, true),
            of("upper, from below the diagonal", &[2, 3, 2], -1, false),
            of("all of it", &[2, 2], 5, true),
        ]
    },
}];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.dense("X")?;
    match x.shape[..] {
        [.., rows, cols] if rows >= 0 && cols >= 0 => Ok(vec![x.clone()]),
        _ => Err(i.wrong("X", "an array [.., rows, cols] with known rows and columns")),
    }
}

fn forward<T: Element>(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, cols) = s.matrix(0);
    let rows = s.dims(0)[s.ins[0].shape.len() - 2];
    let (diagonal, lower) = (s.op.int("diagonal")?, s.op.bool("lower")?);
    Ok(Box::new(move |io, _| {
        let (x, out) = (T::input(io, 0), T::output(io, 0));
        if out.is_empty() {
            return Ok(());
        }
        for (n, (x, out)) in x.chunks_exact(cols).zip(out.chunks_exact_mut(cols)).enumerate() {
            let row = (n % rows) as i64;
            // The first column after the diagonal, or the diagonal's own.
            let edge = row.saturating_add(diagonal).saturating_add(i64::from(lower));
            let edge = edge.clamp(0, cols as i64) as usize;
            let (kept, dropped) = if lower { (0..edge, edge..cols) } else { (edge..cols, 0..edge) };
            out[kept.clone()].copy_from_slice(&x[kept]);
            out[dropped].fill(T::default());
        }
        Ok(())
    }))
}
