//! 16-bit floats: conversion to and from f32, of single values and of whole slices.
//!
//! Both formats round to the nearest, ties to even; what is too large becomes an infinity, and a
//! NaN stays a NaN. Widening is exact. `f16` is IEEE 754 binary16; `bf16` is the upper half of an
//! f32.
//!
//! ```
//! use regatta_kernels::half::{self, Half};
//! let mut bits = [0; 2];
//! half::narrow(Half::Bf16, &[1.0, 0.1], &mut bits);
//! let mut back = [0.0; 2];
//! half::widen(Half::Bf16, &bits, &mut back);
//! assert_eq!(back, [1.0, 0.100_097_656]);
//! ```

use crate::simd;

/// Which of the two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Half {
    /// 5 bits of exponent, 10 of mantissa: up to 65504, and from 6e-8.
    F16,
    /// 8 bits of exponent, 7 of mantissa: the range of f32.
    Bf16,
}

/// The f32 of the same value.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bf16.
#[inline(always)]
pub fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    // Half a unit of the last place that stays, and one less if that place is even. A carry into
    // the exponent is right: it gives the next power of two, or the infinity.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // A NaN keeps its upper bits and is made quiet, so that it cannot become an infinity.
    let quiet = (bits >> 16) | 0x40;
    (if x.is_nan() { quiet } else { rounded >> 16 }) as u16
}

/// The f32 of the same value.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff);
    let magnitude = match rest >> 10 {
        // Zero and subnormal values are multiples of 2^-24.
        0 => (rest as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        // Infinity and NaN; the latter made quiet, as the CPU does.
        31 if rest & 0x3ff != 0 => 0x7fc0_0000 | (rest & 0x3ff) << 13,
        31 => 0x7f80_0000,
        _ => (rest << 13) + (112 << 23),
    };
    f32::from_bits(sign | magnitude)
}

/// The nearest f16.
#[inline(always)]
pub fn f16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let rest = bits & 0x7fff_ffff;
    let magnitude = if rest > 0x7f80_0000 {
        0x7e00 | (rest >> 13 & 0x3ff)
    } else if rest >= 0x4780_0000 {
        // 65536 and above.
        0x7c00
    } else if rest < 0x3880_0000 {
        // Below the smallest normal value: adding 0.5 leaves multiples of 2^-24 in the low bits,
        // rounded by the addition itself.
        (f32::from_bits(rest) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        let even = rest >> 13 & 1;
        (rest + 0xfff + even - (112 << 23)) >> 13
    };
    sign | magnitude as u16
}

/// Writes the f32 of each value.
///
/// # Panics
/// If the slices differ in length.
pub fn widen(from: Half, bits: &[u16], out: &mut [f32]) {
    match from {
        Half::Bf16 => widen_bf16(bits, out),
        Half::F16 => widen_f16(bits, out),
    }
}

/// Writes the nearest 16-bit float of each value.
///
/// # Panics
/// If the slices differ in length.
pub fn narrow(to: Half, x: &[f32], bits: &mut [u16]) {
    match to {
        Half::Bf16 => narrow_bf16(x, bits),
        Half::F16 => narrow_f16(x, bits),
    }
}

simd! {
    /// [`bf16_to_f32`] of each value.
    fn widen_bf16(bits: &[u16], out: &mut [f32]) {
        assert_eq!(bits.len(), out.len(), "lengths of source and target");
        for (out, &bits) in out.iter_mut().zip(bits) {
            *out = bf16_to_f32(bits);
        }
    }
}

simd! {
    /// [`bf16_from_f32`] of each value.
    fn narrow_bf16(x: &[f32], bits: &mut [u16]) {
        assert_eq!(x.len(), bits.len(), "lengths of source and target");
        for (bits, &x) in bits.iter_mut().zip(x) {
            *bits = bf16_from_f32(x);
        }
    }
}

fn widen_f16(bits: &[u16], out: &mut [f32]) {
    assert_eq!(bits.len(), out.len(), "lengths of source and target");
    #[cfg(target_arch = "x86_64")]
    if has_f16c() {
        // SAFETY: AVX and F16C were just detected.
        return unsafe { f16c::widen(bits, out) };
    }
    out.iter_mut().zip(bits).for_each(|(out, &bits)| *out = f16_to_f32(bits));
}

fn narrow_f16(x: &[f32], bits: &mut [u16]) {
    assert_eq!(x.len(), bits.len(), "lengths of source and target");
    #[cfg(target_arch = "x86_64")]
    if has_f16c() {
        // SAFETY: AVX and F16C were just detected.
        return unsafe { f16c::narrow(x, bits) };
    }
    bits.iter_mut().zip(x).for_each(|(bits, &x)| *bits = f16_from_f32(x));
}

#[cfg(target_arch = "x86_64")]
fn has_f16c() -> bool {
    std::arch::is_x86_feature_detected!("avx") && std::arch::is_x86_feature_detected!("f16c")
}

/// Eight values at a time with the CPU's own conversion.
#[cfg(target_arch = "x86_64")]
mod f16c {
    use std::arch::x86_64::*;

    const LANES: usize = 8;

