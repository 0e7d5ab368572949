//! `batch_norm`: each feature to mean 0 and variance 1 over all examples (and pixels), then scaled
//! and shifted by learned vectors. Features are the last dimension, or with `data_layout` "NCHW"
//! the one behind the batch.
//!
//! While training, the batch's own mean and (biased) variance are used, and the running ones move
//! towards them in place: `running = momentum * running + (1 - momentum) * batch`, as Paddle does.
//! With `is_test` or `use_global_stats` the running ones are used and left alone, and every output
//! but `Y` may be left out: without them the op touches no state and any part of a batch can be
//! computed by itself.
//!
//! `sync_batch_norm` is the same over the examples of all ranks.

use std::sync::Arc;

use regatta_ir::schema::{AttrDef, AttrKind, SlotDef, one, optional};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::norm::Features;

use super::collective::{NAME, exchange_name};
use crate::comm::{Exchange, Peers, Reply};
use crate::def::{NO_SECOND, no_samples, spread};
use crate::{Batch, Grad, GradCtx, Infer, Io, Kernel, KernelError, OpDef, Sample, Spec};

const MOMENTUM: AttrDef = ("momentum", AttrKind::Float(0.9));
const EPSILON: AttrDef = ("epsilon", AttrKind::Float(1e-5));
const IS_TEST: AttrDef = ("is_test", AttrKind::Bool(false));
const GLOBAL: AttrDef = ("use_global_stats", AttrKind::Bool(false));
const LAYOUT: AttrDef = ("data_layout", AttrKind::Str("NHWC"));
const ATTRS: &[AttrDef] = &[MOMENTUM, EPSILON, IS_TEST, GLOBAL, LAYOUT];
const SYNC_ATTRS: &[AttrDef] = &[MOMENTUM, EPSILON, IS_TEST, GLOBAL, LAYOUT, NAME];

const INPUTS: &[SlotDef] = &[one("X"), one("Scale"), one("Bias"), one("Mean"), one("Variance")];
const OUTPUTS: &[SlotDef] = &[
    one("Y"),
    optional("MeanOut"),
    optional("VarianceOut"),
    optional("SavedMean"),
    optional("SavedInvStd"),
];
const GRAD_INPUTS: &[SlotDef] =
    &[one("X"), one("Scale"), one("SavedMean"), one("SavedInvStd"), one("dY")];
const GRAD_OUTPUTS: &[SlotDef] = &[optional("dX"), optional("dScale"), optional("dBias")];

pub(crate) static DEFS: &[OpDef] = &[
    forward_def("batch_norm", ATTRS, Grad::Rule(grad), samples),
    backward_def("batch_norm_grad", ATTRS),
    forward_def("sync_batch_norm", SYNC_ATTRS, REPLACED, no_samples),
    backward_def("sync_batch_norm_grad", SYNC_ATTRS),
];

/// A compiler pass replaces `batch_norm` by it, and the gradient by its gradient.
const REPLACED: Grad = Grad::None("it replaces batch_norm in programs that have their gradients");

const fn forward_def(
    kind: &'static str,
    attrs: &'static [AttrDef],
    grad: Grad,
    samples: fn() -> Vec<Sample>,
) -> OpDef {
    OpDef {
        schema: Schema { kind, inputs: INPUTS, outputs: OUTPUTS, attrs },
        infer,
        grad,
        kernel: forward,
        batch,
        samples,
    }
}

const fn backward_def(kind: &'static str, attrs: &'static [AttrDef]) -> OpDef {
    OpDef {
        schema: Schema { kind, inputs: GRAD_INPUTS, outputs: GRAD_OUTPUTS, attrs },
        infer: |i| {
            let of = |slot: &str| if slot == "dX" { i.ty("X") } else { i.ty("Scale") };
            Ok(i.op.outputs.iter().map(|(slot, _)| of(slot).clone()).collect())
        },
        grad: NO_SECOND,
        kernel: backward,
        batch,
        samples: no_samples,
    }
}

