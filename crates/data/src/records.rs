//! Records by column: parsers append to it, datasets move or gather rows out of it.
//!
//! One vector per slot, so that neither a record nor a value costs an allocation, and so that a
//! full set of records becomes a batch by moving the vectors.

use crate::{LineError, Schema, SlotKind};

/// Values of one slot for all records.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Column {
    Labels(Vec<i64>),
    Floats {
        dim: usize,
        values: Vec<f32>,
    },
    /// `offsets[i]..offsets[i + 1]` are the ids of record `i`; it begins with 0.
    Ids {
        values: Vec<u64>,
        offsets: Vec<u32>,
    },
    FixedIds {
        count: usize,
        values: Vec<u64>,
    },
    Ints {
        count: usize,
        values: Vec<i64>,
    },
}

impl Column {
    fn new(kind: SlotKind) -> Column {
        match kind {
            SlotKind::Label => Column::Labels(Vec::new()),
            SlotKind::Dense { dim } => Column::Floats { dim, values: Vec::new() },
            SlotKind::Ids => Column::Ids { values: Vec::new(), offsets: vec![0] },
            SlotKind::FixedIds { count } => Column::FixedIds { count, values: Vec::new() },
            SlotKind::Ints { count } => Column::Ints { count, values: Vec::new() },
        }
    }

    /// Drops everything after the first `rows` records.
    fn truncate(&mut self, rows: usize) {
        match self {
            Column::Labels(v) => v.truncate(rows),
            Column::Floats { dim, values } => values.truncate(rows * *dim),
            Column::Ids { values, offsets } => {
                offsets.truncate(rows + 1);
                values.truncate(offsets[rows] as usize);
            }
            Column::FixedIds { count, values } => values.truncate(rows * *count),
            Column::Ints { count, values } => values.truncate(rows * *count),
        }
    }

    /// Values that belong to record `rows`, the one being written.
    fn pending(&self, rows: usize) -> usize {
        match self {
            Column::Labels(v) => v.len() - rows,
            Column::Floats { dim, values } => values.len() - rows * dim,
            Column::Ids { values, offsets } => values.len() - offsets[rows] as usize,
            Column::FixedIds { count, values } => values.len() - rows * count,
            Column::Ints { count, values } => values.len() - rows * count,
        }
    }

    /// Appends rows of columns of the same kind.
    fn gather<'a>(&mut self, rows: impl Iterator<Item = (&'a Column, usize)>) {
        const SAME: &str = "rows are gathered from records of the same schema";
        match self {
            Column::Labels(out) => out.extend(rows.map(|(c, r)| match c {
                Column::Labels(v) => v[r],
                _ => unreachable!("{SAME}"),
            })),
            Column::Floats { dim, values: out } => {
                for (column, r) in rows {
                    let Column::Floats { values, .. } = column else { unreachable!("{SAME}") };
                    out.extend_from_slice(&values[r * *dim..(r + 1) * *dim]);
                }
            }
            Column::Ids { values: out, offsets: ends } => {
                for (column, r) in rows {
                    let Column::Ids { values, offsets } = column else { unreachable!("{SAME}") };
                    let (from, to) = (offsets[r] as usize, offsets[r + 1] as usize);
                    out.extend_from_slice(&values[from..to]);
                    ends.push(end_offset(out.len()));
                }
            }
            Column::FixedIds { count, values: out } => {
                for (column, r) in rows {
                    let Column::FixedIds { values, .. } = column else { unreachable!("{SAME}") };
                    out.extend_from_slice(&values[r * *count..(r + 1) * *count]);
                }
            }
            Column::Ints { count, values: out } => {
                for (column, r) in rows {
                    let Column::Ints { values, .. } = column else { unreachable!("{SAME}") };
                    out.extend_from_slice(&values[r * *count..(r + 1) * *count]);
                }
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Column::Labels(v) => 8 * v.len(),
            Column::Floats { values, .. } => 4 * values.len(),
            Column::Ids { values, offsets } => 8 * values.len() + 4 * offsets.len(),
            Column::FixedIds { values, .. } => 8 * values.len(),
            Column::Ints { values, .. } => 8 * values.len(),
        }
    }
}

