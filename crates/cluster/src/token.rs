//! The secret of a job: where it comes from, and when it is good enough.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::{Env, Error};

/// How to make a good one.
pub const MAKE_ONE: &str = "head -c16 /dev/urandom | od -An -tx1 | tr -d ' \\n'";

/// Characters of a token at least, and how many of them must be different.
const MIN_LEN: usize = 16;
const MIN_DIFFERENT: usize = 8;

/// Refuses a token that is easy to guess; `source` is the variable or file that it came from.
///
/// # Errors
/// If it is too short or repeats itself.
pub fn check(source: &str, token: &str) -> Result<(), Error> {
    let mut different: Vec<char> = token.chars().collect();
    let len = different.len();
    different.sort_unstable();
    different.dedup();
    if len >= MIN_LEN && different.len() >= MIN_DIFFERENT {
        return Ok(());
    }
    Err(Error::Token {
        source_name: source.to_string(),
        problem: format!(
            "the token is easy to guess: it must have at least {MIN_LEN} characters, \
             {MIN_DIFFERENT} of them different; make one with: {MAKE_ONE}"
        ),
    })
}

/// The token in a file that only its owner can read.
///
/// # Errors
/// If it cannot be read, others could read or write it, or the token is easy to guess.
pub fn from_file(path: &Path) -> Result<String, Error> {
    let wrong = |problem: String| wrong(path, problem);
    let file = File::open(path).map_err(|e| wrong(e.to_string()))?;
    read(file, path)
}

fn wrong(path: &Path, problem: impl Into<String>) -> Error {
    Error::Token { source_name: path.display().to_string(), problem: problem.into() }
}

fn read(mut file: File, path: &Path) -> Result<String, Error> {
    let about = file.metadata().map_err(|e| wrong(path, e.to_string()))?;
    let me = geteuid().as_raw();
    if !about.is_file() {
        return Err(wrong(path, "it is not a file"));
    }
    if about.uid() != me && about.uid() != 0 {
        let owner = about.uid();
        return Err(wrong(path, format!("it belongs to user {owner}, not to this one ({me})")));
    }
    if about.mode() & 0o077 != 0 {
        let mode = about.mode() & 0o777;
        let problem = format!("others can read or write it (mode {mode:03o}); use: chmod 600");
        return Err(wrong(path, format!("{problem} {}", path.display())));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|e| wrong(path, e.to_string()))?;
    let token = text.trim();
    check(&path.display().to_string(), token)?;
    Ok(token.to_string())
}

/// The token of the user who runs this process, for jobs that stay on one machine. The first
/// process that needs it makes it, in a folder that only the user can write to.
///
/// # Errors
/// If there is no such folder, or what is there is not private.
pub(crate) fn of_user(env: &Env) -> Result<String, Error> {
    of_user_in(&private_folders(env))
}

/// Where a user keeps things, best first: all processes of a job should find the same one, and not
/// all of them may belong to a login.
fn private_folders(env: &Env) -> Vec<PathBuf> {
    let cache = env.get("XDG_CACHE_HOME").map(PathBuf::from);
    let home = env.get("HOME").map(|home| Path::new(home).join(".cache"));
    let runtime = env.get("XDG_RUNTIME_DIR").map(PathBuf::from);
    cache.or(home).into_iter().chain(runtime).filter(|dir| dir.is_absolute()).collect()
}

fn of_user_in(folders: &[PathBuf]) -> Result<String, Error> {
    let mut problem = "neither HOME nor XDG_RUNTIME_DIR says where this user keeps files".into();
    for folder in folders {
        let folder = folder.join("regatta");
        match DirBuilder::new().recursive(true).mode(0o700).create(&folder) {
            Ok(()) => return in_folder(&folder),
            Err(e) => problem = format!("cannot make {}: {e}", folder.display()),
        }
    }
    let why = format!("there is no place for a token of this user: {problem}");
    Err(Error::missing(crate::names::JOB_TOKEN, why))
}