/// The exchange in which ranks add up their sums, if they do.
fn exchange(s: &Spec<'_>) -> Result<Option<Arc<str>>, Error> {
    let sync = s.op.kind.starts_with("sync_") && !is_fixed(s.op)?;
    sync.then(|| exchange_name(s)).transpose()
}

/// The given numbers of every rank.
fn gather(peers: &Peers, name: &Arc<str>, own: &[f64]) -> Result<Vec<Vec<f64>>, KernelError> {
    let comm = peers.comm()?;
    let bytes = own.iter().flat_map(|x| x.to_le_bytes()).collect();
    comm.start(name, Exchange::gather(bytes))?;
    let Reply::Gathered(parts) = comm.wait(name)? else {
        return Err(KernelError("an exchange brought floats, not sums".into()));
    };
    let numbers = |bytes: &Vec<u8>| {
        bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect::<Vec<f64>>()
    };
    let parts: Vec<Vec<f64>> = parts.iter().map(numbers).collect();
    match parts.iter().position(|part| part.len() != own.len()) {
        Some(rank) => {
            Err(KernelError(format!("rank {rank} normalises another number of features")))
        }
        None => Ok(parts),
    }
}

/// Mean and squared distances over the examples of all ranks, from those of each. Returns how many
/// examples there are.
fn over_ranks(
    peers: &Peers,
    name: &Arc<str>,
    rows: usize,
    mean: &mut [f32],
    squares: &mut [f64],
) -> Result<f64, KernelError> {
    let width = mean.len();
    let rows = if peers.share == 0.0 { 0.0 } else { rows as f64 };
    let own: Vec<f64> = std::iter::once(rows)
        .chain(mean.iter().map(|&m| f64::from(m)))
        .chain(squares.iter().copied())
        .collect();
    let parts: Vec<Vec<f64>> = gather(peers, name, &own)?;
    let counted = || parts.iter().filter(|part| part[0] > 0.0);
    let total: f64 = counted().map(|part| part[0]).sum();
    for i in 0..width {
        let sum: f64 = counted().map(|part| part[0] * part[1 + i]).sum();
        let all = sum / total.max(1.0);
        let apart = |part: &Vec<f64>| part[0] * (part[1 + i] - all).powi(2);
        squares[i] = counted().map(|part| part[1 + width + i] + apart(part)).sum();
        mean[i] = all as f32;
    }
    Ok(total)
}

/// Whether the running statistics are used, not those of the batch.
fn is_fixed(op: &Op) -> Result<bool, Error> {
    Ok(op.bool("is_test")? || op.bool("use_global_stats")?)
}

/// Number of the dimension with the features.
fn feature_dim(op: &Op, rank: usize) -> Result<usize, Error> {
    match op.str("data_layout")? {
        "NCHW" => Ok(1),
        "NHWC" => Ok(rank - 1),
        other => {
            let reason = format!("is '{other}', but should be NCHW or NHWC");
            Err(Error::Attr { op: op.kind.clone(), attr: "data_layout".into(), reason })
        }
    }
}

/// Values of each feature in a batch, and where they are.
fn features(s: &Spec<'_>) -> Result<(usize, Features), Error> {
    let dims = s.dims(0);
    let at = feature_dim(s.op, dims.len())?;
    let pixels = dims[at + 1..].iter().product();
    Ok((dims[..at].iter().product::<usize>() * pixels, Features { count: dims[at], pixels }))
}

fn batch(op: &Op) -> Batch {
    if is_fixed(op) == Ok(true) { Batch::PerExample } else { Batch::Whole }
}

