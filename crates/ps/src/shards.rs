//! Who trains which shard of the data, and how far it is, so that no data are lost with a worker.
//! Pure bookkeeping of one server.
//!
//! In every data pass each worker has a shard of its own. A push carries a [`Mark`]: how far the
//! shard is trained with it. A server applies push and mark together, so it knows exactly what it
//! holds of every shard. When the holder of a shard is lost, the next worker that has nothing to do
//! takes the shard over from there. Server 0 decides who does.
//!
//! A worker may be lost between the servers of one push. They then hold different parts of its last
//! batches. Who takes over begins with the least, and marks as applied what a server has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::rounds::Members;

/// How far one file is trained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileProgress {
    /// Records.
    pub records: u64,
    /// The line of the last one, from 1.
    pub line: u64,
    /// Whether that was the whole file.
    pub done: bool,
}

/// How far a shard is trained in a data pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Batches.
    pub batches: u64,
    /// Examples in them.
    pub examples: u64,
    /// Examples that reports count for the shard, and bits of the sum of their losses.
    pub counted: u64,
    /// As `counted`.
    pub loss_sum: u64,
    /// By the index of the file.
    pub files: BTreeMap<u64, FileProgress>,
}

/// What a push adds to the progress of a shard: counts after it, and the files it has read from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mark {
    /// The shard.
    pub shard: u64,
    /// As in [`Progress`].
    pub batches: u64,
    /// As in [`Progress`].
    pub examples: u64,
    /// As in [`Progress`].
    pub counted: u64,
    /// As in [`Progress`].
    pub loss_sum: u64,
    /// Files that the push has trained on.
    pub files: BTreeMap<u64, FileProgress>,
}

impl Progress {
    /// Takes in what a push has added.
    pub fn add(&mut self, mark: &Mark) {
        (self.batches, self.examples) = (mark.batches, mark.examples);
        (self.counted, self.loss_sum) = (mark.counted, mark.loss_sum);
        self.files.extend(mark.files.iter().map(|(file, at)| (*file, *at)));
    }

    /// Whether everything that a mark stands for is in this progress. Where batches are not read
    /// from files, they come in the same order again.
    pub fn covers(&self, mark: &Mark) -> bool {
        let has = |(file, at): (&u64, &FileProgress)| {
            self.files.get(file).is_some_and(|own| (own.records, own.done) >= (at.records, at.done))
        };
        match mark.files.is_empty() {
            true => mark.batches <= self.batches,
            false => mark.files.iter().all(has),
        }
    }
}

/// What a worker says of the data at the beginning of a data pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataStart {
    /// Number of the data pass.
    pub pass: u64,
    /// Every worker can read the shard of any other.
    pub readable_by_all: bool,
    /// What the data of the pass are, for a worker that rejoins in it, where that is not known
    /// beforehand.
    pub plan: Option<String>,
    /// Where shards begin: that of the worker, and all of them if it is the first worker of a job
    /// that resumes.
    pub shards: Vec<(usize, Progress)>,
}

/// The shards of a data pass.
#[derive(Debug, Default)]
pub struct Shards {
    pass: Option<u64>,
    readable_by_all: bool,
    plan: Option<String>,
    shards: Vec<Shard>,
}

#[derive(Debug, Clone)]
struct Shard {
    /// None after its holder was lost and came back.
    holder: Option<usize>,
    is_done: bool,
    /// Somebody has said where it begins.
    is_known: bool,
    progress: Progress,
}

impl Shards {
    /// For a job with so many workers.
    pub fn new(workers: usize) -> Shards {
        let mut shards = Shards::default();
        shards.reset(workers);
        shards
    }

    fn reset(&mut self, workers: usize) {
        let own = |worker| Shard {
            holder: Some(worker),
            is_done: false,
            is_known: false,
            progress: Progress::default(),
        };
        self.shards = (0..workers).map(own).collect();
    }

