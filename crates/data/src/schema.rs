//! What the caller wants in a batch: a name and a kind for each slot, in order.

use std::collections::HashSet;
use std::sync::Arc;

use crate::Error;

/// One column of a record and one entry of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The name under which batches carry it.
    pub name: String,
    /// What it holds.
    pub kind: SlotKind,
    /// Ids, labels and integers of files are from 0 to below this number; a line with another one
    /// is malformed.
    pub limit: Option<u64>,
}

/// What a slot holds for each example, and what a batch of `B` examples makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// One signed integer; an `i64` tensor `[B, 1]`.
    Label,
    /// `dim` floats; an `f32` tensor `[B, dim]`.
    Dense {
        /// Floats per example.
        dim: usize,
    },
    /// Any number of feature ids; a ragged `u64` value with `B` rows.
    Ids,
    /// The same number of feature ids in every example; a `u64` tensor `[B, count]`.
    FixedIds {
        /// Ids per example.
        count: usize,
    },
    /// The same number of signed integers in every example; an `i64` tensor `[B, count]`.
    Ints {
        /// Integers per example.
        count: usize,
    },
}

impl Slot {
    /// A slot of one signed integer.
    pub fn label(name: impl Into<String>) -> Slot {
        Slot { name: name.into(), kind: SlotKind::Label, limit: None }
    }

    /// A slot of `dim` floats.
    pub fn dense(name: impl Into<String>, dim: usize) -> Slot {
        Slot { name: name.into(), kind: SlotKind::Dense { dim }, limit: None }
    }

    /// A slot of any number of ids.
    pub fn ids(name: impl Into<String>) -> Slot {
        Slot { name: name.into(), kind: SlotKind::Ids, limit: None }
    }

    /// A slot of exactly `count` ids.
    pub fn fixed_ids(name: impl Into<String>, count: usize) -> Slot {
        Slot { name: name.into(), kind: SlotKind::FixedIds { count }, limit: None }
    }

    /// A slot of exactly `count` signed integers.
    pub fn ints(name: impl Into<String>, count: usize) -> Slot {
        Slot { name: name.into(), kind: SlotKind::Ints { count }, limit: None }
    }

    /// The same with ids, labels or integers that must be from 0 to below `limit`.
    pub fn below(self, limit: u64) -> Slot {
        Slot { limit: Some(limit), ..self }
    }
}

/// The slots of a record in order. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    slots: Arc<[Slot]>,
}

impl Schema {
    /// A schema of the given slots.
    ///
    /// # Errors
    /// If there are none, two share a name, or one holds no values.
    pub fn new(slots: Vec<Slot>) -> Result<Schema, Error> {
        if slots.is_empty() {
            return Err(Error::config("a schema needs at least one slot"));
        }
        let mut names = HashSet::new();
        for slot in &slots {
            if !names.insert(&slot.name) {
                return Err(Error::config(format!("two slots have the name '{}'", slot.name)));
            }
            use SlotKind::{Dense, FixedIds, Ints};
            if let Dense { dim: 0 } | FixedIds { count: 0 } | Ints { count: 0 } = slot.kind {
                return Err(Error::config(format!("slot '{}' has no values", slot.name)));
            }
        }
        Ok(Schema { slots: slots.into() })
    }

    /// The click-log schema of PaddleRec's Criteo models: `label`, one id in each of `1`..`26`,
    /// and 13 floats in `dense_input`, in the order in which its readers yield them.
    pub fn criteo() -> Schema {
        let mut slots = vec![Slot::label("label")];
        slots.extend((1..=26).map(|i| Slot::fixed_ids(i.to_string(), 1)));
        slots.push(Slot::dense("dense_input", 13));
        Schema { slots: slots.into() }
    }

    /// The slots in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The index of the slot with that name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.slots.iter().position(|s| s.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_must_differ_and_slots_must_hold_something() {
        let twice = Schema::new(vec![Slot::ids("a"), Slot::label("a")]).unwrap_err();
        assert_eq!(twice.to_string(), "two slots have the name 'a'");
        assert!(Schema::new(vec![]).is_err());
        assert!(Schema::new(vec![Slot::dense("d", 0)]).is_err());
        assert!(Schema::new(vec![Slot::ints("d", 0)]).is_err());
        assert_eq!(Schema::criteo().slots().len(), 28);
        assert_eq!(Schema::criteo().index_of("26"), Some(26));
    }
}
