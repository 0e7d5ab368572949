//! Ranks that know only where rank 0 is: it listens at the master address, the others tell it where
//! they listen, and when all have come it tells everybody the whole list.
//!
//! ```text
//! rank n                                     rank 0, at the master address
//!   handshake (see `greet`), purpose: meeting
//!   CARD     number of ranks, own endpoint  -->
//!              <--  ROSTER  all endpoints  (or REFUSED with a reason)
//! ```
//!
//! Rank 0 goes on listening at the master address as its own endpoint.

use std::io::{self, IoSliceMut};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::config::{Event, GroupConfig};
use crate::error::{Absent, Error, Result, internal};
use crate::fate::lock;
use crate::socket::{Got, Socket, poll_for};

use super::HANDSHAKE;
use super::dial::{RETRY, bind_hint, open};
use super::greet::{self, Failure, Hello, Purpose};

/// Handshakes that strangers may keep waiting.
const SPARE_HANDSHAKES: usize = 16;
/// How often rank 0 looks whether somebody who came has gone again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Finds the endpoints of `size` ranks, and the listener of this one; both go into `config`.
pub(crate) fn meet(config: &mut GroupConfig, master: &str, size: usize) -> Result<()> {
    if config.rank >= size {
        let rank = config.rank;
        return Err(Error::Config(format!("rank {rank} of {size}: ranks count from 0")));
    }
    let deadline = Instant::now() + config.start_timeout;
    let (listener, endpoints) = match config.rank {
        0 => Desk::open(config, master, size, deadline)?,
        _ => join(config, master, size, deadline)?,
    };
    config.listener = Some(Arc::new(listener));
    config.endpoints = endpoints;
    config.start_timeout = deadline.saturating_duration_since(Instant::now());
    Ok(())
}

/// What rank 0 knows of those who have come.
struct Desk<'a> {
    config: &'a GroupConfig,
    size: usize,
    /// By rank: the connection, on which the answer is awaited, and the endpoint.
    guests: Mutex<Vec<Option<(Socket, String)>>>,
    changed: Condvar,
    handshakes: AtomicUsize,
}

impl Desk<'_> {
    /// Waits for all ranks, and tells them the list.
    fn open(
        config: &GroupConfig,
        master: &str,
        size: usize,
        deadline: Instant,
    ) -> Result<(TcpListener, Vec<String>)> {
        let listener = listen(config, master)?;
        let guests = Mutex::new((0..size).map(|_| None).collect());
        let (changed, handshakes) = (Condvar::new(), AtomicUsize::new(0));
        let desk = Desk { config, size, guests, changed, handshakes };
        let outcome = thread::scope(|scope| {
            let outcome = desk.wait_for_all(&listener, scope, deadline);
            desk.answer(master, outcome)
        });
        outcome.map(|endpoints| (listener, endpoints))
    }

    fn wait_for_all<'s>(
        &'s self,
        listener: &TcpListener,
        scope: &'s thread::Scope<'s, '_>,
        deadline: Instant,
    ) -> Result<()> {
        let started = Instant::now();
        let mut report_at = started + self.config.report_every;
        loop {
            while let Ok((stream, _)) = listener.accept() {
                if let Ok(socket) = Socket::tcp(stream) {
                    self.begin_handshake(scope, socket, deadline);
                }
            }
            let missing = self.missing();
            if missing.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            let (rank, waited) = (0, now - started);
            if now >= deadline {
                return Err(Error::Missing { rank, waited, missing });
            }
            if now >= report_at {
                report_at = now + self.config.report_every;
                (self.config.observer)(&Event::Waiting { rank, waited, missing });
            }
            let until = (deadline.min(report_at) - now).min(LOOK_AGAIN);
            self.wait(listener, until)?;
        }
    }

    /// Waits for somebody to connect or for a handshake to end.
    fn wait(&self, listener: &TcpListener, until: Duration) -> Result<()> {
        if self.handshakes.load(Ordering::Acquire) > 0 {
            let short = until.min(Duration::from_millis(20));
            let guests = lock(&self.guests);
            drop(self.changed.wait_timeout(guests, short).unwrap_or_else(PoisonError::into_inner));
            return Ok(());
        }
        poll_for(&mut [PollFd::new(listener, PollFlags::IN)], until)
            .map_err(|e| internal("cannot wait for ranks", e))?;
        Ok(())
    }

    /// Who has not come, or has gone again.
    fn missing(&self) -> Vec<Absent> {
        let mut guests = lock(&self.guests);
        let mut missing = Vec::new();
        for rank in 1..self.size {
            let state = match &guests[rank] {
                None => "it has not come",
                Some((socket, _)) if is_gone(socket) => "it came and went away",
                Some(_) => continue,
            };
            guests[rank] = None;
            missing.push(Absent { rank, state: state.to_owned() });
        }
        missing
    }

    /// On threads of their own, so that a silent stranger delays nobody.
    fn begin_handshake<'s>(
        &'s self,
        scope: &'s thread::Scope<'s, '_>,
        socket: Socket,
        deadline: Instant,
    ) {
        let limit = SPARE_HANDSHAKES + self.size;
        let (address, deadline) = (socket.address(), deadline.min(Instant::now() + HANDSHAKE));
        if self.handshakes.fetch_add(1, Ordering::AcqRel) >= limit {
            self.handshakes.fetch_sub(1, Ordering::AcqRel);
            let problem = format!("{limit} handshakes are under way");
            return (self.config.observer)(&Event::TurnedAway { address, problem });
        }
        scope.spawn(move || {
            if let Err(Failure::Later(problem) | Failure::Never(problem)) =
                self.receive(socket, deadline)
            {
                (self.config.observer)(&Event::TurnedAway { address, problem });
            }
            self.handshakes.fetch_sub(1, Ordering::AcqRel);
            self.changed.notify_all();
        });
    }

    fn receive(&self, socket: Socket, deadline: Instant) -> Result<(), Failure> {
        let hello = greet::accept(&socket, 0, &self.config.token, deadline, |hello| {
            let (rank, size) = (hello.from, self.size);
            match hello.purpose {
                Purpose::Meeting if rank == 0 => {
                    Err("another process is rank 0 already: the one at the master address".into())
                }
                Purpose::Meeting if rank >= size => {
                    Err(format!("there is no rank {rank} among {size} ranks"))
                }
                Purpose::Meeting => Ok(()),
                _ => Err("the ranks have not met yet".into()),
            }
        })?;
        let (size, endpoint) = greet::take_card(&socket, deadline)?;
        let problem = if size != self.size {
            format!("rank 0 was told of {} ranks, rank {} of {size}", self.size, hello.from)
        } else {
            let mut guests = lock(&self.guests);
            let guest = &mut guests[hello.from];
            if guest.as_ref().is_none_or(|(socket, _)| is_gone(socket)) {
                *guest = Some((socket, endpoint));
                return Ok(());
            }
            format!("another process is rank {} already", hello.from)
        };
        // It may have gone: then there is nobody to tell.
        let _ = greet::refuse(&socket, &problem, deadline);
        Err(Failure::Never(problem))
    }

    /// Tells all who have come what came of it.
    fn answer(&self, master: &str, outcome: Result<()>) -> Result<Vec<String>> {
        let mut guests = lock(&self.guests);
        let deadline = Instant::now() + HANDSHAKE;
        if let Err(error) = outcome {
            for (socket, _) in guests.iter().flatten() {
                let _ = greet::refuse(socket, &error.to_string(), deadline);
            }
            return Err(error);
        }
        let others = guests.iter_mut().flatten().map(|(_, endpoint)| endpoint.clone());
        let endpoints: Vec<String> = std::iter::once(master.to_owned()).chain(others).collect();
        for (socket, _) in guests.iter().flatten() {
            // Who does not get it is missed when the group is formed.
            let _ = greet::give_roster(socket, &endpoints, deadline);
        }
        Ok(endpoints)
    }
}

