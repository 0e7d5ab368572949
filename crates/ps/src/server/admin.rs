//! Rare requests: shrinking, looking at one id, saving and loading.

use regatta_table::Inspection as Found;

use super::core::{Core, Table};
use crate::Error;
use crate::message::{ControlReply, Inspection};
use crate::storage;

impl Core {
    pub(super) fn shrink(&self, max_unseen_days: u32) -> Result<ControlReply, Error> {
        let mut removed = 0;
        for table in &self.tables {
            table.rows.end_day();
            removed += table.rows.shrink(Some(max_unseen_days)).map_err(job)?.rows as u64;
        }
        Ok(ControlReply::Removed(removed))
    }

    pub(super) fn inspect(&self, table: &str, id: u64) -> Result<ControlReply, Error> {
        let server = self.config.index;
        let found = match self.table(table)?.rows.inspect(id).map_err(job)? {
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
    pub(super) fn save(&self, dir: &str) -> Result<(), Error> {
        let tables = self.tables.iter().map(|t| (t.setup.name.as_str(), &t.rows));
        let dense = self.dense();
        let pieces: Vec<storage::PieceOut<'_>> = dense
            .pieces
            .iter()
            .map(|p| storage::PieceOut {
                param: &p.param,
                start: p.start,
                weights: &p.weights,
                states: p.states.iter().map(|(name, v)| (*name, v.as_slice())).collect(),
            })
            .collect();
        storage::save_server(dir, self.config.index, self.config.servers, tables, &pieces)
    }

    /// Reads this server's part of what any number of servers has written.
    pub(super) fn load(&self, dir: &str, names: &[String]) -> Result<(), Error> {
        let mut dense = self.dense();
        for name in names {
            let known = dense.pieces.iter().any(|p| p.param == *name)
                || self.tables.iter().any(|t| t.setup.name == *name)
                || self.config.params.contains(name);
            if !known {
                return Err(Error::Job(format!(
                    "there is no table or parameter '{name}' (known: {})",
                    self.config.params.join(", ")
                )));
            }
        }
        let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
        let (index, servers) = (self.config.index, self.config.servers);
        for table in self.tables.iter().filter(|t| wanted(&t.setup.name)) {
            storage::load_table(dir, &table.setup.name, &table.rows, index, servers)?;
        }
        for piece in dense.pieces.iter_mut().filter(|p| wanted(&p.param)) {
            let states = piece.states.iter_mut().map(|(name, v)| (*name, v.as_mut_slice()));
            storage::load_piece(dir, &piece.param, piece.start, &mut piece.weights, states)?;
        }
        dense.is_set = true;
        Ok(())
    }
}

fn job(e: regatta_table::Error) -> Error {
    Error::Job(e.to_string())
}
