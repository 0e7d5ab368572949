//! `matmul`: the matrix product of the last two dimensions, each side optionally transposed.
//! Leading dimensions are equal or broadcast: one of 1, or one that is not there, repeats. An
//! operand with one dimension is a row on the left and a column on the right; that dimension is not
//! in the result, which is `[1]` for two such operands.
//!
//! Gradients are products again where all matrices differ; that of an operand which all matrices of
//! the other share is `matmul_sum`, which adds the products over the leading dimension. What
//! broadcasts in any other way, and vectors, have `matmul_grad`.
//!
//! The batch may be the leading dimension of an operand, also as the dimension that is summed over
//! (`trans_x`). It cannot become the columns of the result: row `i` would then depend on all
//! examples, not on example `i`. Those who want that transpose `Y` first, which says so.

use regatta_ir::schema::{AttrDef, AttrKind, SlotDef, one, optional};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::gemm::{Epilogue, Mat, gemm};

use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, GradCtx, Infer, Kernel, OpDef, Sample, Spec};

const INPUTS: &[SlotDef] = &[one("X"), one("Y")];
const ATTRS: &[AttrDef] = &[("trans_x", AttrKind::Bool(false)), ("trans_y", AttrKind::Bool(false))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema { kind: "matmul", inputs: INPUTS, outputs: &[one("Out")], attrs: ATTRS },
        infer: |i| Ok(vec![VarType::f32(product_shape(i)?)]),
        grad: Grad::Rule(grad),
        kernel: |s| Products::new(s, false)?.kernel(),
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema { kind: "matmul_sum", inputs: INPUTS, outputs: &[one("Out")], attrs: ATTRS },
        infer: |i| {
            i.floats_of_rank("X", 3)?;
            i.floats_of_rank("Y", 3)?;
            Ok(vec![VarType::f32(&product_shape(i)?[1..])])
        },
        grad: Grad::None("it is made for the gradient of matmul"),
        kernel: |s| Products::new(s, true)?.kernel(),
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "matmul_grad",
            inputs: &[one("X"), one("Y"), one("dOut")],
            outputs: &[optional("dX"), optional("dY")],
            attrs: ATTRS,
        },
        infer: |i| Ok(i.op.outputs.iter().map(|(slot, _)| i.ty(&slot[1..]).clone()).collect()),
        grad: NO_SECOND,
        kernel: |s| Products::new(s, false)?.gradients(s),
        batch: per_example,
        samples: no_samples,
    },
];

/// The operands as matrices: leading dimensions of each, and the rows, depth and columns of the
/// product. `T` is a size that may be unknown.
struct Operands<'a, T> {
    leading: (&'a [T], &'a [T]),
    m: T,
    /// As X says and as Y says.
    k: (T, T),
    n: T,
    trans: (bool, bool),
    /// Whether an operand is a vector.
    vectors: (bool, bool),
}

impl<'a, T: Copy> Operands<'a, T> {
    /// Of shapes with at least one dimension.
    fn new(op: &Op, x: &'a [T], y: &'a [T], one: T) -> Result<Operands<'a, T>, Error> {
        let vectors = (x.len() == 1, y.len() == 1);
        // A vector has no other side to be turned to.
        let trans_x = op.bool("trans_x")? && !vectors.0;
        let trans_y = op.bool("trans_y")? && !vectors.1;
        let (x_leading, x) = x.split_at(x.len().saturating_sub(2));
        let (y_leading, y) = y.split_at(y.len().saturating_sub(2));
        let (rows, cols) = if vectors.0 { (one, x[0]) } else { (x[0], x[1]) };
        let (m, k) = if trans_x { (cols, rows) } else { (rows, cols) };
        let (rows, cols) = if vectors.1 { (y[0], one) } else { (y[0], y[1]) };
        let (depth, n) = if trans_y { (cols, rows) } else { (rows, cols) };
        let leading = (x_leading, y_leading);
        Ok(Operands { leading, m, k: (k, depth), n, trans: (trans_x, trans_y), vectors })
    }
}

