//! A request in flight, from the caller's side.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::Shared;
use crate::error::Result;
use crate::frame::Header;
use crate::pool::Buf;
use crate::sync::{after, lock, wait_until};

/// What the server answered.
#[derive(Debug)]
pub struct Reply {
    /// As given to [`Responder::reply`](crate::Responder::reply); its meaning belongs to the layer
    /// above.
    pub status: u32,
    /// From the client's pool, or where the server wrote it. It should not be kept for long: the
    /// server has few such slots.
    pub payload: Buf,
}

/// A request as it was and may be again written, kept until the reply.
pub(super) struct Outgoing {
    pub(super) header: Header,
    pub(super) parts: Vec<Buf>,
    /// It was written at least in part.
    pub(super) tried: AtomicBool,
}

/// Where the reader leaves the reply.
#[derive(Default)]
pub(super) struct Slot {
    outcome: Mutex<Option<Result<Reply>>>,
    filled: Condvar,
}

impl Slot {
    pub(super) fn fill(&self, outcome: Result<Reply>) {
        let mut slot = lock(&self.outcome);
        *slot = Some(outcome);
        // After unlocking, the waiter finds the lock free.
        drop(slot);
        self.filled.notify_one();
    }
}

/// A request that was sent. Dropping it forgets the reply: the request then keeps its slot of the
/// window until the server answers, and is not sent again when the connection breaks.
#[must_use = "a request that is dropped is not repeated when the connection breaks"]
pub struct Pending {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    request: u64,
    kind: u16,
    taken: bool,
}

impl Pending {
    pub(super) fn new(shared: Arc<Shared>, slot: Arc<Slot>, request: u64, kind: u16) -> Pending {
        Pending { shared, slot, request, kind, taken: false }
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) after `limit`, and then the request is forgotten;
    /// [`Error::Remote`](crate::Error::Remote) when the handler failed; otherwise why the server
    /// is out of reach.
    pub fn wait(mut self, limit: Duration) -> Result<Reply> {
        let deadline = after(limit);
        let slot = self.slot.clone();
        let mut filled = lock(&slot.outcome);
        loop {
            if let Some(outcome) = filled.take() {
                self.taken = true;
                return outcome;
            }
            let (next, in_time) = wait_until(&slot.filled, filled, deadline);
            filled = next;
            if !in_time && filled.is_none() {
                return Err(self.shared.timeout("reply", limit));
            }
        }
    }

    /// The reply, if it is there. After it was taken, `None` for ever.
    pub fn try_take(&mut self) -> Option<Result<Reply>> {
        let outcome = lock(&self.slot.outcome).take();
        self.taken |= outcome.is_some();
        outcome
    }

    /// The kind of the request.
    pub fn kind(&self) -> u16 {
        self.kind
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.taken {
            self.shared.forget(self.request);
        }
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pending(request {} of kind {})", self.request, self.kind)
    }
}
