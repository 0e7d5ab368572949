//! A model that only predicts: a pruned program with its inputs, outputs and parameters.
//!
//! A directory. `model.program` is text:
//!
//! ```text
//! regatta-model 1
//! feeds x
//! fetches fc_0.tmp_0
//! hash 85944171f73967e8
//! program infer
//! block 0
//!   ...
//! ```
//!
//! The hash is that of all that follows it, and `params.safetensors` carries the same. Parameters
//! that are looked up by id are tables: their rows stand in a file of their own, one after the
//! other, all of one size, so that they can be used where they are. `manifest.json` lists
//! everything with sizes and checksums; files of tables have checksums by block, too.
//!
//! Reading order: `manifest` ([`ModelManifest`]), `tables` ([`lookup_tables`], [`TableRows`]),
//! `sums` ([`BlockSums`]), then this file.

mod manifest;
mod sums;
mod tables;

use std::fs;
use std::io::Write;
use std::path::Path;

use regatta_ir::{Origin, Program, text};
use regatta_tensor::Tensor;

use crate::checksum::{damaged, of_file};
use crate::format::{check_metadata, check_version, metadata_of, text_hash};
use crate::persistables::{take_persistables, values};
use crate::publish::{publish_dir, publish_file};
use crate::{Checksum, Error, FORMAT_VERSION, MANIFEST_FILE, load_tensors, save_tensors};

pub use manifest::{Encoding, ModelAbout, ModelFile, ModelManifest, ModelTable};
pub use sums::{BlockSums, verify_whole};
pub use tables::{EachRow, TableRows, lookup_tables};

/// Name of the program's file within the model's directory.
pub const PROGRAM_FILE: &str = "model.program";
/// Name of the parameters' file within the model's directory.
pub const PARAMS_FILE: &str = "params.safetensors";

const MAGIC: &str = "regatta-model";

/// A program with everything that is needed to run it, in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct InferenceModel {
    /// What to run.
    pub program: Program,
    /// Names of its inputs.
    pub feeds: Vec<String>,
    /// Names of its outputs.
    pub fetches: Vec<String>,
    /// Values of its persistables, in the order of the program.
    pub params: Vec<(String, Tensor)>,
}

/// A model whose tables are still on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenModel {
    /// What to run.
    pub program: Program,
    /// Names of its inputs.
    pub feeds: Vec<String>,
    /// Names of its outputs.
    pub fetches: Vec<String>,
    /// Values of its persistables but the tables, in the order of the program.
    pub params: Vec<(String, Tensor)>,
    /// Its tables and files.
    pub manifest: ModelManifest,
}

/// A model to be saved: a program that is already pruned to its outputs, and what else is known.
#[derive(Debug, Clone)]
pub struct ModelSpec<'a> {
    /// What to run.
    pub program: &'a Program,
    /// Names of its inputs.
    pub feeds: &'a [&'a str],
    /// Names of its outputs.
    pub fetches: &'a [&'a str],
    /// Where it comes from.
    pub about: ModelAbout,
    /// How rows of tables are written.
    pub encoding: Encoding,
}

/// Saves a program that is already pruned to its outputs as the directory `dir`, with whole tables.
/// A model that is there already is replaced once the new one is complete.
///
/// # Errors
/// If the inputs or outputs are not those of the program, a value is missing, `dir` holds anything
/// but a model, or something cannot be written. What was there before then stays.
pub fn save_inference_model<'t>(
    dir: impl AsRef<Path>,
    program: &Program,
    feeds: &[&str],
    fetches: &[&str],
    lookup: impl Fn(&str) -> Option<&'t Tensor>,
) -> Result<(), Error> {
    check_ends(program, feeds, fetches).map_err(|reason| Error::Model { reason })?;
    // Tables are found missing here, like everything else.
    values(program, &lookup)?;
    let about = ModelAbout { name: program.name.clone(), ..ModelAbout::default() };
    let spec = ModelSpec { program, feeds, fetches, about, encoding: Encoding::F32 };
    let whole = |name: &str| match lookup(name) {
        Some(tensor) => Ok(TableRows::Whole(tensor)),
        None => Err(Error::Model { reason: format!("table '{name}' has no value") }),
    };
    save_model(dir, &spec, &lookup, whole).map(|_| ())
}

/// Saves a model with tables that may come row by row; `lookup` finds all other values.
///
/// # Errors
/// As [`save_inference_model`], or whatever `rows` meets.
pub fn save_model<'t>(
    dir: impl AsRef<Path>,
    spec: &ModelSpec<'_>,
    lookup: impl Fn(&str) -> Option<&'t Tensor>,
    mut rows: impl FnMut(&str) -> Result<TableRows<'t>, Error>,
) -> Result<ModelManifest, Error> {
    let dir = dir.as_ref();
    let ModelSpec { program, feeds, fetches, .. } = *spec;
    check_ends(program, feeds, fetches).map_err(|reason| Error::Model { reason })?;
    let tables = lookup_tables(program);
    let dense = without(program, &tables);
    let values = values(&dense, lookup)?;
    check_free(dir)?;
    let mut manifest = ModelManifest::new(spec.about.clone());
    let fill = |temp: &Path| {
        let text = print_model(program, feeds, fetches);
        manifest.files.push(write_listed(temp, PROGRAM_FILE, text.as_bytes())?);
        save_tensors(temp.join(PARAMS_FILE), values, &metadata_of(program))?;
        manifest.files.push(listed(temp, PARAMS_FILE)?);
        for name in &tables {
            let shape = &program.block().vars[name].ty.shape;
            let dim = shape.get(1).map_or(1, |&dim| dim as usize);
            tables::write(temp, name, dim, spec.encoding, rows(name)?, &mut manifest)?;
        }
        manifest.write(temp)
    };
    publish_dir(dir, |temp| fill(temp).map_err(|error| error.moved(temp, dir)))?;
    Ok(manifest)
}

