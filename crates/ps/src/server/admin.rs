//! Errands: shrinking, looking at one id, saving and loading.

use regatta_table::Inspection as Found;

use super::core::{Core, Table};
use crate::message::{ControlReply, Inspection};
use crate::{Error, Mode, storage};

impl Core {
    pub(super) fn shrink(&self, max_unseen_days: u32) -> Result<ControlReply, Error> {
        let mut removed = 0;
        for table in &self.tables {
            table.rows.end_day();
            let counts = table.rows.shrink(Some(max_unseen_days)).map_err(|e| table.error(&e))?;
            removed += counts.rows as u64;
        }
        Ok(ControlReply::Removed(removed))
    }

    pub(super) fn inspect(&self, table: &str, id: u64) -> Result<ControlReply, Error> {
        let server = self.config.index;
        let table = self.table(table)?;
        let found = match table.rows.inspect(id).map_err(|e| table.error(&e))? {
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
            Error::Job(format!("there is no table '{name}' (tables: {})", names.join(", ")))
        })
    }

    /// Writes this server's part; the file appears complete or not at all.
    pub(super) fn save(&self, dir: &str, id: u64) -> Result<(), Error> {
        let tables = self.tables.iter().map(|t| (t.setup.name.as_str(), &t.rows));
        let part = storage::Part { server: self.config.index, servers: self.config.servers, id };
        storage::save_part(dir, &part, tables, &self.dense.export()?)
    }

    /// Reads this server's part of what any number of servers has written. What the tables held
    /// before is gone.
    pub(super) fn load(&self, dir: &str, names: &[String]) -> Result<(), Error> {
        let known = |name: &String| self.config.params.contains(name);
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return Err(Error::Job(format!(
                "there is no table or parameter '{name}' (known: {})",
                self.config.params.join(", ")
            )));
        }
        let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
        let files = storage::files(dir)?;
        let tables = || self.tables.iter().enumerate().filter(|(_, t)| wanted(&t.setup.name));
        for (_, table) in tables() {
            table.rows.clear().map_err(|e| table.error(&e))?;
        }
        let (index, servers) = (self.config.index, self.config.servers);
        let geo = matches!(self.config.mode, Mode::Geo { .. });
        let (mut pieces, mut ids) = (Vec::new(), storage::Ids::default());
        for path in files {
            let file = storage::read(&path)?;
            ids.check(&path, &file)?;
            for (number, table) in tables() {
                let name = &table.setup.name;
                let keys = storage::load_table(&file, &path, name, &table.rows, index, servers)?;
                if geo {
                    self.note_changed(number, &keys);
                }
            }
            pieces.extend(storage::dense_pieces(&file));
        }
        self.dense.import(&pieces, wanted).map_err(|e| Error::Job(format!("{dir}: {e}")))
    }
}
