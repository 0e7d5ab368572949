//! A table on disk: an id comes in, its row comes out, and only the pages on the way are read.

use std::cmp::Ordering;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::{Advice, Mmap};
use regatta_checkpoint::{BlockSums, Encoding, ModelManifest, ModelTable, verify_whole};
use regatta_table::row_order;

use crate::Error;

/// The rows of a table.
#[derive(Debug)]
pub(crate) struct MappedTable {
    /// None if the id is the number of the row.
    keys: Option<MappedFile>,
    values: Option<MappedFile>,
    rows: usize,
    dim: usize,
    row_bytes: usize,
    encoding: Encoding,
}

impl MappedTable {
    /// Maps the files, whose sizes were compared with the manifest. No row is read.
    pub(crate) fn open(
        dir: &Path,
        manifest: &ModelManifest,
        table: &ModelTable,
    ) -> Result<MappedTable, Error> {
        let (encoding, dim) = (table.encoding, table.dim);
        let open = |name: &String, row_bytes: usize| {
            MappedFile::open(dir, manifest, name, table.rows, row_bytes)
        };
        let is_filled = table.rows > 0;
        let keys = table.keys.as_ref().filter(|_| is_filled);
        let values = Some(&table.values).filter(|_| is_filled);
        Ok(MappedTable {
            keys: keys.map(|name| open(name, 8)).transpose()?,
            values: values.map(|name| open(name, encoding.row_bytes(dim))).transpose()?,
            rows: table.rows as usize,
            dim,
            row_bytes: encoding.row_bytes(dim),
            encoding,
        })
    }

    /// Copies the row of an id; false if there is none.
    ///
    /// # Errors
    /// If a block on the way is damaged.
    pub(crate) fn read(&self, id: u64, row: &mut [f32]) -> Result<bool, Error> {
        debug_assert_eq!(row.len(), self.dim);
        let at = match &self.keys {
            None => usize::try_from(id).ok().filter(|at| *at < self.rows),
            Some(keys) => find(self.rows, id, |at| {
                let key = keys.bytes(at * 8..(at + 1) * 8)?;
                Ok(u64::from_le_bytes(key.as_chunks::<8>().0[0]))
            })?,
        };
        let (Some(at), Some(values)) = (at, &self.values) else { return Ok(false) };
        self.encoding.read(values.bytes(at * self.row_bytes..(at + 1) * self.row_bytes)?, row);
        Ok(true)
    }
}

/// A file that is used where it is, each block after a look at its checksum.
#[derive(Debug)]
struct MappedFile {
    map: Mmap,
    /// None if the whole file was compared when it was opened.
    sums: Option<BlockSums>,
}

impl MappedFile {
    fn open(
        dir: &Path,
        manifest: &ModelManifest,
        name: &str,
        rows: u64,
        row_bytes: usize,
    ) -> Result<MappedFile, Error> {
        let map = map(&dir.join(name), rows, row_bytes)?;
        let sums = BlockSums::open(dir, manifest, name)?;
        if sums.is_none() {
            verify_whole(dir, manifest, name, &map)?;
        }
        Ok(MappedFile { map, sums })
    }

    #[inline]
    fn bytes(&self, range: Range<usize>) -> Result<&[u8], Error> {
        if let Some(sums) = &self.sums
            && let Some(new) = sums.untouched(&range)
        {
            self.verify(sums, &range, new)?;
        }
        Ok(&self.map[range])
    }

    /// Compares blocks that nobody has read before; apart, so that all other reads stay short.
    #[cold]
    fn verify(
        &self,
        sums: &BlockSums,
        range: &Range<usize>,
        blocks: Range<usize>,
    ) -> Result<(), Error> {
        // One read of the disk for the pages of a block instead of one for each.
        #[cfg(unix)]
        let _ = self.map.advise_range(
            Advice::WillNeed,
            blocks.start,
            blocks.end.min(self.map.len()) - blocks.start,
        );
        Ok(sums.verify(&self.map, range)?)
    }
}

#[cfg(target_endian = "big")]
compile_error!("files hold little-endian numbers, and are used where they are");

/// Maps a file of N rows.
fn map(path: &Path, rows: u64, row_bytes: usize) -> Result<Mmap, Error> {
    let fail = |source| Error::Map { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(fail)?;
    // SAFETY: the bytes are only read. Models are replaced as whole directories, never changed in
    // place, so nobody of ours writes to the file while it is mapped.
    #[expect(unsafe_code, reason = "a mapping is unsafe because others could write to the file")]
    let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
    if map.len() as u64 != rows * row_bytes as u64 {
        return Err(fail(std::io::Error::other(format!("it has {} bytes now", map.len()))));
    }
    // Lookups jump; read-ahead would fill the memory with rows that no lookup needs.
    #[cfg(unix)]
    map.advise(Advice::Random).map_err(fail)?;
    Ok(map)
}

/// Steps of guessing before halving takes over, which files with uneven orders would need.
const GUESSES: usize = 12;

/// The position of an id among `n` ids in rising order of [`row_order`], which is even: the
/// position can be guessed from the order numbers at both ends, again and again.
fn find(
    n: usize,
    id: u64,
    key: impl Fn(usize) -> Result<u64, Error>,
) -> Result<Option<usize>, Error> {
    let wanted = row_order(id);
    let (mut from, mut to) = (0, n);
    let (mut low, mut high) = (0_u64, u64::MAX);
    for step in 0.. {
        if from >= to {
            return Ok(None);
        }
        let at = if step < GUESSES {
            let share = u128::from(wanted - low) * (to - from) as u128;
            from + ((share / (u128::from(high - low) + 1)) as usize).min(to - from - 1)
        } else {
            from + (to - from) / 2
        };
        let found = row_order(key(at)?);
        match found.cmp(&wanted) {
            Ordering::Equal => return Ok(Some(at)),
            // Below the wanted one, so there is a next order number.
            Ordering::Less => (from, low) = (at + 1, found + 1),
            Ordering::Greater => (to, high) = (at, found - 1),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(keys: &[u64], id: u64) -> Option<usize> {
        super::find(keys.len(), id, |at| Ok(keys[at])).unwrap()
    }

    proptest! {
        #[test]
        fn ids_are_found_where_they_are(mut keys: Vec<u64>, others: Vec<u64>) {
            keys.sort_by_key(|k| row_order(*k));
            keys.dedup();
            for (at, key) in keys.iter().enumerate() {
                prop_assert_eq!(find(&keys, *key), Some(at));
            }
            for key in others {
                prop_assert_eq!(find(&keys, key), keys.iter().position(|k| *k == key));
            }
        }

        #[test]
        fn orders_that_are_all_close_together_are_found_too(n in 1_usize..3000, seed: u64) {
            // The worst for guessing: many ids at one end.
            let mut keys: Vec<u64> = (0..200_000).map(|i| seed.wrapping_add(i)).collect();
            keys.sort_by_key(|k| row_order(*k));
            keys.truncate(n);
            for (at, key) in keys.iter().enumerate().step_by(7) {
                prop_assert_eq!(find(&keys, *key), Some(at));
            }
        }
    }
}
