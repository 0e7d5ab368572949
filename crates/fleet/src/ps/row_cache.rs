//! A worker's copies of rows that it pulled a few steps ago: the keys of a batch go in, those that
//! servers have to be asked for come out; their answer goes in, the rows of all keys come out.

use std::collections::VecDeque;
use std::ops::Range;

use regatta_ps::Pulled;
use regatta_tensor::RowIndex;

use super::Lookup;

/// Where the rows of a worker's batches came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Servers were asked for them.
    pub pulled: u64,
    /// The worker had pulled them a few steps before.
    pub copied: u64,
}

/// The rows of one table that were asked for in the last steps.
///
/// A row counts as asked for when the request is sent, not when it is answered: what is asked for
/// then does not depend on how fast servers are. Answers come in the order of requests, so a row is
/// here when somebody who relies on an earlier request for it gets the answer to the own one.
///
/// Rows of as many steps as one may be old lie together in a generation. One that is live is in
/// one of the last two; those before are dropped as a whole. So nothing is removed row by row, and
/// the memory is that of about twice as many batches as a row is used for.
#[derive(Debug, Default)]
pub struct RowCache {
    dim: usize,
    /// Steps for which a row is used again.
    steps: u64,
    /// The oldest first.
    generations: Vec<Generation>,
    /// Requests that are not answered, the oldest first.
    asked: VecDeque<Asked>,
    spare_generations: Vec<Generation>,
    spare_places: Vec<Vec<Place>>,
}

/// The rows that were asked for in some steps on end.
#[derive(Debug, Default)]
struct Generation {
    /// The first of the steps.
    first: u64,
    index: RowIndex,
    /// Steps, and the first row that was asked for in each.
    starts: Vec<(u64, usize)>,
    /// One row per key of the index; may be longer.
    values: Vec<f32>,
}

/// A request.
#[derive(Debug)]
struct Asked {
    step: u64,
    /// The first step of the generation that the rows asked for belong to.
    generation: u64,
    /// Which rows of it they are.
    rows: Range<usize>,
    /// Where the row of each key of the batch is.
    places: Vec<Place>,
}

/// Where a row is: in the generation of the request, or in the one before.
#[derive(Debug, Clone, Copy)]
struct Place {
    before: bool,
    row: u32,
}

impl RowCache {
    /// For rows of so many floats, which are used again for so many steps.
    pub fn new(dim: usize, steps: u64) -> RowCache {
        RowCache { dim, steps, ..RowCache::default() }
    }

    /// The keys of a batch that servers have to be asked for in this step, in their order: those
    /// that were not asked for in the last steps. Keys are distinct, and steps rise.
    ///
    /// # Panics
    /// If there are 2^32 rows or more.
    pub fn ask(&mut self, step: u64, keys: &[u64]) -> &[u64] {
        self.begin(step, keys.len());
        let mut places = self.spare_places.pop().unwrap_or_default();
        places.clear();
        let (young, before) = self.generations.split_last_mut().expect("one has begun");
        let before = before.last();
        let oldest = step.saturating_sub(self.steps);
        let live_before = before.map_or(0, |before| before.first_row_since(oldest));
        let first = young.index.len();
        young.starts.push((step, first));
        places.extend(keys.iter().map(|&key| {
            let found = before.and_then(|before| before.index.find(key));
            let found = found.filter(|row| *row >= live_before);
            // All rows of the last generation are live, and new ones are to be asked for.
            let row = found.unwrap_or_else(|| young.index.insert(key).0);
            Place {
                before: found.is_some(),
                row: u32::try_from(row).expect("fewer than 2^32 rows"),
            }
        }));
        let rows = first..young.index.len();
        young.make_room(self.dim);
        self.asked.push_back(Asked { step, generation: young.first, rows: rows.clone(), places });
        &young.index.ids()[rows]
    }

    /// Where the answer to the oldest request goes.
    ///
    /// # Panics
    /// If there is no request.
    pub fn answer_mut(&mut self) -> &mut [f32] {
        let asked = self.asked.front().expect("something was asked for");
        let (rows, generation) = (asked.rows.clone(), asked.generation);
        let at = self.position(generation);
        &mut self.generations[at].values[rows.start * self.dim..rows.end * self.dim]
    }

    /// The oldest request is answered: gives out the rows of all keys of its batch, and says how
    /// many were asked for and how many were here.
    ///
    /// # Panics
    /// If there is no request, or `to` has no room for a row per key.
    pub fn give(&mut self, to: &mut [f32]) -> RowCounts {
        let asked = self.asked.pop_front().expect("something was asked for");
        assert_eq!(to.len(), asked.places.len() * self.dim, "a row per key");
        let at = self.position(asked.generation);
        let values = &self.generations[at].values;
        let before = at.checked_sub(1).map_or(&[][..], |at| &self.generations[at].values);
        for (place, to) in asked.places.iter().zip(to.chunks_exact_mut(self.dim)) {
            let from = if place.before { before } else { values };
            to.copy_from_slice(&from[place.row as usize * self.dim..][..self.dim]);
        }
        let pulled = asked.rows.len() as u64;
        let copied = asked.places.len() as u64 - pulled;
        self.spare_places.push(asked.places);
        RowCounts { pulled, copied }
    }

