//! Which shards of the data a worker trains, and how far they are: what checkpoints keep, and what
//! servers hear with every push, so that another worker can continue where this one is lost.

use regatta_data::{FilePosition, FileRead, Position};
use regatta_ps::{FileProgress, Mark, Progress};

/// A shard of the data that this worker trains.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldShard {
    pub(crate) shard: usize,
    /// How far it is used.
    pub(crate) position: Position,
    /// Examples that reports count for it, and the sum of their losses.
    pub(crate) counted: u64,
    pub(crate) loss_sum: f64,
}

impl HeldShard {
    /// Where servers know a shard to be.
    pub(crate) fn at(shard: usize, progress: &Progress) -> HeldShard {
        let position = position(progress);
        let (counted, loss_sum) = (progress.counted, f64::from_bits(progress.loss_sum));
        HeldShard { shard, position, counted, loss_sum }
    }

    /// The same for servers.
    pub(crate) fn progress(&self) -> Progress {
        let file = |(file, at): (&usize, &FilePosition)| {
            let FilePosition { records, line, done } = *at;
            (*file as u64, FileProgress { records, line, done })
        };
        Progress {
            batches: self.position.batches,
            examples: self.position.examples,
            counted: self.counted,
            loss_sum: self.loss_sum.to_bits(),
            files: self.position.files.iter().map(file).collect(),
        }
    }

    /// A batch of `examples` is trained.
    pub(crate) fn count(&mut self, examples: u64, loss: Option<f32>) {
        self.counted += examples;
        self.loss_sum += f64::from(loss.unwrap_or(0.0)) * examples as f64;
    }
}

/// The position in a shard that a progress stands for.
pub(crate) fn position(progress: &Progress) -> Position {
    let file = |(file, at): (&u64, &FileProgress)| {
        let FileProgress { records, line, done } = *at;
        (*file as usize, FilePosition { records, line, done })
    };
    Position {
        batches: progress.batches,
        examples: progress.examples,
        files: progress.files.iter().map(file).collect(),
    }
}

/// What all servers have of a shard: the least of what each of them has.
pub(crate) fn least(progress: &[Progress]) -> Progress {
    progress.iter().min_by_key(|progress| progress.batches).cloned().unwrap_or_default()
}

/// The mark of the next push.
#[derive(Default)]
pub(crate) struct Marks {
    is_known: bool,
    mark: Mark,
    /// What each server has of the shard, while batches come again that some of them have.
    applied: Vec<Progress>,
    /// Which of them have the batches of the next push.
    covered: Vec<bool>,
}

impl Marks {
    /// The next batches are of this shard. Servers may have different parts of it.
    pub(crate) fn begin(&mut self, shard: usize, applied: &[Progress]) {
        let differ = applied.windows(2).any(|two| two[0] != two[1]);
        *self = Marks {
            is_known: true,
            mark: Mark { shard: shard as u64, ..Mark::default() },
            applied: if differ { applied.to_vec() } else { vec![] },
            covered: vec![],
        };
    }

    /// Nobody is to know of the next batches.
    pub(crate) fn begin_unknown(&mut self) {
        *self = Marks::default();
    }

    /// A batch is trained.
    pub(crate) fn note(&mut self, held: &HeldShard, reads: &[FileRead]) {
        if !self.is_known {
            return;
        }
        let mark = &mut self.mark;
        (mark.batches, mark.examples) = (held.position.batches, held.position.examples);
        (mark.counted, mark.loss_sum) = (held.counted, held.loss_sum.to_bits());
        for &FileRead { file, records, line, done } in reads {
            mark.files.insert(file as u64, FileProgress { records, line, done });
        }
        self.covered.clear();
        self.covered.extend(self.applied.iter().map(|progress| progress.covers(&self.mark)));
        if !self.covered.contains(&true) {
            (self.applied, self.covered) = (vec![], vec![]);
        }
    }

    /// Whether some servers have the batch: it is pushed alone then.
    pub(crate) fn is_repeating(&self) -> bool {
        !self.applied.is_empty()
    }

    /// For a push.
    pub(crate) fn view(&self) -> Option<(&Mark, &[bool])> {
        self.is_known.then_some((&self.mark, self.covered.as_slice()))
    }

    /// A push has taken it along.
    pub(crate) fn sent(&mut self) {
        self.mark.files.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(batches: u64) -> HeldShard {
        let position = Position { batches, examples: 4 * batches, ..Position::default() };
        HeldShard { position, ..HeldShard::default() }
    }

    fn read(records: u64) -> [FileRead; 1] {
        [FileRead { file: 3, records, line: records, done: false }]
    }

    #[test]
    fn a_progress_comes_back() {
        let mut shard = held(2);
        let at = FilePosition { records: 8, line: 9, done: true };
        shard.position.files.insert(5, at);
        shard.count(8, Some(0.5));
        let again = HeldShard::at(0, &shard.progress());
        assert_eq!((again.position, again.counted, again.loss_sum), (shard.position, 8, 4.0));
    }

    #[test]
    fn batches_that_a_server_has_are_marked_until_all_lack_them() {
        let progress = |batches: u64| {
            let mut shard = held(batches);
            let at = FilePosition { records: 4 * batches, line: 4 * batches, done: false };
            shard.position.files.insert(3, at);
            shard.progress()
        };
        let mut marks = Marks::default();
        marks.begin(1, &[progress(3), progress(2)]);
        assert_eq!(least(&[progress(3), progress(2)]).batches, 2);
        marks.note(&held(3), &read(12));
        assert!(marks.is_repeating());
        let (mark, covered) = marks.view().unwrap();
        assert_eq!((mark.shard, mark.batches, covered), (1, 3, &[true, false][..]));
        marks.sent();
        marks.note(&held(4), &read(16));
        assert!(!marks.is_repeating() && marks.view().unwrap().1.is_empty());
        // Equal everywhere: nothing comes again.
        marks.begin(1, &[progress(2), progress(2)]);
        assert!(!marks.is_repeating());
    }
}
