//! Errands to tables and files: saving and loading, days, statistics, a look at one id.

use std::hash::{BuildHasher, RandomState};

use regatta_table::SaveMode;

use super::Client;
use crate::Error;
use crate::message::{Control, ControlReply, Inspection, ServerStats};
use crate::partition::server_of;

impl Client {
    /// Lets every server save the rows of its part that a mode asks for, and all of its dense
    /// parameters. After a base, delta or patch, what such a save counts begins again; after a day
    /// save, a day is over.
    ///
    /// # Errors
    /// If a server is gone or cannot write.
    pub fn save(&self, dir: &str, mode: SaveMode) -> Result<(), Error> {
        // Random, so that parts of another save in the same place are noticed.
        let id = RandomState::new().hash_one(dir);
        self.control_all(&Control::Save { dir: dir.to_string(), id, mode }).map(|_| ())
    }

    /// Lets every server try whether it can write to a directory: found out before training.
    ///
    /// # Errors
    /// If a server is gone or cannot write there.
    pub fn try_save(&self, dir: &str) -> Result<(), Error> {
        self.control_all(&Control::TrySave { dir: dir.to_string() }).map(|_| ())
    }

    /// Lets every server load its part of what any number of servers has saved: the named tables
    /// and parameters, or all. Other tables keep what they have.
    ///
    /// # Errors
    /// If a server is gone or cannot read, or there is no such table or parameter in this job or in
    /// the directory.
    pub fn load(&self, dir: &str, names: &[String]) -> Result<(), Error> {
        let request = Control::Load { dir: dir.to_string(), names: names.to_vec(), over: false };
        self.control_all(&request).map(|_| ())
    }

    /// As [`Client::load`] for a delta: rows that are there and not in the directory stay.
    ///
    /// # Errors
    /// As [`Client::load`].
    pub fn load_delta(&self, dir: &str, names: &[String]) -> Result<(), Error> {
        let request = Control::Load { dir: dir.to_string(), names: names.to_vec(), over: true };
        self.control_all(&request).map(|_| ())
    }

    /// Lets every server continue from its part of a checkpoint, which any number of servers has
    /// written. With `count_changes`, later snapshots may ask for what has changed since.
    ///
    /// # Errors
    /// If a server is gone or cannot read.
    pub fn restore(&self, checkpoint: &str, count_changes: bool) -> Result<(), Error> {
        let request = Control::Restore { dir: checkpoint.to_string(), count_changes };
        self.control_all(&request).map(|_| ())
    }

    /// Ends a day: all rows have gone one more day without a push.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn end_day(&self) -> Result<(), Error> {
        self.control_all(&Control::EndDay).map(|_| ())
    }

    /// Lets statistics decay and drops rows that are not worth keeping, after so many days without
    /// a push or as the tables are configured; returns how many went.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn shrink(&self, max_unseen_days: Option<u32>) -> Result<u64, Error> {
        let replies = self.control_all(&Control::Shrink { max_unseen_days })?;
        let removed = |r: &ControlReply| if let ControlReply::Removed(n) = r { *n } else { 0 };
        Ok(replies.iter().map(removed).sum())
    }

    /// Numbers about every server.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn stats(&self) -> Result<Vec<ServerStats>, Error> {
        let replies = self.control_all(&Control::Stats)?;
        let stats = |r| if let ControlReply::Stats(s) = r { Some(s) } else { None };
        Ok(replies.into_iter().filter_map(stats).collect())
    }

    /// What is known of one id.
    ///
    /// # Errors
    /// If the server is gone or has no such table.
    pub fn inspect(&self, table: &str, id: u64) -> Result<Option<Inspection>, Error> {
        let server = server_of(id, self.servers());
        match self.control(server, &Control::Inspect { table: table.to_string(), id })? {
            ControlReply::Inspection(found) => Ok(found),
            other => Err(Error::malformed(format!("unexpected answer {other:?}"))),
        }
    }
}
