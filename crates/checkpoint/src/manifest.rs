//! The manifest of a checkpoint: what it is a checkpoint of, how far training was, and every file
//! with its size and checksum. It is written last, so a directory with a manifest was complete.
//!
//! `manifest.json` ends with a checksum of all the text before it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use regatta_table::SaveMode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checksum::Checksum;
use crate::{Error, FORMAT_VERSION};

/// Name of the manifest within a checkpoint.
pub const MANIFEST_FILE: &str = "manifest.json";
/// What the text of a manifest ends with, before the digits of the checksum.
const TAIL: &str = ",\n  \"checksum\": \"";

/// Everything about a checkpoint except the values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format; filled in when it is published.
    pub format: u32,
    /// Its number; filled in when it is published.
    pub serial: u64,
    /// Whether it stands alone.
    pub kind: Kind,
    /// Which rows of tables it holds. Training can continue from `all` and `day` only.
    pub mode: SaveMode,
    /// Hash of the program's text; see [`program_hash`](crate::program_hash).
    pub program_hash: String,
    /// The resolved configuration of the job.
    pub config: Value,
    /// Who took part.
    pub topology: Topology,
    /// How far training was.
    pub progress: Progress,
    /// Everything random that does not follow from seed and position, by name: seeds and counters.
    pub rng: BTreeMap<String, u64>,
    /// Where the learning-rate schedule was.
    pub learning_rate: LearningRate,
    /// All other files.
    pub parts: Vec<Part>,
}

/// Whether a checkpoint stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It does.
    Full,
    /// Its tables hold what differs from another checkpoint in the same directory.
    Delta {
        /// Serial of that one, which may be a delta, too.
        base: u64,
    },
}

/// Who took part in the training.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// `local`, `sync`, `async`, `geo`, `collective`, ...
    pub mode: String,
    /// Parameter servers.
    pub servers: usize,
    /// Workers that read data.
    pub workers: usize,
    /// Members of the collective group.
    pub ranks: usize,
}

/// How far training was.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The pass over the data, from 0.
    pub epoch: u64,
    /// Steps that are done in this epoch.
    pub step: u64,
    /// Steps that are done in all.
    pub global_step: u64,
    /// Where each worker is in its data.
    pub workers: Vec<WorkerPosition>,
}

/// Where one worker is in its data.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerPosition {
    /// Its index.
    pub worker: usize,
    /// Its pass over the data, from 0.
    pub epoch: u64,
    /// Batches of this epoch whose gradients are in the checkpoint.
    pub batches: u64,
    /// Examples in them.
    pub examples: u64,
    /// What else its reader needs to continue.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reader: BTreeMap<String, Value>,
}

/// Where a learning-rate schedule was.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearningRate {
    /// Steps that it has counted.
    pub step: u64,
    /// The rate of the last one.
    pub value: f64,
}

/// A file of a checkpoint, as the one who wrote it describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its name within the checkpoint.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Of the file; of a table's file the checksum of its index, which holds those of its blocks.
    pub checksum: Checksum,
    /// What is in it.
    pub content: Content,
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Content {
    /// Named tensors, as safetensors.
    Tensors,
    /// Rows of a table.
    Table {
        /// Name of the table.
        table: String,
        /// How many rows.
        rows: u64,
        /// How many ids that wait for admission.
        candidates: u64,
        /// How many ids that are gone (in a delta).
        removed: u64,
    },
    /// Bytes that only their writer understands.
    Bytes,
}

impl Manifest {
    /// The manifest of a full checkpoint, to be filled in.
    pub fn new(program_hash: impl Into<String>, topology: Topology, progress: Progress) -> Self {
        Manifest {
            format: FORMAT_VERSION,
            serial: 0,
            kind: Kind::Full,
            mode: SaveMode::All,
            program_hash: program_hash.into(),
            config: Value::Null,
            topology,
            progress,
            rng: BTreeMap::new(),
            learning_rate: LearningRate::default(),
            parts: Vec::new(),
        }
    }

