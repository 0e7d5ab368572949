//! Ids and labels out of range: records go in with their lines, those of bad lines come out.
//!
//! Values are checked slot by slot when some lines have been read, not line by line. A record of 28
//! slots takes 390 ns unchecked, 437 ns checked like this and 580 ns line by line (2.57, 2.29 and
//! 1.68 million records per second, best of 9 rounds on 2 busy cores, 2026-11-18). To repeat:
//! `cargo bench -p regatta-data -- 32`, the lines "in file order".

use crate::records::Column;
use crate::{LineError, Records, Schema, SlotKind};

/// Which values the ids and labels of some slots may have, and the records that are to be checked.
#[derive(Debug)]
pub(crate) struct Limits {
    schema: Schema,
    /// Slots with a limit.
    slots: Vec<(usize, u64)>,
    /// Records before this one are not looked at.
    first: usize,
    /// The line of each record from there on.
    lines: Vec<u64>,
}

impl Limits {
    pub(crate) fn of(schema: &Schema) -> Limits {
        let slots = schema.slots().iter().enumerate();
        let slots = slots.filter_map(|(i, slot)| Some((i, slot.limit?))).collect();
        Limits { schema: schema.clone(), slots, first: 0, lines: Vec::new() }
    }

    /// Records that are there already are not to be checked.
    pub(crate) fn begin(&mut self, records: &Records) {
        self.first = records.len();
        self.lines.clear();
    }

    /// Notes that the records which have come since are those of a line.
    #[inline]
    pub(crate) fn note(&mut self, records: &Records, line: u64) {
        if !self.slots.is_empty() {
            self.lines.resize(records.len() - self.first, line);
        }
    }

    /// Takes out the records of all lines with a value that is out of range; returns these lines,
    /// each with its first such value.
    pub(crate) fn take_bad(&mut self, records: &mut Records) -> Vec<(u64, LineError)> {
        if !self.slots.iter().any(|&(slot, limit)| self.has_beyond(records, slot, limit)) {
            return Vec::new();
        }
        let mut bad: Vec<(u64, LineError)> = Vec::new();
        let rows: Vec<usize> = (self.first..records.len()).collect();
        for &row in &rows {
            let line = self.lines[row - self.first];
            if bad.last().is_none_or(|(last, _)| *last != line)
                && let Some(error) = self.problem_of(records, row)
            {
                bad.push((line, error));
            }
        }
        let is_bad = |row: &usize| {
            let line = self.lines[row - self.first];
            bad.binary_search_by_key(&line, |(bad, _)| *bad).is_ok()
        };
        let good = rows.into_iter().filter(|row| !is_bad(row)).map(|row| (0, row as u32)).collect();
        records.keep_from(self.first, good);
        bad
    }

    fn has_beyond(&self, records: &Records, slot: usize, limit: u64) -> bool {
        match &records.columns()[slot] {
            Column::Ids { values, offsets } => {
                any_beyond(values[offsets[self.first] as usize..].iter().copied(), limit)
            }
            Column::FixedIds { count, values } => {
                any_beyond(values[self.first * count..].iter().copied(), limit)
            }
            Column::Ints { count, values } => {
                any_beyond(values[self.first * count..].iter().map(|x| *x as u64), limit)
            }
            // A negative label is a large number.
            Column::Labels(v) => any_beyond(v[self.first..].iter().map(|l| *l as u64), limit),
            Column::Floats { .. } => false,
        }
    }

    /// What is wrong with one record, if anything is.
    fn problem_of(&self, records: &Records, row: usize) -> Option<LineError> {
        let beyond = |slot: usize, limit: u64| match &records.columns()[slot] {
            Column::Ids { values, offsets } => {
                let ids = &values[offsets[row] as usize..offsets[row + 1] as usize];
                ids.iter().find(|id| **id >= limit).copied()
            }
            Column::FixedIds { count, values } => {
                values[row * count..(row + 1) * count].iter().find(|id| **id >= limit).copied()
            }
            Column::Ints { count, values } => {
                let ints = values[row * count..(row + 1) * count].iter().map(|x| *x as u64);
                { ints }.find(|x| *x >= limit)
            }
            Column::Labels(v) => Some(v[row] as u64).filter(|label| *label >= limit),
            Column::Floats { .. } => None,
        };
        self.slots.iter().find_map(|&(slot, limit)| {
            let value = beyond(slot, limit)?;
            let slot = &self.schema.slots()[slot];
            let (what, found) = match slot.kind {
                SlotKind::Label => ("a label", (value as i64).to_string()),
                SlotKind::Ints { .. } => ("an integer", (value as i64).to_string()),
                _ => ("an id", value.to_string()),
            };
            let last = limit.saturating_sub(1);
            let expected = format!("{what} from 0 to {last} in slot '{}'", slot.name);
            Some(LineError { column: 0, expected, found })
        })
    }
}

/// Whether one of the values is not below the limit. Without a branch, so that several of them are
/// looked at in one instruction: the sign of a difference is that of `limit - 1 < value`, for
/// numbers below 2^63.
fn any_beyond(values: impl Iterator<Item = u64>, limit: u64) -> bool {
    const SIGN: u64 = 1 << 63;
    let Some(last) = limit.checked_sub(1).filter(|last| *last < SIGN) else {
        return { values }.any(|value| value >= limit);
    };
    values.fold(0, |signs, value| signs | last.wrapping_sub(value) | value) & SIGN != 0
}

#[cfg(test)]
mod tests {
    use super::any_beyond;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_trick_is_right(values: Vec<u64>, shift in 0u32..64, limit: u64) {
            let limit = limit >> shift;
            for values in [values.clone(), values.iter().map(|v| v >> shift).collect()] {
                let expected = values.iter().any(|value| *value >= limit);
                prop_assert_eq!(any_beyond(values.iter().copied(), limit), expected);
            }
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        let big = u64::MAX / 2;
        for limit in [0, 1, 2, big - 1, big, big + 1, big + 2, u64::MAX] {
            for value in [0, 1, 2, big - 1, big, big + 1, big + 2, u64::MAX] {
                assert_eq!(any_beyond([0, value].into_iter().skip(1), limit), value >= limit);
            }
        }
    }
}
