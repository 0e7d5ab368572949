//! Everything that is wrong with a checkpoint, by file and byte.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::checksum::Checksum;
use crate::dir::{CheckpointDir, Entry, State, size_problem};
use crate::manifest::{Content, MANIFEST_FILE, Manifest, Part};
use crate::parts::damage;
use crate::resume::Check;
use crate::rows::{BlockBuffer, TableReader};

/// Something wrong with a checkpoint.
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
