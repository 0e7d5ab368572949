//! One checkpoint, open for reading: its manifest, its tables and its tensors.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::dir::read_manifest;
use crate::manifest::{Content, Kind, Manifest, Part};
use crate::rows::TableReader;
use crate::table::SavedTable;
use crate::{Error, TensorFile, parts};

/// A checkpoint with all that it builds on.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    path: PathBuf,
    /// The checkpoint itself first, then what it builds on.
    chain: Vec<(PathBuf, Manifest)>,
}

impl Checkpoint {
    /// Opens the checkpoint in the directory `path` and reads its manifest and those of the
    /// checkpoints that it builds on, which stand beside it.
    ///
    /// # Errors
    /// If a manifest is missing, damaged or of another version.
    pub fn open(path: impl Into<PathBuf>) -> Result<Checkpoint, Error> {
        let path = path.into();
        let mut chain = vec![(path.clone(), read(&path)?)];
        while let Some((own, manifest)) = chain.last()
            && let Kind::Delta { base } = manifest.kind
        {
            let older = manifest.serial;
            let beside = own.parent().unwrap_or(Path::new(".")).join(format!("checkpoint_{base}"));
            let manifest = read(&beside)?;
            if base >= older || manifest.serial != base {
                let reason = format!("it builds on checkpoint {base}, which is not older");
                return Err(Error::corrupt(own, reason));
            }
            chain.push((beside, manifest));
        }
        Ok(Checkpoint { path, chain })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says about itself.
    pub fn manifest(&self) -> &Manifest {
        &self.chain[0].1
    }

    /// Directories and manifests of the checkpoint and all that it builds on, newest first.
    pub fn chain(&self) -> &[(PathBuf, Manifest)] {
        &self.chain
    }

    /// Names of its tables.
    pub fn tables(&self) -> Vec<String> {
        let parts = self.chain.iter().flat_map(|(_, manifest)| &manifest.parts);
        let names: BTreeSet<&String> = parts.filter_map(table_of).collect();
        names.into_iter().cloned().collect()
    }

    /// A table, put together from all files that hold parts of it.
    ///
    /// # Errors
    /// If there is no such table, or a file is missing or damaged.
    pub fn table(&self, name: &str) -> Result<SavedTable, Error> {
        let open = |(dir, manifest): &(PathBuf, Manifest)| {
            let own =
                manifest.parts.iter().filter(|part| table_of(part).is_some_and(|t| t == name));
            own.map(|part| TableReader::open_part(dir, part)).collect()
        };
        let chain = self.chain.iter().map(open).collect::<Result<Vec<_>, Error>>()?;
        if chain.iter().all(Vec::is_empty) {
            let (known, path) = (self.tables().join(", "), &self.path);
            return Err(Error::refused(
                path,
                format!("it holds no table '{name}' (tables: {known})"),
            ));
        }
        SavedTable::new(&self.path, name, chain)
    }

    /// Its parts with tensors, which stand alone also in a delta.
    pub fn tensor_parts(&self) -> impl Iterator<Item = &Part> {
        self.manifest().parts.iter().filter(|part| part.content == Content::Tensors)
    }

    /// The part of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn part(&self, name: &str) -> Result<&Part, Error> {
        let found = self.manifest().parts.iter().find(|part| part.name == name);
        found.ok_or_else(|| Error::refused(&self.path, format!("it has no part '{name}'")))
    }

    /// Reads a part with tensors and compares it with its checksum.
    ///
    /// # Errors
    /// If there is no such part, or it is missing or damaged.
    pub fn tensors(&self, name: &str) -> Result<TensorFile, Error> {
        parts::read_tensors(&self.path, self.part(name)?)
    }

    /// Reads a part with bytes and compares it with its checksum.
    ///
    /// # Errors
    /// If there is no such part, or it is missing or damaged.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        parts::read_bytes(&self.path, self.part(name)?)
    }
}

fn read(path: &Path) -> Result<Manifest, Error> {
    read_manifest(path).map_err(|reason| Error::corrupt(path, reason))
}

fn table_of(part: &Part) -> Option<&String> {
    match &part.content {
        Content::Table { table, .. } => Some(table),
        _ => None,
    }
}
