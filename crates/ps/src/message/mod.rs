//! The bytes of every request and reply: one file per verb, which holds both directions and the
//! reply. Nobody else writes or reads them.
//!
//! Data travels as fixed heads followed by plain arrays, each starting at a multiple of 8 bytes
//! (`bytes.rs`), so that neither side copies or converts them: [`Pull`], [`Push`], [`PushPull`],
//! [`Geo`], [`SetDense`], [`Gather`], [`Prefetch`], [`LeaseRows`], [`ReturnRows`],
//! [`DenseState`]. Where the network is slow, pulls and pushes can be made shorter: [`Wire`].
//! Everything rare is a [`Control`] message in JSON. `reply.rs` has the statuses.

mod bytes;
pub(crate) mod control;
mod dense_state;
mod exact;
mod gather;
mod geo;
mod prefetch;
mod pull;
mod push;
mod push_pull;
pub(crate) mod reply;
mod rows;
mod set_dense;
mod wire;

pub use bytes::Array;
pub use control::{
    Control, ControlReply, Hello, Idle, Inspection, ReduceOp, Rejoin, ServerStats, SnapshotTaken,
    TableStats, TierStats,
};
pub use dense_state::DenseState;
pub use gather::{Gather, GatherReply, MAX_GATHER_BYTES, MAX_GATHER_REPLY_BYTES};
pub use geo::{Geo, GeoReply};
pub use prefetch::Prefetch;
pub use pull::{Pull, PullSpec, PullTable};
pub(crate) use pull::{PullReply, PullReplyWriter};
pub use push::{Gradients, Push, PushTable};
pub use push_pull::PushPull;
pub use rows::{LeaseRows, ReturnRows};
pub use set_dense::SetDense;
pub use wire::Wire;

use crate::Error;

/// What a request is about; the `kind` of its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A [`Pull`].
    Pull = 1,
    /// A [`Push`].
    Push = 2,
    /// A [`PushPull`].
    PushPull = 3,
    /// A [`Geo`] exchange.
    Geo = 4,
    /// A [`SetDense`].
    SetDense = 5,
    /// A [`Control`] message.
    Control = 6,
    /// A [`Gather`].
    Gather = 7,
    /// A [`Prefetch`].
    Prefetch = 8,
    /// A [`LeaseRows`].
    LeaseRows = 9,
    /// A [`ReturnRows`].
    ReturnRows = 10,
    /// Asks for a [`DenseState`].
    LeaseDense = 11,
    /// A [`DenseState`] that is given back.
    ReturnDense = 12,
}

impl TryFrom<u16> for Kind {
    type Error = Error;
    fn try_from(kind: u16) -> Result<Kind, Error> {
        use Kind::{Control, Gather, Geo, Prefetch, Pull, Push, PushPull, SetDense};
        use Kind::{LeaseDense, LeaseRows, ReturnDense, ReturnRows};
        [Pull, Push, PushPull, Geo, SetDense, Control, Gather, Prefetch]
            .into_iter()
            .chain([LeaseRows, ReturnRows, LeaseDense, ReturnDense])
            .find(|k| *k as u16 == kind)
            .ok_or_else(|| Error::malformed(format!("unknown request kind {kind}")))
    }
}

/// A small job for the tests of messages.
#[cfg(test)]
mod testing {
    use proptest::prelude::*;
    use regatta_net::{Buf, Pool};

    use crate::ClientTable;
    use crate::partition::{Piece, dense_pieces};

    pub(super) fn room(n: usize) -> Buf {
        Pool::default().take(n)
    }

    /// Distinct keys, small enough to be whole numbers as floats.
    pub(super) fn keys() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::btree_set(0u64..1 << 20, 0..40).prop_map(|set| set.into_iter().collect())
    }

    /// Two tables, of one and of three floats, and the pieces of [`dense_params`] by server.
    pub(super) fn job(servers: usize, counted: bool) -> (Vec<ClientTable>, Vec<Vec<Piece>>) {
        let table = |dim| ClientTable { name: format!("t{dim}"), dim, counted, lookahead: 0 };
        let lens: Vec<usize> = dense_params().iter().map(Vec::len).collect();
        (vec![table(1), table(3)], dense_pieces(&lens, servers, false))
    }

    /// Dense parameters of different lengths.
    pub(super) fn dense_params() -> Vec<Vec<f32>> {
        let values = |n: usize| (0..n).map(|i| i as f32).collect();
        vec![values(5), values(0), values(8)]
    }
}
