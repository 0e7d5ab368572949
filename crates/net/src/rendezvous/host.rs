//! The process at which the others meet: a server in front of the desk.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::desk::{Admission, Answers, Desk, Seat};
use super::{Answer, CARDS, END, FAIL, GATHER};
use crate::error::Result;
use crate::identity::Peer;
use crate::server::{Disconnect, Handler, Request, Responder, Server, Serving};
use crate::sync::{after, lock, wait_for, wait_until};

/// How long the connection of a guest may be gone.
const AWAY_LIMIT: Duration = Duration::from_secs(5);

/// Reads a card and says where its guest sits down, or why it is refused.
pub type Admit = Box<dyn Fn(&[u8]) -> std::result::Result<Admission, String> + Send + Sync>;

/// A meeting, from the side of the process that all others dial. Dropped, it waits up to 2 s for
/// answers that are in flight.
pub struct Host {
    serving: Option<Serving>,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    admit: Admit,
}

struct State {
    desk: Desk<Responder>,
    /// Guests with a connection.
    connected: BTreeSet<u64>,
}

impl Host {
    /// Lets guests in from now on. `seats` are the names of those who are expected.
    ///
    /// # Errors
    /// As [`Server::serve`].
    pub fn open(server: Server, seats: Vec<String>, admit: Admit) -> Result<Host> {
        let state = State { desk: Desk::new(seats), connected: BTreeSet::new() };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new(), admit };
        let shared = Arc::new(shared);
        let serving = server.serve(Service(shared.clone()))?;
        Ok(Host { serving: Some(serving), shared })
    }

    /// Takes a seat for the host itself, which is then no guest. For a meeting that is just open.
    pub fn take_seat(&self, seat: usize, card: Vec<u8>) {
        /// The numbers of guests are random; this one is none of them.
        const HOST: u64 = 0;
        self.shared.update(|desk| {
            desk.seats[seat].guest = Some(HOST);
            desk.gather(END, HOST, Vec::new(), None);
            desk.gather(CARDS, HOST, card, None)
        });
    }

    /// Waits until all seats are taken, and returns the cards of all in the order of seats.
    /// `report` hears every few seconds how long that has taken and who has come.
    ///
    /// # Errors
    /// The seats, some of them free, at the end of `limit`, or if the meeting is over before.
    pub fn wait_for_all(
        &self,
        limit: Duration,
        report_every: Duration,
        mut report: impl FnMut(Duration, &[Seat]),
    ) -> std::result::Result<Vec<Vec<u8>>, Vec<Seat>> {
        let (started, deadline) = (Instant::now(), after(limit));
        let mut report_at = after(report_every);
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(cards) = state.desk.collected(CARDS) {
                return Ok(cards);
            }
            let now = Instant::now();
            if now >= deadline || state.desk.over.is_some() {
                return Err(state.desk.seats.clone());
            }
            if now >= report_at {
                report(now - started, &state.desk.seats);
                report_at = after(report_every);
            }
            state = wait_until(&self.shared.changed, state, deadline.min(report_at)).0;
        }
    }

    /// Ends the meeting for all.
    pub fn fail(&self, why: String) {
        self.shared.update(|desk| desk.fail(why));
    }

    /// Waits until all guests have done their part, or the meeting is over.
    pub fn wait_for_end(&self) {
        let mut state = lock(&self.shared.state);
        while state.desk.collected(END).is_none() && state.desk.over.is_none() {
            state = wait_for(&self.shared.changed, state, Duration::MAX);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.shutdown(Duration::from_secs(2));
        }
    }
}

impl Shared {
    /// Changes the desk, and sends the answers that are due after that.
    fn update(&self, change: impl FnOnce(&mut Desk<Responder>) -> Answers<Responder>) {
        self.finish(lock(&self.state), change);
    }

    fn finish(
        &self,
        mut state: MutexGuard<'_, State>,
        change: impl FnOnce(&mut Desk<Responder>) -> Answers<Responder>,
    ) {
        let answers = change(&mut state.desk);
        drop(state);
        for (responder, answer) in answers {
            let (status, payload) = answer.encode();
            // A guest that does not hear it is noticed by its connection.
            let _ = responder.reply(status, &[&payload]);
        }
        self.changed.notify_all();
    }

    fn lost(self: &Arc<Shared>, id: u64, how: &Disconnect) {
        let mut state = lock(&self.state);
        state.connected.remove(&id);
        if matches!(how, Disconnect::Replaced | Disconnect::ServerStopped) {
            return;
        }
        let Some(name) = state.desk.leave(id) else { return };
        if matches!(how, Disconnect::Goodbye) {
            return self.finish(state, |desk| desk.fail(format!("{name} has left")));
        }
        drop(state);
        let shared = self.clone();
        thread::spawn(move || {
            thread::sleep(AWAY_LIMIT);
            let state = lock(&shared.state);
            if !state.connected.contains(&id) {
                let seconds = AWAY_LIMIT.as_secs();
                let why = format!("lost {name}: no connection for {seconds} s");
                shared.finish(state, |desk| desk.fail(why));
            }
        });
    }
}

struct Service(Arc<Shared>);

impl Handler for Service {
    fn request(&self, request: Request, responder: Responder) {
        let (id, round, bytes) = (request.peer.session, request.flags, request.payload.to_vec());
        self.0.update(|desk| {
            let admitted = match (request.kind, round) {
                (GATHER, CARDS) => (self.0.admit)(&bytes).and_then(|seats| desk.admit(id, seats)),
                (GATHER, END) | (FAIL, _) => {
                    desk.gather(END, id, Vec::new(), None);
                    let mut answers = match request.kind {
                        FAIL => desk.fail(String::from_utf8_lossy(&bytes).into_owned()),
                        _ => Vec::new(),
                    };
                    answers.push((responder, Answer::All(Vec::new())));
                    return answers;
                }
                (GATHER, _) => Ok(()),
                (kind, _) => Err(format!("there is no request of kind {kind}")),
            };
            match admitted {
                Ok(()) => desk.gather(round, id, bytes, Some(responder)),
                Err(why) => vec![(responder, Answer::Over(why))],
            }
        });
    }

    fn connected(&self, peer: &Peer) {
        lock(&self.0.state).connected.insert(peer.session);
    }

    fn disconnected(&self, peer: &Peer, how: &Disconnect) {
        self.0.lost(peer.session, how);
    }
}
