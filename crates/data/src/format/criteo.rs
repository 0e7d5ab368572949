//! PaddleRec's Criteo sample: `click:0 dense_feature:0.05 ... 1:737395 2:210498 ...`.
//!
//! Pairs may come in any order; keys that no slot asks for are skipped; a slot that does not occur
//! is filled with id 0, or with zeros if it is dense. A label must be there.

use std::collections::HashMap;

use memchr::memchr;

use crate::number::{is_blank, parse_i64, parse_label, parse_u64, scan_f32, skip_blanks};
use crate::records::Column;
use crate::{Error, LineError, LineParser, Records, Schema};

/// Which key of the text belongs to which slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Criteo {
    /// One key for each slot, in the order of the schema.
    pub keys: Vec<String>,
}

impl Criteo {
    /// The keys of PaddleRec's sample for [`Schema::criteo`]: `click`, `1`..`26`, `dense_feature`.
    pub fn paddle() -> Criteo {
        let ids = (1..=26).map(|i: u32| i.to_string());
        let keys = std::iter::once("click".to_string()).chain(ids);
        Criteo { keys: keys.chain(["dense_feature".to_string()]).collect() }
    }

    /// The names of the slots as keys.
    pub fn by_name(schema: &Schema) -> Criteo {
        Criteo { keys: schema.slots().iter().map(|s| s.name.clone()).collect() }
    }

    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Error> {
        let (keys, slots) = (self.keys.len(), schema.slots().len());
        if keys != slots {
            return Err(Error::config(format!("{keys} Criteo keys for {slots} slots")));
        }
        Ok(())
    }

    pub(crate) fn parser(&self, schema: &Schema) -> CriteoParser {
        let keys: Vec<Box<[u8]>> = self.keys.iter().map(|k| k.as_bytes().into()).collect();
        let slots = keys.iter().cloned().zip(0..).collect();
        CriteoParser { schema: schema.clone(), keys, slots, order: Vec::new() }
    }
}

pub(crate) struct CriteoParser {
    schema: Schema,
    keys: Vec<Box<[u8]>>,
    slots: HashMap<Box<[u8]>, usize>,
    /// The slot of each pair in the previous line. Lines are alike, so a comparison with this guess
    /// nearly always saves the look-up.
    order: Vec<usize>,
}

impl LineParser for CriteoParser {
    fn parse_line(
        &mut self,
        _number: u64,
        line: &[u8],
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        let (mut at, mut pair) = (skip_blanks(line, 0), 0);
        while at < line.len() {
            let guess = self.order.get(pair).copied();
            let (slot, value_at) = match guess {
                Some(slot) if starts_with_key(line, at, &self.keys[slot]) => {
                    (Some(slot), at + self.keys[slot].len() + 1)
                }
                _ => {
                    let (slot, value_at) = self.look_up(line, at)?;
                    if let Some(slot) = slot {
                        self.order.resize(self.order.len().max(pair + 1), slot);
                        self.order[pair] = slot;
                    }
                    (slot, value_at)
                }
            };
            let end = word_end(line, value_at);
            if let Some(slot) = slot {
                self.push(slot, line, value_at, end, out)?;
                pair += 1;
            }
            at = skip_blanks(line, end);
        }
        self.pad(out);
        out.end_record()
    }
}

impl CriteoParser {
    /// The slot of the key at `at`, if any slot wants it, and where its value begins.
    fn look_up(&self, line: &[u8], at: usize) -> Result<(Option<usize>, usize), Box<LineError>> {
        let word = &line[at..word_end(line, at)];
        match memchr(b':', word) {
            Some(n) if n > 0 => Ok((self.slots.get(&word[..n]).copied(), at + n + 1)),
            _ => Err(LineError::at(line, at, "key:value")),
        }
    }

