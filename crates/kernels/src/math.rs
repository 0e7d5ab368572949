//! Elementary functions of one float, without branches, so that a loop over them vectorises.
//!
//! Each is within a few units in the last place of the exact value (the tests say how many), and
//! handles infinities and NaN. The polynomials were fitted for this file by the Remez exchange.

/// How `a * b + c` is computed: fused where the CPU does it in one step, in two steps elsewhere
/// (the library routine that emulates the fused form is far too slow).
pub(crate) trait MulAdd {
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// One rounding, for CPUs with FMA.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only the AVX2 build and the tests use it")
)]
pub(crate) struct Fused;
/// Two roundings, for all others.
pub(crate) struct Separate;

impl MulAdd for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl MulAdd for Separate {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Adding this leaves a float's nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first is short enough for exact products with small integers.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -0.000_212_194_44;
/// The standard normal density at 0, `1 / sqrt(2 pi)`.
const DENSITY_AT_0: f32 = 0.398_942_3;

/// Evaluates a polynomial, lowest coefficient first.
#[inline(always)]
fn polynomial<M: MulAdd, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    coefficients.into_iter().rev().fold(0.0, |y, c| M::mul_add(y, x, c))
}

#[inline(always)]
fn power_of_2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Splits `x = n ln 2 + r` with `|r| <= ln 2 / 2` and returns `n` and `exp(r) - 1`.
#[inline(always)]
fn reduced_exp_m1<M: MulAdd>(x: f32) -> (i32, f32) {
    let shifted = M::mul_add(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = M::mul_add(n, -LN_2_HIGH, x);
    let r = M::mul_add(n, -LN_2_LOW, r);
    let q =
        polynomial::<M, 5>(r, [0.5, 0.166_665_38, 0.041_666_266, 0.008_367_26, 0.001_394_762_3]);
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    (n, M::mul_add(r * r, q, r))
}

/// `x` limited to a range; NaN stays NaN.
#[inline(always)]
fn limit(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

#[inline(always)]
pub(crate) fn exp<M: MulAdd>(x: f32) -> f32 {
    let (n, y) = reduced_exp_m1::<M>(limit(x, -104.0, 89.0));
    // In two steps, so that results below the normal range and at its upper end come out right.
    let half = n >> 1;
    (y + 1.0) * power_of_2(half) * power_of_2(n.wrapping_sub(half))
}

#[inline(always)]
pub(crate) fn log<M: MulAdd>(x: f32) -> f32 {
    const SQRT_HALF: i32 = 0x3f35_04f3;
    let tiny = x < f32::MIN_POSITIVE;
    let normal = if tiny { x * 8_388_608.0 } else { x };
    let bits = (normal.to_bits() as i32).wrapping_sub(SQRT_HALF);
    let exponent = (bits >> 23) as f32 - if tiny { 23.0 } else { 0.0 };
    let f = f32::from_bits((bits & 0x7f_ffff).wrapping_add(SQRT_HALF) as u32) - 1.0;
    let g = polynomial::<M, 8>(
        f,
        [
            0.333_333_16,
            -0.250_007_96,
            0.200_022_83,
            -0.166_249_7,
            0.141_814_22,
            -0.131_252_86,
            0.128_791_9,
            -0.078_654_61,
        ],
    );
    let square = f * f;
    let y = M::mul_add(exponent, LN_2_LOW, square * f * g);
    let y = f + M::mul_add(square, -0.5, y);
    let y = M::mul_add(exponent, LN_2_HIGH, y);
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    // Negative or NaN.
    if x >= 0.0 { y } else { f32::NAN }
}

#[inline(always)]
pub(crate) fn tanh<M: MulAdd>(x: f32) -> f32 {
    // With e = exp(2|x|) - 1 there is no cancellation near 0; beyond 10 the result is 1.
    let (n, y) = reduced_exp_m1::<M>(2.0 * limit(x.abs(), 0.0, 10.0));
    let scale = power_of_2(n);
    let e = M::mul_add(scale, y, scale - 1.0);
    (e / (e + 2.0)).copysign(x)
}

#[inline(always)]
pub(crate) fn sigmoid<M: MulAdd>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<M>(-x))
}

#[inline(always)]
pub(crate) fn relu<M: MulAdd>(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// The standard normal distribution at `x`: cumulative probability and `exp(-x^2 / 2)`.
#[inline(always)]
fn normal<M: MulAdd>(x: f32) -> (f32, f32) {
    let z = limit(x.abs(), 0.0, 14.0);
    let bell = exp::<M>(-0.5 * z * z);
    // The upper tail over the bell falls smoothly from 1/2, like a polynomial in this.
    let u = 1.0 / M::mul_add(0.3, z, 1.0);
    let ratio = polynomial::<M, 9>(
        u,
        [
            7.168_452_6e-6,
            0.119_487_695,
            0.121_920_28,
            0.094_683_796,
            0.142_534_84,
            -0.076_505_44,
            0.228_659_12,
            -0.169_165_63,
            0.038_378_187,
        ],
    );
    let tail = bell * ratio;
    (if x < 0.0 { tail } else { 1.0 - tail }, bell)
}

/// `x * Phi(x)`, with the exact normal distribution (the erf form).
#[inline(always)]
pub(crate) fn gelu<M: MulAdd>(x: f32) -> f32 {
    limit(x, -14.0, f32::INFINITY) * normal::<M>(x).0
}

/// The derivative of [`gelu`].
#[inline(always)]
pub(crate) fn gelu_derivative<M: MulAdd>(x: f32) -> f32 {
    let (probability, bell) = normal::<M>(x);
    M::mul_add(limit(x, -14.0, 14.0), DENSITY_AT_0 * bell, probability)
}

#[cfg(test)]
mod tests;
