//! `matmul`: the matrix product of the last two dimensions, each side optionally transposed.
//! Operands have two dimensions, or three with equal leading ones; an operand with two dimensions
//! is shared by all matrices of one with three. Gradients are products again; that of a shared
//! operand is `matmul_sum`, which adds the products over the leading dimension.
//!
//! The batch may be the leading dimension of an operand, also as the dimension that is summed over
//! (`trans_x`). It cannot become the columns of the result: row `i` would then depend on all
//! examples, not on example `i`. Those who want that transpose `Y` first, which says so.

use regatta_ir::schema::{AttrDef, AttrKind, SlotDef, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::gemm::{Epilogue, Mat, gemm};

use crate::def::{no_samples, per_example, spread};
use crate::{Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

const INPUTS: &[SlotDef] = &[one("X"), one("Y")];
const ATTRS: &[AttrDef] = &[("trans_x", AttrKind::Bool(false)), ("trans_y", AttrKind::Bool(false))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema { kind: "matmul", inputs: INPUTS, outputs: &[one("Out")], attrs: ATTRS },
        infer: |i| {
            let (leading, m, n) = product_shape(i)?;
            Ok(vec![VarType::f32(leading.into_iter().chain([m, n]).collect::<Vec<_>>())])
        },
        grad: Grad::Rule(grad),
        kernel: |s| Product::new(s, false)?.kernel(),
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema { kind: "matmul_sum", inputs: INPUTS, outputs: &[one("Out")], attrs: ATTRS },
        infer: |i| {
            i.floats_of_rank("X", 3)?;
            i.floats_of_rank("Y", 3)?;
            let (_, m, n) = product_shape(i)?;
            Ok(vec![VarType::f32([m, n])])
        },
        grad: Grad::None("it is made for the gradient of matmul"),
        kernel: |s| Product::new(s, true)?.kernel(),
        batch: per_example,
        samples: no_samples,
    },
];

/// The leading dimension, if there is one, and the rows and columns of the product.
fn product_shape(i: &Infer<'_>) -> Result<(Option<i64>, i64, i64), Error> {
    let (x, y) = (i.floats("X")?, i.floats("Y")?);
    for (slot, ty) in [("X", x), ("Y", y)] {
        if !matches!(ty.shape.len(), 2 | 3) {
            return Err(i.wrong(slot, "f32 with 2 or 3 dimensions"));
        }
    }
    let trans_y = i.op.bool("trans_y")?;
    let (m, k) = rows_cols(&x.shape, i.op.bool("trans_x")?);
    let (depth, n) = rows_cols(&y.shape, trans_y);
    if depth != k {
        let dimension = if trans_y { "last" } else { "second to last" };
        return Err(i.wrong("Y", &format!("f32 with {k} as its {dimension} dimension (X is {x})")));
    }
    let leading = match (x.shape.len(), y.shape.len()) {
        (2, 2) if trans_y && y.shape[0] == -1 => {
            return Err(i.wrong("Y", "f32 with known rows; to compare all examples, transpose it"));
        }
        (2, 2) => None,
        (3, 3) if x.shape[0] != y.shape[0] => {
            return Err(i.wrong("Y", &format!("f32 with {} matrices (X is {x})", x.shape[0])));
        }
        (3, 2) if y.shape.contains(&-1) => {
            return Err(i.wrong("Y", "f32 of known size, being shared by all matrices of X"));
        }
        (2, 3) if x.shape.contains(&-1) => {
            return Err(i.wrong("X", "f32 of known size, being shared by all matrices of Y"));
        }
        (2, _) => Some(y.shape[0]),
        _ => Some(x.shape[0]),
    };
    Ok((leading, m, n))
}

fn rows_cols<T: Copy>(shape: &[T], trans: bool) -> (T, T) {
    let [.., rows, cols] = shape else { unreachable!("two dimensions at least") };
    if trans { (*cols, *rows) } else { (*rows, *cols) }
}

/// With `A = op(X)` and `B = op(Y)`: `dA = dOut B'` and `dB = A' dOut`, each turned back if its
/// operand was turned.
fn grad(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let Some(dout) = g.dout("Out") else { return Ok(vec![]) };
    let (x, y) = (g.op.ins("X")[0].as_str(), g.op.ins("Y")[0].as_str());
    let (trans_x, trans_y) = (g.op.bool("trans_x")?, g.op.bool("trans_y")?);
    let rank = |v: &str| (g.ty)(v).shape.len();
    let (x_shared, y_shared) = (rank(x) < rank(y), rank(y) < rank(x));
    let product = |a: &str, trans_a: bool, b: &str, trans_b: bool, shared: bool, to: &str| {
        Op::new(if shared { "matmul_sum" } else { "matmul" })
            .input("X", a)
            .input("Y", b)
            .attr("trans_x", trans_a)
            .attr("trans_y", trans_b)
            .output("Out", to)
    };
    let mut ops = Vec::new();
    if let Some(dx) = g.din("X") {
        ops.push(if trans_x {
            product(y, trans_y, &dout, true, x_shared, &dx)
        } else {
            product(&dout, false, y, !trans_y, x_shared, &dx)
        });
    }
    if let Some(dy) = g.din("Y") {
        ops.push(if trans_y {
            product(&dout, true, x, trans_x, y_shared, &dy)
        } else {
            product(x, !trans_x, &dout, false, y_shared, &dy)
        });
    }
    Ok(ops)
}

/// One product, or a row of them.
struct Product {
    /// How many products.
    count: usize,
    m: usize,
    n: usize,
    k: usize,
    trans_x: bool,
    trans_y: bool,
    /// From one product to the next, in X, Y and the result; 0 where they share it.
    steps: (usize, usize, usize),
}

impl Product {
    fn new(s: &Spec<'_>, sum: bool) -> Result<Product, Error> {
        let (x, y) = (s.dims(0), s.dims(1));
        let (trans_x, trans_y) = (s.op.bool("trans_x")?, s.op.bool("trans_y")?);
        let (m, k) = rows_cols(&x, trans_x);
        let (_, n) = rows_cols(&y, trans_y);
        let step = |dims: &[usize], size: usize| if dims.len() == 3 { size } else { 0 };
        let count = if x.len() == 3 {
            x[0]
        } else if y.len() == 3 {
            y[0]
        } else {
            1
        };
        let steps = (step(&x, m * k), step(&y, k * n), if sum { 0 } else { m * n });
        let mut p = Product { count, m, n, k, trans_x, trans_y, steps };
        if p.steps.1 == 0 && !trans_x {
            // All rows of X meet the same Y: one tall product.
            p = Product { count: 1, m: m * count, ..p };
        } else if sum && trans_x && !trans_y {
            // The matrices stand on top of each other on both sides: one deep product.
            p = Product { count: 1, k: k * count, ..p };
        }
        Ok(p)
    }

    fn kernel(self) -> Result<Kernel, Error> {
        let Product { count, m, n, k, trans_x, trans_y, steps } = self;
        let (x_width, y_width) = (if trans_x { m } else { k }, if trans_y { k } else { n });
        Ok(Box::new(move |io, ctx| {
            let (x, y, out) = (io.f32(0), io.f32(1), io.out_f32(0));
            if count == 0 {
                // No example in this batch: a sum over none.
                out.fill(0.0);
            }
            for i in 0..count {
                let a = Mat { data: &x[i * steps.0..], ld: x_width, trans: trans_x };
                let b = Mat { data: &y[i * steps.1..], ld: y_width, trans: trans_y };
                let add = i > 0 && steps.2 == 0;
                let c = &mut out[i * steps.2..];
                gemm(m, n, k, a, b, add, c, n, Epilogue::default(), &mut ctx.gemm);
            }
            Ok(())
        }))
    }
}

fn samples() -> Vec<Sample> {
    let pair = |name, x: &[usize], y: &[usize], trans_x: bool, trans_y: bool| {
        Sample::x(name, spread(x, -1.0, 1.0))
            .with("Y", spread(y, -1.0, 1.0))
            .attr("trans_x", trans_x)
            .attr("trans_y", trans_y)
    };
    vec![
        pair("plain", &[2, 3], &[3, 4], false, false),
        pair("X turned", &[3, 2], &[3, 4], true, false),
        pair("Y turned", &[2, 3], &[4, 3], false, true),
        pair("both turned", &[3, 2], &[4, 3], true, true),
        pair("matrices", &[2, 2, 3], &[2, 3, 4], false, false),
        pair("matrices, X turned", &[2, 3, 2], &[2, 3, 4], true, false),
        pair("matrices, Y turned", &[2, 2, 3], &[2, 4, 3], false, true),
        pair("matrices, both turned", &[2, 3, 2], &[2, 4, 3], true, true),
        pair("Y shared", &[2, 2, 3], &[3, 4], false, false),
        pair("Y shared, X turned", &[2, 3, 2], &[3, 4], true, false),
        pair("Y shared, Y turned", &[2, 2, 3], &[4, 3], false, true),
        pair("Y shared, both turned", &[2, 3, 2], &[4, 3], true, true),
        pair("X shared", &[2, 3], &[2, 3, 4], false, false),
        pair("X shared, both turned", &[3, 2], &[2, 4, 3], true, true),
    ]
}
