//! Files of this machine.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::{Entry, Error, Store};

/// The file system.
pub(crate) struct Local;

impl Store for Local {
    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        let mut found = Vec::new();
        if Path::new(folder).is_dir() {
            list_into(Path::new(folder), &mut found)?;
        }
        found.sort();
        Ok(found)
    }

    fn size(&self, path: &str) -> Result<Option<u64>, Error> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(metadata.is_file().then_some(metadata.len())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(path, e)),
        }
    }

    fn open(&self, path: &str) -> Result<Box<dyn Read + Send>, Error> {
        match fs::File::open(path) {
            Ok(file) => Ok(Box::new(file)),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(Error::Missing(path.to_string())),
            Err(e) => Err(Error::io(path, e)),
        }
    }

    fn put(&self, file: &Path, path: &str) -> Result<(), Error> {
        let to = PathBuf::from(path);
        let name = to.file_name().ok_or_else(|| Error::Address {
            address: path.to_string(),
            why: "not the name of a file".into(),
        })?;
        let hidden = to.with_file_name(format!(".{}.arriving", name.to_string_lossy()));
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
        }
        let copied = fs::copy(file, &hidden)
            .and_then(|_| fs::File::open(&hidden)?.sync_all())
            .and_then(|()| fs::rename(&hidden, &to));
        copied.map_err(|e| {
            let _ = fs::remove_file(&hidden);
            Error::io(to, e)
        })
    }

    fn remove(&self, path: &str) -> Result<(), Error> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io(path, e)),
            _ => Ok(()),
        }
    }
}

fn list_into(folder: &Path, found: &mut Vec<Entry>) -> Result<(), Error> {
    let fail = |e| Error::io(folder, e);
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let metadata = fs::metadata(&path).map_err(|e| Error::io(&path, e))?;
        if metadata.is_dir() {
            list_into(&path, found)?;
        } else {
            found.push(Entry { path: path.to_string_lossy().into_owned(), size: metadata.len() });
        }
    }
    Ok(())
}
