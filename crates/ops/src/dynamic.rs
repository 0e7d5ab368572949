//! Functions whose result has a shape that depends on values. They cannot be ops of a program,
//! whose shapes are known before the run; dynamic graphs call them directly.
//!
//! ```
//! use regatta_ops::dynamic;
//! use regatta_tensor::Tensor;
//! let x = Tensor::from_i64(&[2, 2], vec![0, 3, 5, 0]).unwrap();
//! assert_eq!(dynamic::nonzero(&x), Tensor::from_i64(&[2, 2], vec![0, 1, 1, 0]).unwrap());
//! ```

use std::cmp::Ordering;

use regatta_kernels::half::{self, Half};
use regatta_tensor::{Data, Tensor};

/// Whether each element is not 0; NaN is not.
fn truths(t: &Tensor) -> Vec<bool> {
    match t.data() {
        Data::F32(x) => x.iter().map(|x| *x != 0.0).collect(),
        Data::I64(x) => x.iter().map(|x| *x != 0).collect(),
        Data::U64(x) => x.iter().map(|x| *x != 0).collect(),
        // All bits but the sign.
        Data::F16(x) | Data::BF16(x) => x.iter().map(|x| x & 0x7fff != 0).collect(),
    }
}

fn ints(shape: &[usize], values: Vec<i64>) -> Tensor {
    Tensor::from_i64(shape, values).expect("as many values as the shape says")
}

/// How many elements are not 0: the `count` of `masked_select`.
pub fn count_nonzero(t: &Tensor) -> usize {
    truths(t).into_iter().filter(|&x| x).count()
}

/// Positions of the elements that are not 0, as i64 `[n, dimensions]` in row-major order.
pub fn nonzero(t: &Tensor) -> Tensor {
    let dims = t.shape();
    let mut positions = Vec::new();
    let mut n = 0;
    for (at, _) in truths(t).into_iter().enumerate().filter(|(_, x)| *x) {
        n += 1;
        let mut rest = at;
        let end = positions.len() + dims.len();
        positions.resize(end, 0);
        for (d, &size) in dims.iter().enumerate().rev() {
            positions[end - dims.len() + d] = (rest % size) as i64;
            rest /= size;
        }
    }
    ints(&[n, dims.len()], positions)
}

/// Positions of the elements that are not 0 in the flattened array, as i64 `[n]`.
pub fn flat_nonzero(t: &Tensor) -> Tensor {
    let positions: Vec<i64> =
        truths(t).iter().enumerate().filter(|(_, x)| **x).map(|(at, _)| at as i64).collect();
    ints(&[positions.len()], positions)
}

/// What [`unique`] finds.
#[derive(Debug, Clone, PartialEq)]
pub struct Unique {
    /// The different slices in ascending order.
    pub values: Tensor,
    /// Where each was first, as i64.
    pub index: Tensor,
    /// For each slice of the input, which of the values it is, as i64.
    pub inverse: Tensor,
    /// How often each was there, as i64.
    pub counts: Tensor,
}

/// The different rows (slices of the first dimension) of an array, in ascending order; flatten it
/// first for different elements. NaN is equal to NaN and larger than everything.
pub fn unique(t: &Tensor) -> Unique {
    let rows = t.shape().first().copied().unwrap_or(1);
    let width = t.numel().checked_div(rows).unwrap_or(0);
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by(|&a, &b| compare(t.data(), a * width, b * width, width));
    let (mut index, mut counts) = (Vec::<i64>::new(), Vec::<i64>::new());
    let mut inverse = vec![0; rows];
    for (n, &row) in order.iter().enumerate() {
        let new = n == 0
            || compare(t.data(), order[n - 1] * width, row * width, width) != Ordering::Equal;
        if new {
            index.push(row as i64);
            counts.push(0);
        }
        inverse[row] = index.len() as i64 - 1;
        if let Some(count) = counts.last_mut() {
            *count += 1;
        }
    }
    let n = index.len();
    let mut shape = t.shape().to_vec();
    shape.splice(..usize::from(!shape.is_empty()), [n]);
    let values = Tensor::new(&shape, rows_of(t.data(), &index, width));
    Unique {
        values: values.expect("as many values as the shape says"),
        index: ints(&[n], index),
        inverse: ints(&[rows], inverse),
        counts: ints(&[n], counts),
    }
}

