//! What kernels know of other ranks: exchanges that are started and waited for, and nothing of how
//! they travel.

use std::sync::Arc;

use crate::KernelError;

pub use crate::op::{encode_rows, merge_rows};

/// Exchanges between the ranks of a job.
///
/// All ranks run the same program, so all start the same exchanges in the same order. An exchange
/// continues in the background between [`Comm::start`] and [`Comm::wait`]; values move in and out
/// as whole buffers, so that nobody writes memory that someone else still sends.
pub trait Comm: Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Starts an exchange under a name that is not in use; waits only if too many are in flight.
    ///
    /// # Errors
    /// If the connection to other ranks is lost.
    fn start(&self, name: &Arc<str>, exchange: Exchange) -> Result<(), KernelError>;

    /// Waits for the exchange of that name.
    ///
    /// # Errors
    /// If it failed, naming the ranks that are missing.
    fn wait(&self, name: &str) -> Result<Reply, KernelError>;

    /// An empty buffer, with the memory of the last one given back under that name.
    fn take_buffer(&self, name: &str) -> Vec<f32>;

    /// Gives a buffer back for the next exchange of that name.
    fn give_buffer(&self, name: &Arc<str>, buffer: Vec<f32>);

    /// What the last exchange of that name gathered, for its memory; empty if nothing was given
    /// back.
    fn take_parts(&self, name: &str) -> Vec<Vec<u8>>;

    /// Gives gathered bytes back for the next exchange of that name.
    fn give_parts(&self, name: &Arc<str>, parts: Vec<Vec<u8>>);
}

/// How floats travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wire {
    /// As they are.
    #[default]
    F32,
    /// Rounded to half precision.
    F16,
    /// Rounded to the upper half of their bits.
    Bf16,
}

impl std::str::FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> Result<Wire, String> {
        match text {
            "f32" => Ok(Wire::F32),
            "f16" => Ok(Wire::F16),
            "bf16" => Ok(Wire::Bf16),
            _ => Err(format!("is '{text}', not one of f32, f16, bf16")),
        }
    }
}

/// What is exchanged.
#[derive(Debug)]
pub enum Exchange {
    /// Every rank gets the sum of all ranks' values, the same bits everywhere.
    AllReduce {
        /// This rank's values.
        values: Vec<f32>,
        /// How they travel.
        wire: Wire,
        /// Ranks of a node, which first add up among themselves; 0 if all are alike.
        node_ranks: usize,
    },
    /// Rank `root` gets the sum; the values of others are undefined afterwards.
    Reduce {
        /// This rank's values.
        values: Vec<f32>,
        /// Who gets the sum.
        root: usize,
    },
    /// Every rank gets the values of rank `root`.
    Broadcast {
        /// This rank's values, as long as those of `root`.
        values: Vec<f32>,
        /// Whose values count.
        root: usize,
    },
    /// Every rank gets what every rank gives, in the order of ranks.
    AllGather {
        /// What this rank gives; lengths may differ.
        bytes: Vec<u8>,
        /// Buffers for what the others give; may be empty.
        spare: Vec<Vec<u8>>,
    },
}

impl Exchange {
    /// Gathers the bytes of all ranks into new buffers, for exchanges that are small or rare.
    pub fn gather(bytes: Vec<u8>) -> Exchange {
        Exchange::AllGather { bytes, spare: Vec::new() }
    }
}

/// What comes back.
#[derive(Debug)]
pub enum Reply {
    /// Of everything but `AllGather`.
    Floats(Vec<f32>),
    /// Of `AllGather`.
    Gathered(Vec<Vec<u8>>),
}

/// The other ranks of a step, if there are any.
#[derive(Clone)]
pub struct Peers {
    /// The way to them.
    pub comm: Option<Arc<dyn Comm>>,
    /// This rank's part of the examples of the step over all ranks: 1 without others, 0 if this
    /// rank has no more data and takes part only so that nobody waits for it.
    pub share: f32,
}

impl Default for Peers {
    fn default() -> Peers {
        Peers { comm: None, share: 1.0 }
    }
}

impl Peers {
    /// The way to other ranks.
    ///
    /// # Errors
    /// If there is none: the program was made for several ranks and is run alone.
    pub fn comm(&self) -> Result<&Arc<dyn Comm>, KernelError> {
        self.comm.as_ref().ok_or_else(|| {
            KernelError("it exchanges values with other ranks, but runs without a group".into())
        })
    }
}
