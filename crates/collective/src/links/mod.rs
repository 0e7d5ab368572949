//! Byte streams between the members of a group: one each way between every two, whatever carries
//! them. The algorithms see nothing else.

#[cfg(feature = "mpi")]
mod messages;
mod sockets;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[cfg(feature = "mpi")]
pub(crate) use messages::{Messages, return_errors};
pub(crate) use sockets::Sockets;

pub(crate) use crate::socket::ReadOutcome;

/// The streams of one member. Ranks are those of the group.
pub(crate) trait Links: Send {
    /// Takes what fits of `bufs` for `to`; 0 when nothing does.
    fn try_write(&mut self, to: usize, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads what is there from `from`, into one buffer after the other.
    fn try_read(&mut self, from: usize, bufs: &mut [IoSliceMut<'_>]) -> io::Result<ReadOutcome>;

    /// Waits until one of `reads` can be read, one of `writes` written, `alarm` is readable, or
    /// `limit` has passed. May return early.
    fn wait(
        &mut self,
        reads: &[usize],
        writes: &[usize],
        alarm: BorrowedFd<'_>,
        limit: Duration,
    ) -> io::Result<()>;

    /// What carries the bytes, for messages.
    fn transport(&self) -> String;

    /// The group ends, and nothing is written or read any more. What was written must still arrive,
    /// unless the group has `failed`.
    fn end(&mut self, failed: bool);
}
