//! The original Criteo logs: label, 13 integers, 26 categories, separated by tabs.
//!
//! Integers and categories may be empty. A category becomes `feature_hash("k", value)`, where `k`
//! counts the category columns from 1; an empty one is a value of its own, as in PaddleRec's
//! readers.

use memchr::memchr_iter;

use crate::number::{parse_f32, parse_label};
use crate::records::Column;
use crate::rng::mix;
use crate::{Error, LineError, LineParser, Records, Schema, SlotKind, math};

const INTEGERS: usize = 13;
const CATEGORIES: usize = 26;
const COLUMNS: usize = 1 + INTEGERS + CATEGORIES;

/// The least values of the 13 integer columns that PaddleRec's readers assume.
const MIN: [f32; INTEGERS] = [0.0, -3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
/// The largest ones.
const MAX: [f32; INTEGERS] =
    [20.0, 600.0, 100.0, 50.0, 64000.0, 500.0, 100.0, 50.0, 500.0, 10.0, 10.0, 10.0, 50.0];

/// What becomes of an integer column. An empty one always gives 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DenseTransform {
    /// `(x - min) / (max - min)` with PaddleRec's constants for each column. Values beyond the
    /// assumed maximum give more than 1.
    #[default]
    PaddleRange,
    /// `ln(max(x, 0) + 1)`.
    Log,
    /// The number as it stands.
    Plain,
}

/// How raw Criteo lines become records of one label slot, one dense slot of 13 and 26 id slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CriteoRaw {
    /// Ids are hashes modulo this number; PaddleRec takes 1000001. `None` keeps 64 bits.
    pub hash_dim: Option<u64>,
    /// What becomes of the integers.
    pub dense: DenseTransform,
}

impl CriteoRaw {
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Error> {
        let is =
            |want: fn(SlotKind) -> bool| schema.slots().iter().filter(|s| want(s.kind)).count();
        let labels = is(|k| k == SlotKind::Label);
        let dense = is(|k| k == SlotKind::Dense { dim: INTEGERS });
        let ids = is(|k| matches!(k, SlotKind::Ids | SlotKind::FixedIds { count: 1 }));
        if (labels, dense, ids) != (1, 1, CATEGORIES) || schema.slots().len() != 2 + CATEGORIES {
            return Err(Error::config(
                "raw Criteo data needs one label slot, one dense slot of 13 and 26 slots of one id",
            ));
        }
        if self.hash_dim == Some(0) {
            return Err(Error::config("hash_dim must not be 0"));
        }
        Ok(())
    }

    pub(crate) fn parser(&self, _schema: &Schema) -> CriteoRawParser {
        CriteoRawParser {
            options: self.clone(),
            names: (1..=CATEGORIES).map(|i| i.to_string()).collect(),
            fields: Vec::with_capacity(COLUMNS),
        }
    }
}

pub(crate) struct CriteoRawParser {
    options: CriteoRaw,
    names: Vec<String>,
    /// Start and end of each field of the line; kept for its memory.
    fields: Vec<(usize, usize)>,
}

impl LineParser for CriteoRawParser {
    fn parse_line(
        &mut self,
        _number: u64,
        line: &[u8],
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        self.fields.clear();
        let mut start = 0;
        for tab in memchr_iter(b'\t', line).chain([line.len()]) {
            self.fields.push((start, tab));
            start = tab + 1;
        }
        if self.fields.len() != COLUMNS {
            let found = format!("{} columns", self.fields.len());
            return Err(LineError::whole(format!("{COLUMNS} tab-separated columns"), found));
        }
        let mut category = 0;
        for column in out.columns_mut() {
            match column {
                Column::Labels(values) => values.push(self.label(line)?),
                Column::Floats { values, .. } => {
                    for i in 0..INTEGERS {
                        values.push(self.integer(line, i)?);
                    }
                }
                Column::Ids { values, .. } | Column::FixedIds { values, .. } => {
                    values.push(self.category(line, category));
                    category += 1;
                }
                Column::Ints { .. } => unreachable!("the schema has been checked"),
            }
        }
        out.end_checked_record();
        Ok(())
    }
}

