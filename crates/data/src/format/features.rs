//! Rows of raw values become records by declared features, or are shown to somebody: what tables
//! and Parquet share.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use regatta_features::{Error as FeatureError, Sink, SlotKind as Given, Transform, Value};

use crate::records::Column as Values;
use crate::{Error, LineError, Records, Schema, SlotKind};

/// What becomes of rows of raw values.
#[derive(Clone)]
pub enum RowUse {
    /// Records, by declared features.
    Records(Transform),
    /// The values of these columns are shown to a function; there are no records.
    Visit(Arc<[String]>, Visitor),
}

/// Sees the values of rows.
pub type Visitor = Arc<Mutex<dyn FnMut(&[Value<'_>]) + Send>>;

impl RowUse {
    /// The columns that are read, in this order.
    pub fn columns(&self) -> &[String] {
        match self {
            RowUse::Records(transform) => transform.columns(),
            RowUse::Visit(columns, _) => columns,
        }
    }

    /// Whether files need not have a column, which then holds no values.
    pub(crate) fn is_optional(&self, column: usize) -> bool {
        match self {
            RowUse::Records(transform) => transform.is_optional(column),
            RowUse::Visit(..) => false,
        }
    }

    /// Checks that records get values of the kinds of their slots.
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Error> {
        match self {
            RowUse::Records(transform) => check(transform, schema),
            RowUse::Visit(..) => Ok(()),
        }
    }

    pub(crate) fn writer(&self, schema: &Schema) -> RowWriter {
        let targets = match self {
            RowUse::Records(transform) => targets(transform, schema),
            RowUse::Visit(..) => Vec::new(),
        };
        RowWriter { rows: self.clone(), targets }
    }
}

impl fmt::Debug for RowUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RowUse::Records(_) => "Records",
            RowUse::Visit(..) => "Visit",
        })
    }
}

impl PartialEq for RowUse {
    fn eq(&self, other: &RowUse) -> bool {
        match (self, other) {
            (RowUse::Records(a), RowUse::Records(b)) => a == b,
            (RowUse::Visit(_, a), RowUse::Visit(_, b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// Takes rows, one after the other.
pub(crate) struct RowWriter {
    rows: RowUse,
    /// The slot of the schema for each slot of the transform.
    targets: Vec<Option<usize>>,
}

impl RowWriter {
    pub(crate) fn columns(&self) -> &[String] {
        self.rows.columns()
    }

    pub(crate) fn is_optional(&self, column: usize) -> bool {
        self.rows.is_optional(column)
    }

    /// Takes a row: `value` gives that of a column, `at` where it begins in its line.
    #[inline]
    pub(crate) fn write<'a>(
        &self,
        value: impl Fn(usize) -> Value<'a>,
        at: impl Fn(usize) -> usize,
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        match &self.rows {
            RowUse::Records(transform) => {
                let mut filler = Filler { targets: &self.targets, out };
                transform.apply_with(value, &mut filler).map_err(|e| line_error(e, at))?;
                out.end_record()
            }
            RowUse::Visit(columns, visit) => {
                let row: Vec<Value<'_>> = (0..columns.len()).map(value).collect();
                let mut visit = visit.lock().unwrap_or_else(PoisonError::into_inner);
                visit(&row);
                Ok(())
            }
        }
    }
}

/// Checks that the features fill each slot with values of its kind.
fn check(transform: &Transform, schema: &Schema) -> Result<(), Error> {
    for slot in schema.slots() {
        let name = &slot.name;
        let given = transform.slots().iter().find(|given| given.name == *name);
        let fits = match (given.map(|given| given.kind), slot.kind) {
            (Some(Given::Label), SlotKind::Label) | (Some(Given::Ids), SlotKind::Ids) => true,
            (Some(Given::Floats(n)), SlotKind::Dense { dim }) => n == dim,
            (Some(Given::FixedIds(n)), SlotKind::FixedIds { count }) => n == count,
            (Some(given), kind) => {
                let what = format!("feature '{name}' gives {given:?}, but slot '{name}'");
                return Err(Error::config(format!("{what} takes {kind:?}")));
            }
            (None, _) => false,
        };
        if !fits {
            return Err(Error::config(format!("no feature fills slot '{name}'")));
        }
    }
    Ok(())
}

/// The slot of the schema for each slot of the features; none where nobody wants it.
fn targets(transform: &Transform, schema: &Schema) -> Vec<Option<usize>> {
    transform.slots().iter().map(|slot| schema.index_of(&slot.name)).collect()
}

/// Puts values of features into the record that is being written.
struct Filler<'a> {
    targets: &'a [Option<usize>],
    out: &'a mut Records,
}

impl Sink for Filler<'_> {
    #[inline]
    fn label(&mut self, slot: usize, value: i64) {
        if let Some(slot) = self.targets[slot] {
            self.out.push_label(slot, value);
        }
    }

    #[inline]
    fn id(&mut self, slot: usize, id: u64) {
        let Some(slot) = self.targets[slot] else { return };
        match &mut self.out.columns_mut()[slot] {
            Values::Ids { values, .. } | Values::FixedIds { values, .. } => values.push(id),
            _ => unreachable!("features have been compared with the schema"),
        }
    }

    #[inline]
    fn float(&mut self, slot: usize, value: f32) {
        if let Some(slot) = self.targets[slot] {
            self.out.push_float(slot, value);
        }
    }
}

/// What is wrong with a value, as what is wrong with a line.
fn line_error(error: FeatureError, at: impl Fn(usize) -> usize) -> Box<LineError> {
    match error {
        FeatureError::Value { index, column, expected, found } => Box::new(LineError {
            column: at(index) + 1,
            expected: format!("{expected} in column '{column}'"),
            found,
        }),
        other => LineError::whole("values of features", other.to_string()),
    }
}
