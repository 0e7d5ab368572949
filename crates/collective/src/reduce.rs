//! How two contributions become one, for each element type; and the formats of the wire.

use std::fmt;
use std::ops::Range;

use bytemuck::Pod;
use regatta_kernels::half::{self, Half};
use regatta_kernels::vector;

/// What becomes of the contributions of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReduceOp {
    /// They are added.
    Sum = 1,
    /// The largest; a NaN wins.
    Max = 2,
    /// The smallest; a NaN wins.
    Min = 3,
    /// They are multiplied.
    Prod = 4,
    /// They are added and divided by the number of ranks.
    Mean = 5,
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Prod => "prod",
            ReduceOp::Mean => "mean",
        })
    }
}

/// The format in which `f32` values travel.
///
/// With a half format every contribution is rounded once, the contributions are reduced in `f32`,
/// and the result is rounded once; all ranks get the rounded result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Wire {
    /// As they are.
    #[default]
    F32 = 1,
    /// Half the bytes, the range of `f32`, 8 significant bits.
    Bf16 = 2,
    /// Half the bytes, up to 65504, 11 significant bits.
    F16 = 3,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wire::F32 => "f32",
            Wire::Bf16 => "bf16",
            Wire::F16 => "f16",
        })
    }
}

/// Values that can be reduced.
pub(crate) trait Element: Pod + Send {
    /// `acc = acc op other`, element by element.
    fn combine(op: ReduceOp, acc: &mut [Self], other: &[Self]);

    /// What is left to do once all contributions are combined: the division of a mean.
    fn finish(op: ReduceOp, acc: &mut [Self], size: usize);
}

impl Element for f32 {
    fn combine(op: ReduceOp, acc: &mut [f32], other: &[f32]) {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => vector::add_assign(acc, other),
            ReduceOp::Prod => vector::mul_assign(acc, other),
            ReduceOp::Max => vector::max_assign(acc, other),
            ReduceOp::Min => vector::min_assign(acc, other),
        }
    }

    fn finish(op: ReduceOp, acc: &mut [f32], size: usize) {
        if op == ReduceOp::Mean {
            vector::scale(1.0 / size as f32, acc);
        }
    }
}

impl Element for f64 {
    fn combine(op: ReduceOp, acc: &mut [f64], other: &[f64]) {
        let pairs = acc.iter_mut().zip(other);
        match op {
            ReduceOp::Sum | ReduceOp::Mean => pairs.for_each(|(a, b)| *a += b),
            ReduceOp::Prod => pairs.for_each(|(a, b)| *a *= b),
            ReduceOp::Max => {
                pairs.for_each(|(a, b)| *a = if a.is_nan() || *a > *b { *a } else { *b })
            }
            ReduceOp::Min => {
                pairs.for_each(|(a, b)| *a = if a.is_nan() || *a < *b { *a } else { *b })
            }
        }
    }

    fn finish(op: ReduceOp, acc: &mut [f64], size: usize) {
        if op == ReduceOp::Mean {
            acc.iter_mut().for_each(|a| *a /= size as f64);
        }
    }
}

/// Elements reduced at a time: a few kilobytes, so that all steps but the first find them in the
/// first-level cache.
const BLOCK: usize = 1024;

/// How elements are written where other ranks read them.
pub(crate) trait Carrier<T: Element>: Copy {
    /// Bytes of an element.
    const WIDTH: usize;

    /// Writes `from` to `to`, rounded.
    fn put(self, from: &[T], to: &mut [u8]);

    /// Reads `from` into `to`.
    fn get(self, from: &[u8], to: &mut [T]);

    /// `acc = acc op from`.
    fn combine(self, op: ReduceOp, acc: &mut [T], from: &[u8]);

    /// What `put` and `get` would make of them.
    fn round(self, values: &mut [T]);
}

/// As they are in memory.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl<T: Element> Carrier<T> for Plain {
    const WIDTH: usize = size_of::<T>();

    fn put(self, from: &[T], to: &mut [u8]) {
        vector::copy(bytemuck::cast_slice(from), to);
    }

    fn get(self, from: &[u8], to: &mut [T]) {
        vector::copy(from, bytemuck::cast_slice_mut(to));
    }

    fn combine(self, op: ReduceOp, acc: &mut [T], from: &[u8]) {
        T::combine(op, acc, bytemuck::cast_slice(from));
    }

    fn round(self, _: &mut [T]) {}
}

