//! Where a key lives: a key goes in, a shard and a place in its index come out.
//!
//! The hash is a bijection of `u64`, so an index stores hashes only and keys are computed back from
//! them. It differs from the plain [`mix`] of the key, which whoever divides keys over servers is
//! likely to use: the keys of one server must not all fall into one shard.

use regatta_tensor::rng::mix;

const SALT: u64 = 0xA076_1D64_78BD_642F;

/// The hash of a key.
#[inline(always)]
pub(crate) fn hash_of(key: u64) -> u64 {
    mix(key ^ SALT)
}

/// The key of a hash.
#[inline]
pub(crate) fn key_of(hash: u64) -> u64 {
    unmix(hash) ^ SALT
}

/// Which of `n_shards` (a power of two) holds a hash: its highest bits.
#[inline(always)]
pub(crate) fn shard_of(hash: u64, n_shards: usize) -> usize {
    (((hash >> 32) * n_shards as u64) >> 32) as usize
}

/// The inverse of [`mix`].
fn unmix(mut x: u64) -> u64 {
    x = (x ^ (x >> 31) ^ (x >> 62)).wrapping_mul(0x3196_42B2_D24D_8EC3);
    x = (x ^ (x >> 27) ^ (x >> 54)).wrapping_mul(0x96DE_1B17_3F11_9089);
    x ^ (x >> 30) ^ (x >> 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back() {
        for i in 0..10_000u64 {
            for key in [i, i << 40, u64::MAX - i, mix(i)] {
                assert_eq!(key_of(hash_of(key)), key);
            }
        }
    }

    #[test]
    fn shards_share_small_and_partitioned_keys_evenly() {
        // What one of eight servers may get: every eighth id, or those with equal mixed high bits.
        let strided: Vec<u64> = (0..32_000).map(|i| i * 8).collect();
        let partitioned: Vec<u64> = (0..256_000).filter(|i| mix(*i) >> 61 == 3).collect();
        for keys in [strided, partitioned] {
            let mut counts = [0usize; 16];
            keys.iter().for_each(|key| counts[shard_of(hash_of(*key), 16)] += 1);
            let mean = keys.len() / 16;
            assert!(counts.iter().all(|c| c.abs_diff(mean) < mean / 5), "{counts:?}");
        }
        assert_eq!(shard_of(u64::MAX, 1), 0);
        assert_eq!(shard_of(u64::MAX, 64), 63);
    }
}
