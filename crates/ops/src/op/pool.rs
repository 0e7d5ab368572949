//! `pool2d` and `max_pool2d_with_index`: the largest or the mean value under a window that moves
//! over images `[batch, channels, rows, columns]`.
//!
//! Paddings never win and, with `exclusive`, do not count in a mean. `ceil_mode` adds a position
//! where the window reaches over the last pixel. With `adaptive`, `ksize` is the size of the
//! result: row `i` of `n` looks at rows `i * rows / n` up to `(i + 1) * rows / n`, rounded
//! outwards; with `[1, 1]` that is the whole image.
//!
//! Of equal values the first is the largest, and it alone gets the gradient. `Mask` holds the place
//! of the largest value in its channel, `row * columns + column`.

use std::ops::Range;

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::pool;
use regatta_tensor::{DType, Tensor, Value};

use super::window::{PADDINGS, STRIDES, bad, images, paddings, pair};
use crate::def::{NO_SECOND, no_samples, per_example};
use crate::{Grad, Infer, Kernel, KernelError, OpDef, Sample, Spec};

const KSIZE: AttrDef = ("ksize", AttrKind::RequiredInts);
const CEIL: AttrDef = ("ceil_mode", AttrKind::Bool(false));
const ADAPTIVE: AttrDef = ("adaptive", AttrKind::Bool(false));
const ATTRS: &[AttrDef] = &[
    ("pooling_type", AttrKind::RequiredStr),
    KSIZE,
    STRIDES,
    PADDINGS,
    CEIL,
    ("exclusive", AttrKind::Bool(true)),
    ADAPTIVE,
];
const INDEX_ATTRS: &[AttrDef] = &[KSIZE, STRIDES, PADDINGS, CEIL, ADAPTIVE];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "pool2d",
            inputs: &[one("X")],
            outputs: &[one("Out")],
            attrs: ATTRS,
        },
        infer,
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Out"]))),
        kernel: forward,
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "pool2d_grad",
            inputs: &[one("X"), one("Out"), one("dOut")],
            outputs: &[one("dX")],
            attrs: ATTRS,
        },
        infer: |i| Ok(vec![i.ty("X").clone()]),
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "max_pool2d_with_index",
            inputs: &[one("X")],
            outputs: &[one("Out"), one("Mask")],
            attrs: INDEX_ATTRS,
        },
        infer: |i| {
            let out = infer(i)?.remove(0);
            let mask = VarType::dense(DType::I64, out.shape.clone());
            Ok(vec![out, mask])
        },
        grad: Grad::Rule(|g| Ok(g.unary(&["X", "Mask"]))),
        kernel: forward_with_index,
        batch: per_example,
        samples: index_samples,
    },
    OpDef {
        schema: Schema {
            kind: "max_pool2d_with_index_grad",
            inputs: &[one("X"), one("Mask"), one("dOut")],
            outputs: &[one("dX")],
            attrs: INDEX_ATTRS,
        },
        infer: |i| Ok(vec![i.ty("X").clone()]),
        grad: NO_SECOND,
        kernel: backward_with_index,
        batch: per_example,
        samples: no_samples,
    },
];

/// Where the windows of one dimension are.
struct Windows {
    /// Pixels of the image that a window sees, for each position.
    seen: Vec<Range<usize>>,
    /// Its size with those beyond the image, up to the paddings.
    size: Vec<usize>,
}

