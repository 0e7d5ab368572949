//! The device layer on a software OpenCL device (PoCL). Without one these tests say so and pass.

mod basics;
mod products;
mod rows;
mod rules;

use regatta_device::{Choice, Device};

/// The first software device; tests leave themselves out where there is none.
fn device() -> Option<Device> {
    match Choice::OpenClCpu(0).open() {
        Ok(device) => Some(device),
        Err(e) => {
            eprintln!("left out: {e}");
            None
        }
    }
}

/// Numbers between -1 and 1 that follow from a seed.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}