/// The offset after `len` ids.
///
/// # Panics
/// Beyond 2^32 ids in one slot of one set of records. Sets are bounded by the batch size, the
/// shuffle buffer or the chunk size of the in-memory dataset, so memory ends long before.
pub(crate) fn end_offset(len: usize) -> u32 {
    u32::try_from(len).expect("more than 2^32 ids in one slot of one set of records")
}

/// A set of records, stored by column.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    schema: Schema,
    columns: Vec<Column>,
    len: usize,
}

impl Records {
    /// No records yet.
    pub fn new(schema: &Schema) -> Records {
        let columns = schema.slots().iter().map(|s| Column::new(s.kind)).collect();
        Records { schema: schema.clone(), columns, len: 0 }
    }

    /// Reuses the given columns, which must be those of `schema`, for new records.
    pub(crate) fn from_columns(schema: &Schema, columns: Vec<Column>) -> Records {
        let mut records = Records { schema: schema.clone(), columns, len: 0 };
        records.clear();
        records
    }

    pub(crate) fn into_columns(self) -> Vec<Column> {
        self.columns
    }

    /// The slots.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Number of complete records.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no complete records.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(Column::bytes).sum()
    }

    /// Forgets all records and keeps the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Keeps the first `len` records, and drops what was written of an incomplete one.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        for column in &mut self.columns {
            column.truncate(self.len);
        }
    }

    /// Adds a value to a label slot of the record being written.
    ///
    /// # Panics
    /// If the slot is of another kind; as for the other `push` functions.
    pub fn push_label(&mut self, slot: usize, value: i64) {
        match &mut self.columns[slot] {
            Column::Labels(v) => v.push(value),
            _ => self.wrong_kind(slot, "a label"),
        }
    }

    /// Adds a float to a dense slot of the record being written.
    pub fn push_float(&mut self, slot: usize, value: f32) {
        match &mut self.columns[slot] {
            Column::Floats { values, .. } => values.push(value),
            _ => self.wrong_kind(slot, "a float"),
        }
    }

    /// Adds an id to a slot of ids of the record being written.
    pub fn push_id(&mut self, slot: usize, id: u64) {
        match &mut self.columns[slot] {
            Column::Ids { values, .. } | Column::FixedIds { values, .. } => values.push(id),
            _ => self.wrong_kind(slot, "an id"),
        }
    }

    /// Adds an integer to a slot of integers of the record being written.
    pub fn push_int(&mut self, slot: usize, value: i64) {
        match &mut self.columns[slot] {
            Column::Ints { values, .. } => values.push(value),
            _ => self.wrong_kind(slot, "an integer"),
        }
    }

    fn wrong_kind(&self, slot: usize, what: &str) -> ! {
        let slot = &self.schema.slots()[slot];
        panic!("slot '{}' is {:?}, it does not take {what}", slot.name, slot.kind)
    }

    /// Values so far in a slot of the record being written.
    pub fn pending(&self, slot: usize) -> usize {
        self.columns[slot].pending(self.len)
    }

    /// Completes the record being written.
    ///
    /// # Errors
    /// If a slot of fixed size has another number of values. The record stays incomplete;
    /// [`Records::truncate`] drops it.
    pub fn end_record(&mut self) -> Result<(), Box<LineError>> {
        for (slot, column) in self.schema.slots().iter().zip(&self.columns) {
            let expected = match column {
                Column::Labels(_) => 1,
                Column::Floats { dim, .. } => *dim,
                Column::Ids { .. } => continue,
                Column::FixedIds { count, .. } | Column::Ints { count, .. } => *count,
            };
            let actual = column.pending(self.len);
            if actual != expected {
                let expected = format!("{} in slot '{}'", values(expected), slot.name);
                return Err(LineError::whole(expected, values(actual)));
            }
        }
        self.end_checked_record();
        Ok(())
    }

    /// Completes a record whose sizes the caller has checked.
    pub(crate) fn end_checked_record(&mut self) {
        for column in &mut self.columns {
            if let Column::Ids { values, offsets } = column {
                offsets.push(end_offset(values.len()));
            }
        }
        self.len += 1;
    }

    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub(crate) fn columns_mut(&mut self) -> &mut [Column] {
        &mut self.columns
    }

    /// Appends the records `(set, row)` of `sets`, in that order. Works slot by slot.
    pub(crate) fn gather(&mut self, sets: &[Records], picks: &[(u32, u32)]) {
        for (slot, out) in self.columns.iter_mut().enumerate() {
            out.gather(picks.iter().map(|&(s, r)| (&sets[s as usize].columns[slot], r as usize)));
        }
        self.len += picks.len();
    }

    /// Appends the records of `other` from row `from` on.
    pub(crate) fn append_from(&mut self, other: &Records, from: usize) {
        for (slot, out) in self.columns.iter_mut().enumerate() {
            out.gather((from..other.len).map(|r| (&other.columns[slot], r)));
        }
        self.len += other.len.saturating_sub(from);
    }

    /// Of the records from row `from` on, keeps only the given `(0, row)`, in that order.
    pub(crate) fn keep_from(&mut self, from: usize, rows: Vec<(u32, u32)>) {
        let mut kept = Records::new(&self.schema);
        kept.gather(std::slice::from_ref(self), &rows);
        self.truncate(from);
        self.append_from(&kept, 0);
    }

    /// Moves the records from row `at` on into the empty `rest`.
    pub(crate) fn split_into(&mut self, at: usize, rest: &mut Records) {
        rest.append_from(self, at);
        self.truncate(at);
    }
}

