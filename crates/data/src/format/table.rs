//! CSV and TSV by a column map.
//!
//! Fields may be quoted (`"a, b"`, with `""` for a quote); a quoted field must end on its line.

use memchr::memchr;

use super::columns::{self, Column, ColumnFrom, Feed};
use crate::{Error, LineError, LineParser, Records, Schema};

/// How a table is written and what is taken from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Separates the fields of a line.
    pub delimiter: u8,
    /// Whether the first line of every file names the columns.
    pub header: bool,
    /// Which column feeds which slot.
    pub columns: Vec<Column>,
}

impl Table {
    /// Comma-separated values with a header line.
    pub fn csv(columns: Vec<Column>) -> Table {
        Table { delimiter: b',', header: true, columns }
    }

    /// Tab-separated values without a header line.
    pub fn tsv(columns: Vec<Column>) -> Table {
        Table { delimiter: b'\t', header: false, columns }
    }

    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Error> {
        columns::check(&self.columns, schema)?;
        let named = |c: &&Column| matches!(c.from, ColumnFrom::Name(_));
        match self.columns.iter().find(named) {
            Some(c) if !self.header => {
                let name = c.from.text();
                Err(Error::config(format!("column '{name}' is named, but there is no header line")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn parser(&self, schema: &Schema) -> TableParser {
        let by_index = |c: &Column| match c.from {
            ColumnFrom::Index(i) => i,
            ColumnFrom::Name(_) => UNKNOWN,
        };
        TableParser {
            delimiter: self.delimiter,
            header: self.header,
            from: self.columns.iter().map(by_index).collect(),
            feeds: Feed::all(&self.columns, schema),
            columns: self.columns.clone(),
            n_columns: None,
            fields: Fields::default(),
        }
    }
}

/// The position of a named column before the header has been read.
const UNKNOWN: usize = usize::MAX;

pub(crate) struct TableParser {
    delimiter: u8,
    /// Whether the header line is still to come.
    header: bool,
    columns: Vec<Column>,
    feeds: Vec<Feed>,
    /// The position of each feed's column; known after the header.
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
        if self.from.contains(&UNKNOWN) {
            return Err(LineError::whole(
                "a header with all columns of the map before this line",
                "none",
            ));
        }
        for (feed, &column) in self.feeds.iter().zip(&self.from) {
            let Some((at, text)) = self.fields.get(line, column) else {
                let expected = format!("a column with index {column}");
                return Err(LineError::whole(expected, format!("{n} columns")));
            };
            feed.push(at, text, out)?;
        }
        columns::end_padded(out)
    }
}

impl TableParser {
    fn read_header(&mut self, line: &[u8]) -> Result<(), Box<LineError>> {
        for (column, from) in self.columns.iter().zip(&mut self.from) {
            if let ColumnFrom::Name(name) = &column.from {
                let n = self.fields.spans.len();
                let same = |&i: &usize| {
                    let text = self.fields.get(line, i).map(|(_, text)| text.trim_ascii());
                    text == Some(name.as_bytes())
                };
                *from = (0..n).find(same).ok_or_else(|| {
                    LineError::found(0, format!("a column '{name}' in the header"), line)
                })?;
            }
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
    fn get<'a>(&'a self, line: &'a [u8], column: usize) -> Option<(usize, &'a [u8])> {
        let span = self.spans.get(column)?;
        let text = if span.copied { &self.unquoted[..] } else { line };
        Some((span.at, &text[span.start..span.end]))
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
                return Err(LineError::found(at, "a closing quote on the same line", &line[at..]));
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
    use crate::format::columns::{ColumnRead, feature_hash};
    use crate::records::Column as Values;
    use crate::{ColumnFrom::*, Slot};

    fn schema() -> Schema {
        let slots = vec![Slot::label("y"), Slot::dense("d", 2), Slot::ids("tags")];
        Schema::new([slots, vec![Slot::fixed_ids("user", 1)]].concat()).unwrap()
    }

    fn table() -> Table {
        Table::csv(vec![
            Column::new(Name("click".into()), "y", ColumnRead::Label),
            Column::new(Name("price".into()), "d", ColumnRead::Dense),
            Column::new(Index(3), "d", ColumnRead::Dense),
            Column::new(Name("tags".into()), "tags", ColumnRead::Hash { dim: None }).split_at(b'|'),
            Column::new(Name("user".into()), "user", ColumnRead::Id),
        ])
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
    fn columns_by_name_and_index() {
        let out =
            parse(&[HEADER, "7,1,2.5,33,a|b,x", "8,0,,34,\"say \"\"hi, you\"\"\",", ",1,1,1,,"]);
        let hash = |t: &str| feature_hash("tags", t.as_bytes(), None);
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
            (vec!["a,b"], "1: expected a column 'click' in the header, found 'a,b'"),
            (vec![HEADER, "1,2"], "1: expected 6 columns as in the first line, found 2 columns"),
            (
                vec![HEADER, "7,,1,1,a,"],
                "3: expected a label (i64) in column 'click', found 'nothing'",
            ),
            (vec![HEADER, "-7,1,1,1,a,"], "1: expected an id (u64) in column 'user', found '-7'"),
            (vec![HEADER, "7,1,x,1,a,"], "5: expected a finite float in column 'price', found 'x'"),
            (
                vec![HEADER, "7,1,1,1,\"a,"],
                "9: expected a closing quote on the same line, found '\\\"a,'",
            ),
            (
                vec![HEADER, "7,1,1,1,\"a\"b,"],
                "12: expected a delimiter after a quoted field, found 'b'",
            ),
        ] {
            assert_eq!(parse(&lines).unwrap_err(), error, "{lines:?}");
        }
    }

    #[test]
    fn the_map_is_checked_against_the_schema() {
        let mut t = table();
        t.columns.pop();
        assert_eq!(t.check(&schema()).unwrap_err().to_string(), "no column feeds slot 'user'");
        t = table();
        t.header = false;
        let message = t.check(&schema()).unwrap_err().to_string();
        assert_eq!(message, "column 'click' is named, but there is no header line");
        t = table();
        t.columns[0].slot = "d".into();
        assert!(t.check(&schema()).unwrap_err().to_string().contains("is read as Label"));
    }
}
