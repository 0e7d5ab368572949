//! What a dataset reads: a schema, a format and files, or a synthetic source; divided into parts.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use regatta_store::Stores;

use crate::files::{list_files, split_range};
use crate::format::{Format, PartKey, RowUse, Table, Visitor};
use crate::limits::Limits;
use crate::pipe::Patience;
use crate::read::{EveryNth, LineReader, PartReader, ReadContext};
use crate::synthetic::{Synthetic, SyntheticReader};
use crate::{Error, Records, Schema, Slot};

/// Where records come from. Cheap to clone.
///
/// A source is a list of *parts*, which are its files; a synthetic source has parts of up to
/// 65536 examples. Parts are what threads and workers share out between them.
#[derive(Debug, Clone)]
pub struct Source {
    schema: Schema,
    kind: Kind,
    /// The parts that this worker reads.
    parts: Range<usize>,
    /// Of every part only each n-th record, from that one on: `(first, n)`.
    every: Option<(usize, usize)>,
    max_bad_lines: u64,
    max_line_bytes: usize,
    stores: Stores,
    patience: Patience,
    /// There may be no records at all.
    may_be_empty: bool,
}

#[derive(Debug, Clone)]
enum Kind {
    Files { files: Arc<[PathBuf]>, format: Format, pipe_command: Option<Arc<str>> },
    Synthetic(Arc<Synthetic>),
}

impl Source {
    /// The given files, in that order. Files that end in `.gz`, `.zst` or `.zstd` are unpacked.
    ///
    /// # Errors
    /// If there are none, or if the format cannot fill the slots.
    pub fn files(schema: Schema, format: Format, files: Vec<PathBuf>) -> Result<Source, Error> {
        if files.is_empty() {
            return Err(Error::NoFiles("the file list is empty".into()));
        }
        let source = Source::arrived(schema, format, files)?;
        Ok(Source { may_be_empty: false, ..source })
    }

    /// The parts of one data pass over data that arrive while training: files, or addresses of
    /// messages. There may be none, as for a worker that gets none of them.
    ///
    /// # Errors
    /// If the format cannot fill the slots.
    pub fn arrived(schema: Schema, format: Format, parts: Vec<PathBuf>) -> Result<Source, Error> {
        format.check(&schema)?;
        Ok(Source {
            schema,
            parts: 0..parts.len(),
            kind: Kind::Files { files: parts.into(), format, pipe_command: None },
            every: None,
            max_bad_lines: 0,
            max_line_bytes: 64 << 20,
            stores: Stores::new(),
            patience: Patience::default(),
            may_be_empty: true,
        })
    }

    /// All files of a directory; see [`list_files`].
    ///
    /// # Errors
    /// As [`Source::files`] and [`list_files`].
    pub fn directory(
        schema: Schema,
        format: Format,
        dir: impl Into<PathBuf>,
    ) -> Result<Source, Error> {
        Source::files(schema, format, list_files(dir.into(), &Stores::new())?)
    }

    /// A synthetic source by its URL, for example `synthetic://ctr?examples=1000`; see
    /// [`Synthetic`].
    ///
    /// # Errors
    /// If the URL names no known source or parameter.
    pub fn synthetic(url: &str) -> Result<Source, Error> {
        Ok(Source::from(Synthetic::parse(url)?))
    }

    /// Whether files go through a command of the user.
    pub(crate) fn has_pipe_command(&self) -> bool {
        matches!(&self.kind, Kind::Files { pipe_command: Some(_), .. })
    }

    /// Whether a data pass without any record is none to complain about.
    pub(crate) fn may_be_empty(&self) -> bool {
        self.may_be_empty
    }

    /// Passes every file through `sh -c COMMAND` and reads what that prints.
    ///
    /// # Errors
    /// If the source has no text files.
    pub fn with_pipe_command(mut self, command: &str) -> Result<Source, Error> {
        match &mut self.kind {
            #[cfg(feature = "parquet")]
            Kind::Files { format: Format::Parquet(_), .. } => {
                Err(Error::config("Parquet files cannot go through a pipe command"))
            }
            Kind::Files { pipe_command, .. } => {
                *pipe_command = Some(command.into());
                Ok(self)
            }
            Kind::Synthetic(_) => {
                Err(Error::config("a synthetic source cannot go through a pipe command"))
            }
        }
    }

