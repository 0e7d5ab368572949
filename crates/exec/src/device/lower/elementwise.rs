//! Functions of one or two elements, sums, casts and constants.

use regatta_ir::Layout;
use regatta_tensor::DType;

use super::{Lower, Rule};
use crate::Error;
use crate::device::chain::{Index, OF_BOTH, Operand, SLOPE_OF_KEPT, Step};
use crate::device::codes::{BINARY, UNARY, Unary};
use crate::device::launch::{Arg, Count, Place};
use crate::device::{refused, unsupported};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("relu", unary),
    ("relu_grad", unary_grad),
    ("tanh", unary),
    ("tanh_grad", unary_grad),
    ("sigmoid", unary),
    ("sigmoid_grad", unary_grad),
    ("scale", unary),
    ("square", unary),
    ("square_grad", unary_grad),
    ("abs", unary),
    ("abs_grad", unary_grad),
    ("exp", unary),
    ("exp_grad", unary_grad),
    ("log", unary),
    ("log_grad", unary_grad),
    ("sqrt", unary),
    ("sqrt_grad", unary_grad),
    ("clip", unary),
    ("clip_grad", unary_grad),
    ("clip_by_value", unary),
    ("leaky_relu", unary),
    ("leaky_relu_grad", unary_grad),
    ("pow", unary),
    ("pow_grad", unary_grad),
    ("rsqrt", unary),
    ("rsqrt_grad", unary_grad),
    ("log1p", unary),
    ("log1p_grad", unary_grad),
    ("softplus", unary),
    ("softplus_grad", unary_grad),
    ("silu", unary),
    ("silu_grad", unary_grad),
    ("elementwise_add", binary),
    ("elementwise_add_grad", binary_grad),
    ("elementwise_sub", binary),
    ("elementwise_sub_grad", binary_grad),
    ("elementwise_mul", binary),
    ("elementwise_mul_grad", binary_grad),
    ("elementwise_div", binary),
    ("elementwise_div_grad", binary_grad),
    ("elementwise_max", binary),
    ("elementwise_max_grad", binary_grad),
    ("elementwise_min", binary),
    ("elementwise_min_grad", binary_grad),
    ("elementwise_pow", binary),
    ("elementwise_pow_grad", binary_grad),
    ("sum", sum),
    ("cast", cast),
    ("fill_constant", fill),
    ("fill_like", fill),
];

fn function(kind: &str) -> &'static Unary {
    let found = UNARY.iter().find(|function| function.kind == kind);
    found.expect("the rules name functions of one element")
}

/// Up to two attributes of a function.
fn params(to: &Lower<'_, '_>, function: &Unary) -> Result<[Arg; 2], Error> {
    let mut params = [Arg::F32(0.0); 2];
    for (param, attr) in params.iter_mut().zip(function.attrs) {
        *param = Arg::F32(to.float(attr)?);
    }
    Ok(params)
}

fn float(arg: Arg) -> f32 {
    if let Arg::F32(x) = arg { x } else { 0.0 }
}

fn unary(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let function = function(&to.op.kind);
    let x = to.floats("X")?;
    to.keep_rows("X", "Out");
    let (out, n, [p, q]) = (to.out("Out")?, to.count("X"), params(to, function)?);
    let args = vec![Arg::I32(function.code), Arg::Count(n), Arg::At(x), Arg::At(out), p, q];
    to.each("unary", n, args);
    let step = Step { code: function.code as u32, operand: None, params: [p, q].map(float) };
    to.as_chain(n, Operand::same(x), vec![step], out);
    Ok(())
}