    #[target_feature(enable = "avx,f16c")]
    pub(super) fn widen(bits: &[u16], out: &mut [f32]) {
        let (blocks, rest) = bits.as_chunks::<LANES>();
        let (out_blocks, out_rest) = out.as_chunks_mut::<LANES>();
        for (block, out) in blocks.iter().zip(out_blocks) {
            // SAFETY: both arrays hold eight values; unaligned access is asked for.
            unsafe {
                let halves = _mm_loadu_si128(block.as_ptr().cast());
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(halves));
            }
        }
        out_rest.iter_mut().zip(rest).for_each(|(out, &bits)| *out = super::f16_to_f32(bits));
    }

    #[target_feature(enable = "avx,f16c")]
    pub(super) fn narrow(x: &[f32], bits: &mut [u16]) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        let (blocks, rest) = x.as_chunks::<LANES>();
        let (bit_blocks, bit_rest) = bits.as_chunks_mut::<LANES>();
        for (block, bits) in blocks.iter().zip(bit_blocks) {
            // SAFETY: both arrays hold eight values; unaligned access is asked for.
            unsafe {
                let halves = _mm256_cvtps_ph::<NEAREST>(_mm256_loadu_ps(block.as_ptr()));
                _mm_storeu_si128(bits.as_mut_ptr().cast(), halves);
            }
        }
        bit_rest.iter_mut().zip(rest).for_each(|(bits, &x)| *bits = super::f16_from_f32(x));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_f32(half: Half, bits: u16) -> f32 {
        match half {
            Half::F16 => f16_to_f32(bits),
            Half::Bf16 => bf16_to_f32(bits),
        }
    }

    fn from_f32(half: Half, x: f32) -> u16 {
        match half {
            Half::F16 => f16_from_f32(x),
            Half::Bf16 => bf16_from_f32(x),
        }
    }

    const BOTH: [Half; 2] = [Half::F16, Half::Bf16];

    #[test]
    fn every_value_survives_the_way_to_f32_and_back() {
        for half in BOTH {
            for bits in 0..=u16::MAX {
                let x = to_f32(half, bits);
                if x.is_nan() {
                    assert!(to_f32(half, from_f32(half, x)).is_nan(), "{half:?} {bits:#x}");
                } else {
                    assert_eq!(from_f32(half, x), bits, "{half:?} {bits:#x} = {x}");
                }
            }
        }
    }

    /// The value that the definition of f16 gives, in f64, where it is exact.
    fn defined_f16(bits: u16) -> f64 {
        let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
        match exponent {
            0 => mantissa * 2f64.powi(-24),
            _ => (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
        }
    }

    #[test]
    fn f16_values_are_those_of_the_definition() {
        for bits in 0..0x7c00 {
            assert_eq!(f64::from(f16_to_f32(bits)), defined_f16(bits), "{bits:#x}");
            assert_eq!(f64::from(f16_to_f32(bits | 0x8000)), -defined_f16(bits), "{bits:#x}");
        }
        assert_eq!(f16_to_f32(0x7c00), f32::INFINITY);
        assert_eq!(f16_to_f32(0xfc00), f32::NEG_INFINITY);
    }

    /// Between two neighbours: below the middle goes down, above goes up, the middle to the even
    /// one.
    #[test]
    fn rounding_is_to_the_nearest_with_ties_to_even() {
        for (half, end) in [(Half::F16, 0x7bff), (Half::Bf16, 0x7f7f)] {
            for low in 0..end {
                let (a, b) = (to_f32(half, low), to_f32(half, low + 1));
                let middle = ((f64::from(a) + f64::from(b)) / 2.0) as f32;
                if f64::from(middle) != (f64::from(a) + f64::from(b)) / 2.0 {
                    continue; // Below the smallest f32 there is no middle.
                }
                let even = if low % 2 == 0 { low } else { low + 1 };
                assert_eq!(from_f32(half, middle), even, "{half:?} {low:#x}");
                assert_eq!(from_f32(half, middle.next_down()), low, "{half:?} {low:#x}");
                assert_eq!(from_f32(half, middle.next_up()), low + 1, "{half:?} {low:#x}");
                assert_eq!(from_f32(half, -middle), even | 0x8000, "{half:?} {low:#x}");
            }
        }
    }

    #[test]
    fn what_is_too_large_becomes_infinite() {
        assert_eq!(f16_from_f32(65519.0), 0x7bff);
        assert_eq!(f16_from_f32(65520.0), 0x7c00);
        assert_eq!(f16_from_f32(-1e9), 0xfc00);
        assert_eq!(bf16_from_f32(f32::MAX), 0x7f80);
        assert_eq!(bf16_from_f32(f32::NEG_INFINITY), 0xff80);
        assert!(f16_to_f32(f16_from_f32(f32::NAN)).is_nan());
        assert!(bf16_to_f32(bf16_from_f32(f32::from_bits(0x7f80_0001))).is_nan());
    }

    #[test]
    fn slices_give_what_single_values_give() {
        for half in BOTH {
            let bits: Vec<u16> = (0..=u16::MAX).collect();
            let mut wide = vec![0.0; bits.len()];
            widen(half, &bits, &mut wide);
            for (&bits, x) in bits.iter().zip(&wide) {
                let single = to_f32(half, bits);
                assert!(single.to_bits() == x.to_bits() || single.is_nan() && x.is_nan());
            }
            // All exponents, with mantissas around the places where rounding changes.
            let floats: Vec<f32> =
                (0..1u32 << 19).map(|i| f32::from_bits((i << 13) | (i % 3))).collect();
            let mut narrowed = vec![0; floats.len()];
            narrow(half, &floats, &mut narrowed);
            for (&x, &bits) in floats.iter().zip(&narrowed) {
                assert!(
                    from_f32(half, x) == bits || x.is_nan() && to_f32(half, bits).is_nan(),
                    "{half:?} {x:e}"
                );
            }
        }
    }
}