    /// A worker begins a data pass. The first one to do so begins it for all shards: those of
    /// workers that are lost wait for somebody, too.
    pub fn begin(&mut self, worker: usize, start: &DataStart) {
        if self.pass != Some(start.pass) {
            self.pass = Some(start.pass);
            self.plan = None;
            self.reset(self.shards.len());
        }
        self.readable_by_all = start.readable_by_all;
        if start.plan.is_some() {
            self.plan.clone_from(&start.plan);
        }
        for (number, progress) in &start.shards {
            let Some(shard) = self.shards.get_mut(*number) else { continue };
            if *number == worker || !shard.is_known {
                (shard.is_known, shard.progress) = (true, progress.clone());
            }
        }
    }

    /// A worker trains without saying on which data.
    pub fn begin_unknown(&mut self) {
        self.pass = None;
    }

    /// A push of a worker was applied.
    pub fn add(&mut self, worker: usize, mark: &Mark) {
        let shard = usize::try_from(mark.shard).ok().and_then(|n| self.shards.get_mut(n));
        if let Some(shard) = shard.filter(|shard| shard.holder == Some(worker)) {
            shard.progress.add(mark);
        }
    }

    /// A worker has trained everything that it holds.
    pub fn finish(&mut self, worker: usize) {
        let held = self.shards.iter_mut().filter(|shard| shard.holder == Some(worker));
        held.for_each(|shard| shard.is_done = true);
    }

    /// A worker that was lost comes back with nothing to do: what it held waits for somebody.
    pub fn release(&mut self, worker: usize) {
        let held = self.shards.iter_mut().filter(|shard| shard.holder == Some(worker));
        held.for_each(|shard| shard.holder = None);
    }

    /// What the data of the pass are, as its workers said.
    pub fn plan(&self) -> Option<&str> {
        self.plan.as_deref()
    }

    /// Number of the data pass, where it is known.
    pub fn pass(&self) -> Option<u64> {
        self.pass
    }

