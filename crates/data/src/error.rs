//! What can go wrong between a file and a batch, with the file and the line in every message.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why data could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller requested something that cannot be done.
    #[error("{0}")]
    Config(String),
    /// A directory that should hold data files does not exist.
    #[error("{}: no such data directory", .0.display())]
    MissingDirectory(PathBuf),
    /// A directory or a list holds no data files.
    #[error("{0}: no data files")]
    NoFiles(String),
    /// Something among the data that cannot be read as a file.
    #[error("{} is {what}, not a file that can be read; remove it or replace it", path.display())]
    NotAFile {
        /// Where it is.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// The files are there, but a whole data pass gave no batch.
    #[error("{files}: {why}")]
    NoExamples {
        /// The first file and how many more.
        files: String,
        /// Whether there were no records, or too few for one batch.
        why: String,
    },
    /// The operating system refused to read or write a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A remote store cannot be read.
    #[error("{0}")]
    Store(#[from] regatta_store::Error),
    /// Messages cannot be read.
    #[error("{address}: {why}")]
    Messages {
        /// Where they are.
        address: String,
        /// What happened.
        why: String,
    },
    /// A line that does not follow the format.
    #[error("{0}")]
    Malformed(Box<Malformed>),
    /// More malformed lines than the caller allowed.
    #[error("more than {budget} malformed lines; the last one: {last}")]
    TooManyBadLines {
        /// `max_bad_lines` of the source.
        budget: u64,
        /// The line that went over the budget.
        last: Box<Malformed>,
    },
    /// A pipe command ended with a failure.
    #[error("{}: pipe command `{command}` {status}{}", file.display(), quoted_stderr(.stderr))]
    Pipe {
        /// The file on its standard input.
        file: PathBuf,
        /// The command as given to `sh -c`.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// No batch came in the time that the caller allowed; asking again may help.
    #[error("{files}: no batch within {timeout:?}")]
    Timeout {
        /// The first file and how many more.
        files: String,
        /// The time.
        timeout: Duration,
    },
    /// A reader thread panicked.
    #[error("a reader thread panicked: {0}")]
    Panic(String),
    /// `next` was called again after it had returned an error.
    #[error("this data pass has already ended with an error")]
    Stopped,
}

impl Error {
    pub(crate) fn config(what: impl Into<String>) -> Error {
        Error::Config(what.into())
    }

    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { path: path.into(), source }
    }

    /// As [`Error::io`], but an error of this crate that came through a reader is taken out again.
    pub(crate) fn reading(path: &Path, source: std::io::Error) -> Error {
        source.downcast::<Error>().unwrap_or_else(|source| Error::io(path, source))
    }
}

/// What a parser says about one line. The reader adds the file and the line number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineError {
    /// Position of the offending text in the line, from 1, in bytes; 0 if it is not known.
    pub column: usize,
    /// What should have been there.
    pub expected: String,
    /// What was there instead, shortened.
    pub found: String,
}

impl LineError {
    /// An error about the blank-separated word that starts at byte `at` of `line`.
    pub fn at(line: &[u8], at: usize, expected: impl Into<String>) -> Box<LineError> {
        let at = at.min(line.len());
        let word = line[at..].split(|b| b.is_ascii_whitespace()).next().unwrap_or(b"");
        LineError::found(at, expected, word)
    }

    /// An error about the given text, which starts at byte `at` of its line.
    pub fn found(at: usize, expected: impl Into<String>, text: &[u8]) -> Box<LineError> {
        Box::new(LineError { column: at + 1, expected: expected.into(), found: excerpt(text) })
    }

    /// The same with the number of its line, and the column there: a record of a table goes over
    /// several lines if a quoted field does.
    pub(crate) fn within(mut self: Box<Self>, first: u64, text: &[u8]) -> (u64, Box<LineError>) {
        let before = &text[..self.column.saturating_sub(1).min(text.len())];
        if let Some(end) = memchr::memrchr(b'\n', before) {
            self.column -= end + 1;
        }
        (first + memchr::memchr_iter(b'\n', before).count() as u64, self)
    }

    /// An error that concerns the line as a whole.
    pub fn whole(expected: impl Into<String>, found: impl Into<String>) -> Box<LineError> {
        Box::new(LineError { column: 1, expected: expected.into(), found: found.into() })
    }
}

/// A malformed line with its file and line number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; for Parquet the row. With a pipe command, a line of its output.
    pub line: u64,
    /// What is wrong with the line.
    pub error: LineError,
    /// The pipe command that printed the line, and the end of what it wrote to standard error.
    pub command: Option<(String, String)>,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineError { column, expected, found } = &self.error;
        let (file, line) = (self.file.display(), self.line);
        write!(f, "{file}:{line}: ")?;
        if *column > 0 {
            write!(f, "column {column}: ")?;
        }
        write!(f, "expected {expected}, found {found}")?;
        if let Some((command, stderr)) = &self.command {
            write!(f, " (in the output of pipe command `{command}`{})", quoted_stderr(stderr))?;
        }
        Ok(())
    }
}

/// The malformed lines of a data pass that were skipped under the budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BadLines {
    /// How many.
    pub count: u64,
    /// The first few of them, in the order in which readers met them.
    pub first: Vec<Malformed>,
}

/// Text of a message: at most 80 characters, quoted, with a note on what was left out.
fn excerpt(text: &[u8]) -> String {
    const LIMIT: usize = 80;
    if text.is_empty() {
        return "the end of the line".into();
    }
    // Four bytes hold any one character, so a longer prefix is never needed.
    let shown: String =
        String::from_utf8_lossy(&text[..text.len().min(4 * LIMIT)]).chars().take(LIMIT).collect();
    let shown: String = shown.escape_debug().collect();
    if text.len() > LIMIT {
        format!("'{shown}...' ({} bytes)", text.len())
    } else {
        format!("'{shown}'")
    }
}

fn quoted_stderr(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        text => format!("; it wrote to stderr: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_file_line_and_text() {
        let line = format!("1 {}", "x".repeat(100));
        let error = *LineError::at(line.as_bytes(), 2, "a u64 for slot 'a'");
        let m = Malformed { file: "dir/part-0".into(), line: 7, error, command: None };
        assert_eq!(
            m.to_string(),
            format!(
                "dir/part-0:7: column 3: expected a u64 for slot 'a', found '{}...' (100 bytes)",
                "x".repeat(80)
            )
        );
        let end = LineError::at(b"1 ", 2, "a value");
        assert_eq!(end.found, "the end of the line");
    }

    #[test]
    fn foreign_bytes_do_not_break_the_message() {
        let e = LineError::found(0, "a word", &[0xff, 0x00, b'a']);
        assert_eq!(e.found, "'\u{fffd}\\0a'");
    }
}
