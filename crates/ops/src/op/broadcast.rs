//! Walks two arrays under the broadcasting rules: a dimension of size 1 (or a missing leading one)
//! repeats.

use regatta_ir::Error;

use super::element::Element;
use crate::{Kernel, Spec};

/// The walk over an output shape with the strides of two inputs.
#[derive(Debug, Clone)]
pub(crate) struct Broadcast {
    /// Outer dimensions: size and the strides of X and Y (0 where the input repeats).
    outer: Vec<(usize, usize, usize)>,
    /// Innermost dimension: length and strides (0 or 1).
    pub(crate) inner: (usize, usize, usize),
}

/// The shape that two shapes broadcast to, negative sizes being unknown.
pub(crate) fn broadcast_shape(x: &[i64], y: &[i64]) -> Option<Vec<i64>> {
    let rank = x.len().max(y.len());
    let dim = |s: &[i64], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |at| s[at]);
    (0..rank)
        .map(|i| match (dim(x, i), dim(y, i)) {
            (1, b) => Some(b),
            (a, 1) => Some(a),
            (a, b) if a == b => Some(a),
            // A known size before the batch, the batch before any other unknown size.
            (a, b) if a < 0 || b < 0 => Some(a.max(b)),
            _ => None,
        })
        .collect()
}

impl Broadcast {
    /// For known shapes that fit.
    pub(crate) fn new(x: &[usize], y: &[usize]) -> Broadcast {
        let rank = x.len().max(y.len());
        let (xs, ys) = (strides(x, rank), strides(y, rank));
        let dim = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |at| s[at]);
        let mut dims: Vec<(usize, usize, usize)> = Vec::new();
        for i in 0..rank {
            let size = match (dim(x, i), dim(y, i)) {
                (1, b) => b,
                (a, _) => a,
            };
            if size == 1 {
                continue;
            }
            let next = (size, xs[i], ys[i]);
            match dims.last_mut() {
                // Two dimensions that are walked without a gap are one.
                Some(last) if last.1 == next.1 * size && last.2 == next.2 * size => {
                    *last = (last.0 * size, next.1, next.2);
                }
                _ => dims.push(next),
            }
        }
        let inner = dims.pop().unwrap_or((1, 1, 1));
        Broadcast { outer: dims, inner }
    }

    /// Calls `f(out, x, y)` with the offsets of each innermost run.
    pub(crate) fn for_each_run(&self, mut f: impl FnMut(usize, usize, usize)) {
        self.walk(0, &mut 0, 0, 0, &mut f);
    }

    fn walk(
        &self,
        depth: usize,
        out: &mut usize,
        x: usize,
        y: usize,
        f: &mut impl FnMut(usize, usize, usize),
    ) {
        let Some(&(size, sx, sy)) = self.outer.get(depth) else {
            f(*out, x, y);
            *out += self.inner.0;
            return;
        };
        for i in 0..size {
            self.walk(depth + 1, out, x + i * sx, y + i * sy, f);
        }
    }
}

/// The kernel of `f(x, y)` for each pair of elements of an op's first two inputs.
pub(super) fn map_pairs<T: Element, O: Element>(
    s: &Spec<'_>,
    f: impl Fn(T, T) -> O + Copy + Send + 'static,
) -> Result<Kernel, Error> {
    let walk = Broadcast::new(&s.dims(0), &s.dims(1));
    Ok(Box::new(move |io, _| {
        let (x, y, out) = (T::input(io, 0), T::input(io, 1), O::output(io, 0));
        let (n, sx, sy) = walk.inner;
        walk.for_each_run(|o, xo, yo| {
            let out = &mut out[o..o + n];
            match (sx, sy) {
                (1, 1) => {
                    for ((o, &x), &y) in out.iter_mut().zip(&x[xo..xo + n]).zip(&y[yo..yo + n]) {
                        *o = f(x, y);
                    }
                }
                (1, _) => {
                    let y = y[yo];
                    for (o, &x) in out.iter_mut().zip(&x[xo..xo + n]) {
                        *o = f(x, y);
                    }
                }
                _ => {
                    let x = x[xo];
                    for (o, &y) in out.iter_mut().zip(&y[yo..yo + n]) {
                        *o = f(x, y);
                    }
                }
            }
        });
        Ok(())
    }))
}

fn strides(shape: &[usize], rank: usize) -> Vec<usize> {
    let mut strides = vec![0; rank];
    let mut step = 1;
    for (i, &d) in shape.iter().enumerate().rev() {
        strides[i + rank - shape.len()] = if d == 1 { 0 } else { step };
        step *= d;
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        assert_eq!(broadcast_shape(&[-1, 4], &[4]), Some(vec![-1, 4]));
        assert_eq!(broadcast_shape(&[-1, 1, 4], &[3, 1]), Some(vec![-1, 3, 4]));
        assert_eq!(broadcast_shape(&[2, 3], &[2, 4]), None);
    }

    #[test]
    fn runs_cover_the_output_in_order() {
        for (x, y) in [
            (vec![2, 3], vec![3]),
            (vec![2, 3], vec![2, 1]),
            (vec![2, 1, 4], vec![3, 1]),
            (vec![5], vec![1]),
            (vec![1], vec![2, 2]),
        ] {
            let walk = Broadcast::new(&x, &y);
            let shape = broadcast_shape(
                &x.iter().map(|&d| d as i64).collect::<Vec<_>>(),
                &y.iter().map(|&d| d as i64).collect::<Vec<_>>(),
            );
            let n: i64 = shape.unwrap().iter().product();
            let mut next = 0;
            walk.for_each_run(|out, _, _| {
                assert_eq!(out, next);
                next += walk.inner.0;
            });
            assert_eq!(next as i64, n, "{x:?} {y:?}");
        }
    }
}