    /// Reads the manifest of the checkpoint in `dir`.
    ///
    /// # Errors
    /// If it is not there, of another version, damaged, or no manifest.
    pub fn read(dir: &Path) -> Result<Manifest, Error> {
        let path = dir.join(MANIFEST_FILE);
        let corrupt = |reason: String| Error::corrupt(&path, reason);
        let manifest: Manifest = read_checked(&path)?;
        match manifest.parts.iter().find_map(|part| name_problem(&part.name)) {
            Some(problem) => Err(corrupt(problem)),
            None => Ok(manifest),
        }
    }

    /// Writes it as the last file of `dir`, forced to disk.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), Error> {
        write_checked(&dir.join(MANIFEST_FILE), self)
    }

    /// Whether training can continue from it.
    pub fn is_resumable(&self) -> bool {
        matches!(self.mode, SaveMode::All | SaveMode::Day)
    }

    /// Refuses a checkpoint of another program.
    ///
    /// # Errors
    /// If the hash is another.
    pub fn check_program(&self, path: &Path, hash: &str) -> Result<(), Error> {
        if self.program_hash == hash {
            return Ok(());
        }
        let reason = format!(
            "it belongs to another program (hash {}, this job's is {hash}); change the program \
             back, or begin anew with --resume none",
            self.program_hash
        );
        Err(Error::corrupt(path, reason))
    }
}

/// Reads a file that [`write_checked`] wrote.
pub(crate) fn read_checked<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let corrupt = |reason: String| Error::corrupt(path, reason);
    let text = String::from_utf8(bytes).map_err(|_| corrupt("it is not text".into()))?;
    if let Some(found) = version(&text).filter(|found| *found != u64::from(FORMAT_VERSION)) {
        let (path, found) = (path.to_path_buf(), found.to_string());
        return Err(Error::Version { path, found, supported: FORMAT_VERSION });
    }
    let body = checked_body(&text).map_err(corrupt)?;
    serde_json::from_str(&body).map_err(|e| corrupt(format!("no manifest: {e}")))
}

/// Writes an object as JSON that ends with a checksum of its own text, forced to disk.
pub(crate) fn write_checked(path: &Path, object: &impl Serialize) -> Result<(), Error> {
    let text = checked_text(path, object)?;
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(Error::io("write", path))
}

/// The JSON of an object, with a checksum of its own text at the end.
pub(crate) fn checked_text(path: &Path, object: &impl Serialize) -> Result<String, Error> {
    let text =
        serde_json::to_string_pretty(object).map_err(|e| Error::corrupt(path, e.to_string()))?;
    let body = text.strip_suffix("\n}").unwrap_or(&text);
    Ok(format!("{body}{TAIL}{}\"\n}}\n", Checksum::of(body.as_bytes())))
}

/// The version that a text claims to have, however damaged or foreign the rest is.
fn version(text: &str) -> Option<u64> {
    serde_json::from_str::<Value>(text).ok()?.get("format")?.as_u64()
}

/// The text before the checksum, made a whole object again.
fn checked_body(text: &str) -> Result<String, String> {
    let end = text.rfind(TAIL).ok_or("it is cut off: there is no checksum at its end")?;
    let (body, tail) = text.split_at(end);
    let digits = tail[TAIL.len()..].strip_suffix("\"\n}\n").ok_or("it is cut off at its end")?;
    let actual = Checksum::of(body.as_bytes());
    if digits != actual.to_string() {
        return Err(format!("it is damaged: its checksum is {actual}, not {digits}"));
    }
    Ok(format!("{body}\n}}"))
}

/// What is wrong with the name of a part. Names come from files and from other processes, and are
/// joined to paths.
pub(crate) fn name_problem(name: &str) -> Option<String> {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_.+@=".contains(c);
    let valid = !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name != MANIFEST_FILE
        && name.chars().all(safe);
    (!valid).then(|| format!("'{name}' is no name for a part of a checkpoint"))
}

/// A name for a part that holds something of this name, which may have any characters: those that
/// files should not have become `+` and their number.
pub fn part_name(name: &str, rest: &str) -> String {
    let mut safe = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => safe.push(char::from(byte)),
            b'.' if !safe.is_empty() => safe.push('.'),
            _ => safe.push_str(&format!("+{byte:02x}")),
        }
    }
    if safe.len() > 120 {
        // Names that differ only further on stay different.
        safe.truncate(100);
        safe.push_str(&format!("+{}", Checksum::of(name.as_bytes())));
    }
    format!("{safe}.{rest}")
}
