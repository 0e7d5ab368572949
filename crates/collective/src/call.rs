//! One operation in flight: its header, its links, its deadline. Every wait of every algorithm is
//! [`Call::wait`], which notices failures, reports stalls and gives up in time.

use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use crate::config::Event;
use crate::error::{Absent, Error, Result, system};
use crate::fate::Fate;
use crate::header::{HEADER_LEN, Header};
use crate::links::{Links, ReadOutcome};
use crate::memory::{Memory, Use};
use crate::node::{Shared, Whereabouts};

/// What an algorithm works with.
pub(crate) struct Call<'a> {
    /// Of this member, in the group.
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) header: Header,
    links: &'a mut dyn Links,
    memory: Option<&'a mut Memory>,
    limits: Limits<'a>,
}

/// How long an operation may take, and whom it may ask when that is long.
pub(crate) struct Limits<'a> {
    pub(crate) fate: &'a Fate,
    /// The rank in the job of each member.
    pub(crate) members: &'a [usize],
    /// Who can ask other ranks what they do; nobody over MPI.
    pub(crate) node: Option<&'a Shared>,
    pub(crate) op_timeout: Duration,
    pub(crate) stall_after: Duration,
    pub(crate) started: Instant,
    /// When to ask where the others are: early once, for those that will never come, then when a
    /// stall is reported.
    pub(crate) look_at: Instant,
}

impl<'a> Limits<'a> {
    /// To be called between waits. `awaited` are members whose data is missing.
    pub(crate) fn check(&mut self, header: &Header, awaited: &[usize]) -> Result<Duration> {
        self.fate.check()?;
        let now = Instant::now();
        let waited = now - self.started;
        if waited >= self.op_timeout {
            let found = self.whereabouts(header, awaited)?;
            let what = header.to_string();
            return Err(Error::Timeout { what, waited, missing: found.missing });
        }
        if now >= self.look_at {
            let found = self.whereabouts(header, awaited)?;
            let stalled = waited >= self.stall_after;
            self.look_at = now + if stalled { self.stall_after } else { self.stall_after - waited };
            if let Some(node) = self.node.filter(|_| stalled) {
                let Whereabouts { waiting, missing, .. } = found;
                node.observe(&Event::Stalled {
                    what: header.to_string(),
                    waited,
                    waiting,
                    missing,
                });
            }
        }
        Ok((self.op_timeout - waited).min(self.look_at - now))
    }

    /// Asks where the others are.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when one of them will never come.
    fn whereabouts(&self, header: &Header, awaited: &[usize]) -> Result<Whereabouts> {
        let Some(node) = self.node else {
            let state = "its data has not come".to_owned();
            let absent = |at: &usize| Absent { rank: self.members[*at], state: state.clone() };
            let missing = awaited.iter().map(absent).collect();
            return Ok(Whereabouts { missing, ..Whereabouts::default() });
        };
        let mut found = node.inquire(header, self.members);
        match found.conflict.take() {
            Some((peer, theirs)) => {
                let (rank, ours) = (node.rank(), header.to_string());
                Err(Error::Mismatch { rank, ours, peer, theirs })
            }
            None => Ok(found),
        }
    }

    /// The error for members that say different things.
    pub(crate) fn mismatch(
        &self,
        rank: usize,
        ours: &Header,
        peer: usize,
        theirs: String,
    ) -> Error {
        Error::Mismatch {
            rank: self.members[rank],
            ours: ours.to_string(),
            peer: self.members[peer],
            theirs,
        }
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        rank: usize,
        header: Header,
        links: &'a mut dyn Links,
        memory: Option<&'a mut Memory>,
        limits: Limits<'a>,
    ) -> Call<'a> {
        Call { rank, size: limits.members.len(), header, links, memory, limits }
    }

    /// The shared memory of the group, if it has one.
    pub(crate) fn memory(&mut self) -> Option<Use<'_, 'a>> {
        let memory = self.memory.as_deref_mut()?;
        Some(Use { memory, header: self.header, limits: &mut self.limits })
    }

    /// All members but this one, the next one first: so that not all begin with the same.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank, self.size);
        (1..size).map(move |step| (rank + step) % size)
    }

    pub(crate) fn try_write(&mut self, to: usize, bufs: &[IoSlice<'_>]) -> Result<usize> {
        self.links.try_write(to, bufs).map_err(|error| self.broken(to, &error))
    }

    /// Reads what is there; 0 when nothing is.
    pub(crate) fn try_read(&mut self, from: usize, buf: &mut [u8]) -> Result<usize> {
        self.try_read_both(from, &mut [], buf)
    }

    /// Reads what is there into `first`, then into `second`; 0 when nothing is.
    pub(crate) fn try_read_both(
        &mut self,
        from: usize,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Result<usize> {
        if first.is_empty() && second.is_empty() {
            return Ok(0);
        }
        let mut bufs = [IoSliceMut::new(first), IoSliceMut::new(second)];
        match self.links.try_read(from, &mut bufs) {
            Ok(ReadOutcome::Bytes(n)) => Ok(n),
            Ok(ReadOutcome::Nothing) => Ok(0),
            Ok(ReadOutcome::End) => Err(self.broken(from, &io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.broken(from, &error)),
        }
    }

    /// Waits for one of the links; see [`Links::wait`].
    pub(crate) fn wait(&mut self, reads: &[usize], writes: &[usize]) -> Result<()> {
        let limit = self.limits.check(&self.header, reads)?;
        let alarm = self.limits.fate.alarm();
        self.links.wait(reads, writes, alarm, limit).map_err(|e| system("cannot wait", e))
    }

    /// Whether `theirs`, received from `peer`, belongs to this operation; its length.
    pub(crate) fn check(&self, peer: usize, theirs: &[u8; HEADER_LEN]) -> Result<usize> {
        match Header::decode(theirs) {
            Some(theirs) if self.header.agrees_with(&theirs) => Ok(theirs.len as usize),
            Some(theirs) => Err(self.mismatch(peer, theirs.to_string())),
            None => Err(self.mismatch(peer, "something unknown".to_owned())),
        }
    }

    fn mismatch(&self, peer: usize, theirs: String) -> Error {
        self.limits.mismatch(self.rank, &self.header, peer, theirs)
    }

    fn broken(&self, peer: usize, error: &io::Error) -> Error {
        let problem = match error.kind() {
            io::ErrorKind::UnexpectedEof => "its connection has ended".to_owned(),
            _ => error.to_string(),
        };
        self.limits.fate.explain_end(self.limits.members[peer], &problem, &self.header)
    }
}
