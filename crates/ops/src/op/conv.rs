//! `conv2d` and `conv2d_transpose` over images `[batch, channels, rows, columns]`.
//!
//! `conv2d`: `Out[n, m] = sum of X[n, c] under the window times W[m, c], plus Bias[m]`. `W` is
//! `[maps, channels / groups, rows, columns]` of the window. As everywhere in deep learning the
//! window is not turned. Each group of channels makes its own group of maps.
//!
//! `conv2d_transpose` is the gradient of a `conv2d` as an op of its own: `X` has the maps, `W` is
//! `[channels of X, channels of Out / groups, rows, columns]`, and `Out` has the images. Several
//! sizes of images give maps of one size; `output_padding` says how many rows and columns more than
//! the smallest.

use regatta_ir::schema::{AttrDef, AttrKind, SlotDef, one, optional};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::conv::{Conv, channel_sums};

use super::window::{DILATIONS, PADDINGS, STRIDES, bad, images, paddings, pair};
use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, Infer, Kernel, OpDef, Sample, Spec};

const GROUPS: AttrDef = ("groups", AttrKind::Int(1));
const ATTRS: &[AttrDef] = &[STRIDES, PADDINGS, DILATIONS, GROUPS];
const TRANSPOSE_ATTRS: &[AttrDef] =
    &[STRIDES, PADDINGS, DILATIONS, GROUPS, ("output_padding", AttrKind::Ints)];

