//! Logarithm and exponential that give the same bits on every machine.
//!
//! The functions of the platform's maths library differ in the last bit between systems, and
//! synthetic data must not. These use only `+ - * /` and bit shifts on `f64`, each of which IEEE
//! 754 defines to the last bit; Rust neither fuses nor reorders them.

/// Coefficients of the series of artanh: `1 / (2k + 1)`.
const ARTANH: [f64; 12] = {
    let mut c = [1.0; 12];
    let mut k = 1;
    while k < 12 {
        c[k] = 1.0 / (2 * k + 1) as f64;
        k += 1;
    }
    c
};

/// Coefficients of the series of the exponential: `1 / n!`.
const EXP: [f64; 15] = {
    let mut c = [1.0; 15];
    let mut n = 1;
    while n < 15 {
        c[n] = c[n - 1] / n as f64;
        n += 1;
    }
    c
};

/// The sum of `c[k] * x^k`, by Horner's rule.
fn series(c: &[f64], x: f64) -> f64 {
    c.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// Natural logarithm of a positive normal number, to about 1e-15.
pub(crate) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    const LN2: f64 = std::f64::consts::LN_2;
    let mut exponent = (x.to_bits() >> 52) as i64 - 1023;
    let mut m = f64::from_bits((x.to_bits() & ((1 << 52) - 1)) | (1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), and that quotient is below 0.172.
    let s = (m - 1.0) / (m + 1.0);
    exponent as f64 * LN2 + 2.0 * s * series(&ARTANH, s * s)
}

/// Exponential, to about 1e-15; 0 and infinity beyond the range of `f64`.
pub(crate) fn exp(x: f64) -> f64 {
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    if x > 709.0 {
        return f64::INFINITY;
    }
    if x < -708.0 {
        return 0.0;
    }
    let k = (x * std::f64::consts::LOG2_E + 0.5).floor();
    let r = x - k * LN2_HIGH - k * LN2_LOW;
    series(&EXP, r) * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// `x` to the power `p`, for positive `x`.
pub(crate) fn pow(x: f64, p: f64) -> f64 {
    exp(p * ln(x))
}

/// The logistic function.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_maths_library() {
        for i in 1..20_000 {
            let x = i as f64 * 0.37;
            assert!((ln(x) - x.ln()).abs() < 1e-13 * x.ln().abs().max(1.0), "ln {x}");
            let y = (i as f64 - 10_000.0) * 0.05;
            assert!((exp(y) - y.exp()).abs() <= 1e-13 * y.exp(), "exp {y}");
        }
        assert_eq!((exp(-1e9), exp(1e9), exp(0.0), ln(1.0)), (0.0, f64::INFINITY, 1.0, 0.0));
    }

    #[test]
    fn the_same_bits_everywhere() {
        assert_eq!(ln(10.0).to_bits(), 0x40026bb1bbb55515);
        assert_eq!(exp(1.0).to_bits(), 0x4005bf0a8b14576a);
        assert_eq!(pow(2.5, -1.1).to_bits(), 0x3fd75bca3ae52e42);
    }
}
