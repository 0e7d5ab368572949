//! Links over messages of MPI. A stream is divided into messages of at most [`CHUNK`] bytes;
//! between two members they arrive in the order in which they were sent.
//!
//! All calls return at once. Sends are synchronous in the sense of MPI: one is complete when the
//! receiver has taken it, so that no more than [`DEPTH`] messages per stream are ever in flight.
#![expect(
    unsafe_code,
    reason = "calls of the MPI library; every block says why its arguments are valid"
)]

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpi::ffi;
use rustix::event::{PollFd, PollFlags};

use crate::mpi::Running;
use crate::patience::Patience;
use crate::socket::{ReadOutcome, poll_for};

use super::Links;

/// Bytes of a message at most.
const CHUNK: usize = 128 << 10;
/// Messages of one stream in flight at a time.
const DEPTH: usize = 4;
/// MPI wakes nobody: between looks at it, a rank that has waited for a while sleeps so long.
const NAP: Duration = Duration::from_micros(50);
/// How long the end of a group waits for its last messages to be taken.
const LINGER: Duration = Duration::from_secs(10);

/// One stream each way with every member; none with this rank itself.
pub(crate) struct Messages {
    mpi: Arc<Running>,
    tag: c_int,
    peers: Vec<Option<Peer>>,
    patience: Patience,
}

struct Peer {
    /// In the world of MPI, which is the job.
    rank: c_int,
    sending: VecDeque<Message>,
    /// Buffers of completed sends.
    spare: Vec<Box<[u8]>>,
    /// Always [`DEPTH`] of them; the first is the next to come.
    receiving: VecDeque<Message>,
    /// Bytes of the first that have come, and how many of them have been read.
    come: usize,
    read: usize,
}

/// A message in flight, with the buffer that MPI reads or writes.
struct Message {
    request: ffi::MPI_Request,
    buffer: Box<[u8]>,
    /// MPI is done with it.
    complete: bool,
}

impl Drop for Message {
    /// MPI may use the buffer of a message in flight for as long as the process lives.
    fn drop(&mut self) {
        if !self.complete {
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
    }
}

// SAFETY: a request belongs to no thread; MPI is called under the lock of `Running::calls`.
unsafe impl Send for Message {}

/// Errors are returned, not fatal as they are by default.
pub(crate) fn return_errors() -> io::Result<()> {
    // SAFETY: MPI is running, and both handles are predefined.
    done(unsafe { ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN) })
}

/// What MPI says of a call.
fn done(code: c_int) -> io::Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut len = 0;
    // SAFETY: the buffer has the length that MPI asks for.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut len) };
    let text = &text[..usize::try_from(len).unwrap_or(0).min(text.len())];
    Err(io::Error::other(String::from_utf8_lossy(text).into_owned()))
}

/// The largest tag.
fn largest_tag() -> io::Result<c_int> {
    let mut value: *mut c_void = std::ptr::null_mut();
    let mut found = 0;
    // SAFETY: this attribute is a pointer to an int, written to `value`.
    done(unsafe {
        ffi::MPI_Comm_get_attr(
            ffi::RSMPI_COMM_WORLD,
            ffi::MPI_TAG_UB as c_int,
            (&raw mut value).cast(),
            &mut found,
        )
    })?;
    if found == 0 || value.is_null() {
        return Err(io::Error::other("the largest tag is unknown"));
    }
    // SAFETY: see above; the int lives as long as MPI.
    Ok(unsafe { *value.cast::<c_int>() })
}

