//! A process that goes to a meeting.

use std::time::Duration;

use super::{Answer, CARDS, END, FAIL, GATHER, WATCH};
use crate::client::{Client, ClientOptions};
use crate::endpoint::Endpoint;
use crate::error::Result;

/// How long the host may take to note that a guest leaves.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// A meeting, from the side of a process that has dialled the host. Share it between threads.
pub struct Guest(Client);

impl Guest {
    /// Connects to the host, waiting for it to come up.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(endpoint: impl Into<Endpoint>, options: ClientOptions) -> Result<Guest> {
        Client::connect(endpoint, options).map(Guest)
    }

    /// Takes a seat, and waits for the cards of all.
    ///
    /// # Errors
    /// If the host does not answer. It has its own limit, and says who is missing: `limit` should
    /// be longer.
    pub fn join(&self, card: &[u8], limit: Duration) -> Result<Answer> {
        self.gather(CARDS, card, limit)
    }

    /// Sends this guest's part of a round, and waits for those of all. Rounds have any numbers
    /// below [`WATCH`].
    ///
    /// # Errors
    /// If the host does not answer.
    pub fn gather(&self, round: u32, bytes: &[u8], limit: Duration) -> Result<Answer> {
        let reply = self.0.send(GATHER, round, &[bytes])?.wait(limit)?;
        Ok(Answer::decode(reply.status, &reply.payload))
    }

    /// Waits until the meeting is over.
    ///
    /// # Errors
    /// If the host is gone; [`Error::Closed`](crate::Error::Closed) when this guest is.
    pub fn watch(&self) -> Result<Answer> {
        self.gather(WATCH, &[], Duration::MAX)
    }

    /// Leaves a meeting that is over for all if there is a `problem`. Whoever waits on another
    /// thread gets [`Error::Closed`](crate::Error::Closed).
    pub fn leave(&self, problem: Option<&str>) {
        let sent = match problem {
            Some(why) => self.0.send(FAIL, 0, &[why.as_bytes()]),
            None => self.0.send(GATHER, END, &[]),
        };
        // A host that is gone needs no news.
        let _ = sent.and_then(|pending| pending.wait(LEAVE_LIMIT));
        self.0.close();
    }
}
