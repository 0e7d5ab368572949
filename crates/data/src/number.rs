//! Numbers out of text, eight digits at a time.
//!
//! Integers are read with SWAR: eight bytes in one register, tested and combined without a loop.
//! Floats go through `f64` when that provably gives the `f32` nearest to the decimal number, and
//! through the standard library otherwise, so results equal `str::parse::<f32>` to the last bit.

const ZEROS: u64 = 0x3030_3030_3030_3030;

/// Digits at the start of `s[at..]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Digits {
    /// Their value, unless `overflow`.
    value: u64,
    /// Index after the last digit.
    end: usize,
    /// The value does not fit 64 bits.
    overflow: bool,
}

/// Powers of ten up to the number of digits that always fit 64 bits.
const POW10_U64: [u64; 19] = {
    let mut powers = [1; 19];
    let mut i = 1;
    while i < 19 {
        powers[i] = 10 * powers[i - 1];
        i += 1;
    }
    powers
};

/// The value of eight digits, the first in the lowest byte, `'0'` already taken off.
#[inline(always)]
fn eight_digits(v: u64) -> u64 {
    let pairs = v.wrapping_mul(10).wrapping_add(v >> 8);
    let low = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

#[inline(always)]
fn digits(s: &[u8], at: usize) -> Digits {
    let (mut value, mut i, mut overflow) = (0u64, at, false);
    while let Some(chunk) = s.get(i..i + 8) {
        let v = u64::from_le_bytes(chunk.try_into().expect("eight bytes")) ^ ZEROS;
        // The lowest marked byte is the first that is no digit: digits do not carry upwards.
        let marks = (v.wrapping_add(0x7676_7676_7676_7676) | v) & 0x8080_8080_8080_8080;
        let n = (marks.trailing_zeros() / 8) as usize;
        if n == 0 {
            return Digits { value, end: i, overflow };
        }
        // Fewer than eight: shifted up, so that they are led by zeros.
        let part = eight_digits(v << (8 * (8 - n)));
        if i - at < 16 {
            value = value * POW10_U64[n] + part;
        } else {
            let wide = value as u128 * POW10_U64[n] as u128 + part as u128;
            overflow |= wide > u64::MAX as u128;
            value = wide as u64;
        }
        i += n;
        if n < 8 {
            return Digits { value, end: i, overflow };
        }
    }
    while let Some(d) = s.get(i).map(|b| b.wrapping_sub(b'0')).filter(|d| *d <= 9) {
        let wide = value as u128 * 10 + d as u128;
        overflow |= wide > u64::MAX as u128;
        value = wide as u64;
        i += 1;
    }
    Digits { value, end: i, overflow }
}

/// Whether a word ends at `at`: the end of the line or a blank.
#[inline(always)]
pub(crate) fn ends(s: &[u8], at: usize) -> bool {
    s.get(at).is_none_or(|&b| is_blank(b))
}

/// Blanks inside a line: space, tab, carriage return, vertical tab, form feed.
#[inline(always)]
pub(crate) fn is_blank(b: u8) -> bool {
    b == b' ' || (9..=13).contains(&b)
}

/// Index of the first byte from `at` on that is not blank.
#[inline(always)]
pub(crate) fn skip_blanks(s: &[u8], mut at: usize) -> usize {
    while at < s.len() && is_blank(s[at]) {
        at += 1;
    }
    at
}

/// An unsigned integer that starts at `at`, and the index after it. `None` without a digit or
/// beyond 64 bits. What follows the digits is up to the caller.
#[inline(always)]
pub(crate) fn scan_u64(s: &[u8], at: usize) -> Option<(u64, usize)> {
    let d = digits(s, at);
    (d.end > at && !d.overflow).then_some((d.value, d.end))
}

/// A signed integer that starts at `at`, and the index after it.
#[inline]
pub(crate) fn scan_i64(s: &[u8], at: usize) -> Option<(i64, usize)> {
    let negative = s.get(at) == Some(&b'-');
    let sign = usize::from(negative || s.get(at) == Some(&b'+'));
    let (v, end) = scan_u64(s, at + sign)?;
    let value = if negative { 0i64.checked_sub_unsigned(v)? } else { i64::try_from(v).ok()? };
    Some((value, end))
}

/// All of `s` as an unsigned integer.
pub(crate) fn parse_u64(s: &[u8]) -> Option<u64> {
    scan_u64(s, 0).filter(|&(_, end)| end == s.len()).map(|(v, _)| v)
}

/// All of `s` as a signed integer.
pub(crate) fn parse_i64(s: &[u8]) -> Option<i64> {
    scan_i64(s, 0).filter(|&(_, end)| end == s.len()).map(|(v, _)| v)
}

/// All of `s` as a label: an integer, or a float that is one, as `1.0`.
pub(crate) fn parse_label(s: &[u8]) -> Option<i64> {
    let whole = || parse_f32(s).filter(|x| x.fract() == 0.0 && x.abs() < 1e6).map(|x| x as i64);
    parse_i64(s).or_else(whole)
}

/// All of `s` as a float, equal to `str::parse::<f32>` to the last bit.
pub(crate) fn parse_f32(s: &[u8]) -> Option<f32> {
    match scan_decimal(s, 0) {
        Some((v, end)) if end == s.len() => Some(v),
        _ => std::str::from_utf8(s).ok()?.parse().ok(),
    }
}

/// The blank-separated float that starts at `at`, and the index after it.
#[inline(always)]
pub(crate) fn scan_f32(s: &[u8], at: usize) -> Option<(f32, usize)> {
    match scan_decimal(s, at) {
        Some((v, end)) if ends(s, end) => Some((v, end)),
        _ => {
            let end = s[at..].iter().position(|&b| is_blank(b)).map_or(s.len(), |n| at + n);
            let v = std::str::from_utf8(&s[at..end]).ok()?.parse().ok()?;
            Some((v, end))
        }
    }
}

/// Powers of ten that are exact in `f64`.
const POW10_F64: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// The common case: sign, digits, point, digits, small exponent. `None` when another way is needed.
#[inline(always)]
fn scan_decimal(s: &[u8], at: usize) -> Option<(f32, usize)> {
    let negative = s.get(at) == Some(&b'-');
    let from = at + usize::from(negative);
    let whole = digits(s, from);
    let (mut mantissa, mut end, mut exponent) = (whole.value, whole.end, 0i32);
    let mut n_digits = whole.end - from;
    if s.get(end) == Some(&b'.') {
        let fraction = digits(s, end + 1);
        let n = fraction.end - (end + 1);
        n_digits += n;
        if n_digits > 18 {
            return None;
        }
        mantissa = mantissa * POW10_U64[n] + fraction.value;
        exponent = -(n as i32);
        end = fraction.end;
    }
    if n_digits == 0 || n_digits > 18 {
        return None;
    }
    if matches!(s.get(end), Some(b'e' | b'E')) {
        let (e, after) = scan_i64(s, end + 1)?;
        exponent = exponent.checked_add(i32::try_from(e).ok()?)?;
        end = after;
    }
    Some((nearest_f32(negative, mantissa, exponent)?, end))
}

/// `mantissa * 10^exponent` to the nearest `f32`, when `f64` arithmetic decides it.
///
/// With both factors exact, the `f64` result is the one nearest to the true number (Clinger 1990).
/// Rounding it again to `f32` gives the `f32` nearest to the true number, unless the `f64` sits
/// exactly between two `f32`: only then may the true number be on its other side.
#[inline(always)]
fn nearest_f32(negative: bool, mantissa: u64, exponent: i32) -> Option<f32> {
    if mantissa == 0 {
        return Some(if negative { -0.0 } else { 0.0 });
    }
    if mantissa > 1 << 53 {
        return None;
    }
    let power = POW10_F64.get(exponent.unsigned_abs() as usize)?;
    let m = mantissa as f64;
    let x = if exponent < 0 { m / power } else { m * power };
    const BELOW_F32: u64 = (1 << 29) - 1;
    let halfway = x.to_bits() & BELOW_F32 == 1 << 28;
    if halfway || x < f32::MIN_POSITIVE as f64 || x > f32::MAX as f64 {
        return None;
    }
    Some(if negative { -x as f32 } else { x as f32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_f32(text: &str) {
        let expected = text.parse::<f32>().ok().map(f32::to_bits);
        assert_eq!(parse_f32(text.as_bytes()).map(f32::to_bits), expected, "{text:?}");
        let line = format!("{text} 1");
        if !text.is_empty() {
            let scanned = scan_f32(line.as_bytes(), 0);
            assert_eq!(scanned.map(|(v, _)| v.to_bits()), expected, "{text:?} in a line");
            assert!(scanned.is_none_or(|(_, end)| end == text.len()));
        }
    }

    #[test]
    fn integers_of_every_length() {
        let mut text = String::new();
        for i in 0..25u8 {
            assert_eq!(parse_u64(text.as_bytes()), text.parse().ok(), "{text}");
            text.push((b'1' + i % 9) as char);
        }
        for t in ["18446744073709551615", "18446744073709551616", "00000000000000000000000001"] {
            assert_eq!(parse_u64(t.as_bytes()), t.parse().ok(), "{t}");
        }
        for t in ["-9223372036854775808", "-9223372036854775809", "9223372036854775808", "+7", "-"]
        {
            assert_eq!(parse_i64(t.as_bytes()), t.parse().ok(), "{t}");
        }
        assert_eq!(parse_u64(b"1x"), None);
        assert_eq!(parse_u64(b"12345678x"), None);
        assert_eq!(scan_u64(b"12:3456789", 0), Some((12, 2)));
    }

    #[test]
    fn floats_that_are_easy_to_get_wrong() {
        for t in [
            "",
            ".",
            "-",
            "+",
            "e5",
            "1.",
            ".5",
            "-.5",
            "+1.5",
            "1e",
            "1e+",
            "1e-3",
            "1E3",
            "0",
            "-0",
            "0.00497512437811",
            "16777217",
            "16777217.0",
            "16777219",
            "1e-46",
            "1.4e-45",
            "3.4028236e38",
            "3.4028235e38",
            "1e39",
            "nan",
            "inf",
            "-inf",
            "infinity",
            "0.1.2",
            "1_0",
            "0x10",
            "1e400",
            "1.17549435e-38",
            "8388608.5",
            "8388609.5",
            "0.000000000000000000000000000001",
            "1e22",
            "9007199254740993",
            "123456789012345678",
            "1234567890123456789",
            "0.3000000119209289550781",
            "1.00000017881393432617187499",
            "1.00000017881393432617187500",
            "1e-99999999999999999999",
        ] {
            check_f32(t);
        }
    }

    proptest! {
        #[test]
        fn any_float_survives_its_text(bits in any::<u32>()) {
            let v = f32::from_bits(bits);
            check_f32(&format!("{v}"));
            check_f32(&format!("{v:e}"));
            check_f32(&format!("{v:.3}"));
        }

        #[test]
        fn any_decimal_equals_the_standard_library(
            text in "-?[0-9]{0,12}(\\.[0-9]{0,14})?(e-?[0-9]{1,2})?"
        ) {
            check_f32(&text);
        }

        #[test]
        fn halves_between_neighbours(bits in 0x0080_0000u32..0x7f00_0000, nudge in -1i64..=1) {
            let (a, b) = (f32::from_bits(bits) as f64, f32::from_bits(bits + 1) as f64);
            let half = f64::from_bits(((a + b) / 2.0).to_bits().wrapping_add_signed(nudge));
            check_f32(&format!("{half}"));
            check_f32(&format!("{half:e}"));
        }

        #[test]
        fn any_integer_equals_the_standard_library(text in "[0-9]{1,21}") {
            prop_assert_eq!(parse_u64(text.as_bytes()), text.parse().ok());
        }
    }
}
