//! The largest or the mean value under a window that moves over one channel of an image.
//!
//! Windows are given as the ranges of rows and of columns that they see, one per position; all lie
//! in the image and see something. `line` has room for a row of the image.

use crate::simd;
use std::ops::Range;

/// Puts `f` of all rows into `line`.
#[inline(always)]
fn fold_rows(x: &[f32], rows: &Range<usize>, line: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    let width = line.len();
    line.copy_from_slice(&x[rows.start * width..][..width]);
    for row in x[(rows.start + 1) * width..rows.end * width].chunks_exact(width) {
        for (to, x) in line.iter_mut().zip(row) {
            *to = f(*to, *x);
        }
    }
}

/// The larger; the first if they cannot be compared.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Whether the windows are pairs, one after the other from the start.
fn are_pairs(windows: &[Range<usize>]) -> bool {
    windows.iter().enumerate().all(|(i, w)| *w == (2 * i..2 * i + 2))
}

simd! {
    /// The largest values.
    pub fn max_plane(
        x: &[f32],
        rows: &[Range<usize>],
        cols: &[Range<usize>],
        line: &mut [f32],
        out: &mut [f32],
    ) {
        let pairs = are_pairs(cols);
        for (rows, out) in rows.iter().zip(out.chunks_exact_mut(cols.len())) {
            fold_rows(x, rows, line, larger);
            if pairs {
                for (out, [a, b]) in out.iter_mut().zip(line.as_chunks::<2>().0) {
                    *out = larger(*a, *b);
                }
                continue;
            }
            for (out, cols) in out.iter_mut().zip(cols) {
                let line = &line[cols.clone()];
                *out = line[1..].iter().fold(line[0], |a, b| larger(a, *b));
            }
        }
    }
}

simd! {
    /// Adds each `d` to `dx` where `x` has the value `out` first under the window.
    pub fn max_plane_grad(
        x: &[f32],
        out: &[f32],
        d: &[f32],
        rows: &[Range<usize>],
        cols: &[Range<usize>],
        width: usize,
        dx: &mut [f32],
    ) {
        dx.fill(0.0);
        let values = out.chunks_exact(cols.len()).zip(d.chunks_exact(cols.len()));
        for (rows, (out, d)) in rows.iter().zip(values) {
            for (cols, (out, d)) in cols.iter().zip(out.iter().zip(d)) {
                let x = &x[rows.start * width + cols.start..];
                let at = match (rows.len(), cols.len()) {
                    (2, 2) => place_of::<2, 2>(x, width, *out),
                    (3, 3) => place_of::<3, 3>(x, width, *out),
                    (height, length) => place_in(x, width, [height, length], *out),
                };
                if let Some(dx) = dx.get_mut(rows.start * width + cols.start + at) {
                    *dx += d;
                }
            }
        }
    }
}

/// The first place of a value in a window, or one outside of any image. Values are compared by
/// their bits and without a branch each: where it is cannot be foreseen.
#[inline(always)]
fn place_in(x: &[f32], width: usize, [height, length]: [usize; 2], value: f32) -> usize {
    let mut at = usize::MAX / 2;
    for row in (0..height).rev() {
        let line = &x[row * width..][..length];
        for (i, x) in line.iter().enumerate().rev() {
            at = if x.to_bits() == value.to_bits() { row * width + i } else { at };
        }
    }
    at
}

/// As [`place_in`], for windows of usual sizes.
#[inline(always)]
fn place_of<const H: usize, const W: usize>(x: &[f32], width: usize, value: f32) -> usize {
    let mut at = usize::MAX / 2;
    for row in (0..H).rev() {
        let line: &[f32; W] = x[row * width..].first_chunk().expect("the window is in the image");
        for i in (0..W).rev() {
            at = if line[i].to_bits() == value.to_bits() { row * width + i } else { at };
        }
    }
    at
}

/// The places of the largest values, the first of equal ones, and the values.
pub fn max_places(
    x: &[f32],
    rows: &[Range<usize>],
    cols: &[Range<usize>],
    width: usize,
    out: &mut [f32],
    places: &mut [i64],
) {
    let results = out.chunks_exact_mut(cols.len()).zip(places.chunks_exact_mut(cols.len()));
    for (rows, (out, places)) in rows.iter().zip(results) {
        for ((out, place), cols) in out.iter_mut().zip(places).zip(cols) {
            let mut best = rows.start * width + cols.start;
            for row in rows.clone() {
                for at in row * width + cols.start..row * width + cols.end {
                    best = if x[at] > x[best] { at } else { best };
                }
            }
            (*out, *place) = (x[best], best as i64);
        }
    }
}

simd! {
    /// The sums, divided by the size of each row and column of windows.
    pub fn mean_plane(
        x: &[f32],
        rows: &[Range<usize>],
        cols: &[Range<usize>],
        row_sizes: &[usize],
        col_sizes: &[usize],
        line: &mut [f32],
        out: &mut [f32],
    ) {
        let positions = rows.iter().zip(row_sizes).zip(out.chunks_exact_mut(cols.len()));
        for ((rows, row_size), out) in positions {
            fold_rows(x, rows, line, |a, b| a + b);
            for (out, (cols, col_size)) in out.iter_mut().zip(cols.iter().zip(col_sizes)) {
                *out = line[cols.clone()].iter().sum::<f32>() / (row_size * col_size) as f32;
            }
        }
    }
}

simd! {
    /// Spreads each `d` evenly over what its window saw.
    pub fn mean_plane_grad(
        d: &[f32],
        rows: &[Range<usize>],
        cols: &[Range<usize>],
        row_sizes: &[usize],
        col_sizes: &[usize],
        line: &mut [f32],
        dx: &mut [f32],
    ) {
        dx.fill(0.0);
        let width = line.len();
        let positions = rows.iter().zip(row_sizes).zip(d.chunks_exact(cols.len()));
        for ((rows, row_size), d) in positions {
            line.fill(0.0);
            for (d, (cols, col_size)) in d.iter().zip(cols.iter().zip(col_sizes)) {
                let share = d / (row_size * col_size) as f32;
                line[cols.clone()].iter_mut().for_each(|to| *to += share);
            }
            for row in dx[rows.start * width..rows.end * width].chunks_exact_mut(width) {
                row.iter_mut().zip(&*line).for_each(|(to, x)| *to += x);
            }
        }
    }
}
