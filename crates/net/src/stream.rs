//! A connected byte stream, whatever carries it: one trait, with TCP and Unix sockets behind it.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::sync::lock;
use crate::tls::Session;

/// A connected, ordered, reliable byte stream that one thread reads while others write.
///
/// Implementations need no buffering and no framing of their own. A write may take fewer bytes than
/// it was given.
pub trait Stream: Send + Sync + fmt::Debug {
    /// Reads what is there, at least one byte; 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` when the read timeout passed with nothing to read.
    fn read(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes some of `bufs`, in order.
    ///
    /// # Errors
    /// `WouldBlock` when nothing can be taken at once ([`Wait::No`]) or within the write timeout.
    fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize>;

    /// Longest that a read waits.
    ///
    /// # Errors
    /// What the system says.
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Longest that a write with [`Wait::Yes`] waits for the first byte to be taken.
    ///
    /// # Errors
    /// What the system says.
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Ends one or both directions and wakes threads that are blocked in it.
    fn shutdown(&self, how: Shutdown);

    /// Writes a short frame and passes the file on to the process that reads it.
    ///
    /// # Errors
    /// `Unsupported` where files cannot be passed on; then nothing was written.
    fn write_with_file(&self, frame: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
        let _ = (frame, file);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The file that came with bytes which have been read, if one did.
    fn take_file(&self) -> Option<OwnedFd> {
        None
    }

    /// What the far end is called in logs.
    fn peer(&self) -> String;

    /// `"tcp"`, `"tls"`, `"unix"` or `"memory"`.
    fn transport(&self) -> &'static str;

    /// Whether both ends are on one machine, so that nobody in between can read along.
    fn is_local(&self) -> bool;

    /// What encrypts it, if something does.
    fn session(&self) -> Option<Arc<Session>> {
        None
    }
}

/// Whether a write may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until some bytes are taken or the write timeout passes.
    Yes,
    /// Not at all.
    No,
}

/// A TCP connection. It remembers its peer: the system forgets the address of one that is gone.
#[derive(Debug)]
pub(crate) struct Tcp {
    stream: TcpStream,
    peer: SocketAddr,
    local: bool,
}

impl Tcp {
    /// Buffer sizes are left to the kernel: fixed ones of 1 MiB switch its tuning off and were
    /// level for pulls and up to twice slower for large pushes.
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Tcp> {
        stream.set_nodelay(true)?;
        let (here, there) = (stream.local_addr()?.ip().to_canonical(), peer.ip().to_canonical());
        // The kernel drops packets from outside that claim to come from an address of its own.
        let local = here == there || (here.is_loopback() && there.is_loopback());
        Ok(Tcp { stream, peer, local })
    }
}

impl Stream for Tcp {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(buf)
    }

    fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        send(&self.stream, bufs, wait, &mut SendAncillaryBuffer::default())
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(limit)
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_write_timeout(limit)
    }

    fn shutdown(&self, how: Shutdown) {
        // Fails only when the connection is gone already.
        let _ = self.stream.shutdown(how);
    }

    fn peer(&self) -> String {
        self.peer.to_string()
    }

    fn transport(&self) -> &'static str {
        "tcp"
    }

    fn is_local(&self) -> bool {
        self.local
    }
}

/// A connection over a Unix socket.
#[derive(Debug)]
pub(crate) struct Unix {
    stream: UnixStream,
    /// The last one that the other end passed on.
    file: Mutex<Option<OwnedFd>>,
}

impl Unix {
    /// One that takes a push of some megabytes at once, as far as the system allows: its own
    /// buffers are so small that the sender would wait for the reader several times per request.
    pub(crate) fn new(stream: UnixStream) -> Unix {
        const ROOM: usize = 4 << 20;
        // Where it is not allowed, the system takes its limit.
        let _ = set_socket_send_buffer_size(&stream, ROOM);
        Unix { stream, file: Mutex::default() }
    }
}

impl Stream for Unix {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let bufs = &mut [IoSliceMut::new(buf)];
        let n = recvmsg(&self.stream, bufs, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                *lock(&self.file) = files.last();
            }
        }
        Ok(n)
    }

    fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        send(&self.stream, bufs, wait, &mut SendAncillaryBuffer::default())
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(limit)
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_write_timeout(limit)
    }

    fn shutdown(&self, how: Shutdown) {
        let _ = self.stream.shutdown(how);
    }

    fn write_with_file(&self, frame: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        if !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::Error::other("no room for a file"));
        }
        let n = send(&self.stream, &[IoSlice::new(frame)], Wait::Yes, &mut control)?;
        // The system takes so few bytes at once.
        if n == frame.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn take_file(&self) -> Option<OwnedFd> {
        lock(&self.file).take()
    }

    fn peer(&self) -> String {
        "same host".to_owned()
    }

    fn transport(&self) -> &'static str {
        "unix"
    }

    fn is_local(&self) -> bool {
        true
    }
}

/// A stream over a socket of the caller, which may keep a clone of it.
///
/// # Errors
/// If it is not connected.
pub fn over_tcp(stream: TcpStream) -> io::Result<Arc<dyn Stream>> {
    let peer = stream.peer_addr()?;
    Ok(Arc::new(Tcp::new(stream, peer)?))
}

/// A stream over a socket of the caller, which may keep a clone of it.
pub fn over_unix(stream: UnixStream) -> Arc<dyn Stream> {
    Arc::new(Unix { stream, file: Mutex::default() })
}

/// `sendmsg` rather than `writev`: it takes flags, so that one call need not block and none raises
/// SIGPIPE in a host program that did not ask for that.
fn send(
    socket: impl AsFd,
    bufs: &[IoSlice<'_>],
    wait: Wait,
    control: &mut SendAncillaryBuffer<'_, '_, '_>,
) -> io::Result<usize> {
    /// The system takes 1,024 buffers a call.
    const MAX_BUFFERS: usize = 1024;
    let mut flags = SendFlags::empty();
    #[cfg(target_os = "linux")]
    {
        flags |= SendFlags::NOSIGNAL;
    }
    if wait == Wait::No {
        flags |= SendFlags::DONTWAIT;
    }
    let bufs = &bufs[..bufs.len().min(MAX_BUFFERS)];
    Ok(sendmsg(socket, bufs, control, flags)?)
}

/// Writes all of `bufs`. When the write timeout passes without progress, `stalled` decides whether
/// to continue.
///
/// After an error some bytes may have been sent: nothing else may be written to the stream.
pub(crate) fn write_all(
    stream: &dyn Stream,
    mut bufs: &mut [IoSlice<'_>],
    mut stalled: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    IoSlice::advance_slices(&mut bufs, 0);
    while !bufs.is_empty() {
        match stream.write(bufs, Wait::Yes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut bufs, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if is_timeout(&e) => stalled()?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes as much of `bufs` as the stream takes without blocking, and leaves the rest in `bufs`.
pub(crate) fn write_some(stream: &dyn Stream, bufs: &mut &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(bufs, 0);
    while !bufs.is_empty() {
        match stream.write(bufs, Wait::No) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(bufs, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if is_timeout(&e) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
