//! Two checkpoints side by side, variable by variable.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use regatta_table::{Row, RowBody, row_order};
use regatta_tensor::{DType, Tensor};

use crate::tensors::{element_bytes, type_text};
use crate::{Checkpoint, Error, SavedTable};

/// One variable of two checkpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct VariableDiff {
    /// A tensor's name with its part, or a table's name.
    pub name: String,
    /// How the second one differs.
    pub change: Change,
}

/// How a variable of the second checkpoint differs from that of the first.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Not at all, to the bit.
    Equal,
    /// Only the first has it.
    OnlyFirst,
    /// Only the second has it.
    OnlySecond,
    /// It is something else.
    Type {
        /// In the first.
        first: String,
        /// In the second.
        second: String,
    },
    /// Elements of a tensor.
    Elements {
        /// How many differ.
        changed: usize,
        /// Of how many.
        of: usize,
        /// The largest difference; NaN against a number counts as infinite.
        max: f64,
    },
    /// Rows of a table.
    Rows(RowChanges),
}

/// How the rows of a table differ.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowChanges {
    /// Only in the second.
    pub added: u64,
    /// Only in the first.
    pub removed: u64,
    /// In both, with different contents.
    pub changed: u64,
    /// In both, to the bit.
    pub equal: u64,
    /// The largest difference of each part of a row, where there is one.
    pub max: BTreeMap<String, f64>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Equal => f.write_str("equal"),
            Change::OnlyFirst => f.write_str("only in the first"),
            Change::OnlySecond => f.write_str("only in the second"),
            Change::Type { first, second } => {
                write!(f, "{first} in the first, {second} in the second")
            }
            Change::Elements { changed, of, max } => {
                write!(f, "{changed} of {of} elements differ, by up to {max:.6e}")
            }
            Change::Rows(rows) => rows.fmt(f),
        }
    }
}

impl fmt::Display for RowChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowChanges { added, removed, changed, equal, max } = self;
        write!(f, "{added} rows added, {removed} removed, {changed} changed, {equal} equal")?;
        for (i, (part, difference)) in max.iter().enumerate() {
            write!(
                f,
                "{} {part} {difference:.6e}",
                if i == 0 { "; differences up to" } else { "," }
            )?;
        }
        Ok(())
    }
}

/// Compares all tensors and tables of two checkpoints. What differs only in how it is divided among
/// files is not a difference for tables.
///
/// # Errors
/// If a file of either cannot be read or is damaged.
pub fn diff(first: &Checkpoint, second: &Checkpoint) -> Result<Vec<VariableDiff>, Error> {
    let mut diffs = diff_tensors(&tensors(first)?, &tensors(second)?);
    let (ours, theirs) = (first.tables(), second.tables());
    let mut names: Vec<&String> = ours.iter().chain(&theirs).collect();
    names.sort();
    names.dedup();
    for name in names {
        let change = match (ours.contains(name), theirs.contains(name)) {
            (true, false) => Change::OnlyFirst,
            (false, _) => Change::OnlySecond,
            (true, true) => diff_tables(&first.table(name)?, &second.table(name)?)?,
        };
        diffs.push(VariableDiff { name: name.clone(), change });
    }
    Ok(diffs)
}

/// All tensors by part and name.
fn tensors(checkpoint: &Checkpoint) -> Result<BTreeMap<String, Tensor>, Error> {
    let mut all = BTreeMap::new();
    for part in checkpoint.tensor_parts() {
        let file = checkpoint.tensors(&part.name)?;
        let named = file.tensors.into_iter().map(|(name, t)| (format!("{}: {name}", part.name), t));
        all.extend(named);
    }
    Ok(all)
}

fn diff_tensors(
    first: &BTreeMap<String, Tensor>,
    second: &BTreeMap<String, Tensor>,
) -> Vec<VariableDiff> {
    let mut diffs = Vec::new();
    for (name, tensor) in first {
        let change = match second.get(name) {
            None => Change::OnlyFirst,
            Some(other) => diff_tensor(tensor, other),
        };
        diffs.push(VariableDiff { name: name.clone(), change });
    }
    for name in second.keys().filter(|name| !first.contains_key(*name)) {
        diffs.push(VariableDiff { name: name.clone(), change: Change::OnlySecond });
    }
    diffs
}

