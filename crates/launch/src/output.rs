//! Lines of the processes: to the terminal with a prefix, to a file each, and the last ones kept.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

/// Lines of a failed process that are shown again at the end.
const LAST_LINES: usize = 12;
/// A longer line is shown in parts.
const LINE_LIMIT: u64 = 64 << 10;

/// Which of its two outputs a process wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// Where the lines of one process go.
pub(crate) struct Output {
    prefix: String,
    file: Option<File>,
    last: VecDeque<Vec<u8>>,
}

impl Output {
    pub(crate) fn new(name: &str, log: Option<&Path>) -> io::Result<Output> {
        let file = log.map(File::create).transpose()?;
        Ok(Output { prefix: format!("[{name}] "), file, last: VecDeque::new() })
    }

    /// Shows a line, files it, remembers it. Training continues when nobody reads its lines any
    /// more, or when the disk with the logs is full.
    pub(crate) fn line(&mut self, stream: Stream, line: &[u8]) {
        let text = [self.prefix.as_bytes(), line, b"\n"].concat();
        let _ = match stream {
            Stream::Out => io::stdout().write_all(&text),
            Stream::Err => io::stderr().write_all(&text),
        };
        if let Some(file) = &mut self.file {
            let _ = file.write_all(&[line, b"\n"].concat());
        }
        self.last.push_back(line.to_vec());
        if self.last.len() > LAST_LINES {
            self.last.pop_front();
        }
    }

    /// The last lines with their prefix.
    pub(crate) fn last_lines(&self) -> Vec<String> {
        let line = |l: &Vec<u8>| format!("{}{}", self.prefix, String::from_utf8_lossy(l));
        self.last.iter().map(line).collect()
    }

    /// Forgets what a process said that is started again.
    pub(crate) fn note(&mut self, text: &str) {
        self.last.clear();
        if let Some(file) = &mut self.file {
            let _ = writeln!(file, "--- {text}");
        }
    }
}

/// Reads lines until the stream ends; `take` says whether to continue.
pub(crate) fn read_lines(stream: impl Read, mut take: impl FnMut(Vec<u8>) -> bool) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match stream.by_ref().take(LINE_LIMIT).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if !take(line) {
            return;
        }
    }
}
