//! Checkpoints and models in remote stores: made and used on this machine, kept there.
//!
//! What is sent is checked and sent again by `regatta_store`; a manifest arrives after everything
//! that it lists. What is fetched is compared with the checksums of its manifest before anything
//! uses it.
//!
//! Reading order: [`upload`], [`RemoteCopy`] (a copy of something remote), `Mirror` (the
//! checkpoints of a run, sent beside the training).

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use regatta_checkpoint::{
    Check, CheckpointDir, Kind, MANIFEST_FILE, Manifest, PROGRAM_FILE, private_temp_dir,
    publish_dir, verify, verify_model,
};
use regatta_data::Stores;
pub use regatta_data::is_remote;

use crate::Error;

/// Sends all files of a folder; `last` arrives after all others.
///
/// # Errors
/// If the store cannot be reached, refuses, or a file does not arrive whole.
pub fn upload(folder: &Path, address: &str, last: &str) -> Result<u64, Error> {
    Stores::new().upload_folder(folder, address, last).map_err(store)
}

fn store(e: impl std::fmt::Display) -> Error {
    Error::Store(e.to_string())
}

/// Where copies of an address are kept on this machine, unless the user says otherwise: in a folder
/// that belongs to this user alone.
///
/// # Errors
/// If there is no such folder and it cannot be made, or somebody else has prepared one.
pub fn cache_of(address: &str) -> Result<PathBuf, Error> {
    let name: String = address
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' })
        .collect();
    Ok(private_temp_dir("regatta-cache")?.join(name))
}

/// Something remote with a manifest: a model, a checkpoint, or a folder of checkpoints.
pub struct RemoteCopy {
    stores: Stores,
    address: String,
    folder: PathBuf,
}

impl RemoteCopy {
    /// At an address, with copies in `folder`.
    pub fn new(address: &str, folder: PathBuf) -> RemoteCopy {
        let address = address.trim_end_matches('/').to_string();
        RemoteCopy { stores: Stores::new(), address, folder }
    }

