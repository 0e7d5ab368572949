//! Bytes to lines: large reads into one buffer, lines as slices of it.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use memchr::memchr;

use crate::quotes::QuoteScan;

/// Bytes asked from the system at a time: large for the disk, small enough for the cache.
const BLOCK_BYTES: usize = 256 * 1024;

/// Lines of `input`, without their ends (`\n` or `\r\n`). The last line need not have one. A
/// byte-order mark before the first line, as editors of Windows write it, is left out.
pub(crate) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// `buffer[start..end]` has been read and not yet handed out.
    start: usize,
    end: usize,
    eof: bool,
    max_line_bytes: usize,
    /// Separates fields of which quoted ones may go over several lines.
    quotes: Option<u8>,
    /// Number of the last line handed out, from 1.
    number: u64,
    /// Time spent in `input.read`.
    read_time: Duration,
}

/// One line, or why there is none.
pub(crate) enum Line<'a> {
    Text(&'a [u8]),
    TooLong,
    /// Too long, and still within quotes.
    Unclosed,
    End,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R, max_line_bytes: usize) -> Lines<R> {
        Lines {
            input,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            eof: false,
            max_line_bytes,
            quotes: None,
            number: 0,
            read_time: Duration::ZERO,
        }
    }

    /// Line ends within quoted fields, which this byte separates, belong to the line.
    pub(crate) fn with_quotes(mut self, delimiter: Option<u8>) -> Lines<R> {
        self.quotes = delimiter;
        self
    }

    /// Number of the last line handed out, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Time spent reading since the last call.
    pub(crate) fn take_read_time(&mut self) -> Duration {
        std::mem::take(&mut self.read_time)
    }

    pub(crate) fn input(&self) -> &R {
        &self.input
    }

    pub(crate) fn into_input(self) -> R {
        self.input
    }

    /// The next line with its number; of several lines, that of the first.
    pub(crate) fn next_numbered(&mut self) -> io::Result<(Line<'_>, u64)> {
        let number = self.number + 1;
        Ok((self.next()?, number))
    }

    /// The next line. After `TooLong` and `Unclosed` the rest of that line is skipped.
    pub(crate) fn next(&mut self) -> io::Result<Line<'_>> {
        let (mut scanned, mut inner) = (0, 0);
        let first = self.number == 0;
        let mut quotes: Option<QuoteScan> = None;
        loop {
            let text = &self.buffer[self.start..self.end];
            if let Some(n) = memchr(b'\n', &text[scanned..]).map(|n| n + scanned) {
                if let Some(delimiter) = self.quotes {
                    let mark = if first { mark_of(text) } else { 0 };
                    let scan = quotes.get_or_insert(QuoteScan::new(delimiter, mark));
                    if scan.is_open(&text[..n]) {
                        (scanned, inner) = (n + 1, inner + 1);
                        if n <= self.max_line_bytes {
                            continue;
                        }
                        self.number += inner;
                        self.start += n + 1;
                        return Ok(Line::Unclosed);
                    }
                }
                let from = self.start;
                self.start += n + 1;
                self.number += inner + 1;
                return Ok(Line::Text(trimmed(&self.buffer[from..from + n], first)));
            }
            scanned = text.len();
            if self.eof {
                if scanned == 0 {
                    return Ok(Line::End);
                }
                let from = self.start;
                self.start = self.end;
                self.number += inner + 1;
                return Ok(Line::Text(trimmed(&self.buffer[from..self.end], first)));
            }
            if scanned > self.max_line_bytes {
                self.number += inner + 1;
                self.skip_line()?;
                return Ok(if inner > 0 { Line::Unclosed } else { Line::TooLong });
            }
            self.fill()?;
        }
    }

    /// Reads more behind what is left, which moves to the front.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() < self.end + BLOCK_BYTES {
            self.buffer.resize((2 * self.end).max(self.end + BLOCK_BYTES), 0);
        }
        let begin = Instant::now();
        let n = loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.read_time += begin.elapsed();
        self.end += n;
        self.eof = n == 0;
        Ok(())
    }

    /// Drops everything up to the next line end, a block at a time.
    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            if let Some(n) = memchr(b'\n', &self.buffer[self.start..self.end]) {
                self.start += n + 1;
                return Ok(());
            }
            self.start = self.end;
            if self.eof {
                return Ok(());
            }
            self.fill()?;
        }
    }
}