/// The windows of one dimension of `size` pixels; nothing if there are none, or one sees no pixel.
fn windows(op: &Op, d: usize, size: usize) -> Result<Option<Windows>, Error> {
    let ksize = pair(op, "ksize", 1, [0, 0])?;
    if ksize == [0, 0] {
        return Err(bad(op, "ksize", "is empty, but should be two sizes".into()));
    }
    let k = ksize[d];
    if op.bool("adaptive")? {
        let seen: Vec<_> = (0..k).map(|i| i * size / k..((i + 1) * size).div_ceil(k)).collect();
        let size = seen.iter().map(Range::len).collect();
        return Ok(Some(Windows { seen, size }));
    }
    let stride = pair(op, "strides", 1, ksize)?[d];
    let [before, after] = paddings(op)?.map(|p| p[d]);
    let Some(room) = (size + before + after).checked_sub(k) else { return Ok(None) };
    let steps = if op.bool("ceil_mode")? { room.div_ceil(stride) } else { room / stride };
    let starts = || (0..=steps).map(|i| i * stride);
    let clamp = |at: usize| at.clamp(before, before + size) - before;
    let seen: Vec<_> = starts().map(|at| clamp(at)..clamp(at + k)).collect();
    let size = starts().map(|at| k.min((size + before + after).saturating_sub(at))).collect();
    Ok(Some(Windows { seen, size }).filter(|w| w.seen.iter().all(|r| !r.is_empty())))
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let (x, [channels, rows, cols]) = images(i, "X")?;
    if i.op.kind == "pool2d" {
        is_max(i.op)?;
    }
    let (Some(rows), Some(cols)) = (windows(i.op, 0, rows)?, windows(i.op, 1, cols)?) else {
        let reason = format!("does not fit on {x} with these paddings: a window sees no pixel");
        return Err(i.bad_attr("ksize", reason));
    };
    let shape = [x.shape[0], channels as i64, rows.seen.len() as i64, cols.seen.len() as i64];
    Ok(vec![VarType::f32(shape)])
}

/// Whether the largest value is taken, not the mean.
fn is_max(op: &Op) -> Result<bool, Error> {
    match op.str("pooling_type")? {
        "max" => Ok(true),
        "avg" => Ok(false),
        other => Err(bad(op, "pooling_type", format!("is '{other}', but should be max or avg"))),
    }
}

/// What a kernel keeps: rows, columns and their sizes, pixels of a channel, and room for a line.
struct Plan {
    rows: Windows,
    cols: Windows,
    pixels: usize,
    positions: usize,
    line: Vec<f32>,
}

fn plan(s: &Spec<'_>) -> Result<Plan, Error> {
    let dims = s.dims(0);
    let of = |d: usize| {
        let windows = windows(s.op, d, dims[2 + d])?;
        Ok::<_, Error>(windows.expect("checked when the types were inferred"))
    };
    let (mut rows, mut cols) = (of(0)?, of(1)?);
    if s.op.kind.starts_with("pool2d") && s.op.bool("exclusive")? {
        for windows in [&mut rows, &mut cols] {
            windows.size = windows.seen.iter().map(Range::len).collect();
        }
    }
    let positions = rows.seen.len() * cols.seen.len();
    Ok(Plan { rows, cols, pixels: dims[2] * dims[3], positions, line: vec![0.0; dims[3]] })
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let is_max = is_max(s.op)?;
    let Plan { rows, cols, pixels, positions, mut line } = plan(s)?;
    Ok(Box::new(move |io, _| {
        let planes = io.f32(0).chunks_exact(pixels);
        for (x, out) in planes.zip(io.out_f32(0).chunks_exact_mut(positions)) {
            if is_max {
                pool::max_plane(x, &rows.seen, &cols.seen, &mut line, out);
            } else {
                let (rows, row_sizes) = (&rows.seen, &rows.size);
                pool::mean_plane(x, rows, &cols.seen, row_sizes, &cols.size, &mut line, out);
            }
        }
        Ok(())
    }))
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let is_max = is_max(s.op)?;
    let Plan { rows, cols, pixels, positions, mut line } = plan(s)?;
    Ok(Box::new(move |io, _| {
        let planes = io.f32(0).chunks_exact(pixels).zip(io.out_f32(0).chunks_exact_mut(pixels));
        let maps = io.f32(1).chunks_exact(positions).zip(io.f32(2).chunks_exact(positions));
        for ((x, dx), (out, d)) in planes.zip(maps) {
            if is_max {
                pool::max_plane_grad(x, out, d, &rows.seen, &cols.seen, line.len(), dx);
            } else {
                let (rows, row_sizes) = (&rows.seen, &rows.size);
                pool::mean_plane_grad(d, rows, &cols.seen, row_sizes, &cols.size, &mut line, dx);
            }
        }
        Ok(())
    }))
}

