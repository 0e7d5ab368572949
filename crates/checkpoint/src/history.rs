//! The life of one id through the checkpoints that are kept.

use crate::diff::same;
use crate::{BlockBuffer, Checkpoint, CheckpointDir, Error};

/// An id in one of the checkpoints of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// The checkpoint.
    pub serial: u64,
    /// What it says about the id, beside the one before.
    pub event: Event,
}

/// What became of an id between two checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Nothing: it is not there, and was not.
    Absent,
    /// It is there, and was not before.
    Appeared,
    /// It is there as before, to the bit.
    Same,
    /// It is there with other contents.
    Changed,
    /// It is gone.
    Gone,
    /// This checkpoint cannot be read.
    Unreadable(String),
}

/// Follows an id of a table through the complete checkpoints of a directory, oldest first.
///
/// # Errors
/// If the directory cannot be read.
pub fn history(dir: &CheckpointDir, table: &str, id: u64) -> Result<Vec<Moment>, Error> {
    let entries = dir.list()?;
    let mut moments = Vec::new();
    // Two buffers: the row before stays while the next one is read.
    let mut buffers = [BlockBuffer::default(), BlockBuffer::default()];
    let mut before: Option<crate::SavedTable> = None;
    for entry in entries.iter().filter(|entry| entry.manifest().is_some()) {
        let [old, new] = &mut buffers;
        let opened = Checkpoint::open(&entry.path).and_then(|found| {
            if found.tables().iter().any(|t| t == table) {
                found.table(table).map(Some)
            } else {
                Ok(None)
            }
        });
        let event = opened.and_then(|now| {
            let event = event(before.as_ref(), now.as_ref(), id, old, new)?;
            before = now;
            Ok(event)
        });
        let event = event.unwrap_or_else(|error| Event::Unreadable(error.to_string()));
        moments.push(Moment { serial: entry.serial, event });
    }
    Ok(moments)
}

fn event(
    before: Option<&crate::SavedTable>,
    now: Option<&crate::SavedTable>,
    id: u64,
    old: &mut BlockBuffer,
    new: &mut BlockBuffer,
) -> Result<Event, Error> {
    let before = before.map_or(Ok(None), |table| table.find(id, old))?;
    let now = now.map_or(Ok(None), |table| table.find(id, new))?;
    Ok(match (before, now) {
        (None, None) => Event::Absent,
        (None, Some(_)) => Event::Appeared,
        (Some(_), None) => Event::Gone,
        (Some(a), Some(b)) if same(&a, &b) => Event::Same,
        (Some(_), Some(_)) => Event::Changed,
    })
}
