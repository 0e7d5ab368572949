//! Bytes to lines: large reads into one buffer, lines as slices of it.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use memchr::memchr;

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
    /// Number of the last line handed out, from 1.
    number: u64,
    /// Time spent in `input.read`.
    read_time: Duration,
}

/// One line, or why there is none.
pub(crate) enum Line<'a> {
    Text(&'a [u8]),
    TooLong,
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
            number: 0,
            read_time: Duration::ZERO,
        }
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

    /// The next line with its number.
    pub(crate) fn next_numbered(&mut self) -> io::Result<(Line<'_>, u64)> {
        let number = self.number + 1;
        Ok((self.next()?, number))
    }

    /// The next line. After `TooLong` the rest of that line is skipped.
    pub(crate) fn next(&mut self) -> io::Result<Line<'_>> {
        let mut scanned = 0;
        loop {
            let text = &self.buffer[self.start..self.end];
            if let Some(n) = memchr(b'\n', &text[scanned..]).map(|n| n + scanned) {
                let from = self.start;
                self.start += n + 1;
                self.number += 1;
                return Ok(Line::Text(trimmed(&self.buffer[from..from + n], self.number)));
            }
            scanned = text.len();
            if self.eof {
                if scanned == 0 {
                    return Ok(Line::End);
                }
                let from = self.start;
                self.start = self.end;
                self.number += 1;
                return Ok(Line::Text(trimmed(&self.buffer[from..self.end], self.number)));
            }
            if scanned > self.max_line_bytes {
                self.number += 1;
                self.skip_line()?;
                return Ok(Line::TooLong);
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

/// A line without the `\r` of its end, and the first one without a byte-order mark.
fn trimmed(line: &[u8], number: u64) -> &[u8] {
    const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line }
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
                Line::TooLong => all.push(None),
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
    fn a_line_longer_than_a_block() {
        let long = vec![b'x'; 3 * BLOCK_BYTES + 5];
        let text = [b"a\n", &long[..], b"\nb\n"].concat();
        let all = lines(&text, 100_000, usize::MAX);
        assert_eq!(all, [Some(b"a".to_vec()), Some(long), Some(b"b".to_vec())]);
        let cut = lines(&text, 100_000, BLOCK_BYTES);
        assert_eq!(cut, [Some(b"a".to_vec()), None, Some(b"b".to_vec())]);
    }
}
