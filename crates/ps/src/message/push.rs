//! Sending gradients, and first values of dense parameters.

use super::{MAX_ITEMS, MAX_TABLES, Reader};
use crate::Error;

/// Gradients of rows of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PushTable<'a> {
    /// Number of the table.
    pub table: u64,
    /// Distinct ids.
    pub keys: &'a [u64],
    /// A row of floats per id.
    pub grads: &'a [f32],
}

/// Gradients of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Push<'a> {
    /// Counts this worker's pushes to this server from 1; each is applied once, however often it
    /// arrives.
    pub sequence: u64,
    /// The worker's step.
    pub step: u64,
    /// Examples behind the gradients, the weight of this worker in a synchronous step.
    pub examples: u64,
    /// This server's part of the dense gradients; empty if there is none.
    pub dense: &'a [f32],
    /// Gradients by table.
    pub tables: Vec<PushTable<'a>>,
}

impl<'a> Push<'a> {
    /// The gradients of one table, if there are any.
    pub fn table(&self, number: usize) -> Option<PushTable<'a>> {
        self.tables.iter().find(|t| t.table as usize == number).copied()
    }

    pub(crate) fn read(r: &mut Reader<'a>) -> Result<Push<'a>, Error> {
        let sequence = r.u64("sequence")?;
        if sequence == 0 {
            return Err(Error::malformed("push 0, but they count from 1"));
        }
        let step = r.u64("step")?;
        let examples = r.u64("examples")?;
        let n_dense = r.count("dense floats", MAX_ITEMS)?;
        let n = r.count("number of tables", MAX_TABLES)?;
        let mut heads = Vec::with_capacity(n);
        for _ in 0..n {
            let table = r.u64("table")?;
            let keys = r.count("number of keys", MAX_ITEMS)?;
            heads.push((table, keys, r.count("number of floats", MAX_ITEMS)?));
        }
        let dense = r.f32s(n_dense, "dense gradients")?;
        let tables = heads
            .into_iter()
            .map(|(table, keys, grads)| {
                let keys = r.u64s(keys, "keys")?;
                Ok(PushTable { table, keys, grads: r.f32s(grads, "gradients")? })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Push { sequence, step, examples, dense, tables })
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(bytes: &'a [u8]) -> Result<Push<'a>, Error> {
        let mut r = Reader::new(bytes);
        let push = Push::read(&mut r)?;
        r.end()?;
        Ok(push)
    }

    /// Reads a push and the pull that follows it.
    ///
    /// # Errors
    /// If the payload is not both.
    pub fn decode_with_pull(bytes: &'a [u8]) -> Result<(Push<'a>, super::Pull<'a>), Error> {
        let mut r = Reader::new(bytes);
        let both = (Push::read(&mut r)?, super::Pull::read(&mut r)?);
        r.end()?;
        Ok(both)
    }
}

/// First values of this server's part of the dense parameters, from worker 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SetDense<'a> {
    /// All floats of the part.
    pub values: &'a [f32],
}

impl<'a> SetDense<'a> {
    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(bytes: &'a [u8]) -> Result<SetDense<'a>, Error> {
        let mut r = Reader::new(bytes);
        let n = r.count("dense floats", MAX_ITEMS)?;
        let values = r.f32s(n, "dense values")?;
        r.end()?;
        Ok(SetDense { values })
    }
}
