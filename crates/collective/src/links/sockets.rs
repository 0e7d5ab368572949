//! Links over one socket per peer: TCP with TLS between machines, Unix sockets within one.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::patience::Patience;
use crate::socket::{ReadOutcome, Socket, poll_for};

use super::Links;

/// One connected socket per member; none for this rank itself.
pub(crate) struct Sockets {
    sockets: Vec<Option<Socket>>,
    patience: Patience,
}

impl Sockets {
    pub(crate) fn new(sockets: Vec<Option<Socket>>) -> Sockets {
        let patience = Patience::for_ranks(sockets.len()).with_slow_looks();
        Sockets { sockets, patience }
    }

    fn to(&self, rank: usize) -> io::Result<&Socket> {
        self.sockets[rank].as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Links for Sockets {
    fn try_write(&mut self, to: usize, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.to(to)?.try_write(bufs)
    }

    fn try_read(&mut self, from: usize, bufs: &mut [IoSliceMut<'_>]) -> io::Result<ReadOutcome> {
        self.to(from)?.try_read(bufs)
    }

    fn wait(
        &mut self,
        reads: &[usize],
        writes: &[usize],
        alarm: BorrowedFd<'_>,
        limit: Duration,
    ) -> io::Result<()> {
        let Sockets { sockets, patience } = self;
        if reads.iter().any(|rank| sockets[*rank].as_ref().is_some_and(Socket::has_more)) {
            return Ok(());
        }
        let mut fds = Vec::with_capacity(1 + reads.len() + writes.len());
        fds.push(PollFd::from_borrowed_fd(alarm, PollFlags::IN));
        let wanted = reads.iter().map(|rank| (rank, PollFlags::IN));
        for (rank, what) in wanted.chain(writes.iter().map(|rank| (rank, PollFlags::OUT))) {
            let socket = sockets[*rank].as_ref().ok_or(io::ErrorKind::NotConnected)?;
            fds.push(PollFd::new(socket, what));
        }
        // Failures are polled for as well, so they end this too.
        let found = patience.look(|| poll_for(&mut fds, Duration::ZERO).is_ok_and(|n| n > 0));
        if !found {
            poll_for(&mut fds, limit)?;
        }
        Ok(())
    }

    fn transport(&self) -> String {
        let mut kinds: Vec<&str> = self.sockets.iter().flatten().map(Socket::transport).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(" and ") }
    }

    /// The kernel delivers what it has taken.
    fn end(&mut self, _failed: bool) {}
}
