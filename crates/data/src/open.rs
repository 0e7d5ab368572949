//! A data file as a stream of bytes: plain, or unpacked as its suffix says.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use regatta_store::{Stores, is_remote};

use crate::Error;
use crate::arrivals::{is_messages, open_part};
use crate::files::check_regular;

/// The path that stands for standard input, which can be read once.
pub const STDIN: &str = "-";

pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == STDIN
}

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    /// By suffix: `.gz`, `.zst` and `.zstd` are unpacked, all others are read as they stand.
    pub(crate) fn of(path: &Path) -> Packing {
        match path.extension().and_then(|e| e.to_str()) {
            Some("gz") => Packing::Gzip,
            Some("zst" | "zstd") => Packing::Zstd,
            _ => Packing::Plain,
        }
    }
}

/// Opens a local file that must not be unpacked.
pub(crate) fn open_local(path: &Path) -> Result<File, Error> {
    // Before it is opened: opening a FIFO waits for somebody to write into it.
    let meta = path.metadata().map_err(|e| Error::io(path, e))?;
    check_regular(path, &meta)?;
    File::open(path).map_err(|e| Error::io(path, e))
}

/// Opens a file of this machine or of a remote store, as it stands, or messages as lines.
fn open_raw(path: &Path, stores: &Stores) -> Result<Box<dyn Read + Send>, Error> {
    if is_stdin(path) {
        return Ok(Box::new(io::stdin()));
    }
    if is_messages(path) {
        return open_part(path);
    }
    if is_remote(path) {
        return Ok(stores.open(&path.to_string_lossy())?);
    }
    Ok(Box::new(open_local(path)?))
}

/// Whether the file itself can be given to another process.
pub(crate) fn is_plain_local(path: &Path) -> bool {
    Packing::of(path) == Packing::Plain && !is_remote(path) && !is_stdin(path)
}

/// Opens a file and unpacks it on the way. Files of several members or frames are read to the end.
pub(crate) fn open(path: &Path, stores: &Stores) -> Result<Box<dyn Read + Send>, Error> {
    let file = open_raw(path, stores)?;
    Ok(match Packing::of(path) {
        Packing::Plain => file,
        Packing::Gzip => Box::new(flate2::read::MultiGzDecoder::new(io::BufReader::with_capacity(
            64 * 1024,
            file,
        ))),
        Packing::Zstd => Box::new(zstd::Decoder::new(file).map_err(|e| Error::io(path, e))?),
    })
}