fn unary_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let function = function(to.op.kind.trim_end_matches("_grad"));
    let kept = to.floats(function.kept.unwrap_or("X"))?;
    let (d, dx, n) = (to.floats("dOut")?, to.out("dX")?, to.count("dOut"));
    let [p, q] = params(to, function)?;
    let code = Arg::I32(function.code);
    let args = vec![code, Arg::Count(n), Arg::At(kept), Arg::At(d), Arg::At(dx), p, q];
    to.each("unary_grad", n, args);
    let (code, operand) = (SLOPE_OF_KEPT + function.code as u32, Some(Operand::same(kept)));
    let step = Step { code, operand, params: [p, q].map(float) };
    to.as_chain(n, Operand::same(d), vec![step], dx);
    Ok(())
}

/// A dimension of the result: its size, and the strides of X and Y, 0 where one repeats.
type Stride = [u32; 3];

/// The walk over the result of two shapes; dimensions without a gap are one.
fn walk(x: &[u32], y: &[u32]) -> Vec<Stride> {
    let rank = x.len().max(y.len());
    let dim = |s: &[u32], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |at| s[at]);
    let (xs, ys) = (strides(x, rank), strides(y, rank));
    let mut steps: Vec<Stride> = Vec::new();
    for i in 0..rank {
        let size = dim(x, i).max(dim(y, i));
        if dim(x, i) == 0 || dim(y, i) == 0 {
            return vec![[0, 0, 0]];
        }
        if size == 1 {
            continue;
        }
        match steps.last_mut() {
            Some(last) if last[1] == xs[i] * size && last[2] == ys[i] * size => {
                *last = [last[0] * size, xs[i], ys[i]];
            }
            _ => steps.push([size, xs[i], ys[i]]),
        }
    }
    steps
}

fn strides(shape: &[u32], rank: usize) -> Vec<u32> {
    let mut strides = vec![0; rank];
    let mut step = 1;
    for (i, &d) in shape.iter().enumerate().rev() {
        strides[i + rank - shape.len()] = if d == 1 { 0 } else { step };
        step *= d;
    }
    strides
}

fn code_of(kind: &str) -> i32 {
    let found = BINARY.iter().find(|function| function.0 == kind.trim_end_matches("_grad"));
    found.expect("the rules name functions of two elements").1
}

fn binary(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, y) = (to.floats("X")?, to.floats("Y")?);
    let steps = walk(&to.dims("X"), &to.dims("Y"));
    let mut shape = vec![steps.len() as u32];
    shape.extend(steps.iter().flatten());
    let (shape, out, n) = (to.to.sizes(shape), to.out("Out")?, to.count("Out"));
    let code = Arg::I32(code_of(&to.op.kind));
    let args = vec![code, Arg::Count(n), Arg::At(shape), Arg::At(x), Arg::At(y), Arg::At(out)];
    to.each("binary", n, args);
    let index = |side: usize| {
        Index::of(&steps.iter().map(|step| (step[0], step[side])).collect::<Vec<_>>())
    };
    if let (Some(of_x), Some(of_y)) = (index(1), index(2)) {
        let operand = Some(Operand { place: y, index: of_y });
        let code = OF_BOTH + code_of(&to.op.kind) as u32;
        let step = Step { code, operand, params: [0.0; 2] };
        to.as_chain(n, Operand { place: x, index: of_x }, vec![step], out);
    }
    Ok(())
}

fn binary_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, y, d) = (to.floats("X")?, to.floats("Y")?, to.floats("dOut")?);
    let steps = walk(&to.dims("X"), &to.dims("Y"));
    let mut with_result: Vec<[u32; 4]> = Vec::new();
    let mut step = 1;
    for &[size, sx, sy] in steps.iter().rev() {
        with_result.insert(0, [size, step, sx, sy]);
        step *= size;
    }
    for (slot, of_x) in [("dX", true), ("dY", false)] {
        let Some(grad) = to.wanted(slot)? else { continue };
        let repeats = |dim: &&[u32; 4]| dim[if of_x { 2 } else { 3 }] == 0;
        let kept: Vec<_> = with_result.iter().filter(|dim| !repeats(dim)).copied().collect();
        let repeated: Vec<_> = with_result.iter().filter(repeats).copied().collect();
        let mut shape = vec![kept.len() as u32, repeated.len() as u32];
        shape.extend(kept.iter().chain(&repeated).flatten());
        let shape = to.to.sizes(shape);
        let n = Count::fixed(kept.iter().map(|dim| dim[0]).product());
        let args = vec![
            Arg::I32(code_of(&to.op.kind)),
            Arg::I32(i32::from(of_x)),
            Arg::Count(n),
            Arg::U32(repeated.iter().map(|dim| dim[0]).product()),
            Arg::At(shape),
            Arg::At(x),
            Arg::At(y),
            Arg::At(d),
            Arg::At(grad),
        ];
        to.each("binary_grad", n, args);
    }
    Ok(())
}

