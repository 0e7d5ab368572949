//! The column map of tables: which column feeds which slot, and how its text becomes a value.

use crate::number::{parse_f32, parse_i64, parse_u64};
use crate::records::Column as Values;
use crate::rng::mix;
use crate::{Error, LineError, Records, Schema, SlotKind};

/// Which column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnFrom {
    /// By position, from 0.
    Index(usize),
    /// By the name in the header line, or in the Parquet schema.
    Name(String),
}

impl ColumnFrom {
    /// The text that stands for the column in messages and in hashes.
    pub(crate) fn text(&self) -> String {
        match self {
            ColumnFrom::Index(i) => i.to_string(),
            ColumnFrom::Name(name) => name.clone(),
        }
    }
}

/// How the text of a field becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnRead {
    /// A signed integer, for a label slot.
    Label,
    /// A float, for a dense slot.
    Dense,
    /// An unsigned integer, for a slot of ids.
    Id,
    /// Any text, hashed together with the column, for a slot of ids. See [`feature_hash`].
    Hash {
        /// Ids are below this number; `None` keeps 64 bits.
        dim: Option<u64>,
    },
}

/// One entry of a column map. Several columns may feed the same slot, in the order of the map.
///
/// An empty field gives 0.0 for a dense slot and id 0 for a slot with a fixed number of ids; a
/// ragged slot that stays without ids gets the single id 0. A label must be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The column.
    pub from: ColumnFrom,
    /// The name of the slot that it feeds.
    pub slot: String,
    /// How its text becomes a value.
    pub read: ColumnRead,
    /// Splits a field into several values at this byte.
    pub split: Option<u8>,
}

impl Column {
    /// An entry for a single-valued column.
    pub fn new(from: ColumnFrom, slot: impl Into<String>, read: ColumnRead) -> Column {
        Column { from, slot: slot.into(), read, split: None }
    }

    /// The same with fields split at `separator`.
    pub fn split_at(self, separator: u8) -> Column {
        Column { split: Some(separator), ..self }
    }
}

/// The id of a categorical value: 64-bit FNV-1a of `column:value`, mixed once more so that the low
/// bits are as good as the high ones, modulo `dim` if given. The same on every machine.
pub fn feature_hash(column: &str, value: &[u8], dim: Option<u64>) -> u64 {
    let bytes = column.as_bytes().iter().chain(b":").chain(value);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    match dim {
        Some(dim) => mix(hash) % dim,
        None => mix(hash),
    }
}

/// Checks that the map fills each slot with values of its kind.
pub(crate) fn check(columns: &[Column], schema: &Schema) -> Result<(), Error> {
    for column in columns {
        let Some(slot) = schema.index_of(&column.slot) else {
            let what = format!("column '{}' feeds '{}'", column.from.text(), column.slot);
            return Err(Error::config(format!("{what}, which is no slot of the schema")));
        };
        let kind = schema.slots()[slot].kind;
        let fits = match column.read {
            ColumnRead::Label => kind == SlotKind::Label,
            ColumnRead::Dense => matches!(kind, SlotKind::Dense { .. }),
            ColumnRead::Id => {
                matches!(kind, SlotKind::Ids | SlotKind::FixedIds { .. } | SlotKind::Ints { .. })
            }
            ColumnRead::Hash { .. } => matches!(kind, SlotKind::Ids | SlotKind::FixedIds { .. }),
        };
        if !fits || column.read == (ColumnRead::Hash { dim: Some(0) }) {
            let what = format!("column '{}' is read as {:?}", column.from.text(), column.read);
            return Err(Error::config(format!(
                "{what}, which slot '{}' does not take",
                column.slot
            )));
        }
    }
    match schema.slots().iter().find(|s| !columns.iter().any(|c| c.slot == s.name)) {
        Some(slot) => Err(Error::config(format!("no column feeds slot '{}'", slot.name))),
        None => Ok(()),
    }
}

/// An entry of the map, ready for use.
#[derive(Debug, Clone)]
pub(crate) struct Feed {
    pub(crate) name: String,
    pub(crate) slot: usize,
    pub(crate) read: ColumnRead,
    pub(crate) split: Option<u8>,
}

impl Feed {
    pub(crate) fn all(columns: &[Column], schema: &Schema) -> Vec<Feed> {
        let feed = |c: &Column| Feed {
            name: c.from.text(),
            slot: schema.index_of(&c.slot).expect("the map has been checked"),
            read: c.read,
            split: c.split,
        };
        columns.iter().map(feed).collect()
    }

    /// Appends the values of a field that starts at byte `at` of its line.
    pub(crate) fn push(
        &self,
        at: usize,
        text: &[u8],
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        match self.split {
            Some(separator) if !text.is_empty() => {
                let mut start = at;
                for part in text.split(|&b| b == separator) {
                    self.push_one(start, part, out)?;
                    start += part.len() + 1;
                }
                Ok(())
            }
            _ => self.push_one(at, text, out),
        }
    }

    fn push_one(&self, at: usize, text: &[u8], out: &mut Records) -> Result<(), Box<LineError>> {
        let text = text.trim_ascii();
        let bad = |what: &str| {
            let expected = format!("{what} in column '{}'", self.name);
            LineError::found(at, expected, if text.is_empty() { b"nothing" } else { text })
        };
        match (&mut out.columns_mut()[self.slot], self.read) {
            (Values::Labels(values), _) => {
                values.push(parse_i64(text).ok_or_else(|| bad("a label (i64)"))?);
            }
            (Values::Floats { values, .. }, _) if text.is_empty() => values.push(0.0),
            (Values::Floats { values, .. }, _) => {
                let value = parse_f32(text).filter(|v| v.is_finite());
                values.push(value.ok_or_else(|| bad("a finite float"))?);
            }
            (Values::Ids { .. }, _) if text.is_empty() => {}
            (Values::FixedIds { values, .. }, _) if text.is_empty() => values.push(0),
            (Values::Ints { values, .. }, _) if text.is_empty() => values.push(0),
            (Values::Ints { values, .. }, _) => {
                values.push(parse_i64(text).ok_or_else(|| bad("an integer (i64)"))?);
            }
            (Values::Ids { values, .. } | Values::FixedIds { values, .. }, ColumnRead::Id) => {
                values.push(parse_u64(text).ok_or_else(|| bad("an id (u64)"))?);
            }
            (
                Values::Ids { values, .. } | Values::FixedIds { values, .. },
                ColumnRead::Hash { dim },
            ) => values.push(feature_hash(&self.name, text, dim)),
            _ => unreachable!("the map has been checked"),
        }
        Ok(())
    }
}

/// Completes a record: ragged slots without ids get id 0.
pub(crate) fn end_padded(out: &mut Records) -> Result<(), Box<LineError>> {
    for slot in 0..out.columns().len() {
        if out.pending(slot) == 0 && matches!(out.columns()[slot], Values::Ids { .. }) {
            out.push_id(slot, 0);
        }
    }
    out.end_record()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_never_change() {
        assert_eq!(feature_hash("1", b"68fd1e64", None), feature_hash("1", b"68fd1e64", None));
        assert_ne!(feature_hash("1", b"68fd1e64", None), feature_hash("2", b"68fd1e64", None));
        assert_eq!(feature_hash("C1", b"", None), 10_543_142_465_915_862_921);
        assert_eq!(feature_hash("C1", b"68fd1e64", Some(1_000_001)), 624_710);
    }
}
