//! One part to records: opens a file or a pipe, hands its lines to a parser, counts bad lines.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use regatta_store::Stores;

use crate::format::LineParser;
use crate::limits::Limits;
use crate::lines::{Line, Lines};
use crate::number::is_blank;
use crate::open;
use crate::pipe::{Children, Patience, Pipe};
use crate::stages::{Stage, Timers};
use crate::{BadLines, Error, LineError, Malformed, Records, Schema, Source};

/// How many malformed lines a report shows.
const REPORTED_LINES: usize = 8;

/// What the readers of one data pass share.
#[derive(Debug)]
pub(crate) struct ReadContext {
    pub(crate) timers: Timers,
    pub(crate) children: Arc<Children>,
    pub(crate) stores: Stores,
    patience: Patience,
    max_bad_lines: u64,
    bad_count: AtomicU64,
    bad_first: Mutex<Vec<Malformed>>,
}

impl ReadContext {
    pub(crate) fn new(source: &Source) -> Arc<ReadContext> {
        Arc::new(ReadContext {
            timers: Timers::default(),
            children: Arc::default(),
            stores: source.stores().clone(),
            patience: source.patience().clone(),
            max_bad_lines: source.max_bad_lines(),
            bad_count: AtomicU64::new(0),
            bad_first: Mutex::default(),
        })
    }

    pub(crate) fn stopped(&self) -> bool {
        self.children.stopped()
    }

    /// Counts a malformed line.
    ///
    /// # Errors
    /// If it is one too many.
    pub(crate) fn bad_line(&self, line: Malformed) -> Result<(), Error> {
        if self.max_bad_lines == 0 {
            return Err(Error::Malformed(Box::new(line)));
        }
        if self.bad_count.fetch_add(1, Relaxed) >= self.max_bad_lines {
            return Err(Error::TooManyBadLines {
                budget: self.max_bad_lines,
                last: Box::new(line),
            });
        }
        let mut first = self.bad_first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.len() < REPORTED_LINES {
            first.push(line);
        }
        Ok(())
    }

    pub(crate) fn bad_lines(&self) -> BadLines {
        let first = self.bad_first.lock().unwrap_or_else(PoisonError::into_inner).clone();
        BadLines { count: self.bad_count.load(Relaxed).min(self.max_bad_lines), first }
    }
}

/// Reads the records of one part from its beginning to its end.
pub(crate) trait PartReader {
    /// Appends records until `out` has at least `target`, and somewhat more if a line gives
    /// several. Returns whether there may be more.
    fn read(&mut self, target: usize, out: &mut Records) -> Result<bool, Error>;

    /// The last line (or row) read, from 1.
    fn line(&self) -> u64;
}

/// Bytes of a file, or what a pipe command makes of them.
enum Input {
    File(Box<dyn Read + Send>),
    Pipe(Box<Pipe>),
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Input::File(file) => file.read(buf),
            Input::Pipe(pipe) => pipe.read(buf),
        }
    }
}

/// Reads formats that are made of lines.
pub(crate) struct LineReader {
    file: PathBuf,
    command: Option<String>,
    /// `None` after the end.
    lines: Option<Lines<Input>>,
    /// The number of the last line, kept after the end.
    last_line: u64,
    parser: Box<dyn LineParser>,
    limits: Limits,
    context: Arc<ReadContext>,
}

impl LineReader {
    pub(crate) fn open(
        file: &Path,
        command: Option<&str>,
        parser: Box<dyn LineParser>,
        limits: Limits,
        max_line_bytes: usize,
        context: &Arc<ReadContext>,
    ) -> Result<LineReader, Error> {
        let input = match command {
            None => Input::File(open::open(file, &context.stores)?),
            Some(command) => {
                let ReadContext { children, patience, stores, .. } = &**context;
                let pipe = Pipe::spawn(command, file, children, patience, stores)?;
                Input::Pipe(Box::new(pipe))
            }
        };
        Ok(LineReader {
            file: file.to_path_buf(),
            command: command.map(str::to_string),
            lines: Some(Lines::new(input, max_line_bytes).with_quotes(parser.quotes())),
            last_line: 0,
            parser,
            limits,
            context: context.clone(),
        })
    }

