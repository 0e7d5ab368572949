//! Everything that is wrong with what is stored, by file and byte: checkpoints, saved epochs and
//! models.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::checksum::Checksum;
use crate::dir::{CheckpointDir, Entry, State, is_hidden, size_problem};
use crate::epoch::{ABOUT_FILE, epoch_files, is_epoch, load_about};
use crate::file_sums::{SUMS_FILE, wrong_files};
use crate::manifest::{Content, MANIFEST_FILE, Manifest, Part};
use crate::model::{ModelFile, ModelManifest, check_listed, is_model, open_model};
use crate::parts::damage;
use crate::resume::Check;
use crate::rows::{BlockBuffer, TableReader};
use crate::{Error, OpenTensors, PERSISTABLES_FILE, server_parts};

/// Something wrong with what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file or directory.
    pub path: PathBuf,
    /// Where in the file, if that can be told.
    pub offset: Option<u64>,
    /// What it is.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)?;
        self.offset.map_or(Ok(()), |offset| write!(f, " (at byte {offset})"))
    }
}

impl Problem {
    fn new(path: &Path, reason: impl Into<String>) -> Problem {
        Problem { path: path.to_path_buf(), offset: None, reason: reason.into() }
    }

    /// What an error says; it may name a file more exactly than the caller can.
    fn of(path: &Path, error: Error) -> Problem {
        match error {
            Error::Corrupt { path, reason } | Error::Refused { path, reason } => {
                Problem { path, offset: None, reason }
            }
            Error::Io { ref path, .. } => Problem::new(&path.clone(), without_path(error)),
            other => Problem::new(path, without_path(other)),
        }
    }
}

/// What was found at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// `checkpoint`, `saved epoch`, `model` or `export`.
    pub what: &'static str,
    /// How many of them were read.
    pub n: usize,
    /// Everything that is wrong with them.
    pub problems: Vec<Problem>,
}

/// Reads every byte of what is at `path`, whatever that is: a checkpoint, a directory of them, a
/// saved epoch, a directory of them, a model, or an export in another format.
///
/// # Errors
/// If it is none of these, or a directory cannot be read.
pub fn verify_path(path: &Path) -> Result<Verification, Error> {
    let one = |what, problems| Ok(Verification { what, n: 1, problems });
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_named = name.is_some_and(|name| name.starts_with("checkpoint_"));
    if !path.is_dir() {
        return Err(Error::refused(path, "it is no directory"));
    }
    if is_model(path) {
        return one("model", verify_model_files(path));
    }
    // Before epochs, whose files may have the same names.
    if path.join(MANIFEST_FILE).exists() || is_named {
        return one("checkpoint", verify(path, Check::Checksums));
    }
    if path.join(SUMS_FILE).exists() {
        let wrong = wrong_files(path).unwrap_or_else(|error| vec![error]);
        return one("export", wrong.into_iter().map(|e| Problem::of(path, e)).collect());
    }
    if is_epoch(path) {
        return one("saved epoch", verify_epoch(path));
    }
    let (n, problems) = verify_all(&CheckpointDir::open(path), Check::Checksums)?;
    if n > 0 {
        return Ok(Verification { what: "checkpoint", n, problems });
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(path).map_err(Error::io("read", path))? {
        folders.push(entry.map_err(Error::io("read", path))?.path());
    }
    folders.retain(|folder| !is_hidden(folder) && is_epoch(folder));
    if folders.is_empty() {
        let reason = "there is no checkpoint, no saved epoch and no model";
        return Err(Error::refused(path, reason));
    }
    folders.sort();
    let problems = folders.iter().flat_map(|folder| verify_epoch(folder)).collect();
    Ok(Verification { what: "saved epoch", n: folders.len(), problems })
}

/// Reads all files of a saved epoch, and of the model that was exported with it.
fn verify_epoch(dir: &Path) -> Vec<Problem> {
    let files = match epoch_files(dir) {
        Ok(files) => files,
        Err(error) => return vec![Problem::of(dir, error)],
    };
    let mut problems = Vec::new();
    let is_part = |name: &&String| server_parts::is_part(name);
    for name in files.iter().filter(|name| !is_part(name)) {
        let path = dir.join(name);
        let checked = match name == ABOUT_FILE {
            true => load_about(dir).map(|_| ()),
            false => OpenTensors::open(&path).and_then(|file| file.check()),
        };
        problems.extend(checked.err().map(|error| Problem::of(&path, error)));
    }
    if files.iter().any(|name| is_part(&name)) {
        match server_parts::open_all(dir) {
            Err(error) => problems.push(Problem::of(dir, error)),
            Ok(parts) => {
                let errors = parts.into_iter().filter_map(Result::err);
                problems.extend(errors.map(|error| Problem::of(dir, error)));
            }
        }
    } else if !files.iter().any(|name| name == PERSISTABLES_FILE) {
        problems.push(Problem::new(&dir.join(PERSISTABLES_FILE), "missing"));
    }
    for folder in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if is_model(&folder) {
            problems.extend(verify_model_files(&folder));
        }
    }
    problems
}

