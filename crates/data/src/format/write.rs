//! Records back to text, in formats that this crate reads.

use std::io::{self, Write};

use super::Criteo;
use crate::Records;
use crate::records::Column;

/// Text formats that can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextFormat {
    /// See [`Format::MultiSlot`](super::Format::MultiSlot).
    MultiSlot,
    /// See [`Format::Criteo`](super::Format::Criteo).
    Criteo(Criteo),
}

/// Writes each record as a line. Reading the text with the same schema gives the same records:
/// floats are written with as many digits as tell them apart.
///
/// # Errors
/// If `out` fails, or if MultiSlot text is requested for a record with an empty slot, which the
/// format cannot express.
pub fn write_records(
    records: &Records,
    format: &TextFormat,
    out: &mut dyn Write,
) -> io::Result<()> {
    for row in 0..records.len() {
        match format {
            TextFormat::MultiSlot => write_multislot(records, row, out)?,
            TextFormat::Criteo(criteo) => write_criteo(records, row, criteo, out)?,
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn write_multislot(records: &Records, row: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut blank = "";
    for (slot, column) in records.schema().slots().iter().zip(records.columns()) {
        let n = count(column, row);
        if n == 0 {
            let what =
                format!("slot '{}' is empty, which MultiSlot text cannot express", slot.name);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        write!(out, "{blank}{n}")?;
        blank = " ";
        each_value(column, row, |value| write!(out, " {value}"))?;
    }
    Ok(())
}

fn write_criteo(
    records: &Records,
    row: usize,
    criteo: &Criteo,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut blank = "";
    for (key, column) in criteo.keys.iter().zip(records.columns()) {
        each_value(column, row, |value| {
            write!(out, "{blank}{key}:{value}")?;
            blank = " ";
            Ok(())
        })?;
    }
    Ok(())
}

fn count(column: &Column, row: usize) -> usize {
    match column {
        Column::Labels(_) => 1,
        Column::Floats { dim, .. } => *dim,
        Column::Ids { offsets, .. } => (offsets[row + 1] - offsets[row]) as usize,
        Column::FixedIds { count, .. } | Column::Ints { count, .. } => *count,
    }
}

fn each_value(
    column: &Column,
    row: usize,
    mut write: impl FnMut(&dyn std::fmt::Display) -> io::Result<()>,
) -> io::Result<()> {
    let fixed = row * count(column, row)..(row + 1) * count(column, row);
    match column {
        Column::Labels(v) => write(&v[row]),
        Column::Floats { values, .. } => values[fixed].iter().try_for_each(|v| write(v)),
        Column::FixedIds { values, .. } => values[fixed].iter().try_for_each(|v| write(v)),
        Column::Ints { values, .. } => values[fixed].iter().try_for_each(|v| write(v)),
        Column::Ids { values, offsets } => {
            let ids = offsets[row] as usize..offsets[row + 1] as usize;
            values[ids].iter().try_for_each(|v| write(v))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, PartKey, Schema, Slot};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reading_gives_back_what_was_written(
            rows in prop::collection::vec(
                (any::<i64>(), prop::collection::vec(any::<u64>(), 1..4), any::<u64>(), -1e9f32..1e9),
                0..20,
            )
        ) {
            let slots = vec![Slot::label("y"), Slot::ids("a"), Slot::fixed_ids("b", 1)];
            let schema = Schema::new([slots, vec![Slot::dense("d", 2)]].concat()).unwrap();
            let mut records = Records::new(&schema);
            for (label, ids, id, float) in rows {
                records.push_label(0, label);
                ids.iter().for_each(|&id| records.push_id(1, id));
                records.push_id(2, id);
                records.push_float(3, float);
                records.push_float(3, -float * 1e-9);
                records.end_record().unwrap();
            }
            let criteo = Criteo::by_name(&schema);
            for (text, format) in [
                (TextFormat::MultiSlot, Format::MultiSlot),
                (TextFormat::Criteo(criteo.clone()), Format::Criteo(criteo)),
            ] {
                let mut bytes = Vec::new();
                write_records(&records, &text, &mut bytes).unwrap();
                let mut parser = format.parser(&schema, PartKey { pass: 0, file: 0 }).unwrap();
                let mut again = Records::new(&schema);
                for line in bytes.split(|&b| b == b'\n').filter(|l| !l.is_empty()) {
                    parser.parse_line(1, line, &mut again).unwrap();
                }
                prop_assert_eq!(&again, &records);
            }
        }
    }
}
