//! Synchronous steps: contributions of several workers go in, one update comes out.
//!
//! Contributions are kept apart until a step is complete and then summed in the order of workers,
//! so the order of arrival changes no bit. With [`Weighting::ByExamples`] and gradients that are
//! means over each worker's batch, a step equals that of one process with the joined batch.

use std::sync::{Mutex, MutexGuard};

use crate::dense::DenseTable;
use crate::error::check_len;
use crate::group::{Merge, Scratch};
use crate::sparse::{PushCounts, SparseTable};
use crate::{Error, TableId};

/// How contributions are weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// By their share of the examples of the step, for gradients that are means. A step without any
    /// examples changes nothing. Statistics of CTR pushes are added as they are.
    ByExamples,
    /// Each one counts fully, for gradients that are sums.
    Sum,
}

/// Collects contributions to a [`SparseTable`]. Several threads may add at the same time.
#[derive(Debug)]
pub struct SparseSync(Collector<(Vec<u64>, Vec<f32>)>);

/// Collects contributions to a [`DenseTable`]. Several threads may add at the same time.
#[derive(Debug)]
pub struct DenseSync(Collector<Vec<f32>>);

#[derive(Debug)]
struct Collector<T> {
    weighting: Weighting,
    quorum: Mutex<Quorum<T>>,
    table: TableId,
}

/// Workers that contributed, in order, and how much each contribution counts.
type Weights = Vec<(usize, f32)>;

#[derive(Debug)]
struct Quorum<T> {
    step: u64,
    workers: Vec<Worker<T>>,
    /// Sum of the contributions; kept for its memory.
    sum: T,
    merge: Merge,
}

#[derive(Debug, Default)]
struct Worker<T> {
    status: Status,
    examples: u64,
    /// Kept between steps for its memory.
    contribution: T,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Status {
    #[default]
    Awaited,
    Contributed,
    /// Finished: it no longer belongs to the quorum.
    Left,
    /// Finished, and its last contribution is still to be applied.
    Leaving,
}

impl<T: Default> Collector<T> {
    fn new(table: TableId, n_workers: usize, weighting: Weighting) -> Self {
        let workers = (0..n_workers).map(|_| Worker::default()).collect();
        let quorum = Quorum { step: 0, workers, sum: T::default(), merge: Merge::default() };
        Collector { weighting, quorum: Mutex::new(quorum), table }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Quorum<T>>, Error> {
        self.quorum.lock().map_err(|_| Error::Poisoned { table: self.table, shard: 0 })
    }

    /// Notes a contribution; whether the step is complete.
    fn add(
        &self,
        worker: usize,
        step: u64,
        examples: u64,
        fill: impl FnOnce(&mut T),
    ) -> Result<bool, Error> {
        let mut quorum = self.lock()?;
        let (current, len) = (quorum.step, quorum.workers.len());
        let no_such = Error::NoSuch { table: self.table, what: "worker", index: worker, len };
        let slot = quorum.workers.get_mut(worker).ok_or(no_such)?;
        if step != current {
            return Err(Error::WrongStep { worker, expected: current, actual: step });
        }
        if slot.status != Status::Awaited {
            return Err(Error::ContributedTwice { worker, step });
        }
        (slot.status, slot.examples) = (Status::Contributed, examples);
        fill(&mut slot.contribution);
        Ok(quorum.is_complete())
    }

    fn leave(&self, worker: usize) -> Result<bool, Error> {
        let mut quorum = self.lock()?;
        let len = quorum.workers.len();
        let no_such = Error::NoSuch { table: self.table, what: "worker", index: worker, len };
        let slot = quorum.workers.get_mut(worker).ok_or(no_such)?;
        slot.status = match slot.status {
            Status::Contributed | Status::Leaving => Status::Leaving,
            Status::Awaited | Status::Left => Status::Left,
        };
        Ok(quorum.is_complete())
    }

    /// The quorum of a complete step, and the weights of its contributions.
    fn complete(&self) -> Result<(MutexGuard<'_, Quorum<T>>, Weights), Error> {
        let quorum = self.lock()?;
        if !quorum.is_complete() {
            return Err(Error::Incomplete { step: quorum.step, missing: quorum.missing() });
        }
        let given = || quorum.workers.iter().enumerate().filter(|(_, worker)| worker.has_given());
        let total: u64 = given().map(|(_, worker)| worker.examples).sum();
        let weight = |examples: u64| match self.weighting {
            Weighting::Sum => 1.0,
            Weighting::ByExamples => (examples as f64 / total as f64) as f32,
        };
        let weights = if total == 0 && self.weighting == Weighting::ByExamples {
            Vec::new()
        } else {
            given().map(|(idx, worker)| (idx, weight(worker.examples))).collect()
        };
        Ok((quorum, weights))
    }
}

impl<T> Worker<T> {
    fn has_given(&self) -> bool {
        matches!(self.status, Status::Contributed | Status::Leaving)
    }
}

impl<T> Quorum<T> {
    fn missing(&self) -> Vec<usize> {
        let awaited = |(_, worker): &(usize, &Worker<T>)| worker.status == Status::Awaited;
        self.workers.iter().enumerate().filter(awaited).map(|(idx, _)| idx).collect()
    }

