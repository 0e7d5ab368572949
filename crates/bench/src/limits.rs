//! What the machine can do at best: memory, measured in the run whose figures it judges.

use std::hint::black_box;
use std::time::Instant;

use regatta_tensor::Rng;

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Gigabytes per second of a long copy, bytes read and bytes written both counted; best of some.
pub fn copy_gb_per_sec() -> f64 {
    const LEN: usize = 16 << 20;
    let from = vec![1u64; LEN];
    let mut to = vec![0u64; LEN];
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        best = best.min(start.elapsed().as_secs_f64());
    }
    (2 * LEN * 8) as f64 / best / 1e9
}

/// Memory of a given size that is read at random offsets, as a table is.
pub struct RandomReads {
    words: Vec<u64>,
    offsets: Vec<u32>,
}

impl RandomReads {
    /// N bytes, in lines.
    pub fn new(bytes: usize) -> RandomReads {
        let lines = (bytes / LINE).clamp(1, u32::MAX as usize - 64);
        let rng = Rng::new(9, bytes as u64);
        let offsets = (0..1 << 18).map(|i| (rng.u64(i) % lines as u64) as u32).collect();
        RandomReads { words: vec![1; lines * LINE / 8 + 64 * LINE / 8], offsets }
    }

    /// Nanoseconds to read `lines` neighbouring lines at a random offset, when reads do not wait
    /// for each other; best of some.
    pub fn ns(&self, lines: usize) -> f64 {
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let start = Instant::now();
            let mut sum = 0u64;
            for offset in &self.offsets {
                let at = *offset as usize * (LINE / 8);
                for line in 0..lines {
                    sum = sum.wrapping_add(self.words[at + line * (LINE / 8)]);
                }
            }
            black_box(sum);
            best = best.min(start.elapsed().as_nanos() as f64 / self.offsets.len() as f64);
        }
        best
    }
}
