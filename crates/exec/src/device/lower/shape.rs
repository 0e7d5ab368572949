//! Values that move.

use super::{Lower, Rule, around, axis_of};
use crate::Error;
use crate::device::launch::{Arg, Count, Place};
use crate::device::refused;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("reshape", rename),
    ("assign", rename),
    ("concat", concat),
    ("concat_grad", concat_grad),
    ("slice", slice),
    ("slice_grad", slice_grad),
    ("split", split),
    ("transpose", transpose),
    ("lower_triangle", lower_triangle),
    ("lower_triangle_grad", lower_triangle_grad),
];

/// The result is where the input is.
pub(super) fn rename(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, out) = (to.op.ins("X")[0].as_str(), to.op.outs("Out")[0].as_str());
    if to.to.place(x).is_none() {
        return Err(refused(to.op, format!("nobody makes '{x}'")));
    }
    to.to.alias(out, x);
    Ok(())
}

impl Lower<'_, '_> {
    /// A row-sparse result has the rows of its input.
    pub(super) fn keep_rows(&mut self, from: &str, to: &str) {
        if let (Some(x), Some(out)) = (self.op.input_var(from), self.op.output_var(to)) {
            let table = self.to.table(x);
            self.to.set_table(out, table);
        }
    }

    /// Copies `rows` rows of `width` floats.
    pub(super) fn copy_rows(&mut self, rows: u32, width: u32, from: Strided, into: Strided) {
        let n = Count::fixed(rows * width);
        let args = vec![
            Arg::U32(rows),
            Arg::U32(width),
            Arg::At(from.place),
            Arg::U32(from.first),
            Arg::U32(from.stride),
            Arg::At(into.place),
            Arg::U32(into.first),
            Arg::U32(into.stride),
        ];
        self.each("copy_rows", n, args);
    }
}

/// Rows that are not next to each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strided {
    pub(super) place: Place,
    pub(super) first: u32,
    pub(super) stride: u32,
}

fn concat(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let vars = to.op.ins("X");
    let places = vars.iter().map(|var| to.floats_of(var)).collect::<Result<Vec<_>, Error>>()?;
    let dims = to.dims("Out");
    let (rows, size, inner) = around(&dims, axis_of(to.op, "axis", dims.len())?);
    let (out, total) = (to.out("Out")?, size * inner);
    let mut at = 0;
    for (var, place) in vars.iter().zip(places) {
        let width = to.count_of(var).each / rows.max(1);
        let from = Strided { place, first: 0, stride: width };
        to.copy_rows(rows, width, from, Strided { place: out, first: at, stride: total });
        at += width;
    }
    Ok(())
}

/// The gradient of the input of that number.
fn concat_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (d, dims) = (to.floats("dOut")?, to.dims("dOut"));
    let index = to.op.int("index")? as usize;
    let (rows, size, inner) = around(&dims, axis_of(to.op, "axis", dims.len())?);
    let width = |var: &String| to.count_of(var).each / rows.max(1);
    let first: u32 = to.op.ins("X")[..index].iter().map(width).sum();
    let (out, width) = (to.out("dX")?, to.len("dX") / rows.max(1));
    let from = Strided { place: d, first, stride: size * inner };
    to.copy_rows(rows, width, from, Strided { place: out, first: 0, stride: width });
    Ok(())
}

/// Of a slice: rows, floats of a whole row, first float and floats taken of each.
fn cut(to: &Lower<'_, '_>) -> Result<(u32, u32, u32, u32), Error> {
    let dims = to.dims("X");
    let (rows, size, inner) = around(&dims, axis_of(to.op, "axis", dims.len())?);
    let position = |at: i64| if at < 0 { at + i64::from(size) } else { at };
    let from = position(to.op.int("start")?) as u32;
    let end = position(to.op.int("end")?).min(i64::from(size)) as u32;
    Ok((rows, size * inner, from * inner, (end - from) * inner))
}

fn slice(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, out) = (to.floats("X")?, to.out("Out")?);
    let (rows, stride, first, width) = cut(to)?;
    let from = Strided { place: x, first, stride };
    to.copy_rows(rows, width, from, Strided { place: out, first: 0, stride: width });
    Ok(())
}

fn slice_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (d, dx) = (to.floats("dOut")?, to.out("dX")?);
    let (rows, total, first, width) = cut(to)?;
    let sizes = [rows, width, first, total].map(Arg::U32);
    let args = sizes.into_iter().chain([Arg::At(d), Arg::At(dx)]).collect();
    to.each("place_rows", Count::fixed(rows * total), args);
    Ok(())
}

fn split(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, dims) = (to.floats("X")?, to.dims("X"));
    let (rows, size, inner) = around(&dims, axis_of(to.op, "axis", dims.len())?);
    let mut first = 0;
    for var in to.op.outs("Out") {
        let out = to.make(var)?;
        let width = to.count_of(var).each / rows.max(1);
        let from = Strided { place: x, first, stride: size * inner };
        to.copy_rows(rows, width, from, Strided { place: out, first: 0, stride: width });
        first += width;
    }
    Ok(())
}

fn transpose(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, dims) = (to.floats("X")?, to.dims("X"));
    let mut steps = vec![1; dims.len()];
    for d in (1..dims.len()).rev() {
        steps[d - 1] = steps[d] * dims[d];
    }
    let mut shape = vec![dims.len() as u32];
    for given in to.op.ints("perm")? {
        let at = if given < 0 { given + dims.len() as i64 } else { given } as usize;
        shape.extend([dims[at], steps[at]]);
    }
    let (shape, out, n) = (to.to.sizes(shape), to.out("Out")?, to.count("Out"));
    to.each("permute", n, vec![Arg::Count(n), Arg::At(shape), Arg::At(x), Arg::At(out)]);
    Ok(())
}

fn lower_triangle(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, out) = (to.floats("X")?, to.out("Out")?);
    triangle(to, "lower_triangle", x, out);
    Ok(())
}

fn lower_triangle_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (d, dx) = (to.floats("dOut")?, to.out("dX")?);
    triangle(to, "lower_triangle_grad", d, dx);
    Ok(())
}

fn triangle(to: &mut Lower<'_, '_>, kernel: &'static str, from: Place, into: Place) {
    let (count, n) = (to.count("X"), to.dims("X").last().copied().unwrap_or(1));
    let args = vec![Arg::U32(count.each / (n * n)), Arg::U32(n), Arg::At(from), Arg::At(into)];
    to.each(kernel, count, args);
}