/// The socket at the master address.
fn listen(config: &GroupConfig, master: &str) -> Result<TcpListener> {
    let fail = |error: io::Error| Error::Bind {
        rank: config.rank,
        endpoint: master.to_owned(),
        problem: format!("{error}{}", bind_hint(&error)),
    };
    let listener = match &config.listener {
        Some(bound) => bound.try_clone().map_err(fail)?,
        None => TcpListener::bind(master).map_err(fail)?,
    };
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

/// Whoever waits for the list says nothing more: an end is all that can be read.
fn is_gone(socket: &Socket) -> bool {
    !matches!(socket.try_read(&mut [IoSliceMut::new(&mut [0])]), Ok(Got::Nothing))
}

/// Tells rank 0 where this rank listens, and waits for the list.
fn join(
    config: &GroupConfig,
    master: &str,
    size: usize,
    deadline: Instant,
) -> Result<(TcpListener, Vec<String>)> {
    let (rank, started) = (config.rank, Instant::now());
    let mut report_at = started + config.report_every;
    loop {
        let problem = match join_once(config, master, size, deadline) {
            Ok(found) => return Ok(found),
            Err(Failure::Never(problem)) => {
                let endpoint = master.to_owned();
                return Err(Error::Refused { rank, peer: 0, endpoint, problem });
            }
            Err(Failure::Later(problem)) => problem,
        };
        let (now, state) = (Instant::now(), format!("{master}: {problem}"));
        let (waited, missing) = (now - started, vec![Absent { rank: 0, state }]);
        if now >= deadline {
            return Err(Error::Missing { rank, waited, missing });
        }
        if now >= report_at {
            report_at = now + config.report_every;
            (config.observer)(&Event::Waiting { rank, waited, missing });
        }
        thread::sleep(RETRY);
    }
}

fn join_once(
    config: &GroupConfig,
    master: &str,
    size: usize,
    deadline: Instant,
) -> Result<(TcpListener, Vec<String>), Failure> {
    let limit = deadline.min(Instant::now() + HANDSHAKE);
    let socket = open(master, limit)?;
    let Socket::Tcp(stream) = &socket else {
        return Err(Failure::Never("a master address is host:port".to_owned()));
    };
    // Where rank 0 can be reached from, the others can reach this rank.
    let listener = TcpListener::bind((stream.local_addr()?.ip(), 0))?;
    let hello = Hello { purpose: Purpose::Meeting, from: config.rank, to: 0 };
    greet::dial(&socket, hello, &config.token, limit)?;
    greet::give_card(&socket, size, &listener.local_addr()?.to_string(), limit)?;
    // Rank 0 answers at its own deadline at the latest, or goes.
    let mut endpoints = greet::take_roster(&socket, deadline + HANDSHAKE)?;
    if endpoints.len() != size {
        let n = endpoints.len();
        return Err(Failure::Never(format!("rank 0 told of {n} ranks, not {size}")));
    }
    // Rank 0 may know itself by another name, such as 0.0.0.0.
    endpoints[0] = master.to_owned();
    Ok((listener, endpoints))
}
