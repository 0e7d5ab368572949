//! What goes wrong with devices.

use std::time::Duration;

/// An error of a device; it names the device and what was asked of it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of a device means nothing.
    #[error(
        "'{text}' names no device: write auto, cuda, cuda:1, opencl, opencl:1, or opencl-cpu for \
         software"
    )]
    Choice {
        /// What was written.
        text: String,
    },
    /// The device that was asked for is not there.
    #[error("no device for '{asked}': {looked_for}")]
    NotThere {
        /// The name as it was written.
        asked: String,
        /// What was looked for, what was found, and the remedy.
        looked_for: String,
    },
    /// A call of the driver failed.
    #[error("{device}: {what}: {reason}")]
    Call {
        /// The device.
        device: String,
        /// What was asked.
        what: String,
        /// What the driver said.
        reason: String,
    },
    /// A kernel text does not compile.
    #[error("{device}: the kernels of '{text}' cannot be built: {reason}\n{log}")]
    Build {
        /// The device.
        device: String,
        /// The kernel text.
        text: String,
        /// What the driver said.
        reason: String,
        /// The compiler's messages.
        log: String,
    },
    /// No text has such a kernel.
    #[error("{device}: there is no kernel '{kernel}'")]
    NoKernel {
        /// The device.
        device: String,
        /// The kernel.
        kernel: String,
    },
    /// The arguments of a launch do not fit the kernel's parameters.
    #[error("{device}: kernel '{kernel}' {wrong}")]
    Launch {
        /// The device.
        device: String,
        /// The kernel.
        kernel: String,
        /// What does not fit.
        wrong: String,
    },
    /// A range does not lie in a buffer.
    #[error("{device}: bytes {start}..{end} are not in a buffer of {bytes} bytes ({what})")]
    Range {
        /// The device.
        device: String,
        /// What was asked.
        what: String,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// Size of the buffer.
        bytes: u64,
    },
    /// Something took too long.
    #[error("{device} has not finished within {} s: {what}", limit.as_secs_f64())]
    Timeout {
        /// The device.
        device: String,
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
    },
    /// A kernel text is not written as this crate expects.
    #[error("kernel text '{text}': {wrong}")]
    Text {
        /// The text.
        text: String,
        /// What is wrong.
        wrong: String,
    },
}
