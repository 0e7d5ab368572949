//! Temporaries share buffers: one takes the buffer of another that no later launch touches.

use std::cmp::Reverse;

use super::launch::Launch;

/// Which buffer each temporary has, and how large the buffers are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sharing {
    /// The buffer of each temporary; none if it is not touched or has memory elsewhere.
    pub(super) buffer_of: Vec<Option<usize>>,
    /// Bytes of each buffer.
    pub(super) bytes: Vec<u64>,
}

/// First and last launch that touches a temporary.
type Life = (usize, usize);

/// Gives temporaries of these sizes their buffers. Those in `kept` are read after the last launch;
/// those in `elsewhere` have memory already.
pub(super) fn share(
    bytes: &[u64],
    launches: &[Launch],
    kept: &[usize],
    elsewhere: &[usize],
) -> Sharing {
    let lives = lives(bytes.len(), launches, kept);
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.retain(|temp| lives[*temp].is_some() && !elsewhere.contains(temp));
    order.sort_by_key(|&temp| (Reverse(bytes[temp]), lives[temp]));
    let mut sharing = Sharing { buffer_of: vec![None; bytes.len()], bytes: Vec::new() };
    let mut used: Vec<Vec<Life>> = Vec::new();
    for temp in order {
        let Some(life) = lives[temp] else { continue };
        let apart = |other: &Life| life.1 < other.0 || other.1 < life.0;
        // Large ones are placed first, so every buffer so far is large enough; the smallest that
        // is free wastes least.
        let free = (0..used.len()).filter(|&b| used[b].iter().all(apart));
        let at = free.min_by_key(|&b| sharing.bytes[b]).unwrap_or_else(|| {
            used.push(Vec::new());
            sharing.bytes.push(bytes[temp]);
            used.len() - 1
        });
        used[at].push(life);
        sharing.buffer_of[temp] = Some(at);
    }
    sharing
}

fn lives(n_temps: usize, launches: &[Launch], kept: &[usize]) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; n_temps];
    for (at, launch) in launches.iter().enumerate() {
        for temp in launch.temps() {
            let life = lives[temp].get_or_insert((at, at));
            life.1 = at;
        }
    }
    for &temp in kept {
        if let Some(life) = &mut lives[temp] {
            life.1 = usize::MAX;
        }
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::super::launch::{Arg, Count, Launch, Place, Work};
    use super::*;

    fn launch(temps: &[usize]) -> Launch {
        let args = temps.iter().map(|&temp| Arg::At(Place::Temp(temp))).collect();
        Launch { kernel: "unary", work: Work::Items(Count::fixed(1)), args, chain: None }
    }

    #[test]
    fn what_lives_at_the_same_time_lies_apart() {
        // 0 -> 1 -> 2 -> 3, and 4 is made first and read last.
        let launches = [launch(&[0, 4]), launch(&[0, 1]), launch(&[1, 2]), launch(&[2, 3, 4])];
        let sharing = share(&[8, 8, 16, 4, 4, 4], &launches, &[3], &[]);
        let of = &sharing.buffer_of;
        assert_eq!(of[5], None, "nobody touches it");
        assert!(of[0] == of[2] && of[1] != of[2] && of[0] != of[1]);
        assert!(of[3] == of[1] && of[4] != of[3], "{sharing:?}");
        assert_eq!(sharing.bytes.iter().sum::<u64>(), 16 + 8 + 4);
        let apart = share(&[8, 8, 16, 4, 4, 4], &launches, &[0, 1, 2, 3, 4], &[2]);
        assert_eq!(apart.buffer_of[2], None);
        assert_eq!(apart.bytes.len(), 4, "what is read at the end is not overwritten");
    }
}
