//! The bytes of every request and reply, both directions, in one place.
//!
//! Data travels as fixed heads followed by plain arrays, each starting at a multiple of 8 bytes, so
//! that neither side copies or converts them: [`Pull`], [`Push`] (and both in one), [`Geo`],
//! [`SetDense`], [`Gather`]. Where the network is slow, pulls and pushes can be made shorter: [`Wire`]. Everything rare is
//! a [`Control`] message in JSON.

mod control;
mod exact;
mod gather;
mod geo;
mod pull;
mod push;
mod wire;

pub use control::{
    Control, ControlReply, CutTaken, Hello, Inspection, ReduceOp, ServerStats, TableStats,
};
pub use gather::{Gather, GatherReply, MAX_GATHER_BYTES, MAX_GATHER_REPLY_BYTES};
pub use geo::{Geo, GeoReply};
pub use pull::{Pull, PullReply, PullTable};
pub use push::{Push, PushTable, SetDense};
pub use wire::Wire;

use crate::Error;

/// What a request is about; the `kind` of its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A [`Pull`].
    Pull = 1,
    /// A [`Push`].
    Push = 2,
    /// A [`Push`] followed by a [`Pull`].
    PushPull = 3,
    /// A [`Geo`] exchange.
    Geo = 4,
    /// A [`SetDense`].
    SetDense = 5,
    /// A [`Control`] message.
    Control = 6,
    /// A [`Gather`].
    Gather = 7,
}

impl TryFrom<u16> for Kind {
    type Error = Error;
    fn try_from(kind: u16) -> Result<Kind, Error> {
        use Kind::{Control, Gather, Geo, Pull, Push, PushPull, SetDense};
        [Pull, Push, PushPull, Geo, SetDense, Control, Gather]
            .into_iter()
            .find(|k| *k as u16 == kind)
            .ok_or_else(|| Error::malformed(format!("unknown request kind {kind}")))
    }
}

#[cfg(not(target_endian = "little"))]
compile_error!("arrays travel as they are in memory, which is little endian");

/// Writes the fixed heads.
#[derive(Default)]
pub(crate) struct Head(Vec<u8>);

impl Head {
    pub(crate) fn u64(mut self, x: u64) -> Head {
        self.0.extend_from_slice(&x.to_le_bytes());
        self
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a payload, never beyond its end.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Error> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8, what)?);
        Ok(u64::from_le_bytes(number))
    }

    /// A count that must be below a limit, so that a wrong one cannot ask for much memory.
    pub(crate) fn count(&mut self, what: &str, limit: u64) -> Result<usize, Error> {
        let n = self.u64(what)?;
        if n > limit {
            return Err(Error::malformed(format!("{what} is {n}, more than {limit}")));
        }
        Ok(n as usize)
    }

    pub(crate) fn u64s(&mut self, n: usize, what: &str) -> Result<&'a [u64], Error> {
        let bytes = self.take(n.saturating_mul(8), what)?;
        bytemuck::try_cast_slice(bytes).map_err(|_| misaligned(what))
    }

    pub(crate) fn u32s(&mut self, n: usize, what: &str) -> Result<&'a [u32], Error> {
        let bytes = self.take(n.saturating_mul(4), what)?;
        self.skip_padding()?;
        bytemuck::try_cast_slice(bytes).map_err(|_| misaligned(what))
    }

    /// Of an array that goes on.
    pub(crate) fn u16s(&mut self, n: usize, what: &str) -> Result<&'a [u16], Error> {
        let bytes = self.take(n.saturating_mul(2), what)?;
        bytemuck::try_cast_slice(bytes).map_err(|_| misaligned(what))
    }

    pub(crate) fn f32s(&mut self, n: usize, what: &str) -> Result<&'a [f32], Error> {
        let floats = self.f32s_unpadded(n, what)?;
        self.skip_padding()?;
        Ok(floats)
    }

    pub(crate) fn f32s_unpadded(&mut self, n: usize, what: &str) -> Result<&'a [f32], Error> {
        let bytes = self.take(n.saturating_mul(4), what)?;
        bytemuck::try_cast_slice(bytes).map_err(|_| misaligned(what))
    }

    pub(crate) fn skip_padding(&mut self) -> Result<(), Error> {
        self.take((8 - self.at % 8) % 8, "padding").map(|_| ())
    }

    pub(crate) fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return Err(Error::malformed(format!(
                "{what}: {n} bytes expected, {} left",
                self.bytes.len() - self.at
            )));
        };
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    pub(crate) fn end(&self) -> Result<(), Error> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            n => Err(Error::malformed(format!("{n} bytes too many"))),
        }
    }
}

fn misaligned(what: &str) -> Error {
    Error::malformed(format!("{what} does not start at a multiple of its size"))
}

/// Tables in one message; more is taken for garbage.
pub(crate) const MAX_TABLES: u64 = 4096;
/// Keys or floats in one array; more is taken for garbage.
pub(crate) const MAX_ITEMS: u64 = 1 << 34;