fn forward_with_index(s: &Spec<'_>) -> Result<Kernel, Error> {
    let Plan { rows, cols, pixels, positions, line } = plan(s)?;
    let width = line.len();
    Ok(Box::new(move |io, _| {
        let outs = io.out_f32(0).chunks_exact_mut(positions);
        let outs = outs.zip(io.out_i64(1).chunks_exact_mut(positions));
        for (x, (out, places)) in io.f32(0).chunks_exact(pixels).zip(outs) {
            pool::max_places(x, &rows.seen, &cols.seen, width, out, places);
        }
        Ok(())
    }))
}

fn backward_with_index(s: &Spec<'_>) -> Result<Kernel, Error> {
    let Plan { pixels, positions, .. } = plan(s)?;
    Ok(Box::new(move |io, _| {
        let maps = io.i64(1).chunks_exact(positions).zip(io.f32(2).chunks_exact(positions));
        for (dx, (places, d)) in io.out_f32(0).chunks_exact_mut(pixels).zip(maps) {
            dx.fill(0.0);
            for (&place, d) in places.iter().zip(d) {
                let dx = usize::try_from(place).ok().and_then(|at| dx.get_mut(at));
                *dx.ok_or_else(|| KernelError(format!("{place} is no pixel of X")))? += d;
            }
        }
        Ok(())
    }))
}

/// Values far enough apart that a difference does not change which is the largest.
fn apart(shape: &[usize]) -> Value {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| (i * 37 % 101) as f32 * 0.1 - 5.0).collect();
    Tensor::from_f32(shape, values).expect("lengths agree").into()
}

fn samples() -> Vec<Sample> {
    let of = |name, shape: &[usize], kind: &'static str, ksize: [i64; 2]| {
        Sample::x(name, apart(shape)).attr("pooling_type", kind).attr("ksize", ksize.to_vec())
    };
    vec![
        of("largest", &[2, 2, 4, 4], "max", [2, 2]),
        of("largest, windows overlap", &[1, 2, 5, 4], "max", [3, 2])
            .attr("strides", vec![2i64, 1])
            .attr("paddings", vec![1i64, 1]),
        of("largest, last one cut", &[1, 1, 5, 5], "max", [2, 3]).attr("ceil_mode", true),
        of("largest, adaptive", &[1, 2, 5, 7], "max", [3, 2]).attr("adaptive", true),
        of("mean", &[2, 2, 4, 6], "avg", [2, 3]),
        of("mean of what is inside", &[1, 2, 4, 4], "avg", [3, 3])
            .attr("strides", vec![1i64, 2])
            .attr("paddings", vec![1i64, 0, 1, 1]),
        of("mean with the paddings", &[1, 1, 5, 5], "avg", [3, 3])
            .attr("strides", vec![2i64, 2])
            .attr("paddings", vec![1i64, 1])
            .attr("ceil_mode", true)
            .attr("exclusive", false),
        of("mean, adaptive", &[1, 2, 5, 7], "avg", [2, 3]).attr("adaptive", true),
        of("mean of all", &[2, 3, 3, 2], "avg", [1, 1]).attr("adaptive", true),
    ]
}

fn index_samples() -> Vec<Sample> {
    let x = Sample::x("overlapping", apart(&[2, 2, 5, 4]));
    vec![
        x.attr("ksize", vec![3i64, 2])
            .attr("strides", vec![2i64, 1])
            .attr("paddings", vec![1i64, 0]),
    ]
}
