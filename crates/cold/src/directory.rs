//! The directory of a store: private, locked, and empty before and after.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::Error;
use crate::health::Health;

const LOCK: &str = "lock";
const ENDING: &str = ".cold";

/// A locked directory. The lock ends with the process, however that ends.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    health: Arc<Health>,
    /// Whether files of this file system can be read around the page cache.
    direct: bool,
    _lock: File,
}

impl Directory {
    pub(crate) fn claim(path: &Path, health: Arc<Health>) -> Result<Directory, Error> {
        let failed = |e| Error::io("make the directory", path, 0, e);
        if !path.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        }
        refuse_others(path)?;
        let lock = lock(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(failed)?;
        remove_segments(path).map_err(|e| Error::io("clean", path, 0, e))?;
        let mut directory = Directory { path: path.into(), health, direct: true, _lock: lock };
        directory.direct = directory.probe()?;
        Ok(directory)
    }

    pub(crate) fn direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn segment_path(&self, serial: u64) -> PathBuf {
        self.path.join(format!("{serial:08}{ENDING}"))
    }

    /// A new file for reading and writing.
    pub(crate) fn create(&self, path: &Path) -> Result<File, Error> {
        let flags = if self.direct { OFlags::DIRECT } else { OFlags::empty() };
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(|e| Error::io("create", path, 0, e))
    }

    /// Some file systems have no direct reads; everything else about the directory must work.
    fn probe(&self) -> Result<bool, Error> {
        let path = self.segment_path(u64::MAX);
        let direct = match self.create(&path) {
            Ok(_) => true,
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => false,
            Err(error) => return Err(error),
        };
        // Some create the file and refuse the flag afterwards.
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &path, 0, e)),
            _ => Ok(direct),
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let mut closed = self.health.closed.lock().unwrap_or_else(PoisonError::into_inner);
        *closed = true;
        // Nothing can be done about what cannot be removed; the next start tries again.
        let _ = remove_segments(&self.path);
        let _ = fs::remove_file(self.path.join(LOCK));
        let _ = fs::remove_dir(&self.path);
    }
}

/// Removes a directory that a store of a process has left which was killed. One that a store has
/// now, or that no store made, stays.
pub fn sweep(dir: &Path) -> bool {
    dir.join(LOCK).is_file() && Directory::claim(dir, Arc::default()).is_ok()
}

/// Takes the lock, or says who has it.
fn lock(dir: &Path) -> Result<File, Error> {
    // Somebody who sweeps has it for a moment.
    const PATIENCE: Duration = Duration::from_millis(200);
    let (path, until) = (dir.join(LOCK), Instant::now() + PATIENCE);
    loop {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| Error::io("open", &path, 0, e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(PATIENCE / 10);
                continue;
            }
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let known = file.read_to_string(&mut owner).is_ok_and(|n| n > 0);
                let owner = if known { owner } else { "unknown".into() };
                return Err(Error::InUse { dir: dir.into(), owner });
            }
            Err(TryLockError::Error(e)) => return Err(Error::io("lock", &path, 0, e)),
        }
        if !is_still(&file, &path) {
            continue; // Its owner removed it after we opened it.
        }
        let written = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
        written.map_err(|e| Error::io("write", &path, 0, e))?;
        return Ok(file);
    }
}

fn is_still(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => open.ino() == named.ino() && open.dev() == named.dev(),
        _ => false,
    }
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn is_segment(name: &str) -> bool {
    name.strip_suffix(ENDING).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
}

/// Nothing is removed that no store wrote.
fn refuse_others(dir: &Path) -> Result<(), Error> {
    let names = names(dir).map_err(|e| Error::io("list", dir, 0, e))?;
    match names.into_iter().find(|name| name != LOCK && !is_segment(name)) {
        Some(file) => Err(Error::NotOurs { dir: dir.into(), file }),
        None => Ok(()),
    }
}

fn remove_segments(dir: &Path) -> io::Result<()> {
    for name in names(dir)?.iter().filter(|name| is_segment(name)) {
        fs::remove_file(dir.join(name))?;
    }
    Ok(())
}
