//! Sums and means over dimensions.

use super::{Lower, Rule};
use crate::Error;
use crate::device::chain::{Index, Operand};
use crate::device::launch::{Arg, Count, Place, Work};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("mean", mean),
    ("mean_grad", mean_grad),
    ("reduce_sum", reduce),
    ("reduce_sum_grad", reduce_grad),
    ("reduce_mean", reduce),
    ("reduce_mean_grad", reduce_grad),
];

/// Items of the groups of `row_sums`.
const GROUP: u32 = 128;

fn mean(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, out, n) = (to.floats("X")?, to.out("Out")?, to.len("X"));
    let whole = to.to.whole_count(&to.op.ins("X")[0], n);
    to.sum_middle([1, n, 1], 1.0 / whole as f32, x, out);
    Ok(())
}

fn mean_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (d, n) = (to.floats("dOut")?, to.count("X"));
    let whole = to.to.whole_count(&to.op.ins("X")[0], n.each) as f32;
    let (from, into) = (to.op.ins("dOut")[0].as_str(), to.op.outs("dX")[0].as_str());
    if let Some(value) = to.to.constant_of(from) {
        to.to.set_constant(into, value / whole);
        return Ok(());
    }
    let dx = to.out("dX")?;
    to.each("spread_one", n, vec![Arg::Count(n), Arg::F32(1.0 / whole), Arg::At(d), Arg::At(dx)]);
    Ok(())
}

impl Lower<'_, '_> {
    /// `[outer, r, c]` to `[outer, c]`.
    pub(super) fn sum_middle(&mut self, dims: [u32; 3], factor: f32, x: Place, out: Place) {
        let [outer, r, c] = dims;
        if c == 1 && r >= GROUP {
            let args = vec![Arg::U32(r), Arg::F32(factor), Arg::At(x), Arg::At(out)];
            self.launch("row_sums", Work::Groups { groups: outer, local: GROUP }, args);
            return;
        }
        self.middle("sum_middle", dims, outer * c, factor, x, out);
    }

    fn middle(
        &mut self,
        kernel: &'static str,
        dims: [u32; 3],
        items: u32,
        factor: f32,
        x: Place,
        out: Place,
    ) {
        let sizes = dims.map(Arg::U32).into_iter();
        let args = sizes.chain([Arg::F32(factor), Arg::At(x), Arg::At(out)]).collect();
        self.each(kernel, Count::fixed(items), args);
    }
}

/// Neighbouring dimensions of one sort as one: size, and whether it is reduced.
fn sorts(to: &Lower<'_, '_>) -> Result<Vec<(u32, bool)>, Error> {
    let dims = to.dims("X");
    let given = to.op.ints("dims")?;
    let is_reduced = |at: usize| {
        let named = |d: &i64| (if *d < 0 { *d + dims.len() as i64 } else { *d }) == at as i64;
        given.is_empty() || given.iter().any(named)
    };
    let mut sorts: Vec<(u32, bool)> = Vec::new();
    for (at, &size) in dims.iter().enumerate().filter(|(_, size)| **size != 1) {
        match sorts.last_mut() {
            Some(last) if last.1 == is_reduced(at) => last.0 *= size,
            _ => sorts.push((size, is_reduced(at))),
        }
    }
    Ok(sorts)
}

fn factor(to: &Lower<'_, '_>, sorts: &[(u32, bool)]) -> f32 {
    let mut count: u32 = sorts.iter().filter(|sort| sort.1).map(|sort| sort.0).product();
    let dims = to.op.ints("dims").unwrap_or_default();
    let rank = to.dims("X").len() as i64;
    if dims.is_empty() || dims.iter().any(|&d| d == 0 || d == -rank) {
        count = to.to.whole_count(&to.op.ins("X")[0], count);
    }
    if to.op.kind.starts_with("reduce_mean") { 1.0 / count.max(1) as f32 } else { 1.0 }
}

/// One sort after the other, the last one first.
fn reduce(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, mut sorts) = (to.floats("X")?, sorts(to)?);
    let whole = factor(to, &sorts);
    let out = to.out("Out")?;
    if !sorts.iter().any(|sort| sort.1) {
        to.to.copy(x, out, Count::fixed(to.len("X")));
        return Ok(());
    }
    let mut from = x;
    while let Some(at) = sorts.iter().rposition(|sort| sort.1) {
        let (r, c) = (sorts[at].0, sorts[at + 1..].iter().map(|sort| sort.0).product::<u32>());
        let outer: u32 = sorts[..at].iter().map(|sort| sort.0).product();
        sorts.remove(at);
        let is_last = !sorts.iter().any(|sort| sort.1);
        let into = if is_last { out } else { to.to.scratch(u64::from(outer * c) * 4) };
        to.sum_middle([outer, r, c], if is_last { whole } else { 1.0 }, from, into);
        from = into;
    }
    Ok(())
}

/// One sort after the other, the first one first.
fn reduce_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (d, sorts) = (to.floats("dOut")?, sorts(to)?);
    let whole = factor(to, &sorts);
    let dx = to.out("dX")?;
    let n_reduced = sorts.iter().filter(|sort| sort.1).count();
    if n_reduced == 0 {
        to.to.copy(d, dx, Count::fixed(to.len("X")));
        return Ok(());
    }
    let (mut from, mut done) = (d, 0);
    for (at, &(r, _)) in sorts.iter().enumerate().filter(|(_, sort)| sort.1) {
        done += 1;
        let outer: u32 = sorts[..at].iter().map(|sort| sort.0).product();
        let kept = sorts[at + 1..].iter().filter(|sort| !sort.1);
        let c: u32 = kept.map(|sort| sort.0).product();
        let is_last = done == n_reduced;
        let into = if is_last { dx } else { to.to.scratch(u64::from(outer * r * c) * 4) };
        let factor = if is_last { whole } else { 1.0 };
        to.middle("repeat_middle", [outer, r, c], outer * r * c, factor, from, into);
        if factor == 1.0 {
            let index = Index { over: r * c, by: c, within: c };
            let n = Count::fixed(outer * r * c);
            to.as_chain(n, Operand { place: from, index }, vec![], into);
        }
        from = into;
    }
    Ok(())
}
