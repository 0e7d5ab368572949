//! Tables to disk and back: [`save_table`] writes one moment of a table, [`SavedTable`] is a table
//! in a checkpoint, whoever wrote its parts and however many checkpoints it is spread over.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use regatta_table::{Cut, Receipt, Row, SaveMode, Scope, ShardRows, SparseTable};

use crate::Error;
use crate::manifest::Part;
use crate::rows::layout::DAYS;
use crate::rows::{BlockBuffer, Merge, Saved, TableHeader, TableReader, TableWriter};

/// Shards that are copied out of a table before they are written: one is written while the next is
/// Blocks that a thread asks the disk for ahead of the one that it loads, and at a time.
const BLOCKS_AHEAD: usize = 64;
const BLOCKS_AT_ONCE: usize = 16;
/// copied.
const SHARDS_AHEAD: usize = 1;

/// A part that was written, and what the table needs to know once the checkpoint is published.
#[derive(Debug)]
pub struct SavedPart {
    /// For the manifest.
    pub part: Part,
    /// For [`SparseTable::saved`]; of checkpoints there is nothing to tell but
    /// [`SparseTable::end_cut`].
    pub receipts: Vec<Receipt>,
}

/// Writes the rows of a cut as the part `name` of a draft, while the table goes on. Afterwards the
/// cut must be ended, whether this worked or not: with `true` once the checkpoint is published.
///
/// # Errors
/// If the table gives no rows or the file cannot be written.
pub fn save_table(
    draft: &Path,
    name: &str,
    table_name: &str,
    table: &SparseTable,
    cut: &Cut,
) -> Result<SavedPart, Error> {
    let (mode, delta) = match cut.scope() {
        Scope::Rows(mode) => (mode, false),
        Scope::Changes => (SaveMode::All, true),
    };
    let header = TableHeader {
        table: table_name.to_string(),
        parts: table.row_parts(),
        base_len: table.base_len(),
        mode,
        delta,
        day: cut.day(),
    };
    let mut writer = TableWriter::create(draft, name, header)?;
    let mut receipts = Vec::new();
    let (sender, shards) = sync_channel(SHARDS_AHEAD);
    thread::scope(|scope| {
        scope.spawn(move || {
            let exported = (0..table.n_shards()).map(|shard| table.export_cut(cut, shard));
            // The other side is gone after an error there.
            let _ = exported.into_iter().try_for_each(|rows| sender.send(rows));
        });
        for rows in shards {
            let rows: ShardRows = rows.map_err(Error::table(&draft.join(name), table_name))?;
            rows.rows().try_for_each(|row| writer.write(&row))?;
            rows.removed().iter().try_for_each(|key| writer.remove(*key))?;
            receipts.push(rows.receipt());
        }
        Ok::<(), Error>(())
    })?;
    Ok(SavedPart { part: writer.finish()?, receipts })
}

/// A table as a checkpoint holds it: the files of all who wrote a part of it, of the checkpoint and
/// of all that it builds on.
#[derive(Debug)]
pub struct SavedTable {
    name: String,
    /// The checkpoint.
    path: PathBuf,
    /// Newest checkpoint first.
    chain: Vec<Vec<TableReader>>,
    day: u32,
}