    /// The oldest request gets no values. Nor do those behind it, and [`RowCache::clear`] has to
    /// follow before the next: rows that were to come are not here.
    pub fn give_up(&mut self) {
        let asked = self.asked.pop_front();
        self.spare_places.extend(asked.map(|asked| asked.places));
    }

    /// Forgets all rows and requests.
    pub fn clear(&mut self) {
        self.spare_generations.append(&mut self.generations);
        while !self.asked.is_empty() {
            self.give_up();
        }
    }

    /// Makes room for the keys of a step: in the last generation, or in a new one if some of its rows
    /// are too old.
    fn begin(&mut self, step: u64, n_keys: usize) {
        // Requests that are not answered need what was live when they were made.
        let oldest_request = self.asked.front().map_or(step, |asked| asked.step);
        let needed = oldest_request.saturating_sub(self.steps);
        let end = |generation: &Generation| generation.first.saturating_add(self.steps);
        let dead = self.generations.iter().take_while(|g| end(g) <= needed).count();
        self.spare_generations.extend(self.generations.drain(..dead));
        if self.generations.last().is_none_or(|last| end(last) <= step) {
            let mut young = self.spare_generations.pop().unwrap_or_default();
            young.restart(step);
            self.generations.push(young);
        }
        if let Some(young) = self.generations.last_mut() {
            young.index.reserve(n_keys);
        }
    }

    fn position(&self, generation: u64) -> usize {
        let found = self.generations.iter().position(|g| g.first == generation);
        found.expect("generations of requests are kept")
    }
}

impl Generation {
    fn restart(&mut self, first: u64) {
        self.first = first;
        self.starts.clear();
        // As large as it was, so that it need not grow again.
        self.index.clear(self.index.len());
    }

    fn make_room(&mut self, dim: usize) {
        let len = self.index.len() * dim;
        if self.values.len() < len {
            self.values.resize(len, 0.0);
        }
    }

    /// Rows from this one on were asked for in this step or later.
    fn first_row_since(&self, step: u64) -> usize {
        let at = self.starts.partition_point(|(asked, _)| *asked < step);
        self.starts.get(at).map_or(self.index.len(), |(_, row)| *row)
    }
}

/// The copies of all tables of a worker, or none: rows then go straight to where they are used.
#[derive(Debug, Default)]
pub(super) struct RowCaches {
    tables: Vec<RowCache>,
    counts: RowCounts,
}

impl RowCaches {
    /// For tables with rows of so many floats, which are used again for so many steps.
    pub(super) fn new(dims: impl Iterator<Item = usize>, steps: u64) -> RowCaches {
        let dims = dims.take_while(|_| steps > 0);
        let tables = dims.map(|dim| RowCache::new(dim, steps)).collect();
        RowCaches { tables, counts: RowCounts::default() }
    }

    fn is_off(&self) -> bool {
        self.tables.is_empty()
    }

    /// The keys to ask servers for, by table.
    pub(super) fn ask<'a>(&'a mut self, step: u64, lookups: &'a [Lookup]) -> Vec<&'a [u64]> {
        if self.is_off() {
            return lookups.iter().map(Lookup::keys).collect();
        }
        let tables = self.tables.iter_mut().zip(lookups);
        tables.map(|(cache, lookup)| cache.ask(step, lookup.keys())).collect()
    }

    /// Where the rows of the oldest request go, by table.
    pub(super) fn answer_mut<'a>(&'a mut self, lookups: &'a mut [Lookup]) -> Vec<&'a mut [f32]> {
        if self.is_off() {
            return lookups.iter_mut().map(Lookup::rows_mut).collect();
        }
        self.tables.iter_mut().map(RowCache::answer_mut).collect()
    }

    /// The oldest request is answered: gives a batch its rows, if there are any.
    pub(super) fn give(&mut self, pulled: Pulled, lookups: &mut [Lookup]) {
        for (cache, lookup) in self.tables.iter_mut().zip(lookups) {
            match pulled {
                Pulled::Values => {
                    let counts = cache.give(lookup.rows_mut());
                    self.counts.pulled += counts.pulled;
                    self.counts.copied += counts.copied;
                }
                Pulled::HeldBack => cache.give_up(),
            }
        }
    }

    /// Forgets all rows.
    pub(super) fn clear(&mut self) {
        self.tables.iter_mut().for_each(RowCache::clear);
    }

