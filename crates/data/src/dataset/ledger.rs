//! Which records of which file are waiting to become a batch, so that batches say how far each file
//! has been used.

use std::collections::VecDeque;

use crate::FileRead;

/// Records that have been read and not yet handed out, as runs of one file each, in order.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    runs: VecDeque<Run>,
}

#[derive(Debug)]
struct Run {
    /// What holds once the whole run has been handed out.
    read: FileRead,
    waiting: usize,
}

impl Ledger {
    /// Notes that `added` more records wait, after which the file stands at `read`.
    pub(super) fn note(&mut self, read: FileRead, added: usize) {
        match self.runs.back_mut() {
            Some(run) if run.read.file == read.file => {
                run.read = read;
                run.waiting += added;
            }
            _ => self.runs.push_back(Run { read, waiting: added }),
        }
    }

    /// Takes the first `n` waiting records out and returns the positions of their files then.
    pub(super) fn take(&mut self, mut n: usize) -> Vec<FileRead> {
        let mut reads = Vec::new();
        while let Some(run) = self.runs.front_mut() {
            if run.waiting > n {
                if n > 0 {
                    run.waiting -= n;
                    let records = run.read.records - run.waiting as u64;
                    reads.push(FileRead { records, done: false, ..run.read });
                }
                break;
            }
            n -= run.waiting;
            reads.extend(self.runs.pop_front().map(|run| run.read));
        }
        reads
    }

    /// Appends the waiting records of another thread.
    pub(super) fn append(&mut self, other: Ledger) {
        self.runs.extend(other.runs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: usize, records: u64, done: bool) -> FileRead {
        FileRead { file, records, line: records, done }
    }

    #[test]
    fn a_batch_may_end_inside_a_run() {
        let mut ledger = Ledger::default();
        ledger.note(read(0, 3, false), 3);
        ledger.note(read(0, 5, true), 2);
        ledger.note(read(1, 0, true), 0);
        ledger.note(read(2, 4, false), 4);
        let taken = ledger.take(4);
        assert_eq!(taken, [FileRead { line: 5, ..read(0, 4, false) }]);
        let taken = ledger.take(4);
        let inside = FileRead { line: 4, ..read(2, 3, false) };
        assert_eq!(taken, [read(0, 5, true), read(1, 0, true), inside]);
        assert_eq!(ledger.take(1), [read(2, 4, false)]);
        ledger.note(read(2, 4, true), 0);
        assert_eq!(ledger.take(0), [read(2, 4, true)]);
    }
}