impl SavedTable {
    /// A table from its open files, newest checkpoint first.
    ///
    /// # Errors
    /// If there are none, or their rows have different parts.
    pub(crate) fn new(
        path: &Path,
        name: &str,
        chain: Vec<Vec<TableReader>>,
    ) -> Result<SavedTable, Error> {
        let Some(first) = chain.iter().flatten().next() else {
            return Err(Error::refused(path, format!("it holds no table '{name}'")));
        };
        let layout =
            |reader: &TableReader| (reader.header().parts.clone(), reader.header().base_len);
        if let Some(other) = chain.iter().flatten().find(|r| layout(r) != layout(first)) {
            let reason = format!(
                "its rows have the parts {}, those of {} have {}",
                parts_text(&first.header().parts),
                other.path().display(),
                parts_text(&other.header().parts)
            );
            return Err(Error::corrupt(first.path(), reason));
        }
        let day = first.header().day;
        Ok(SavedTable { name: name.to_string(), path: path.to_path_buf(), chain, day })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Names and lengths of the parts of a full row.
    pub fn parts(&self) -> &[(String, usize)] {
        // There is at least one file; see `new`.
        self.chain.iter().flatten().next().map_or(&[], |reader| &reader.header().parts)
    }

    /// The day of the table when it was saved.
    pub fn day(&self) -> u32 {
        self.day
    }

    /// The most rows and candidates that it can have.
    pub fn max_len(&self) -> u64 {
        self.chain.iter().flatten().map(TableReader::len).sum()
    }

    /// Finds one id; what is gone is not there.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn find<'b>(
        &self,
        key: u64,
        buffer: &'b mut BlockBuffer,
    ) -> Result<Option<Row<'b>>, Error> {
        let mut found = None;
        'chain: for readers in &self.chain {
            for reader in readers {
                if reader.find(key, buffer)?.is_some() {
                    found = Some(reader);
                    break 'chain;
                }
            }
        }
        let Some(reader) = found else { return Ok(None) };
        match reader.find(key, buffer)? {
            Some(saved) => Ok(self.row(reader, saved)),
            None => Ok(None),
        }
    }

    /// Calls `visit` for every row and candidate once, in the order of [`row_order`].
    ///
    /// # Errors
    /// If a file cannot be read or is damaged, or from `visit`.
    pub fn for_each(
        &self,
        mut visit: impl FnMut(Row<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut walk = self.walk(0..=u64::MAX)?;
        while let Some(row) = walk.next()? {
            visit(row)?;
        }
        Ok(())
    }

    /// A walk over a range of order numbers.
    pub(crate) fn walk(&self, range: RangeInclusive<u64>) -> Result<Walk<'_>, Error> {
        Ok(Walk { table: self, merge: Merge::new(&self.chain, range)? })
    }

    /// Puts the rows that `own` wants into a table, from `threads` threads, and sets its day. Gives
    /// how many there were. If the table is to be what the checkpoint holds, clear it before and
    /// call [`SparseTable::begin_changes`] afterwards.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged, or the table has rows with other parts.
    pub fn load_into(
        &self,
        table: &SparseTable,
        own: impl Fn(u64) -> bool + Sync,
        threads: usize,
    ) -> Result<usize, Error> {
        let path = &self.path;
        if self.parts() != table.row_parts() {
            let (saved, wanted) = (parts_text(self.parts()), parts_text(&table.row_parts()));
            let reason = format!(
                "rows of table '{}' have the parts {saved}, but this job's have {wanted}: another \
                 width or another optimizer",
                self.name
            );
            return Err(Error::refused(path, reason));
        }
        table.set_day(self.day);
        table.reserve(self.expected(&own)?).map_err(Error::table(path, &self.name))?;
        let threads = threads.max(1);
        match &self.chain[..] {
            [alone] => {
                in_threads(threads, |thread| self.load_files(alone, table, &own, thread, threads))
            }
            _ => in_threads(threads, |thread| self.load_merged(table, &own, thread, threads)),
        }
    }

    /// How many rows `own` will take, judged by one block.
    fn expected(&self, own: &impl Fn(u64) -> bool) -> Result<usize, Error> {
        let Some(reader) = self.chain.iter().flatten().find(|r| r.n_blocks() > 0) else {
            return Ok(0);
        };
        let mut buffer = BlockBuffer::default();
        let rows = reader.read_block(0, &mut buffer)?;
        let owned = rows.iter().filter(|saved| own(saved.key())).count();
        Ok((self.max_len() as f64 * owned as f64 / rows.len() as f64) as usize)
    }

    /// Loads a share of the blocks of files that need not be merged.
    fn load_files(
        &self,
        readers: &[TableReader],
        table: &SparseTable,
        own: &impl Fn(u64) -> bool,
        thread: usize,
        threads: usize,
    ) -> Result<usize, Error> {
        let mut buffer = BlockBuffer::default();
        let mut n = 0;
        for reader in readers {
            let blocks = reader.n_blocks();
            // A run of blocks is a range of shards: threads do not wait for each other's locks.
            let mine = blocks * thread / threads..blocks * (thread + 1) / threads;
            reader.will_read(mine.start..mine.end.min(mine.start + BLOCKS_AHEAD));
            for block in mine.clone() {
                // One more each time, so that the disk always has work.
                let ahead = block + BLOCKS_AHEAD;
                if ahead.is_multiple_of(BLOCKS_AT_ONCE) {
                    reader.will_read(ahead.min(mine.end)..(ahead + BLOCKS_AT_ONCE).min(mine.end));
                }
                let rows = reader.read_block(block, &mut buffer)?.iter();
                let rows = rows.filter_map(|saved| self.row(reader, saved));
                n += table
                    .import(rows.filter(|row| own(row.key)))
                    .map_err(Error::table(reader.path(), &self.name))?;
            }
        }
        Ok(n)
    }

    /// Loads a share of the rows of files that must be merged.
    fn load_merged(
        &self,
        table: &SparseTable,
        own: &impl Fn(u64) -> bool,
        thread: usize,
        threads: usize,
    ) -> Result<usize, Error> {
        let bound = |i: usize| ((i as u128) << 64) / threads as u128;
        let range = bound(thread) as u64..=(bound(thread + 1) - 1) as u64;
        let mut n = 0;
        let mut walk = self.walk(range)?;
        while let Some(row) = walk.next()? {
            if own(row.key) {
                n += table.import([row]).map_err(Error::table(&self.path, &self.name))?;
            }
        }
        Ok(n)
    }

    /// A row as it was on the day of the newest checkpoint; none for what is gone.
    fn row<'a>(&self, reader: &TableReader, saved: Saved<'a>) -> Option<Row<'a>> {
        let Saved::Row(row) = saved else { return None };
        let later = self.day.wrapping_sub(reader.header().day);
        Some(Row { unseen_days: row.unseen_days.wrapping_add(later) & DAYS, ..row })
    }
}

/// The rows of a saved table, one after the other.
pub(crate) struct Walk<'t> {
    table: &'t SavedTable,
    merge: Merge<'t>,
}

impl Walk<'_> {
    /// The next row; what is gone is stepped over.
    pub(crate) fn next(&mut self) -> Result<Option<Row<'_>>, Error> {
        while self.merge.advance()? {
            if matches!(self.merge.current(), Some((_, Saved::Row(_)))) {
                let current = self.merge.current();
                return Ok(current.and_then(|(reader, saved)| self.table.row(reader, saved)));
            }
        }
        Ok(None)
    }
}

/// Runs `work` with the number of each thread and adds up what they did.
fn in_threads(
    threads: usize,
    work: impl Fn(usize) -> Result<usize, Error> + Sync,
) -> Result<usize, Error> {
    if threads == 1 {
        return work(0);
    }
    let work = &work;
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|i| scope.spawn(move || work(i))).collect();
        let done = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        // All of them are waited for, whatever the first one says.
        done.collect::<Vec<_>>().into_iter().sum()
    })
}

pub(crate) fn parts_text(parts: &[(String, usize)]) -> String {
    let parts: Vec<String> = parts.iter().map(|(name, len)| format!("{name} {len}")).collect();
    parts.join(", ")
}