fn diff_tensor(a: &Tensor, b: &Tensor) -> Change {
    if type_text(a) != type_text(b) {
        return Change::Type { first: type_text(a), second: type_text(b) };
    }
    if element_bytes(a) == element_bytes(b) {
        return Change::Equal;
    }
    let of = a.numel();
    if a.dtype() == DType::F32 {
        let (changed, max) = difference(a.f32(), b.f32());
        return Change::Elements { changed, of, max };
    }
    let size = a.dtype().size();
    let (a, b) = (element_bytes(a).chunks(size), element_bytes(b).chunks(size));
    Change::Elements { changed: a.zip(b).filter(|(a, b)| a != b).count(), of, max: f64::NAN }
}

/// How many floats differ in their bits, and by how much at most.
fn difference(a: &[f32], b: &[f32]) -> (usize, f64) {
    let different = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits());
    different.fold((0, 0.0), |(n, max), (a, b)| {
        let by = (f64::from(*a) - f64::from(*b)).abs();
        (n + 1, f64::max(max, if by.is_nan() { f64::INFINITY } else { by }))
    })
}

fn diff_tables(first: &SavedTable, second: &SavedTable) -> Result<Change, Error> {
    if first.parts() != second.parts() {
        let text =
            |table: &SavedTable| format!("rows of {}", crate::table::parts_text(table.parts()));
        return Ok(Change::Type { first: text(first), second: text(second) });
    }
    let (mut a, mut b) = (first.walk(0..=u64::MAX)?, second.walk(0..=u64::MAX)?);
    let mut changes = RowChanges::default();
    let (mut left, mut right) = (a.next()?, b.next()?);
    loop {
        let order = match (&left, &right) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(x), Some(y)) => row_order(x.key).cmp(&row_order(y.key)),
        };
        if let (Ordering::Equal, Some(x), Some(y)) = (order, &left, &right) {
            changes.compare(x, y, first.parts());
        }
        changes.removed += u64::from(order == Ordering::Less);
        changes.added += u64::from(order == Ordering::Greater);
        if order != Ordering::Greater {
            left = a.next()?;
        }
        if order != Ordering::Less {
            right = b.next()?;
        }
    }
    let equal = changes.added + changes.removed + changes.changed == 0;
    Ok(if equal { Change::Equal } else { Change::Rows(changes) })
}

impl RowChanges {
    fn compare(&mut self, a: &Row<'_>, b: &Row<'_>, parts: &[(String, usize)]) {
        if same(a, b) {
            self.equal += 1;
            return;
        }
        self.changed += 1;
        let (mut a, mut b) = (words(a), words(b));
        for (name, len) in parts {
            let (Some(x), Some(y)) = (a.split_off(..*len), b.split_off(..*len)) else { break };
            let (n, by) = difference(x, y);
            if n > 0 {
                let max = self.max.entry(name.clone()).or_insert(0.0);
                *max = max.max(by);
            }
        }
    }
}

fn words<'a>(row: &Row<'a>) -> &'a [f32] {
    match row.body {
        RowBody::Base(words) | RowBody::Extended(words) => words,
        RowBody::Candidate { .. } => &[],
    }
}

/// Whether two rows are the same to the bit.
pub(crate) fn same(a: &Row<'_>, b: &Row<'_>) -> bool {
    let bodies = match (a.body, b.body) {
        (RowBody::Base(x), RowBody::Base(y)) | (RowBody::Extended(x), RowBody::Extended(y)) => {
            x.len() == y.len() && difference(x, y).0 == 0
        }
        (RowBody::Candidate { appearances: x }, RowBody::Candidate { appearances: y }) => x == y,
        _ => false,
    };
    bodies && (a.key, a.unseen_days, a.changed) == (b.key, b.unseen_days, b.changed)
}
