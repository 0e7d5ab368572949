//! A worker's own part of a checkpoint: what servers do not have, written while it trains on.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use regatta_checkpoint::{Metadata, Part, write_tensors};
use regatta_tensor::Tensor;

use crate::Error;
use crate::backend::Backend;

/// Name of the part of a checkpoint that holds what one worker keeps for itself.
pub fn worker_part(worker: usize, workers: usize) -> String {
    format!("worker-{worker}-of-{workers}.safetensors")
}

/// The part being written, if there is one.
#[derive(Default)]
pub(crate) struct OwnPart {
    writer: Option<JoinHandle<Result<Part, regatta_checkpoint::Error>>>,
}

impl OwnPart {
    /// Begins to write the tensors; none may be in flight.
    pub(crate) fn begin(
        &mut self,
        backend: &dyn Backend,
        dir: &Path,
        tensors: Vec<(String, Tensor)>,
    ) -> Result<(), Error> {
        let name = worker_part(backend.worker(), backend.workers());
        let dir = PathBuf::from(dir);
        let write = move || {
            let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
            write_tensors(&dir, &name, named, &Metadata::new())
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write);
        self.writer = Some(thread.map_err(Error::Thread)?);
        Ok(())
    }

    /// Reports the part if it is written; never waits.
    pub(crate) fn poll(&mut self, backend: &mut dyn Backend) -> Result<(), Error> {
        match &self.writer {
            Some(writer) if writer.is_finished() => self.finish(backend),
            _ => Ok(()),
        }
    }

    /// Waits until the part is written, and reports it.
    pub(crate) fn finish(&mut self, backend: &mut dyn Backend) -> Result<(), Error> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let written = match writer.join() {
            Ok(written) => written.map_err(|e| e.to_string()),
            Err(_) => Err("the thread that writes a worker's part has panicked".to_string()),
        };
        backend.report_part(written)
    }
}
