//! Files of lines, and what is wrong with one of them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::write_error;
use crate::Error;

/// Writes a file of lines.
pub(super) fn write_lines(path: &Path, lines: impl Iterator<Item = String>) -> Result<(), Error> {
    let write = || {
        let mut file = BufWriter::new(File::create_new(path)?);
        for line in lines {
            writeln!(file, "{line}")?;
        }
        file.into_inner().map_err(|e| e.into_error())?.sync_all()
    };
    write().map_err(write_error(path))
}

/// Calls `line` with every line of a file; an error names the file and the line.
pub(super) fn read_lines(
    path: &Path,
    mut line: impl FnMut(&str) -> Result<(), String>,
) -> Result<(), Error> {
    let fail = |source| Error::Map { path: path.to_path_buf(), source };
    let file = BufReader::new(File::open(path).map_err(fail)?);
    for (i, text) in file.lines().enumerate() {
        let wrong = |reason| Error::Input(format!("{}:{}: {reason}", path.display(), i + 1));
        line(&text.map_err(fail)?).map_err(wrong)?;
    }
    Ok(())
}

/// The files of a folder whose names begin and end so, in order.
pub(super) fn files(folder: &Path, begin: &str, end: &str) -> Result<Vec<PathBuf>, Error> {
    let fail = |source| Error::Map { path: folder.to_path_buf(), source };
    let entries = fs::read_dir(folder).map_err(fail)?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(fail)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        if name.is_some_and(|name| name.starts_with(begin) && name.ends_with(end)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// A word as an id.
pub(super) fn id(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("'{word}' is no id"))
}

/// A word as a number.
pub(super) fn number(word: &str) -> Result<f32, String> {
    word.parse().map_err(|_| format!("'{word}' is no number"))
}