/// Values of `f32` in 16 bits.
#[derive(Clone, Copy)]
pub(crate) struct Halves(pub(crate) Half);

impl Carrier<f32> for Halves {
    const WIDTH: usize = 2;

    fn put(self, from: &[f32], to: &mut [u8]) {
        half::narrow(self.0, from, bytemuck::cast_slice_mut(to));
    }

    fn get(self, from: &[u8], to: &mut [f32]) {
        half::widen(self.0, bytemuck::cast_slice(from), to);
    }

    fn combine(self, op: ReduceOp, acc: &mut [f32], from: &[u8]) {
        let mut wide = [0.0; BLOCK];
        for (acc, from) in acc.chunks_mut(BLOCK).zip(from.chunks(2 * BLOCK)) {
            let wide = &mut wide[..acc.len()];
            self.get(from, wide);
            f32::combine(op, acc, wide);
        }
    }

    fn round(self, values: &mut [f32]) {
        let mut bits = [0; BLOCK];
        for values in values.chunks_mut(BLOCK) {
            let bits = &mut bits[..values.len()];
            half::narrow(self.0, values, bits);
            half::widen(self.0, bits, values);
        }
    }
}

/// Reduces contributions in the order of ranks: `((x0 op x1) op x2) op ...`. This rank's is `mine`,
/// which becomes the result; the bytes of `other` are `input(other)`. Every finished block is given
/// to `done` with its offset in bytes.
pub(crate) fn reduce_in_order<'i, T: Element, C: Carrier<T>>(
    carrier: C,
    op: ReduceOp,
    (rank, size): (usize, usize),
    mine: &mut [T],
    input: impl Fn(usize) -> &'i [u8],
    mut done: impl FnMut(Range<usize>, &[T]),
) {
    let mut acc = [T::zeroed(); BLOCK];
    for (i, mine) in mine.chunks_mut(BLOCK).enumerate() {
        let at = i * BLOCK * C::WIDTH..(i * BLOCK + mine.len()) * C::WIDTH;
        let acc = &mut acc[..mine.len()];
        // As if it had been put and got, like those of the others.
        carrier.round(mine);
        for other in 0..size {
            match (other, other == rank) {
                (0, true) => acc.copy_from_slice(mine),
                (0, false) => carrier.get(&input(0)[at.clone()], acc),
                (_, true) => T::combine(op, acc, mine),
                (_, false) => carrier.combine(op, acc, &input(other)[at.clone()]),
            }
        }
        T::finish(op, acc, size);
        carrier.round(acc);
        mine.copy_from_slice(acc);
        done(at, acc);
    }
}

/// The part of `len` elements that belongs to `rank`: as equal as possible, the first ones longer.
pub(crate) fn part(len: usize, size: usize, rank: usize) -> Range<usize> {
    let (each, longer) = (len / size, len % size);
    let start = rank * each + rank.min(longer);
    start..start + each + usize::from(rank < longer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every element is in one part, parts follow each other, and no two differ by more than
        /// one.
        #[test]
        fn parts_cover_everything_once(len in 0usize..100_000, size in 1usize..200) {
            let parts: Vec<_> = (0..size).map(|rank| part(len, size, rank)).collect();
            prop_assert_eq!(parts[0].start, 0);
            prop_assert_eq!(parts[size - 1].end, len);
            prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(parts.windows(2).all(|pair| pair[0].len() >= pair[1].len()));
            prop_assert!(parts[0].len() - parts[size - 1].len() <= 1);
        }
    }

    #[test]
    fn nan_wins_on_either_side() {
        for op in [ReduceOp::Max, ReduceOp::Min] {
            let mut acc = [1.0, f32::NAN];
            f32::combine(op, &mut acc, &[f32::NAN, 1.0]);
            assert!(acc[0].is_nan() && acc[1].is_nan(), "{op}");
            let mut acc = [1.0, f64::NAN];
            f64::combine(op, &mut acc, &[f64::NAN, 1.0]);
            assert!(acc[0].is_nan() && acc[1].is_nan(), "{op}");
        }
    }
}
