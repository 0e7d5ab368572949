//! `offload` and `reload`: a variable waits outside of the memory of temporaries. Both are copies;
//! the executor places what `offload` makes in a memory-mapped file.

use regatta_ir::Schema;
use regatta_ir::schema::one;

use super::element::{Element, by_dtype};
use crate::def::{linear, no_samples};
use crate::{Grad, Kernel, OpDef, Spec};

const INSERTED_LATER: Grad = Grad::None("it is put into programs that have their gradients");

pub(crate) static DEFS: &[OpDef] = &[def("offload"), def("reload")];

const fn def(kind: &'static str) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const { &[one("X")] },
            outputs: const { &[one("Out")] },
            attrs: &[],
        },
        infer: |i| Ok(vec![i.dense("X")?.clone()]),
        grad: INSERTED_LATER,
        kernel: |s| Ok(by_dtype!(s.ins[0], copy(s))),
        batch: linear,
        samples: no_samples,
    }
}

fn copy<T: Element>(_: &Spec<'_>) -> Kernel {
    Box::new(move |io, _| {
        T::output(io, 0).copy_from_slice(T::input(io, 0));
        Ok(())
    })
}
