//! Any convolution, image by image: the patches under the window become columns of a matrix, which
//! is multiplied by the weights. Slow by the copying, so for what other ways do not take.

use super::Conv;
use crate::gemm::{Epilogue, GemmScratch, Mat, gemm};

/// Sizes of the products of one group.
struct Group {
    channels: usize,
    maps: usize,
    depth: usize,
}

fn group(conv: &Conv) -> Group {
    let channels = conv.channels / conv.groups;
    Group { channels, maps: conv.maps / conv.groups, depth: conv.depth() }
}

pub(super) fn forward(
    conv: &Conv,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut GemmScratch,
) {
    let (n, Group { channels, maps, depth }) = (conv.positions(), group(conv));
    if y.is_empty() {
        return;
    }
    if let Some(bias) = bias {
        fill_channels(bias, n, y);
    }
    let mut patches = std::mem::take(&mut scratch.patches);
    let groups = x.chunks_exact(channels * conv.pixels()).zip(y.chunks_exact_mut(maps * n));
    for (i, (x, y)) in groups.enumerate() {
        let w = &w[i % conv.groups * maps * depth..][..maps * depth];
        let columns = unfold(conv, x, patches.reserve(depth * n));
        let (a, b) = (Mat::new(w, depth), Mat::new(columns, n));
        gemm(maps, n, depth, a, b, bias.is_some(), y, n, Epilogue::default(), scratch);
    }
    scratch.patches = patches;
}

pub(super) fn to_images(
    conv: &Conv,
    dy: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    dx: &mut [f32],
    scratch: &mut GemmScratch,
) {
    let (n, Group { channels, maps, depth }) = (conv.positions(), group(conv));
    match bias {
        Some(bias) => fill_channels(bias, conv.pixels(), dx),
        None => dx.fill(0.0),
    }
    if dy.is_empty() || dx.is_empty() {
        return;
    }
    let mut patches = std::mem::take(&mut scratch.patches);
    let groups = dx.chunks_exact_mut(channels * conv.pixels()).zip(dy.chunks_exact(maps * n));
    for (i, (dx, dy)) in groups.enumerate() {
        let w = &w[i % conv.groups * maps * depth..][..maps * depth];
        let columns = patches.reserve(depth * n);
        let (a, b) = (Mat::transposed(w, depth), Mat::new(dy, n));
        gemm(depth, n, maps, a, b, false, columns, n, Epilogue::default(), scratch);
        fold(conv, columns, dx);
    }
    scratch.patches = patches;
}

pub(super) fn to_weights(
    conv: &Conv,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    scratch: &mut GemmScratch,
) {
    let (n, Group { channels, maps, depth }) = (conv.positions(), group(conv));
    if dy.is_empty() || x.is_empty() {
        return dw.fill(0.0);
    }
    let mut patches = std::mem::take(&mut scratch.patches);
    let groups = x.chunks_exact(channels * conv.pixels()).zip(dy.chunks_exact(maps * n));
    for (i, (x, dy)) in groups.enumerate() {
        let dw = &mut dw[i % conv.groups * maps * depth..][..maps * depth];
        let columns = unfold(conv, x, patches.reserve(depth * n));
        let (a, b) = (Mat::new(dy, n), Mat::transposed(columns, n));
        let more = i >= conv.groups;
        gemm(maps, depth, n, a, b, more, dw, depth, Epilogue::default(), scratch);
    }
    scratch.patches = patches;
}

/// One value per channel, in all its pixels.
fn fill_channels(values: &[f32], pixels: usize, to: &mut [f32]) {
    if pixels == 0 {
        return;
    }
    for (to, value) in to.chunks_exact_mut(pixels).zip(values.iter().cycle()) {
        to.fill(*value);
    }
}

/// Calls back for each row of the matrix of patches: its number among the rows, channel, and the
/// two weights.
fn each_row(conv: &Conv, mut f: impl FnMut(usize, usize, [usize; 2])) {
    let [kh, kw] = conv.window;
    for row in 0..conv.depth() {
        f(row, row / (kh * kw), [row / kw % kh, row % kw]);
    }
}

/// Writes the matrix of patches of one image: a row per channel and weight, a column per position.
fn unfold<'a>(conv: &Conv, x: &[f32], columns: &'a mut [f32]) -> &'a [f32] {
    let ([_, width], [_, map_width], n) = (conv.image, conv.map, conv.positions());
    each_row(conv, |row, channel, [i, j]| {
        let ((rows, y0), (cols, x0)) = (conv.meets(0, i), conv.meets(1, j));
        let out = &mut columns[row * n..][..n];
        if rows.is_empty() || cols.is_empty() || cols.len() < map_width {
            out.fill(0.0);
        } else {
            out[..rows.start * map_width].fill(0.0);
            out[rows.end * map_width..].fill(0.0);
        }
        if cols.is_empty() {
            return;
        }
        let image = &x[channel * conv.pixels()..][..conv.pixels()];
        for (k, out) in rows.clone().zip(out[rows.start * map_width..].chunks_mut(map_width)) {
            let line = &image[(y0 + (k - rows.start) * conv.stride[0]) * width + x0..];
            let line = line.iter().step_by(conv.stride[1]);
            out[cols.clone()].iter_mut().zip(line).for_each(|(to, from)| *to = *from);
        }
    });
    columns
}

/// Adds a matrix of patches to the pixels they were taken from.
fn fold(conv: &Conv, columns: &[f32], dx: &mut [f32]) {
    let ([_, width], [_, map_width], n) = (conv.image, conv.map, conv.positions());
    each_row(conv, |row, channel, [i, j]| {
        let ((rows, y0), (cols, x0)) = (conv.meets(0, i), conv.meets(1, j));
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        let from = &columns[row * n + rows.start * map_width..];
        let image = &mut dx[channel * conv.pixels()..][..conv.pixels()];
        for (k, from) in rows.clone().zip(from.chunks(map_width)) {
            let line = &mut image[(y0 + (k - rows.start) * conv.stride[0]) * width + x0..];
            let line = line.iter_mut().step_by(conv.stride[1]);
            line.zip(&from[cols.clone()]).for_each(|(to, from)| *to += from);
        }
    });
}
