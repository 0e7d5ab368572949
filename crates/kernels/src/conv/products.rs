//! Maps and gradients of images: for each place a product of the weights that meet something there
//! with the channels that they meet, for all images of a chunk at once.

use super::Plan;
use super::isa::{Isa, LANES, Tile};
use super::lanes::{Images, apart, side_by_side};
use super::panels::{Used, Weights, pack};
use super::taps::{Taps, used};
use crate::gemm::GemmScratch;

/// Images that are worked on together: their vectors are as wide as a tile.
const CHUNK: usize = 32;
/// Packed weights of at most this many floats stay in the second level of cache beside the images.
const SMALL_PANELS: usize = 100_000;

/// From one side of a convolution to the other.
struct Pass<'a> {
    /// Channels of a group that are read, and their size.
    depth: usize,
    from: [usize; 2],
    /// Channels of a group that are written, and their size.
    rows: usize,
    to: [usize; 2],
    taps: [&'a [Taps]; 2],
    used: Used,
}

/// Maps from images.
pub(super) fn to_maps(
    plan: &Plan,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut GemmScratch,
) {
    let conv = &plan.conv;
    let (depth, rows) = (conv.channels / conv.groups, conv.maps / conv.groups);
    let taps = plan.to_maps.each_ref().map(Vec::as_slice);
    let used = Used { rows: used(taps[0]), cols: used(taps[1]) };
    let pass = Pass { depth, from: conv.image, rows, to: conv.map, taps, used };
    let window = conv.window;
    let deep = window[0] * window[1];
    for group in 0..conv.groups {
        let data = &w[group * rows * conv.depth()..][..rows * conv.depth()];
        let weights = Weights { data, rows, row: depth * deep, depth, deep, window };
        pass.run(plan, group, x, weights, bias, y, scratch);
    }
}

/// Images from maps.
pub(super) fn to_images(
    plan: &Plan,
    dy: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    dx: &mut [f32],
    scratch: &mut GemmScratch,
) {
    let conv = &plan.conv;
    let (depth, rows) = (conv.maps / conv.groups, conv.channels / conv.groups);
    let taps = plan.to_images.each_ref().map(Vec::as_slice);
    let used = Used { rows: used(taps[0]), cols: used(taps[1]) };
    let pass = Pass { depth, from: conv.map, rows, to: conv.image, taps, used };
    let window = conv.window;
    let row = window[0] * window[1];
    for group in 0..conv.groups {
        let data = &w[group * depth * conv.depth()..][..depth * conv.depth()];
        let weights = Weights { data, rows, row, depth, deep: rows * row, window };
        pass.run(plan, group, dy, weights, bias, dx, scratch);
    }
}

impl Pass<'_> {
    /// One group of channels.
    fn run(
        &self,
        plan: &Plan,
        group: usize,
        src: &[f32],
        weights: Weights<'_>,
        bias: Option<&[f32]>,
        dst: &mut [f32],
        scratch: &mut GemmScratch,
    ) {
        let Plan { conv, isa, .. } = plan;
        let (pixels, places) = (self.from[0] * self.from[1], self.to[0] * self.to[1]);
        let (stride, out_stride) =
            (pixels * self.depth * conv.groups, places * self.rows * conv.groups);
        let panels = scratch.a.reserve(self.rows * self.used.count() * self.depth);
        pack(isa, weights, &self.used, panels);
        let bias = bias.map(|bias| &bias[group * self.rows..][..self.rows]);
        for first in (0..conv.images).step_by(CHUNK) {
            let count = CHUNK.min(conv.images - first);
            let across = count.next_multiple_of(LANES);
            let data = &src[first * stride + group * self.depth * pixels..];
            let images = Images { data, stride, count, channels: self.depth, pixels };
            let from = scratch.b.reserve(pixels * self.depth * across);
            side_by_side(isa, images, self.from[1], [self.from[1], 0], across, from);
            let to = scratch.c.reserve(places * self.rows * across);
            self.products(isa, panels, from, across, to);
            let dst = &mut dst[first * out_stride + group * self.rows * places..];
            apart(isa, to, across, [count, self.rows, places], bias, out_stride, dst);
        }
    }

    /// All products of a chunk: from `[row, column, channel, image]` to `[channel, place, image]`.
    fn products(&self, isa: &Isa, panels: &[f32], from: &[f32], across: usize, to: &mut [f32]) {
        // The packed weights or a few rows of the images stay near, whichever is more.
        if panels.len() <= SMALL_PANELS {
            for y in 0..self.to[0] {
                for (first, height) in isa.heights(self.rows) {
                    self.row(isa, panels, from, across, to, [first, height], y);
                }
            }
        } else {
            for (first, height) in isa.heights(self.rows) {
                for y in 0..self.to[0] {
                    self.row(isa, panels, from, across, to, [first, height], y);
                }
            }
        }
    }

    /// The products of a row of places and a panel of weights.
    fn row(
        &self,
        isa: &Isa,
        panels: &[f32],
        from: &[f32],
        across: usize,
        to: &mut [f32],
        [first, height]: [usize; 2],
        y: usize,
    ) {
        let (depth, places) = (self.depth, self.to[0] * self.to[1]);
        let (down, wide) = (self.taps[0][y], self.from[1] * depth * across);
        let panel = &panels[first * self.used.count() * depth..];
        for (x, right) in self.taps[1].iter().enumerate() {
            let at = (first * places + y * self.to[1] + x) * across;
            if down.count == 0 || right.count == 0 {
                for row in 0..height {
                    to[at + row * places * across..][..across].fill(0.0);
                }
                continue;
            }
            let tap = self.used.at(down.first, right.first);
            let lines = (self.used.cols.len() * depth * height) as isize;
            let mut tile = Tile {
                k: right.count * depth,
                runs: down.count,
                a: panel[tap * depth * height..].as_ptr(),
                a_row: 1,
                a_depth: height,
                a_run: down.step as isize * lines,
                b: from[down.source * wide + right.source * depth * across..].as_ptr(),
                b_depth: across,
                b_run: down.source_step * wide as isize,
                c: to[at..].as_mut_ptr(),
                c_row: places * across,
                accumulate: false,
            };
            if right.step == 1 && right.source_step == 1 {
                columns(isa, &tile, height, across);
                continue;
            }
            // What the weights of a row meet does not lie side by side: they are runs of their own.
            let (a_line, b_line) = (tile.a_run, tile.b_run);
            (tile.k, tile.runs) = (depth, right.count);
            tile.a_run = (right.step * depth * height) as isize;
            tile.b_run = right.source_step * (depth * across) as isize;
            for _ in 0..down.count {
                columns(isa, &tile, height, across);
                tile.a = tile.a.wrapping_offset(a_line);
                tile.b = tile.b.wrapping_offset(b_line);
                tile.accumulate = true;
            }
        }
    }
}

/// A product as wide as all images.
#[inline]
fn columns(isa: &Isa, tile: &Tile, height: usize, across: usize) {
    for j in (0..across).step_by(isa.cols()) {
        let width = isa.cols().min(across - j);
        let tile = Tile { b: tile.b.wrapping_add(j), c: tile.c.wrapping_add(j), ..*tile };
        // SAFETY: a panel holds `height` rows of all used weights, `from` all pixels, and `to` all
        // places, each for whole vectors of images; taps name weights, pixels and places inside of
        // them. The instruction set was detected.
        unsafe { isa.tile(height, width)(&tile) };
    }
}
