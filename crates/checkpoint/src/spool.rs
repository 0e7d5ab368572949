//! Values of a tensor that are written before their number is known, and are too many for memory:
//! a file without a name, which goes with the process.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use regatta_tensor::DType;

use crate::Error;

/// Bytes that are copied at a time.
const BLOCK: usize = 1 << 20;

/// Rows of `width` elements in a file.
pub(crate) struct Spool {
    file: BufWriter<File>,
    dtype: DType,
    /// Elements of a row; none for a tensor of one dimension.
    width: Option<usize>,
    bytes: u64,
}

impl Spool {
    /// An empty one, in a folder that there is.
    pub(crate) fn new(dir: &Path, dtype: DType, width: Option<usize>) -> Result<Spool, Error> {
        // Several servers may write into one folder.
        let number = RandomState::new().hash_one(std::process::id());
        let path = dir.join(format!(".spool-{number:016x}"));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(Error::io("create", &path))?;
        fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        Ok(Spool { file: BufWriter::with_capacity(BLOCK, file), dtype, width, bytes: 0 })
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Everything was pushed.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        let elements = self.bytes as usize / self.dtype.size();
        match self.width {
            None => vec![elements],
            Some(width) => vec![elements / width.max(1), width],
        }
    }

    pub(crate) fn copy_to(&self, to: &mut impl Write) -> io::Result<()> {
        let mut block = vec![0; BLOCK];
        let mut at = 0;
        while at < self.bytes {
            let n = BLOCK.min((self.bytes - at) as usize);
            self.file.get_ref().read_exact_at(&mut block[..n], at)?;
            to.write_all(&block[..n])?;
            at += n as u64;
        }
        Ok(())
    }
}