fn in_folder(folder: &Path) -> Result<String, Error> {
    let about = folder.symlink_metadata().map_err(|e| wrong(folder, e.to_string()))?;
    if !about.is_dir() || about.uid() != geteuid().as_raw() || about.mode() & 0o022 != 0 {
        let problem = "it must be a folder of this user that nobody else can write to";
        return Err(wrong(folder, problem));
    }
    let path = folder.join("token");
    let open =
        || OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path);
    let file = match open() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => make(folder, &path).and_then(|()| open()),
        other => other,
    };
    read(file.map_err(|e| wrong(&path, e.to_string()))?, &path)
}

/// Makes the file under another name first: it appears complete, whoever else does the same.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    let draft = folder.join(format!("token-{}", random_hex()?));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let made = file.write_all(format!("{}\n", random_hex()?).as_bytes()).and_then(|()| {
        match std::fs::hard_link(&draft, path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    });
    std::fs::remove_file(&draft)?;
    made
}

fn random_hex() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const GOOD: &str = "0123456789abcdef";

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn tokens_that_are_easy_to_guess_are_refused() {
        assert_eq!(check("X", GOOD), Ok(()));
        for weak in ["", "x", "secret", "0123456789abcde", "aaaaaaaaaaaaaaaaaaaaaaaa"] {
            let error = check("X", weak).unwrap_err().to_string();
            assert!(error.starts_with("X: the token is easy to guess"), "{error}");
            assert!(!error.contains("secret"), "the token is not printed: {error}");
        }
    }

    #[test]
    fn a_token_file_must_be_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(from_file(&path).unwrap_err().to_string().contains("token: No such file"));
        fs::write(&path, format!("{GOOD}\n")).unwrap();
        for mode in [0o644, 0o640, 0o602, 0o620] {
            set_mode(&path, mode);
            let error = from_file(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        set_mode(&path, 0o600);
        assert_eq!(from_file(&path), Ok(GOOD.to_string()));
        set_mode(&path, 0o400);
        assert_eq!(from_file(&path), Ok(GOOD.to_string()));
        assert!(from_file(dir.path()).unwrap_err().to_string().contains("not a file"));
    }

    #[test]
    fn the_token_of_a_user_is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let folders = [dir.path().join("cache")];
        let token = of_user_in(&folders).unwrap();
        assert_eq!(of_user_in(&folders), Ok(token.clone()));
        // Another process that saw no file a moment ago.
        let folder = folders[0].join("regatta");
        make(&folder, &folder.join("token")).unwrap();
        assert_eq!(of_user_in(&folders), Ok(token));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("token"))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "drafts are gone");
    }

    #[test]
    fn what_somebody_else_may_have_prepared_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folders = [dir.path().to_path_buf()];
        let folder = dir.path().join("regatta");
        of_user_in(&folders).unwrap();
        set_mode(&folder, 0o777);
        assert!(of_user_in(&folders).unwrap_err().to_string().contains("nobody else can write"));
        set_mode(&folder, 0o700);
        let path = folder.join("token");
        set_mode(&path, 0o644);
        assert!(of_user_in(&folders).unwrap_err().to_string().contains("chmod 600"));
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(of_user_in(&folders).is_err(), "a link is not followed");
        fs::remove_dir_all(&folder).unwrap();
        symlink(dir.path(), &folder).unwrap();
        assert!(of_user_in(&folders).is_err(), "nor is this one");
    }

    #[test]
    fn a_user_without_a_folder_needs_a_token() {
        let error = of_user(&Env::default()).unwrap_err().to_string();
        assert!(error.starts_with("REGATTA_JOB_TOKEN is not set: there is no place"), "{error}");
        let folders =
            private_folders(&Env::from([("HOME", "/home/me"), ("XDG_RUNTIME_DIR", "/run/me")]));
        assert_eq!(folders, [Path::new("/home/me/.cache"), Path::new("/run/me")]);
    }
}
