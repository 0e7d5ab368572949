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

/// The sum of `f(i)` over `i < n`, in eight lanes so that additions need not wait for each other.
#[inline(always)]
pub(crate) fn sum(n: usize, f: impl Fn(usize) -> f64) -> f64 {
    let mut lanes = [0.0; 8];
    let whole = n - n % 8;
    let mut at = 0;
    while at < whole {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += f(at + i);
        }
        at += 8;
    }
    let mut rest = 0.0;
    for i in whole..n {
        rest += f(i);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    (((a + e) + (c + g)) + ((b + f) + (d + h))) + rest
}

/// The sum of `f(i)^2` over `i < n`, in `f64`.
#[inline(always)]
pub(crate) fn sum_squares(n: usize, f: impl Fn(usize) -> f32) -> f64 {
    sum(n, |i| {
        let x = f64::from(f(i));
        x * x
    })
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
            assert_eq!(sum_squares(n, |i| i as f32), expected, "n {n}");
        }
    }

    #[test]
    #[should_panic(expected = "one gradient per weight")]
    fn a_short_gradient_is_refused() {
        each(&mut [0.0; 2], &[0.0], [], |w, _, []| (w, []));
    }
}