const INPUTS: &[SlotDef] = &[one("X"), one("W"), optional("Bias")];
const GRAD_INPUTS: &[SlotDef] = &[one("X"), one("W"), one("dOut")];
const GRAD_OUTPUTS: &[SlotDef] = &[optional("dX"), optional("dW"), optional("dBias")];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema { kind: "conv2d", inputs: INPUTS, outputs: &[one("Out")], attrs: ATTRS },
        infer: infer_conv,
        grad: Grad::Rule(|g| Ok(g.several(&["X", "W"], "Out", &["X", "W", "Bias"]))),
        kernel: forward,
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "conv2d_grad",
            inputs: GRAD_INPUTS,
            outputs: GRAD_OUTPUTS,
            attrs: ATTRS,
        },
        infer: infer_grad,
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "conv2d_transpose",
            inputs: INPUTS,
            outputs: &[one("Out")],
            attrs: TRANSPOSE_ATTRS,
        },
        infer: infer_transpose,
        grad: Grad::Rule(|g| Ok(g.several(&["X", "W"], "Out", &["X", "W", "Bias"]))),
        kernel: forward,
        batch: per_example,
        samples: transpose_samples,
    },
    OpDef {
        schema: Schema {
            kind: "conv2d_transpose_grad",
            inputs: GRAD_INPUTS,
            outputs: GRAD_OUTPUTS,
            attrs: TRANSPOSE_ATTRS,
        },
        infer: infer_grad,
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

/// Whether the op goes from maps to images.
fn is_transposed(op: &Op) -> bool {
    op.kind.starts_with("conv2d_transpose")
}

fn groups(op: &Op) -> Result<usize, Error> {
    let groups = op.int("groups")?;
    if groups < 1 {
        return Err(bad(op, "groups", format!("is {groups}, but should be at least 1")));
    }
    Ok(groups as usize)
}

/// The window of an op whose `X` holds `[channels, rows, columns]`, and what comes out of it.
/// Nothing if the window does not fit on the image, or more is cut off than there is.
fn geometry(
    op: &Op,
    [channels, rows, cols]: [usize; 3],
    [w0, w1, kh, kw]: [usize; 4],
) -> Result<Option<Conv>, Error> {
    let ([before, after], groups) = (paddings(op)?, groups(op)?);
    let (stride, dilation) = (pair(op, "strides", 1, [1, 1])?, pair(op, "dilations", 1, [1, 1])?);
    let (given, window) = ([rows, cols], [kh, kw]);
    let mut other = [0; 2];
    let transposed = is_transposed(op);
    let more = if transposed { pair(op, "output_padding", 0, [0, 0])? } else { [0, 0] };
    for d in 0..2 {
        let reach = dilation[d] * (window[d] - 1) + 1;
        let size = if transposed {
            let all = (given[d] - 1) * stride[d] + reach + more[d];
            all.checked_sub(before[d] + after[d]).filter(|size| *size > 0)
        } else {
            let all = given[d] + before[d] + after[d];
            all.checked_sub(reach).map(|room| room / stride[d] + 1)
        };
        let Some(size) = size else { return Ok(None) };
        other[d] = size;
    }
    let (channels, image, maps, map) = if transposed {
        (w1 * groups, other, channels, given)
    } else {
        (channels, given, w0, other)
    };
    let images = 0;
    let pad = before;
    Ok(Some(Conv { images, groups, channels, image, maps, map, window, stride, pad, dilation }))
}

/// Checks everything and gives the type of `Out`.
fn infer_conv(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let conv = checked(i)?;
    let [h, w] = conv.map;
    Ok(vec![VarType::f32([i.ty("X").shape[0], conv.maps as i64, h as i64, w as i64])])
}

fn infer_transpose(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let conv = checked(i)?;
    let [h, w] = conv.image;
    Ok(vec![VarType::f32([i.ty("X").shape[0], conv.channels as i64, h as i64, w as i64])])
}

fn checked(i: &Infer<'_>) -> Result<Conv, Error> {
    let (x, size) = images(i, "X")?;
    let groups = groups(i.op)?;
    if !size[0].is_multiple_of(groups) {
        let reason = format!("is {groups}, which does not divide the {} channels of X", size[0]);
        return Err(i.bad_attr("groups", reason));
    }
    let transposed = is_transposed(i.op);
    let want = if transposed {
        format!("f32[{}, channels of Out / groups, rows, columns]", size[0])
    } else {
        format!("f32[maps, {}, rows, columns] with maps for each group", size[0] / groups)
    };
    let w = &i.floats_of_rank("W", 4)?.shape;
    let dims: Vec<usize> = w.iter().filter_map(|&d| usize::try_from(d).ok()).collect();
    let &[w0, w1, kh, kw] = &dims[..] else { return Err(i.wrong("W", &want)) };
    let fits = if transposed {
        w0 == size[0]
    } else {
        w1 == size[0] / groups && w0.is_multiple_of(groups)
    };
    if !fits || dims.contains(&0) {
        return Err(i.wrong("W", &want));
    }
    let Some(conv) = geometry(i.op, size, [w0, w1, kh, kw])? else {
        let reason = format!("leave nothing of {x} for a window of {kh} x {kw}");
        return Err(i.bad_attr("paddings", reason));
    };
    if i.opt("Bias").is_some() {
        let n = if transposed { conv.channels } else { conv.maps };
        i.expect("Bias", &VarType::f32([n as i64]))?;
    }
    Ok(conv)
}

fn infer_grad(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let of = |slot: &str| match slot {
        "dX" => i.ty("X").clone(),
        "dW" => i.ty("W").clone(),
        _ => VarType::f32([i.ty("dOut").shape[1]]),
    };
    Ok(i.op.outputs.iter().map(|(slot, _)| of(slot)).collect())
}

/// The convolution of a kernel.
fn prepared(s: &Spec<'_>) -> Result<Conv, Error> {
    let (x, w) = (s.dims(0), s.dims(1));
    let conv = geometry(s.op, [x[1], x[2], x[3]], [w[0], w[1], w[2], w[3]])?;
    let conv = conv.expect("checked when the types were inferred");
    Ok(Conv { images: x[0], ..conv })
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let conv = prepared(s)?.plan();
    let (bias, transposed) = (s.at("Bias"), is_transposed(s.op));
    Ok(Box::new(move |io, ctx| {
        let (x, w, bias) = (io.f32(0), io.f32(1), bias.map(|at| io.f32(at)));
        if transposed {
            conv.to_images(x, w, bias, io.out_f32(0), &mut ctx.gemm);
        } else {
            conv.forward(x, w, bias, io.out_f32(0), &mut ctx.gemm);
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let conv = prepared(s)?.plan();
    let transposed = is_transposed(s.op);
    let (dx, dw, dbias) = (s.out_at("dX"), s.out_at("dW"), s.out_at("dBias"));
    let pixels: usize = s.dims(2)[2..].iter().product();
    Ok(Box::new(move |io, ctx| {
        let (x, w, d) = (io.f32(0), io.f32(1), io.f32(2));
        if let Some(at) = dbias {
            channel_sums(d, pixels, io.out_f32(at));
        }
        if let Some(at) = dw {
            let (images, maps) = if transposed { (d, x) } else { (x, d) };
            conv.to_weights(images, maps, io.out_f32(at), &mut ctx.gemm);
        }
        match dx {
            Some(at) if transposed => conv.forward(d, w, None, io.out_f32(at), &mut ctx.gemm),
            Some(at) => conv.to_images(d, w, None, io.out_f32(at), &mut ctx.gemm),
            None => {}
        }
        Ok(())
    }))
}

fn sample(name: &'static str, x: &[usize], w: &[usize]) -> Sample {
    Sample::x(name, spread(x, -1.0, 1.0)).with("W", spread(w, -0.5, 0.5))
}

fn samples() -> Vec<Sample> {
    let bias = |n: usize| spread(&[n], -0.5, 0.5);
    vec![
        sample("plain", &[2, 2, 4, 4], &[3, 2, 3, 3]),
        sample("bias and pads", &[2, 2, 3, 3], &[2, 2, 3, 3])
            .with("Bias", bias(2))
            .attr("paddings", vec![1i64, 1]),
        sample("strides", &[1, 2, 5, 6], &[2, 2, 3, 2]).attr("strides", vec![2i64, 3]),
        sample("pads of four sides", &[1, 1, 3, 4], &[2, 1, 2, 3])
            .attr("paddings", vec![0i64, 1, 2, 1])
            .attr("strides", vec![1i64, 2]),
        sample("dilations", &[1, 2, 5, 6], &[2, 2, 2, 3])
            .attr("dilations", vec![3i64, 2])
            .attr("paddings", vec![1i64, 0]),
        sample("groups", &[2, 4, 3, 3], &[6, 2, 2, 2]).with("Bias", bias(6)).attr("groups", 2i64),
        sample("a group per channel", &[2, 3, 4, 4], &[3, 1, 3, 3])
            .attr("groups", 3i64)
            .attr("paddings", vec![1i64, 1]),
        sample("single pixels", &[2, 3, 2, 3], &[4, 3, 1, 1]).with("Bias", bias(4)),
        sample("enough images for a vector", &[17, 2, 3, 3], &[2, 2, 2, 2])
            .with("Bias", bias(2))
            .attr("paddings", vec![1i64, 0]),
    ]
}

fn transpose_samples() -> Vec<Sample> {
    let bias = |n: usize| spread(&[n], -0.5, 0.5);
    vec![
        sample("plain", &[2, 2, 3, 3], &[2, 3, 2, 2]),
        sample("strides and more rows", &[2, 2, 2, 3], &[2, 2, 3, 3])
            .with("Bias", bias(2))
            .attr("strides", vec![2i64, 2])
            .attr("paddings", vec![1i64, 1])
            .attr("output_padding", vec![1i64, 0]),
        sample("groups and dilations", &[1, 4, 3, 2], &[4, 1, 2, 2])
            .with("Bias", bias(2))
            .attr("groups", 2i64)
            .attr("dilations", vec![2i64, 1])
            .attr("paddings", vec![0i64, 1, 1, 0]),
    ]
}