fn values(n: usize) -> String {
    if n == 1 { "1 value".into() } else { format!("{n} values") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    fn sample(n: usize) -> Records {
        let slots = vec![Slot::label("y"), Slot::dense("d", 2), Slot::ids("a"), {
            Slot::fixed_ids("b", 1)
        }];
        let slots = [slots, vec![Slot::ints("i", 2)]].concat();
        let mut r = Records::new(&Schema::new(slots).unwrap());
        for i in 0..n {
            r.push_label(0, i as i64);
            r.push_float(1, i as f32);
            r.push_float(1, 0.5);
            (0..i % 3).for_each(|j| r.push_id(2, (10 * i + j) as u64));
            r.push_id(3, i as u64);
            r.push_int(4, i as i64);
            r.push_int(4, -1);
            r.end_record().unwrap();
        }
        r
    }

    #[test]
    fn an_incomplete_record_can_be_dropped() {
        let mut r = sample(3);
        r.push_label(0, 9);
        r.push_id(2, 9);
        let e = r.end_record().unwrap_err();
        assert_eq!((e.expected.as_str(), e.found.as_str()), ("2 values in slot 'd'", "0 values"));
        r.truncate(r.len());
        assert_eq!(r, sample(3));
    }

    #[test]
    fn splitting_and_gathering_keep_rows_whole() {
        let (mut all, mut rest) = (sample(5), sample(0));
        all.split_into(2, &mut rest);
        assert_eq!(all, sample(2));
        let mut joined = sample(0);
        joined.gather(&[rest, all], &[(1, 0), (1, 1), (0, 0), (0, 1), (0, 2)]);
        assert_eq!(joined, sample(5));
    }

    #[test]
    fn cleared_records_are_as_new() {
        let mut r = sample(4);
        r.clear();
        assert_eq!(r, sample(0));
        assert_eq!(r.bytes(), 4);
    }
}
