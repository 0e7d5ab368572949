//! Devices that compute beside the CPU: what is there, buffers in their memory, and launches of
//! kernels written once for OpenCL and CUDA.
//!
//! Nothing here knows programs, tables or training. Libraries of vendors are loaded when a device
//! is asked for; a machine without one gets an entry in the [`Listing`] that says what is missing.
//! Devices of kind [`Kind::Cpu`] are software: they are used only when they are named.
//!
//! ```no_run
//! use regatta_device::{Arg, Choice, Grid, Queue};
//!
//! let device = "opencl-cpu".parse::<Choice>()?.open()?;
//! let x = device.alloc(1000 * 4)?;
//! let fill = device.kernel("fill")?;
//! let args = [Arg::Buffer(&x), Arg::F32(1.5), Arg::U64(1000)];
//! device.launch(Queue::Compute, &fill, Grid::over(1000, 64), &args)?;
//! assert_eq!(device.read_floats(Queue::Compute, &x, 0, 1000)?, vec![1.5; 1000]);
//! # Ok::<(), regatta_device::Error>(())
//! ```
//!
//! Reading order: [`Choice`] (which device), [`Listing`] (what is there), [`Device`] with
//! [`Buffer`], [`Event`] and [`Host`] (what it does), [`Text`] (kernels and their parameters),
//! [`Gemm`], [`Arena`] and [`Step`] (launches with a meaning), `backend.rs` (what OpenCL and CUDA
//! give), `opencl/`, `cuda/` (a feature).

mod backend;
mod choice;
mod counters;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod error;
mod gemm;
mod host;
mod listing;
mod opencl;
mod rows;
mod rules;
mod text;

pub use backend::Queue;
pub use choice::{Choice, visible};
pub use counters::{Counters, Counts};
#[cfg(feature = "cuda")]
pub use cuda::ptx as cuda_ptx;
pub use device::{Arg, Buffer, Device, Event, Grid, Kernel};
pub use error::Error;
pub use gemm::{Act, Gemm};
pub use host::Host;
pub use listing::{Api, DeviceInfo, Kind, Listing, Missing};
pub use rows::{Arena, Pool};
pub use rules::{NoKernel, Step};
pub use text::{Param, Signature, Text, texts};
