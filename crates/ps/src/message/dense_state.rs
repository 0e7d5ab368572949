//! Dense parameters with their optimizer state, for a worker that updates them itself. The request
//! for them has no content; the reply and the request that gives them back are a [`DenseState`].
//!
//! Number of steps, steps of each table, number of pieces; per piece its name, offset, weights and
//! number of states, and per state its name and values. Names and arrays begin with their lengths.

use regatta_net::Buf;
use regatta_table::DensePiece;

use super::bytes::{MAX_ITEMS, MAX_TABLES, Reader, put_array, put_u64};
use crate::Error;

/// Parameters or states in one message; more is taken for garbage.
const MAX_PARTS: u64 = 1 << 20;
/// Bytes of a name.
const MAX_NAME: u64 = 4096;

/// A server's pieces of the dense parameters, and the steps that were made.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseState {
    /// Updates so far.
    pub steps: u64,
    /// Steps of each table, which may have been loaded from elsewhere.
    pub tables: Vec<u64>,
    /// The pieces, with their states.
    pub pieces: Vec<DensePiece>,
}

impl DenseState {
    /// Writes it.
    pub(crate) fn encode(&self, room: impl FnOnce(usize) -> Buf) -> Buf {
        let floats = |p: &DensePiece| {
            p.weights.len() + p.states.iter().map(|(_, values)| values.len()).sum::<usize>()
        };
        let words = |p: &DensePiece| 64 + 64 * p.states.len() + p.name.len();
        let bytes: usize = self.pieces.iter().map(|p| 4 * floats(p) + 2 * words(p)).sum();
        let mut buf = room(24 + 8 * self.tables.len() + bytes);
        put_u64(&mut buf, self.steps);
        put(&mut buf, &self.tables);
        put_u64(&mut buf, self.pieces.len() as u64);
        for piece in &self.pieces {
            put(&mut buf, piece.name.as_bytes());
            put_u64(&mut buf, piece.offset as u64);
            put(&mut buf, &piece.weights);
            put_u64(&mut buf, piece.states.len() as u64);
            for (name, values) in &piece.states {
                put(&mut buf, name.as_bytes());
                put(&mut buf, values);
            }
        }
        buf
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &[u8]) -> Result<DenseState, Error> {
        let mut r = Reader::new(payload);
        let steps = r.u64("steps")?;
        let n = r.count("number of tables", MAX_TABLES)?;
        let tables = r.padded(n, "steps of tables")?.to_vec();
        let n = r.count("number of pieces", MAX_PARTS)?;
        let pieces = (0..n).map(|_| piece(&mut r)).collect::<Result<_, Error>>()?;
        r.end()?;
        Ok(DenseState { steps, tables, pieces })
    }
}

fn put<T: bytemuck::Pod>(buf: &mut Buf, items: &[T]) {
    put_u64(buf, items.len() as u64);
    put_array(buf, items);
}

fn piece(r: &mut Reader<'_>) -> Result<DensePiece, Error> {
    let name = text(r)?;
    let offset = r.count("offset of a piece", MAX_ITEMS)?;
    let weights = floats(r)?;
    let n = r.count("number of states", MAX_PARTS)?;
    let state = |r: &mut Reader<'_>| Ok((text(r)?, floats(r)?));
    let states = (0..n).map(|_| state(r)).collect::<Result<_, Error>>()?;
    Ok(DensePiece { name, offset, weights, states })
}

fn text(r: &mut Reader<'_>) -> Result<String, Error> {
    let n = r.count("length of a name", MAX_NAME)?;
    let bytes = r.padded::<u8>(n, "name")?;
    let text = std::str::from_utf8(bytes).map_err(|_| Error::malformed("a name is no text"))?;
    Ok(text.to_string())
}

fn floats(r: &mut Reader<'_>) -> Result<Vec<f32>, Error> {
    let n = r.count("number of floats", MAX_ITEMS)?;
    Ok(r.padded(n, "floats")?.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::testing::room;

    #[test]
    fn what_is_written_is_read() {
        let piece = |name: &str, n: usize| DensePiece {
            name: name.into(),
            offset: n,
            weights: (0..n).map(|i| i as f32).collect(),
            states: vec![("moment".into(), vec![f32::INFINITY; n]), ("power".into(), vec![0.5])],
        };
        let state = DenseState {
            steps: 9,
            tables: vec![4, 5],
            pieces: vec![piece("w", 3), piece("fc_0.b_0", 0)],
        };
        assert_eq!(DenseState::decode(&state.encode(room)).unwrap(), state);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_read(bytes in prop::collection::vec(0u8..3, 0..120)) {
            let _ = DenseState::decode(&bytes);
        }
    }
}
