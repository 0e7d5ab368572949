//! Runs a kernel on values.
#![expect(unsafe_code, reason = "hands buffers of values to kernels")]

use std::sync::Arc;

use regatta_ops::{Buf, Io};
use regatta_tensor::Data;
use smallvec::SmallVec;

use crate::global::{next_draw, with_context};
use crate::template::Prepared;
use crate::value::Value;
use crate::{Error, Result};

type Bufs = SmallVec<[Buf; 8]>;

/// Runs a prepared op. Inputs that are absent or updated in place are `None`; outputs must belong
/// to the caller alone.
pub(crate) fn run<'a>(
    prepared: &Prepared,
    ins: impl Iterator<Item = Option<&'a Value>>,
    outs: &mut [Value],
) -> Result<()> {
    let ins: Bufs = ins.map(|value| value.map_or(Buf::Absent, input)).collect();
    let outs: Bufs = outs.iter_mut().map(output).collect();
    let template = &prepared.template;
    prepared.with_kernel(|kernel| {
        // SAFETY: inputs are borrowed for as long as the kernel runs and nothing writes them: a
        // value is written only through `output`, which asks for a buffer that nobody else has.
        // So every output is the only way to its memory, too. Buffers are made with values in them.
        let mut io = unsafe { Io::new(&ins, &outs) };
        let done = with_context(|ctx| {
            if template.is_random {
                ctx.step = next_draw();
            }
            kernel(&mut io, ctx)
        });
        done.map_err(|e| Error::Kernel { op: template.op.kind.clone(), reason: e.to_string() })
    })
}

fn input(value: &Value) -> Buf {
    match value {
        Value::Dense(dense) => {
            let (range, n) = (dense.range(), dense.len());
            // Kernels never write through an input, so a pointer to shared elements will do.
            match dense.data() {
                Data::F32(v) => Buf::F32(v[range].as_ptr().cast_mut(), n),
                Data::F16(v) => Buf::F16(v[range].as_ptr().cast_mut(), n),
                Data::BF16(v) => Buf::BF16(v[range].as_ptr().cast_mut(), n),
                Data::I64(v) => Buf::I64(v[range].as_ptr().cast_mut(), n),
                Data::U64(v) => Buf::U64(v[range].as_ptr().cast_mut(), n),
            }
        }
        Value::Rows(rows) => Buf::Rows(Arc::as_ptr(rows).cast_mut()),
        Value::Ragged(ragged) => {
            Buf::Ragged { value: Arc::as_ptr(ragged), first: 0, rows: ragged.rows() }
        }
    }
}

fn output(value: &mut Value) -> Buf {
    match value {
        Value::Dense(dense) => {
            let (range, n) = (dense.range(), dense.len());
            match dense.data_mut().expect("an output belongs to the caller alone") {
                Data::F32(v) => Buf::F32(v[range].as_mut_ptr(), n),
                Data::F16(v) => Buf::F16(v[range].as_mut_ptr(), n),
                Data::BF16(v) => Buf::BF16(v[range].as_mut_ptr(), n),
                Data::I64(v) => Buf::I64(v[range].as_mut_ptr(), n),
                Data::U64(v) => Buf::U64(v[range].as_mut_ptr(), n),
            }
        }
        Value::Rows(rows) => {
            Buf::Rows(Arc::get_mut(rows).expect("an output belongs to the caller alone"))
        }
        Value::Ragged(_) => Buf::Absent,
    }
}