    fn is_complete(&self) -> bool {
        self.workers.iter().any(Worker::has_given)
            && self.workers.iter().all(|worker| worker.status != Status::Awaited)
    }

    fn next_step(&mut self) {
        self.step += 1;
        for worker in &mut self.workers {
            worker.status = match worker.status {
                Status::Awaited | Status::Contributed => Status::Awaited,
                Status::Left | Status::Leaving => Status::Left,
            };
        }
    }
}

/// The methods that both kinds share.
macro_rules! quorum_methods {
    ($sync:ident) => {
        impl $sync {
            /// Waits for `n_workers` contributions to step 0.
            pub fn new(table: TableId, n_workers: usize, weighting: Weighting) -> Self {
                $sync(Collector::new(table, n_workers, weighting))
            }

            /// Takes a worker that has finished out of the quorum; what it contributed to the step
            /// being collected still counts. Gives whether that step is now complete.
            ///
            /// # Errors
            /// [`Error::NoSuch`] worker, [`Error::Poisoned`].
            pub fn leave(&self, worker: usize) -> Result<bool, Error> {
                self.0.leave(worker)
            }

            /// The step being collected.
            ///
            /// # Errors
            /// [`Error::Poisoned`].
            pub fn step(&self) -> Result<u64, Error> {
                Ok(self.0.lock()?.step)
            }

            /// Workers that have not contributed to the step being collected.
            ///
            /// # Errors
            /// [`Error::Poisoned`].
            pub fn missing(&self) -> Result<Vec<usize>, Error> {
                Ok(self.0.lock()?.missing())
            }
        }
    };
}
quorum_methods!(SparseSync);
quorum_methods!(DenseSync);

impl SparseSync {
    /// Adds the push of one worker for one step; `examples` is the size of its batch, also when it
    /// has no keys here. Gives whether the step is complete.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::WrongStep`], [`Error::ContributedTwice`] (also after
    /// [`leave`](Self::leave)), [`Error::NoSuch`] worker, [`Error::Poisoned`].
    pub fn add(
        &self,
        worker: usize,
        step: u64,
        examples: u64,
        keys: &[u64],
        values: &[f32],
        table: &SparseTable,
    ) -> Result<bool, Error> {
        table.check_push(keys, values)?;
        self.0.add(worker, step, examples, |(own_keys, own_values)| {
            own_keys.clear();
            own_keys.extend_from_slice(keys);
            own_values.clear();
            own_values.extend_from_slice(values);
        })
    }

    /// Applies a complete step and begins the next.
    ///
    /// # Errors
    /// [`Error::Incomplete`] names the workers that are missing; otherwise as
    /// [`SparseTable::push`].
    pub fn apply(
        &self,
        table: &SparseTable,
        lr: f32,
        scratch: &mut Scratch,
    ) -> Result<PushCounts, Error> {
        let (mut quorum, weights) = self.0.complete()?;
        let columns = table.check_push(&[], &[])?;
        let Quorum { workers, merge, .. } = &mut *quorum;
        merge.start(weights.iter().map(|(idx, _)| workers[*idx].contribution.0.len()).sum());
        for (idx, weight) in weights {
            let (keys, values) = &workers[idx].contribution;
            merge.add(keys, values, columns, weight);
        }
        let counts = table.push_unique(&merge.keys, &merge.values, lr, scratch)?;
        quorum.next_step();
        Ok(counts)
    }
}

impl DenseSync {
    /// Adds the gradient of one worker for one step; `examples` is the size of its batch. Gives
    /// whether the step is complete.
    ///
    /// # Errors
    /// As [`SparseSync::add`].
    pub fn add(
        &self,
        worker: usize,
        step: u64,
        examples: u64,
        gradient: &[f32],
        table: &DenseTable,
    ) -> Result<bool, Error> {
        check_len(table.table(), "a dense gradient", gradient.len(), table.len())?;
        self.0.add(worker, step, examples, |own| {
            own.clear();
            own.extend_from_slice(gradient);
        })
    }

    /// Applies a complete step and begins the next.
    ///
    /// # Errors
    /// [`Error::Incomplete`] names the workers that are missing; otherwise as [`DenseTable::push`].
    pub fn apply(&self, table: &DenseTable, lr: f32) -> Result<(), Error> {
        let (mut quorum, weights) = self.0.complete()?;
        let Quorum { workers, sum, .. } = &mut *quorum;
        for (nth, (idx, weight)) in weights.iter().enumerate() {
            let gradient = workers[*idx].contribution.iter().map(|value| value * weight);
            if nth == 0 {
                sum.clear();
                sum.extend(gradient);
            } else {
                sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
            }
        }
        if !weights.is_empty() {
            table.push(sum, lr)?;
        }
        quorum.next_step();
        Ok(())
    }
}
