//! Everything known of one id.

use crate::Error;
use crate::ctr::{CLICK, SHOW};
use crate::hash::{hash_of, key_of, shard_of};
use crate::index::Place;
use crate::row::Kind;
use crate::sparse::SparseTable;

/// What a table knows of an id.
#[derive(Debug, Clone, PartialEq)]
pub enum Inspection {
    /// The id that always gives zeros.
    Padding,
    /// Nothing: it was never seen in training, or it was evicted.
    Absent,
    /// It waits for admission.
    Candidate {
        /// How often it appeared.
        appearances: u32,
        /// Days that ended since it last appeared.
        unseen_days: u32,
    },
    /// It has a row.
    Row(InspectedRow),
}

/// A row, part by part.
#[derive(Debug, Clone, PartialEq)]
pub struct InspectedRow {
    /// The shard that holds it.
    pub shard: usize,
    /// Days that ended since its last push.
    pub unseen_days: u32,
    /// Whether it was pushed since it was last saved as base, delta or patch.
    pub changed: bool,
    /// The score of its shows and clicks (CTR).
    pub score: Option<f32>,
    /// The parts it has, by name.
    pub parts: Vec<(String, Vec<f32>)>,
}

impl InspectedRow {
    /// One part; none if the row does not have it.
    pub fn part(&self, name: &str) -> Option<&[f32]> {
        self.parts.iter().find(|(own, _)| own == name).map(|(_, values)| values.as_slice())
    }
}

impl SparseTable {
    /// The ids of all rows, in no order.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn keys(&self) -> Result<Vec<u64>, Error> {
        let mut keys = Vec::new();
        for shard in 0..self.shards.len() {
            let shard = self.read(shard)?;
            let rows = shard.index.iter().filter(|(_, place)| place.slot().is_some());
            keys.extend(rows.map(|(hash, _)| key_of(hash)));
            self.settled(shard.visit_cold(|_, record| keys.push(key_of(record.hash))))?;
        }
        Ok(keys)
    }

    /// Everything known of an id. Changes nothing and counts nowhere.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn inspect(&self, key: u64) -> Result<Inspection, Error> {
        if Some(key) == self.config.padding_idx {
            return Ok(Inspection::Padding);
        }
        let hash = hash_of(key);
        let shard_idx = shard_of(hash, self.shards.len());
        let shard = self.read(shard_idx)?;
        let mut place = shard.index.find(hash);
        let mut cold = Vec::new();
        if place == Place::EMPTY
            && let Some(tier) = &shard.tier
        {
            let unread: Vec<_> = tier.cold.candidates(hash).map(|entry| (hash, entry)).collect();
            self.settled(shard.read_now(&unread, |entry, record| {
                place = Place::from_tag(1, record.tag, entry.marks());
                cold = self.cold_row(&record).to_vec();
                Ok(())
            }))?;
        }
        let unseen_days = place.unseen_days(self.day());
        if let Some(appearances) = place.appearances() {
            return Ok(Inspection::Candidate { appearances, unseen_days });
        }
        let there = if cold.is_empty() { shard.row(place) } else { Some(&cold[..]) };
        let Some(mut words) = there else { return Ok(Inspection::Absent) };
        let score = match &self.kind {
            Kind::Plain(_) => None,
            Kind::Ctr(ctr) => Some(ctr.score(words[SHOW], words[CLICK])),
        };
        let mut parts = Vec::new();
        for (name, len) in self.kind.parts() {
            // A row in its first stage ends before its second vector.
            let Some((part, rest)) = words.split_at_checked(len) else { break };
            parts.push((name, part.to_vec()));
            words = rest;
        }
        let changed = place.has(Place::CHANGED);
        Ok(Inspection::Row(InspectedRow { shard: shard_idx, unseen_days, changed, score, parts }))
    }
}