/// Reads all of a model but the rows of its tables, whose files must be there with their sizes.
///
/// # Errors
/// If a file is missing, truncated, changed, foreign or of another version, or if the files do not
/// belong together.
pub fn open_model(dir: impl AsRef<Path>) -> Result<OpenModel, Error> {
    let dir = dir.as_ref();
    let path = dir.join(PROGRAM_FILE);
    if !path.exists() && dir.join(MANIFEST_FILE).exists() {
        ModelManifest::read(dir)?;
    }
    let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| Error::corrupt(&path, "not a model: it is not text"))?;
    let (program, feeds, fetches, hash) = parse_model(text, &path)?;

    let path = dir.join(PARAMS_FILE);
    let mut file = load_tensors(&path)?;
    if check_metadata(&path, &file.metadata)? != hash {
        let reason = format!("belongs to another program than the {PROGRAM_FILE} beside it");
        return Err(Error::corrupt(&path, reason));
    }
    let manifest = ModelManifest::read(dir)?;
    let tables: Vec<String> = manifest.tables.iter().map(|table| table.name.clone()).collect();
    let expected = lookup_tables(&program);
    if tables != expected {
        let (has, needs) = (tables.join(", "), expected.join(", "));
        let reason = format!("it has the tables [{has}], but the program needs [{needs}]");
        return Err(Error::corrupt(&dir.join(MANIFEST_FILE), reason));
    }
    let params = take_persistables(&without(&program, &tables), &mut file.tensors, &path)?;
    check_sizes(dir, &manifest)?;
    for name in [PROGRAM_FILE, PARAMS_FILE] {
        check_file(dir, &manifest, name)?;
    }
    Ok(OpenModel { program, feeds, fetches, params, manifest })
}

/// Reads a model whole. A table has as many rows as the program declares; those that the file lacks
/// are zero.
///
/// # Errors
/// As [`open_model`]; if a table is damaged, or holds an id beyond the rows that are declared.
pub fn load_inference_model(dir: impl AsRef<Path>) -> Result<InferenceModel, Error> {
    let dir = dir.as_ref();
    let OpenModel { program, feeds, fetches, mut params, manifest } = open_model(dir)?;
    for table in &manifest.tables {
        let shape = &program.block().vars[&table.name].ty.shape;
        let tensor = tables::read_whole(dir, &manifest, table, shape)?;
        params.push((table.name.clone(), tensor));
    }
    let order = |name: &str| program.block().vars.get_index_of(name);
    params.sort_by_key(|(name, _)| order(name));
    Ok(InferenceModel { program, feeds, fetches, params })
}

/// Compares every byte of a model with its checksums.
///
/// # Errors
/// As [`open_model`], and for the first file that is damaged.
pub fn verify_model(dir: impl AsRef<Path>) -> Result<(), Error> {
    let dir = dir.as_ref();
    let manifest = open_model(dir)?.manifest;
    manifest.files.iter().try_for_each(|file| check_listed(dir, file))
}

/// Compares a file that need not fit into memory with its checksum.
pub(crate) fn check_listed(dir: &Path, file: &ModelFile) -> Result<(), Error> {
    let path = dir.join(&file.name);
    match of_file(&path).map_err(Error::io("read", &path))? {
        (bytes, _) if bytes != file.bytes => {
            Err(Error::corrupt(&path, format!("it has {bytes} of {} bytes", file.bytes)))
        }
        (_, found) if found != file.checksum => {
            Err(Error::corrupt(&path, damaged(found, file.checksum)))
        }
        _ => Ok(()),
    }
}

/// Whether a directory holds a model, whole or not.
pub(crate) fn is_model(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).exists();
    has(PROGRAM_FILE) || has(PARAMS_FILE) || ModelManifest::read(dir).is_ok()
}

/// Writes a file, forced to disk, for the manifest to list.
fn write_listed(dir: &Path, name: &str, bytes: &[u8]) -> Result<ModelFile, Error> {
    publish_file(&dir.join(name), |file| file.write_all(bytes))?;
    let (name, checksum) = (name.to_string(), Checksum::of(bytes));
    Ok(ModelFile { name, bytes: bytes.len() as u64, checksum })
}

/// A file that is there, for the manifest to list.
fn listed(dir: &Path, name: &str) -> Result<ModelFile, Error> {
    let path = dir.join(name);
    let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
    let (name, checksum) = (name.to_string(), Checksum::of(&bytes));
    Ok(ModelFile { name, bytes: bytes.len() as u64, checksum })
}

