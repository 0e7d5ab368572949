//! What a worker's loop asks of whoever runs it, and a worker's own part of a checkpoint.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use regatta_checkpoint::{Metadata, Part, write_tensors};
use regatta_data::Batch;
use regatta_ps::message::CutTaken;
use regatta_ps::{Client, CutOrder};
use regatta_tensor::Tensor;

use super::input::Input;
use crate::Error;

/// Whoever runs a worker's loop: it reads batches, looks at steps, and decides about checkpoints.
pub trait Run {
    /// The next batch; none at the end of the pass.
    ///
    /// # Errors
    /// If data cannot be read.
    fn next(&mut self) -> Result<Option<Batch>, Error>;

    /// A step is done. Worker 0 may ask for a checkpoint: all
    /// workers then come to a cut after this step in sync mode, soon after it in others.
    ///
    /// # Errors
    /// Whatever should end the training.
    fn on_step(
        &mut self,
        client: &Client,
        fetched: &[Tensor],
        batch: Batch,
    ) -> Result<Option<CutOrder>, Error>;

    /// Nothing is under way after this many steps: what this worker needs to go on from here, beside
    /// what the loop keeps itself.
    ///
    /// # Errors
    /// Whatever should end the training.
    fn at_cut(&mut self, step: u64) -> Result<String, Error> {
        let _ = step;
        Ok(String::new())
    }

    /// A cut was taken, for which this worker has stood still so long.
    ///
    /// # Errors
    /// Whatever should end the training.
    fn cut_taken(&mut self, client: &Client, cut: CutTaken, stall: Duration) -> Result<(), Error> {
        let _ = (client, cut, stall);
        Ok(())
    }
}

/// A run from two closures, without checkpoints.
pub(super) struct Closures<N, S> {
    pub(super) next: N,
    pub(super) on_step: S,
}

impl<N, S> Run for Closures<N, S>
where
    N: FnMut() -> Result<Option<Batch>, Error>,
    S: FnMut(usize, &[Tensor], Batch) -> Result<(), Error>,
{
    fn next(&mut self) -> Result<Option<Batch>, Error> {
        (self.next)()
    }

    fn on_step(
        &mut self,
        _: &Client,
        fetched: &[Tensor],
        batch: Batch,
    ) -> Result<Option<CutOrder>, Error> {
        (self.on_step)(batch.examples(), fetched, batch).map(|()| None)
    }
}

/// What there is to read.
pub(super) enum Next {
    Batch(Input),
    /// Nothing now; the pass goes on later.
    Later,
    End,
}

/// Who drives the loop: a [`Run`] over a reader, or a program that trains step by step.
pub(super) trait Caller {
    fn next(&mut self) -> Result<Next, Error>;
    fn on_step(
        &mut self,
        client: &Client,
        fetched: &[Tensor],
        input: Input,
    ) -> Result<Option<CutOrder>, Error>;
    /// Who speaks for the worker in cuts.
    fn run(&mut self) -> &mut dyn Run;
}

/// A run over a reader.
pub(super) struct Reading<'a>(pub(super) &'a mut dyn Run);

impl Caller for Reading<'_> {
    fn next(&mut self) -> Result<Next, Error> {
        Ok(self.0.next()?.map_or(Next::End, |batch| Next::Batch(Input::Batch(batch))))
    }

    fn on_step(
        &mut self,
        client: &Client,
        fetched: &[Tensor],
        input: Input,
    ) -> Result<Option<CutOrder>, Error> {
        match input {
            Input::Batch(batch) => self.0.on_step(client, fetched, batch),
            Input::Feeds(_) => Ok(None),
        }
    }

    fn run(&mut self) -> &mut dyn Run {
        self.0
    }
}

/// One batch that is given by name, or the end of such a pass.
pub(super) struct OneStep {
    pub(super) input: Option<Input>,
    pub(super) result: Vec<Tensor>,
    pub(super) ends: bool,
}

impl Caller for OneStep {
    fn next(&mut self) -> Result<Next, Error> {
        let nothing = if self.ends { Next::End } else { Next::Later };
        Ok(self.input.take().map_or(nothing, Next::Batch))
    }

    fn on_step(
        &mut self,
        _: &Client,
        fetched: &[Tensor],
        _: Input,
    ) -> Result<Option<CutOrder>, Error> {
        self.result = fetched.to_vec();
        Ok(None)
    }

    fn run(&mut self) -> &mut dyn Run {
        self
    }
}

/// A program that trains step by step keeps its own place in its data.
impl Run for OneStep {
    fn next(&mut self) -> Result<Option<Batch>, Error> {
        Ok(None)
    }

    fn on_step(&mut self, _: &Client, _: &[Tensor], _: Batch) -> Result<Option<CutOrder>, Error> {
        Ok(None)
    }
}

/// Name of the part of a checkpoint that holds what one worker keeps for itself.
pub fn worker_part(worker: usize, workers: usize) -> String {
    format!("worker-{worker}-of-{workers}.safetensors")
}

/// Writes a worker's own part of a checkpoint while it trains on.
#[derive(Default)]
pub(super) struct OwnPart {
    writer: Option<JoinHandle<Result<Part, regatta_checkpoint::Error>>>,
}

impl OwnPart {
    /// Begins to write the tensors.
    pub(super) fn begin(
        &mut self,
        client: &Client,
        dir: &str,
        tensors: Vec<(String, Tensor)>,
    ) -> Result<(), Error> {
        self.finish(client)?;
        let (dir, name) = (PathBuf::from(dir), worker_part(client.worker(), client.workers()));
        let write = move || {
            let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
            write_tensors(Path::new(&dir), &name, named, &Metadata::new())
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write);
        let failed = |e| Error::Config(format!("cannot start a thread: {e}"));
        self.writer = Some(thread.map_err(failed)?);
        Ok(())
    }

    /// Reports the part if it is written; never waits.
    pub(super) fn poll(&mut self, client: &Client) -> Result<(), Error> {
        match &self.writer {
            Some(writer) if writer.is_finished() => self.finish(client),
            _ => Ok(()),
        }
    }

    /// Waits until the part is written, and reports it.
    pub(super) fn finish(&mut self, client: &Client) -> Result<(), Error> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let written = match writer.join() {
            Ok(written) => written.map_err(|e| e.to_string()),
            Err(_) => Err("the thread that writes a worker's part has panicked".to_string()),
        };
        Ok(client.own_part(written)?)
    }
}
