//! Models and checkpoints in remote stores, for commands that work on local folders.

use std::path::{Path, PathBuf};

use anyhow::Context;
use regatta_checkpoint::MANIFEST_FILE;
use regatta_launch::JobFolder;
use regatta_train::remote::{RemoteCopy, cache_of, is_remote, upload};

/// Where copies are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheArgs {
    /// Where copies of a remote model are kept; else in the system's temporary folder.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl CacheArgs {
    pub(super) fn cache(&self) -> Option<&Path> {
        self.cache.as_deref()
    }
}

/// A remote model or checkpoint with its copies on this machine; none for a local path.
///
/// # Errors
/// If there is no folder for the copies.
pub(super) fn cached(path: &Path, cache: Option<&Path>) -> anyhow::Result<Option<RemoteCopy>> {
    let Some(address) = path.to_str().filter(|_| is_remote(path)) else { return Ok(None) };
    let folder = match cache {
        Some(folder) => folder.to_path_buf(),
        None => cache_of(address).context("name a folder for copies with --cache")?,
    };
    Ok(Some(RemoteCopy::new(address, folder)))
}

/// A local path: the same one, or a copy of what is at a remote address.
pub(super) fn local(path: &Path, cache: Option<&Path>) -> anyhow::Result<PathBuf> {
    match cached(path, cache)? {
        None => Ok(path.to_path_buf()),
        Some(cached) => Ok(cached.fetch()?),
    }
}

/// Where a folder is made that is to be somewhere in the end.
pub(super) enum Target {
    Here(PathBuf),
    /// Made here, then sent there.
    There {
        made: JobFolder,
        address: String,
    },
}

impl Target {
    pub(super) fn new(path: &Path) -> anyhow::Result<Target> {
        match path.to_str().filter(|_| is_remote(path)) {
            None => Ok(Target::Here(path.to_path_buf())),
            Some(address) => Ok(Target::There { made: JobFolder::new()?, address: address.into() }),
        }
    }

    /// The folder to make.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Target::Here(path) => path.clone(),
            Target::There { made, .. } => made.path().join("made"),
        }
    }

    /// Sends it, if it is to be elsewhere; a manifest arrives last.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        let Target::There { address, .. } = self else { return Ok(()) };
        let path = self.path();
        let mut names: Vec<String> = std::fs::read_dir(&path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<std::io::Result<_>>()?;
        names.sort_by_key(|name| name == MANIFEST_FILE);
        let last = names.iter().rev().find(|name| path.join(name).is_file());
        upload(&path, address, last.map_or(MANIFEST_FILE, String::as_str))?;
        Ok(())
    }
}
