//! A folder that only this user can write to, in a place where everybody can make folders.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;

/// The folder `<name>-<user id>` in the system's temporary folder, made with rights for this user
/// alone.
///
/// # Errors
/// If it cannot be made, or somebody else has put something there: a link, or a folder that is not
/// this user's or that others can write to. It is then not used.
#[cfg(unix)]
pub fn private_temp_dir(name: &str) -> Result<PathBuf, Error> {
    private_dir(&std::env::temp_dir(), name)
}

#[cfg(unix)]
fn private_dir(within: &Path, name: &str) -> Result<PathBuf, Error> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    // Made first, so that its owner is who this process is.
    let probe = tempfile::tempfile_in(within).map_err(Error::io("write", within))?;
    let user = probe.metadata().map_err(Error::io("write", within))?.uid();
    let path = within.join(format!("{name}-{user}"));
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => return Ok(path),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::io("create", &path)(e)),
    }
    // Links are not followed: this is about what stands under the name.
    let found = fs::symlink_metadata(&path).map_err(Error::io("read", &path))?;
    let problem = match () {
        () if !found.is_dir() => "it is no folder".to_string(),
        () if found.uid() != user => format!("it belongs to user {}, not {user}", found.uid()),
        () if found.mode() & 0o022 != 0 => "others can write to it".to_string(),
        () => return Ok(path),
    };
    Err(Error::refused(&path, format!("{problem}: it is not used, remove it or name another")))
}

/// The folder `<name>` in the system's temporary folder, which is this user's own.
///
/// # Errors
/// If it cannot be made.
#[cfg(not(unix))]
pub fn private_temp_dir(name: &str) -> Result<PathBuf, Error> {
    let path = std::env::temp_dir().join(name);
    fs::create_dir_all(&path).map_err(Error::io("create", &path))?;
    Ok(path)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use super::*;

    fn refused(within: &Path, reason: &str) {
        let error = private_dir(within, "cache").unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn it_is_private_and_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = private_dir(dir.path(), "cache").unwrap();
        let about = fs::metadata(&path).unwrap();
        assert_eq!(about.mode() & 0o777, 0o700);
        assert!(path.ends_with(format!("cache-{}", about.uid())));
        assert_eq!(private_dir(dir.path(), "cache").unwrap(), path);
    }

    #[test]
    fn what_others_have_prepared_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = private_dir(dir.path(), "cache").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        refused(dir.path(), "others can write to it");
        fs::remove_dir(&path).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        refused(dir.path(), "it is no folder");
        fs::remove_file(&path).unwrap();
        // A folder of somebody else: only root can make one here.
        fs::create_dir(&path).unwrap();
        match chown(&path, Some(65_534), None) {
            Err(e) => eprintln!("skipped: a folder of another user cannot be made here: {e}"),
            Ok(()) => refused(dir.path(), "it belongs to user 65534, not 0"),
        }
    }
}
