//! How a file or directory appears at once: made beside its destination, forced to disk, renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use crate::Error;

/// Writes a file under a temporary name in the same directory and renames it to `path` once it is
/// on disk. On failure the temporary file is removed and an old file stays.
pub(crate) fn publish_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Error> {
    let (temp, file) = create_beside(path, |temp| File::create_new(temp))?;
    let publish = || {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.into_inner().map_err(|e| e.into_error())?.sync_all()?;
        fs::rename(&temp, path)
    };
    publish().map_err(|source| {
        let _ = fs::remove_file(&temp);
        Error::io("write", path)(source)
    })?;
    sync_dir(parent(path)).map_err(Error::io("write", path))
}

/// Fills a directory under a temporary name and puts it in the place of `path`, where an old
/// directory stays until the new one is complete. On failure only the old one is there.
pub(crate) fn publish_dir(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let (temp, ()) = create_beside(path, |temp| fs::create_dir(temp))?;
    let publish = || {
        fill(&temp)?;
        sync_dir(&temp).map_err(Error::io("write", path))?;
        replace_dir(&temp, path).map_err(Error::io("replace", path))
    };
    publish().map_err(|error| {
        let _ = fs::remove_dir_all(&temp);
        error.moved(&temp, path)
    })?;
    sync_dir(parent(path)).map_err(Error::io("write", path))
}

/// Makes something under a free name next to `path`.
fn create_beside<T>(
    path: &Path,
    create: impl Fn(&Path) -> io::Result<T>,
) -> Result<(PathBuf, T), Error> {
    let fail = Error::io("write", path);
    let Some(name) = path.file_name() else {
        return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "it has no name")));
    };
    let mut n = 0;
    loop {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{n}.tmp", std::process::id()));
        let temp = parent(path).join(hidden);
        match create(&temp) {
            Ok(made) => return Ok((temp, made)),
            // Another thread of this process is at it, or an earlier process was killed at it.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && n < 1000 => n += 1,
            Err(e) => return Err(fail(e)),
        }
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Renames `new` to `path`; if there is a directory already, it is gone afterwards.
fn replace_dir(new: &Path, path: &Path) -> io::Result<()> {
    match fs::rename(new, path) {
        // A rename replaces an empty directory only.
        Err(_) if path.is_dir() => {}
        done => return done,
    }
    if exchange(new, path).is_ok() {
        // What is under the temporary name now is the old one.
        return fs::remove_dir_all(new);
    }
    // A file system that cannot exchange: the name is absent for a moment, never half-written.
    let mut old = new.as_os_str().to_owned();
    old.push(".old");
    fs::rename(path, &old)?;
    match fs::rename(new, path) {
        Ok(()) => fs::remove_dir_all(&old),
        Err(e) => {
            fs::rename(&old, path)?;
            Err(e)
        }
    }
}

#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A rename is on disk once its directory is.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        publish_file(&path, |f| f.write_all(b"old")).unwrap();
        let error = publish_file(&path, |f| {
            f.write_all(b"half of the n")?;
            Err(io::Error::other("gone"))
        });
        let expected = format!("cannot write {}: gone", path.display());
        assert_eq!(error.unwrap_err().to_string(), expected);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["f"]);
    }

    #[test]
    fn the_device_that_is_always_full() {
        // Writes to /dev/full fail as on a full disk; buffered ones only when they are flushed.
        let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else { return };
        let mut file = BufWriter::new(full);
        file.write_all(b"small").unwrap();
        let error = file.into_inner().map_err(|e| e.into_error()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_directory_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        let write = |name: &'static str| {
            move |temp: &Path| fs::write(temp.join(name), name).map_err(Error::io("write", temp))
        };
        publish_dir(&path, write("one")).unwrap();
        let failing = |temp: &Path| {
            write("half")(temp)?;
            Err(Error::Model { reason: "stop".into() })
        };
        publish_dir(&path, failing).unwrap_err();
        assert_eq!((names(&path), names(dir.path())), (vec!["one".into()], vec!["model".into()]));
        publish_dir(&path, write("two")).unwrap();
        assert_eq!((names(&path), names(dir.path())), (vec!["two".into()], vec!["model".into()]));
    }

    #[test]
    fn leftovers_of_a_killed_process_are_stepped_over() {
        let dir = tempfile::tempdir().unwrap();
        let leftover = dir.path().join(format!(".f.{}-0.tmp", std::process::id()));
        fs::write(&leftover, "half").unwrap();
        publish_file(&dir.path().join("f"), |f| f.write_all(b"whole")).unwrap();
        assert_eq!(fs::read(&leftover).unwrap(), b"half");
    }
}
