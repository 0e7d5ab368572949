//! Checksums of any files in a folder, beside them: for exports in formats that have none.

use std::fs;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::checksum::of_file;
use crate::manifest::{read_checked, write_checked};
use crate::model::{ModelFile, check_listed};
use crate::{Error, FORMAT_VERSION};

/// Name of the file that holds the checksums of all others.
pub const SUMS_FILE: &str = "checksums.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSums {
    format: u32,
    /// By paths from the folder.
    files: Vec<ModelFile>,
}

/// Writes down the checksums of all files in a folder and its folders.
///
/// # Errors
/// If a file cannot be read or the checksums cannot be written.
pub fn write_file_sums(dir: &Path) -> Result<(), Error> {
    let mut files = Vec::new();
    list(dir, "", &mut files)?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    write_checked(&dir.join(SUMS_FILE), &FileSums { format: FORMAT_VERSION, files })
}

fn list(dir: &Path, prefix: &str, files: &mut Vec<ModelFile>) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let path = entry.map_err(Error::io("read", dir))?.path();
        let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = format!("{prefix}{own}");
        if path.is_dir() {
            list(&path, &format!("{name}/"), files)?;
        } else {
            let (bytes, checksum) = of_file(&path).map_err(Error::io("read", &path))?;
            files.push(ModelFile { name, bytes, checksum });
        }
    }
    Ok(())
}

/// Compares all files of a folder with their checksums, if it holds any.
///
/// # Errors
/// For the first file that is missing or damaged.
pub fn check_file_sums(dir: &Path) -> Result<(), Error> {
    if !dir.join(SUMS_FILE).exists() {
        return Ok(());
    }
    wrong_files(dir)?.into_iter().next().map_or(Ok(()), |error| match error {
        Error::Corrupt { path, reason } => {
            let hint = format!("remove {SUMS_FILE} if you have changed the file yourself");
            Err(Error::Corrupt { path, reason: format!("{reason}; {hint}") })
        }
        other => Err(other),
    })
}

/// All files of a folder that are missing or damaged.
///
/// # Errors
/// If the checksums cannot be read.
pub(crate) fn wrong_files(dir: &Path) -> Result<Vec<Error>, Error> {
    let path = dir.join(SUMS_FILE);
    let sums: FileSums = read_checked(&path)?;
    let leads_out = |file: &&ModelFile| {
        !Path::new(&file.name).components().all(|part| matches!(part, Component::Normal(_)))
    };
    if let Some(file) = sums.files.iter().find(leads_out) {
        return Err(Error::corrupt(&path, format!("'{}' is no file in this folder", file.name)));
    }
    Ok(sums.files.iter().filter_map(|file| check_listed(dir, file).err()).collect())
}