/// The shape of the product.
fn product_shape(i: &Infer<'_>) -> Result<Vec<i64>, Error> {
    let (x, y) = (i.floats("X")?, i.floats("Y")?);
    for (slot, ty) in [("X", x), ("Y", y)] {
        if ty.shape.is_empty() {
            return Err(i.wrong(slot, "f32 with at least one dimension"));
        }
    }
    let o = Operands::new(i.op, &x.shape, &y.shape, 1)?;
    if o.k.0 != o.k.1 {
        let dimension = if o.vectors.1 {
            "only"
        } else if o.trans.1 {
            "last"
        } else {
            "second to last"
        };
        let k = o.k.0;
        return Err(i.wrong("Y", &format!("f32 with {k} as its {dimension} dimension (X is {x})")));
    }
    let mut shape = leading_shape(o.leading.0, o.leading.1).ok_or_else(|| {
        let wanted = format!("f32 with {:?} matrices (X is {x})", o.leading.0);
        i.wrong("Y", &wanted)
    })?;
    if shape.is_empty() {
        if o.n == -1 && !o.vectors.0 {
            return Err(i.wrong("Y", "f32 with known rows; to compare all examples, transpose it"));
        }
    } else if o.m == -1 || (o.k.0 == -1 && !o.trans.0) {
        return Err(i.wrong("X", "f32 of known size, being shared by all matrices of Y"));
    } else if o.n == -1 || o.k.0 == -1 {
        return Err(i.wrong("Y", "f32 of known size, being shared by all matrices of X"));
    } else if shape[1..].contains(&-1) {
        return Err(i.wrong("Y", &format!("f32 with the batch where X has it, which is {x}")));
    }
    shape.extend((!o.vectors.0).then_some(o.m));
    shape.extend((!o.vectors.1).then_some(o.n));
    if shape.is_empty() {
        shape.push(1);
    }
    Ok(shape)
}

/// What leading dimensions broadcast to, unknown sizes being equal only to themselves.
fn leading_shape(x: &[i64], y: &[i64]) -> Option<Vec<i64>> {
    let rank = x.len().max(y.len());
    let dim = |s: &[i64], at: usize| (at + s.len()).checked_sub(rank).map_or(1, |at| s[at]);
    let both = (0..rank).map(|at| (dim(x, at), dim(y, at)));
    both.map(|(a, b)| match (a, b) {
        (1, other) | (other, 1) => Some(other),
        _ => (a == b).then_some(a),
    })
    .collect()
}