    /// The manifest as it is now; none if there is none.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    pub fn manifest(&self) -> Result<Option<Vec<u8>>, Error> {
        read_small(&self.stores, &format!("{}/{MANIFEST_FILE}", self.address))
    }

    /// A local copy: of the model or checkpoint at the address, or of the newest checkpoint in it.
    /// What was fetched before is not fetched again.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses, there is no such thing, or it is damaged.
    pub fn fetch(&self) -> Result<PathBuf, Error> {
        if let Some(manifest) = self.manifest()? {
            let to = self.folder.join("copy");
            if fs::read(to.join(MANIFEST_FILE)).ok().as_ref() == Some(&manifest) {
                return Ok(to);
            }
            self.fetch_folder(&self.address, &to, &manifest)?;
            if !to.join(PROGRAM_FILE).exists() {
                check(&to, &self.address)?;
            }
            return Ok(to);
        }
        let dir = CheckpointDir::open(&self.folder);
        match self.fetch_newest(&dir, &mut |_| {})? {
            Some(serial) => Ok(dir.path_of(serial)),
            None => {
                let what = "there is no model and no checkpoint";
                Err(Error::Store(format!("{}: {what}", self.address)))
            }
        }
    }

    /// Fetches the newest good checkpoint with all that it builds on, unless it is in `dir`
    /// already; gives its serial.
    fn fetch_newest(
        &self,
        dir: &CheckpointDir,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<u64>, Error> {
        for serial in self.serials()?.into_iter().rev() {
            match self.fetch_checkpoint(dir, serial) {
                Ok(()) => return Ok(Some(serial)),
                // Another one may be good; a store that is gone is gone for all of them.
                Err(e @ (Error::Checkpoint(_) | Error::Resume(_))) => note(&e.to_string()),
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    fn fetch_checkpoint(&self, dir: &CheckpointDir, serial: u64) -> Result<(), Error> {
        let (from, to) = (self.address_of(serial), dir.path_of(serial));
        let manifest = read_small(&self.stores, &format!("{from}/{MANIFEST_FILE}"))?;
        let manifest = manifest.ok_or_else(|| Error::Store(format!("{from}: no manifest")))?;
        if fs::read(to.join(MANIFEST_FILE)).ok().as_ref() == Some(&manifest) {
            return Ok(());
        }
        self.fetch_folder(&from, &to, &manifest)?;
        if let Kind::Delta { base } = Manifest::read(&to)?.kind {
            self.fetch_checkpoint(dir, base)?;
        }
        check(&to, &from)
    }

    /// Fetches a folder, compares it with its checksums and publishes it as `to`.
    fn fetch_folder(&self, from: &str, to: &Path, manifest: &[u8]) -> Result<(), Error> {
        publish_dir(to, |fetched| {
            self.stores.download_folder(from, fetched).map_err(store)?;
            // Files of an older and of a newer one do not belong together.
            if fs::read(fetched.join(MANIFEST_FILE)).ok().as_deref() != Some(manifest) {
                return Err(Error::Store(format!("{from} has changed while it was fetched")));
            }
            if fetched.join(PROGRAM_FILE).exists() {
                verify_model(fetched)?;
            }
            Ok(())
        })
    }

    fn address_of(&self, serial: u64) -> String {
        format!("{}/checkpoint_{serial}", self.address)
    }

    /// Serials of checkpoints that have a manifest, in rising order.
    fn serials(&self) -> Result<Vec<u64>, Error> {
        let mut serials = Vec::new();
        for entry in self.stores.list(&self.address).map_err(store)? {
            let path = entry.path.strip_prefix(&self.address).unwrap_or(&entry.path);
            let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
            if let [folder, MANIFEST_FILE] = parts[..]
                && let Some(serial) =
                    folder.strip_prefix("checkpoint_").and_then(|n| n.parse().ok())
            {
                serials.push(serial);
            }
        }
        serials.sort_unstable();
        Ok(serials)
    }
}

/// Compares a checkpoint that was fetched, and all that it builds on, with its checksums; a damaged
/// one does not stay.
fn check(folder: &Path, from: &str) -> Result<(), Error> {
    let Some(problem) = verify(folder, Check::Checksums).into_iter().next() else { return Ok(()) };
    let _ = fs::remove_dir_all(folder);
    let file = problem.path.strip_prefix(folder).unwrap_or(&problem.path);
    Err(Error::Resume(format!("{from}/{}: {}", file.display(), problem.reason)))
}

/// A small file; none if there is none.
fn read_small(stores: &Stores, address: &str) -> Result<Option<Vec<u8>>, Error> {
    if stores.size(address).map_err(store)?.is_none() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let mut file = stores.open(address).map_err(store)?;
    file.read_to_end(&mut bytes).map_err(|e| Error::Store(format!("{address}: {e}")))?;
    Ok(Some(bytes))
}

/// The checkpoints of a run in a store: every one that is published on this machine is sent, beside
/// the training, and those that this machine no longer keeps go there too.
pub(crate) struct Mirror {
    remote: std::sync::Arc<RemoteCopy>,
    dir: CheckpointDir,
    sending: Option<JoinHandle<Result<(), Error>>>,
    /// Something was published since.
    again: bool,
}

impl Mirror {
    pub(crate) fn new(address: &str, dir: &Path) -> Mirror {
        let remote = std::sync::Arc::new(RemoteCopy::new(address, dir.to_path_buf()));
        Mirror { remote, dir: CheckpointDir::open(dir), sending: None, again: false }
    }

    /// Fetches the newest checkpoint of the store, so that a run can resume from it on this
    /// machine.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    pub(crate) fn fetch(&self, note: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let newest_here = self.dir.newest_complete()?.map(|entry| entry.serial);
        let there = self.remote.serials()?;
        if there.last().copied() > newest_here {
            let fetched = self.remote.fetch_newest(&self.dir, note)?;
            if let Some(serial) = fetched {
                note(&format!("checkpoint {serial} was fetched from {}", self.remote.address));
            }
        }
        Ok(())
    }

    /// Whether nothing is being sent: checkpoints of this machine may go.
    pub(crate) fn is_idle(&self) -> bool {
        self.sending.is_none()
    }

    /// Sends what the store does not have yet, on a thread of its own.
    pub(crate) fn send(&mut self) {
        if self.sending.is_some() {
            self.again = true;
            return;
        }
        self.again = false;
        let (remote, dir) = (self.remote.clone(), self.dir.clone());
        let thread = std::thread::Builder::new().name("checkpoint upload".into());
        match thread.spawn(move || send_all(&remote, &dir)) {
            Ok(thread) => self.sending = Some(thread),
            // The next checkpoint tries again.
            Err(_) => self.again = true,
        }
    }

    /// What went wrong with sending, if it is over; never waits. Sends again if there is more.
    pub(crate) fn poll(&mut self) -> Option<String> {
        if !self.sending.as_ref().is_some_and(JoinHandle::is_finished) {
            return None;
        }
        let failed = self.join().err();
        if self.again {
            self.send();
        }
        failed.map(|e| {
            let dir = self.dir.path().display();
            format!("{e}; training continues, and the checkpoint is in {dir}")
        })
    }

    fn join(&mut self) -> Result<(), Error> {
        match self.sending.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(sent)) => sent,
            Some(Err(_)) => Err(Error::Store("the thread that sends checkpoints panicked".into())),
        }
    }

    /// Waits until the store has everything.
    ///
    /// # Errors
    /// If it does not get it; the message says where the checkpoints are.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        let _ = self.join();
        send_all(&self.remote, &self.dir).map_err(|e| {
            let dir = self.dir.path().display();
            Error::Store(format!("{e}; the checkpoints of this run are in {dir}"))
        })
    }

    /// Removes all checkpoints of the store.
    pub(crate) fn remove_all(&self) -> Result<(), Error> {
        self.remote.serials()?.into_iter().try_for_each(|serial| remove(&self.remote, serial))
    }
}

fn remove(remote: &RemoteCopy, serial: u64) -> Result<(), Error> {
    remote.stores.remove_folder(&remote.address_of(serial), MANIFEST_FILE).map_err(store)
}

/// Sends complete checkpoints that the store lacks, oldest first, and removes older ones there that
/// are no longer here.
fn send_all(remote: &RemoteCopy, dir: &CheckpointDir) -> Result<(), Error> {
    let here: Vec<(u64, PathBuf)> = dir
        .list()?
        .into_iter()
        .filter(|entry| entry.manifest().is_some())
        .map(|entry| (entry.serial, entry.path))
        .collect();
    let there = remote.serials()?;
    for (serial, path) in &here {
        let to = remote.address_of(*serial);
        let manifest = path.join(MANIFEST_FILE);
        let own = fs::read(&manifest).map_err(|source| Error::Write { path: manifest, source })?;
        if there.contains(serial) {
            let theirs = read_small(&remote.stores, &format!("{to}/{MANIFEST_FILE}"))?;
            if theirs == Some(own) {
                continue;
            }
            // Of a run that began again: its manifest must not stand beside our files.
            remove(remote, *serial)?;
        }
        remote.stores.upload_folder(path, &to, MANIFEST_FILE).map_err(store)?;
    }
    let newest = here.last().map_or(0, |(serial, _)| *serial);
    let is_here = |serial: u64| here.iter().any(|(s, _)| *s == serial);
    for serial in there.into_iter().filter(|s| *s < newest && !is_here(*s)) {
        remove(remote, serial)?;
    }
    Ok(())
}
