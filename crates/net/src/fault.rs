//! Faults on purpose: a stream that cuts, chops, delays or damages what passes through it.
//!
//! Give a wrapper to [`ClientOptions::wrap`](crate::ClientOptions::wrap) or
//! [`ServerOptions::wrap`](crate::ServerOptions::wrap); it sees every new connection.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::stream::{Stream, Wait};
use crate::tls::Session;

/// Changes a new connection before it is used.
pub type Wrap = Arc<dyn Fn(Box<dyn Stream>) -> Box<dyn Stream> + Send + Sync>;

/// What goes wrong on one connection. The default is nothing.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Cut the connection when this many bytes have been written; they still arrive.
    pub cut_after_written: Option<u64>,
    /// Cut the connection when this many bytes have been read.
    pub cut_after_read: Option<u64>,
    /// Flip the lowest bit of the byte written at this position.
    pub flip_written_at: Option<u64>,
    /// Pass on at most this many bytes per read and write.
    pub chop: Option<usize>,
    /// Sleep before each read and write.
    pub delay: Option<Duration>,
}

impl Faults {
    /// `stream` with these faults.
    pub fn on(self, stream: Box<dyn Stream>) -> Box<dyn Stream> {
        Box::new(Faulty {
            stream,
            faults: self,
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }
}

#[derive(Debug)]
struct Faulty {
    stream: Box<dyn Stream>,
    faults: Faults,
    read: AtomicU64,
    written: AtomicU64,
}

impl Faulty {
    /// How many of `wanted` bytes may pass, or the cut.
    fn allowed(&self, wanted: usize, done: u64, cut_after: Option<u64>) -> io::Result<usize> {
        if let Some(delay) = self.faults.delay {
            std::thread::sleep(delay);
        }
        let wanted = wanted.min(self.faults.chop.unwrap_or(usize::MAX));
        let Some(limit) = cut_after else { return Ok(wanted) };
        if done >= limit {
            self.stream.shutdown(Shutdown::Both);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(wanted.min(usize::try_from(limit - done).unwrap_or(usize::MAX)))
    }
}

impl Stream for Faulty {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let done = self.read.load(Ordering::Relaxed);
        let n = self.allowed(buf.len(), done, self.faults.cut_after_read)?;
        let n = self.stream.read(&mut buf[..n])?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        let done = self.written.load(Ordering::Relaxed);
        let total = bufs.iter().map(|buf| buf.len()).sum();
        let n = self.allowed(total, done, self.faults.cut_after_written)?;
        let mut bytes = Vec::with_capacity(n);
        for buf in bufs {
            bytes.extend_from_slice(&buf[..buf.len().min(n - bytes.len())]);
        }
        if let Some(at) = self.faults.flip_written_at
            && let Some(byte) = at.checked_sub(done).and_then(|at| bytes.get_mut(at as usize))
        {
            *byte ^= 1;
        }
        let n = self.stream.write(&[IoSlice::new(&bytes)], wait)?;
        self.written.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(limit)
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_write_timeout(limit)
    }

    fn shutdown(&self, how: Shutdown) {
        self.stream.shutdown(how);
    }

    fn write_with_file(&self, frame: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
        let done = self.written.load(Ordering::Relaxed);
        // Never a part of it: the bytes that a cut allows are counted whole.
        self.allowed(frame.len(), done, self.faults.cut_after_written)?;
        self.stream.write_with_file(frame, file)?;
        self.written.fetch_add(frame.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn take_file(&self) -> Option<OwnedFd> {
        self.stream.take_file()
    }

    fn peer(&self) -> String {
        self.stream.peer()
    }

    fn transport(&self) -> &'static str {
        self.stream.transport()
    }

    fn is_local(&self) -> bool {
        self.stream.is_local()
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.stream.session()
    }
}
