//! Asking for rows and dense parameters.

use super::{MAX_ITEMS, MAX_TABLES, Reader};
use crate::Error;

/// Ids of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PullTable<'a> {
    /// Number of the table.
    pub table: u64,
    /// Distinct ids.
    pub keys: &'a [u64],
    /// How often each id appeared in the batch; empty where nobody counts.
    pub counts: &'a [u32],
}

/// A request for values.
#[derive(Debug, Clone, PartialEq)]
pub struct Pull<'a> {
    /// The worker's step that they are for.
    pub step: u64,
    /// Create nothing and count nothing: the ids are only looked at.
    pub test: bool,
    /// Also this server's part of the dense parameters.
    pub dense: bool,
    /// Ids by table.
    pub tables: Vec<PullTable<'a>>,
}

impl<'a> Pull<'a> {
    pub(crate) fn read(r: &mut Reader<'a>) -> Result<Pull<'a>, Error> {
        let step = r.u64("step")?;
        let flags = r.u64("flags")?;
        let n = r.count("number of tables", MAX_TABLES)?;
        let mut heads = Vec::with_capacity(n);
        for _ in 0..n {
            let table = r.u64("table")?;
            let keys = r.count("number of keys", MAX_ITEMS)?;
            heads.push((table, keys, r.count("number of counts", MAX_ITEMS)?));
        }
        let tables = heads
            .into_iter()
            .map(|(table, keys, counts)| {
                let keys = r.u64s(keys, "keys")?;
                Ok(PullTable { table, keys, counts: r.u32s(counts, "counts")? })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Pull { step, test: flags & 1 != 0, dense: flags & 2 != 0, tables })
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(bytes: &'a [u8]) -> Result<Pull<'a>, Error> {
        let mut r = Reader::new(bytes);
        let pull = Pull::read(&mut r)?;
        r.end()?;
        Ok(pull)
    }
}

/// The values that were asked for: rows of each table in the order of its keys, then the dense part.
pub struct PullReply<'a> {
    r: Reader<'a>,
}

impl<'a> PullReply<'a> {
    /// Starts reading a reply.
    pub fn new(bytes: &'a [u8]) -> PullReply<'a> {
        PullReply { r: Reader::new(bytes) }
    }

    /// The next `n` floats.
    ///
    /// # Errors
    /// If the reply is shorter.
    pub fn floats(&mut self, n: usize) -> Result<&'a [f32], Error> {
        self.r.f32s(n, "pulled values")
    }

    /// The next `n` floats of an array that goes on.
    ///
    /// # Errors
    /// If the reply is shorter.
    pub fn floats_unpadded(&mut self, n: usize) -> Result<&'a [f32], Error> {
        self.r.f32s_unpadded(n, "pulled values")
    }

    /// Goes to where the next array begins.
    ///
    /// # Errors
    /// If the reply is shorter.
    pub fn skip_padding(&mut self) -> Result<(), Error> {
        self.r.skip_padding()
    }

    /// Checks that everything was read.
    ///
    /// # Errors
    /// If something is left.
    pub fn end(self) -> Result<(), Error> {
        self.r.end()
    }
}
