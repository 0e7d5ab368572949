//! Records that are sorted already go straight to files: restoring a table.

use std::sync::Arc;

use crate::bits::Bits;
use crate::health::Health;
use crate::segment::SegmentWriter;
use crate::{Error, RecordNo, Store};

impl Store {
    /// Begins to write sorted records to files.
    pub fn loader(&self) -> Loader<'_> {
        Loader { store: self, writer: None, last: None }
    }

    /// Writes sorted records straight to files, and tells the number of each. They can be read when
    /// this returns.
    ///
    /// # Errors
    ///
    /// If the hashes do not ascend, a record has another size, or the disk fails; what is not
    /// complete then is removed.
    pub fn load_sorted<W: AsRef<[u32]>>(
        &self,
        records: impl IntoIterator<Item = (u64, u32, W)>,
        mut placed: impl FnMut(u64, RecordNo),
    ) -> Result<(), Error> {
        let mut loader = self.loader();
        for (hash, tag, words) in records {
            placed(hash, loader.push(hash, tag, words.as_ref())?);
        }
        loader.finish()
    }
}

/// Writes sorted records, a segment at a time.
pub struct Loader<'a> {
    store: &'a Store,
    writer: Option<(u32, SegmentWriter)>,
    last: Option<u64>,
}

impl Loader<'_> {
    /// Writes a record. Its number can be used after [`Loader::finish`].
    ///
    /// # Errors
    ///
    /// As [`Store::load_sorted`].
    pub fn push(&mut self, hash: u64, tag: u32, words: &[u32]) -> Result<RecordNo, Error> {
        let shared = &self.store.shared;
        let layout = shared.layout;
        if words.len() != layout.words {
            return Err(Error::Words { expected: layout.words, actual: words.len() });
        }
        if let Some(previous) = self.last.filter(|&previous| previous >= hash) {
            return Err(Error::Unsorted { hash, previous });
        }
        if self.writer.as_ref().is_some_and(|(_, writer)| writer.len() == layout.slots) {
            self.close()?;
        }
        let (id, writer) = match &mut self.writer {
            Some(open) => open,
            None => self.writer.insert(begin(self.store)?),
        };
        let slot = writer.len();
        self.store.shared.health.note(writer.push(hash, tag, words))?;
        self.last = Some(hash);
        Ok(layout.number(*id, slot))
    }

    /// Writes the rest.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn finish(mut self) -> Result<(), Error> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Error> {
        let Some((id, writer)) = self.writer.take() else { return Ok(()) };
        let shared = &self.store.shared;
        let live = Bits::all(writer.len());
        let segment = writer.finish(id, live, None, Arc::new(()));
        match Health::note(&shared.health, segment) {
            Ok(segment) => drop(shared.add(segment)),
            Err(error) => {
                shared.give_back(id);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for Loader<'_> {
    fn drop(&mut self) {
        if let Some((id, _)) = self.writer.take() {
            self.store.shared.give_back(id);
        }
    }
}

fn begin(store: &Store) -> Result<(u32, SegmentWriter), Error> {
    let shared = &store.shared;
    shared.health.check()?;
    let id = shared.take_number()?;
    let made = SegmentWriter::create(&shared.dir, shared.layout, &shared.serials, &shared.health);
    match shared.health.note(made) {
        Ok(writer) => Ok((id, writer)),
        Err(error) => {
            shared.give_back(id);
            Err(error)
        }
    }
}
