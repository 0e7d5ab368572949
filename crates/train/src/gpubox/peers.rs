//! The other workers of a job with devices. All take every step together: they tell each other the
//! keys of their batches, and add up weights and gradients.
//!
//! Every worker calls the same functions in the same order. What decides which comes next is known
//! to all of them, and nothing else may.

use regatta_collective::{Group, ReduceOp, Wire as GroupWire};
use regatta_exec::device::TableKeys;
use regatta_ps::Wire;

use crate::Error;

/// The way to the other workers.
pub(super) struct Peers {
    group: Group,
    wire: GroupWire,
}

/// The batch of one worker in a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Announced {
    /// None if it has no data left.
    pub(super) examples: u64,
    /// The distinct keys, by table.
    pub(super) tables: Vec<TableKeys>,
}

impl Peers {
    /// Floats travel as the job says.
    pub(super) fn new(group: Group, wire: Wire) -> Peers {
        let wire = match wire {
            Wire::F32 => GroupWire::F32,
            Wire::F16 => GroupWire::F16,
            Wire::Bf16 => GroupWire::Bf16,
        };
        Peers { group, wire }
    }

    pub(super) fn worker(&self) -> usize {
        self.group.rank()
    }

    pub(super) fn workers(&self) -> usize {
        self.group.size()
    }

    /// What all workers have for the next step.
    pub(super) fn announce(&mut self, own: &Announced) -> Result<Vec<Announced>, Error> {
        let all = self.group.all_gather_bytes("keys of a batch", &own.encode())?;
        let decoded = all.iter().enumerate().map(|(worker, bytes)| {
            let wrong = || Error::Internal(format!("worker {worker} announced no keys"));
            Announced::decode(bytes, own.tables.len()).ok_or_else(wrong)
        });
        decoded.collect()
    }

    /// Why the first worker that lacks room does, if one does.
    pub(super) fn lacking(&mut self, own: Option<&str>) -> Result<Option<String>, Error> {
        let own = own.unwrap_or_default().as_bytes();
        let all = self.group.all_gather_bytes("room for a batch", own)?;
        let mut lacking = all.into_iter().enumerate().filter(|(_, text)| !text.is_empty());
        let reason = |text: Vec<u8>| String::from_utf8_lossy(&text).into_owned();
        Ok(lacking.next().map(|(at, text)| format!("worker {at}: {}", reason(text))))
    }

    /// Adds up values of all workers.
    pub(super) fn sum(&mut self, name: &str, values: &mut [f32]) -> Result<(), Error> {
        Ok(self.group.all_reduce(name, values, ReduceOp::Sum, self.wire)?)
    }

    /// Waits until all workers are here.
    pub(super) fn barrier(&mut self, name: &str) -> Result<(), Error> {
        Ok(self.group.barrier(name)?)
    }
}

impl Announced {
    /// Examples; numbers of keys and of counts by table; keys and counts.
    fn encode(&self) -> Vec<u8> {
        let lens = self.tables.iter().flat_map(|t| [t.keys.len() as u64, t.counts.len() as u64]);
        let lists = self.tables.iter().flat_map(|t| {
            let counts = t.counts.iter().map(|count| u64::from(*count));
            t.keys.iter().copied().chain(counts)
        });
        let numbers = std::iter::once(self.examples).chain(lens).chain(lists);
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8], tables: usize) -> Option<Announced> {
        let (chunks, rest) = bytes.as_chunks::<8>();
        let numbers: Vec<u64> = chunks.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let (examples, numbers) = numbers.split_first().filter(|_| rest.is_empty())?;
        let (lens, mut lists) = numbers.split_at_checked(2 * tables)?;
        let mut found = Vec::new();
        for lens in lens.chunks_exact(2) {
            let (keys, others) = lists.split_at_checked(lens[0] as usize)?;
            let (counts, others) = others.split_at_checked(lens[1] as usize)?;
            let counts = counts.iter().map(|count| *count as u32).collect();
            found.push(TableKeys { keys: keys.to_vec(), counts });
            lists = others;
        }
        lists.is_empty().then_some(Announced { examples: *examples, tables: found })
    }
}

/// The worker on whose devices the row of a key is. Independent of the device there.
pub(super) fn owner(key: u64, workers: usize) -> usize {
    let hash = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash >> 32) as usize % workers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_come_back() {
        let table = |keys: &[u64], counts: &[u32]| TableKeys {
            keys: keys.to_vec(),
            counts: counts.to_vec(),
        };
        let tables = vec![table(&[1, u64::MAX], &[]), table(&[], &[]), table(&[3], &[5])];
        let own = Announced { examples: 7, tables };
        let bytes = own.encode();
        assert_eq!(Announced::decode(&bytes, 3), Some(own));
        for (wrong, tables) in [(&bytes[..bytes.len() - 8], 3), (&bytes[1..], 3), (&bytes, 2)] {
            assert_eq!(Announced::decode(wrong, tables), None);
        }
        assert_eq!(Announced::decode(&[], 0), None);
    }

    #[test]
    fn workers_own_about_as_many_rows() {
        for step in [1, 2, 1 << 20, 1 << 40] {
            let mut owned = [0; 4];
            (0..4000).for_each(|key| owned[owner(key * step, 4)] += 1);
            assert!(owned.iter().all(|n| (850..1150).contains(n)), "{step} {owned:?}");
        }
    }
}
