//! A connected stream socket, TCP or Unix, that is read and written without blocking; and waits on
//! several of them.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_net::tls::Session;
use regatta_net::{Stream, over_tcp, over_unix};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};

/// One end of a connection to another rank.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    /// Between machines.
    Tls(TcpStream, Arc<Session>),
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) | Socket::Tls(stream, _) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

/// What came of a read that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    Bytes(usize),
    Nothing,
    End,
}

impl Socket {
    /// Small messages must not wait for more: every operation is a request that somebody waits for.
    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        if stream.local_addr()?.ip() == stream.peer_addr()?.ip() {
            // Within a machine nothing is congested, and senders that pace themselves (BBR) only
            // lose time. Reno does not, and is always there; without it the stream still works.
            let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "reno");
        }
        Ok(Socket::Tcp(stream))
    }

    /// The same connection after its handshake, which may have agreed on encryption.
    pub(crate) fn encrypted(self, session: Option<Arc<Session>>) -> Socket {
        match (self, session) {
            (Socket::Tcp(stream), Some(session)) => Socket::Tls(stream, session),
            (socket, _) => socket,
        }
    }

    pub(crate) fn transport(&self) -> &'static str {
        match self {
            Socket::Tcp(_) => "TCP",
            Socket::Tls(..) => "TLS",
            Socket::Unix(_) => "Unix sockets",
        }
    }

    /// What the far end is called in messages.
    pub(crate) fn address(&self) -> String {
        match self {
            Socket::Tcp(stream) | Socket::Tls(stream, _) => stream
                .peer_addr()
                .map_or_else(|_| "a closed connection".to_owned(), |a| a.to_string()),
            Socket::Unix(_) => "this machine".to_owned(),
        }
    }

    /// Reads what is there, into one buffer after the other. They have room for a byte at least.
    pub(crate) fn try_read(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<ReadOutcome> {
        let read = match self {
            Socket::Tls(_, session) => self.read_decrypted(session, bufs),
            _ => self.read_raw(bufs),
        };
        match read {
            Ok(0) => Ok(ReadOutcome::End),
            Ok(n) => Ok(ReadOutcome::Bytes(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(ReadOutcome::Nothing),
            Err(e) => Err(e),
        }
    }

    fn read_raw(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            let mut control = RecvAncillaryBuffer::default();
            match recvmsg(self, bufs, &mut control, RecvFlags::DONTWAIT) {
                Ok(message) => return Ok(message.bytes),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn read_decrypted(&self, session: &Session, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
            if done > 0 && !session.has_more() {
                break;
            }
            match session.read(buf, |raw| self.read_raw(&mut [IoSliceMut::new(raw)])) {
                Ok(n) if n == buf.len() => done += n,
                Ok(n) => return Ok(done + n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Whether something may be read although nothing comes over the network.
    pub(crate) fn has_more(&self) -> bool {
        matches!(self, Socket::Tls(_, session) if session.has_more())
    }

    /// Writes what fits; 0 when nothing does. Then the same bytes must come again.
    pub(crate) fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tls(_, session) => session.write(bufs, |records| self.write_raw(records)),
            _ => self.write_raw(bufs),
        }
    }

    fn write_raw(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            return match sendmsg(self, bufs, &mut SendAncillaryBuffer::default(), flags) {
                Ok(n) => Ok(n),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(0),
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Reads exactly `buf`, until `deadline`.
    pub(crate) fn read_exact(&self, mut buf: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !buf.is_empty() {
            match self.try_read(&mut [IoSliceMut::new(buf)])? {
                ReadOutcome::Bytes(n) => buf = &mut buf[n..],
                ReadOutcome::Nothing => self.wait(PollFlags::IN, deadline)?,
                ReadOutcome::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`, until `deadline`.
    pub(crate) fn write_all(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(&[IoSlice::new(bytes)])? {
                0 => self.wait(PollFlags::OUT, deadline)?,
                n => bytes = &bytes[n..],
            }
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        poll_for(&mut [PollFd::new(self, what)], left).map(|_| ())
    }

    /// The same connection, for its handshake: before that it is not encrypted.
    pub(crate) fn stream(&self) -> io::Result<Arc<dyn Stream>> {
        match self {
            Socket::Tcp(stream) | Socket::Tls(stream, _) => over_tcp(stream.try_clone()?),
            Socket::Unix(stream) => Ok(over_unix(stream.try_clone()?)),
        }
    }

    /// Sends nothing more.
    pub(crate) fn shutdown_write(&self) {
        if let Socket::Tcp(stream) | Socket::Tls(stream, _) = self {
            // Fails only when the connection is gone already.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// Reads and forgets what comes over TCP until the far end has closed too, or until `deadline`.
    pub(crate) fn drain(&self, deadline: Instant) {
        let mut scratch = [0; 4096];
        if matches!(self, Socket::Unix(_)) {
            return;
        }
        loop {
            match self.read_raw(&mut [IoSliceMut::new(&mut scratch)]) {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if self.wait(PollFlags::IN, deadline).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    pub(crate) fn shutdown(&self) {
        // Fails only when the connection is gone already.
        let _ = match self {
            Socket::Tcp(stream) | Socket::Tls(stream, _) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// Waits until something happens on `fds`, or for `limit`; says on how many it did.
pub(crate) fn poll_for(fds: &mut [PollFd<'_>], limit: Duration) -> io::Result<usize> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(fds, Some(&limit)) {
        Ok(n) => Ok(n),
        Err(Errno::INTR) => Ok(0),
        Err(e) => Err(e.into()),
    }
}
