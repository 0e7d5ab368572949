//! MultiSlot text: for each slot in order a count, then that many values, separated by blanks.
//!
//! `1 0 2 17 99 3 0.5 0.25 1.0` is a label, two ids and three floats. No slot may be empty.

use crate::number::{ends, is_blank, parse_label, scan_f32, scan_i64, scan_u64, skip_blanks};
use crate::records::Column;
use crate::{LineError, LineParser, Records, Schema, Slot};

pub(crate) struct MultiSlotParser {
    schema: Schema,
}

impl MultiSlotParser {
    pub(crate) fn new(schema: &Schema) -> MultiSlotParser {
        MultiSlotParser { schema: schema.clone() }
    }
}

impl LineParser for MultiSlotParser {
    fn parse_line(
        &mut self,
        _number: u64,
        line: &[u8],
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        let mut at = 0;
        for (slot, column) in self.schema.slots().iter().zip(out.columns_mut()) {
            at = parse_slot(slot, column, line, at)?;
        }
        at = skip_blanks(line, at);
        if at < line.len() {
            let slots = self.schema.slots().len();
            return Err(LineError::at(
                line,
                at,
                format!("the end of the line after {slots} slots"),
            ));
        }
        out.end_checked_record();
        Ok(())
    }
}

/// Appends the values of one slot; returns the index after them.
#[inline]
fn parse_slot(
    slot: &Slot,
    column: &mut Column,
    line: &[u8],
    at: usize,
) -> Result<usize, Box<LineError>> {
    let at = skip_blanks(line, at);
    let (count, mut end) = match line.get(at..at + 2) {
        // Nearly all counts have one digit.
        Some(&[digit @ b'1'..=b'9', b' ']) => (u64::from(digit - b'0'), at + 1),
        _ => match scan_u64(line, at) {
            Some((count @ 1.., end)) if ends(line, end) => (count, end),
            _ => return Err(bad_count(slot, line, at)),
        },
    };
    match column {
        Column::Ids { values, .. } => {
            for _ in 0..count {
                let at = skip_blanks(line, end);
                end = match scan_u64(line, at) {
                    Some((id, end)) if ends(line, end) => {
                        values.push(id);
                        end
                    }
                    _ => return Err(bad_value(slot, "an id (u64)", line, at)),
                };
            }
        }
        Column::FixedIds { count: expected, values } => {
            check_count(slot, *expected, count, line, at)?;
            for _ in 0..count {
                let at = skip_blanks(line, end);
                end = match scan_u64(line, at) {
                    Some((id, end)) if ends(line, end) => {
                        values.push(id);
                        end
                    }
                    _ => return Err(bad_value(slot, "an id (u64)", line, at)),
                };
            }
        }
        Column::Floats { dim, values } => {
            check_count(slot, *dim, count, line, at)?;
            for _ in 0..count {
                let at = skip_blanks(line, end);
                end = match scan_f32(line, at) {
                    Some((v, end)) if v.is_finite() => {
                        values.push(v);
                        end
                    }
                    _ => return Err(bad_value(slot, "a finite float", line, at)),
                };
            }
        }
        Column::Labels(values) => {
            check_count(slot, 1, count, line, at)?;
            end = label(slot, values, line, end)?;
        }
        Column::Ints { count: expected, values } => {
            check_count(slot, *expected, count, line, at)?;
            for _ in 0..count {
                end = parse_int(slot, "an integer (i64)", values, line, end)?;
            }
        }
    }
    Ok(end)
}

/// Appends a label; returns the index after it.
fn label(
    slot: &Slot,
    values: &mut Vec<i64>,
    line: &[u8],
    at: usize,
) -> Result<usize, Box<LineError>> {
    let start = skip_blanks(line, at);
    let parsed = parse_int(slot, "a label (i64)", values, line, start);
    parsed.or_else(|error| {
        let end = line[start..].iter().position(|&b| is_blank(b)).map_or(line.len(), |n| start + n);
        values.push(parse_label(&line[start..end]).ok_or(error)?);
        Ok(end)
    })
}

/// Appends a signed integer; returns the index after it.
#[inline]
fn parse_int(
    slot: &Slot,
    what: &str,
    values: &mut Vec<i64>,
    line: &[u8],
    at: usize,
) -> Result<usize, Box<LineError>> {
    let at = skip_blanks(line, at);
    match scan_i64(line, at) {
        Some((v, end)) if ends(line, end) => {
            values.push(v);
            Ok(end)
        }
        _ => Err(bad_value(slot, what, line, at)),
    }
}

#[inline(always)]
fn check_count(
    slot: &Slot,
    expected: usize,
    count: u64,
    line: &[u8],
    at: usize,
) -> Result<(), Box<LineError>> {
    if count == expected as u64 { Ok(()) } else { Err(wrong_count(slot, expected, line, at)) }
}

#[cold]
fn wrong_count(slot: &Slot, expected: usize, line: &[u8], at: usize) -> Box<LineError> {
    LineError::at(line, at, format!("the count {expected} of slot '{}'", slot.name))
}

