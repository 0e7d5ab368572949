//! What stands beside the values of a saved epoch: which training it comes from, and the statistics
//! that servers do not hold.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::Path;

use regatta_ir::{Origin, Program, Role};
use regatta_tensor::Tensor;

use crate::format::{check_metadata, metadata_of};
use crate::persistables::{take_persistables, values};
use crate::publish::publish_file;
use crate::{Error, ModelAbout, load_tensors, save_tensors};

/// Name of the file that says where an epoch comes from.
pub const ABOUT_FILE: &str = "about.json";

/// Name of the file of statistics, such as running means, beside the parts of servers.
pub const STATISTICS_FILE: &str = "statistics.safetensors";

/// Says in the folder of an epoch where it comes from.
///
/// # Errors
/// If the file cannot be written.
pub fn save_about(dir: impl AsRef<Path>, about: &ModelAbout) -> Result<(), Error> {
    let path = dir.as_ref().join(ABOUT_FILE);
    let text =
        serde_json::to_string_pretty(about).map_err(|e| Error::corrupt(&path, e.to_string()))?;
    publish_file(&path, |file| writeln!(file, "{text}"))
}

/// Where an epoch comes from, if it says so.
///
/// # Errors
/// If it says it in a way that cannot be understood.
pub fn load_about(dir: impl AsRef<Path>) -> Result<Option<ModelAbout>, Error> {
    let path = dir.as_ref().join(ABOUT_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let about = serde_json::from_str(&text)
        .map_err(|e| Error::corrupt(&path, format!("it does not say where it comes from: {e}")))?;
    Ok(Some(about))
}

/// Saves the statistics of a program into a folder beside the parts of servers; a program without
/// any leaves no file.
///
/// # Errors
/// If a value is missing or is not what the program declares, or the file cannot be written.
pub fn save_statistics<'t>(
    program: &Program,
    lookup: impl Fn(&str) -> Option<&'t Tensor>,
    dir: impl AsRef<Path>,
) -> Result<(), Error> {
    let statistics = statistics(program);
    if statistics.block().vars.is_empty() {
        return Ok(());
    }
    let values = values(&statistics, lookup)?;
    save_tensors(dir.as_ref().join(STATISTICS_FILE), values, &metadata_of(program))
}

/// The statistics of a program from a folder; nothing for a program without any.
///
/// # Errors
/// If the program has some and the file is missing, damaged, or of another program.
pub fn load_statistics(
    program: &Program,
    dir: impl AsRef<Path>,
) -> Result<Vec<(String, Tensor)>, Error> {
    let statistics = statistics(program);
    if statistics.block().vars.is_empty() {
        return Ok(vec![]);
    }
    let path = dir.as_ref().join(STATISTICS_FILE);
    let mut file = load_tensors(&path)?;
    check_metadata(&path, &file.metadata)?;
    take_persistables(&statistics, &mut file.tensors, &path)
}

/// A program without anything but its statistics: what predictions read, and nobody learns.
fn statistics(program: &Program) -> Program {
    let forward = program.block().ops.iter().filter(|op| op.role == Role::Forward);
    let read: HashSet<&str> = forward.flat_map(|op| op.input_vars()).collect();
    let mut only = Program::new(&program.name);
    let vars = program.block().vars.iter();
    let vars = vars.filter(|(name, v)| v.origin == Origin::Persist && read.contains(name.as_str()));
    only.block_mut().vars = vars.map(|(name, var)| (name.clone(), var.clone())).collect();
    only
}