    /// Reads lines, and takes out those with values that are out of range.
    fn read_checked(&mut self, target: usize, out: &mut Records) -> Result<bool, Error> {
        self.limits.begin(out);
        let more = self.read_lines(target, out)?;
        for (line, error) in self.limits.take_bad(out) {
            self.bad_line(line, error)?;
        }
        Ok(more)
    }

    fn read_lines(&mut self, target: usize, out: &mut Records) -> Result<bool, Error> {
        while out.len() < target {
            let Some(lines) = &mut self.lines else { return Ok(false) };
            let (line, number) =
                match lines.next_numbered().map_err(|e| Error::reading(&self.file, e))? {
                    (Line::End, _) => return self.end(),
                    other => other,
                };
            self.last_line = number;
            let complete = out.len();
            let parsed = match line {
                Line::Text(text) if text.iter().all(|&b| is_blank(b)) => Ok(()),
                Line::Text(text) => {
                    let parsed = self.parser.parse_line(number, text, out);
                    parsed.map_err(|error| error.within(number, text))
                }
                Line::Unclosed => {
                    let error = LineError::whole("a closing quote", "none before max_line_bytes");
                    Err((number, error))
                }
                _ => {
                    let error = LineError::whole("a shorter line", "one beyond max_line_bytes");
                    Err((number, error))
                }
            };
            match parsed {
                Ok(()) => self.limits.note(out, number),
                Err((number, error)) => {
                    out.truncate(complete);
                    self.bad_line(number, *error)?;
                }
            }
        }
        Ok(true)
    }

    fn bad_line(&self, line: u64, error: LineError) -> Result<(), Error> {
        let stderr = || match &self.lines {
            Some(lines) => match lines.input() {
                Input::Pipe(pipe) => pipe.stderr(),
                Input::File(_) => String::new(),
            },
            None => String::new(),
        };
        let command = self.command.clone().map(|c| (c, stderr()));
        let file = self.file.clone();
        self.context.bad_line(Malformed { file, line, error, command })
    }

    fn end(&mut self) -> Result<bool, Error> {
        match self.lines.take().map(Lines::into_input) {
            Some(Input::Pipe(pipe)) => pipe.finish().map(|()| false),
            _ => Ok(false),
        }
    }
}

impl PartReader for LineReader {
    fn read(&mut self, target: usize, out: &mut Records) -> Result<bool, Error> {
        let begin = Instant::now();
        let result = self.read_checked(target, out);
        let all = begin.elapsed();
        let read = self.lines.as_mut().map(Lines::take_read_time).unwrap_or_default();
        self.context.timers.add(Stage::Read, read);
        self.context.timers.add(Stage::Parse, all.saturating_sub(read));
        result
    }

    fn line(&self) -> u64 {
        self.last_line
    }
}

/// Passes on every n-th record of another reader.
pub(crate) struct EveryNth {
    inner: Box<dyn PartReader>,
    /// What the other reader gave last.
    chunk: [Records; 1],
    picks: Vec<(u32, u32)>,
    /// Records to skip before the next one that counts.
    skip: usize,
    n: usize,
}

impl EveryNth {
    /// Begins with record `first`.
    pub(crate) fn new(
        inner: Box<dyn PartReader>,
        schema: &Schema,
        first: usize,
        n: usize,
    ) -> EveryNth {
        let (chunk, picks) = ([Records::new(schema)], Vec::new());
        EveryNth { inner, chunk, picks, skip: first, n }
    }
}

impl PartReader for EveryNth {
    fn read(&mut self, target: usize, out: &mut Records) -> Result<bool, Error> {
        let mut more = true;
        while more && out.len() < target {
            self.chunk[0].clear();
            more =
                self.inner.read((target - out.len()).saturating_mul(self.n), &mut self.chunk[0])?;
            let len = self.chunk[0].len();
            self.picks.clear();
            while self.skip < len {
                self.picks.push((0, self.skip as u32));
                self.skip += self.n;
            }
            self.skip -= len;
            out.gather(&self.chunk, &self.picks);
        }
        Ok(more)
    }

    fn line(&self) -> u64 {
        self.inner.line()
    }
}