    /// Ends the data pass with an error when a pipe command has written nothing for this time.
    /// Without this, readers wait for ever.
    pub fn with_pipe_timeout(mut self, timeout: Duration) -> Source {
        self.patience.limit = Some(timeout);
        self
    }

    /// Calls `notice` with a line for the user whenever a pipe command has been waited for that
    /// long again. Without this, such lines go to standard error every 5 s.
    pub fn with_notices(
        mut self,
        every: Duration,
        notice: impl Fn(&str) + Send + Sync + 'static,
    ) -> Source {
        (self.patience.every, self.patience.notice) = (every, Arc::new(notice));
        self
    }

    pub(crate) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Lets up to `n` malformed lines per data pass be skipped and counted. Without this, the first
    /// one ends the data pass with an error.
    pub fn with_max_bad_lines(mut self, n: u64) -> Source {
        self.max_bad_lines = n;
        self
    }

    /// Lines longer than about `n` bytes are malformed; 64 MiB unless set. Bounds the memory of a
    /// reader on files without line ends.
    pub fn with_max_line_bytes(mut self, n: usize) -> Source {
        self.max_line_bytes = n;
        self
    }

    /// Fetches remote files through the given stores, which may have settings of their own.
    pub fn with_stores(mut self, stores: &Stores) -> Source {
        self.stores = stores.clone();
        self
    }

    pub(crate) fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The parts of one worker out of several, as [`split_file_list`](crate::split_file_list)
    /// divides them. File indices stay those of the whole list.
    ///
    /// # Errors
    /// If there are fewer parts than workers, so that this one would have nothing to read.
    pub fn split(mut self, worker: usize, n_workers: usize) -> Result<Source, Error> {
        if worker >= n_workers {
            return Err(Error::config(format!("there is no worker {worker} of {n_workers}")));
        }
        let mine = split_range(self.parts.len(), worker, n_workers);
        if mine.is_empty() {
            let (files, n) = (self.describe(), self.parts.len());
            let what = format!("worker {worker} of {n_workers} gets none of {n} files ({files})");
            return Err(Error::NoFiles(what));
        }
        self.parts = self.parts.start + mine.start..self.parts.start + mine.end;
        Ok(self)
    }

    /// Each `n_workers`-th record of every part, so that workers share files which are too few to
    /// be divided. Every worker reads them all and keeps its own records.
    ///
    /// # Errors
    /// If there is no such worker.
    pub fn every_nth(mut self, worker: usize, n_workers: usize) -> Result<Source, Error> {
        if worker >= n_workers {
            return Err(Error::config(format!("there is no worker {worker} of {n_workers}")));
        }
        self.every = Some((worker, n_workers));
        Ok(self)
    }

    /// The slots of its records.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Indices of the parts that are read, in the whole list.
    pub fn parts(&self) -> Range<usize> {
        self.parts.clone()
    }

    /// The file with that index; `None` for a synthetic source.
    pub fn file(&self, part: usize) -> Option<&PathBuf> {
        match &self.kind {
            Kind::Files { files, .. } => files.get(part),
            Kind::Synthetic(_) => None,
        }
    }

    /// The whole list of files; `None` for a synthetic source.
    pub(crate) fn all_files(&self) -> Option<Arc<[PathBuf]>> {
        match &self.kind {
            Kind::Files { files, .. } => Some(files.clone()),
            Kind::Synthetic(_) => None,
        }
    }

