//! Files on local paths and in remote stores, listed, streamed and copied in one way.
//!
//! An address is a local path or `s3://bucket/key`, `gs://bucket/key`, `az://container/key` or
//! `hdfs://host:port/path`. Remote ones need the feature `remote`; without it, and for unknown
//! schemes, every call is an error that says so.
//!
//! Reading order: [`Address`], [`Store`] (what a store can do), [`Stores`] (all of them, opened
//! when first used), `local`, `remote`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod copy;
mod error;
mod local;
#[cfg(feature = "remote")]
mod profile;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "s3-server")]
pub mod s3_server;
mod stores;

use std::io::Read;
use std::path::Path;

pub use address::{Address, is_remote};
pub use error::Error;
pub use stores::Stores;

/// A file of a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its path within the store.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
}

/// What every store can do. Paths are those of an [`Address`].
pub trait Store: Send + Sync {
    /// All files below a folder, at any depth, in the order of their paths; none if there is no
    /// such folder.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error>;

    /// Size of a file; `None` if there is no such file.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    fn size(&self, path: &str) -> Result<Option<u64>, Error>;

    /// The contents of a file, from its beginning, read while they are fetched.
    ///
    /// # Errors
    /// If there is no such file, or the store cannot be reached or refuses.
    fn open(&self, path: &str) -> Result<Box<dyn Read + Send>, Error>;

    /// Copies a local file into the store and makes sure that all of it has arrived. Nothing can be
    /// seen under that path before.
    ///
    /// # Errors
    /// If the file cannot be read, or did not arrive after several tries.
    fn put(&self, file: &Path, path: &str) -> Result<(), Error>;

    /// Removes a file; it is no error if there is none.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    fn remove(&self, path: &str) -> Result<(), Error>;
}
