//! Hints of workers about rows that they will pull: [`Core::prefetch`]. A thread of its own looks
//! them up and begins to read those that are on disk. Requests never wait for it: while it is busy,
//! hints queue up, and what does not fit into the queue is dropped.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use regatta_net::{Buf, Responder};
use regatta_table::Scratch;

use super::core::{Core, Table};
use crate::Error;
use crate::message::Prefetch;
use crate::message::reply::{refuse_for, reply};

/// Hints of a worker that may wait.
const PER_WORKER: usize = 16;

type Hint = (Prefetch, Buf);

/// The thread that follows hints; none where all rows are in memory.
#[derive(Default)]
pub(super) struct Hints {
    queue: Option<SyncSender<Hint>>,
    thread: Option<JoinHandle<()>>,
}

impl Hints {
    pub(super) fn new(tables: &Arc<Vec<Table>>, workers: usize) -> Result<Hints, Error> {
        if tables.iter().all(|table| table.setup.config.tier.is_none()) {
            return Ok(Hints::default());
        }
        let (queue, hints) = sync_channel(PER_WORKER * workers.max(1));
        let tables = tables.clone();
        let thread = std::thread::Builder::new()
            .name("row prefetch".into())
            .spawn(move || follow(&tables, &hints))
            .map_err(|e| Error::internal(format!("no thread for reading rows ahead: {e}")))?;
        Ok(Hints { queue: Some(queue), thread: Some(thread) })
    }

    fn add(&self, hint: Hint) {
        if let Some(queue) = &self.queue {
            // A hint that comes too late is worth nothing.
            let _ = queue.try_send(hint);
        }
    }
}

impl Drop for Hints {
    /// The thread holds the tables, whose files go with them.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn follow(tables: &[Table], hints: &Receiver<Hint>) {
    let mut scratch = Scratch::default();
    for (hint, payload) in hints {
        for (number, keys) in &hint.tables {
            let Some(table) = tables.get(*number as usize) else { continue };
            // A table that cannot read its rows says so when they are pulled.
            let _ = table.rows.prefetch(keys.of(&payload), &mut scratch);
        }
    }
}

impl Core {
    /// Takes a hint. The reply says only that it came.
    pub(super) fn prefetch(&self, hint: Prefetch, payload: Buf, responder: Responder) {
        let unknown = hint.tables.iter().find(|(table, _)| *table >= self.tables.len() as u64);
        if let Some((table, _)) = unknown {
            let n = self.tables.len();
            let what = format!("a hint for table {table}, but there are {n} tables");
            return refuse_for(responder, &Error::malformed(what));
        }
        reply(responder, &[]);
        self.hints.add((hint, payload));
    }
}
