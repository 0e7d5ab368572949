//! Gradients before they are applied: limits and penalties, of dense ones and of rows.

use super::{Lower, Rule};
use crate::Error;
use crate::device::batch::Part;
use crate::device::chain::{ADD_SCALED, Operand, Step};
use crate::device::launch::{Arg, Count, Place, Work};
use crate::device::refused;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("clip_by_norm", clip_by_norm),
    ("global_norm_factor", global_norm_factor),
    ("scale_by", scale_by),
    ("l2_decay", decay),
    ("l1_decay", decay),
];

/// Items of the one group that sums squares.
const GROUP: Work = Work::Groups { groups: 1, local: 256 };

fn clip_by_norm(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, n) = (to.floats("X")?, to.count("X"));
    to.keep_rows("X", "Out");
    let (out, limit) = (to.out("Out")?, to.float("max_norm")?);
    let args = vec![Arg::Count(n), Arg::F32(limit), Arg::At(x), Arg::At(out)];
    to.launch("clip_by_norm", GROUP, args);
    Ok(())
}

fn global_norm_factor(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let vars = to.op.ins("X");
    let sums = to.to.scratch(vars.len() as u64 * 4);
    for (at, var) in vars.iter().enumerate() {
        let (x, n) = (to.floats_of(var)?, to.count_of(var));
        let args = vec![Arg::Count(n), Arg::U32(at as u32), Arg::At(x), Arg::At(sums)];
        to.launch("square_sums", GROUP, args);
    }
    let (out, limit, n) = (to.out("Out")?, to.float("clip_norm")?, vars.len() as u32);
    let args = vec![Arg::U32(n), Arg::F32(limit), Arg::At(sums), Arg::At(out)];
    to.each("norm_factor", Count::fixed(1), args);
    Ok(())
}

fn scale_by(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, factor, n) = (to.floats("X")?, to.floats("Factor")?, to.count("X"));
    to.keep_rows("X", "Out");
    let out = to.out("Out")?;
    to.each("scale_by", n, vec![Arg::Count(n), Arg::At(x), Arg::At(factor), Arg::At(out)]);
    Ok(())
}

fn decay(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, w, n) = (to.floats("X")?, to.floats("Param")?, to.count("X"));
    to.keep_rows("X", "Out");
    let (out, coeff) = (to.out("Out")?, to.float("coeff")?);
    let l1 = Arg::I32(i32::from(to.op.kind == "l1_decay"));
    let Some(table) = n.table else {
        let args = [l1, Arg::Count(n), Arg::F32(coeff), Arg::At(x), Arg::At(w), Arg::At(out)];
        to.each("decay", n, args.to_vec());
        if to.op.kind == "l2_decay" {
            let operand = Some(Operand::same(w));
            let step = Step { code: ADD_SCALED, operand, params: [coeff, 0.0] };
            to.as_chain(n, Operand::same(x), vec![step], out);
        }
        return Ok(());
    };
    let slots = to.to.part(&Part::Slots(table)).filter(|_| w == Place::Arena(table));
    let slots = slots.ok_or_else(|| refused(to.op, "its rows are not those of a table".into()))?;
    let args = vec![
        l1,
        Arg::Count(n),
        Arg::U32(n.each),
        Arg::F32(coeff),
        Arg::At(x),
        Arg::At(w),
        Arg::Stride(table),
        Arg::At(slots),
        Arg::At(out),
    ];
    to.each("decay_rows", n, args);
    Ok(())
}