/// Bytes of a byte-order mark at the start of a file.
fn mark_of(text: &[u8]) -> usize {
    const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
    if text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 }
}

/// A line without the `\r` of its end, and the first one without a byte-order mark.
fn trimmed(line: &[u8], first: bool) -> &[u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if first { &line[mark_of(line)..] } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives `step` bytes per read.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(buf.len());
            buf[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn lines(text: &[u8], step: usize, max: usize) -> Vec<Option<Vec<u8>>> {
        let mut lines = Lines::new(Slow(text, step), max);
        let mut all = Vec::new();
        loop {
            match lines.next().unwrap() {
                Line::Text(t) => all.push(Some(t.to_vec())),
                Line::TooLong | Line::Unclosed => all.push(None),
                Line::End => break,
            }
        }
        assert_eq!(lines.number(), all.len() as u64);
        all
    }

    #[test]
    fn ends_of_lines_and_of_the_file() {
        let some = |t: &[&str]| t.iter().map(|s| Some(s.as_bytes().to_vec())).collect::<Vec<_>>();
        for step in [1, 2, 3, 100] {
            assert_eq!(lines(b"", step, 10), some(&[]));
            assert_eq!(lines(b"a\r\nbc\n\nd", step, 10), some(&["a", "bc", "", "d"]));
            assert_eq!(lines(b"a\n", step, 10), some(&["a"]));
            let marked = "\u{feff}a\r\n\u{feff}b".as_bytes();
            assert_eq!(lines(marked, step, 10), some(&["a", "\u{feff}b"]));
            assert_eq!(lines("\u{feff}".as_bytes(), step, 10), some(&[""]));
        }
    }

    #[test]
    fn line_ends_in_quoted_fields() {
        let text = "\u{feff}\"a\r\nb\",c\r\n5\" d,e\n\"f\"\"\n\ng\",h\nlast,\"i\n";
        for step in [1, 2, 5, 100] {
            let mut lines = Lines::new(Slow(text.as_bytes(), step), 1000).with_quotes(Some(b','));
            let mut all = Vec::new();
            while let (Line::Text(t), number) = lines.next_numbered().unwrap() {
                all.push((number, String::from_utf8(t.to_vec()).unwrap()));
            }
            let want = [(1, "\"a\r\nb\",c"), (3, "5\" d,e"), (4, "\"f\"\"\n\ng\",h")];
            let want = want.into_iter().chain([(7, "last,\"i\n")]);
            let want: Vec<(u64, String)> = want.map(|(n, t)| (n, t.to_string())).collect();
            assert_eq!(all, want, "{step}");
        }
    }

    #[test]
    fn a_quote_that_is_never_closed_ends_at_the_limit() {
        let text = ["x\n\"y\n", &"z\n".repeat(BLOCK_BYTES)].concat();
        let mut lines = Lines::new(Slow(text.as_bytes(), 1000), 50).with_quotes(Some(b','));
        assert!(matches!(lines.next_numbered().unwrap(), (Line::Text(b"x"), 1)));
        assert!(matches!(lines.next_numbered().unwrap(), (Line::Unclosed, 2)));
        assert!(matches!(lines.next_numbered().unwrap(), (Line::Text(b"z"), _)));
    }

    #[test]
    fn a_line_longer_than_a_block() {
        let long = vec![b'x'; 3 * BLOCK_BYTES + 5];
        let text = [b"a\n", &long[..], b"\nb\n"].concat();
        let all = lines(&text, 100_000, usize::MAX);
        assert_eq!(all, [Some(b"a".to_vec()), Some(long), Some(b"b".to_vec())]);
        let cut = lines(&text, 100_000, BLOCK_BYTES);
        assert_eq!(cut, [Some(b"a".to_vec()), None, Some(b"b".to_vec())]);
    }
}
