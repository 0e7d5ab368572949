//! What stands beside the values of a saved epoch: which training it comes from, and the statistics
//! that servers do not hold.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::Path;

use regatta_ir::{Origin, Program, Role};
use regatta_tensor::Tensor;

use crate::checksum::NO_CHECKSUM;
use crate::format::{check_metadata, metadata_of};
use crate::manifest::{checked_text, read_checked};
use crate::persistables::{PERSISTABLES_FILE, take_persistables, values};
use crate::publish::{publish_dir, publish_file, try_dir};
use crate::{
    Error, ModelAbout, ModelManifest, OpenTensors, TensorFile, load_checked, save_tensors,
    server_parts,
};

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
    let text = checked_text(&path, about)?;
    publish_file(&path, |file| file.write_all(text.as_bytes()))
}

/// Where an epoch comes from, if it says so.
///
/// # Errors
/// If it is damaged, or says it in a way that cannot be understood.
pub fn load_about(dir: impl AsRef<Path>) -> Result<Option<ModelAbout>, Error> {
    let path = dir.as_ref().join(ABOUT_FILE);
    if !path.exists() {
        return Ok(None);
    }
    match read_checked(&path) {
        Ok(about) => Ok(Some(about)),
        // What earlier versions wrote ends without a checksum.
        Err(_) if unchecked_about(&path).is_some() => Err(Error::corrupt(&path, NO_CHECKSUM)),
        Err(error) => Err(error),
    }
}

/// The file of an earlier version.
fn unchecked_about(path: &Path) -> Option<ModelAbout> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Adds checksums to the files of an epoch that earlier versions wrote. Gives their names.
///
/// # Errors
/// If a file cannot be read or written, or has a checksum that does not fit.
pub fn add_checksums(dir: impl AsRef<Path>) -> Result<Vec<String>, Error> {
    let dir = dir.as_ref();
    let mut changed = Vec::new();
    for name in epoch_files(dir)? {
        let path = dir.join(&name);
        if name == ABOUT_FILE {
            let Some(about) = unchecked_about(&path) else { continue };
            save_about(dir, &about)?;
        } else {
            let file = OpenTensors::open(&path)?;
            if file.has_checksum() {
                continue;
            }
            let TensorFile { tensors, metadata } = file.read_all()?;
            save_tensors(&path, &tensors, &metadata)?;
        }
        changed.push(name);
    }
    Ok(changed)
}

/// Names of all files of a saved epoch, in order.
///
/// # Errors
/// If the folder cannot be read.
pub(crate) fn epoch_files(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let entry = entry.map_err(Error::io("read", dir))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    names.retain(|name| is_epoch_file(name));
    Ok(names)
}

/// Publishes a saved epoch: `fill` writes all of its files, which then appear at once in the place
/// of those that were there.
///
/// # Errors
/// Those of `fill`; if the folder holds anything that is not part of an epoch, or cannot be
/// written. What was there before then stays.
pub fn publish_epoch<E: From<Error>>(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    check_free(dir)?;
    publish_dir(dir, fill)
}

/// Tries whether an epoch can be published as `dir`, without leaving anything behind.
///
/// # Errors
/// If it cannot be written, or holds anything that is not part of an epoch.
pub fn try_epoch(dir: &Path) -> Result<(), Error> {
    try_dir(dir)?;
    check_free(dir)
}

/// Refuses to replace a folder that holds anything of another kind.
fn check_free(dir: &Path) -> Result<(), Error> {
    if !dir.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).map_err(Error::io("replace", dir))? {
        let entry = entry.map_err(Error::io("replace", dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // What a process that was killed has left.
        let is_draft = name.starts_with('.') && name.ends_with(".tmp");
        if !is_epoch_file(&name) && !is_draft && ModelManifest::read(&entry.path()).is_err() {
            return Err(Error::Occupied { path: dir.to_path_buf(), entry: name });
        }
    }
    Ok(())
}

/// Whether a file name is one of those of a saved epoch.
fn is_epoch_file(name: &str) -> bool {
    let names = [ABOUT_FILE, PERSISTABLES_FILE, STATISTICS_FILE];
    names.contains(&name) || server_parts::is_part(name)
}

/// Whether a folder holds a saved epoch, whole or not.
pub fn is_epoch(dir: &Path) -> bool {
    epoch_files(dir).is_ok_and(|files| !files.is_empty())
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
    let mut file = load_checked(&path)?;
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
