//! A new model takes over from the old one: opened and tried out beside the requests, then handed
//! to every thread. One that cannot be used changes nothing, except that it is reported.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::routes::Shared;
use crate::worker::{LoadedModel, Worker};
use crate::{Model, Source};

/// Looks for new models.
pub(crate) struct Watch {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) every: Duration,
    /// Of the model that is served.
    pub(crate) stamp: Option<Vec<u8>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) workers: Vec<Arc<Worker>>,
    pub(crate) log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Watch {
    /// Looks again and again until `stop` is dropped.
    pub(crate) fn run(mut self, stop: &Receiver<()>) {
        let mut reported = None;
        while stop.recv_timeout(self.every) == Err(RecvTimeoutError::Timeout) {
            match self.look() {
                Ok(()) => reported = None,
                Err(reason) => {
                    self.shared.totals.failed_reloads.fetch_add(1, Relaxed);
                    // It may be a model that is still being copied, so it is tried again; the same
                    // words need not be.
                    if reported.as_ref() != Some(&reason) {
                        (self.log)(&format!("new model refused, the old one stays: {reason}"));
                    }
                    reported = Some(reason);
                }
            }
        }
    }

    fn look(&mut self) -> Result<(), String> {
        let stamp = self.source.stamp();
        if stamp.is_none() || stamp == self.stamp {
            return Ok(());
        }
        let model = self.source.open()?;
        let loaded = load(&model, self.workers.len())?;
        let about = model.about();
        for (worker, loaded) in self.workers.iter().zip(loaded) {
            worker.replace(loaded);
        }
        *self.shared.about.lock().unwrap_or_else(PoisonError::into_inner) = about.clone();
        self.shared.totals.reloads.fetch_add(1, Relaxed);
        self.stamp = stamp;
        (self.log)(&format!("new model: {}{}", about.name, about.age()));
        Ok(())
    }
}

/// A scorer for each of `n` threads, tried out.
pub(crate) fn load(model: &Arc<dyn Model>, n: usize) -> Result<Vec<LoadedModel>, String> {
    (0..n).map(|_| LoadedModel::new(model.clone())).collect()
}
