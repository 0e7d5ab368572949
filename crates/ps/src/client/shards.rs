//! A worker's part when others are lost, or when it was lost itself; see [`crate::shards`].

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, ClientConfig, Idle};
use crate::Error;
use crate::message::{Control, ControlReply, Rejoin};
use crate::shards::Progress;
use crate::snapshot::SnapshotId;

/// How often a worker asks whether it may take part again.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How often it says what it waits for.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// The shard of a lost worker.
#[derive(Debug, Clone, PartialEq)]
pub struct TakenShard {
    /// Its number.
    pub shard: usize,
    /// How far it is on each server.
    pub progress: Vec<Progress>,
    /// The step to begin with.
    pub step: u64,
}

/// Where the job is that a worker takes part in again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejoined {
    /// The data pass.
    pub pass: u64,
    /// What its data are, as [`DataStart::plan`](crate::DataStart::plan) said.
    pub plan: Option<String>,
    /// The step to begin with.
    pub step: u64,
}

impl Client {
    /// Waits until there is something to do for a worker that rests.
    ///
    /// # Errors
    /// If the server is gone or a worker was lost.
    pub fn idle(&self) -> Result<Idle, Error> {
        match self.control(0, &Control::Idle)? {
            ControlReply::Idle(idle) => Ok(idle),
            other => Err(Error::malformed(format!("unexpected answer {other:?}"))),
        }
    }

    /// Takes over the shard that [`Idle::TakeOver`] names. Servers that have not lost its holder
    /// drop it now, so that it cannot train the same data.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn take_over(&self, shard: usize, step: u64) -> Result<TakenShard, Error> {
        let replies = self.control_all(&Control::TakeOver { shard, step })?;
        let progress = |reply: ControlReply| match reply {
            ControlReply::Progress(progress) => Ok(progress),
            other => Err(Error::malformed(format!("unexpected answer {other:?}"))),
        };
        let progress = replies.into_iter().map(progress).collect::<Result<_, Error>>()?;
        Ok(TakenShard { shard, progress, step })
    }

    /// Takes part again after servers have lost this worker, with new connections. The worker has
    /// nothing to do at first: others may train its data by now. `note` hears what it waits for.
    ///
    /// # Errors
    /// If the job is over, a server is gone, or the job does not continue without a lost worker.
    pub fn rejoin(&self, note: &mut dyn FnMut(&str)) -> Result<(Client, Rejoined), Error> {
        let config =
            ClientConfig { connect_timeout: Duration::from_secs(10), ..self.config.clone() };
        let client = Client::dial(config)?;
        let until = Instant::now() + client.config.reply_timeout;
        let (rejoined, round, snapshot) = client.join(0, None, until, note)?;
        client.round.store(round, Ordering::Relaxed);
        client.snapshots.store(snapshot, Ordering::Relaxed);
        for server in 1..client.servers() {
            client.join(server, Some(snapshot), until, note)?;
        }
        client.rest()?;
        Ok((client, rejoined))
    }

    /// Asks one server until it agrees.
    fn join(
        &self,
        server: usize,
        after: Option<SnapshotId>,
        until: Instant,
        note: &mut dyn FnMut(&str),
    ) -> Result<(Rejoined, u64, SnapshotId), Error> {
        let request = Control::Rejoin { hello: self.hello(), after };
        let mut next_word = Instant::now() + SAY_EVERY;
        loop {
            let reason = match self.control(server, &request)? {
                ControlReply::Rejoin(Rejoin::Joined { pass, plan, step, round, snapshot }) => {
                    return Ok((Rejoined { pass, plan, step }, round, snapshot));
                }
                ControlReply::Rejoin(Rejoin::Later(reason)) => reason,
                other => return Err(Error::malformed(format!("unexpected answer {other:?}"))),
            };
            let now = Instant::now();
            if now >= until {
                return Err(Error::peer(format!("this worker could not rejoin the job: {reason}")));
            }
            if now >= next_word {
                note(&format!("waiting for server {server} to rejoin the job: {reason}"));
                next_word = now + SAY_EVERY;
            }
            thread::sleep(ASK_EVERY);
        }
    }
}