impl Message {
    /// Offers room for a message.
    fn receive(peer: c_int, tag: c_int, mut buffer: Box<[u8]>) -> io::Result<Message> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: the buffer has this length, and stays where it is until the request is complete:
        // `Message` owns both, and frees the buffer only when MPI is done with it.
        done(unsafe {
            ffi::MPI_Irecv(
                buffer.as_mut_ptr().cast(),
                buffer.len() as c_int,
                ffi::RSMPI_UINT8_T,
                peer,
                tag,
                ffi::RSMPI_COMM_WORLD,
                request.as_mut_ptr(),
            )
        })?;
        // SAFETY: written by the call, which has succeeded.
        Ok(Message { request: unsafe { request.assume_init() }, buffer, complete: false })
    }

    /// Sends the first `len` bytes of `buffer`.
    fn send(peer: c_int, tag: c_int, buffer: Box<[u8]>, len: usize) -> io::Result<Message> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: as in `receive`; `len` bytes were written to the buffer, so it has them.
        done(unsafe {
            ffi::MPI_Issend(
                buffer[..len].as_ptr().cast(),
                len as c_int,
                ffi::RSMPI_UINT8_T,
                peer,
                tag,
                ffi::RSMPI_COMM_WORLD,
                request.as_mut_ptr(),
            )
        })?;
        // SAFETY: written by the call, which has succeeded.
        Ok(Message { request: unsafe { request.assume_init() }, buffer, complete: false })
    }

    /// Whether MPI is done with it, and how many bytes have come if it is a receive.
    fn test(&mut self) -> io::Result<Option<usize>> {
        let (mut flag, mut count) = (0, 0);
        let mut status = MaybeUninit::uninit();
        // SAFETY: a request of this process. Once complete it is null, and not tested again.
        done(unsafe { ffi::MPI_Test(&mut self.request, &mut flag, status.as_mut_ptr()) })?;
        if flag == 0 {
            return Ok(None);
        }
        self.complete = true;
        // SAFETY: a status is written when the flag is set.
        done(unsafe { ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &mut count) })?;
        Ok(Some(usize::try_from(count).unwrap_or(0)))
    }

    /// The buffer of a complete message, to be used again.
    fn into_buffer(mut self) -> Box<[u8]> {
        std::mem::take(&mut self.buffer)
    }

    /// Takes back a receive that nothing was sent for.
    fn cancel(mut self) -> io::Result<()> {
        if self.test()?.is_some() {
            return Ok(());
        }
        // SAFETY: an active receive of this process; it completes, cancelled or not.
        done(unsafe { ffi::MPI_Cancel(&mut self.request) })?;
        // SAFETY: the same; the status is not wanted.
        done(unsafe { ffi::MPI_Wait(&mut self.request, ffi::RSMPI_STATUS_IGNORE) })?;
        self.complete = true;
        Ok(())
    }
}

impl Peer {
    fn open(rank: usize, tag: c_int) -> io::Result<Peer> {
        let rank = rank as c_int;
        let receive = |_| Message::receive(rank, tag, buffer());
        let receiving = (0..DEPTH).map(receive).collect::<io::Result<_>>()?;
        let (sending, spare) = (VecDeque::new(), Vec::new());
        Ok(Peer { rank, sending, spare, receiving, come: 0, read: 0 })
    }

    /// Whether a message can be sent.
    fn has_room(&mut self) -> io::Result<bool> {
        while let Some(oldest) = self.sending.front_mut() {
            if oldest.test()?.is_none() {
                break;
            }
            self.spare.extend(self.sending.pop_front().map(Message::into_buffer));
        }
        Ok(self.sending.len() < DEPTH)
    }

    /// Whether there is something to read.
    fn has_bytes(&mut self) -> io::Result<bool> {
        if self.come == 0
            && let Some(next) = self.receiving.front_mut()
            && let Some(n) = next.test()?
        {
            self.come = n;
        }
        Ok(self.come > 0)
    }

    fn write(&mut self, tag: c_int, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut sent = 0;
        while sent < total && self.has_room()? {
            let mut message = self.spare.pop().unwrap_or_else(buffer);
            let len = fill(&mut message, bufs, sent);
            self.sending.push_back(Message::send(self.rank, tag, message, len)?);
            sent += len;
        }
        Ok(sent)
    }

    fn read(&mut self, tag: c_int, buf: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < buf.len() && self.has_bytes()? {
            let Some(message) = self.receiving.front() else { break };
            let n = (self.come - self.read).min(buf.len() - got);
            buf[got..got + n].copy_from_slice(&message.buffer[self.read..self.read + n]);
            got += n;
            self.read += n;
            if self.read == self.come {
                (self.read, self.come) = (0, 0);
                let emptied = self.receiving.pop_front().map_or_else(buffer, Message::into_buffer);
                self.receiving.push_back(Message::receive(self.rank, tag, emptied)?);
            }
        }
        Ok(got)
    }

    /// Takes back what was not used; whether everything that was sent was taken.
    fn close(mut self) -> bool {
        let taken = self.has_room().is_ok() && self.sending.is_empty();
        if self.come > 0 {
            // The first is complete already.
            self.receiving.pop_front();
        }
        // Youngest first, so that none of them takes the message of one before it.
        let cancelled = self.receiving.drain(..).rev().map(Message::cancel);
        cancelled.fold(taken, |fine, outcome| fine && outcome.is_ok())
    }
}

