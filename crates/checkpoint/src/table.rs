//! Tables to disk and back: [`save_table`] writes one moment of a table, [`SavedTable`] is a table
//! in a checkpoint, whoever wrote its parts and however many checkpoints it is spread over.

use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use regatta_table::{Receipt, Row, SaveMode, Scope, Snapshot, SparseTable};

use crate::Error;
use crate::manifest::Part;
use crate::rows::layout::DAYS;
use crate::rows::{BlockBuffer, BlockRows, Merge, Saved, TableHeader, TableReader, TableWriter};

/// Blocks that are read ahead of the one that is being put into a table.
const BLOCKS_AHEAD: usize = 16;

/// A part that was written, and what the table needs to know once the checkpoint is published.
#[derive(Debug)]
pub struct SavedPart {
    /// For the manifest.
    pub part: Part,
    /// For [`SparseTable::saved`]; of checkpoints there is nothing to tell but
    /// [`SparseTable::end_snapshot`].
    pub receipts: Vec<Receipt>,
}

/// Writes the rows of a snapshot as the part `name` of a draft, while the table continues.
/// Afterwards the snapshot must be ended, whether this worked or not: with `true` once the
/// checkpoint is published.
///
/// # Errors
/// If the table gives no rows or the file cannot be written.
pub fn save_table(
    draft: &Path,
    name: &str,
    table_name: &str,
    table: &SparseTable,
    snapshot: &Snapshot,
) -> Result<SavedPart, Error> {
    let (mode, delta) = match snapshot.scope() {
        Scope::Rows(mode) => (mode, false),
        Scope::Changes => (SaveMode::All, true),
    };
    let header = TableHeader {
        table: table_name.to_string(),
        parts: table.row_parts(),
        base_len: table.base_len(),
        mode,
        delta,
        day: snapshot.day(),
    };
    let mut writer = TableWriter::create(draft, name, header)?;
    let mut receipts = Vec::new();
    let mut exported = table.export_snapshot(snapshot);
    loop {
        // While rows are visited their shard is locked: blocks that are full are written
        // afterwards.
        let mut taken = Ok(());
        let slice = exported.next(|row| {
            if taken.is_ok() {
                taken = writer.add(&row);
            }
        });
        taken?;
        let Some(slice) = slice.map_err(Error::table(&draft.join(name), table_name))? else {
            break;
        };
        slice.removed.iter().try_for_each(|key| writer.remove(*key))?;
        receipts.push(slice.receipt);
        writer.write_full()?;
    }
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
        let mut n = 0;
        for reader in readers {
            let blocks = reader.n_blocks();
            // A run of blocks is a range of shards: threads do not wait for each other's locks.
            let mine = blocks * thread / threads..blocks * (thread + 1) / threads;
            read_ahead(reader, mine, |rows| {
                let rows = rows.iter().filter_map(|saved| self.row(reader, saved));
                n += table
                    .import(rows.filter(|row| own(row.key)))
                    .map_err(Error::table(reader.path(), &self.name))?;
                Ok(())
            })?;
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

/// Reads blocks in order and calls `visit` with each, while the next ones are read and checked by
/// another thread.
fn read_ahead(
    reader: &TableReader,
    blocks: Range<usize>,
    mut visit: impl FnMut(BlockRows<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (send, filled) = sync_channel(BLOCKS_AHEAD);
    // Room for every buffer there is, so that giving one back never waits.
    let (give_back, empty) = sync_channel(BLOCKS_AHEAD + 2);
    let stream = reader.stream()?;
    thread::scope(move |scope| {
        scope.spawn(move || {
            for block in blocks {
                let mut buffer: BlockBuffer = empty.try_recv().unwrap_or_default();
                let read = stream.read_block(block, &mut buffer);
                // The other side is gone after an error there.
                if send.send(read.map(|()| (block, buffer))).is_err() {
                    return;
                }
            }
        });
        for read in filled {
            let (block, buffer) = read?;
            visit(reader.view(block, &buffer))?;
            let _ = give_back.try_send(buffer);
        }
        Ok(())
    })
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
