//! A loop over the elements of a shape in which several arrays take part, each with steps of its
//! own: zero where it repeats, negative where it runs backwards.

/// Where the elements of a shape are in one array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Strides {
    /// Position of the first element.
    pub(super) start: usize,
    /// Distance of neighbours along each dimension.
    pub(super) steps: Vec<isize>,
}

impl Strides {
    /// An array that has exactly this shape.
    pub(super) fn dense(dims: &[usize]) -> Strides {
        let mut steps = vec![1; dims.len()];
        for d in (1..dims.len()).rev() {
            steps[d - 1] = steps[d] * dims[d] as isize;
        }
        Strides { start: 0, steps }
    }

    /// An array of `dims` that broadcasts to a shape of `rank` dimensions.
    pub(super) fn broadcast(dims: &[usize], rank: usize) -> Strides {
        let mut steps = vec![0; rank - dims.len()];
        let own = Strides::dense(dims).steps;
        steps.extend(own.into_iter().zip(dims).map(|(step, &d)| if d == 1 { 0 } else { step }));
        Strides { start: 0, steps }
    }
}

/// The loop. Its innermost runs have one length and constant steps.
#[derive(Debug, Clone)]
pub(super) struct Walk<const N: usize> {
    outer: Vec<(usize, [isize; N])>,
    /// Elements of a run.
    pub(super) len: usize,
    /// Steps of each array in a run.
    pub(super) steps: [isize; N],
    start: [usize; N],
}

impl<const N: usize> Walk<N> {
    /// Over `dims`, for arrays with one step for each of them.
    pub(super) fn new(dims: &[usize], arrays: [Strides; N]) -> Walk<N> {
        let start = std::array::from_fn(|a| arrays[a].start);
        let mut loops: Vec<(usize, [isize; N])> = Vec::new();
        for (d, &size) in dims.iter().enumerate().filter(|(_, size)| **size != 1) {
            let steps: [isize; N] = std::array::from_fn(|a| arrays[a].steps[d]);
            match loops.last_mut() {
                // Two dimensions that all arrays walk without a gap are one.
                Some(last) if (0..N).all(|a| last.1[a] == steps[a] * size as isize) => {
                    *last = (last.0 * size, steps);
                }
                _ => loops.push((size, steps)),
            }
        }
        if loops.iter().any(|(size, _)| *size == 0) {
            return Walk { outer: vec![], len: 0, steps: [0; N], start };
        }
        let (len, steps) = loops.pop().unwrap_or((1, [1; N]));
        Walk { outer: loops, len, steps, start }
    }

    /// Calls `f` with the position in each array at which a run begins, in the order of the shape.
    pub(super) fn for_each_run(&self, mut f: impl FnMut([usize; N])) {
        if self.len > 0 {
            self.descend(0, self.start, &mut f);
        }
    }

    fn descend(&self, depth: usize, at: [usize; N], f: &mut impl FnMut([usize; N])) {
        let Some((size, steps)) = self.outer.get(depth) else { return f(at) };
        for i in 0..*size {
            self.descend(depth + 1, std::array::from_fn(|a| step_to(at[a], steps[a], i)), f);
        }
    }

    /// Calls `f` with the position of each element in each array, in the order of the shape.
    pub(super) fn for_each(&self, mut f: impl FnMut([usize; N])) {
        let steps = self.steps;
        self.for_each_run(|at| {
            for i in 0..self.len {
                f(std::array::from_fn(|a| step_to(at[a], steps[a], i)));
            }
        });
    }
}

impl Walk<2> {
    /// Copies the elements of `from` (array 1) to their places in `to` (array 0).
    pub(super) fn copy<T: Copy>(&self, to: &mut [T], from: &[T]) {
        let (n, steps) = (self.len, self.steps);
        self.for_each_run(|[at_to, at_from]| match steps {
            [1, 1] => to[at_to..at_to + n].copy_from_slice(&from[at_from..at_from + n]),
            [1, 0] => to[at_to..at_to + n].fill(from[at_from]),
            [s_to, s_from] => {
                for i in 0..n {
                    to[step_to(at_to, s_to, i)] = from[step_to(at_from, s_from, i)];
                }
            }
        });
    }

    /// Adds the elements of `from` (array 0) to their places in `to` (array 1): what goes back
    /// through [`Walk::copy`].
    pub(super) fn add_back(&self, to: &mut [f32], from: &[f32]) {
        let (n, steps) = (self.len, self.steps);
        self.for_each_run(|[at_from, at_to]| match steps {
            [1, 1] => {
                let from = &from[at_from..at_from + n];
                to[at_to..at_to + n].iter_mut().zip(from).for_each(|(t, f)| *t += f);
            }
            [1, 0] => to[at_to] += from[at_from..at_from + n].iter().sum::<f32>(),
            [s_from, s_to] => {
                for i in 0..n {
                    to[step_to(at_to, s_to, i)] += from[step_to(at_from, s_from, i)];
                }
            }
        });
    }
}

/// The position `i` steps on.
#[inline(always)]
pub(super) fn step_to(start: usize, step: isize, i: usize) -> usize {
    start.wrapping_add_signed(step * i as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions<const N: usize>(walk: &Walk<N>) -> Vec<[usize; N]> {
        let mut all = Vec::new();
        walk.for_each(|at| all.push(at));
        all
    }

    #[test]
    fn dimensions_without_gaps_are_one_run() {
        let dims = [2, 3, 4];
        let walk = Walk::new(&dims, [Strides::dense(&dims), Strides::dense(&dims)]);
        assert_eq!((walk.len, walk.outer.len()), (24, 0));
    }

    #[test]
    fn repeated_and_backward_arrays() {
        let row = Strides::broadcast(&[3], 2);
        let back = Strides { start: 5, steps: vec![-3, -1] };
        let walk = Walk::new(&[2, 3], [Strides::dense(&[2, 3]), row, back]);
        let want = [[0, 0, 5], [1, 1, 4], [2, 2, 3], [3, 0, 2], [4, 1, 1], [5, 2, 0]];
        assert_eq!(positions(&walk), want);
    }

    #[test]
    fn nothing_and_one() {
        let none = [2, 0];
        assert!(positions(&Walk::new(&none, [Strides::dense(&none)])).is_empty());
        assert_eq!(positions(&Walk::new(&[], [Strides::dense(&[])])), [[0]]);
    }
}
