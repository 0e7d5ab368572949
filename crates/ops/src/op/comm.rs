//! What a trainer program exchanges with parameter servers: `pull_sparse`, `push_sparse`, `send` and
//! `recv`. They are part of the printed program; the training loop performs them, because they wait
//! for the network and overlap with the rest of the step, so they have no kernel.

use regatta_ir::schema::{AttrDef, AttrKind, many, one};
use regatta_ir::{Error, Layout, Schema, VarType};
use regatta_tensor::DType;

use crate::def::{no_samples, whole};
use crate::{Grad, Kernel, OpDef, Spec};

const EXCHANGED: Grad = Grad::None("it exchanges values with servers");

const TABLE: AttrDef = ("table", AttrKind::RequiredStr);

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        // The distinct ids of a batch become rows of a small local table `Out`; `Local` are the
        // same ids as row numbers of it. Row 0 stays zero and stands for the padding id.
        schema: Schema {
            kind: "pull_sparse",
            inputs: &[many("Ids")],
            outputs: &[one("Out"), many("Local")],
            attrs: &[
                TABLE,
                ("dim", AttrKind::RequiredInt),
                ("padding_idx", AttrKind::Int(-1)),
                ("modulo", AttrKind::Int(0)),
            ],
        },
        infer: |i| {
            let ids = i.many("Ids");
            for (ty, name) in ids.iter().zip(i.op.ins("Ids")) {
                if ty.dtype != DType::U64 || ty.layout == Layout::Rows {
                    return Err(Error::Type {
                        op: i.op.kind.clone(),
                        slot: "Ids".into(),
                        var: name.clone(),
                        expected: "u64 ids".into(),
                        actual: ty.to_string(),
                    });
                }
            }
            if i.op.outs("Local").len() != ids.len() {
                return Err(Error::Slot {
                    op: i.op.kind.clone(),
                    slot: "Local".into(),
                    reason: format!("should hold {} variables, one per input", ids.len()),
                });
            }
            let table = VarType::f32([-2, i.op.int("dim")?]);
            Ok(std::iter::once(table).chain(ids.iter().cloned()).collect())
        },
        grad: EXCHANGED,
        kernel: no_kernel,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "push_sparse",
            inputs: &[one("Grad")],
            outputs: &[],
            attrs: &[TABLE],
        },
        infer: |i| match i.ty("Grad").layout {
            Layout::Rows => Ok(vec![]),
            _ => Err(i.wrong("Grad", "a row-sparse gradient")),
        },
        grad: EXCHANGED,
        kernel: no_kernel,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema { kind: "send", inputs: &[many("X")], outputs: &[], attrs: &[] },
        infer: |_| Ok(vec![]),
        grad: EXCHANGED,
        kernel: no_kernel,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "recv",
            inputs: &[many("Param")],
            outputs: &[many("ParamOut")],
            attrs: &[],
        },
        infer: |i| Ok(i.many("Param").to_vec()),
        grad: EXCHANGED,
        kernel: no_kernel,
        batch: whole,
        samples: no_samples,
    },
];

fn no_kernel(s: &Spec<'_>) -> Result<Kernel, Error> {
    Err(Error::Pass {
        pass: "executor".into(),
        reason: format!(
            "op {} waits for parameter servers; run the compute stage of the trainer program and \
             let the training loop exchange values",
            s.op.kind
        ),
    })
}
