//! How operations are made of byte streams. In: a [`Call`](crate::call::Call) and buffers.
//!
//! - `exchange`: everybody sends something to somebody and receives something from somebody, all at
//!   the same time; most operations are one or two of these
//! - `direct`: reductions made of exchanges: reduce-scatter, and all-reduce in half formats
//! - `doubling`: all-reduce of little data, in pairs
//! - `ring`: all-reduce of much data, as a stream around a ring
//! - `chain`: broadcast of much data, as a stream from rank to rank

pub(crate) mod chain;
pub(crate) mod direct;
pub(crate) mod doubling;
pub(crate) mod exchange;
pub(crate) mod ring;
