//! Counter-based random numbers: the n-th draw of a stream is a function of (seed, stream, n).
//!
//! Nothing is shared between streams, so a record draws the same numbers whichever thread or
//! worker makes it.

use crate::math;

/// SplitMix64's finaliser: a bijection in which every input bit reaches every output bit.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One stream of random numbers.
#[derive(Debug, Clone)]
pub struct Rng {
    key: u64,
    counter: u64,
}

impl Rng {
    /// The stream named by `path` under `seed`, for example `[epoch, file, line]`.
    pub fn new(seed: u64, path: &[u64]) -> Rng {
        let start = mix(seed.wrapping_add(STEP));
        let top = Rng { key: start, counter: 0 };
        path.iter().fold(top, |stream, &p| stream.child(p))
    }

    /// The stream that has `name` at the end of its path. It does not depend on what has been drawn
    /// from this one.
    pub fn child(&self, name: u64) -> Rng {
        Rng { key: mix(self.key ^ mix(name.wrapping_add(STEP))), counter: 0 }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(STEP);
        mix(self.key.wrapping_add(self.counter))
    }

    /// A number below `n`, each with the same probability.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "no number is below 0");
        // Lemire 2019: the high half of a product, with the few biased draws thrown away.
        loop {
            let wide = self.next_u64() as u128 * n as u128;
            if wide as u64 >= n.wrapping_neg() % n {
                return (wide >> 64) as u64;
            }
        }
    }

    /// A number in [0, 1) with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A bell-shaped number with mean 0 and variance 1, in [-3.5, 3.5]: four uniform ones of 16
    /// bits each, added.
    pub fn bell(&mut self) -> f64 {
        let bits = self.next_u64();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        // The sum has a mean of 4 * 32767.5 and a variance of 4 * (2^32 - 1) / 12.
        (sum as f64 - 131_070.0) * (1.732_050_807_568_877_2 / 65_536.0)
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Ranks `0..n` with probability close to `1 / (rank + 1)^s`: the continuous power law, divided
/// into integers. Needs no table, so `n` may be billions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Zipf {
    n: u64,
    /// `1 - s`.
    a: f64,
    /// `(n + 1)^a - 1`, or `ln (n + 1)` where `a` is 0.
    span: f64,
}

impl Zipf {
    pub(crate) fn new(n: u64, s: f64) -> Zipf {
        let (a, end) = (1.0 - s, (n + 1) as f64);
        let span = if a.abs() < 1e-9 { math::ln(end) } else { math::pow(end, a) - 1.0 };
        Zipf { n, a, span }
    }

    pub(crate) fn sample(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let x = if self.a.abs() < 1e-9 {
            math::exp(u * self.span)
        } else {
            math::pow(1.0 + u * self.span, 1.0 / self.a)
        };
        (x as u64).clamp(1, self.n) - 1
    }
}

/// Draws indices with given weights in constant time (Walker's alias method, Vose's construction).
#[derive(Debug, Clone)]
pub struct AliasTable {
    /// Probability of staying with the column's own index, and the other index.
    columns: Vec<(f64, u32)>,
}

impl AliasTable {
    /// A table for the weights, which must not be negative nor all zero.
    ///
    /// # Panics
    /// If they are.
    pub fn new(weights: &[f64]) -> AliasTable {
        let sum: f64 = weights.iter().sum();
        assert!(sum > 0.0 && weights.iter().all(|w| *w >= 0.0), "weights must be positive");
        let mean = sum / weights.len() as f64;
        let mut share: Vec<f64> = weights.iter().map(|w| w / mean).collect();
        let mut columns: Vec<(f64, u32)> = (0..weights.len()).map(|i| (1.0, i as u32)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..weights.len()).partition(|&i| share[i] < 1.0);
        while let (Some(&s), Some(&l)) = (small.last(), large.last()) {
            small.pop();
            columns[s] = (share[s], l as u32);
            share[l] -= 1.0 - share[s];
            if share[l] < 1.0 {
                large.pop();
                small.push(l);
            }
        }
        AliasTable { columns }
    }

    /// An index, with the probability of its weight.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        let i = rng.below(self.columns.len() as u64) as usize;
        let (stay, other) = self.columns[i];
        if rng.unit() < stay { i as u64 } else { u64::from(other) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |path: &[u64]| Rng::new(7, path).next_u64();
        assert_eq!(draw(&[1, 2]), draw(&[1, 2]));
        assert_ne!(draw(&[1, 2]), draw(&[2, 1]));
        assert_ne!(draw(&[]), draw(&[0]));
    }

    #[test]
    fn the_alias_table_follows_its_weights() {
        let weights = [5.0, 0.0, 1.0, 4.0];
        let (table, mut rng) = (AliasTable::new(&weights), Rng::new(1, &[]));
        let mut seen = [0u32; 4];
        (0..100_000).for_each(|_| seen[table.sample(&mut rng) as usize] += 1);
        for (n, w) in seen.iter().zip(weights) {
            assert!((*n as f64 / 10_000.0 - w).abs() < 0.1, "{seen:?}");
        }
    }

    #[test]
    fn zipf_ranks_fall_like_a_power() {
        for s in [0.0, 1.0, 1.1] {
            let (zipf, mut rng) = (Zipf::new(1000, s), Rng::new(1, &[]));
            let mut seen = vec![0u32; 1000];
            (0..200_000).for_each(|_| seen[zipf.sample(&mut rng) as usize] += 1);
            let ratio =
                seen[..10].iter().sum::<u32>() as f64 / seen[10..110].iter().sum::<u32>() as f64;
            let tail = |from: usize, to: usize| -> f64 {
                let f = |x: f64| if s == 1.0 { x.ln() } else { x.powf(1.0 - s) / (1.0 - s) };
                f(to as f64 + 1.0) - f(from as f64 + 1.0)
            };
            let expected = tail(0, 10) / tail(10, 110);
            assert!((ratio / expected - 1.0).abs() < 0.05, "s {s}: {ratio} {expected}");
        }
    }

    #[test]
    fn bell_has_mean_zero_and_variance_one() {
        let mut rng = Rng::new(3, &[]);
        let draws: Vec<f64> = (0..50_000).map(|_| rng.bell()).collect();
        let mean = draws.iter().sum::<f64>() / 50_000.0;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / 50_000.0;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
