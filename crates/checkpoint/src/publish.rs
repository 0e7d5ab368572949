//! How a file or directory appears at once: made beside its destination, forced to disk, renamed.
//! Everything that is stored is published here, so that a kill leaves the old or the new, whole.
//!
//! What is being made is locked. What is not locked was left by a killed process, and the next one
//! that publishes under the same name removes it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::lock::is_at;

/// Writes a file under a temporary name in the same directory and renames it to `path` once it is
/// on disk. On failure the temporary file is removed and an old file stays.
///
/// # Errors
/// Those of `write`, or if the file cannot be made or replaced.
pub fn publish_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Error> {
    let (temp, file) = create_beside(path, |temp| File::create_new(temp))?;
    let publish = || {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        write(&mut file)?;
        let file = file.into_inner().map_err(|e| e.into_error())?;
        file.sync_all()?;
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
///
/// Everything is forced to disk before it counts.
///
/// # Errors
/// Those of `fill`, or if a directory cannot be made or replaced.
pub fn publish_dir<E: From<Error>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    fs::create_dir_all(parent(path)).map_err(Error::io("create", parent(path)))?;
    let (temp, lock) = create_beside(path, |temp| {
        fs::create_dir(temp)?;
        File::open(temp)
    })?;
    let publish = || {
        fill(&temp)?;
        sync_tree(&temp).map_err(Error::io("write", path))?;
        replace_dir(&temp, path).map_err(Error::io("replace", path))?;
        Ok(())
    };
    publish().inspect_err(|_: &E| {
        let _ = fs::remove_dir_all(&temp);
    })?;
    drop(lock);
    Ok(sync_dir(parent(path)).map_err(Error::io("write", path))?)
}

/// Tries whether a directory can be made and written to, without leaving anything behind: found
/// out before training, not after it.
///
/// # Errors
/// If it cannot, or something else has its name.
pub fn try_dir(path: &Path) -> Result<(), Error> {
    let is_there = |path: &&Path| path.symlink_metadata().is_ok();
    let nearest = path.ancestors().find(is_there).filter(|p| !p.as_os_str().is_empty());
    let nearest = nearest.unwrap_or(Path::new("."));
    if !nearest.is_dir() {
        let reason = "it is in the way: a folder is to be written here";
        return Err(Error::refused(nearest, reason));
    }
    let made = create_beside(&nearest.join("probe"), |temp| File::create_new(temp));
    // Locked until it is removed, so that nobody takes it for a leftover.
    let (temp, _file) = made.map_err(|error| match error {
        Error::Io { source, .. } => Error::io("write", path)(source),
        other => other,
    })?;
    fs::remove_file(&temp).map_err(Error::io("write", path))
}

/// Makes or replaces a link to something in the same directory; it is never absent in between.
///
/// # Errors
/// If something else has its name, or it cannot be made.
pub fn publish_link(path: &Path, target: &str) -> Result<(), Error> {
    try_link(path)?;
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.link", std::process::id()));
    let temp = parent(path).join(name);
    let _ = fs::remove_file(&temp);
    let link = || {
        std::os::unix::fs::symlink(target, &temp)?;
        fs::rename(&temp, path)
    };
    link().map_err(Error::io("write", path))
}

/// Tries whether a name is free for a link, or is one.
///
/// # Errors
/// If something else has it.
pub fn try_link(path: &Path) -> Result<(), Error> {
    match path.symlink_metadata() {
        Ok(about) if !about.is_symlink() => {
            Err(Error::refused(path, "it is in the way: a link is to be written here"))
        }
        _ => Ok(()),
    }
}

/// Tries whether a file can be written, without leaving anything behind.
///
/// # Errors
/// If it cannot, or a directory has its name.
pub fn try_file(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::refused(path, "it is in the way: a file is to be written here"));
    }
    // Devices and pipes are written where they are.
    if path.exists() && !path.is_file() {
        return Ok(());
    }
    try_dir(parent(path))
}