    #[inline]
    fn push(
        &self,
        slot: usize,
        line: &[u8],
        at: usize,
        end: usize,
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        let text = &line[at..end];
        let pushed = match &mut out.columns_mut()[slot] {
            Column::Ids { values, .. } | Column::FixedIds { values, .. } => {
                parse_u64(text).map(|v| values.push(v)).ok_or("an id (u64)")
            }
            Column::Floats { values, .. } => scan_f32(text, 0)
                .filter(|(v, _)| v.is_finite())
                .map(|(v, _)| values.push(v))
                .ok_or("a finite float"),
            Column::Ints { values, .. } => {
                parse_i64(text).map(|v| values.push(v)).ok_or("an integer (i64)")
            }
            Column::Labels(values) => {
                parse_label(text).map(|v| values.push(v)).ok_or("a label (i64)")
            }
        };
        pushed.map_err(|what| {
            let name = &self.schema.slots()[slot].name;
            LineError::found(at, format!("{what} for slot '{name}'"), text)
        })
    }

    /// Fills the slots that did not occur in the line.
    fn pad(&self, out: &mut Records) {
        for slot in 0..self.keys.len() {
            if out.pending(slot) > 0 {
                continue;
            }
            match &mut out.columns_mut()[slot] {
                Column::Ids { values, .. } => values.push(0),
                Column::FixedIds { count, values } => values.resize(values.len() + *count, 0),
                Column::Ints { count, values } => values.resize(values.len() + *count, 0),
                Column::Floats { dim, values } => values.resize(values.len() + *dim, 0.0),
                Column::Labels(_) => {}
            }
        }
    }
}

#[inline(always)]
fn starts_with_key(line: &[u8], at: usize, key: &[u8]) -> bool {
    line[at..].starts_with(key) && line.get(at + key.len()) == Some(&b':')
}

/// Index of the next blank.
#[inline(always)]
fn word_end(line: &[u8], mut at: usize) -> usize {
    while at < line.len() && !is_blank(line[at]) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    fn parse(lines: &[&str]) -> Result<Records, String> {
        let slots = vec![Slot::label("y"), Slot::ids("1"), Slot::fixed_ids("2", 1)];
        let schema = Schema::new([slots, vec![Slot::dense("d", 2)]].concat()).unwrap();
        let mut parser = Criteo::by_name(&schema).parser(&schema);
        let mut out = Records::new(&schema);
        for line in lines {
            parser
                .parse_line(1, line.as_bytes(), &mut out)
                .map_err(|e| format!("{}: expected {}, found {}", e.column, e.expected, e.found))?;
        }
        Ok(out)
    }

    #[test]
    fn order_does_not_matter_and_missing_slots_are_padded() {
        let plain = parse(&["y:1 1:5 1:6 2:7 d:0.5 d:1.5"]).unwrap();
        assert_eq!(parse(&[" d:0.5 1:5\t1:6 y:1 other:x 2:7 d:1.5 "]).unwrap(), plain);
        let mixed = parse(&["y:1 1:5 1:6 2:7 d:0.5 d:1.5", "2:8 y:0", "y:1 2:3"]).unwrap();
        assert_eq!(
            mixed.columns(),
            [
                Column::Labels(vec![1, 0, 1]),
                Column::Ids { values: vec![5, 6, 0, 0], offsets: vec![0, 2, 3, 4] },
                Column::FixedIds { count: 1, values: vec![7, 8, 3] },
                Column::Floats { dim: 2, values: vec![0.5, 1.5, 0.0, 0.0, 0.0, 0.0] },
            ]
        );
    }

    #[test]
    fn malformed_pairs() {
        for (line, error) in [
            ("y:1 rubbish", "5: expected key:value, found 'rubbish'"),
            ("y:1 :5", "5: expected key:value, found ':5'"),
            ("y:1 1:-5", "7: expected an id (u64) for slot '1', found '-5'"),
            ("y:1 1:", "7: expected an id (u64) for slot '1', found the end of the line"),
            ("y:1 d:abc", "7: expected a finite float for slot 'd', found 'abc'"),
            ("y:x", "3: expected a label (i64) for slot 'y', found 'x'"),
            ("1:5", "1: expected 1 value in slot 'y', found 0 values"),
            ("y:1 y:1", "1: expected 1 value in slot 'y', found 2 values"),
            ("y:1 2:5 2:6", "1: expected 1 value in slot '2', found 2 values"),
            ("y:1 d:5", "1: expected 2 values in slot 'd', found 1 value"),
        ] {
            assert_eq!(parse(&[line]).unwrap_err(), error, "{line}");
        }
    }
}
