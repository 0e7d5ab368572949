//! `accuracy` and `auc`: what is reported about a batch but not trained on.

use regatta_ir::schema::{AttrKind, one};
use regatta_ir::{Error, Schema, VarType};
use regatta_tensor::DType;

use super::cross_entropy::class;
use crate::def::{no_samples, whole};
use crate::metrics::{auc_from_buckets, first_largest};
use crate::{Grad, Infer, Kernel, KernelError, OpDef, Spec};

const A_METRIC: Grad = Grad::None("it is a metric");

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        // The share of examples whose (first) largest score is at the label.
        schema: Schema {
            kind: "accuracy",
            inputs: &[one("X"), one("Label")],
            outputs: &[one("Out")],
            attrs: &[],
        },
        infer: |i| {
            let x = i.floats_of_rank("X", 2)?;
            if x.shape[1] < 1 {
                return Err(i.wrong("X", "f32[batch, classes] with known classes"));
            }
            expect_labels(i, x.shape[0])?;
            Ok(vec![VarType::f32([1])])
        },
        grad: A_METRIC,
        kernel: accuracy,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        // The area under the ROC curve of all examples since the counters were last zero, which are
        // [buckets + 1] or [1, buckets + 1]. With `slide_steps` it is that of the last so many
        // batches: counters are [slide_steps + 1, buckets + 1], one row for each of these batches,
        // the oldest first, and the sum of them.
        schema: Schema {
            kind: "auc",
            inputs: &[one("Predict"), one("Label"), one("StatPos"), one("StatNeg")],
            outputs: &[one("AUC"), one("StatPosOut"), one("StatNegOut")],
            attrs: &[("slide_steps", AttrKind::Int(0))],
        },
        infer: infer_auc,
        grad: A_METRIC,
        kernel: auc,
        batch: whole,
        samples: no_samples,
    },
];

fn accuracy(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (rows, classes) = s.matrix(0);
    Ok(Box::new(move |io, ctx| {
        let (x, labels) = (io.f32(0), io.i64(1));
        let mut right = 0usize;
        for (r, (scores, &label)) in x.chunks_exact(classes).zip(labels).enumerate() {
            let label = class(label, classes, ctx.first_example + r)?;
            right += usize::from(first_largest(scores) == Some(label));
        }
        io.out_f32(0)[0] = right as f32 / rows.max(1) as f32;
        Ok(())
    }))
}

/// Labels are `[batch, 1]` or `[batch]`.
fn expect_labels(i: &Infer<'_>, batch: i64) -> Result<(), Error> {
    let flat = i.ty("Label").shape.len() == 1;
    let shape = if flat { vec![batch] } else { vec![batch, 1] };
    i.expect("Label", &VarType::dense(DType::I64, shape))
}

fn infer_auc(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let predict = i.floats_of_rank("Predict", 2)?;
    if !matches!(predict.shape[1], 1 | 2) {
        return Err(i.wrong("Predict", "f32[batch, 1] or f32[batch, 2]"));
    }
    expect_labels(i, predict.shape[0])?;
    let steps = i.op.int("slide_steps")?;
    if steps < 0 {
        return Err(i.bad_attr("slide_steps", format!("is {steps}, but should be 0 or above")));
    }
    let counters = i.ty("StatPos");
    let known = match counters.shape[..] {
        [n] => steps == 0 && n >= 2,
        [rows, n] => rows == steps + 1 && n >= 2,
        _ => false,
    };
    if counters.dtype != DType::I64 || !known {
        let rows = if steps == 0 { "".to_string() } else { format!("{}, ", steps + 1) };
        return Err(i.wrong("StatPos", &format!("i64[{rows}buckets + 1]")));
    }
    i.expect("StatNeg", counters)?;
    for (input, output) in [("StatPos", "StatPosOut"), ("StatNeg", "StatNegOut")] {
        if i.op.input_var(input) != i.op.output_var(output) {
            return Err(Error::Slot {
                op: i.op.kind.clone(),
                slot: output.into(),
                reason: format!("should be the variable in {input}"),
            });
        }
    }
    Ok(vec![VarType::f32([1]), counters.clone(), counters.clone()])
}

fn auc(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (_, width) = s.matrix(0);
    let buckets = s.matrix(2).1 - 1;
    let steps = s.op.int("slide_steps")? as usize;
    Ok(Box::new(move |io, ctx| {
        let (predict, labels) = (io.f32(0), io.i64(1));
        let (pos, neg) = (io.out_i64(1), io.out_i64(2));
        let ((pos, all_pos), (neg, all_neg)) = (slide(pos, steps), slide(neg, steps));
        for (r, (row, &label)) in predict.chunks_exact(width).zip(labels).enumerate() {
            let (p, example) = (row[width - 1], ctx.first_example + r);
            if !(0.0..=1.0).contains(&p) {
                let reason = format!("the prediction {p} of example {example} is no probability");
                return Err(KernelError(reason));
            }
            let bucket = ((p * buckets as f32) as usize).min(buckets);
            match label {
                0 => neg[bucket] += 1,
                1 => pos[bucket] += 1,
                other => {
                    let reason = format!("label {other} of example {example} is not 0 or 1");
                    return Err(KernelError(reason));
                }
            }
        }
        let auc = if steps == 0 {
            auc_from_buckets(pos, neg)
        } else {
            add(all_pos, pos);
            add(all_neg, neg);
            auc_from_buckets(all_pos, all_neg)
        };
        io.out_f32(0)[0] = auc as f32;
        Ok(())
    }))
}

/// Forgets the oldest of the batches that are counted. Returns the counters of the next batch and
/// the sums over the others; without a number of batches, the counters and nothing.
fn slide(counters: &mut [i64], steps: usize) -> (&mut [i64], &mut [i64]) {
    if steps == 0 {
        return (counters, &mut []);
    }
    let row = counters.len() / (steps + 1);
    let (batches, all) = counters.split_at_mut(steps * row);
    all.iter_mut().zip(&*batches).for_each(|(all, oldest)| *all -= oldest);
    batches.copy_within(row.., 0);
    let next = &mut batches[(steps - 1) * row..];
    next.fill(0);
    (next, all)
}

fn add(sums: &mut [i64], counts: &[i64]) {
    sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
}
