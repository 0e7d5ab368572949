//! Whole folders between this machine and a store.

use std::fs;
use std::io;
use std::path::Path;

use crate::{Address, Entry, Error, Stores};

impl Stores {
    /// Copies all files of a local folder to `to`. The file `last` (for example a manifest) arrives
    /// after all others, so that a reader that sees it has everything. Returns the number of bytes.
    ///
    /// # Errors
    /// If there is no file `last`, or a file cannot be read or does not arrive.
    pub fn upload_folder(&self, folder: &Path, to: &str, last: &str) -> Result<u64, Error> {
        let to = Address::parse(to)?;
        let store = self.of(&to)?;
        let root = folder.to_string_lossy().into_owned();
        let mut files = crate::Store::list(&crate::local::Local, &root)?;
        let name = |file: &Entry| relative(&root, &file.path).to_string();
        if !files.iter().any(|file| name(file) == last) {
            return Err(Error::Missing(folder.join(last).display().to_string()));
        }
        files.sort_by_key(|file| name(file) == last);
        for file in &files {
            store.put(Path::new(&file.path), to.join(&name(file)).path())?;
        }
        Ok(files.iter().map(|file| file.size).sum())
    }

    /// Copies all files below `from` into a local folder, which is made. Returns the number of
    /// bytes.
    ///
    /// # Errors
    /// If there are none, or a file cannot be fetched or written.
    pub fn download_folder(&self, from: &str, folder: &Path) -> Result<u64, Error> {
        let from = Address::parse(from)?;
        let store = self.of(&from)?;
        let files = store.list(from.path())?;
        if files.is_empty() {
            return Err(Error::Missing(from.to_string()));
        }
        for file in &files {
            let to = folder.join(relative(from.path(), &file.path));
            let parent = to.parent().unwrap_or(folder);
            fs::create_dir_all(parent).map_err(|e| Error::io(parent, e))?;
            let written = fs::File::create(&to)
                .and_then(|mut out| io::copy(&mut store.open(&file.path)?, &mut out))
                .map_err(|e| Error::io(&to, e))?;
            if written != file.size {
                let address = from.with_path(&file.path).to_string();
                return Err(Error::Differs { address, expected: file.size, found: written });
            }
        }
        Ok(files.iter().map(|file| file.size).sum())
    }

    /// Removes all files below a folder of a store, those named `first` (for example a manifest)
    /// before all others, so that nobody takes what is left for complete.
    ///
    /// # Errors
    /// If the store refuses.
    pub fn remove_folder(&self, folder: &str, first: &str) -> Result<(), Error> {
        let folder = Address::parse(folder)?;
        let store = self.of(&folder)?;
        let mut files = store.list(folder.path())?;
        files.sort_by_key(|file| relative(folder.path(), &file.path) != first);
        files.iter().try_for_each(|file| store.remove(&file.path))
    }
}

/// The path of a listed file from the folder that was listed.
fn relative<'a>(folder: &str, path: &'a str) -> &'a str {
    path.strip_prefix(folder.trim_end_matches('/')).unwrap_or(path).trim_start_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_there_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir_all(from.join("deep")).unwrap();
        fs::write(from.join("deep/a"), "aa").unwrap();
        fs::write(from.join("manifest"), "m").unwrap();
        let (stores, to) = (Stores::new(), dir.path().join("to"));
        let to_text = to.to_str().unwrap();
        assert_eq!(stores.upload_folder(&from, to_text, "manifest").unwrap(), 3);
        let back = dir.path().join("back");
        assert_eq!(stores.download_folder(to_text, &back).unwrap(), 3);
        assert_eq!(fs::read_to_string(back.join("deep/a")).unwrap(), "aa");
        stores.remove_folder(to_text, "manifest").unwrap();
        assert!(stores.list(to_text).unwrap().is_empty());
        let gone = stores.download_folder(to_text, &back).unwrap_err().to_string();
        assert_eq!(gone, format!("{to_text}: no such file"));
    }

    #[test]
    fn a_folder_without_its_last_file_is_not_sent() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        let error =
            Stores::new().upload_folder(dir.path(), to.to_str().unwrap(), "manifest").unwrap_err();
        assert!(error.to_string().ends_with("manifest: no such file"), "{error}");
        assert!(!to.exists());
    }
}
