//! Losses, and softmax.

use regatta_tensor::DType;

use super::{Lower, Rule, around, axis_of};
use crate::Error;
use crate::device::codes::PAIR_LOSS;
use crate::device::launch::{Arg, Count};
use crate::device::refused;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("sigmoid_cross_entropy", pair_loss),
    ("sigmoid_cross_entropy_grad", pair_loss_grad),
    ("log_loss", pair_loss),
    ("log_loss_grad", pair_loss_grad),
    ("huber_loss", pair_loss),
    ("huber_loss_grad", pair_loss_grad),
    ("hinge_loss", pair_loss),
    ("hinge_loss_grad", pair_loss_grad),
    ("square_error_cost", pair_loss),
    ("square_error_cost_grad", pair_loss_grad),
    ("softmax", softmax),
    ("softmax_grad", softmax_grad),
    ("softmax_with_cross_entropy", cross_entropy),
    ("softmax_with_cross_entropy_grad", cross_entropy_grad),
];

/// The code of a loss and its constant.
fn code(to: &Lower<'_, '_>) -> Result<(Arg, Arg), Error> {
    let kind = to.op.kind.trim_end_matches("_grad");
    let found = PAIR_LOSS.iter().find(|loss| loss.0 == kind);
    let (_, code, param) = found.expect("the rules name losses of pairs");
    let param = param.map(|attr| to.float(attr)).transpose()?;
    Ok((Arg::I32(*code), Arg::F32(param.unwrap_or(0.0))))
}

fn pair_loss(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (code, p) = code(to)?;
    let (x, label) = (to.floats("X")?, to.floats("Label")?);
    let (out, n) = (to.out("Out")?, to.count("X"));
    let args = vec![code, Arg::Count(n), Arg::At(x), Arg::At(label), Arg::At(out), p];
    to.each("pair_loss", n, args);
    Ok(())
}

fn pair_loss_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (code, p) = code(to)?;
    let (x, label) = (to.floats("X")?, to.floats("Label")?);
    let (d, n) = (to.floats("dOut")?, to.count("X"));
    for (slot, of_x) in [("dX", 1), ("dLabel", 0)] {
        let Some(out) = to.wanted(slot)? else { continue };
        let inputs = [x, label, d, out].map(Arg::At).into_iter();
        let head = [code, Arg::I32(of_x), Arg::Count(n)].into_iter();
        to.each("pair_loss_grad", n, head.chain(inputs).chain([p]).collect());
    }
    Ok(())
}

/// Columns, numbers of a column, and numbers from one of them to the next.
fn columns(to: &Lower<'_, '_>, slot: &str) -> Result<[u32; 3], Error> {
    let dims = to.dims(slot);
    let (outer, n, inner) = around(&dims, axis_of(to.op, "axis", dims.len())?);
    Ok([outer * inner, n, inner])
}

fn softmax(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, out, sizes) = (to.floats("X")?, to.out("Out")?, columns(to, "X")?);
    let args = sizes.map(Arg::U32).into_iter().chain([x, out].map(Arg::At)).collect();
    to.each("softmax", Count::fixed(sizes[0]), args);
    Ok(())
}

fn softmax_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (y, d, dx) = (to.floats("Out")?, to.floats("dOut")?, to.out("dX")?);
    let sizes = columns(to, "Out")?;
    let args = sizes.map(Arg::U32).into_iter().chain([y, d, dx].map(Arg::At)).collect();
    to.each("softmax_grad", Count::fixed(sizes[0]), args);
    Ok(())
}

/// Rows and classes of scores, and how labels are given.
fn labels(to: &mut Lower<'_, '_>, scores: &str) -> Result<(Vec<Arg>, Arg, bool), Error> {
    let dims = to.dims(scores);
    let (rows, classes, _) = around(&dims, dims.len() - 1);
    let mut sizes = vec![Arg::U32(rows), Arg::U32(classes)];
    if to.op.bool("soft_label")? {
        return Ok((sizes, Arg::At(to.floats("Label")?), true));
    }
    if to.ty("Label").dtype != DType::I64 {
        return Err(refused(to.op, "labels are i64".into()));
    }
    let ignored = to.op.int("ignore_index")?;
    let fits = i32::try_from(ignored);
    sizes.push(Arg::I32(fits.map_err(|_| refused(to.op, format!("ignore_index {ignored}")))?));
    Ok((sizes, Arg::At(to.ints("Label")?), false))
}

fn cross_entropy(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let x = to.floats("Logits")?;
    let (mut args, label, soft) = labels(to, "Logits")?;
    let (loss, probabilities) = (to.out("Loss")?, to.out("Softmax")?);
    args.extend([Arg::At(x), label, Arg::At(loss), Arg::At(probabilities)]);
    let kernel = if soft { "softmax_cross_entropy_soft" } else { "softmax_cross_entropy" };
    to.each(kernel, to.count("Loss"), args);
    Ok(())
}

fn cross_entropy_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (p, d) = (to.floats("Softmax")?, to.floats("dLoss")?);
    let (mut args, label, soft) = labels(to, "Softmax")?;
    let dx = to.out("dLogits")?;
    args.extend([Arg::At(p), label, Arg::At(d), Arg::At(dx)]);
    let kernel = match soft {
        true => "softmax_cross_entropy_soft_grad",
        false => "softmax_cross_entropy_grad",
    };
    to.each(kernel, to.count("Softmax"), args);
    Ok(())
}
