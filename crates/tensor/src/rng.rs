//! Counter-based random numbers: value `i` of a stream depends on the seed, the stream and `i`
//! only, so any process can make any part of a sequence, in any order.

/// A stream of random numbers, indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rng {
    key: u64,
}

impl Rng {
    /// The stream `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Rng {
        Rng { key: mix(mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15)) ^ stream) }
    }

    /// The stream of a name, such as that of a parameter.
    pub fn named(seed: u64, name: &str) -> Rng {
        // FNV-1a: stable across versions and machines, which the standard hasher is not.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        Rng::new(seed, hash)
    }

    /// 64 random bits.
    #[inline]
    pub fn u64(&self, i: u64) -> u64 {
        mix(self.key.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    /// Uniform in `[0, 1)`, with 24 random bits.
    #[inline]
    pub fn unit_f32(&self, i: u64) -> f32 {
        // 24 bits fit an i32, from which processors convert in one step.
        (self.u64(i) >> 40) as i32 as f32 * (1.0 / 16_777_216.0)
    }

    /// Uniform in `[0, 1)`, with 53 random bits.
    #[inline]
    pub fn unit_f64(&self, i: u64) -> f64 {
        (self.u64(i) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Standard normal.
    #[inline]
    pub fn normal(&self, i: u64) -> f64 {
        // Box-Muller; 1 - u is in (0, 1], so the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.unit_f64(2 * i)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit_f64(2 * i + 1)).cos()
    }
}

/// The finaliser of splitmix64: every input bit changes every output bit with probability near 1/2.
#[inline]
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_right() {
        let rng = Rng::named(7, "w");
        let n = 100_000u64;
        let mean = (0..n).map(|i| rng.unit_f64(i)).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..n {
            let x = rng.normal(i);
            sum += x;
            squares += x * x;
        }
        assert!((sum / n as f64).abs() < 0.02);
        assert!((squares / n as f64 - 1.0).abs() < 0.02);
    }

    #[test]
    fn streams_and_seeds_differ() {
        let all: std::collections::HashSet<u64> = (0..10)
            .flat_map(|seed| (0..10).map(move |stream| Rng::new(seed, stream).u64(0)))
            .collect();
        assert_eq!(all.len(), 100);
    }
}
