//! Programs on a software OpenCL device (PoCL) against the CPU. Without one these tests say so and
//! pass.

mod group;
mod ops;
mod runs;

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
