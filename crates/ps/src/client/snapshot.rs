//! A worker's part in snapshots of the whole job; see [`crate::snapshot`].

use std::sync::atomic::Ordering;

use regatta_checkpoint::Part;
use regatta_net::Pending;

use super::Client;
use crate::Error;
use crate::message::{Control, ControlReply, SnapshotTaken};
use crate::snapshot::SnapshotOrder;

/// A snapshot on its way to disk.
#[must_use = "only its answer says whether everything is written"]
pub struct WrittenTicket {
    pending: Vec<Option<Pending>>,
    parts: Vec<Part>,
    /// The first of them. It is told when all servers have answered: until then the others write,
    /// and the directory must stay.
    failure: Option<Error>,
}

impl WrittenTicket {
    /// Notes what one server has written.
    fn note(&mut self, written: Result<Vec<Part>, Error>) {
        match written {
            Ok(parts) => self.parts.extend(parts),
            Err(e) => self.failure = self.failure.take().or(Some(e)),
        }
    }

    fn outcome(&mut self) -> Result<Vec<Part>, Error> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(std::mem::take(&mut self.parts)),
        }
    }
}

impl Client {
    /// Opens a snapshot, whose parts servers write into a directory. Only worker 0 may; it then
    /// comes to the snapshot like all others. See [`crate::snapshot`].
    ///
    /// # Errors
    /// If a server is gone, or the last snapshot is not over.
    pub fn open_snapshot(&self, order: &SnapshotOrder) -> Result<(), Error> {
        let id = self.snapshots.load(Ordering::Relaxed) + 1;
        let (dir, scope) = (order.dir.to_string_lossy().into_owned(), order.scope);
        self.control_all(&Control::Snapshot { id, dir, scope }).map(|_| ())
    }

    /// Tells servers whether the checkpoint of the last snapshot is stored. Worker 0 does so after
    /// every snapshot that is not [`SnapshotScope::Whole`](crate::SnapshotScope::Whole), once it is
    /// written.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn stored(&self, stored: bool) -> Result<(), Error> {
        let id = self.snapshots.load(Ordering::Relaxed);
        self.control_all(&Control::Stored { id, stored }).map(|_| ())
    }

    /// Comes to the snapshot with nothing in flight, and waits until all servers have taken it.
    /// `state` is what this worker needs to continue from here; worker 0 gets those of all workers.
    /// With `own_part` the snapshot counts as written only after [`Client::own_part`].
    ///
    /// # Errors
    /// If a server or worker is gone, or a server cannot take its part.
    pub fn ready(&self, state: &str, own_part: bool) -> Result<SnapshotTaken, Error> {
        let id = self.snapshots.fetch_add(1, Ordering::Relaxed) + 1;
        // What a server does not need is not sent to it.
        let request = |server: usize| {
            let state = if server == 0 { state.to_string() } else { String::new() };
            Control::Ready { id, state, own_part: own_part && server == 0 }
        };
        let pending = (0..self.servers())
            .map(|s| self.send_control(s, &request(s)))
            .collect::<Result<Vec<_>, Error>>()?;
        let mut taken = SnapshotTaken::default();
        for (server, pending) in pending.into_iter().enumerate() {
            match ControlReply::decode(&self.payload(server, pending)?)? {
                ControlReply::Taken(part) => {
                    let copy_seconds = taken.copy_seconds.max(part.copy_seconds);
                    if server == 0 {
                        taken = part;
                    } else {
                        taken.add_orphans(part.orphans);
                    }
                    taken.copy_seconds = copy_seconds;
                }
                other => return Err(Error::malformed(format!("unexpected answer {other:?}"))),
            }
        }
        Ok(taken)
    }

    /// Reports this worker's own part of the last snapshot, or why it could not be written.
    ///
    /// # Errors
    /// If the server is gone.
    pub fn own_part(&self, part: Result<Part, String>) -> Result<(), Error> {
        let id = self.snapshots.load(Ordering::Relaxed);
        self.control(0, &Control::OwnPart { id, part }).map(|_| ())
    }

    /// Asks when the last snapshot is written; [`Client::try_written`] and
    /// [`Client::finish_written`] take the answer.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn written(&self) -> Result<WrittenTicket, Error> {
        let request = Control::Written { id: self.snapshots.load(Ordering::Relaxed) };
        let pending = (0..self.servers())
            .map(|s| Ok(Some(self.send_control(s, &request)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(WrittenTicket { pending, parts: Vec::new(), failure: None })
    }

    /// What all servers have written, if they have; never waits.
    ///
    /// # Errors
    /// If a server is gone or could not write.
    pub fn try_written(&self, ticket: &mut WrittenTicket) -> Result<Option<Vec<Part>>, Error> {
        for server in 0..ticket.pending.len() {
            let Some(pending) = &mut ticket.pending[server] else { continue };
            if let Some(reply) = pending.try_take() {
                ticket.pending[server] = None;
                let payload = reply.map_err(Error::from).and_then(|r| self.checked(server, r));
                ticket.note(payload.and_then(|(payload, _)| written_parts(&payload)));
            }
        }
        match ticket.pending.iter().all(Option::is_none) {
            true => ticket.outcome().map(Some),
            false => Ok(None),
        }
    }

    /// Waits until all servers have written.
    ///
    /// # Errors
    /// As [`Client::try_written`].
    pub fn finish_written(&self, mut ticket: WrittenTicket) -> Result<Vec<Part>, Error> {
        for server in 0..ticket.pending.len() {
            if let Some(pending) = ticket.pending[server].take() {
                let payload = self.payload(server, pending);
                ticket.note(payload.and_then(|payload| written_parts(&payload)));
            }
        }
        ticket.outcome()
    }
}

fn written_parts(payload: &[u8]) -> Result<Vec<Part>, Error> {
    match ControlReply::decode(payload)? {
        ControlReply::Written(parts) => Ok(parts),
        other => Err(Error::malformed(format!("unexpected answer {other:?}"))),
    }
}
