//! Groups of ranks that work as equals: all-reduce and its relatives.
//!
//! Every rank calls the same operations in the same order. The crate knows of ranks, names of
//! tensors and slices; it knows nothing of programs, roles or environment variables.
//!
//! ```
//! use regatta_collective::{Group, ReduceOp, Wire};
//!
//! // Three ranks as threads of one process; `Group::connect` is the same for processes.
//! let threads = Group::in_memory(3)?.into_iter().map(|mut group| {
//!     std::thread::spawn(move || {
//!         let mut data = [group.rank() as f32, 10.0];
//!         group.all_reduce("gradient", &mut data, ReduceOp::Sum, Wire::F32)?;
//!         Ok::<_, regatta_collective::Error>(data)
//!     })
//! });
//! for thread in threads.collect::<Vec<_>>() {
//!     assert_eq!(thread.join().unwrap()?, [3.0, 30.0]);
//! }
//! # Ok::<(), regatta_collective::Error>(())
//! ```
//!
//! What callers can rely on:
//!
//! - All ranks get the same bits, whatever the timing.
//! - A rank that dies, leaves early, calls something else or comes with another length is an error
//!   on **every** rank, which names it; nothing waits longer than its limit. A group that has
//!   failed stays failed: start the job again, from a checkpoint.
//! - All ranks have proved that they know the job token.
//!
//! Reading order: `group` (the operations), `config` and `error` (what goes in, what comes back),
//! `header` (what ranks announce before the data), `call` (one operation in flight), `algorithm`
//! (how operations are made of byte streams), `links` (what carries those), `mpi` (MPI in this
//! process), `memory` (operations through shared memory), `node` (how ranks find and watch each
//! other), `fate` (what the threads of a rank know together).
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

#[cfg(target_endian = "big")]
compile_error!("data travels as it is in memory, in little-endian order");

mod algorithm;
mod call;
mod config;
mod error;
mod fate;
mod group;
mod header;
mod links;
mod memory;
#[cfg(feature = "mpi")]
mod mpi;
mod node;
mod patience;
mod reduce;
mod socket;

pub use config::{Event, GroupConfig, Observer, Transport};
pub use error::{Absent, Error, Result};
pub use group::Group;
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use reduce::{ReduceOp, Wire};