    /// Where rows came from since the last call; nothing if there are no copies.
    pub(super) fn take_counts(&mut self) -> Option<RowCounts> {
        (!self.is_off()).then(|| std::mem::take(&mut self.counts))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use regatta_tensor::Rng;

    use super::*;

    /// A row says which key it is of, and in which step it was asked for.
    fn row(key: u64, step: u64) -> [f32; 2] {
        [key as f32, step as f32]
    }

    /// Requests that are answered in order, and what they should give.
    struct Servers {
        cache: RowCache,
        steps: u64,
        /// In which step each key was asked for.
        asked: HashMap<u64, u64>,
        /// Steps with the keys asked for, and the rows that the batch should get.
        under_way: VecDeque<(u64, Vec<u64>, Vec<f32>)>,
    }

    impl Servers {
        fn new(steps: u64) -> Servers {
            let cache = RowCache::new(2, steps);
            Servers { cache, steps, asked: HashMap::new(), under_way: VecDeque::new() }
        }

        fn ask(&mut self, step: u64, keys: &[u64]) -> Vec<u64> {
            let is_old = |key: &&u64| self.asked.get(key).is_none_or(|a| a + self.steps < step);
            let expected: Vec<u64> = keys.iter().filter(is_old).copied().collect();
            self.asked.extend(expected.iter().map(|key| (*key, step)));
            assert_eq!(self.cache.ask(step, keys), expected, "step {step}");
            let rows = keys.iter().flat_map(|key| row(*key, self.asked[key])).collect();
            self.under_way.push_back((step, expected.clone(), rows));
            expected
        }

        fn answer(&mut self) {
            let (step, asked, expected) = self.under_way.pop_front().unwrap();
            let answer: Vec<f32> = asked.iter().flat_map(|key| row(*key, step)).collect();
            self.cache.answer_mut().copy_from_slice(&answer);
            let mut rows = vec![f32::NAN; expected.len()];
            let counts = self.cache.give(&mut rows);
            assert_eq!(rows, expected, "step {step}");
            let (pulled, all) = (asked.len() as u64, expected.len() as u64 / 2);
            assert_eq!(counts, RowCounts { pulled, copied: all - pulled });
        }

        /// Rows that there is memory for.
        fn room(&self) -> usize {
            let generations = self.cache.generations.iter().chain(&self.cache.spare_generations);
            generations.map(|g| g.values.capacity() / 2).sum()
        }
    }

    #[test]
    fn rows_are_asked_for_again_when_they_are_too_old() {
        let mut servers = Servers::new(2);
        let asked =
            [(10, vec![1, 2]), (11, vec![3]), (12, vec![]), (13, vec![1, 2]), (14, vec![3])];
        for (step, expected) in asked {
            let keys: &[u64] = if step == 10 { &[1, 2] } else { &[1, 3, 2] };
            assert_eq!(servers.ask(step, keys), expected);
            servers.answer();
        }
    }

    /// Batches of some keys that appear often and many that do not, with several requests under way:
    /// keys, rows and counts are those of the plain rule, and memory does not grow.
    #[test]
    fn thousands_of_steps_give_what_the_rule_says() {
        const KEYS: usize = 40;
        for (steps, ahead) in [(1, 0), (1, 1), (1, 4), (2, 1), (3, 0), (5, 2), (8, 11)] {
            let mut servers = Servers::new(steps);
            let mut room = 0;
            for step in 7..3007 {
                let rng = Rng::new(steps, step);
                let draw = |i: u64| rng.u64(i) % [6, 30, 100_000][i as usize % 3];
                let mut keys: Vec<u64> = (0..KEYS as u64).map(draw).collect();
                keys.sort_unstable_by_key(|key| key.wrapping_mul(step));
                keys.dedup();
                servers.ask(step, &keys);
                while servers.under_way.len() > ahead {
                    servers.answer();
                }
                room = room.max(servers.room());
            }
            // Vectors grow by doubling.
            let most = 2 * KEYS * (2 * steps as usize + ahead + 1);
            assert!(room <= most, "{steps} steps, {ahead} ahead: room for {room} rows, not {most}");
        }
    }

    #[test]
    fn what_was_to_come_is_asked_for_again_after_a_cut() {
        let mut cache = RowCache::new(1, 5);
        assert_eq!(cache.ask(0, &[1]), [1]);
        cache.answer_mut().fill(1.0);
        cache.give(&mut [0.0]);
        // Both requests are held back; the second relies on the first.
        assert_eq!(cache.ask(1, &[1, 2]), [2]);
        assert_eq!(cache.ask(2, &[2, 3]), [3]);
        assert_eq!((cache.answer_mut().len(), cache.give_up()), (1, ()));
        assert_eq!((cache.answer_mut().len(), cache.give_up()), (1, ()));
        cache.clear();
        assert_eq!(cache.ask(1, &[1, 2]), [1, 2]);
        cache.answer_mut().copy_from_slice(&[7.0, 8.0]);
        let mut rows = [0.0; 2];
        assert_eq!(cache.give(&mut rows), RowCounts { pulled: 2, copied: 0 });
        assert_eq!(rows, [7.0, 8.0]);
    }

    #[test]
    fn without_copies_rows_go_straight_to_the_batch() {
        let mut off = RowCaches::new([3, 4].into_iter(), 0);
        let mut lookups = [Lookup::default(), Lookup::default()];
        let keys: Vec<*const u64> = off.ask(3, &lookups).iter().map(|k| k.as_ptr()).collect();
        assert_eq!(keys, lookups.each_ref().map(|l| l.keys().as_ptr()));
        assert_eq!(off.answer_mut(&mut lookups).len(), 2);
        off.give(Pulled::Values, &mut lookups);
        assert_eq!(off.take_counts(), None);
    }
}
