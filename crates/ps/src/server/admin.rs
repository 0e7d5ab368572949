//! Errands: shrinking, looking at one id, saving and loading.

use std::path::Path;
use std::sync::atomic::Ordering;

use regatta_checkpoint::server_parts::{self, SavePart, ServerParts, TableSteps};
use regatta_checkpoint::{Checkpoint, MANIFEST_FILE};
use regatta_table::{Inspection as Found, SaveMode};

use super::core::{Core, Table};
use crate::message::{ControlReply, Inspection};
use crate::partition::server_of;
use crate::{Error, Mode};

impl Core {
    pub(super) fn shrink(&self, max_unseen_days: Option<u32>) -> Result<ControlReply, Error> {
        let mut removed = 0;
        for table in self.tables.iter() {
            let counts = table.rows.shrink(max_unseen_days).map_err(|e| table.error(e))?;
            removed += counts.rows as u64;
        }
        Ok(ControlReply::Removed(removed))
    }

    pub(super) fn inspect(&self, table: &str, id: u64) -> Result<ControlReply, Error> {
        let server = self.config.index;
        let table = self.table(table)?;
        let found = match table.rows.inspect(id).map_err(|e| table.error(e))? {
            Found::Row(row) => {
                let detail = format!("unseen for {} days, shard {}", row.unseen_days, row.shard);
                Some(Inspection { server, parts: row.parts, detail })
            }
            Found::Candidate { appearances, .. } => {
                let detail = format!("not admitted yet, seen {appearances} times");
                Some(Inspection { server, parts: vec![], detail })
            }
            Found::Padding | Found::Absent => None,
        };
        Ok(ControlReply::Inspection(found))
    }

    fn table(&self, name: &str) -> Result<&Table, Error> {
        self.tables.iter().find(|t| t.setup.name == name).ok_or_else(|| {
            let names: Vec<_> = self.tables.iter().map(|t| t.setup.name.as_str()).collect();
            Error::usage(format!("there is no table '{name}' (tables: {})", names.join(", ")))
        })
    }

    /// Writes this server's part; the file appears complete or not at all.
    pub(super) fn save(&self, dir: &str, id: u64, mode: SaveMode) -> Result<ControlReply, Error> {
        let tables = self.tables.iter().map(|t| (t.setup.name.as_str(), &t.rows));
        let part = SavePart { server: self.config.index, servers: self.config.servers, id };
        server_parts::save_part(Path::new(dir), &part, mode, tables, &self.dense.export()?)?;
        if mode == SaveMode::Day {
            self.tables.iter().for_each(|t| t.rows.end_day());
        }
        Ok(ControlReply::Done)
    }

    /// Reads this server's part of what any number of servers has written: of a saved model or of a
    /// checkpoint. Unless it goes `over` what is there, the tables held before is gone.
    pub(super) fn load(&self, dir: &str, names: &[String], over: bool) -> Result<(), Error> {
        let known = |name: &String| self.config.params.contains(name);
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return Err(Error::usage(format!(
                "there is no table or parameter '{name}' (known: {})",
                self.config.params.join(", ")
            )));
        }
        let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
        if Path::new(dir).join(MANIFEST_FILE).exists() {
            let checkpoint = Checkpoint::open(dir)?;
            return self.load_checkpoint(&checkpoint, wanted, over).map(|_| ());
        }
        self.load_saved(dir, wanted, over)
    }

    fn load_saved(
        &self,
        dir: &str,
        wanted: impl Fn(&str) -> bool,
        over: bool,
    ) -> Result<(), Error> {
        let parts = ServerParts::open(dir)?;
        let tables = || self.tables.iter().enumerate().filter(|(_, t)| wanted(&t.setup.name));
        let geo = matches!(self.config.mode, Mode::Geo { .. });
        let (mut pieces, mut alone) = (Vec::new(), true);
        let mut steps = TableSteps::default();
        for (_, table) in tables().filter(|_| !over) {
            table.rows.clear().map_err(|e| table.error(e))?;
        }
        for file in parts.files() {
            alone &= server_parts::is_weights_alone(file);
            for (number, table) in tables() {
                let name = &table.setup.name;
                let keys = server_parts::load_table(file, name, &table.rows, self.owns())?;
                if geo {
                    self.note_changed(number, &keys);
                }
            }
            steps.read(&file.metadata);
            pieces.extend(server_parts::saved_pieces(file)?);
        }
        for (_, table) in tables().filter(|_| !over) {
            table.rows.set_steps(steps.of(&table.setup.name));
        }
        self.dense.import(&pieces, alone, wanted).map_err(|e| Error::usage(format!("{dir}: {e}")))
    }

    /// Whether a row belongs to this server.
    fn owns(&self) -> impl Fn(u64) -> bool + Sync {
        let (index, servers) = (self.config.index, self.config.servers);
        move |key| server_of(key, servers) == index
    }

    /// Goes on from a checkpoint: tables, dense parameters, and the step of the learning rate.
    /// With `count_changes`, changes of the tables are counted from there.
    pub(super) fn restore(&self, dir: &str, count_changes: bool) -> Result<(), Error> {
        let checkpoint = Checkpoint::open(dir)?;
        let steps = self.load_checkpoint(&checkpoint, |_| true, false)?;
        for table in self.tables.iter().filter(|_| count_changes) {
            table.rows.begin_changes().map_err(|e| table.error(e))?;
        }
        self.steps.store(steps, Ordering::Relaxed);
        Ok(())
    }

    fn load_checkpoint(
        &self,
        checkpoint: &Checkpoint,
        wanted: impl Fn(&str) -> bool,
        over: bool,
    ) -> Result<u64, Error> {
        for (number, table) in self.tables.iter().enumerate() {
            let name = table.setup.name.as_str();
            if !wanted(name) {
                continue;
            }
            if !over {
                table.rows.clear().map_err(|e| table.error(e))?;
            }
            server_parts::restore_table(checkpoint, name, &table.rows, self.owns())?;
            if matches!(self.config.mode, Mode::Geo { .. }) {
                self.note_changed(
                    number,
                    &server_parts::saved_keys(checkpoint, name, self.owns())?,
                );
            }
        }
        let (pieces, steps, table_steps) = server_parts::restore_pieces(checkpoint)?;
        let trained = self.tables.iter().filter(|table| wanted(&table.setup.name) && !over);
        trained.for_each(|table| table.rows.set_steps(table_steps.of(&table.setup.name)));
        let fail = |e| Error::usage(format!("{}: {e}", checkpoint.path().display()));
        self.dense.import(&pieces, false, wanted).map_err(fail)?;
        Ok(steps)
    }
}
