//! Which files there are, and which of them a worker reads.

use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use regatta_store::{Stores, is_remote};

use crate::Error;
use crate::open::is_stdin;

/// All regular files of a directory in the order of their names. Hidden files (a leading dot) and
/// sub-directories are left out. The directory may be one of a remote store. A file stands for
/// itself, and `-` for standard input, which can be read once.
///
/// # Errors
/// If the directory does not exist, cannot be read or holds no such file, or if it holds something
/// else, such as a link to nothing or a FIFO; each names the path.
pub fn list_files(dir: impl AsRef<Path>, stores: &Stores) -> Result<Vec<PathBuf>, Error> {
    let dir = dir.as_ref();
    if is_stdin(dir) {
        return Ok(vec![dir.to_path_buf()]);
    }
    if is_remote(dir) {
        return list_remote(&dir.to_string_lossy(), stores);
    }
    if dir.is_file() {
        return Ok(vec![dir.to_path_buf()]);
    }
    if !dir.is_dir() {
        return Err(Error::MissingDirectory(dir.to_path_buf()));
    }
    let fail = |source| Error::io(dir, source);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && is_data_file(&entry.path())? {
            files.push(entry.path());
        }
    }
    if files.is_empty() {
        return Err(Error::NoFiles(dir.display().to_string()));
    }
    files.sort();
    Ok(files)
}

/// Whether this is a file to read rather than a directory. Links are followed, as a data directory
/// is often made of them.
///
/// # Errors
/// If it is neither: what looks like data must not be left out in silence.
fn is_data_file(path: &Path) -> Result<bool, Error> {
    let not_a_file = |what: String| Error::NotAFile { path: path.to_path_buf(), what };
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Ok(false),
        Ok(meta) => check_regular(path, &meta).map(|()| true),
        Err(e) => match path.read_link() {
            Ok(to) => Err(not_a_file(format!("a link to {}: {e}", to.display()))),
            Err(_) => Err(Error::io(path, e)),
        },
    }
}

/// Refuses what cannot be read from its beginning to its end any number of times.
pub(crate) fn check_regular(path: &Path, meta: &Metadata) -> Result<(), Error> {
    let kind = meta.file_type();
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(Error::NotAFile { path: path.to_path_buf(), what: what.to_string() })
}

fn list_remote(dir: &str, stores: &Stores) -> Result<Vec<PathBuf>, Error> {
    let folder = format!("{}/", dir.trim_end_matches('/'));
    let is_data = |path: &str| {
        let name = path.strip_prefix(&folder).unwrap_or_default();
        !name.is_empty() && !name.starts_with('.') && !name.contains('/')
    };
    let entries = stores.list(dir)?.into_iter().map(|entry| entry.path);
    let files: Vec<PathBuf> = entries.filter(|path| is_data(path)).map(PathBuf::from).collect();
    if files.is_empty() {
        return Err(Error::NoFiles(dir.to_string()));
    }
    Ok(files)
}

/// The files of one worker out of `n_workers`: contiguous blocks, and the first
/// `files.len() % n_workers` workers get one more than the others.
///
/// # Panics
/// If `worker` is not below `n_workers`.
pub fn split_file_list<T>(files: &[T], worker: usize, n_workers: usize) -> &[T] {
    &files[split_range(files.len(), worker, n_workers)]
}

/// The same for indices.
pub(crate) fn split_range(n: usize, worker: usize, n_workers: usize) -> std::ops::Range<usize> {
    assert!(worker < n_workers, "worker {worker} of {n_workers}");
    let (size, more) = (n / n_workers, n % n_workers);
    let start = worker * size + worker.min(more);
    start..start + size + usize::from(worker < more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_workers_get_one_more() {
        let files: Vec<usize> = (0..7).collect();
        let of = |w| split_file_list(&files, w, 3);
        assert_eq!((of(0), of(1), of(2)), (&[0, 1, 2][..], &[3, 4][..], &[5, 6][..]));
    }

    proptest! {
           #[test]
           fn every_file_goes_to_exactly_one_worker(n in 0usize..200, workers in 1usize..40) {
               let files: Vec<usize> = (0..n).collect();
               let parts = (0..workers).map(|w| split_file_list(&files, w, workers));
    let parts: Vec<&[usize]> = parts.collect();
               prop_assert_eq!(&parts.concat(), &files);
               prop_assert!(parts.windows(2).all(|p| p[0].len() >= p[1].len()));
               prop_assert!(parts[0].len() - parts[workers - 1].len() <= 1);
           }
       }

    #[test]
    fn hidden_files_and_directories_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", ".hidden"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let names: Vec<_> = list_files(dir.path(), &Stores::new()).unwrap();
        assert_eq!(names, [dir.path().join("a.txt"), dir.path().join("b.txt")]);
        let sub = dir.path().join("sub");
        let empty = list_files(&sub, &Stores::new()).unwrap_err().to_string();
        assert_eq!(empty, format!("{}: no data files", sub.display()));
        let missing = list_files(sub.join("no"), &Stores::new()).unwrap_err().to_string();
        assert_eq!(missing, format!("{}: no such data directory", sub.join("no").display()));
    }

    #[test]
    fn what_is_neither_file_nor_directory_is_named() {
        use std::os::unix::net::UnixListener;
        let refused = |make: &dyn Fn(&Path), what: &str| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("a.txt"), "x").unwrap();
            let odd = dir.path().join("odd");
            make(&odd);
            let error = list_files(dir.path(), &Stores::new()).unwrap_err().to_string();
            let expected = format!("{} is {what}", odd.display());
            assert!(error.starts_with(&expected), "{error}");
            let error = crate::open::open(&odd, &Stores::new()).err().map(|e| e.to_string());
            assert!(error.is_some_and(|e| e.contains("odd")));
        };
        let link =
            |to: &'static str| move |path: &Path| std::os::unix::fs::symlink(to, path).unwrap();
        refused(&link("gone.txt"), "a link to gone.txt: No such file");
        refused(&link("odd"), "a link to odd: Too many");
        refused(&link("/dev/null"), "a device");
        refused(&|path| drop(UnixListener::bind(path).unwrap()), "a socket");
        let fifo = |path: &Path| {
            let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
            assert!(made.success());
        };
        refused(&fifo, "a FIFO");
    }

    #[test]
    fn links_to_files_are_data_and_links_to_directories_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join("x"), "x").unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("x"), dir.path().join("file")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("folder")).unwrap();
        let names = list_files(dir.path(), &Stores::new()).unwrap();
        assert_eq!(names, [dir.path().join("file")]);
    }
}
