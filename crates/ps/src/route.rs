//! Where a request goes: the keys of a batch by the server that holds them.

use crate::ClientTable;
use crate::partition::{Piece, server_of};

/// The server that a request goes to, and what it holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Destination<'a> {
    /// Its number.
    pub(crate) server: usize,
    /// The tables of the job.
    pub(crate) tables: &'a [ClientTable],
    /// Its pieces of the dense parameters.
    pub(crate) pieces: &'a [Piece],
}

impl Destination<'_> {
    /// Floats of all of its pieces.
    pub(crate) fn dense_len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.range.len()).sum()
    }
}

/// Positions of keys, grouped by server.
#[derive(Debug)]
pub(crate) enum Route {
    /// One server holds everything.
    All(usize),
    /// Positions in the original order of keys, server by server.
    Split {
        /// The positions.
        order: Vec<u32>,
        /// Where each server's positions begin, and the end.
        starts: Vec<usize>,
    },
}

impl Route {
    pub(crate) fn new(keys: &[u64], servers: usize) -> Route {
        if servers == 1 {
            return Route::All(keys.len());
        }
        let of: Vec<u16> = keys.iter().map(|&k| server_of(k, servers) as u16).collect();
        let mut starts = vec![0usize; servers + 1];
        of.iter().for_each(|&s| starts[s as usize + 1] += 1);
        (0..servers).for_each(|s| starts[s + 1] += starts[s]);
        let mut next = starts.clone();
        let mut order = vec![0u32; keys.len()];
        for (position, &s) in of.iter().enumerate() {
            order[next[s as usize]] = position as u32;
            next[s as usize] += 1;
        }
        Route::Split { order, starts }
    }

    /// How many keys go to a server.
    pub(crate) fn len_of(&self, server: usize) -> usize {
        match self {
            Route::All(n) => *n,
            Route::Split { starts, .. } => starts[server + 1] - starts[server],
        }
    }

    /// Positions of the keys of a server, in rising order; none if it gets all of them.
    pub(crate) fn positions(&self, server: usize) -> Option<&[u32]> {
        match self {
            Route::All(_) => None,
            Route::Split { order, starts } => Some(&order[starts[server]..starts[server + 1]]),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_key_goes_to_its_server_once(
            keys in prop::collection::vec(any::<u64>(), 0..200), servers in 1usize..6,
        ) {
            let route = Route::new(&keys, servers);
            let mut seen = vec![0; keys.len()];
            for server in 0..servers {
                let all: Vec<u32> = (0..keys.len() as u32).collect();
                let positions = route.positions(server).unwrap_or(&all);
                prop_assert_eq!(positions.len(), route.len_of(server));
                for &position in positions {
                    seen[position as usize] += 1;
                    prop_assert_eq!(server_of(keys[position as usize], servers), server);
                }
                prop_assert!(positions.is_sorted());
            }
            prop_assert!(seen.iter().all(|&n| n == 1));
        }
    }
}