    /// Shards of lost workers that are not trained to their end.
    pub fn orphans<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = usize> + 'a {
        self.unheld(members).filter(|number| !self.shards[*number].is_done)
    }

    /// Shards that no worker holds, trained to their end or not.
    pub fn unheld<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = usize> + 'a {
        let shards = self.shards.iter().enumerate().filter(|_| self.pass.is_some());
        let is_held = |shard: &Shard| shard.holder.is_some_and(|holder| members.contains(holder));
        shards.filter(move |(_, shard)| !is_held(shard)).map(|(number, _)| number)
    }

    /// An orphan that a worker can take over.
    pub fn next_orphan(&self, members: &Members) -> Option<usize> {
        self.orphans(members).find(|_| self.readable_by_all)
    }

    /// A worker takes a shard over: who held it before, if anybody, and how far it is.
    pub fn take_over(&mut self, number: usize, worker: usize) -> Option<(Option<usize>, Progress)> {
        let shard = self.shards.get_mut(number)?;
        let before = shard.holder.replace(worker);
        Some((before, shard.progress.clone()))
    }

    /// How far a shard is.
    pub fn progress(&self, number: usize) -> Progress {
        self.shards.get(number).map(|shard| shard.progress.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(pass: u64, worker: usize, progress: Progress) -> DataStart {
        let shards = vec![(worker, progress)];
        DataStart { pass, readable_by_all: true, plan: Some(format!("pass {pass}")), shards }
    }

    fn mark(shard: u64, batches: u64, file: u64, records: u64) -> Mark {
        let at = FileProgress { records, line: records, done: false };
        let files = BTreeMap::from([(file, at)]);
        Mark { shard, batches, files, ..Mark::default() }
    }

    #[test]
    fn a_lost_shard_is_taken_over_where_it_was() {
        let mut members = Members::new(2);
        let mut shards = Shards::new(2);
        shards.begin(0, &start(4, 0, Progress::default()));
        shards.begin(1, &start(4, 1, Progress::default()));
        shards.add(1, &mark(1, 1, 7, 10));
        shards.add(1, &mark(1, 2, 8, 3));
        // Nobody else can move a shard.
        shards.add(0, &mark(1, 9, 8, 99));
        assert_eq!(shards.next_orphan(&members), None);
        members.leave(1);
        assert_eq!(shards.next_orphan(&members), Some(1));
        let (before, progress) = shards.take_over(1, 0).unwrap();
        assert_eq!((before, progress.batches, progress.files[&7].records), (Some(1), 2, 10));
        assert_eq!(progress.files[&8].records, 3);
        assert_eq!(shards.next_orphan(&members), None);
        shards.add(0, &mark(1, 3, 8, 13));
        assert_eq!(shards.progress(1).files[&8].records, 13);
        // Who took it over is lost as well.
        members.leave(0);
        assert_eq!(shards.orphans(&members).collect::<Vec<_>>(), [0, 1]);
        members.join(0);
        shards.finish(0);
        assert_eq!(shards.orphans(&members).count(), 0);
    }

    #[test]
    fn the_next_pass_begins_with_shards_of_lost_workers() {
        let mut members = Members::new(2);
        let mut shards = Shards::new(2);
        assert_eq!(shards.orphans(&members).count(), 0);
        members.leave(1);
        shards.begin(0, &start(1, 0, Progress::default()));
        assert_eq!(shards.next_orphan(&members), Some(1));
        assert_eq!(shards.progress(1), Progress::default());
        let unreadable = DataStart { readable_by_all: false, ..start(2, 0, Progress::default()) };
        shards.begin(0, &unreadable);
        assert_eq!(shards.next_orphan(&members), None);
        assert_eq!(shards.orphans(&members).collect::<Vec<_>>(), [1]);
        shards.begin_unknown();
        assert_eq!(shards.orphans(&members).count(), 0);
    }

    #[test]
    fn who_comes_back_has_trained_nothing_of_its_shard() {
        let mut members = Members::new(2);
        let mut shards = Shards::new(2);
        shards.begin(0, &start(3, 0, Progress::default()));
        shards.begin(1, &start(3, 1, Progress::default()));
        shards.add(1, &mark(1, 2, 8, 3));
        // Nobody was free to take the shard over before its worker came back, and rests.
        members.leave(1);
        members.join(1);
        shards.release(1);
        shards.finish(1);
        assert_eq!((shards.next_orphan(&members), shards.plan()), (Some(1), Some("pass 3")));
        assert_eq!(shards.unheld(&members).collect::<Vec<_>>(), [1]);
        let (before, progress) = shards.take_over(1, 1).unwrap();
        assert_eq!((before, progress.batches), (None, 2));
        shards.finish(1);
        assert_eq!(shards.orphans(&members).count(), 0);
    }

    #[test]
    fn the_first_worker_knows_where_all_resume() {
        let mut shards = Shards::new(2);
        let at = |batches| Progress { batches, ..Progress::default() };
        let all = DataStart { shards: vec![(0, at(5)), (1, at(6))], ..start(0, 0, at(0)) };
        shards.begin(1, &start(0, 1, at(7)));
        shards.begin(0, &all);
        assert_eq!((shards.progress(0).batches, shards.progress(1).batches), (5, 7));
    }

    #[test]
    fn batches_are_covered_by_their_files_or_else_by_their_number() {
        let mut progress = Progress::default();
        progress.add(&mark(0, 2, 3, 20));
        assert!(progress.covers(&mark(0, 9, 3, 20)) && !progress.covers(&mark(0, 1, 3, 21)));
        assert!(!progress.covers(&mark(0, 1, 4, 1)));
        let numbered = |batches| Mark { batches, ..Mark::default() };
        assert!(progress.covers(&numbered(2)) && !progress.covers(&numbered(3)));
    }
}
