//! A data file as a stream of bytes: plain, or unpacked as its suffix says.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::Error;

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

/// Opens a file that must not be unpacked.
pub(crate) fn open_raw(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|e| Error::io(path, e))
}

/// Opens a file and unpacks it on the way. Files of several members or frames are read to the end.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Read + Send>, Error> {
    let file = open_raw(path)?;
    Ok(match Packing::of(path) {
        Packing::Plain => Box::new(file),
        Packing::Gzip => Box::new(flate2::read::MultiGzDecoder::new(io::BufReader::with_capacity(
            64 * 1024,
            file,
        ))),
        Packing::Zstd => Box::new(zstd::Decoder::new(file).map_err(|e| Error::io(path, e))?),
    })
}
