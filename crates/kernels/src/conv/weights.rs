//! Gradients of weights: for each weight of the window a product over all positions and images.
//!
//! Either maps are rows and channels columns, or, if the channels would not fill a vector, channels
//! of neighbouring pixels are rows and maps columns.

use super::Conv;
use super::isa::{Isa, LANES, Tile};
use super::lanes::{Images, channels_last, side_by_side, turn};
use super::panels::Used;
use crate::gemm::GemmScratch;
use std::ops::Range;

/// Floats that stay in the second level of cache.
const NEAR: usize = 300_000;
/// Images that are worked on together.
const CHUNK: usize = 32;

pub(super) fn run(
    conv: &Conv,
    isa: &Isa,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    scratch: &mut GemmScratch,
) {
    let (channels, maps) = (conv.channels / conv.groups, conv.maps / conv.groups);
    let few = channels.next_multiple_of(LANES) * maps > channels * maps.next_multiple_of(LANES);
    for group in 0..conv.groups {
        let dw = &mut dw[group * maps * conv.depth()..][..maps * conv.depth()];
        let of = Of { conv, isa, group, channels, maps };
        if few && conv.dilation[1] == 1 {
            of.few_channels(x, dy, dw, scratch);
        } else {
            of.many_channels(x, dy, dw, scratch);
        }
    }
}

/// One group of a convolution.
struct Of<'a> {
    conv: &'a Conv,
    isa: &'a Isa,
    group: usize,
    channels: usize,
    maps: usize,
}

