//! Numbers that stand for all bits of a value, to compare values of different processes.

use std::ops::Range;

use regatta_tensor::Data;

/// Lanes of the hash: one multiplication waits for the one before it, several lanes do not.
const LANES: usize = 4;

/// The fingerprint of a range of elements.
pub(crate) fn of(data: &Data, range: Range<usize>) -> u64 {
    match data {
        Data::F32(v) => hash(&v[range], |x| u64::from(x.to_bits())),
        Data::F16(v) | Data::BF16(v) => hash(&v[range], |x| u64::from(*x)),
        Data::I64(v) => hash(&v[range], |x| *x as u64),
        Data::U64(v) => hash(&v[range], |x| *x),
    }
}

fn hash<T>(values: &[T], bits: impl Fn(&T) -> u64) -> u64 {
    let mut lanes = [0x9e37_79b9_7f4a_7c15_u64; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane = mix(*lane, bits(x)));
    }
    let whole = lanes.into_iter().fold(values.len() as u64, mix);
    rest.iter().fold(whole, |whole, x| mix(whole, bits(x)))
}

fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    product ^ (product >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_or_another_order_is_another_fingerprint() {
        let values: Vec<f32> = (0..37).map(|i| i as f32 * 0.25).collect();
        let print = |values: &[f32]| of(&Data::F32(values.to_vec()), 0..values.len());
        let first = print(&values);
        assert_eq!(first, print(&values));
        for at in 0..values.len() {
            let mut other = values.clone();
            other[at] = f32::from_bits(other[at].to_bits() ^ 1);
            assert_ne!(first, print(&other), "element {at}");
        }
        let mut swapped = values.clone();
        swapped.swap(0, LANES);
        assert_ne!(first, print(&swapped));
        assert_ne!(print(&values[..8]), print(&values[..7]));
        assert_eq!(first, of(&Data::F32([vec![9.0], values].concat()), 1..38));
    }
}
