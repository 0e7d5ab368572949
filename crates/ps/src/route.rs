//! Sorts the keys of a request by the server that holds them.

use crate::partition::server_of;

/// Positions of keys, grouped by server. Its buffers are reused.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// Positions in the original order of keys, server by server.
    order: Vec<u32>,
    /// Where each server's positions begin, and the end.
    starts: Vec<usize>,
}

impl Route {
    pub(crate) fn new(keys: &[u64], servers: usize) -> Route {
        if servers == 1 {
            return Route { order: (0..keys.len() as u32).collect(), starts: vec![0, keys.len()] };
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
        Route { order, starts }
    }

    /// Positions of the keys of a server, in rising order.
    pub(crate) fn of(&self, server: usize) -> &[u32] {
        &self.order[self.starts[server]..self.starts[server + 1]]
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
                for &position in route.of(server) {
                    seen[position as usize] += 1;
                    prop_assert_eq!(server_of(keys[position as usize], servers), server);
                }
                prop_assert!(route.of(server).is_sorted());
            }
            prop_assert!(seen.iter().all(|&n| n == 1));
        }
    }
}