impl Of<'_> {
    /// The images of a chunk.
    fn images<'a>(&self, x: &'a [f32], first: usize, count: usize) -> Images<'a> {
        let (stride, pixels) = (self.conv.image_len(), self.conv.pixels());
        let data = &x[first * stride + self.group * self.channels * pixels..];
        Images { data, stride, count, channels: self.channels, pixels }
    }

    /// The maps of a chunk.
    fn maps<'a>(&self, dy: &'a [f32], first: usize, count: usize) -> Images<'a> {
        let (stride, pixels) = (self.conv.maps_of_image(), self.conv.positions());
        let data = &dy[first * stride + self.group * self.maps * pixels..];
        Images { data, stride, count, channels: self.maps, pixels }
    }

    /// Chunks of images: the first of each, and how many.
    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> {
        let images = self.conv.images;
        (0..images).step_by(CHUNK).map(move |first| (first, CHUNK.min(images - first)))
    }

    fn used(&self) -> Used {
        let of = |d: usize| {
            let meets = |w: &usize| !self.conv.meets(d, *w).0.is_empty();
            let start = (0..self.conv.window[d]).find(meets).unwrap_or(0);
            let end = (0..self.conv.window[d]).rfind(meets).map_or(start, |w| w + 1);
            start..end
        };
        Used { rows: of(0), cols: of(1) }
    }

    fn many_channels(&self, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &mut GemmScratch) {
        let (isa, conv, used) = (self.isa, self.conv, self.used());
        let wide = self.channels.next_multiple_of(LANES);
        let sums = scratch.patches.reserve(used.count() * self.maps * wide);
        for (first, count) in self.chunks() {
            let across = count.next_multiple_of(LANES);
            let d = scratch.c.reserve(conv.positions() * self.maps * across);
            let width = conv.map[1];
            side_by_side(isa, self.maps(dy, first, count), width, [width, 0], across, d);
            let images = scratch.b.reserve(conv.pixels() * count * wide);
            channels_last(isa, self.images(x, first, count), wide, images);
            // Operands that are too many for the second level of cache come a row at a time.
            let many = d.len() + images.len() > NEAR;
            let lines = if many { 1 } else { conv.map[0] };
            for (y, from) in (0..conv.map[0])
                .step_by(lines)
                .flat_map(|y| (0..wide).step_by(isa.cols()).map(move |from| (y, from)))
            {
                let cols = isa.cols().min(wide - from);
                for (row, height) in isa.heights(self.maps) {
                    for (kh, kw) in pairs(&used) {
                        let at = (used.at(kh, kw) * self.maps + row) * wide + from;
                        let tile = Tile {
                            k: count,
                            runs: 0,
                            a: d[row * across..].as_ptr(),
                            a_row: across,
                            a_depth: 1,
                            a_run: (self.maps * across) as isize,
                            b: images[from..].as_ptr(),
                            b_depth: wide,
                            b_run: (conv.stride[1] * count * wide) as isize,
                            c: sums[at..].as_mut_ptr(),
                            c_row: wide,
                            accumulate: first > 0 || y > conv.meets(0, kh).0.start,
                        };
                        let lines = y..y + lines;
                        self.positions(isa, tile, lines, [kh, kw], [height, cols], count * wide);
                    }
                }
            }
        }
        self.in_order(isa, sums, wide, &used, dw);
    }

    /// Adds up the products of one weight of the window over all positions where it meets a pixel.
    fn positions(
        &self,
        isa: &Isa,
        mut tile: Tile,
        lines: Range<usize>,
        [kh, kw]: [usize; 2],
        [height, cols]: [usize; 2],
        pixel: usize,
    ) {
        let conv = self.conv;
        let ((rows, y0), (columns, x0)) = (conv.meets(0, kh), conv.meets(1, kw));
        tile.runs = columns.len();
        let (a, b) = (tile.a, tile.b);
        for y in rows.start.max(lines.start)..rows.end.min(lines.end) {
            let i = y - rows.start;
            let position = y * conv.map[1] + columns.start;
            let at = (y0 + i * conv.stride[0]) * conv.image[1] + x0;
            tile.a = a.wrapping_offset(position as isize * tile.a_run);
            tile.b = b.wrapping_add(at * pixel);
            // SAFETY: positions and pixels lie in the maps and images, of which both operands hold
            // all, for whole vectors of columns; `c` is a part of the sums. The instruction set was
            // detected.
            unsafe { isa.tile(height, cols)(&tile) };
            tile.accumulate = true;
        }
    }

    /// From `[weight of the window, map, channel]` to the order of the weights.
    fn in_order(&self, isa: &Isa, sums: &[f32], wide: usize, used: &Used, dw: &mut [f32]) {
        let taps = self.conv.window[0] * self.conv.window[1];
        let row = self.maps * wide;
        let mut places = [0; LANES];
        if used.count() < taps {
            dw.fill(0.0);
            for (kh, kw) in pairs(used) {
                let sums = &sums[used.at(kh, kw) * row..][..row];
                let to = dw[kh * self.conv.window[1] + kw..].iter_mut().step_by(taps);
                let from = sums.chunks_exact(wide).flat_map(|row| &row[..self.channels]);
                to.zip(from).for_each(|(to, from)| *to = *from);
            }
            return;
        }
        for map in 0..self.maps {
            for channel in (0..self.channels).step_by(LANES) {
                let cols = LANES.min(self.channels - channel);
                for tap in (0..taps).step_by(LANES) {
                    for (j, place) in places[..cols].iter_mut().enumerate() {
                        *place = (map * self.channels + channel + j) * taps + tap;
                    }
                    let from = tap * row + map * wide + channel;
                    let rows = LANES.min(taps - tap);
                    turn(isa, sums, from, row, [rows, cols], &places, dw);
                }
            }
        }
    }

    fn few_channels(&self, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &mut GemmScratch) {
        let (isa, conv) = (self.isa, self.conv);
        let wide = self.maps.next_multiple_of(LANES);
        let [kh, kw] = conv.window;
        let in_row = kw * self.channels;
        let sums = scratch.patches.reserve(kh * in_row * wide);
        sums.fill(0.0);
        // With the zeros around them, all weights of a row of the window meet something.
        let width = ((conv.map[1] - 1) * conv.stride[1] + kw).max(conv.pad[1] + conv.image[1]);
        for (first, count) in self.chunks() {
            let across = count.next_multiple_of(LANES);
            let images = scratch.b.reserve(conv.image[0] * width * self.channels * across);
            if width > conv.image[1] {
                images.fill(0.0);
            }
            let skip = [width, conv.pad[1]];
            side_by_side(isa, self.images(x, first, count), conv.image[1], skip, across, images);
            let d = scratch.c.reserve(conv.positions() * count * wide);
            channels_last(isa, self.maps(dy, first, count), wide, d);
            let pixel = self.channels * across;
            for i in 0..kh {
                let (rows, y0) = conv.meets(0, i);
                for (j, y) in rows.enumerate() {
                    let at = (y0 + j * conv.stride[0]) * width * pixel;
                    let tile = Tile {
                        k: count,
                        runs: conv.map[1],
                        a: images[at..].as_ptr(),
                        a_row: across,
                        a_depth: 1,
                        a_run: (conv.stride[1] * pixel) as isize,
                        b: d[y * conv.map[1] * count * wide..].as_ptr(),
                        b_depth: wide,
                        b_run: (count * wide) as isize,
                        c: sums[i * in_row * wide..].as_mut_ptr(),
                        c_row: wide,
                        accumulate: true,
                    };
                    all_of_row(isa, &tile, in_row, wide);
                }
            }
        }
        for (i, dw) in dw.iter_mut().enumerate() {
            let (map, channel, kh, kw) =
                (i / conv.depth(), i / (kh * kw) % self.channels, i / kw % kh, i % kw);
            *dw = sums[(kh * in_row + kw * self.channels + channel) * wide + map];
        }
    }
}

/// All rows and columns of the weights in a row of the window.
fn all_of_row(isa: &Isa, tile: &Tile, rows: usize, wide: usize) {
    for from in (0..wide).step_by(isa.cols()) {
        let cols = isa.cols().min(wide - from);
        for (row, height) in isa.heights(rows) {
            let tile = Tile {
                a: tile.a.wrapping_add(row * tile.a_row),
                b: tile.b.wrapping_add(from),
                c: tile.c.wrapping_add(row * wide + from),
                ..*tile
            };
            // SAFETY: a row of the images with zeros around it holds all weights at all positions,
            // the maps all positions, both for whole vectors; `c` is a part of the sums. The
            // instruction set was detected.
            unsafe { isa.tile(height, cols)(&tile) };
        }
    }
}

fn pairs(used: &Used) -> impl Iterator<Item = (usize, usize)> {
    let cols = used.cols.clone();
    used.rows.clone().flat_map(move |row| cols.clone().map(move |col| (row, col)))
}