fn sum(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let vars = to.op.ins("X");
    let layouts = vars.iter().map(|var| to.ty_of(var).layout);
    if layouts.clone().any(|layout| layout == Layout::Rows)
        && layouts.clone().any(|layout| layout == Layout::Dense)
    {
        return Err(refused(to.op, "it adds rows of a table to a dense gradient".into()));
    }
    let places = vars.iter().map(|var| to.floats_of(var)).collect::<Result<Vec<_>, Error>>()?;
    to.keep_rows("X", "Out");
    let (out, n) = (to.out("Out")?, to.count("X"));
    let mut rest = places.as_slice();
    let mut first = None;
    while !rest.is_empty() {
        let taken = rest.len().min(if first.is_some() { 3 } else { 4 });
        let now: Vec<_> = first.into_iter().chain(rest[..taken].iter().copied()).collect();
        rest = &rest[taken..];
        let at = |i: usize| Arg::At(now.get(i).copied().unwrap_or(now[0]));
        let count = Arg::I32(now.len() as i32);
        let args = vec![count, Arg::Count(n), at(0), at(1), at(2), at(3), Arg::At(out)];
        to.each("sum_arrays", n, args);
        first = Some(out);
    }
    if places.len() > 4 {
        to.to.rewritten.extend(if let Place::Temp(temp) = out { Some(temp) } else { None });
    } else if let Some((first, rest)) = places.split_first() {
        let step = |&place: &Place| Step {
            code: OF_BOTH,
            operand: Some(Operand::same(place)),
            params: [0.0; 2],
        };
        to.as_chain(n, Operand::same(*first), rest.iter().map(step).collect(), out);
    }
    Ok(())
}

fn cast(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let x = to.op.input_var("X").unwrap_or_default();
    let (from, into) = (to.ty("X").dtype, to.ty("Out").dtype);
    if from == into {
        return super::shape::rename(to);
    }
    let kernel = match (from, into) {
        (DType::I64, DType::F32) => "cast_signed",
        (DType::U64, DType::F32) => "cast_unsigned",
        _ => return Err(unsupported(to.op, x, to.ty("X"))),
    };
    let (x, out, n) = (to.ints("X")?, to.out("Out")?, to.count("X"));
    to.each(kernel, n, vec![Arg::Count(n), Arg::At(x), Arg::At(out)]);
    Ok(())
}

fn fill(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let out = to.op.outs("Out")[0].clone();
    if to.ty("Out").dtype != DType::F32 {
        return Err(unsupported(to.op, &out, to.ty("Out")));
    }
    let value = to.float("value")?;
    to.to.set_constant(&out, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_without_a_gap_are_one() {
        assert_eq!(walk(&[2, 3, 4], &[2, 3, 4]), [[24, 1, 1]]);
        assert_eq!(walk(&[2, 3, 4], &[4]), [[6, 4, 0], [4, 1, 1]]);
        assert_eq!(walk(&[2, 1, 3], &[4, 1]), [[2, 3, 0], [4, 0, 1], [3, 1, 0]]);
        assert_eq!(walk(&[1], &[1]), [] as [Stride; 0]);
    }
}