const STATE: [(&str, &str); 2] = [("Mean", "MeanOut"), ("Variance", "VarianceOut")];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    if x.shape.len() < 2 || x.shape[1..].iter().any(|d| *d < 1) {
        return Err(i.wrong("X", "f32[batch, ..] with a known size of the features"));
    }
    let width = x.shape[feature_dim(i.op, x.shape.len())?];
    let stat = VarType::f32([width]);
    for slot in ["Scale", "Bias", "Mean", "Variance"] {
        i.expect(slot, &stat)?;
    }
    for name in ["momentum", "epsilon"] {
        let value = i.op.float(name)?;
        if value.is_nan() || value < 0.0 {
            return Err(i.bad_attr(name, format!("is {value}, but should not be below 0")));
        }
    }
    let problem = |slot: &str, reason: String| {
        Err(Error::Slot { op: i.op.kind.clone(), slot: slot.to_string(), reason })
    };
    let is_fixed = is_fixed(i.op)?;
    for (input, output) in STATE {
        match i.op.output_var(output) {
            Some(var) if Some(var) != i.op.input_var(input) => {
                return problem(output, format!("is '{var}', but should be the one in {input}"));
            }
            _ => {}
        }
    }
    for slot in ["MeanOut", "VarianceOut", "SavedMean", "SavedInvStd"] {
        if !is_fixed && i.op.output_var(slot).is_none() {
            return problem(slot, "is needed for training".into());
        }
    }
    let outs = i.op.outputs.iter();
    Ok(outs.map(|(slot, _)| if slot == "Y" { x.clone() } else { stat.clone() }).collect())
}

fn grad(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    for slot in ["SavedMean", "SavedInvStd"] {
        if g.op.output_var(slot).is_none() {
            let reason = "is needed for the gradient".into();
            return Err(Error::Slot { op: g.op.kind.clone(), slot: slot.into(), reason });
        }
    }
    Ok(g.several(&["X", "Scale", "SavedMean", "SavedInvStd"], "Y", &["X", "Scale", "Bias"]))
}

