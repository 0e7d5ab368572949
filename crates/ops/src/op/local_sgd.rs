//! Ranks that train apart come together: `snapshot_delta` is how far a parameter has moved since
//! all ranks had the same one, `apply_delta` moves that common one by the mean of all ranks' ways.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Layout, Schema};

use crate::def::{no_samples, whole};
use crate::{Grad, Kernel, OpDef};

const NOT_DIFFERENTIATED: Grad = Grad::None("it works on parameters");

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "snapshot_delta",
            inputs: &[one("Snapshot"), one("Param")],
            outputs: &[one("Out")],
            attrs: &[("by_row", AttrKind::Bool(false))],
        },
        infer: |i| {
            let param = i.floats("Param")?;
            i.expect("Snapshot", param)?;
            if !i.op.bool("by_row")? {
                return Ok(vec![param.clone()]);
            }
            i.floats_of_rank("Param", 2)?;
            Ok(vec![param.rows()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let (by_row, dims) = (s.op.bool("by_row")?, s.dims(1));
            let kernel: Kernel = Box::new(move |io, _| {
                let (snapshot, param) = (io.f32(0), io.f32(1));
                if !by_row {
                    let pairs = snapshot.iter().zip(param);
                    io.out_f32(0).iter_mut().zip(pairs).for_each(|(o, (s, w))| *o = s - w);
                    return Ok(());
                }
                // Only rows that have moved: a table is large, and few of its rows are trained.
                let out = io.out_rows(0);
                out.clear();
                (out.height, out.width) = (dims[0], dims[1]);
                let rows = snapshot.chunks_exact(dims[1]).zip(param.chunks_exact(dims[1]));
                for (row, (s, w)) in rows.enumerate().filter(|(_, (s, w))| s != w) {
                    out.rows.push(row as u64);
                    out.values.extend(s.iter().zip(w).map(|(s, w)| s - w));
                }
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "apply_delta",
            inputs: &[one("Delta"), one("Param"), one("Snapshot")],
            outputs: &[one("ParamOut"), one("SnapshotOut")],
            attrs: &[("scale", AttrKind::RequiredFloat)],
        },
        infer: |i| {
            let param = i.floats("Param")?;
            i.expect("Snapshot", param)?;
            let delta = i.ty("Delta");
            if delta.shape != param.shape || delta.layout == Layout::Ragged {
                return Err(i.wrong("Delta", &format!("the way of {param}")));
            }
            Ok(vec![param.clone(), param.clone()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let scale = s.op.float("scale")? as f32;
            let kernel: Kernel = Box::new(move |io, _| {
                let (param, snapshot) = (io.out_f32(0), io.out_f32(1));
                let step = |w: &mut [f32], s: &mut [f32], d: &[f32]| {
                    for ((w, s), d) in w.iter_mut().zip(s).zip(d) {
                        *s -= scale * d;
                        *w = *s;
                    }
                };
                if !io.is_rows(0) {
                    step(param, snapshot, io.f32(0));
                    return Ok(());
                }
                let delta = io.rows(0);
                for (row, d) in delta.iter() {
                    let at = row as usize * delta.width..(row as usize + 1) * delta.width;
                    step(&mut param[at.clone()], &mut snapshot[at], d);
                }
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
];
