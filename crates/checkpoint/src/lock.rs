//! One folder, one job: a lock that a process holds for as long as it lives.
//!
//! The kernel keeps the lock (`flock`), so a killed job leaves none. The text of the file is for
//! people: it names who holds the folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// Name of the file in a locked folder.
pub const LOCK_FILE: &str = ".lock";

/// A folder that this process alone works in, until the lock is dropped or the process ends.
#[derive(Debug)]
pub struct FolderLock {
    file: File,
    dir: PathBuf,
    /// Whether there was no folder before.
    made_dir: bool,
    warning: Option<String>,
}

impl FolderLock {
    /// Locks `dir`, which is made if need be. `job` says which job this is, to the next one that
    /// wants the folder.
    ///
    /// # Errors
    /// If another process, or another lock of this one, holds the folder (the error names the
    /// holder), or the file cannot be written.
    pub fn take(dir: impl AsRef<Path>, job: &str) -> Result<FolderLock, Error> {
        let dir = dir.as_ref();
        let made_dir = !dir.exists();
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        let path = dir.join(LOCK_FILE);
        let (mut file, warning) = loop {
            let file = open(&path).map_err(Error::io("lock", &path))?;
            let warning = match file.try_lock() {
                Ok(()) => None,
                Err(TryLockError::WouldBlock) => return Err(held(dir, file)),
                Err(TryLockError::Error(e)) => Some(format!(
                    "{}: the file system has no locks ({e}): nothing keeps a second job out",
                    dir.display()
                )),
            };
            // The last holder may have removed the file after it was opened here.
            if warning.is_some() || is_at(&file, &path) {
                break (file, warning);
            }
        };
        let mut write = || {
            file.set_len(0)?;
            file.write_all(holder(job).as_bytes())
        };
        write().map_err(Error::io("lock", &path))?;
        Ok(FolderLock { file, dir: dir.to_path_buf(), made_dir, warning })
    }

    /// That the file system has no locks, if so: to be shown to the user.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // While the lock is still held: whoever opened the file before finds out by `is_at`.
        if is_at(&self.file, &self.dir.join(LOCK_FILE)) {
            let _ = fs::remove_file(self.dir.join(LOCK_FILE));
        }
        if self.made_dir {
            // Only if nothing is in it.
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A link would have the text written elsewhere.
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    }
    options.open(path)
}

/// Whether an open file is still the one of that name.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |about: fs::Metadata| (about.dev(), about.ino());
    let here = file.metadata().map(id);
    let there = fs::symlink_metadata(path).map(id);
    matches!((here, there), (Ok(a), Ok(b)) if a == b)
}

#[cfg(not(unix))]
pub(crate) fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Who this process is.
fn holder(job: &str) -> String {
    let process = std::process::id();
    #[cfg(target_os = "linux")]
    let place = {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("process {process} of user {} on {host}", rustix::process::getuid().as_raw())
    };
    #[cfg(not(target_os = "linux"))]
    let place = format!("process {process}");
    format!("{job} ({place})\n")
}

/// The error of a second job.
fn held(dir: &Path, mut file: File) -> Error {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    let holder = match (read, text.trim()) {
        (Ok(_), holder) if !holder.is_empty() => holder,
        _ => "a job that does not say who it is",
    };
    let since = file.metadata().and_then(|about| about.modified()).ok();
    let since = since.and_then(|time| time.elapsed().ok());
    let since = since.map_or(String::new(), |time| format!(" for {} s", time.as_secs()));
    let reason = format!(
        "another job works in this folder{since}: {holder}; wait for its end, stop it, or choose \
         another folder"
    );
    Error::refused(dir, reason)
}