/// With `A = op(X)` and `B = op(Y)`: `dA = dOut B'` and `dB = A' dOut`, each turned back if its
/// operand was turned.
fn grad(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let Some(dout) = g.dout("Out") else { return Ok(vec![]) };
    let (x, y) = (g.op.ins("X")[0].as_str(), g.op.ins("Y")[0].as_str());
    let (trans_x, trans_y) = (g.op.bool("trans_x")?, g.op.bool("trans_y")?);
    let (shape_x, shape_y) = ((g.ty)(x).shape, (g.ty)(y).shape);
    let (x_shared, y_shared) = match (shape_x.len(), shape_y.len()) {
        (2, 3) => (true, false),
        (3, 2) => (false, true),
        (a, b) if a == b && a >= 2 && shape_x[..a - 2] == shape_y[..a - 2] => (false, false),
        _ => return Ok(g.several(&["X", "Y"], "Out", &["X", "Y"])),
    };
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

/// One product, or many.
struct Products {
    m: usize,
    n: usize,
    k: usize,
    trans_x: bool,
    trans_y: bool,
    /// For each product, which matrix of X and which of Y.
    pairs: Vec<(usize, usize)>,
    /// Whether they are added up.
    sum: bool,
}

impl Products {
    fn new(s: &Spec<'_>, sum: bool) -> Result<Products, Error> {
        let (x, y) = (s.dims(0), s.dims(1));
        let o = Operands::new(s.op, &x, &y, 1)?;
        let ((trans_x, trans_y), (k, _)) = (o.trans, o.k);
        let pairs = pairs(o.leading.0, o.leading.1);
        Ok(Products { m: o.m, n: o.n, k, trans_x, trans_y, pairs, sum })
    }

    /// The same with fewer and larger products, where matrices stand on top of each other.
    fn joined(mut self) -> Products {
        let count = self.pairs.len();
        let x_in_order = self.pairs.iter().enumerate().all(|(i, &(x, _))| x == i);
        if !self.trans_x && !self.sum && x_in_order && self.pairs.iter().all(|&(_, y)| y == 0) {
            // All rows of X meet the same Y: one tall product.
            self = Products { m: self.m * count, pairs: vec![(0, 0)], ..self };
        } else if self.sum && self.trans_x && !self.trans_y {
            // As `matmul_sum` pairs them, X and Y are each in order: one deep product.
            self = Products { k: self.k * count, pairs: vec![(0, 0)], ..self };
        }
        self
    }

    fn kernel(self) -> Result<Kernel, Error> {
        let Products { m, n, k, trans_x, trans_y, pairs, sum } = self.joined();
        let (x_width, y_width) = (if trans_x { m } else { k }, if trans_y { k } else { n });
        Ok(Box::new(move |io, ctx| {
            let (x, y, out) = (io.f32(0), io.f32(1), io.out_f32(0));
            if pairs.is_empty() {
                // No example in this batch: a sum over none.
                out.fill(0.0);
            }
            for (i, &(of_x, of_y)) in pairs.iter().enumerate() {
                let a = Mat { data: &x[of_x * m * k..], ld: x_width, trans: trans_x };
                let b = Mat { data: &y[of_y * k * n..], ld: y_width, trans: trans_y };
                let c = if sum { &mut out[..] } else { &mut out[i * m * n..] };
                gemm(m, n, k, a, b, sum && i > 0, c, n, Epilogue::default(), &mut ctx.gemm);
            }
            Ok(())
        }))
    }

    /// The gradients of both operands; matrices that took part in several products collect theirs.
    fn gradients(self, s: &Spec<'_>) -> Result<Kernel, Error> {
        let Products { m, n, k, trans_x, trans_y, pairs, .. } = self;
        let (x_width, y_width) = (if trans_x { m } else { k }, if trans_y { k } else { n });
        let (dx_at, dy_at) = (s.out_at("dX"), s.out_at("dY"));
        Ok(Box::new(move |io, ctx| {
            let (x, y, d) = (io.f32(0), io.f32(1), io.f32(2));
            let mut dx = dx_at.map(|at| io.out_f32(at));
            let mut dy = dy_at.map(|at| io.out_f32(at));
            for out in [&mut dx, &mut dy].into_iter().flatten() {
                out.fill(0.0);
            }
            for (i, &(of_x, of_y)) in pairs.iter().enumerate() {
                let d = |trans| Mat { data: &d[i * m * n..], ld: n, trans };
                let (x_from, y_from) = (of_x * m * k, of_y * k * n);
                let a = |trans| Mat { data: &x[x_from..], ld: x_width, trans };
                let b = |trans| Mat { data: &y[y_from..], ld: y_width, trans };
                let (plain, scratch) = (Epilogue::default(), &mut ctx.gemm);
                if let Some(dx) = &mut dx {
                    let dx = &mut dx[x_from..];
                    if trans_x {
                        gemm(k, m, n, b(trans_y), d(true), true, dx, m, plain, scratch);
                    } else {
                        gemm(m, k, n, d(false), b(!trans_y), true, dx, k, plain, scratch);
                    }
                }
                let (plain, scratch) = (Epilogue::default(), &mut ctx.gemm);
                if let Some(dy) = &mut dy {
                    let dy = &mut dy[y_from..];
                    if trans_y {
                        gemm(n, k, m, d(true), a(trans_x), true, dy, k, plain, scratch);
                    } else {
                        gemm(k, n, m, a(!trans_x), d(false), true, dy, n, plain, scratch);
                    }
                }
            }
            Ok(())
        }))
    }
}

/// The matrices of X and of Y that meet, in the order of the results.
fn pairs(x: &[usize], y: &[usize]) -> Vec<(usize, usize)> {
    let rank = x.len().max(y.len());
    let dim = |s: &[usize], at: usize| (at + s.len()).checked_sub(rank).map_or(1, |at| s[at]);
    let mut pairs = vec![(0, 0)];
    for at in 0..rank {
        let (in_x, in_y) = (dim(x, at), dim(y, at));
        let size = if in_x == 1 { in_y } else { in_x };
        let step = |of: usize, size: usize, i: usize| of * size + if size == 1 { 0 } else { i };
        let next = pairs.iter().flat_map(|&(of_x, of_y)| {
            (0..size).map(move |i| (step(of_x, in_x, i), step(of_y, in_y, i)))
        });
        pairs = next.collect();
    }
    pairs
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
        pair("four dimensions", &[2, 2, 1, 3], &[2, 2, 3, 2], false, false),
        pair("four dimensions, turned", &[2, 1, 3, 2], &[2, 1, 4, 3], true, true),
        pair("Y repeats", &[2, 2, 2, 3], &[1, 2, 3, 2], false, false),
        pair("Y repeats, turned", &[2, 2, 3, 2], &[2, 4, 3], true, true),
        pair("both repeat", &[2, 1, 2, 3], &[1, 3, 3, 2], false, false),
        pair("both repeat, Y turned", &[2, 1, 2, 3], &[3, 4, 3], false, true),
        pair("one matrix of three dimensions", &[1, 2, 3], &[2, 3, 2], false, false),
        pair("four dimensions and two", &[2, 2, 2, 3], &[3, 2], false, false),
        pair("two dimensions and four", &[3, 2], &[2, 2, 3, 2], true, false),
        pair("row", &[3], &[3, 4], false, false),
        pair("row, Y turned", &[3], &[4, 3], true, true),
        pair("row and matrices", &[3], &[2, 3, 4], false, false),
        pair("column", &[4, 3], &[3], false, true),
        pair("column and matrices", &[2, 3, 2], &[3], true, false),
        pair("two vectors", &[3], &[3], false, false),
    ]
}
