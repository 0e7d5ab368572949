//! `sum`: adds any number of variables of one shape, floats or signed integers (which wrap around);
//! also merges row-sparse gradients.

use regatta_ir::schema::many;
use regatta_ir::{Layout, Op, Schema, grad_name};
use regatta_tensor::{DType, RowIndex, RowSparse};

use crate::def::{linear, spread};
use crate::{Grad, Io, Kernel, OpDef, Sample};

pub(crate) static DEFS: &[OpDef] = &[OpDef {
    schema: Schema {
        kind: "sum",
        inputs: &[many("X")],
        outputs: &[regatta_ir::schema::one("Out")],
        attrs: &[],
    },
    infer: |i| {
        let types = i.many("X");
        let first = types.iter().find(|t| t.layout == Layout::Dense).unwrap_or(&types[0]);
        for (n, ty) in types.iter().enumerate() {
            let adds = match ty.dtype {
                DType::F32 => ty.layout != Layout::Ragged,
                DType::I64 => ty.layout == Layout::Dense,
                DType::U64 | DType::F16 | DType::BF16 => false,
            };
            if !adds {
                return Err(i.wrong_nth("X", n, "dense f32 or i64, or row-sparse f32"));
            }
            if ty.shape != first.shape || ty.dtype != first.dtype {
                return Err(i.wrong_nth("X", n, &first.to_string()));
            }
        }
        Ok(vec![first.clone()])
    },
    grad: Grad::Rule(|g| {
        let Some(dout) = g.dout("Out") else { return Ok(vec![]) };
        let wanted = g.op.ins("X").iter().filter(|v| (g.has_grad)(v));
        Ok(wanted
            .map(|v| Op::new("assign").input("X", &dout).output("Out", &grad_name(v)))
            .collect())
    }),
    kernel: |s| {
        let n = s.ins.len();
        let merged = s.outs[0].layout == Layout::Rows;
        let ints = s.outs[0].dtype == DType::I64;
        let mut index = RowIndex::default();
        let kernel: Kernel = Box::new(move |io, _| {
            if merged {
                merge_rows(io, n, &mut index)
            } else if ints {
                add_ints(io, n)
            } else {
                add_all(io, n)
            }
            Ok(())
        });
        Ok(kernel)
    },
    batch: linear,
    samples: || {
        let x = |low| spread(&[2, 3], low, 1.0);
        vec![Sample {
            name: "three",
            inputs: vec![("X", vec![x(-1.0), x(-0.5), x(0.0)])],
            ..Sample::default()
        }]
    },
}];

fn add_all(io: &mut Io<'_>, n: usize) {
    let out = io.out_f32(0);
    out.fill(0.0);
    for i in 0..n {
        if io.is_rows(i) {
            add_rows(out, io.rows(i));
        } else {
            regatta_kernels::vector::axpy(1.0, io.f32(i), out);
        }
    }
}

fn add_ints(io: &mut Io<'_>, n: usize) {
    let out = io.out_i64(0);
    out.fill(0);
    for i in 0..n {
        out.iter_mut().zip(io.i64(i)).for_each(|(o, x)| *o = o.wrapping_add(*x));
    }
}

fn add_rows(out: &mut [f32], rows: &RowSparse) {
    for (row, values) in rows.iter() {
        let at = row as usize * rows.width;
        for (o, v) in out[at..at + rows.width].iter_mut().zip(values) {
            *o += v;
        }
    }
}

fn merge_rows(io: &mut Io<'_>, n: usize, index: &mut RowIndex) {
    let out = io.out_rows(0);
    out.clear();
    index.clear((0..n).map(|i| io.rows(i).rows.len()).sum());
    for i in 0..n {
        out.add_rows(io.rows(i), index);
    }
}