/// Says all that is missing at once.
fn check_sizes(dir: &Path, manifest: &ModelManifest) -> Result<(), Error> {
    let mut problems = Vec::new();
    for file in &manifest.files {
        match fs::metadata(dir.join(&file.name)) {
            Ok(found) if found.len() == file.bytes => {}
            Ok(found) => {
                let (name, is, expected) = (&file.name, found.len(), file.bytes);
                problems.push(format!("{name} has {is} of {expected} bytes"));
            }
            Err(e) => problems.push(format!("{} cannot be read: {e}", file.name)),
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::corrupt(dir, format!("the model is not whole: {}", problems.join("; "))))
}

/// Reads a file of a model and compares it with its checksum.
///
/// # Errors
/// If it is missing or damaged, or not a file of the model.
pub fn check_file(dir: &Path, manifest: &ModelManifest, name: &str) -> Result<Vec<u8>, Error> {
    let path = dir.join(name);
    let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
    verify_whole(dir, manifest, name, &bytes)?;
    Ok(bytes)
}

/// The program as far as its persistables matter, without the tables.
fn without(program: &Program, tables: &[String]) -> Program {
    let mut program = program.clone();
    program.block_mut().vars.retain(|name, _| !tables.contains(name));
    program
}

fn print_model(program: &Program, feeds: &[&str], fetches: &[&str]) -> String {
    let text = program.to_string();
    let (feeds, fetches, hash) = (feeds.join(" "), fetches.join(" "), text_hash(&text));
    format!("{MAGIC} {FORMAT_VERSION}\nfeeds {feeds}\nfetches {fetches}\nhash {hash}\n{text}")
}

fn parse_model(
    text: &str,
    path: &Path,
) -> Result<(Program, Vec<String>, Vec<String>, String), Error> {
    let mut rest = text;
    let mut header = |key: &str| {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        rest = after;
        // Without inputs the line is the key alone.
        let value = line.strip_prefix(key)?;
        (value.is_empty() || value.starts_with(' ')).then(|| value.trim_start())
    };
    let version = header(MAGIC)
        .ok_or_else(|| Error::corrupt(path, format!("not a model: no '{MAGIC}' in line 1")))?;
    check_version(path, version)?;
    let mut expect = |key: &str, line: usize| {
        let bad = || Error::corrupt(path, format!("line {line}: expected '{key} ..'; truncated?"));
        header(key).ok_or_else(bad)
    };
    let (feeds, fetches) = (expect("feeds", 2)?, expect("fetches", 3)?);
    let hash = expect("hash", 4)?.to_string();
    if text_hash(rest) != hash {
        let reason = "the program does not match its hash: the file is truncated or was changed";
        return Err(Error::corrupt(path, reason));
    }
    let program =
        text::parse(rest).map_err(|e| Error::corrupt(path, format!("after line 4, {e}")))?;
    let names = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let (feeds, fetches) = (names(feeds), names(fetches));
    check_ends(&program, &feeds, &fetches).map_err(|reason| Error::corrupt(path, reason))?;
    Ok((program, feeds, fetches, hash))
}

/// Checks that inputs and outputs are those of the program, and that no input is left out.
fn check_ends(
    program: &Program,
    feeds: &[impl AsRef<str>],
    fetches: &[impl AsRef<str>],
) -> Result<(), String> {
    let vars = &program.block().vars;
    let feeds: Vec<&str> = feeds.iter().map(AsRef::as_ref).collect();
    for name in &feeds {
        if vars.get(*name).is_none_or(|var| var.origin != Origin::Data) {
            return Err(format!("'{name}' is not an input that the outputs depend on"));
        }
    }
    for var in vars.values().filter(|var| var.origin == Origin::Data) {
        if !feeds.contains(&var.name.as_str()) {
            return Err(format!(
                "the outputs depend on '{}', which is not among the feeds",
                var.name
            ));
        }
    }
    if fetches.is_empty() {
        return Err("there are no outputs".into());
    }
    match fetches.iter().map(AsRef::as_ref).find(|name| !vars.contains_key(*name)) {
        Some(name) => Err(format!("the program has no output '{name}'")),
        None => Ok(()),
    }
}

/// Refuses to replace a directory that holds anything of another kind.
fn check_free(dir: &Path) -> Result<(), Error> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("replace", dir)(e)),
    };
    // What a manifest lists belongs to the model; without one, what every model has.
    let manifest = ModelManifest::read(dir).ok();
    let known = |name: &str| {
        let listed = manifest.as_ref().is_some_and(|m| m.file(name).is_some());
        let own = manifest.is_some() && name == MANIFEST_FILE;
        listed || own || [PROGRAM_FILE, PARAMS_FILE].contains(&name)
    };
    for entry in entries {
        let entry = entry.map_err(Error::io("replace", dir))?.file_name();
        let entry = entry.to_string_lossy().into_owned();
        if !known(&entry) {
            return Err(Error::Occupied { path: dir.to_path_buf(), entry });
        }
    }
    Ok(())
}
