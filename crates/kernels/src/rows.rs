//! Operations on the rows of a row-major matrix without gaps.

use crate::{simd, unary, vector};

/// Floats of a matrix that are worked on while they stay in the first level of cache.
const BLOCK: usize = 2048;

/// Copies a short row; shorter than a call of the C library for the usual widths. Of rows of
/// different lengths, what both have is copied.
#[inline(always)]
pub fn copy_floats(from: &[f32], to: &mut [f32]) {
    let n = from.len().min(to.len());
    let (from, to) = (&from[..n], &mut to[..n]);
    let (from8, from_rest) = from.as_chunks::<8>();
    let (to8, to_rest) = to.as_chunks_mut::<8>();
    for (from, to) in from8.iter().zip(to8) {
        *to = *from;
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        *to = *from;
    }
}

/// Adds `factor` times a short row to another one, in blocks that are straight vector code.
#[inline(always)]
pub fn add_floats(factor: f32, from: &[f32], to: &mut [f32]) {
    let n = from.len().min(to.len());
    let (from8, from_rest) = from[..n].as_chunks::<8>();
    let (to8, to_rest) = to[..n].as_chunks_mut::<8>();
    for (from, to) in from8.iter().zip(to8) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
    }
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to += factor * from);
}

simd! {
    /// Sums the rows of `x` into `sums`, one value per column, on top of what it holds if
    /// `accumulate`. Rows are added in order: the gradient of a bias, the same bits each time.
    ///
    /// # Panics
    /// If `x` is not whole rows.
    pub fn column_sums(x: &[f32], accumulate: bool, sums: &mut [f32]) {
        assert!(whole_rows(x.len(), sums.len()), "x is not whole rows of the sums' length");
        if !accumulate {
            sums.fill(0.0);
        }
        match sums {
            // Columns too few for a vector, but constant: the sums stay in registers.
            [a] => x.iter().for_each(|x| *a += x),
            [a, b] => x.as_chunks::<2>().0.iter().for_each(|x| {
                *a += x[0];
                *b += x[1];
            }),
            _ => column_sums_wide(x, sums),
        }
    }
}

/// Columns in strips whose sums stay in registers while all rows pass.
#[inline(always)]
fn column_sums_wide(x: &[f32], sums: &mut [f32]) {
    const STRIP: usize = 64;
    let cols = sums.len();
    let (strips, rest) = sums.as_chunks_mut::<STRIP>();
    let first_of_rest = strips.len() * STRIP;
    for (strip, sums) in strips.iter_mut().enumerate() {
        let mut local = *sums;
        for row in x.chunks_exact(cols) {
            if let Some(row) = row[strip * STRIP..].first_chunk::<STRIP>() {
                for (sum, x) in local.iter_mut().zip(row) {
                    *sum += x;
                }
            }
        }
        *sums = local;
    }
    if !rest.is_empty() {
        for row in x.chunks_exact(cols) {
            for (sum, x) in rest.iter_mut().zip(&row[first_of_rest..]) {
                *sum += x;
            }
        }
    }
}

/// Softmax of each row of `cols` values: `y = exp(x - max) / sum`.
///
/// A row with a NaN, with plus infinity or of minus infinities only becomes NaN.
///
/// # Panics
/// If the slices differ in length or are not whole rows.
pub fn softmax(x: &[f32], cols: usize, y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "lengths of x and y");
    assert!(whole_rows(x.len(), cols), "x is not whole rows of {cols}");
    let cols = cols.max(1);
    let block = cols * (BLOCK / cols).max(1);
    for (x, y) in x.chunks(block).zip(y.chunks_mut(block)) {
        for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
            let largest = if cols < NARROW { narrow_max(x) } else { vector::max(x) };
            for (x, y) in x.iter().zip(y) {
                *y = x - largest;
            }
        }
        // Over the whole block at once, so that short rows fill vectors too.
        unary::exp_in_place(y);
        for y in y.chunks_exact_mut(cols) {
            let total = if cols < NARROW { y.iter().sum() } else { vector::sum(y) };
            let inverse = 1.0 / total;
            y.iter_mut().for_each(|y| *y *= inverse);
        }
    }
}

/// Rows shorter than this are not worth a call.
const NARROW: usize = 16;

fn narrow_max(x: &[f32]) -> f32 {
    x.iter().fold(f32::NEG_INFINITY, |best, x| if *x > best { *x } else { best })
}

fn whole_rows(len: usize, cols: usize) -> bool {
    if cols == 0 { len == 0 } else { len.is_multiple_of(cols) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_sums_of_every_length() {
        for n in 0..40 {
            let from: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let mut to = vec![-1.0; n];
            copy_floats(&from, &mut to);
            assert_eq!(from, to);
            add_floats(2.0, &from, &mut to);
            assert!(to.iter().zip(&from).all(|(to, from)| *to == 3.0 * from));
        }
    }

    fn matrix(rows: usize, cols: usize) -> Vec<f32> {
        (0..rows * cols).map(|i| ((i * 29 % 83) as f32 - 41.0) * 0.125).collect()
    }

    #[test]
    fn column_sums_in_the_order_of_rows() {
        for cols in [1, 2, 3, 7, 64, 70, 200] {
            let x = matrix(9, cols);
            let mut sums = vec![100.0; cols];
            column_sums(&x, true, &mut sums);
            for (j, sum) in sums.iter().enumerate() {
                let column = x.iter().skip(j).step_by(cols);
                assert_eq!(*sum, column.fold(100.0, |sum, x| sum + x), "rows in order");
            }
            column_sums(&x, false, &mut sums);
            assert!((sums[0] - x.iter().step_by(cols).sum::<f32>()).abs() < 1e-4);
        }
        column_sums(&[], false, &mut []);
    }

    #[test]
    fn softmax_of_narrow_and_wide_rows() {
        for cols in [1, 2, 5, 16, 100, 3000] {
            let x = matrix(7, cols);
            let mut y = vec![0.0; x.len()];
            softmax(&x, cols, &mut y);
            for (x, y) in x.chunks(cols).zip(y.chunks(cols)) {
                let exact: Vec<f64> = x.iter().map(|x| f64::from(*x).exp()).collect();
                let total: f64 = exact.iter().sum();
                for (exact, y) in exact.iter().zip(y) {
                    let wanted = exact / total;
                    assert!((f64::from(*y) - wanted).abs() <= 1e-6 * wanted);
                }
            }
        }
    }

    #[test]
    fn softmax_of_large_and_infinite_values() {
        let mut y = [0.0; 6];
        softmax(&[1e30, -1e30, 0.0, f32::NEG_INFINITY, f32::NAN, 0.0], 2, &mut y);
        assert_eq!(y[..4], [1.0, 0.0, 1.0, 0.0]);
        assert!(y[4].is_nan() && y[5].is_nan());
    }
}