impl CriteoRawParser {
    fn field<'a>(&self, line: &'a [u8], column: usize) -> (usize, &'a [u8]) {
        let (start, end) = self.fields[column];
        (start, &line[start..end])
    }

    fn label(&self, line: &[u8]) -> Result<i64, Box<LineError>> {
        let (at, text) = self.field(line, 0);
        parse_label(text).ok_or_else(|| LineError::found(at, "a label (i64) in column 1", text))
    }

    fn integer(&self, line: &[u8], i: usize) -> Result<f32, Box<LineError>> {
        let (at, text) = self.field(line, 1 + i);
        if text.is_empty() {
            return Ok(0.0);
        }
        let x = parse_f32(text).filter(|x| x.is_finite()).ok_or_else(|| {
            LineError::found(at, format!("a number or nothing in column {}", i + 2), text)
        })?;
        Ok(match self.options.dense {
            DenseTransform::PaddleRange => (x - MIN[i]) / (MAX[i] - MIN[i]),
            DenseTransform::Log => math::ln(f64::from(x.max(0.0)) + 1.0) as f32,
            DenseTransform::Plain => x,
        })
    }

    fn category(&self, line: &[u8], i: usize) -> u64 {
        let (_, text) = self.field(line, 1 + INTEGERS + i);
        feature_hash(&self.names[i], text, self.options.hash_dim)
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

    fn line(label: &str, integers: &str, categories: &str) -> String {
        let integers = vec![integers; 13].join("\t");
        format!("{label}\t{integers}\t{}", vec![categories; 26].join("\t"))
    }

    fn parse(options: CriteoRaw, line: &str) -> Result<Records, Box<LineError>> {
        let schema = Schema::criteo();
        options.check(&schema).unwrap();
        let mut out = Records::new(&schema);
        options.parser(&schema).parse_line(1, line.as_bytes(), &mut out).map(|()| out)
    }

    #[test]
    fn integers_are_scaled_and_categories_hashed() {
        let options = CriteoRaw { hash_dim: Some(1_000_001), ..Default::default() };
        let out = parse(options, &line("1", "10", "68fd1e64")).unwrap();
        let Column::Floats { values, .. } = &out.columns()[27] else { panic!() };
        assert_eq!(values[..2], [0.5, 13.0 / 603.0]);
        let ids: Vec<&Column> = out.columns()[1..27].iter().collect();
        assert_ne!(ids[0], ids[1], "the same value in two columns is two features");
        for c in ids {
            assert!(matches!(c, Column::FixedIds { values, .. } if values[0] < 1_000_001));
        }
    }

    #[test]
    fn empty_columns_are_allowed() {
        let out = parse(
            CriteoRaw { dense: DenseTransform::Log, ..Default::default() },
            &line("0", "", ""),
        );
        let out = out.unwrap();
        assert_eq!(out.columns()[27], Column::Floats { dim: 13, values: vec![0.0; 13] });
        let log = CriteoRaw { dense: DenseTransform::Log, ..Default::default() };
        let out = parse(log, &line("0", "-2", "")).unwrap();
        assert_eq!(out.columns()[27], Column::Floats { dim: 13, values: vec![0.0; 13] });
    }

    #[test]
    fn malformed_columns() {
        let error = |l: &str| parse(CriteoRaw::default(), l).unwrap_err();
        let e = error("1\t2\t3");
        assert_eq!(
            (e.expected.as_str(), e.found.as_str()),
            ("40 tab-separated columns", "3 columns")
        );
        let e = error(&line("", "1", "a"));
        assert_eq!(e.expected, "a label (i64) in column 1");
        let e = error(&line("1", "x", "a"));
        assert_eq!((e.column, e.expected.as_str()), (3, "a number or nothing in column 2"));
    }
}
