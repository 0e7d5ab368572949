//! Everything that a program keeps between runs: parameters, optimizer state, statistics.

use std::fs;
use std::path::Path;

use regatta_ir::Program;
use regatta_tensor::{DType, Tensor};

use crate::format::{check_metadata, differences, metadata_of};
use crate::{Difference, Error, load_checked, save_tensors};

/// Name of the file within its directory.
pub const PERSISTABLES_FILE: &str = "persistables.safetensors";

/// Saves every persistable of `program` into `dir`, which is made if need be. `lookup` finds the
/// value of a name.
///
/// # Errors
/// If a value is missing or is not what the program declares (all such are listed), or the file
/// cannot be written. What was saved there before then stays.
pub fn save_persistables<'t>(
    program: &Program,
    lookup: impl Fn(&str) -> Option<&'t Tensor>,
    dir: impl AsRef<Path>,
) -> Result<(), Error> {
    let dir = dir.as_ref();
    let values = values(program, lookup)?;
    let was_there = dir.exists();
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    save_tensors(dir.join(PERSISTABLES_FILE), values, &metadata_of(program)).inspect_err(|_| {
        if !was_there {
            let _ = fs::remove_dir(dir);
        }
    })
}

/// Reads the persistables of `program` from `dir`, in the order of the program.
///
/// The program need not be the one that was saved, as long as it keeps the same variables.
///
/// # Errors
/// If the file is missing, damaged or of another version, or if names, shapes or element types
/// differ from the program's (all differences are listed).
pub fn load_persistables(
    program: &Program,
    dir: impl AsRef<Path>,
) -> Result<Vec<(String, Tensor)>, Error> {
    let path = dir.as_ref().join(PERSISTABLES_FILE);
    let mut file = load_checked(&path)?;
    check_metadata(&path, &file.metadata)?;
    take_persistables(program, &mut file.tensors, &path)
}

/// The first persistable of a program that holds NaN or infinity.
pub fn not_finite<'t>(
    program: &Program,
    lookup: impl Fn(&str) -> Option<&'t Tensor>,
) -> Option<String> {
    let mut names = program.persistables().map(|var| var.name.as_str());
    names.find(|name| lookup(name).is_some_and(has_non_finite)).map(str::to_string)
}

/// Whether a tensor of floats holds NaN or infinity.
pub(crate) fn has_non_finite(tensor: &Tensor) -> bool {
    tensor.dtype() == DType::F32 && tensor.f32().iter().any(|x| !x.is_finite())
}

/// The values of a program's persistables, in the order of the program.
pub(crate) fn values<'p, 't>(
    program: &'p Program,
    lookup: impl Fn(&str) -> Option<&'t Tensor>,
) -> Result<Vec<(&'p str, &'t Tensor)>, Error> {
    let differences = differences(program, &lookup);
    if !differences.is_empty() {
        return Err(Error::Values { program: program.name.clone(), differences });
    }
    let names = program.persistables().map(|var| var.name.as_str());
    Ok(names.filter_map(|name| Some((name, lookup(name)?))).collect())
}

/// Takes a program's persistables out of what a file holds; nothing may be left.
pub(crate) fn take_persistables(
    program: &Program,
    tensors: &mut std::collections::BTreeMap<String, Tensor>,
    path: &Path,
) -> Result<Vec<(String, Tensor)>, Error> {
    let mut differences = differences(program, |name| tensors.get(name));
    let known =
        |name: &&String| program.block().vars.get(*name).is_some_and(|v| v.is_persistable());
    let strangers = tensors.keys().filter(|name| !known(name));
    differences.extend(strangers.map(|name| Difference::Unexpected { name: name.clone() }));
    if !differences.is_empty() {
        let (path, program) = (path.to_path_buf(), program.name.clone());
        return Err(Error::Mismatch { path, program, differences });
    }
    Ok(program.persistables().filter_map(|var| tensors.remove_entry(&var.name)).collect())
}
