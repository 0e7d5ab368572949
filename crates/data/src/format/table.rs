//! CSV and TSV by declared features.
//!
//! Fields may be quoted (`"a, b"`, with `""` for a quote); a quoted field may go over several lines.

use memchr::memchr;

use regatta_features::{Transform, Value};

use super::features::{RowUse, RowWriter};
use crate::{Error, LineError, LineParser, Records, Schema};

/// How a table is written and what is made of its columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Separates the fields of a line.
    pub delimiter: u8,
    /// Whether the first line of every file names the columns; without it their names are their
    /// numbers, from 0.
    pub header: bool,
    /// What becomes of its rows.
    pub rows: RowUse,
}

impl Table {
    /// Comma-separated values with a header line.
    pub fn csv(transform: Transform) -> Table {
        Table { delimiter: b',', header: true, rows: RowUse::Records(transform) }
    }

    /// Tab-separated values without a header line.
    pub fn tsv(transform: Transform) -> Table {
        Table { delimiter: b'\t', header: false, rows: RowUse::Records(transform) }
    }

    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Error> {
        self.rows.check(schema)?;
        let named = |name: &&String| name.parse::<usize>().is_err();
        match self.rows.columns().iter().find(named) {
            Some(name) if !self.header => {
                let what = format!("column '{name}' is named, but there is no header line");
                Err(Error::config(what + "; columns are numbers from 0 then"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn parser(&self, schema: &Schema) -> TableParser {
        let number = |name: &String| name.parse().unwrap_or(UNKNOWN);
        let columns = self.rows.columns().iter();
        TableParser {
            delimiter: self.delimiter,
            header: self.header,
            from: columns.map(if self.header { |_: &String| UNKNOWN } else { number }).collect(),
            rows: self.rows.writer(schema),
            n_columns: None,
            fields: Fields::default(),
        }
    }
}

/// The position of a named column before the header has been read.
const UNKNOWN: usize = usize::MAX;
/// That of a column which is not there and need not be.
const NONE: usize = usize::MAX - 1;

pub(crate) struct TableParser {
    delimiter: u8,
    /// Whether the header line is still to come.
    header: bool,
    rows: RowWriter,
    /// The position of each column that is read; known after the header.
    from: Vec<usize>,
    /// Columns of the first line, which all others must have.
    n_columns: Option<usize>,
    fields: Fields,
}

impl LineParser for TableParser {
    fn parse_line(
        &mut self,
        _number: u64,
        line: &[u8],
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        self.fields.split(line, self.delimiter)?;
        let n = self.fields.spans.len();
        let expected = *self.n_columns.get_or_insert(n);
        if n != expected {
            let like = format!("{expected} columns as in the first line");
            return Err(LineError::whole(like, format!("{n} columns")));
        }
        if std::mem::take(&mut self.header) {
            return self.read_header(line);
        }
        if let Some(&column) = self.from.iter().find(|&&column| column >= n && column != NONE) {
            let expected = match column {
                UNKNOWN => "a header with all columns of the features before this line".into(),
                column => format!("a column with index {column}"),
            };
            return Err(LineError::whole(expected, format!("{n} columns")));
        }
        let value = |column: usize| match self.from[column] {
            NONE => Value::Missing,
            field => Value::Text(self.fields.get(line, field).1),
        };
        let at = |column: usize| self.fields.spans.get(self.from[column]).map_or(0, |span| span.at);
        self.rows.write(value, at, out)
    }

    fn quotes(&self) -> Option<u8> {
        Some(self.delimiter)
    }
}

impl TableParser {
    fn read_header(&mut self, line: &[u8]) -> Result<(), Box<LineError>> {
        let columns = self.rows.columns().iter().enumerate();
        for ((column, name), from) in columns.zip(&mut self.from) {
            let n = self.fields.spans.len();
            let same = |&i: &usize| self.fields.get(line, i).1.trim_ascii() == name.as_bytes();
            let found = (0..n).find(same).or(self.rows.is_optional(column).then_some(NONE));
            *from = found.ok_or_else(|| {
                LineError::found(0, format!("a column '{name}' in the header"), line)
            })?;
        }
        Ok(())
    }
}

/// The fields of one line. Quoted fields are copied, all others are slices.
#[derive(Default)]
struct Fields {
    spans: Vec<Span>,
    unquoted: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    /// In `unquoted` rather than in the line.
    copied: bool,
    /// Where the field begins in the line.
    at: usize,
}

impl Fields {
    /// Where a field begins, and its text.
    fn get<'a>(&'a self, line: &'a [u8], column: usize) -> (usize, &'a [u8]) {
        let span = self.spans[column];
        let text = if span.copied { &self.unquoted[..] } else { line };
        (span.at, &text[span.start..span.end])
    }

    fn split(&mut self, line: &[u8], delimiter: u8) -> Result<(), Box<LineError>> {
        self.spans.clear();
        self.unquoted.clear();
        let mut at = 0;
        loop {
            let end = if line.get(at) == Some(&b'"') {
                self.quoted(line, at)?
            } else {
                let end = memchr(delimiter, &line[at..]).map_or(line.len(), |n| at + n);
                self.spans.push(Span { start: at, end, copied: false, at });
                end
            };
            match line.get(end) {
                None => return Ok(()),
                Some(&b) if b == delimiter => at = end + 1,
                Some(_) => {
                    let found = &line[end..end + 1];
                    return Err(LineError::found(end, "a delimiter after a quoted field", found));
                }
            }
        }
    }

    /// Adds the quoted field at `at`; returns the index after its closing quote.
    fn quoted(&mut self, line: &[u8], at: usize) -> Result<usize, Box<LineError>> {
        let (start, mut i) = (self.unquoted.len(), at + 1);
        loop {
            let Some(n) = memchr(b'"', &line[i..]) else {
                return Err(LineError::found(at, "a closing quote", &line[at..]));
            };
            self.unquoted.extend_from_slice(&line[i..i + n]);
            i += n + 1;
            if line.get(i) != Some(&b'"') {
                let end = self.unquoted.len();
                self.spans.push(Span { start, end, copied: true, at });
                return Ok(i);
            }
            self.unquoted.push(b'"');
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;
    use crate::records::Column as Values;
    use regatta_features::{Feature, Features, Kind, Learned, hash_id};

    fn schema() -> Schema {
        let slots = vec![Slot::label("y"), Slot::dense("dense_input", 2), Slot::ids("tags")];
        Schema::new([slots, vec![Slot::fixed_ids("user", 1)]].concat()).unwrap()
    }

    fn transform() -> Transform {
        let tags = Feature::new("tags", Kind::Hash { buckets: 1000 }).split_at(b'|');
        let features = Features::new(vec![
            Feature::new("y", Kind::Label { threshold: None }).of_columns(["click"]),
            Feature::new("numbers", Kind::Raw).of_columns(["price", "age"]),
            Feature::new("user", Kind::Id { buckets: 100 }),
            tags,
        ]);
        Transform::new(&features.unwrap(), &Learned::default()).unwrap()
    }

    fn table() -> Table {
        Table::csv(transform())
    }

    fn parse(lines: &[&str]) -> Result<Records, String> {
        let (schema, table) = (schema(), table());
        table.check(&schema).unwrap();
        let (mut parser, mut out) = (table.parser(&schema), Records::new(&schema));
        for line in lines {
            parser
                .parse_line(1, line.as_bytes(), &mut out)
                .map_err(|e| format!("{}: expected {}, found {}", e.column, e.expected, e.found))?;
        }
        Ok(out)
    }

    const HEADER: &str = "user,click,price,age,tags,rest";

    #[test]
    fn columns_by_name() {
        let out =
            parse(&[HEADER, "7,1,2.5,33,a|b,x", "8,0,,34,\"say \"\"hi, you\"\"\",", ",1,1,1,,"]);
        let hash = |t: &str| hash_id(t.as_bytes(), 1000);
        let tags = vec![hash("a"), hash("b"), hash("say \"hi, you\""), 0];
        assert_eq!(
            out.unwrap().columns(),
            [
                Values::Labels(vec![1, 0, 1]),
                Values::Floats { dim: 2, values: vec![2.5, 33.0, 0.0, 34.0, 1.0, 1.0] },
                Values::Ids { values: tags, offsets: vec![0, 2, 3, 4] },
                Values::FixedIds { count: 1, values: vec![7, 8, 0] },
            ]
        );
    }

    #[test]
    fn malformed_tables() {
        for (lines, error) in [
            (vec!["a,b"], "1: expected a column 'age' in the header, found 'a,b'"),
            (vec![HEADER, "1,2"], "1: expected 6 columns as in the first line, found 2 columns"),
            (
                vec![HEADER, "7,,1,1,a,"],
                "3: expected a label (a whole number) in column 'click', found nothing",
            ),
            (
                vec![HEADER, "-7,1,1,1,a,"],
                "1: expected an id from 0 to 99 in column 'user', found '-7'",
            ),
            (vec![HEADER, "7,1,x,1,a,"], "5: expected a number in column 'price', found 'x'"),
            (vec![HEADER, "7,1,1,1,\"a,"], "9: expected a closing quote, found '\\\"a,'"),
            (
                vec![HEADER, "7,1,1,1,\"a\"b,"],
                "12: expected a delimiter after a quoted field, found 'b'",
            ),
        ] {
            assert_eq!(parse(&lines).unwrap_err(), error, "{lines:?}");
        }
    }

    #[test]
    fn features_are_checked_against_the_schema() {
        let wrong =
            |slots: Vec<Slot>| table().check(&Schema::new(slots).unwrap()).unwrap_err().to_string();
        assert_eq!(wrong(vec![Slot::ids("items")]), "no feature fills slot 'items'");
        let message = wrong(vec![Slot::ids("user")]);
        assert_eq!(message, "feature 'user' gives FixedIds(1), but slot 'user' takes Ids");
        let table = Table { header: false, ..table() };
        let message = table.check(&schema()).unwrap_err().to_string();
        let expected = "column 'age' is named, but there is no header line";
        assert_eq!(message, format!("{expected}; columns are numbers from 0 then"));
    }

    #[test]
    fn columns_by_number() {
        let features = Features::new(vec![Feature::new("y", Kind::Raw).of_columns(["10", "2"])]);
        let transform = Transform::new(&features.unwrap(), &Learned::default()).unwrap();
        let schema = Schema::new(vec![Slot::dense("dense_input", 2)]).unwrap();
        let table = Table::tsv(transform);
        table.check(&schema).unwrap();
        let (mut parser, mut out) = (table.parser(&schema), Records::new(&schema));
        let line = (0..12).map(|i| i.to_string()).collect::<Vec<_>>().join("\t");
        parser.parse_line(1, line.as_bytes(), &mut out).unwrap();
        assert_eq!(out.columns(), [Values::Floats { dim: 2, values: vec![10.0, 2.0] }]);
        let e = table.parser(&schema).parse_line(1, b"1\t2\t3", &mut out).unwrap_err();
        assert_eq!((e.expected.as_str(), &*e.found), ("a column with index 10", "3 columns"));
    }
}