fn buffer() -> Box<[u8]> {
    vec![0; CHUNK].into_boxed_slice()
}

/// Copies what fits of `bufs`, from byte `at` on; how much that is.
fn fill(message: &mut [u8], bufs: &[IoSlice<'_>], mut at: usize) -> usize {
    let mut len = 0;
    for buf in bufs {
        let rest = &buf[at.min(buf.len())..];
        at = at.saturating_sub(buf.len());
        let n = rest.len().min(message.len() - len);
        message[len..len + n].copy_from_slice(&rest[..n]);
        len += n;
    }
    len
}

impl Messages {
    /// Streams of the group `id` with `members`, which are ranks of the job and of MPI.
    pub(crate) fn open(mpi: Arc<Running>, id: u64, members: &[usize]) -> io::Result<Messages> {
        let mut tags = mpi.calls();
        let tag = (id % (largest_tag()? as u64 + 1)) as c_int;
        if !tags.insert(tag) {
            return Err(io::Error::other(format!("two groups have the same tag {tag}")));
        }
        let open = |rank: &usize| match *rank == mpi.rank() {
            true => Ok(None),
            false => Peer::open(*rank, tag).map(Some),
        };
        let peers = members.iter().map(open).collect::<io::Result<_>>()?;
        drop(tags);
        let patience = Patience::for_ranks(members.len()).with_slow_looks();
        Ok(Messages { mpi, tag, peers, patience })
    }

    fn peer(peers: &mut [Option<Peer>], rank: usize) -> io::Result<&mut Peer> {
        peers[rank].as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Waits until all that was written is taken, for a while.
    fn linger(&mut self) {
        let deadline = Instant::now() + LINGER;
        let Messages { mpi, peers, .. } = self;
        let mut under_way = || {
            let _calls = mpi.calls();
            let waits = |peer: &mut Peer| peer.has_room().is_ok() && !peer.sending.is_empty();
            peers.iter_mut().flatten().fold(false, |any, peer| any | waits(peer))
        };
        while under_way() && Instant::now() < deadline {
            std::thread::sleep(NAP);
        }
    }
}

impl Links for Messages {
    fn try_write(&mut self, to: usize, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let _calls = self.mpi.calls();
        Messages::peer(&mut self.peers, to)?.write(self.tag, bufs)
    }

    fn try_read(&mut self, from: usize, bufs: &mut [IoSliceMut<'_>]) -> io::Result<ReadOutcome> {
        let _calls = self.mpi.calls();
        let peer = Messages::peer(&mut self.peers, from)?;
        let (mut got, mut wanted) = (0, 0);
        for buf in bufs.iter_mut() {
            got += peer.read(self.tag, buf)?;
            wanted += buf.len();
            if got < wanted {
                break;
            }
        }
        Ok(if got == 0 && wanted > 0 { ReadOutcome::Nothing } else { ReadOutcome::Bytes(got) })
    }

    fn wait(
        &mut self,
        reads: &[usize],
        writes: &[usize],
        alarm: BorrowedFd<'_>,
        limit: Duration,
    ) -> io::Result<()> {
        let Messages { mpi, peers, patience, .. } = self;
        // An error counts as news: the next read or write meets it.
        let mut news = || {
            let _calls = mpi.calls();
            let mut any = |ranks: &[usize], what: fn(&mut Peer) -> io::Result<bool>| {
                ranks.iter().any(|at| Messages::peer(peers, *at).and_then(what).unwrap_or(true))
            };
            any(reads, Peer::has_bytes) || any(writes, Peer::has_room)
        };
        if !patience.look(&mut news) {
            poll_for(&mut [PollFd::from_borrowed_fd(alarm, PollFlags::IN)], limit.min(NAP))?;
        }
        Ok(())
    }

    fn transport(&self) -> String {
        "MPI".to_owned()
    }

    fn end(&mut self, failed: bool) {
        if !failed {
            self.linger();
        }
        let mut tags = self.mpi.calls();
        for peer in self.peers.drain(..).flatten() {
            if failed || !peer.close() {
                self.mpi.spoil();
            }
        }
        tags.remove(&self.tag);
    }
}
