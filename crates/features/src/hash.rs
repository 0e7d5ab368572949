//! Which id a value has.

use twox_hash::XxHash3_64;

/// Between the values of a cross.
pub const CROSS_SEPARATOR: u8 = 0x1f;

/// The id of a value among `buckets` ones: 1 + xxh3_64(text) mod buckets, with seed 0. The text is
/// hashed alone, so that a value has one id in every column that shares the table. 0 is for missing
/// values.
///
/// In Python: `1 + xxhash.xxh3_64_intdigest(text) % buckets`.
pub fn hash_id(text: &[u8], buckets: u64) -> u64 {
    1 + XxHash3_64::oneshot(text) % buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_never_change() {
        // As Python's xxhash 3.5 gives them.
        assert_eq!(XxHash3_64::oneshot(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(XxHash3_64::oneshot(b"a"), 0xe6c6_32b6_1e96_4e1f);
        assert_eq!(hash_id(b"a", 1 << 20), 1 + 0xe6c6_32b6_1e96_4e1f % (1 << 20));
    }

    #[test]
    fn no_value_has_the_id_of_padding() {
        for i in 0..1000_u32 {
            let id = hash_id(&i.to_le_bytes(), 3);
            assert!((1..=3).contains(&id));
        }
    }
}
