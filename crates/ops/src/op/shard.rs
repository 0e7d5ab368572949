//! Ranks that divide the updates between them: `reduce_start` and `reduce_wait` bring the sum of
//! gradients to the rank that updates, `broadcast_start` and `broadcast_wait` bring its parameters
//! to all; `broadcast_rows_start` and `broadcast_rows_wait` only the rows that a gradient has
//! touched.

use regatta_ir::schema::{AttrDef, AttrKind, many, one};
use regatta_ir::{Layout, Schema};

use super::collective::{
    NAME, dense_inputs, exchange_name, floats, handle, infer_wait, start_floats, wait_floats,
    wait_schema,
};
use crate::comm::Exchange;
use crate::def::{no_samples, whole};
use crate::{Grad, Infer, Kernel, KernelError, OpDef};

const NOT_DIFFERENTIATED: Grad = Grad::None("it moves values between ranks");

const ROOT: AttrDef = ("root", AttrKind::RequiredInt);

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: start_schema("reduce_start"),
        infer: |i| dense_inputs(i).map(|()| vec![handle()]),
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let root = s.op.int("root")? as usize;
            start_floats(s, move |values| Exchange::Reduce { values, root })
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: wait_schema("reduce_wait"),
        infer: infer_wait,
        grad: NOT_DIFFERENTIATED,
        kernel: wait_floats,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: start_schema("broadcast_start"),
        infer: |i| dense_inputs(i).map(|()| vec![handle()]),
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let root = s.op.int("root")? as usize;
            start_floats(s, move |values| Exchange::Broadcast { values, root })
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: wait_schema("broadcast_wait"),
        infer: infer_wait,
        grad: NOT_DIFFERENTIATED,
        kernel: wait_floats,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "broadcast_rows_start",
            inputs: &[one("Param"), one("Grad")],
            outputs: &[one("Handle")],
            attrs: &[NAME, ROOT],
        },
        infer: |i| {
            rows_of(i)?;
            Ok(vec![handle()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let (name, root) = (exchange_name(s)?, s.op.int("root")? as usize);
            let kernel: Kernel = Box::new(move |io, ctx| {
                let comm = ctx.peers.comm()?;
                let (param, grad) = (io.f32(0), io.rows(1));
                let mut values = comm.take_buffer(&name);
                values.clear();
                for &row in &grad.rows {
                    let at = row as usize * grad.width;
                    values.extend_from_slice(&param[at..at + grad.width]);
                }
                comm.start(&name, Exchange::Broadcast { values, root })?;
                io.out_f32(0)[0] = 0.0;
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "broadcast_rows_wait",
            inputs: &[one("Handle"), one("Grad"), one("Param")],
            outputs: &[one("ParamOut")],
            attrs: &[NAME],
        },
        infer: |i| {
            i.expect("Handle", &handle())?;
            rows_of(i)?;
            Ok(vec![i.ty("Param").clone()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let name = exchange_name(s)?;
            let kernel: Kernel = Box::new(move |io, ctx| {
                let comm = ctx.peers.comm()?;
                let values = floats(comm.wait(&name)?)?;
                let (grad, param) = (io.rows(1), io.out_f32(0));
                if values.len() != grad.values.len() {
                    return Err(KernelError("ranks have other rows in their gradients".into()));
                }
                for (row, new) in grad.rows.iter().zip(values.chunks_exact(grad.width.max(1))) {
                    let at = *row as usize * grad.width;
                    param[at..at + grad.width].copy_from_slice(new);
                }
                comm.give_buffer(&name, values);
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
];

const fn start_schema(kind: &'static str) -> Schema {
    Schema {
        kind,
        inputs: const { &[many("X")] },
        outputs: const { &[one("Handle")] },
        attrs: const { &[NAME, ROOT] },
    }
}

fn rows_of(i: &Infer<'_>) -> Result<(), regatta_ir::Error> {
    let (param, grad) = (i.floats("Param")?, i.ty("Grad"));
    if grad.layout == Layout::Rows && grad.shape == param.shape {
        Ok(())
    } else {
        Err(i.wrong("Grad", &format!("the row-sparse gradient of {param}")))
    }
}
