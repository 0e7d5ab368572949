//! A server's parts of a checkpoint: written from a snapshot, read by any number of servers.

use std::path::{Path, PathBuf};

use regatta_table::{DensePiece, Scope, Snapshot, SparseTable};

use super::save::piece_tensors;
use super::{LOAD_THREADS, STEPS, TableSteps, dense_pieces, steps_key};
use crate::{Checkpoint, Error, Metadata, Part, part_name, save_table, write_tensors};

/// What a server holds at one moment, to be written into a checkpoint while training continues.
#[derive(Debug)]
pub struct ServerSnapshot {
    /// Where it goes.
    dir: PathBuf,
    snapshots: Vec<Snapshot>,
    pieces: Vec<DensePiece>,
    steps: u64,
    /// Steps of each table.
    table_steps: Vec<u64>,
}

impl ServerSnapshot {
    /// Takes a snapshot of all tables for the directory of a checkpoint. Rows that change from now
    /// on are copied on write until [`ServerSnapshot::end`].
    ///
    /// # Errors
    /// If a table cannot take it.
    pub fn take<'a>(
        dir: &Path,
        tables: impl Iterator<Item = (&'a str, &'a SparseTable)>,
        scope: Scope,
        pieces: Vec<DensePiece>,
        steps: u64,
    ) -> Result<ServerSnapshot, Error> {
        let mut kept: Vec<(&SparseTable, Snapshot)> = Vec::new();
        for (name, table) in tables {
            match table.snapshot(scope) {
                Ok(snapshot) => kept.push((table, snapshot)),
                Err(e) => {
                    kept.into_iter()
                        .try_for_each(|(t, snapshot)| t.end_snapshot(snapshot, false))
                        .ok();
                    return Err(Error::table(dir, name)(e));
                }
            }
        }
        let table_steps = kept.iter().map(|(table, _)| table.steps()).collect();
        let snapshots = kept.into_iter().map(|(_, snapshot)| snapshot).collect();
        Ok(ServerSnapshot { dir: dir.to_path_buf(), snapshots, pieces, steps, table_steps })
    }

    /// Writes it as the parts of server `index` of `servers`. `tables` are those that it was taken
    /// of.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(
        &mut self,
        (index, servers): (usize, usize),
        tables: &[(&str, &SparseTable)],
    ) -> Result<Vec<Part>, Error> {
        let own = format!("server-{index}-of-{servers}");
        let dir = self.dir.as_path();
        let mut parts = Vec::new();
        for ((name, table), snapshot) in tables.iter().zip(&self.snapshots) {
            let file = part_name(name, &format!("{own}.rows"));
            parts.push(save_table(dir, &file, name, table, snapshot)?.part);
        }
        let tensors = piece_tensors(dir, &std::mem::take(&mut self.pieces))?;
        let mut metadata = Metadata::from([(STEPS.to_string(), self.steps.to_string())]);
        let counted = tables.iter().map(|(name, _)| *name).zip(&self.table_steps);
        metadata.extend(counted.map(|(name, steps)| (steps_key(name), steps.to_string())));
        let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let file = format!("{own}.safetensors");
        parts.push(write_tensors(dir, &file, named, &metadata)?);
        Ok(parts)
    }

    /// Ends it. If it is `stored`, changes of the tables are counted from it.
    ///
    /// # Errors
    /// If a table cannot end it.
    pub fn end(self, tables: &[(&str, &SparseTable)], stored: bool) -> Result<(), Error> {
        let dir = self.dir;
        let ended = tables.iter().zip(self.snapshots).map(|((name, table), snapshot)| {
            table.end_snapshot(snapshot, stored).map_err(Error::table(&dir, name))
        });
        // All of them are ended, whatever the first one says.
        ended.collect::<Vec<_>>().into_iter().collect()
    }
}

/// Puts those rows of a table in a checkpoint that a server owns into a table that is empty.
///
/// # Errors
/// If the checkpoint has no such table, or it cannot be read.
pub fn restore_table(
    checkpoint: &Checkpoint,
    name: &str,
    table: &SparseTable,
    is_own: impl Fn(u64) -> bool + Sync,
) -> Result<(), Error> {
    let saved = checkpoint.table(name)?;
    saved.load_into(table, is_own, LOAD_THREADS).map(|_| ())
}

/// The ids of a table in a checkpoint that a server owns.
///
/// # Errors
/// As [`restore_table`].
pub fn saved_keys(
    checkpoint: &Checkpoint,
    name: &str,
    is_own: impl Fn(u64) -> bool,
) -> Result<Vec<u64>, Error> {
    let mut keys = Vec::new();
    let saved = checkpoint.table(name)?;
    saved.for_each(|row| {
        keys.extend(Some(row.key).filter(|key| is_own(*key)));
        Ok(())
    })?;
    Ok(keys)
}

/// The pieces of dense parameters in a checkpoint of servers, how many updates there were, and how
/// many of each table.
///
/// # Errors
/// If they cannot be read.
pub fn restore_pieces(
    checkpoint: &Checkpoint,
) -> Result<(Vec<DensePiece>, u64, TableSteps), Error> {
    let (mut pieces, mut steps, mut of_tables) = (Vec::new(), 0, TableSteps::default());
    let names = checkpoint.tensor_parts().map(|part| part.name.clone());
    for name in names.filter(|name| name.starts_with("server-")).collect::<Vec<_>>() {
        let file = checkpoint.tensors(&name)?;
        let updates = file.metadata.get(STEPS).and_then(|n| n.parse::<u64>().ok());
        let Some(updates) = updates else {
            let reason = format!("{name} does not say how many updates it is of");
            return Err(Error::corrupt(checkpoint.path(), reason));
        };
        // All servers count the same updates.
        steps = updates.max(steps);
        of_tables.read(&file.metadata);
        pieces.extend(dense_pieces(file.tensors));
    }
    Ok((pieces, steps, of_tables))
}