#[cold]
fn bad_count(slot: &Slot, line: &[u8], at: usize) -> Box<LineError> {
    LineError::at(line, at, format!("the number of values of slot '{}', at least 1", slot.name))
}

#[cold]
fn bad_value(slot: &Slot, what: &str, line: &[u8], at: usize) -> Box<LineError> {
    LineError::at(line, at, format!("{what} for slot '{}'", slot.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let slots = vec![Slot::label("y"), Slot::ids("a"), Slot::fixed_ids("b", 1)];
        Schema::new([slots, vec![Slot::dense("d", 2)]].concat()).unwrap()
    }

    fn parse(line: &str) -> Result<Records, String> {
        let schema = schema();
        let mut out = Records::new(&schema);
        MultiSlotParser::new(&schema)
            .parse_line(1, line.as_bytes(), &mut out)
            .map(|()| out)
            .map_err(|e| format!("{}: expected {}, found {}", e.column, e.expected, e.found))
    }

    #[test]
    fn any_blanks_between_values() {
        let expected = parse("1 -1 2 18446744073709551615 7 1 9 2 0.5 1e3").unwrap();
        assert_eq!(
            parse("  1\t-1  2 18446744073709551615 7 1 9\r2\t\t0.5 1e3 ").unwrap(),
            expected
        );
        assert_eq!(expected.len(), 1);
        assert_eq!(
            expected.columns()[1],
            Column::Ids { values: vec![u64::MAX, 7], offsets: vec![0, 2] }
        );
    }

    #[test]
    fn integers_have_signs_and_a_fixed_number() {
        let slots = vec![Slot::ints("a", 2), Slot::ints("b", 1).below(10)];
        let schema = Schema::new(slots).unwrap();
        let parse = |line: &str| {
            let mut out = Records::new(&schema);
            let done = MultiSlotParser::new(&schema).parse_line(1, line.as_bytes(), &mut out);
            done.map(|()| out).map_err(|e| format!("expected {}, found {}", e.expected, e.found))
        };
        let batch = crate::Batch::assemble(parse("2 -7 9223372036854775807 1 3").unwrap(), vec![]);
        let ints = |name: &str| batch.get(name).unwrap().as_dense().unwrap().clone();
        assert_eq!((ints("a").shape(), ints("a").i64()), (&[1, 2][..], &[-7, i64::MAX][..]));
        assert_eq!((ints("b").shape(), ints("b").i64()), (&[1, 1][..], &[3][..]));
        for (line, error) in [
            ("1 5 1 3", "expected the count 2 of slot 'a', found '1'"),
            ("2 5 x 1 3", "expected an integer (i64) for slot 'a', found 'x'"),
            (
                "2 5 9223372036854775808 1 3",
                "expected an integer (i64) for slot 'a', found '9223372036854775808'",
            ),
        ] {
            assert_eq!(parse(line).unwrap_err(), error, "{line}");
        }
    }

    #[test]
    fn every_kind_of_malformed_line() {
        for (line, error) in [
            ("x", "1: expected the number of values of slot 'y', at least 1, found 'x'"),
            (
                "1 0 0 1 9 2 1 1",
                "5: expected the number of values of slot 'a', at least 1, found '0'",
            ),
            ("1 0 1 -5 1 9 2 1 1", "7: expected an id (u64) for slot 'a', found '-5'"),
            ("1 0 1 7x 1 9 2 1 1", "7: expected an id (u64) for slot 'a', found '7x'"),
            (
                "1 0 1 18446744073709551616 1 9 2 1 1",
                "7: expected an id (u64) for slot 'a', found '18446744073709551616'",
            ),
            ("1 0 1 1.5 1 9 2 1 1", "7: expected an id (u64) for slot 'a', found '1.5'"),
            ("2 0 1 1 7 1 9 2 1 1", "1: expected the count 1 of slot 'y', found '2'"),
            ("1 0.5 1 7 1 9 2 1 1", "3: expected a label (i64) for slot 'y', found '0.5'"),
            ("1 0 1 7 2 9 9 2 1 1", "9: expected the count 1 of slot 'b', found '2'"),
            ("1 0 1 7 1 9 3 1 1 1", "13: expected the count 2 of slot 'd', found '3'"),
            ("1 0 1 7 1 9 2 1 nan", "17: expected a finite float for slot 'd', found 'nan'"),
            ("1 0 1 7 1 9 2 1 1e99", "17: expected a finite float for slot 'd', found '1e99'"),
            ("1 0 1 7 1 9 2 1 1 5", "19: expected the end of the line after 4 slots, found '5'"),
            (
                "1 0 1 7 1 9 2 1",
                "16: expected a finite float for slot 'd', found the end of the line",
            ),
            (
                "1 0 1 7",
                "8: expected the number of values of slot 'b', at least 1, found the end of the \
                 line",
            ),
        ] {
            assert_eq!(parse(line).unwrap_err(), error, "{line}");
        }
    }
}
