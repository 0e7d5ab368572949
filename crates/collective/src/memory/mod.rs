//! Operations of ranks on one machine, through memory that they share: no system calls, and every
//! rank reduces its part straight out of the others' input.
//!
//! Reading order: `rounds` (who reads and writes what, when), `region` (the memory), `share` (how
//! it comes to be shared).
#![expect(
    unsafe_code,
    reason = "memory shared with other processes; every block says why it is sound"
)]

mod region;
mod rounds;
mod share;

pub(crate) use rounds::{Memory, Use};
pub(crate) use share::share;
