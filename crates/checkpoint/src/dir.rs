//! The checkpoints of a job: a directory with one `checkpoint_<serial>` per checkpoint.
//!
//! A checkpoint is written under another name (`.checkpoint_<serial>.<token>`) by everyone who
//! takes part, and gets its manifest and its own name in the end, in one step, from one of them.
//! Whatever else is in the directory belongs to someone else and is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::manifest::{Kind, MANIFEST_FILE, Manifest, name_problem};
use crate::publish::sync_dir;

const PREFIX: &str = "checkpoint_";
/// How many tokens are tried for the name of a draft.
const MAX_TOKENS: u32 = 10_000;

/// A directory of checkpoints; it need not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointDir {
    path: PathBuf,
}

/// Something in the directory that is a checkpoint or was to become one.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its number.
    pub serial: u64,
    /// Where it is.
    pub path: PathBuf,
    /// Whether it can be used.
    pub state: State,
}

/// Whether a checkpoint can be used, as far as can be told without reading all of it.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// All its files are there with their sizes, and all checkpoints that it builds on.
    Complete(Box<Manifest>),
    /// It must not be used, for this reason.
    Incomplete(String),
}

impl Entry {
    /// The manifest of a complete one.
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.state {
            State::Complete(manifest) => Some(manifest),
            State::Incomplete(_) => None,
        }
    }

    /// Whether it was never published.
    pub fn is_draft(&self) -> bool {
        self.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
    }
}

impl CheckpointDir {
    /// The checkpoints in `path`. Nothing is made or read yet.
    pub fn open(path: impl Into<PathBuf>) -> CheckpointDir {
        CheckpointDir { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the checkpoint with a serial is or would be.
    pub fn path_of(&self, serial: u64) -> PathBuf {
        self.path.join(format!("{PREFIX}{serial}"))
    }

    /// All checkpoints and drafts in order of their serials. A directory that does not exist has
    /// none.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, Error> {
        let mut drafts = Vec::new();
        let mut published = BTreeMap::new();
        for (serial, path) in self.found()? {
            match is_hidden(&path) {
                true => drafts.push((serial, path)),
                false => _ = published.insert(serial, path),
            }
        }
        let mut entries: Vec<Entry> = Vec::new();
        // In rising order: a delta comes after what it builds on.
        for (serial, path) in published {
            let state = match self.state(serial, &path, &entries) {
                Ok(manifest) => State::Complete(Box::new(manifest)),
                Err(reason) => State::Incomplete(reason),
            };
            entries.push(Entry { serial, path, state });
        }
        for (serial, path) in drafts {
            let reason = "never published: it is being written, or its writers were stopped";
            entries.push(Entry { serial, path, state: State::Incomplete(reason.into()) });
        }
        entries.sort_by(|a, b| (a.serial, &a.path).cmp(&(b.serial, &b.path)));
        Ok(entries)
    }

    /// The newest checkpoint that can be used, by names and sizes of files. To continue after a
    /// crash, use [`choose`](Self::choose), which also reads the files.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn newest_complete(&self) -> Result<Option<Entry>, Error> {
        let complete = |entry: &Entry| entry.manifest().is_some();
        Ok(self.list()?.into_iter().rev().find(complete))
    }

