//! Parts to batches in the order of their records: the thread body of streaming datasets.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use super::ledger::Ledger;
use crate::batches::Output;
use crate::read::PartReader;
use crate::{Error, FileRead, Position, Records, Source};

/// Hands the parts of a source out to threads, first come first served.
pub(super) struct Parts {
    source: Source,
    pass: u64,
    next: AtomicUsize,
    from: Position,
}

impl Parts {
    pub(super) fn new(source: Source, pass: u64, from: &Position) -> Parts {
        let next = AtomicUsize::new(source.parts().start);
        Parts { source, pass, next, from: from.clone() }
    }

    /// The next part that is not done, and how many of its records to leave out.
    fn take(&self) -> Option<(usize, u64)> {
        loop {
            let part = self.next.fetch_add(1, SeqCst);
            if part >= self.source.parts().end {
                return None;
            }
            match self.from.files.get(&part) {
                Some(at) if at.done => {}
                at => return Some((part, at.map_or(0, |at| at.records))),
            }
        }
    }
}

/// The parts that one thread takes, read as if they were one.
pub(super) struct PartStream<'a> {
    parts: &'a Parts,
    output: &'a Output,
    current: Option<(Box<dyn PartReader>, FileRead)>,
    /// The records that have been read and not yet sent.
    pub(super) ledger: Ledger,
}

impl<'a> PartStream<'a> {
    pub(super) fn new(parts: &'a Parts, output: &'a Output) -> PartStream<'a> {
        PartStream { parts, output, current: None, ledger: Ledger::default() }
    }

    /// Appends records until `out` has at least `target`. Returns whether there may be more.
    pub(super) fn read(&mut self, target: usize, out: &mut Records) -> Result<bool, Error> {
        while out.len() < target {
            if self.output.stopped() || (self.current.is_none() && !self.open_next(out)?) {
                return Ok(false);
            }
            let Some((reader, read)) = &mut self.current else { continue };
            let before = out.len();
            let more = reader.read(target, out)?;
            let added = out.len() - before;
            read.records += added as u64;
            read.line = reader.line();
            read.done = !more;
            self.ledger.note(read.clone(), added);
            if !more {
                self.current = None;
            }
        }
        Ok(true)
    }

    /// Opens the next part and passes over the records that an earlier pass has handed out.
    fn open_next(&mut self, out: &mut Records) -> Result<bool, Error> {
        let Some((part, skip)) = self.parts.take() else { return Ok(false) };
        let (Parts { source, pass, .. }, shared) = (self.parts, &self.output.shared);
        let mut reader = source.open(part, *pass, &shared.context)?;
        let mut read = FileRead { file: part, records: 0, line: 0, done: false };
        let (mut skipped, mut more) = (shared.take_records(), true);
        while more && read.records < skip && !self.output.stopped() {
            let left = (skip - read.records).min(1024) as usize;
            more = reader.read(left, &mut skipped)?;
            read.records += skipped.len() as u64;
            read.line = reader.line();
            // A line may give several records, of which only the first were handed out.
            out.append_from(&skipped, left);
            self.ledger.note(read.clone(), skipped.len().saturating_sub(left));
            skipped.clear();
        }
        shared.give_back(skipped);
        self.current = Some((reader, read));
        Ok(true)
    }
}

/// What threads have left when the parts have run out: less than a batch each.
pub(super) struct Leftovers {
    /// Threads that have not yet come to their end.
    running: usize,
    records: Option<Records>,
    ledger: Ledger,
}

impl Leftovers {
    pub(super) fn new(threads: usize) -> Mutex<Leftovers> {
        Mutex::new(Leftovers { running: threads, records: None, ledger: Ledger::default() })
    }
}

/// Reads parts into batches until there are no more. The thread that ends last makes batches of
/// what all of them left, so that only the very last batch of a pass can be incomplete.
pub(super) fn run(
    parts: &Parts,
    leftovers: &Mutex<Leftovers>,
    batch_size: usize,
    drop_last: bool,
    output: &Output,
) -> Result<(), Error> {
    let mut stream = PartStream::new(parts, output);
    let mut records = output.shared.take_records();
    while stream.read(batch_size, &mut records)? {
        if !send_whole(&mut records, &mut stream.ledger, batch_size, output) {
            return Ok(());
        }
    }
    let mut left = leftovers.lock().unwrap_or_else(PoisonError::into_inner);
    left.running -= 1;
    left.ledger.append(stream.ledger);
    match &mut left.records {
        Some(others) => others.append_from(&records, 0),
        none => *none = Some(records),
    }
    if left.running > 0 || output.stopped() {
        return Ok(());
    }
    let mut records = left.records.take().expect("put above");
    let ledger = &mut left.ledger;
    if send_whole(&mut records, ledger, batch_size, output) && !records.is_empty() && !drop_last {
        let reads = ledger.take(records.len());
        output.send(records, reads);
    }
    Ok(())
}

/// Sends as many whole batches as there are. Returns false when the pass has been stopped.
fn send_whole(
    records: &mut Records,
    ledger: &mut Ledger,
    batch_size: usize,
    output: &Output,
) -> bool {
    while records.len() >= batch_size {
        let mut rest = output.shared.take_records();
        records.split_into(batch_size, &mut rest);
        if !output.send(std::mem::replace(records, rest), ledger.take(batch_size)) {
            return false;
        }
    }
    true
}
