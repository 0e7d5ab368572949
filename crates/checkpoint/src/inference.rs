//! A model that only predicts: a pruned program with its inputs, outputs and parameters.
//!
//! A directory of two files. `model.program` is text:
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
//! The hash is that of all that follows it, and `params.safetensors` carries the same.

use std::fs;
use std::io::Write;
use std::path::Path;

use regatta_ir::{Origin, Program, text};
use regatta_tensor::Tensor;

use crate::format::{check_metadata, check_version, metadata_of, text_hash};
use crate::persistables::{take_persistables, values};
use crate::publish::{publish_dir, publish_file};
use crate::{Error, FORMAT_VERSION, load_tensors, save_tensors};

/// Name of the program's file within the model's directory.
pub const PROGRAM_FILE: &str = "model.program";
/// Name of the parameters' file within the model's directory.
pub const PARAMS_FILE: &str = "params.safetensors";

const MAGIC: &str = "regatta-model";

/// A program with everything that is needed to run it.
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

/// Saves a program that is already pruned to its outputs as the directory `dir`. A model that is
/// there already is replaced once the new one is complete.
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
    let dir = dir.as_ref();
    check_ends(program, feeds, fetches).map_err(|reason| Error::Model { reason })?;
    let values = values(program, lookup)?;
    check_free(dir)?;
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }
    publish_dir(dir, |temp| {
        let text = print_model(program, feeds, fetches);
        publish_file(&temp.join(PROGRAM_FILE), |file| file.write_all(text.as_bytes()))?;
        save_tensors(temp.join(PARAMS_FILE), values, &metadata_of(program))
    })
}

/// Reads a model that [`save_inference_model`] wrote.
///
/// # Errors
/// If a file is missing, truncated, changed, foreign or of another version, or if program and
/// parameters do not belong together.
pub fn load_inference_model(dir: impl AsRef<Path>) -> Result<InferenceModel, Error> {
    let path = dir.as_ref().join(PROGRAM_FILE);
    let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::corrupt(&path, "not a model: it is not text"))?;
    let (program, feeds, fetches, hash) = parse_model(&text, &path)?;

    let path = dir.as_ref().join(PARAMS_FILE);
    let mut file = load_tensors(&path)?;
    if check_metadata(&path, &file.metadata)? != hash {
        let reason = format!("belongs to another program than the {PROGRAM_FILE} beside it");
        return Err(Error::corrupt(&path, reason));
    }
    let params = take_persistables(&program, &mut file.tensors, &path)?;
    Ok(InferenceModel { program, feeds, fetches, params })
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
    for entry in entries {
        let entry = entry.map_err(Error::io("replace", dir))?.file_name();
        if entry != PROGRAM_FILE && entry != PARAMS_FILE {
            let entry = entry.to_string_lossy().into_owned();
            return Err(Error::Occupied { path: dir.to_path_buf(), entry });
        }
    }
    Ok(())
}