    /// The serial for the next checkpoint: one more than the largest, usable or not.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn next_serial(&self) -> Result<u64, Error> {
        let published = self.found()?.into_iter().filter(|(_, path)| !is_hidden(path));
        Ok(published.map(|(serial, _)| serial + 1).max().unwrap_or(0))
    }

    /// Makes an unpublished directory for the parts of a checkpoint, and the checkpoint directory
    /// if need be. One process of a job does this and tells the others the path.
    ///
    /// # Errors
    /// If there is a checkpoint with this serial, or the directory cannot be made.
    pub fn begin(&self, serial: u64) -> Result<Draft, Error> {
        let target = self.path_of(serial);
        if target.exists() {
            return Err(Error::refused(&target, "there is a checkpoint with this serial already"));
        }
        fs::create_dir_all(&self.path).map_err(Error::io("create", &self.path))?;
        let token = |n: u32| format!(".{PREFIX}{serial}.{}-{n}", std::process::id());
        for n in 0..MAX_TOKENS {
            let path = self.path.join(token(n));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Draft { dir: self.clone(), serial, path, published: false }),
                // Left by an earlier process with this number.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("create", &path)(e)),
            }
        }
        Err(Error::refused(&self.path, format!("{MAX_TOKENS} drafts of checkpoint {serial}")))
    }

    /// Removes what is no longer needed: all but the `keep` newest complete checkpoints and those
    /// that they build on, damaged ones older than all that stay, and drafts that can no longer be
    /// published. The newest complete one always stays. Gives the serials of removed checkpoints.
    ///
    /// # Errors
    /// If something cannot be read or removed.
    pub fn rotate(&self, keep: usize) -> Result<Vec<u64>, Error> {
        let entries = self.list()?;
        let Some(newest) = entries.iter().rev().find(|e| e.manifest().is_some()) else {
            return Ok(Vec::new());
        };
        let kept = kept(&entries, keep.max(1));
        let oldest_kept = kept.first().copied().unwrap_or(newest.serial);
        let superfluous = |entry: &&Entry| match &entry.state {
            _ if entry.is_draft() => entry.serial <= newest.serial,
            State::Complete(_) => !kept.contains(&entry.serial),
            // Ours, but damaged. What is not ours by its manifest may be someone else's.
            State::Incomplete(_) => {
                entry.serial < oldest_kept && Manifest::read(&entry.path).is_ok()
            }
        };
        let mut removed = Vec::new();
        // From the newest on, so that a delta goes before what it builds on.
        for entry in entries.iter().rev().filter(superfluous) {
            self.remove(entry)?;
            if !entry.is_draft() {
                removed.push(entry.serial);
            }
        }
        removed.reverse();
        Ok(removed)
    }

    /// Removes all checkpoints and drafts, and the directory if nothing else is in it.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn remove_all(&self) -> Result<(), Error> {
        self.list()?.iter().rev().try_for_each(|entry| self.remove(entry))?;
        // Not empty, or not there: both are fine.
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }

    /// A checkpoint disappears at once; its files take longer.
    fn remove(&self, entry: &Entry) -> Result<(), Error> {
        let mut path = entry.path.clone();
        if !entry.is_draft() {
            let hidden = format!(".{PREFIX}{}.removed-{}", entry.serial, std::process::id());
            path = self.path.join(hidden);
            fs::rename(&entry.path, &path).map_err(Error::io("remove", &entry.path))?;
        }
        let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        gone.map_err(Error::io("remove", &path))
    }

    /// Serials and paths of everything that has the name of a checkpoint or a draft.
    fn found(&self) -> Result<Vec<(u64, PathBuf)>, Error> {
        let listing = match fs::read_dir(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing.map_err(Error::io("read", &self.path))?,
        };
        let mut found = Vec::new();
        for entry in listing {
            let entry = entry.map_err(Error::io("read", &self.path))?;
            if let Some(serial) = entry.file_name().to_str().and_then(serial_of) {
                found.push((serial, entry.path()));
            }
        }
        Ok(found)
    }

    /// The manifest of a checkpoint that is complete; `older` are those with smaller serials.
    fn state(&self, serial: u64, path: &Path, older: &[Entry]) -> Result<Manifest, String> {
        let manifest = read_manifest(path)?;
        if manifest.serial != serial {
            return Err(format!("its manifest is that of checkpoint {}", manifest.serial));
        }
        for part in &manifest.parts {
            size_problem(path, &part.name, part.bytes).map_or(Ok(()), Err)?;
        }
        if let Kind::Delta { base } = manifest.kind {
            let usable = |e: &Entry| e.serial == base && !e.is_draft() && e.manifest().is_some();
            if !older.iter().any(usable) {
                return Err(format!("it builds on checkpoint {base}, which is not complete"));
            }
        }
        Ok(manifest)
    }
}

/// The manifest of a directory, or why it has none, in words for a list.
pub(crate) fn read_manifest(path: &Path) -> Result<Manifest, String> {
    if !path.is_dir() {
        return Err("it is no directory".into());
    }
    if !path.join(MANIFEST_FILE).exists() {
        return Err(format!(
            "there is no {MANIFEST_FILE}: it was not written or copied completely"
        ));
    }
    Manifest::read(path).map_err(|error| match error {
        Error::Corrupt { reason, .. } => format!("{MANIFEST_FILE}: {reason}"),
        Error::Version { found, supported, .. } => {
            format!("format version {found} is not supported (only {supported})")
        }
        other => other.to_string(),
    })
}

