//! Which server holds what: rows by id, dense parameters by position.

use std::ops::Range;

use regatta_tensor::rng::mix;

/// Decorrelates the choice of the server from the hash that a table uses within it.
const SERVER_SALT: u64 = 0x5EED_0F5E_11E2_57AB;

/// The server that holds an id. Every server gets its share of any set of ids, for any number of
/// servers.
#[inline]
pub fn server_of(id: u64, servers: usize) -> usize {
    ((u128::from(mix(id ^ SERVER_SALT)) * servers as u128) >> 64) as usize
}

/// A piece of a dense parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Index of the parameter.
    pub param: usize,
    /// Elements of it.
    pub range: Range<usize>,
}

/// Lays all parameters end to end and gives each server an equal, contiguous share, possibly empty.
/// Where `whole` says so (rules that take norms), a parameter goes to one server undivided.
pub fn dense_pieces(lens: &[usize], servers: usize, whole: bool) -> Vec<Vec<Piece>> {
    let total: usize = lens.iter().sum();
    let mut pieces = vec![Vec::new(); servers];
    let mut start = 0;
    for (param, &len) in lens.iter().enumerate() {
        if whole {
            // The server in whose share the middle of the parameter falls.
            let middle = start + len / 2;
            let server = (middle * servers / total.max(1)).min(servers - 1);
            pieces[server].push(Piece { param, range: 0..len });
        } else {
            for (server, pieces) in pieces.iter_mut().enumerate() {
                let share = total * server / servers..total * (server + 1) / servers;
                let (from, to) = (share.start.max(start), share.end.min(start + len));
                if from < to {
                    pieces.push(Piece { param, range: from - start..to - start });
                }
            }
        }
        start += len;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_spread_evenly() {
        for servers in [1, 2, 3, 7] {
            let mut counts = vec![0usize; servers];
            (0..70_000u64).for_each(|id| counts[server_of(id, servers)] += 1);
            let (min, max) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*max as f64 / *min as f64 <= 1.1, "{servers}: {counts:?}");
        }
    }

    proptest! {
        #[test]
        fn every_element_is_on_exactly_one_server(
            lens in prop::collection::vec(0usize..50, 0..6), servers in 1usize..9, whole: bool,
        ) {
            let mut seen: Vec<Vec<usize>> = lens.iter().map(|&n| vec![0; n]).collect();
            for piece in dense_pieces(&lens, servers, whole).into_iter().flatten() {
                piece.range.for_each(|i| seen[piece.param][i] += 1);
            }
            prop_assert!(seen.iter().flatten().all(|&n| n == 1));
        }
    }
}
