//! Rows and dense parameters that this worker updates itself, on a device for example: all of them
//! come with their optimizer state and go back as they are then. Of several workers one owns a row,
//! and the first one gives dense parameters back.

use regatta_table::DensePiece;

use super::Client;
use crate::Error;
use crate::message::{DenseState, Kind, LeaseRows, ReturnRows, Wire};
use crate::route::Route;

impl Client {
    /// Copies whole rows of distinct keys of a table: as many floats per key as `out` has room for.
    /// `counts` says how often each key appeared; once, if it is empty. Keys that are not admitted
    /// get zeros; their positions are returned.
    ///
    /// # Errors
    /// If a server is gone, or its rows have another length.
    pub fn lease_rows(
        &self,
        table: usize,
        (keys, counts): (&[u64], &[u32]),
        out: &mut [f32],
    ) -> Result<Vec<u32>, Error> {
        let route = Route::new(keys, self.servers());
        let width = out.len().checked_div(keys.len()).unwrap_or(0);
        let send = |server: usize| {
            let room = |n| self.room(server, n);
            let buf = LeaseRows::encode(table, (keys, counts), (&route, server), room);
            self.send(Wire::F32, server, Kind::LeaseRows, buf)
        };
        let pending = (0..self.servers()).map(send).collect::<Result<Vec<_>, Error>>()?;
        let mut all_absent = Vec::new();
        for (server, pending) in pending.into_iter().enumerate() {
            let (payload, n) = (self.payload(server, pending)?, route.len_of(server));
            let (rows, absent) = LeaseRows::read_reply(&payload, n * width)?;
            if absent.iter().any(|at| *at as usize >= n) {
                return Err(Error::malformed(format!("an absent key beyond {n}")));
            }
            match route.positions(server) {
                None => {
                    out.copy_from_slice(rows);
                    all_absent.extend_from_slice(absent);
                }
                Some(positions) => {
                    all_absent.extend(absent.iter().map(|at| positions[*at as usize]));
                    for (&at, row) in positions.iter().zip(rows.chunks_exact(width.max(1))) {
                        out[at as usize * width..][..width].copy_from_slice(row);
                    }
                }
            }
        }
        Ok(all_absent)
    }

    /// Writes whole rows of distinct keys over those of a table.
    ///
    /// # Errors
    /// As [`Client::lease_rows`].
    pub fn return_rows(&self, table: usize, keys: &[u64], rows: &[f32]) -> Result<(), Error> {
        if keys.is_empty() {
            return Ok(());
        }
        let route = Route::new(keys, self.servers());
        let width = rows.len() / keys.len();
        let send = |server: usize| {
            let room = |n| self.room(server, n);
            let buf = ReturnRows::encode(table, keys, (rows, width), (&route, server), room);
            self.send(Wire::F32, server, Kind::ReturnRows, buf)
        };
        let pending = (0..self.servers()).map(send).collect::<Result<Vec<_>, Error>>()?;
        let mut replies = pending.into_iter().enumerate();
        replies.try_for_each(|(server, pending)| self.payload(server, pending).map(|_| ()))
    }

    /// All pieces of the dense parameters with their states, and the steps that were made.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn lease_dense(&self) -> Result<DenseState, Error> {
        let send =
            |server: usize| self.send(Wire::F32, server, Kind::LeaseDense, self.room(server, 8));
        let pending = (0..self.servers()).map(send).collect::<Result<Vec<_>, Error>>()?;
        let mut all: Option<DenseState> = None;
        for (server, pending) in pending.into_iter().enumerate() {
            let state = DenseState::decode(&self.payload(server, pending)?)?;
            match &mut all {
                None => all = Some(state),
                Some(all) => all.pieces.extend(state.pieces),
            }
        }
        all.ok_or_else(|| Error::internal("a job without servers"))
    }

    /// Gives the dense parameters back: whole ones, of which every server takes its pieces.
    ///
    /// # Errors
    /// If a server is gone, or a parameter is missing.
    pub fn return_dense(&self, state: &DenseState) -> Result<(), Error> {
        let send = |server: usize| {
            let own = DenseState { pieces: self.own_pieces(server, state)?, ..state.clone() };
            let buf = own.encode(|n| self.room(server, n));
            self.send(Wire::F32, server, Kind::ReturnDense, buf)
        };
        let pending = (0..self.servers()).map(send).collect::<Result<Vec<_>, Error>>()?;
        let mut replies = pending.into_iter().enumerate();
        replies.try_for_each(|(server, pending)| self.payload(server, pending).map(|_| ()))
    }

    /// What of whole parameters a server holds.
    fn own_pieces(&self, server: usize, state: &DenseState) -> Result<Vec<DensePiece>, Error> {
        let part = |piece: &crate::partition::Piece| {
            let missing = || Error::internal("a dense parameter is not given back");
            let whole = state.pieces.get(piece.param).ok_or_else(missing)?;
            let range = piece.range.clone();
            // States have one value for each weight, or one for all.
            let cut = |values: &[f32]| match values.len() == whole.weights.len() {
                true => values[range.clone()].to_vec(),
                false => values.to_vec(),
            };
            let states = whole.states.iter().map(|(name, values)| (name.clone(), cut(values)));
            let (name, offset) = (whole.name.clone(), range.start);
            let (weights, states) = (cut(&whole.weights), states.collect());
            Ok(DensePiece { name, offset, weights, states })
        };
        self.config.pieces[server].iter().map(part).collect()
    }
}
