//! Small values of all workers, put together.

use crate::{Error, Fleet, ReduceOp};

/// Exchanges of small values among workers. Every worker makes the same calls in the same order.
#[derive(Clone)]
pub struct Util {
    fleet: Fleet,
}

impl Util {
    pub(crate) fn new(fleet: Fleet) -> Util {
        Util { fleet }
    }

    /// Combines the values of all workers, element by element.
    ///
    /// # Errors
    /// If a worker is lost or has another number of values, or this process is no worker.
    pub fn all_reduce(&self, values: &[f64], op: ReduceOp) -> Result<Vec<f64>, Error> {
        if op == ReduceOp::Gather {
            return Ok(self.all_gather(values)?.concat());
        }
        self.fleet.reduce("all_reduce", op, values)
    }

    /// The values of every worker, in the order of workers.
    ///
    /// # Errors
    /// As [`Util::all_reduce`].
    pub fn all_gather(&self, values: &[f64]) -> Result<Vec<Vec<f64>>, Error> {
        let all = self.fleet.reduce("all_gather", ReduceOp::Gather, values)?;
        let of = |worker: usize| all[worker * values.len()..][..values.len()].to_vec();
        if all.len() != values.len() * self.fleet.worker_num() {
            return Err(Error::Config(format!(
                "all_gather: {} values of {} workers do not make {} each",
                all.len(),
                self.fleet.worker_num(),
                values.len()
            )));
        }
        Ok((0..self.fleet.worker_num()).map(of).collect())
    }

    /// Waits until all workers have come this far.
    ///
    /// # Errors
    /// As [`Util::all_reduce`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.fleet.barrier_worker()
    }

    /// This worker's part of a list: every so manieth element, as many as there are workers.
    pub fn share<T: Clone>(&self, items: &[T]) -> Vec<T> {
        let (workers, worker) = (self.fleet.worker_num(), self.fleet.worker_index());
        items.iter().skip(worker).step_by(workers).cloned().collect()
    }

    /// This worker's part of a list of files: consecutive ones, and as many as others have, up to
    /// one.
    ///
    /// # Errors
    /// If this process is no worker.
    pub fn get_file_shard(&self, files: &[String]) -> Result<Vec<String>, Error> {
        if !self.fleet.is_worker() {
            return Err(Error::Config("get_file_shard: only workers read files".into()));
        }
        let (workers, worker) = (self.fleet.worker_num(), self.fleet.worker_index());
        let (each, more) = (files.len() / workers, files.len() % workers);
        let first = worker * each + worker.min(more);
        let n = each + usize::from(worker < more);
        Ok(files[first..first + n].to_vec())
    }
}
