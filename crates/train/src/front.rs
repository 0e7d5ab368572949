//! What a front end provides: a run, its data, the files of its models.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use regatta_data::arrivals::{PassPlan, Upcoming};
use regatta_data::{BadLines, Batch, Position, Stages};
use regatta_exec::Scope;
use regatta_ir::Program;
use regatta_optim::Schedule;
use regatta_tensor::Tensor;

use crate::Error;
use crate::backend::Backend;
use crate::checkpoints::Checkpointing;
use crate::metrics::Meter;
use crate::observe::Observer;
use crate::report::EpochReport;
use crate::state::Sharing;
use crate::validation::Validation;

/// What a run does, whoever wrote it down: a YAML file, the Fleet API, a Rust program.
#[derive(Clone)]
pub struct RunSpec {
    /// Name of the model, for the user.
    pub model: String,
    /// The training program, whose hash checkpoints keep.
    pub program: Program,
    /// Data passes.
    pub epochs: u64,
    /// What a step fetches. With `heads`: the loss, then prediction and label of each head.
    pub fetch: Vec<String>,
    /// Whether the loss and heads are among it.
    pub heads: bool,
    /// One for each head.
    pub meters: Vec<Meter>,
    /// Begin every pass with new meters.
    pub reset_meters: bool,
    /// Continue when the loss is NaN or infinite, which is an error otherwise.
    pub allow_non_finite_loss: bool,
    /// Steps between two reports.
    pub print_interval: u64,
    /// Everything random follows from it.
    pub seed: u64,
    /// The base of the learning rate and how it changes, for manifests.
    pub learning_rate: Option<(f64, Schedule)>,
    /// All settings, for the report and the manifests.
    pub settings: serde_json::Value,
    /// Those of the settings, by their names with dots between the parts, without which a run that
    /// resumes would be another one.
    pub fixed: Vec<&'static str>,
    /// Folders that this run alone writes to, beside that of its checkpoints.
    pub folders: Vec<PathBuf>,
    /// How epochs are judged while training, if they are: [`ModelFiles::validate`].
    pub validation: Option<Validation>,
    /// Checkpoints, if there are to be any.
    pub checkpoint: Option<Checkpointing>,
}

/// Batches of one data pass.
pub trait Feed {
    /// The next batch; none at the end of the pass.
    ///
    /// # Errors
    /// If data cannot be read.
    fn next(&mut self) -> Result<Option<Batch>, Error>;

    /// The next batch, if it need not be waited for; none also at the end of the pass.
    ///
    /// # Errors
    /// If data cannot be read.
    fn ready(&mut self) -> Result<Option<Batch>, Error> {
        Ok(None)
    }

    /// A step on this batch is done, with what was fetched. Its memory can be used again.
    ///
    /// # Errors
    /// Whatever should end the training.
    fn done(&mut self, batch: Batch, fetched: &[Tensor]) -> Result<(), Error> {
        let _ = (batch, fetched);
        Ok(())
    }

    /// Where the time of reading has gone so far.
    fn stages(&self) -> Stages {
        Stages::default()
    }

    /// The malformed lines that were skipped so far.
    fn bad_lines(&self) -> BadLines {
        BadLines::default()
    }
}

