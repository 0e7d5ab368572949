//! Weights as products read them: panels of a few rows, in which weights of the window follow one
//! another, each with its whole depth.

use super::isa::{Isa, LANES};
use super::lanes::turn;
use std::ops::Range;

/// The weights of a group: row `r`, depth `d` and weight `t` of the window are at
/// `r * row + d * deep + t`.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) row: usize,
    pub(super) depth: usize,
    pub(super) deep: usize,
    /// Rows and columns of the window.
    pub(super) window: [usize; 2],
}

/// Rows and columns of the window that meet anything.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) rows: Range<usize>,
    pub(super) cols: Range<usize>,
}

impl Used {
    pub(super) fn count(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    /// Place of a weight among those that are used.
    pub(super) fn at(&self, row: usize, col: usize) -> usize {
        (row - self.rows.start) * self.cols.len() + col - self.cols.start
    }
}

/// Packs the used weights. The panel whose first row is `i` starts at `i * used * depth`; in it,
/// weight `t`, depth `d` and row `r` are at `(t * depth + d) * height + r`.
pub(super) fn pack(isa: &Isa, w: Weights<'_>, used: &Used, dst: &mut [f32]) {
    let taps = w.window[0] * w.window[1];
    for (first, height) in isa.heights(w.rows) {
        let panel = &mut dst[first * used.count() * w.depth..][..height * used.count() * w.depth];
        for r in (first..first + height).step_by(LANES) {
            debug_assert!(height <= LANES, "a panel is one block high");
            if used.count() < taps {
                few(w, used, r, height, panel);
            } else if w.deep == taps {
                along_depth(isa, w, r, height, panel);
            } else {
                along_window(isa, w, r, height, panel);
            }
        }
    }
}

/// Depths and weights of the window lie side by side.
fn along_depth(isa: &Isa, w: Weights<'_>, first: usize, height: usize, panel: &mut [f32]) {
    let taps = w.deep;
    let mut places = [0; LANES];
    let (mut d, mut t) = (0, 0);
    for from in (0..w.depth * taps).step_by(LANES) {
        let cols = LANES.min(w.depth * taps - from);
        for place in &mut places[..cols] {
            *place = (t * w.depth + d) * height;
            t += 1;
            if t == taps {
                (d, t) = (d + 1, 0);
            }
        }
        turn(isa, w.data, first * w.row + from, w.row, [height, cols], &places, panel);
    }
}

/// Rows and weights of the window lie side by side.
fn along_window(isa: &Isa, w: Weights<'_>, first: usize, height: usize, panel: &mut [f32]) {
    let taps = w.window[0] * w.window[1];
    let mut places = [0; LANES];
    for d in 0..w.depth {
        let from = first * w.row + d * w.deep;
        if taps == 1 && w.row == 1 {
            panel[d * height..][..height].copy_from_slice(&w.data[from..][..height]);
            continue;
        }
        for t in (0..taps).step_by(LANES) {
            let cols = LANES.min(taps - t);
            for (j, place) in places[..cols].iter_mut().enumerate() {
                *place = ((t + j) * w.depth + d) * height;
            }
            turn(isa, w.data, from + t, w.row, [height, cols], &places, panel);
        }
    }
}

/// Only some weights of the window.
fn few(w: Weights<'_>, used: &Used, first: usize, height: usize, panel: &mut [f32]) {
    for (row, col) in used.rows.clone().flat_map(|r| used.cols.clone().map(move |c| (r, c))) {
        let tap = row * w.window[1] + col;
        let panel = &mut panel[used.at(row, col) * w.depth * height..][..w.depth * height];
        for (d, panel) in panel.chunks_exact_mut(height).enumerate() {
            for (r, to) in panel.iter_mut().enumerate() {
                *to = w.data[(first + r) * w.row + d * w.deep + tap];
            }
        }
    }
}