fn compare(data: &Data, a: usize, b: usize, width: usize) -> Ordering {
    let floats = |a: f32, b: f32| a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    let pairs = (a..a + width).zip(b..b + width);
    let mut orders = pairs.map(|(a, b)| match data {
        Data::F32(x) => floats(x[a], x[b]),
        Data::I64(x) => x[a].cmp(&x[b]),
        Data::U64(x) => x[a].cmp(&x[b]),
        Data::F16(x) => floats(widen(Half::F16, x[a]), widen(Half::F16, x[b])),
        Data::BF16(x) => floats(widen(Half::Bf16, x[a]), widen(Half::Bf16, x[b])),
    });
    orders.find(|order| *order != Ordering::Equal).unwrap_or(Ordering::Equal)
}

fn widen(format: Half, bits: u16) -> f32 {
    let mut wide = [0.0];
    half::widen(format, &[bits], &mut wide);
    wide[0]
}

fn rows_of(data: &Data, rows: &[i64], width: usize) -> Data {
    fn pick<T: Copy>(x: &[T], rows: &[i64], width: usize) -> Vec<T> {
        rows.iter().flat_map(|&r| &x[r as usize * width..][..width]).copied().collect()
    }
    match data {
        Data::F32(x) => Data::F32(pick(x, rows, width)),
        Data::F16(x) => Data::F16(pick(x, rows, width)),
        Data::BF16(x) => Data::BF16(pick(x, rows, width)),
        Data::I64(x) => Data::I64(pick(x, rows, width)),
        Data::U64(x) => Data::U64(pick(x, rows, width)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions() {
        let x = Tensor::from_f32(&[2, 2, 1], vec![0.0, 2.0, f32::NAN, 0.0]).unwrap();
        assert_eq!(nonzero(&x), ints(&[2, 3], vec![0, 1, 0, 1, 0, 0]));
        assert_eq!(flat_nonzero(&x), ints(&[2], vec![1, 2]));
        assert_eq!(count_nonzero(&x), 2);
        assert_eq!(nonzero(&ints(&[0, 3], vec![])), ints(&[0, 2], vec![]));
        assert_eq!(nonzero(&ints(&[], vec![4])), ints(&[1, 0], vec![]));
    }

    #[test]
    fn different_elements_and_rows() {
        let u = unique(&ints(&[6], vec![3, 1, 2, 1, 3, 3]));
        assert_eq!(u.values, ints(&[3], vec![1, 2, 3]));
        assert_eq!(u.index, ints(&[3], vec![1, 2, 0]));
        assert_eq!(u.inverse, ints(&[6], vec![2, 0, 1, 0, 2, 2]));
        assert_eq!(u.counts, ints(&[3], vec![2, 1, 3]));
        let rows = Tensor::from_f32(&[3, 2], vec![1.0, 2.0, 0.0, 9.0, 1.0, 2.0]).unwrap();
        let u = unique(&rows);
        assert_eq!(u.values.f32(), [0.0, 9.0, 1.0, 2.0]);
        assert_eq!(u.inverse, ints(&[3], vec![1, 0, 1]));
        let nans = Tensor::from_f32(&[3], vec![f32::NAN, 1.0, f32::NAN]).unwrap();
        assert_eq!(unique(&nans).counts, ints(&[2], vec![1, 2]));
        assert_eq!(unique(&ints(&[0], vec![])).values, ints(&[0], vec![]));
    }
}
