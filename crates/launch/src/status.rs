//! What the processes of a job report to their launcher, beside what they print.
//!
//! A datagram socket, whose name the launcher puts into `REGATTA_STATUS`. Any user of the machine
//! can send to it, so a secret stands beside the name, and a message without it is ignored. A
//! program that does not know about the socket loses nothing; a program that says something nobody
//! hears continues.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use regatta_cluster::{Env, names};
use serde::{Deserialize, Serialize};

/// A launcher that does not read its messages is waited for this long.
const SEND_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of a message.
const MESSAGE_LIMIT: usize = 4096;
/// Characters of a reason; with escapes and the rest it fits into a message.
const REASON_LIMIT: usize = 500;

/// Something a process reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The first training step is done.
    FirstStep,
    /// It has joined a job that would not take it back: starting it again is of no use.
    CannotResume,
    /// A server has lost this worker, whose process may still be there, stalled or cut off.
    LostWorker {
        /// Its number.
        worker: usize,
        /// How the server noticed.
        reason: String,
    },
    /// A worker that was lost takes part again.
    RejoinedWorker {
        /// Its number.
        worker: usize,
    },
}

#[derive(Serialize, Deserialize)]
struct Message {
    secret: String,
    /// Who speaks, for example `worker 0`.
    from: String,
    status: Status,
}

/// The process's end: says things to the launcher, if there is one.
pub struct Reporter(Option<Sender>);

struct Sender {
    socket: UnixDatagram,
    to: SocketAddr,
    secret: String,
    from: String,
}

impl Reporter {
    /// Speaks for `name`, for example `worker 0`, to the launcher named in these variables.
    pub fn new(env: &Env, name: &str) -> Reporter {
        Reporter(env.get(names::STATUS).and_then(|variable| Sender::new(variable, name)))
    }

    /// Notifies the launcher.
    pub fn say(&self, status: Status) {
        let Some(Sender { socket, to, secret, from }) = &self.0 else { return };
        let status = match status {
            Status::LostWorker { worker, reason } => {
                Status::LostWorker { worker, reason: reason.chars().take(REASON_LIMIT).collect() }
            }
            status => status,
        };
        let message = Message { secret: secret.clone(), from: from.clone(), status };
        // A launcher that is gone or hangs is no reason to stop training.
        if let Ok(bytes) = serde_json::to_vec(&message) {
            let _ = socket.send_to_addr(&bytes, to);
        }
    }
}

impl Sender {
    fn new(variable: &str, from: &str) -> Option<Sender> {
        let (to, secret) = variable.split_once(' ')?;
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_write_timeout(Some(SEND_LIMIT)).ok()?;
        let (to, secret, from) = (address(to).ok()?, secret.to_string(), from.to_string());
        Some(Sender { socket, to, secret, from })
    }
}

/// The launcher's end.
pub(crate) struct Listener {
    socket: UnixDatagram,
    name: String,
    secret: String,
}

/// What a [`Listener`] hears.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Who says what.
    Status(String, Status),
    /// Somebody who does not belong to the job says something.
    Stranger,
    /// [`end`](Listener::end) was called.
    End,
}

impl Listener {
    /// Listens at a name that nobody else has, to those who know `secret`.
    pub(crate) fn new(unique: &str, secret: String) -> io::Result<Listener> {
        let name = format!("regatta-status-{unique}");
        Ok(Listener { socket: UnixDatagram::bind_addr(&address(&name)?)?, name, secret })
    }

    /// The name of the socket.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The value of `REGATTA_STATUS` for children.
    pub(crate) fn variable(&self) -> String {
        format!("{} {}", self.name, self.secret)
    }

    /// What came next.
    pub(crate) fn next(&self) -> io::Result<Heard> {
        let mut buffer = [0; MESSAGE_LIMIT];
        let len = self.socket.recv(&mut buffer)?;
        if is_same(&buffer[..len], self.secret.as_bytes()) {
            return Ok(Heard::End);
        }
        Ok(match serde_json::from_slice::<Message>(&buffer[..len]) {
            Ok(message) if is_same(message.secret.as_bytes(), self.secret.as_bytes()) => {
                Heard::Status(message.from, message.status)
            }
            _ => Heard::Stranger,
        })
    }

    /// Ends the loop around [`next`](Listener::next); `variable` is the value of `REGATTA_STATUS`.
    pub(crate) fn end(variable: &str) {
        if let Some(Sender { socket, to, secret, .. }) = Sender::new(variable, "") {
            let _ = socket.send_to_addr(secret.as_bytes(), &to);
        }
    }
}

/// Compares in a time that does not say where two secrets differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_know_the_secret_are_heard() {
        let unique = crate::random_hex().unwrap();
        let listener = Listener::new(&unique, "right".to_string()).unwrap();
        let env = |value: String| [(names::STATUS.to_string(), value)].into_iter().collect::<Env>();
        let known = Reporter::new(&env(listener.variable()), "server 1");
        let stranger = Reporter::new(&env(format!("{} wrong", listener.name())), "server 1");
        let lost = |reason: String| Status::LostWorker { worker: 3, reason };
        stranger.say(Status::CannotResume);
        assert_eq!(listener.next().unwrap(), Heard::Stranger);
        for status in [Status::FirstStep, Status::CannotResume, lost("silent".to_string())] {
            known.say(status.clone());
            assert_eq!(listener.next().unwrap(), Heard::Status("server 1".to_string(), status));
        }
        known.say(lost("\"\u{1}".repeat(5000)));
        let short = lost("\"\u{1}".repeat(REASON_LIMIT / 2));
        assert_eq!(listener.next().unwrap(), Heard::Status("server 1".to_string(), short));
        Listener::end(&format!("{} wrong", listener.name()));
        assert_eq!(listener.next().unwrap(), Heard::Stranger);
        Listener::end(&listener.variable());
        assert_eq!(listener.next().unwrap(), Heard::End);
    }
}