/// Makes something under a free name next to `path`, and locks it. What killed processes have left
/// there under such names goes.
fn create_beside(
    path: &Path,
    create: impl Fn(&Path) -> io::Result<File>,
) -> Result<(PathBuf, File), Error> {
    let fail = Error::io("write", path);
    let Some(name) = path.file_name() else {
        return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "it has no name")));
    };
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    sweep(path, &prefix.to_string_lossy());
    let mut n = 0;
    loop {
        let mut hidden = prefix.clone();
        hidden.push(format!("{}-{n}.tmp", std::process::id()));
        let temp = parent(path).join(hidden);
        match create(&temp) {
            // A sweep of somebody else may have come before the lock. Without locks there is none.
            Ok(file) => match file.try_lock() {
                Err(fs::TryLockError::WouldBlock) => n += 1,
                Ok(()) if !is_at(&file, &temp) => n += 1,
                _ => return Ok((temp, file)),
            },
            // Another thread of this process is at it, or what was left could not be removed.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && n < 1000 => n += 1,
            Err(e) => return Err(fail(e)),
        }
    }
}

/// Removes what killed processes have left: everything with such a name that nobody has locked. An
/// old directory goes back to its place if the new one never got there.
fn sweep(path: &Path, prefix: &str) {
    for entry in fs::read_dir(parent(path)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((own, suffix)) = name.strip_prefix(prefix).and_then(|n| n.split_once('.')) else {
            continue;
        };
        let is_number = |text: &str| text.parse::<u32>().is_ok();
        let is_ours = own.split_once('-').is_some_and(|(pid, n)| is_number(pid) && is_number(n));
        let kind = entry.file_type().ok().filter(|kind| is_ours && !kind.is_symlink());
        let (Some(kind), Ok(file)) = (kind, File::open(entry.path())) else { continue };
        if file.try_lock().is_err() || !is_at(&file, &entry.path()) {
            continue;
        }
        // What cannot be removed is in nobody's way.
        let _ = match suffix {
            "old" if !path.exists() => fs::rename(entry.path(), path),
            "old" | "tmp" if kind.is_dir() => fs::remove_dir_all(entry.path()),
            "tmp" => fs::remove_file(entry.path()),
            _ => Ok(()),
        };
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
    // A file system that cannot exchange: the name is absent for a moment, never half-written. If
    // the process is killed in this moment, the next one puts the old one back.
    let old = new.with_extension("old");
    let lock = File::open(path)?;
    let _ = lock.try_lock();
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

/// Forces a directory and everything in it to disk; for what is there already that costs nothing.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => sync_tree(&entry.path())?,
            false => File::open(entry.path())?.sync_all()?,
        }
    }
    sync_dir(dir)
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
    fn leftovers_of_a_killed_process_go_and_those_of_a_living_one_stay() {
        let dir = tempfile::tempdir().unwrap();
        let name = |n: u32| dir.path().join(format!(".f.{}-{n}.tmp", std::process::id()));
        fs::write(name(0), "half").unwrap();
        fs::create_dir(name(1)).unwrap();
        fs::write(name(1).join("part"), "half").unwrap();
        let living = File::create_new(name(2)).unwrap();
        living.lock().unwrap();
        fs::write(dir.path().join(".f.mine.tmp"), "not ours").unwrap();
        publish_file(&dir.path().join("f"), |f| f.write_all(b"whole")).unwrap();
        let living = format!(".f.{}-2.tmp", std::process::id());
        assert_eq!(names(dir.path()), [living.as_str(), ".f.mine.tmp", "f"]);
    }

    #[test]
    fn a_folder_is_tried_without_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        try_dir(&dir.path().join("a").join("b")).unwrap();
        assert_eq!(names(dir.path()), Vec::<String>::new());
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("below")] {
            let error = try_dir(&path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}: it is in the way", file.display())), "{error}");
        }
        // Nobody, root included, makes files in /proc.
        if Path::new("/proc/self").exists() {
            let error = try_dir(Path::new("/proc/self/model/0")).unwrap_err().to_string();
            assert!(error.starts_with("cannot write /proc/self/model/0"), "{error}");
        }
    }
}
