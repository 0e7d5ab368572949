//! How the members of a group on one machine come to map the same memory: the first one makes it
//! and passes the descriptor over the sockets that they share.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::socket::{Socket, poll_for};

use super::region::Region;

const FINE: u8 = 1;
const FAILED: u8 = 2;

/// What came of it, the same on all members: the memory, or why there is none.
pub(crate) type Shared = Result<Region, String>;

/// Shares memory among the members connected by `sockets`; all call it.
///
/// # Errors
/// When a member has gone or does not answer until `deadline`.
pub(crate) fn share(
    rank: usize,
    sockets: &[Option<Socket>],
    deadline: Instant,
) -> Result<Shared, (usize, io::Error)> {
    if rank == 0 { lead(sockets, deadline) } else { follow(sockets, deadline) }
}

fn lead(sockets: &[Option<Socket>], deadline: Instant) -> Result<Shared, (usize, io::Error)> {
    let size = sockets.len();
    let made = match sockets.iter().flatten().all(|socket| matches!(socket, Socket::Unix(_))) {
        true => Region::create(size).and_then(|file| Ok((Region::map(&file, size)?, file))),
        false => Err(io::Error::other("not all ranks are in one container")),
    };
    let mut problem = made.as_ref().err().map(|e| format!("cannot make shared memory: {e}"));
    let others = || sockets.iter().enumerate().filter_map(|(at, s)| Some((at, s.as_ref()?)));
    for (member, socket) in others() {
        let file = made.as_ref().ok().map(|(_, file)| file);
        send_file(socket, file, deadline).map_err(|e| (member, e))?;
    }
    for (member, socket) in others() {
        let mut answer = [0];
        socket.read_exact(&mut answer, deadline).map_err(|e| (member, e))?;
        if answer[0] != FINE {
            problem.get_or_insert_with(|| format!("member {member} cannot map shared memory"));
        }
    }
    let verdict = if problem.is_none() { FINE } else { FAILED };
    for (member, socket) in others() {
        socket.write_all(&[verdict], deadline).map_err(|e| (member, e))?;
    }
    Ok(match (made, problem) {
        (Ok((region, _)), None) => Ok(region),
        (_, problem) => Err(problem.unwrap_or_default()),
    })
}

fn follow(sockets: &[Option<Socket>], deadline: Instant) -> Result<Shared, (usize, io::Error)> {
    let Some(leader) = &sockets[0] else { return Err((0, io::ErrorKind::NotConnected.into())) };
    let file = receive_file(leader, deadline).map_err(|e| (0, e))?;
    let region = match file {
        None => Err("the first member cannot make shared memory".to_owned()),
        Some(file) => Region::map(file, sockets.len())
            .map_err(|e| format!("cannot map the shared memory of the first member: {e}")),
    };
    let answer = if region.is_ok() { FINE } else { FAILED };
    leader.write_all(&[answer], deadline).map_err(|e| (0, e))?;
    let mut verdict = [0];
    leader.read_exact(&mut verdict, deadline).map_err(|e| (0, e))?;
    Ok(match region {
        Ok(_) if verdict[0] != FINE => Err("another member cannot map shared memory".to_owned()),
        other => other,
    })
}

/// One byte, with the descriptor attached if there is one.
fn send_file(socket: &Socket, file: Option<&OwnedFd>, deadline: Instant) -> io::Result<()> {
    let Some(file) = file else { return socket.write_all(&[FAILED], deadline) };
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut attached = SendAncillaryBuffer::new(&mut space);
        attached.push(SendAncillaryMessage::ScmRights(&files));
        let byte = [FINE];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(socket, &[IoSlice::new(&byte)], &mut attached, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::AGAIN | Errno::INTR) => wait(socket, PollFlags::OUT, deadline)?,
            Err(e) => return Err(e.into()),
        }
    }
}

fn receive_file(socket: &Socket, deadline: Instant) -> io::Result<Option<OwnedFd>> {
    if !matches!(socket, Socket::Unix(_)) {
        // No file comes this way.
        return socket.read_exact(&mut [0], deadline).map(|()| None);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut attached = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut attached, flags) {
            Ok(message) if message.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                let file = attached.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut files) => files.next(),
                    _ => None,
                });
                return Ok(file);
            }
            Err(Errno::AGAIN | Errno::INTR) => wait(socket, PollFlags::IN, deadline)?,
            Err(e) => return Err(e.into()),
        }
    }
}

fn wait(socket: &Socket, what: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    poll_for(&mut [PollFd::new(socket, what)], left.min(Duration::from_secs(1))).map(|_| ())
}