    /// Shows the rows of all its files to a function: the raw values of the given columns.
    ///
    /// # Errors
    /// If it is not made of tables, or something cannot be read.
    pub fn visit_rows(&self, columns: Vec<String>, visit: Visitor) -> Result<(), Error> {
        let rows = RowUse::Visit(columns.into(), visit);
        let Kind::Files { files, format, pipe_command } = &self.kind else {
            return Err(Error::config("a synthetic source has no raw values"));
        };
        let format = match format {
            Format::Table(table) => Format::Table(Table { rows, ..table.clone() }),
            #[cfg(feature = "parquet")]
            Format::Parquet(_) => Format::Parquet(rows),
            _ => return Err(Error::config("only csv, tsv and parquet data have raw values")),
        };
        // The rows become no records, but records have slots.
        let schema = Schema::new(vec![Slot::ids("row")])?;
        format.check(&schema)?;
        let (files, pipe_command) = (files.clone(), pipe_command.clone());
        let kind = Kind::Files { files, format, pipe_command };
        let source = Source { schema, kind, ..self.clone() };
        let context = ReadContext::new(&source);
        let mut none = Records::new(&source.schema);
        for part in source.parts() {
            let mut reader = source.open_whole(part, 0, &context)?;
            while reader.read(1, &mut none)? {}
        }
        Ok(())
    }

    pub(crate) fn max_bad_lines(&self) -> u64 {
        self.max_bad_lines
    }

    /// For messages: the first file and how many more.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::Synthetic(synthetic) => synthetic.to_string(),
            Kind::Files { files, pipe_command, .. } => {
                let Some(first) = files.get(self.parts.start) else { return "no files".into() };
                let first = first.display();
                let mut text = match self.parts.len() {
                    1 => first.to_string(),
                    n => format!("{first} and {} more", n - 1),
                };
                if let Some(command) = pipe_command {
                    text += &format!(" through pipe command `{command}`");
                }
                text
            }
        }
    }

    /// Starts to read one part.
    pub(crate) fn open(
        &self,
        part: usize,
        pass: u64,
        context: &Arc<ReadContext>,
    ) -> Result<Box<dyn PartReader>, Error> {
        let reader = self.open_whole(part, pass, context)?;
        Ok(match self.every {
            Some((first, n)) => Box::new(EveryNth::new(reader, &self.schema, first, n)),
            None => reader,
        })
    }

    fn open_whole(
        &self,
        part: usize,
        pass: u64,
        context: &Arc<ReadContext>,
    ) -> Result<Box<dyn PartReader>, Error> {
        let key = PartKey { pass, file: part as u64 };
        match &self.kind {
            Kind::Synthetic(synthetic) => {
                Ok(Box::new(SyntheticReader::new(synthetic, key, context)))
            }
            Kind::Files { files, format, pipe_command } => {
                let file = &files[part];
                let Some(parser) = format.parser(&self.schema, key) else {
                    return self.open_other(format, file, context);
                };
                let (command, limits) = (pipe_command.as_deref(), Limits::of(&self.schema));
                let max = self.max_line_bytes;
                Ok(Box::new(LineReader::open(file, command, parser, limits, max, context)?))
            }
        }
    }

    /// Formats that are not made of lines.
    fn open_other(
        &self,
        format: &Format,
        file: &std::path::Path,
        context: &Arc<ReadContext>,
    ) -> Result<Box<dyn PartReader>, Error> {
        match format {
            #[cfg(feature = "parquet")]
            Format::Parquet(rows) => {
                let reader =
                    crate::format::parquet::ParquetReader::open(file, rows, &self.schema, context)?;
                Ok(Box::new(reader))
            }
            _ => {
                let _ = context;
                unreachable!("{}: {format:?} is made of lines", file.display())
            }
        }
    }
}

impl From<Synthetic> for Source {
    fn from(synthetic: Synthetic) -> Source {
        Source {
            schema: synthetic.schema(),
            parts: 0..synthetic.n_parts(),
            kind: Kind::Synthetic(Arc::new(synthetic)),
            every: None,
            max_bad_lines: 0,
            max_line_bytes: 0,
            stores: Stores::new(),
            patience: Patience::default(),
            may_be_empty: false,
        }
    }
}
