//! Loops over slices that suit short rows as well as long parameters.
//!
//! Left to itself the compiler unrolls for long slices, and a row of 9 numbers falls through to a
//! scalar remainder. So the last 31 elements are taken in blocks of 16, 8, 4, 2 and 1, each at most
//! once and each straight vector code; what comes before them is a plain loop, which the compiler
//! vectorises well. Use these functions only inside `simd!` bodies, through `#[inline(always)]`.

/// Replaces `w[i]` and every `states[..][i]` by what `f(w[i], g[i], [states[..][i]])` returns.
///
/// # Panics
/// If the slices differ in length.
#[inline(always)]
pub(crate) fn each<const S: usize>(
    w: &mut [f32],
    g: &[f32],
    mut states: [&mut [f32]; S],
    f: impl Fn(f32, f32, [f32; S]) -> (f32, [f32; S]),
) {
    let n = w.len();
    assert_eq!(g.len(), n, "one gradient per weight");
    for state in &states {
        assert_eq!(state.len(), n, "one state per weight");
    }
    let mut at = 0;
    while at < n - n % 32 {
        let (weight, after) = f(w[at], g[at], std::array::from_fn(|k| states[k][at]));
        w[at] = weight;
        for k in 0..S {
            states[k][at] = after[k];
        }
        at += 1;
    }
    if n & 16 != 0 {
        block::<16, S>(at, w, g, &mut states, &f);
        at += 16;
    }
    if n & 8 != 0 {
        block::<8, S>(at, w, g, &mut states, &f);
        at += 8;
    }
    if n & 4 != 0 {
        block::<4, S>(at, w, g, &mut states, &f);
        at += 4;
    }
    if n & 2 != 0 {
        block::<2, S>(at, w, g, &mut states, &f);
        at += 2;
    }
    if n & 1 != 0 {
        block::<1, S>(at, w, g, &mut states, &f);
    }
}

/// `each` for the `L` elements from `at` on: loads everything, computes, then stores everything, so
/// that the compiler need not prove that the slices are distinct.
#[inline(always)]
fn block<const L: usize, const S: usize>(
    at: usize,
    w: &mut [f32],
    g: &[f32],
    states: &mut [&mut [f32]; S],
    f: &impl Fn(f32, f32, [f32; S]) -> (f32, [f32; S]),
) {
    let mut weights: [f32; L] = load(w, at);
    let gradients: [f32; L] = load(g, at);
    let mut memory = [[0.0; L]; S];
    for k in 0..S {
        memory[k] = load(states[k], at);
    }
    for i in 0..L {
        let (weight, after) = f(weights[i], gradients[i], std::array::from_fn(|k| memory[k][i]));
        weights[i] = weight;
        for k in 0..S {
            memory[k][i] = after[k];
        }
    }
    w[at..at + L].copy_from_slice(&weights);
    for k in 0..S {
        states[k][at..at + L].copy_from_slice(&memory[k]);
    }
}

#[inline(always)]
fn load<const L: usize>(x: &[f32], at: usize) -> [f32; L] {
    let mut block = [0.0; L];
    block.copy_from_slice(&x[at..at + L]);
    block
}

/// The sum of `f` over all elements of slices of one length, in `f64` and in eight lanes, so that
/// additions need not wait for each other.
///
/// # Panics
/// If the slices differ in length.
#[inline(always)]
pub(crate) fn sum<const K: usize>(inputs: [&[f32]; K], f: impl Fn([f32; K]) -> f64) -> f64 {
    let n = inputs[0].len();
    for input in inputs {
        assert_eq!(input.len(), n, "inputs of one length");
    }
    let mut lanes = [0.0; 8];
    let mut at = 0;
    while at < n - n % 8 {
        add_block::<8, K>(at, inputs, &mut lanes, &f);
        at += 8;
    }
    if n & 4 != 0 {
        add_block::<4, K>(at, inputs, &mut lanes, &f);
        at += 4;
    }
    if n & 2 != 0 {
        add_block::<2, K>(at, inputs, &mut lanes, &f);
        at += 2;
    }
    if n & 1 != 0 {
        add_block::<1, K>(at, inputs, &mut lanes, &f);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The sum of `f^2` over all elements, as [`sum`].
#[inline(always)]
pub(crate) fn sum_squares<const K: usize>(inputs: [&[f32]; K], f: impl Fn([f32; K]) -> f32) -> f64 {
    sum(inputs, |x| {
        let x = f64::from(f(x));
        x * x
    })
}

#[inline(always)]
fn add_block<const L: usize, const K: usize>(
    at: usize,
    inputs: [&[f32]; K],
    lanes: &mut [f64; 8],
    f: &impl Fn([f32; K]) -> f64,
) {
    let blocks: [[f32; L]; K] = inputs.map(|input| load(input, at));
    for i in 0..L {
        lanes[i] += f(std::array::from_fn(|k| blocks[k][i]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_visits_each_element_once() {
        for n in 0..100 {
            let mut w: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let g: Vec<f32> = (0..n).map(|i| 100.0 * i as f32).collect();
            let mut s = vec![1.0; n];
            each(&mut w, &g, [&mut s], |w, g, [s]| (w + g, [s + w]));
            for i in 0..n {
                assert_eq!(w[i], 101.0 * i as f32, "n {n} i {i}");
                assert_eq!(s[i], 1.0 + i as f32, "n {n} i {i}");
            }
            let expected: f64 = (0..n).map(|i| (i * i) as f64).sum();
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(sum_squares([&x], |[x]| x), expected, "n {n}");
            let total: f64 = (0..n).map(|i| i as f64).sum();
            assert_eq!(sum([&x, &g], |[x, g]| f64::from(g - 99.0 * x)), total, "n {n}");
        }
    }

    #[test]
    #[should_panic(expected = "one gradient per weight")]
    fn a_short_gradient_is_refused() {
        each(&mut [0.0; 2], &[0.0], [], |w, _, []| (w, []));
    }
}