/// Data that can be read pass by pass.
pub trait Data {
    /// Starts a pass where an earlier one with the same number stood, with the stages of loading.
    ///
    /// # Errors
    /// If data cannot be found or loaded.
    fn begin_pass(
        &mut self,
        epoch: u64,
        from: &Position,
    ) -> Result<(Box<dyn Feed + '_>, Stages), Error>;

    /// Whether data passes are planned one by one, because data arrive while training; then they
    /// end with the data, not after a number of epochs.
    fn arrives(&self) -> bool {
        false
    }

    /// What is trained after a data pass; after none, the first one. Only the first worker calls
    /// it, while the others wait, so it returns within seconds.
    ///
    /// # Errors
    /// If data cannot be found or do not come in time.
    fn next_pass(&mut self, after: Option<&PassPlan>) -> Result<Upcoming, Error> {
        let _ = after;
        Err(Error::Internal("these data are read by epochs".into()))
    }

    /// The data pass of that number is this one from now on.
    ///
    /// # Errors
    /// If its data cannot be read.
    fn follow(&mut self, epoch: u64, plan: &PassPlan) -> Result<(), Error> {
        let _ = (epoch, plan);
        Err(Error::Internal("these data are read by epochs".into()))
    }

    /// Whether this process can read the shard of any other worker: [`Data::shard`].
    fn reads_all_shards(&self) -> bool {
        false
    }

    /// The data of another worker, for a worker that takes them over.
    ///
    /// # Errors
    /// If they cannot be found, or only their own worker can read them.
    fn shard(&self, worker: usize) -> Result<Box<dyn Data>, Error> {
        let why = "only their own worker can read them";
        Err(Error::Lost(format!("the data of worker {worker} cannot be taken over: {why}")))
    }

    /// What the data are, for a run that resumes: positions in other data mean nothing.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Examples of a pass, as far as that can be known beforehand.
    fn examples(&self) -> Option<u64> {
        None
    }

    /// How workers share them.
    fn sharing(&self) -> Sharing {
        Sharing::Mixed
    }
}

impl<D: regatta_data::Dataset> Data for D {
    fn begin_pass(
        &mut self,
        epoch: u64,
        from: &Position,
    ) -> Result<(Box<dyn Feed + '_>, Stages), Error> {
        Ok((Box::new(self.resume(epoch, from)?), Stages::default()))
    }
}

/// Files of models, which belong to the front end.
pub trait ModelFiles {
    /// Loads what training begins with instead of initial values. True if servers have loaded all
    /// dense parameters. Every worker calls it.
    ///
    /// # Errors
    /// If a file does not fit.
    fn load_initial(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        note: &mut dyn FnMut(&str),
    ) -> Result<bool, Error> {
        let _ = (backend, scope, note);
        Ok(false)
    }

    /// Tries whether models can be saved, before any data is read. Only the first worker calls it.
    ///
    /// # Errors
    /// If they cannot, here or on a server's machine.
    fn try_targets(&mut self, backend: &dyn Backend) -> Result<(), Error> {
        let _ = backend;
        Ok(())
    }

    /// Whether the model of a data pass is there already.
    fn is_saved(&self, epoch: u64) -> bool {
        let _ = epoch;
        true
    }

    /// Saves the model after a data pass, if one is due; says where. Over data that arrive while
    /// training it is also called before the first pass and after the last one. Only the first
    /// worker calls it, while the others wait.
    ///
    /// # Errors
    /// If it cannot be written.
    fn save(
        &mut self,
        model: &TrainedModel<'_>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<PathBuf>, Error> {
        let _ = (model, note);
        Ok(None)
    }

    /// Judges the model of a data pass that was saved to `folder`, on the validation data. Only
    /// the first worker calls it, while the others wait.
    ///
    /// # Errors
    /// If there are no such data, or they cannot be read.
    fn validate(
        &mut self,
        epoch: u64,
        folder: &Path,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, Error> {
        let _ = (folder, observer);
        Err(Error::Config(format!("there are no validation data for epoch {epoch}")))
    }

    /// The epoch saved to `folder` is the best one so far.
    ///
    /// # Errors
    /// If that cannot be written down.
    fn is_best(&mut self, epoch: u64) -> Result<(), Error> {
        let _ = epoch;
        Ok(())
    }
}

/// No files.
impl ModelFiles for () {}

/// A model between two data passes.
pub struct TrainedModel<'a> {
    /// The pass that is over.
    pub epoch: u64,
    /// When this is.
    pub moment: SaveMoment<'a>,
    /// Steps since training began.
    pub step: u64,
    /// What this process has.
    pub scope: &'a Scope,
    /// Optimizer states that other ranks keep.
    pub states: HashMap<String, Tensor>,
    /// Who has the rest.
    pub backend: &'a dyn Backend,
}

/// When a model is saved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SaveMoment<'a> {
    /// After an epoch.
    Epoch,
    /// Data arrive while training: before this data pass, which is the first one.
    Before(&'a PassPlan),
    /// After this data pass, of that many examples.
    After(&'a PassPlan, u64),
    /// The data have ended.
    End,
}

impl TrainedModel<'_> {
    /// A variable, wherever it is kept; none if servers have it.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.states.get(name).or_else(|| self.scope.get(name))
    }
}
