//! Whether text ends inside a quoted field: line ends there belong to the field.

use memchr::memchr;

/// Where a scan of one record stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuoteScan {
    delimiter: u8,
    /// Bytes of the record that were looked at.
    seen: usize,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A quote would open a quoted field.
    FieldStart,
    /// In a field without quotes, or behind a closing quote.
    Plain,
    Quoted,
    /// Behind a quote in a quoted field: another one stands for itself.
    QuoteInQuoted,
}

impl QuoteScan {
    /// At the start of a record, behind so many bytes that are no text.
    pub(crate) fn new(delimiter: u8, seen: usize) -> QuoteScan {
        QuoteScan { delimiter, seen, place: Place::FieldStart }
    }

    /// Whether the record's text so far ends inside a quoted field. Each call gets the text of the
    /// last one with more behind it.
    pub(crate) fn is_open(&mut self, text: &[u8]) -> bool {
        let new = &text[self.seen.min(text.len())..];
        if self.place == Place::FieldStart && memchr(b'"', new).is_none() {
            return false;
        }
        for &byte in new {
            self.place = match (self.place, byte) {
                (Place::FieldStart, b'"') | (Place::QuoteInQuoted, b'"') => Place::Quoted,
                (Place::Quoted, b'"') => Place::QuoteInQuoted,
                (Place::Quoted, _) => Place::Quoted,
                (_, byte) if byte == self.delimiter => Place::FieldStart,
                _ => Place::Plain,
            };
        }
        self.seen = text.len();
        self.place == Place::Quoted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_count_where_a_field_begins() {
        for (text, open) in [
            ("a,b", false),
            ("\"a", true),
            ("\"a\"", false),
            ("\"a\"\"", true),
            ("\"a\"\"\",b", false),
            ("5\" disk,b", false),
            ("5\" disk,\"b", true),
            ("\"a,\"\",b", true),
            ("", false),
        ] {
            assert_eq!(QuoteScan::new(b',', 0).is_open(text.as_bytes()), open, "{text}");
            let mut scan = QuoteScan::new(b',', 0);
            let ends = (1..=text.len()).map(|n| scan.is_open(&text.as_bytes()[..n]));
            assert_eq!(ends.last().unwrap_or(false), open, "{text}, byte by byte");
        }
    }
}
