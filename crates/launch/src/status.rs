//! What the processes of a job report to their launcher, beside what they print.
//!
//! A datagram socket, whose name the launcher puts into `REGATTA_STATUS`. A program that does not
//! know about it loses nothing; a program that says something nobody hears continues.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use regatta_cluster::{Env, names};

/// Something a process says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The first training step is done.
    FirstStep,
    /// It has joined a job that would not take it back: starting it again is of no use.
    CannotResume,
}

impl Status {
    const ALL: [Status; 2] = [Status::FirstStep, Status::CannotResume];

    fn word(self) -> &'static str {
        match self {
            Status::FirstStep => "first-step",
            Status::CannotResume => "cannot-resume",
        }
    }
}

/// The process's end: says things to the launcher, if there is one.
pub struct Reporter(Option<(UnixDatagram, SocketAddr, String)>);

impl Reporter {
    /// Speaks for `name`, for example `worker 0`, to the launcher named in these variables.
    pub fn new(env: &Env, name: &str) -> Reporter {
        let connect = |socket: &str| {
            let sender = UnixDatagram::unbound().ok()?;
            sender.set_nonblocking(true).ok()?;
            Some((sender, address(socket).ok()?, name.to_string()))
        };
        Reporter(env.get(names::STATUS).and_then(connect))
    }

    /// Notifies the launcher.
    pub fn say(&self, status: Status) {
        if let Some((sender, address, name)) = &self.0 {
            // A launcher that is gone or busy is no reason to stop training.
            let _ = sender.send_to_addr(format!("{} {name}", status.word()).as_bytes(), address);
        }
    }
}

/// The launcher's end.
pub(crate) struct Listener {
    socket: UnixDatagram,
    name: String,
}

impl Listener {
    pub(crate) fn new(unique: &str) -> io::Result<Listener> {
        let name = format!("regatta-status-{unique}");
        Ok(Listener { socket: UnixDatagram::bind_addr(&address(&name)?)?, name })
    }

    /// The value of `REGATTA_STATUS` for children.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What came next: who says what. Nothing when [`end`](Listener::end) was called.
    pub(crate) fn next(&self) -> Option<(String, Status)> {
        let mut buffer = [0; 256];
        loop {
            let len = self.socket.recv(&mut buffer).ok()?;
            let text = str::from_utf8(&buffer[..len]).unwrap_or_default();
            if text == END {
                return None;
            }
            let (word, name) = text.split_once(' ').unwrap_or((text, ""));
            if let Some(status) = Status::ALL.into_iter().find(|s| s.word() == word) {
                return Some((name.to_string(), status));
            }
        }
    }

    /// Ends the loop around [`next`](Listener::next).
    pub(crate) fn end(name: &str) {
        if let (Ok(sender), Ok(address)) = (UnixDatagram::unbound(), address(name)) {
            let _ = sender.send_to_addr(END.as_bytes(), &address);
        }
    }
}

const END: &str = "end";

/// A name without a file, so that nothing is left behind.
#[cfg(target_os = "linux")]
fn address(name: &str) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_pathname(std::env::temp_dir().join(name))
}
