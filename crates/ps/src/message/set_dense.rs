//! Set dense: worker 0 gives a server the initial values of its part of the dense parameters; the
//! reply has no content.

use regatta_net::Buf;

use super::bytes::{Array, MAX_ITEMS, Reader, padded_len, put_pieces, put_u64};
use crate::Error;
use crate::route::Destination;

/// Initial values of a server's part of the dense parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SetDense {
    /// All floats of the part.
    pub values: Array<f32>,
}

impl SetDense {
    /// Writes the request to one server; values are by parameter.
    pub(crate) fn encode(
        values: &[&[f32]],
        to: &Destination<'_>,
        room: impl FnOnce(usize) -> Buf,
    ) -> Buf {
        let n = to.dense_len();
        let mut buf = room(8 + padded_len::<f32>(n));
        put_u64(&mut buf, n as u64);
        put_pieces(&mut buf, values, to.pieces);
        buf
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(payload: &[u8]) -> Result<SetDense, Error> {
        let mut r = Reader::new(payload);
        let n = r.count("dense floats", MAX_ITEMS)?;
        let values = r.array(n, "dense values")?;
        r.end()?;
        Ok(SetDense { values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::testing::{dense_params, job, room};

    #[test]
    fn servers_get_their_pieces() {
        let params = dense_params();
        let values: Vec<&[f32]> = params.iter().map(Vec::as_slice).collect();
        let (tables, pieces) = job(3, false);
        let mut all = Vec::new();
        for (server, pieces) in pieces.iter().enumerate() {
            let to = Destination { server, tables: &tables, pieces };
            let buf = SetDense::encode(&values, &to, room);
            all.extend_from_slice(SetDense::decode(&buf).unwrap().values.of(&buf));
        }
        assert_eq!(all, params.concat());
    }
}