/// A running statistic: through the output if it is updated, else through the input.
fn running<'a>(io: &mut Io<'a>, input: usize, output: Option<usize>) -> &'a [f32] {
    match output {
        Some(at) => io.out_f32(at),
        None => io.f32(input),
    }
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (rows, features) = features(s)?;
    let width = features.count;
    let epsilon = s.op.float("epsilon")? as f32;
    let momentum = s.op.float("momentum")? as f32;
    let is_fixed = is_fixed(s.op)?;
    let (mean_at, variance_at) = (s.out_at("MeanOut"), s.out_at("VarianceOut"));
    let (saved_mean, saved_inv) = (s.out_at("SavedMean"), s.out_at("SavedInvStd"));
    let sync = exchange(s)?;
    let mut sums = vec![0.0f64; width];
    let (mut mean, mut variance) = (vec![0.0f32; width], vec![0.0f32; width]);
    let (mut factor, mut offset) = (vec![0.0f32; width], vec![0.0f32; width]);
    Ok(Box::new(move |io, ctx| {
        let (x, scale, bias) = (io.f32(0), io.f32(1), io.f32(2));
        if is_fixed {
            mean.copy_from_slice(running(io, 3, mean_at));
            variance.copy_from_slice(running(io, 4, variance_at));
        } else if rows > 0 {
            let share = |sums: &[f64], rows: f64, out: &mut [f32]| {
                out.iter_mut().zip(sums).for_each(|(o, sum)| *o = (sum / rows) as f32);
            };
            features.sums(x, &mut sums);
            share(&sums, rows as f64, &mut mean);
            features.squares(x, &mean, &mut sums);
            let examples = match &sync {
                Some(name) => over_ranks(&ctx.peers, name, rows, &mut mean, &mut sums)?,
                None => rows as f64,
            };
            share(&sums, examples, &mut variance);
            for (at, batch) in [(mean_at, &mean), (variance_at, &variance)] {
                let Some(at) = at else { continue };
                for (running, batch) in io.out_f32(at).iter_mut().zip(batch) {
                    *running = momentum * *running + (1.0 - momentum) * batch;
                }
            }
        }
        for (factor, variance) in factor.iter_mut().zip(&variance) {
            *factor = 1.0 / (variance + epsilon).sqrt();
        }
        if let Some(at) = saved_mean {
            io.out_f32(at).copy_from_slice(&mean);
        }
        if let Some(at) = saved_inv {
            io.out_f32(at).copy_from_slice(&factor);
        }
        for i in 0..width {
            factor[i] *= scale[i];
            offset[i] = bias[i] - mean[i] * factor[i];
        }
        features.stretch(x, &factor, &offset, io.out_f32(0));
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (rows, features) = features(s)?;
    let (width, is_fixed) = (features.count, is_fixed(s.op)?);
    let (dx, dscale, dbias) = (s.out_at("dX"), s.out_at("dScale"), s.out_at("dBias"));
    let sync = exchange(s)?;
    let (mut sums, mut products) = (vec![0.0f64; width], vec![0.0f64; width]);
    let mut factor = vec![0.0f32; width];
    let (mut slope, mut offset) = (vec![0.0f32; width], vec![0.0f32; width]);
    Ok(Box::new(move |io, ctx| {
        let (x, scale, mean, inv, d) = (io.f32(0), io.f32(1), io.f32(2), io.f32(3), io.f32(4));
        features.grad_sums(x, d, mean, inv, &mut sums, &mut products);
        for (at, sums) in [(dbias, &sums), (dscale, &products)] {
            let Some(at) = at else { continue };
            io.out_f32(at).iter_mut().zip(sums).for_each(|(o, sum)| *o = *sum as f32);
        }
        let mut examples = rows.max(1) as f64;
        if let Some(name) = &sync {
            // Scale and bias keep the sums of this rank: their gradients are added up later.
            let counted = if ctx.peers.share == 0.0 { 0.0 } else { rows as f64 };
            let own: Vec<f64> =
                std::iter::once(counted).chain(sums.iter().chain(&products).copied()).collect();
            let parts = gather(&ctx.peers, name, &own)?;
            let over = |at: usize| parts.iter().map(|part| part[at]).sum::<f64>();
            examples = over(0).max(1.0);
            (0..width).for_each(|i| (sums[i], products[i]) = (over(1 + i), over(1 + width + i)));
        }
        let Some(dx) = dx else { return Ok(()) };
        // Constant statistics leave only the first term; those of the batch depend on every row.
        let share = if is_fixed { 0.0 } else { 1.0 / examples };
        for i in 0..width {
            factor[i] = scale[i] * inv[i];
            slope[i] = -factor[i] * inv[i] * (products[i] * share) as f32;
            offset[i] = -factor[i] * (sums[i] * share) as f32;
        }
        features.grad(x, d, mean, [&factor, &slope, &offset], io.out_f32(dx));
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let of = |name, shape: &[usize], width| {
        Sample::x(name, spread(shape, -2.0, 2.0))
            .with("Scale", spread(&[width], 0.5, 1.5))
            .with("Bias", spread(&[width], -0.5, 0.5))
            .with("Mean", spread(&[width], -0.2, 0.2))
            .with("Variance", spread(&[width], 0.5, 1.0))
            .fix("Mean")
            .fix("Variance")
            .outs("SavedMean", 1)
            .outs("SavedInvStd", 1)
            .ignore("SavedMean")
            .ignore("SavedInvStd")
    };
    vec![
        of("rows", &[6, 3], 3),
        of("three dimensions", &[3, 2, 4], 4),
        of("for test", &[4, 3], 3).attr("is_test", true),
        of("images", &[3, 4, 2, 3], 4).attr("data_layout", "NCHW"),
        of("channels last", &[2, 2, 3, 4], 4).attr("data_layout", "NHWC"),
        of("running statistics", &[3, 2, 5], 2)
            .attr("data_layout", "NCHW")
            .attr("use_global_stats", true),
    ]
}