/// What is wrong with the size of a file, if anything.
pub(crate) fn size_problem(dir: &Path, name: &str, bytes: u64) -> Option<String> {
    match fs::metadata(dir.join(name)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Some(format!("{name} is missing")),
        Err(e) => Some(format!("{name} cannot be read: {e}")),
        Ok(about) if about.len() != bytes => {
            Some(format!("{name} has {} of {bytes} bytes", about.len()))
        }
        Ok(_) => None,
    }
}

pub(crate) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

/// The serial in the name of a checkpoint or of a draft.
fn serial_of(name: &str) -> Option<u64> {
    let digits = match name.strip_prefix('.') {
        Some(draft) => draft.strip_prefix(PREFIX)?.split_once('.')?.0,
        None => name.strip_prefix(PREFIX)?,
    };
    let serial: u64 = digits.parse().ok()?;
    // Not `007` or `+7`, which no checkpoint of ours is called.
    (serial.to_string() == digits && serial < u64::MAX).then_some(serial)
}

/// The newest complete checkpoints, and all that they build on.
fn kept(entries: &[Entry], n: usize) -> BTreeSet<u64> {
    let complete: BTreeMap<u64, &Manifest> =
        entries.iter().filter_map(|e| Some((e.serial, e.manifest()?))).collect();
    let mut kept: BTreeSet<u64> = complete.keys().rev().take(n).copied().collect();
    let mut open: Vec<u64> = kept.iter().copied().collect();
    while let Some(serial) = open.pop() {
        if let Some(Kind::Delta { base }) = complete.get(&serial).map(|m| m.kind)
            && kept.insert(base)
        {
            open.push(base);
        }
    }
    kept
}

/// A checkpoint that is being written. Dropped without being published, it is removed.
#[derive(Debug)]
pub struct Draft {
    dir: CheckpointDir,
    serial: u64,
    path: PathBuf,
    published: bool,
}

impl Draft {
    /// The directory for the parts. Participants write them with
    /// [`TableWriter`](crate::TableWriter), [`write_tensors`](crate::write_tensors) and
    /// [`write_bytes`](crate::write_bytes).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its number.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Makes it a checkpoint. `manifest` lists the parts as their writers have reported them;
    /// version and serial are filled in. Gives the path of the checkpoint.
    ///
    /// # Errors
    /// If a part is not there with the reported size (as when a participant has written it to
    /// another disk), a file is there that nobody reported, the checkpoint that a delta builds on
    /// is not usable, or the disk refuses. The draft is then removed.
    pub fn publish(mut self, mut manifest: Manifest) -> Result<PathBuf, Error> {
        manifest.format = crate::FORMAT_VERSION;
        manifest.serial = self.serial;
        self.check(&manifest).map_err(|reason| Error::refused(&self.path, reason))?;
        if let Kind::Delta { base } = manifest.kind {
            self.check_base(base)?;
        }
        manifest.write(&self.path)?;
        let target = self.dir.path_of(self.serial);
        let publish = || {
            sync_dir(&self.path)?;
            fs::rename(&self.path, &target)
        };
        publish().map_err(Error::io("publish", &target))?;
        self.published = true;
        sync_dir(&self.dir.path).map_err(Error::io("publish", &target))?;
        Ok(target)
    }

    fn check(&self, manifest: &Manifest) -> Result<(), String> {
        let mut names = BTreeSet::from([MANIFEST_FILE]);
        for part in &manifest.parts {
            if let Some(problem) = name_problem(&part.name) {
                return Err(problem);
            }
            if !names.insert(&part.name) {
                return Err(format!("two participants have written {}", part.name));
            }
            size_problem(&self.path, &part.name, part.bytes).map_or(Ok(()), Err)?;
        }
        let listing = fs::read_dir(&self.path).map_err(|e| e.to_string())?;
        for entry in listing.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !names.contains(name.as_str()) {
                return Err(format!("{name} is there, but nobody reported it"));
            }
        }
        Ok(())
    }

    fn check_base(&self, base: u64) -> Result<(), Error> {
        let entries = self.dir.list()?;
        let found = entries.iter().find(|e| e.serial == base && !e.is_draft());
        let reason = match found.map(|entry| &entry.state) {
            Some(State::Complete(_)) if base < self.serial => return Ok(()),
            Some(State::Complete(_)) => "which is not older".to_string(),
            Some(State::Incomplete(reason)) => format!("which is not complete: {reason}"),
            None => "which is not there".to_string(),
        };
        Err(Error::refused(&self.path, format!("it builds on checkpoint {base}, {reason}")))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // On a full disk this is what makes room again. If it fails, rotation tries later.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
