//! How every payload is written and read: words of 8 bytes, then plain arrays, each filled up to a
//! multiple of 8 bytes.

use std::marker::PhantomData;

use bytemuck::Pod;
use regatta_net::Buf;

use crate::Error;
use crate::partition::Piece;

#[cfg(not(target_endian = "little"))]
compile_error!("arrays travel as they are in memory, which is little endian");

/// Tables in one message; more is taken for garbage.
pub(super) const MAX_TABLES: u64 = 4096;
/// Keys or floats in one array; more is taken for garbage.
pub(super) const MAX_ITEMS: u64 = 1 << 34;

/// Where an array is in a payload. The message that holds it can be kept beside the payload, and
/// nobody parses it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Array<T> {
    at: usize,
    len: usize,
    items: PhantomData<T>,
}

impl<T: Pod> Array<T> {
    /// How many items it has.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Its items, in the payload that the message was read from.
    ///
    /// # Panics
    /// If it is another payload.
    pub fn of(self, payload: &[u8]) -> &[T] {
        bytemuck::cast_slice(&payload[self.at..self.at + self.len * size_of::<T>()])
    }
}

/// Reads a payload, never beyond its end.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Error> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8, what)?);
        Ok(u64::from_le_bytes(number))
    }

    /// A count that must be below a limit, so that a wrong one cannot ask for much memory.
    pub(super) fn count(&mut self, what: &str, limit: u64) -> Result<usize, Error> {
        let n = self.u64(what)?;
        if n > limit {
            return Err(Error::malformed(format!("{what} is {n}, more than {limit}")));
        }
        Ok(n as usize)
    }

    /// The position of an array, and where the next one begins.
    pub(super) fn array<T: Pod>(&mut self, n: usize, what: &str) -> Result<Array<T>, Error> {
        let at = self.at;
        self.items::<T>(n, what)?;
        self.skip_padding()?;
        Ok(Array { at, len: n, items: PhantomData })
    }

    /// The items of an array, and where the next one begins.
    pub(super) fn padded<T: Pod>(&mut self, n: usize, what: &str) -> Result<&'a [T], Error> {
        let items = self.items(n, what)?;
        self.skip_padding()?;
        Ok(items)
    }

    /// Some items of an array that continues.
    pub(super) fn items<T: Pod>(&mut self, n: usize, what: &str) -> Result<&'a [T], Error> {
        let bytes = self.take(n.saturating_mul(size_of::<T>()), what)?;
        bytemuck::try_cast_slice(bytes).map_err(|_| {
            Error::malformed(format!("{what} does not start at a multiple of its size"))
        })
    }

    pub(super) fn skip_padding(&mut self) -> Result<(), Error> {
        self.take((8 - self.at % 8) % 8, "padding").map(|_| ())
    }

    pub(super) fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8], Error> {
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

    pub(super) fn end(&self) -> Result<(), Error> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            n => Err(Error::malformed(format!("{n} bytes too many"))),
        }
    }
}

/// Bytes that an array takes.
pub(super) fn padded_len<T>(n: usize) -> usize {
    (n * size_of::<T>()).next_multiple_of(8)
}

pub(super) fn put_u64(buf: &mut Buf, x: u64) {
    buf.extend_from_slice(&x.to_le_bytes());
}

/// Fills up to where the next array may begin.
pub(super) fn pad(buf: &mut Buf) {
    let over = buf.len() % 8;
    if over > 0 {
        buf.grow(8 - over).fill(0);
    }
}

pub(super) fn put_array<T: Pod>(buf: &mut Buf, items: &[T]) {
    buf.extend_from_slice(bytemuck::cast_slice(items));
    pad(buf);
}

/// Rows of `width` items at some positions, or all of them.
pub(super) fn put_rows<T: Pod>(buf: &mut Buf, rows: &[T], width: usize, at: Option<&[u32]>) {
    let Some(positions) = at else { return put_array(buf, rows) };
    let bytes = width * size_of::<T>();
    let to = buf.grow(positions.len() * bytes).chunks_exact_mut(bytes);
    for (to, &position) in to.zip(positions) {
        let row = &rows[position as usize * width..][..width];
        to.copy_from_slice(bytemuck::cast_slice(row));
    }
    pad(buf);
}

/// The pieces of dense parameters that one server holds, as one array.
pub(super) fn put_pieces(buf: &mut Buf, params: &[&[f32]], pieces: &[Piece]) {
    for piece in pieces {
        let values = &params[piece.param][piece.range.clone()];
        buf.extend_from_slice(bytemuck::cast_slice(values));
    }
    pad(buf);
}

/// Room for floats at the end of a buffer.
pub(super) fn grow_floats(buf: &mut Buf, n: usize) -> Result<&mut [f32], Error> {
    bytemuck::try_cast_slice_mut(buf.grow(n * 4))
        .map_err(|_| Error::internal("a buffer of the network is not aligned"))
}
