//! A private folder for what the processes of a job leave for each other.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::Error;

/// What the folders of jobs are called, before random letters.
const PREFIX: &str = "regatta-job-";
/// How often a folder is made anew that another job has taken for a left one, or removed once more
/// because somebody has added a file.
const TRIES: usize = 16;

/// A new folder that only this user can enter, under a name that nobody can foresee. It is removed
/// with this value. If this process is killed, the guardian removes it, or else the next job does:
/// its owner holds a lock on it, and a folder without one is left over.
#[derive(Debug)]
pub struct JobFolder {
    dir: tempfile::TempDir,
    /// Held as long as the folder is needed.
    _lock: File,
}

impl JobFolder {
    /// Makes one where the system keeps temporary files, and removes those that are left over
    /// there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new() -> Result<JobFolder, Error> {
        let parent = std::env::temp_dir();
        JobFolder::new_in(&parent).map_err(|e| {
            Error::System(format!("cannot make a folder in {} ($TMPDIR): {e}", parent.display()))
        })
    }

    fn new_in(parent: &Path) -> io::Result<JobFolder> {
        remove_left(parent);
        for _ in 0..TRIES {
            let private = Permissions::from_mode(0o700);
            let dir =
                tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(parent)?;
            // Until it is locked, another job may take it for a left one.
            match lock(dir.path()) {
                Ok(Some(lock)) if lock.metadata()?.nlink() > 0 => {
                    return Ok(JobFolder { dir, _lock: lock });
                }
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Err(io::Error::other("other jobs remove it at once"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Locks a folder; nothing if somebody else has.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let folder = File::open(path)?;
    match folder.try_lock() {
        Ok(()) => Ok(Some(folder)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(e)) => Err(e),
    }
}

/// Removes folders of jobs of this user that are gone. One that cannot be removed harms nobody.
fn remove_left(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Some(seen) = own(&path)
            && let Ok(Some(lock)) = lock(&path)
            && lock.metadata().is_ok_and(|m| (m.dev(), m.ino()) == (seen.dev(), seen.ino()))
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Removes the folder of a job when its owner is gone, and waits for that. Processes of the job
/// that are just being killed may still add a file.
pub(crate) fn remove_after_owner(path: &Path) {
    let Some(_) = own(path) else { return };
    let Ok(folder) = File::open(path) else { return };
    if folder.lock().is_ok() {
        let _ = (0..TRIES).find(|_| fs::remove_dir_all(path).is_ok() || !path.exists());
    }
}

/// Looks at the folder of a job. What others have put there, links among it, is none.
fn own(path: &Path) -> Option<fs::Metadata> {
    let is_named = path.file_name()?.to_string_lossy().starts_with(PREFIX);
    let seen = fs::symlink_metadata(path).ok().filter(|_| is_named)?;
    let is_own = seen.is_dir() && seen.uid() == rustix::process::geteuid().as_raw();
    is_own.then_some(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_private_and_goes_with_its_owner() {
        let parent = tempfile::tempdir().unwrap();
        let folder = JobFolder::new_in(parent.path()).unwrap();
        let path = folder.path().to_path_buf();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(path.join("file"), "text").unwrap();
        let other = JobFolder::new_in(parent.path()).unwrap();
        assert!(path.join("file").exists(), "one that is in use stays");
        drop(folder);
        assert!(!path.exists());
        drop(other);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn left_folders_are_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let left = at("regatta-job-dead");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("worker-0.json"), "text").unwrap();
        let precious = at("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "text").unwrap();
        std::os::unix::fs::symlink(&precious, left.join("link")).unwrap();
        std::os::unix::fs::symlink(&precious, at("regatta-job-link")).unwrap();
        fs::write(at("regatta-job-file"), "text").unwrap();
        let folder = JobFolder::new_in(parent.path()).unwrap();
        assert!(folder.path().exists() && !left.exists());
        assert!(precious.join("file").exists());
        assert!(at("regatta-job-link").is_symlink() && at("regatta-job-file").exists());
    }

    #[test]
    fn only_folders_of_jobs_are_removed_after_their_owner() {
        let parent = tempfile::tempdir().unwrap();
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        remove_after_owner(&other);
        assert!(other.exists());
        let folder = JobFolder::new_in(parent.path()).unwrap();
        let path = folder.path().to_path_buf();
        let guardian = {
            let path = path.clone();
            std::thread::spawn(move || remove_after_owner(&path))
        };
        assert!(folder.path().exists() && !guardian.is_finished());
        // A process that is killed drops its locks, and nothing else.
        let JobFolder { dir, _lock: lock } = folder;
        let _ = dir.keep();
        drop(lock);
        guardian.join().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn jobs_that_start_together_do_not_remove_each_others_folders() {
        let parent = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let folder = JobFolder::new_in(parent.path()).unwrap();
                        fs::write(folder.path().join("file"), "text").unwrap();
                    }
                });
            }
        });
    }
}