/// Reads all files of a model.
fn verify_model_files(dir: &Path) -> Vec<Problem> {
    let manifest = match ModelManifest::read(dir) {
        Ok(manifest) => manifest,
        Err(error) => return vec![Problem::of(&dir.join(MANIFEST_FILE), error)],
    };
    let check = |file: &ModelFile| {
        check_listed(dir, file).err().map(|error| Problem::of(&dir.join(&file.name), error))
    };
    let mut problems: Vec<Problem> = manifest.files.iter().filter_map(check).collect();
    let is_listed = |name: &str| name == MANIFEST_FILE || manifest.file(name).is_some();
    for name in fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name()) {
        let name = name.to_string_lossy().into_owned();
        if !is_listed(&name) {
            problems.push(Problem::new(&dir.join(&name), "not part of the model"));
        }
    }
    if problems.is_empty() {
        // The files are as they were written: whether they belong together.
        problems.extend(open_model(dir).err().map(|error| Problem::of(dir, error)));
    }
    problems
}

/// Looks at the checkpoint in `path` and at all that it builds on. Nothing wrong: an empty list.
pub fn verify(path: &Path, check: Check) -> Vec<Problem> {
    match Checkpoint::open(path) {
        Err(Error::Corrupt { path, reason }) => vec![Problem::new(&path, reason)],
        Err(other) => vec![Problem::new(path, without_path(other))],
        Ok(checkpoint) => {
            let chain = checkpoint.chain().iter();
            chain.flat_map(|(dir, manifest)| verify_one(dir, manifest, check)).collect()
        }
    }
}

/// Looks at all published checkpoints of a directory, each file once. Gives how many there are, and
/// what is wrong.
///
/// # Errors
/// If the directory cannot be read.
pub fn verify_all(dir: &CheckpointDir, check: Check) -> Result<(usize, Vec<Problem>), Error> {
    let mut problems = Vec::new();
    let entries = dir.list()?;
    let published: Vec<&Entry> = entries.iter().filter(|entry| !entry.is_draft()).collect();
    for entry in &published {
        match &entry.state {
            State::Complete(manifest) => problems.extend(verify_one(&entry.path, manifest, check)),
            State::Incomplete(reason) => {
                let mut own = verify(&entry.path, check);
                own.retain(|problem| problem.path.starts_with(&entry.path));
                if own.is_empty() {
                    own.push(Problem::new(&entry.path, reason.clone()));
                }
                problems.extend(own);
            }
        }
    }
    Ok((published.len(), problems))
}

fn verify_one(dir: &Path, manifest: &Manifest, check: Check) -> Vec<Problem> {
    let mut problems = Vec::new();
    for part in &manifest.parts {
        let path = dir.join(&part.name);
        match (size_problem(dir, &part.name, part.bytes), check) {
            (Some(problem), Check::Sizes) => problems.push(Problem::new(&path, problem)),
            (None, Check::Sizes) => {}
            (size, Check::Checksums) => {
                let found = verify_part(dir, part);
                // A wrong size is told only if the file itself does not say more.
                match size.filter(|_| found.is_empty()) {
                    Some(problem) => problems.push(Problem::new(&path, problem)),
                    None => problems.extend(found),
                }
            }
        }
    }
    let is_part =
        |name: &str| name == MANIFEST_FILE || manifest.parts.iter().any(|p| p.name == name);
    for name in fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name()) {
        let name = name.to_string_lossy().into_owned();
        if check == Check::Checksums && !is_part(&name) {
            problems.push(Problem::new(&dir.join(&name), "not part of the checkpoint"));
        }
    }
    problems
}

/// What an error says besides the path, which a problem names itself.
fn without_path(error: Error) -> String {
    match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => "missing".into(),
        Error::Io { source, .. } => format!("cannot be read: {source}"),
        Error::Corrupt { reason, .. } => reason,
        Error::Version { found, supported, .. } => {
            format!("format version {found} is not supported (only {supported})")
        }
        other => other.to_string(),
    }
}

fn verify_part(dir: &Path, part: &Part) -> Vec<Problem> {
    let path = dir.join(&part.name);
    if let Content::Table { .. } = part.content {
        return verify_table(dir, part);
    }
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) => return vec![Problem::new(&path, without_path(Error::io("read", &path)(e)))],
    };
    if bytes.len() as u64 != part.bytes {
        let reason = format!("it has {} of {} bytes", bytes.len(), part.bytes);
        let offset = Some((bytes.len() as u64).min(part.bytes));
        return vec![Problem { path, offset, reason }];
    }
    if Checksum::of(&bytes) == part.checksum {
        return Vec::new();
    }
    let reason = damage(&path, &bytes, part);
    vec![Problem { path, offset: None, reason }]
}

fn verify_table(dir: &Path, part: &Part) -> Vec<Problem> {
    let path = dir.join(&part.name);
    let reader = match TableReader::open_part(dir, part) {
        Ok(reader) => reader,
        Err(Error::Corrupt { path, reason }) => return vec![Problem::new(&path, reason)],
        Err(other) => return vec![Problem::new(&path, without_path(other))],
    };
    let mut buffer = BlockBuffer::default();
    let check = |block: usize| reader.check_block(block, &mut buffer).err();
    let flaws = (0..reader.n_blocks()).filter_map(check);
    flaws
        .map(|flaw| Problem { path: path.clone(), offset: Some(flaw.offset), reason: flaw.reason })
        .collect()
}
