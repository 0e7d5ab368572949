//! `accuracy` and `auc`: what is reported about a batch but not trained on.

use regatta_ir::schema::one;
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
            i.expect("Label", &VarType::dense(DType::I64, [x.shape[0], 1]))?;
            Ok(vec![VarType::f32([1])])
        },
        grad: A_METRIC,
        kernel: accuracy,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        // The area under the ROC curve of all examples since the counters were last zero.
        schema: Schema {
            kind: "auc",
            inputs: &[one("Predict"), one("Label"), one("StatPos"), one("StatNeg")],
            outputs: &[one("AUC"), one("StatPosOut"), one("StatNegOut")],
            attrs: &[],
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

fn infer_auc(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let predict = i.floats_of_rank("Predict", 2)?;
    if !matches!(predict.shape[1], 1 | 2) {
        return Err(i.wrong("Predict", "f32[batch, 1] or f32[batch, 2]"));
    }
    i.expect("Label", &VarType::dense(DType::I64, [predict.shape[0], 1]))?;
    let counters = i.ty("StatPos");
    let known = matches!(counters.shape[..], [n] if n >= 2);
    if counters.dtype != DType::I64 || !known {
        return Err(i.wrong("StatPos", "i64[buckets + 1]"));
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
    let buckets = s.dims(2)[0] - 1;
    Ok(Box::new(move |io, ctx| {
        let (predict, labels) = (io.f32(0), io.i64(1));
        let (pos, neg) = (io.out_i64(1), io.out_i64(2));
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
        io.out_f32(0)[0] = auc_from_buckets(pos, neg) as f32;
        Ok(())
    }))
}
