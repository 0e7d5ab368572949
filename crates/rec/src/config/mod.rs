//! Configuration in two stages: what was written (`written`: the file and the overrides, each value
//! with its place), then one resolved and checked [`Config`] (`resolve`, section by section with a
//! `resolver`). [`Config`] holds types, no words of the file.
//!
//! [`keys`] lists what a file may hold, with every default; the hyper-parameters of a model are
//! listed by the model.

mod arrivals;
mod checkpoints;
mod distributed;
mod features;
mod formats;
mod gpubox;
mod grouping;
pub mod keys;
mod optimizer;
mod paddle_readers;
mod precision;
mod reading;
mod resolve;
mod resolver;
mod show;
mod tiers;
mod validation;
mod value;
mod written;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use arrivals::{Arrivals, DayTraining, StreamSource, Streaming};
pub use features::FeatureSet;
pub use formats::FormatSpec;
pub use gpubox::{DeviceChoice, DeviceKind, GpuBox};
pub use optimizer::{RULES, SCHEDULES, optimizer_keys};
pub use reading::{PipeCommand, Reader, Reading};
pub use value::Kind;
pub use written::Source;

use crate::zoo::Model;
use crate::{Error, Hyper, HyperValue};
use regatta_features::Learned;
use regatta_fleet::yaml;
use regatta_passes::Optimizer;
use regatta_ps::{Mode, Wire};
use regatta_table::Admission;
use regatta_train::metrics::Grouping;
use regatta_train::tier::Tiers;
use regatta_train::{Checkpointing, Validation};

/// The epochs of a run, in its folder.
pub const EPOCHS: &str = "epochs";

/// The checkpoints of a run, in its folder.
pub const CHECKPOINTS: &str = "checkpoints";

/// A configuration that has been checked as far as that is possible without looking at the data.
#[derive(Clone)]
pub struct Config {
    /// The file, as the user named it.
    pub path: PathBuf,
    /// Its folder, which relative paths start from.
    pub dir: PathBuf,
    /// The model.
    pub model: &'static Model,
    /// Its hyper-parameters.
    pub hyper: Hyper,
    /// Declared features, if its inputs follow from those.
    pub features: Option<Arc<FeatureSet>>,
    /// What updates its parameters.
    pub optimizer: Optimizer,
    /// How it is run.
    pub runner: Runner,
    /// Every value that is set, in the order of sections.
    pub settings: Vec<Setting>,
    /// What was written and has no effect.
    pub ignored: Vec<Ignored>,
}

/// One resolved value.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The key with its section.
    pub key: String,
    /// The value; paths are absolute.
    pub value: HyperValue,
    /// Who set it.
    pub source: Source,
}

/// A key that was written and has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// The key with its section.
    pub key: String,
    /// Where it was written.
    pub source: Source,
    /// Why it has no effect.
    pub reason: String,
}

/// The `runner` section.
#[derive(Debug, Clone, PartialEq)]
pub struct Runner {
    /// Training data.
    pub train: Reading,
    /// Whether training data arrive while training, and how.
    pub arrivals: Option<Arrivals>,
    /// Test data.
    pub test: Reading,
    /// Data passes over the training data.
    pub epochs: u64,
    /// Everything random follows from it.
    pub seed: u64,
    /// What to say where the file asks for a device that this mode does not use.
    pub gpu_warning: Option<String>,
    /// Threads that share each batch.
    pub thread_num: usize,
    /// Begin every epoch with new AUC counters.
    pub use_auc: bool,
    /// Batches between two lines of progress.
    pub print_interval: u64,
    /// Report where the time of every epoch went.
    pub dataset_debug: bool,
    /// Stop at the first NaN or infinity.
    pub check_nan_inf: bool,
    /// Continue when the loss is NaN or infinite.
    pub allow_non_finite_loss: bool,
    /// Refuse a model that needs more memory than is available.
    pub check_memory: bool,
    /// Where offloaded activations wait; else in the system's temporary folder.
    pub offload_dir: Option<PathBuf>,
    /// The folder of the run: what is not named elsewhere is written there.
    pub run_dir: Option<PathBuf>,
    /// Where epochs are saved; in the folder of the run unless the file says something else.
    pub model_save_path: Option<PathBuf>,
    /// The saved epoch to begin with.
    pub model_init_path: Option<PathBuf>,
    /// The variables that are taken from it; all if not said.
    pub init_var_names: Option<Vec<String>>,
    /// Whether and how inference models are exported.
    pub inference: Option<InferenceExport>,
    /// Where saved epochs are evaluated from; where they are saved unless the file says it.
    pub infer_load_path: Option<PathBuf>,
    /// Which of them.
    pub infer_epochs: Range<u64>,
    /// How the examples of an evaluation are divided.
    pub grouping: Grouping,
    /// Data that every epoch is judged by while training, and what follows from it.
    pub validation: Option<(Reading, Validation)>,
    /// Checkpoints, if any are wanted.
    pub checkpoint: Option<Checkpointing>,
    /// What matters when several processes train together.
    pub distributed: Distributed,
}

/// What an exported inference model takes and gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InferenceExport {
    /// Inputs, if the file names them.
    pub feeds: Option<Vec<String>>,
    /// Outputs, if the file names them.
    pub fetches: Option<Vec<String>>,
}

/// Settings of runs with several processes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Distributed {
    /// How workers and servers keep in step.
    pub mode: Mode,
    /// Rows on devices, in memory and on disk, if that is the mode.
    pub gpubox: Option<GpuBox>,
    /// How gradients and values travel between workers and servers.
    pub wire: Wire,
    /// Whether workers and ranks divide the files between them; not set, they divide the data, also
    /// the records of fewer files than workers.
    pub split_file_list: Option<bool>,
    /// Collective training.
    pub use_fleet: bool,
    /// File with the strategy of collective training.
    pub strategy: Option<PathBuf>,
    /// Saved model that servers begin with.
    pub warmup_model_path: Option<PathBuf>,
    /// Which ids become rows of tables.
    pub entry: Admission,
    /// Which tables have rows on disk.
    pub tiers: Tiers,
}

/// The section of kept configurations with what was learned about features.
pub(crate) const LEARNED: &str = "learned_features";

impl Runner {
    /// Where epochs are saved.
    ///
    /// # Errors
    /// If nothing says it.
    pub fn save_path(&self) -> Result<&Path, Error> {
        let reason = "must be set, or runner.run_dir: nothing says where epochs are saved";
        self.model_save_path.as_deref().ok_or_else(|| Error::key("runner.model_save_path", reason))
    }

    /// Where saved epochs are evaluated from.
    ///
    /// # Errors
    /// If nothing says it.
    pub fn load_path(&self) -> Result<&Path, Error> {
        let reason = "must be set, or runner.model_save_path: nothing says where epochs are";
        self.infer_load_path.as_deref().ok_or_else(|| Error::key("runner.infer_load_path", reason))
    }
}

impl Config {
    /// Reads a file, puts overrides (`section.key=value`) on top, and resolves the whole.
    ///
    /// # Errors
    /// [`Error::Config`] with every mistake that was found, each with its place.
    pub fn load(path: impl AsRef<Path>, overrides: &[String]) -> Result<Config, Error> {
        let path = path.as_ref();
        let written = written::Written::load(path, overrides)?;
        resolve::resolve(path, written, &Learned::default())
    }

    /// The configuration that [`Config::to_json`] gave, with overrides on top. Paths in it are
    /// absolute; those of overrides start from the folder of `place`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn from_json(
        tree: &serde_json::Value,
        place: &Path,
        overrides: &[String],
    ) -> Result<Config, Error> {
        if !tree.is_object() {
            let reason = "it does not say what configuration it was trained with";
            return Err(Error::Config(vec![format!("{}: {reason}", place.display())]));
        }
        let learned = tree.get(LEARNED).cloned().map(serde_json::from_value).transpose();
        let learned: Option<Learned> = learned
            .map_err(|e| Error::Config(vec![format!("{}: {LEARNED}: {e}", place.display())]))?;
        let written = written::Written::from_json(tree, overrides)?;
        resolve::resolve(place, written, &learned.unwrap_or_default())
    }

    /// The same with what was learned about its features.
    #[must_use]
    pub fn with_learned(&self, learned: Learned) -> Config {
        let set = self.features.as_ref().map(|set| FeatureSet { learned, ..(**set).clone() });
        let features = set.map(Arc::new);
        Config {
            hyper: self.hyper.clone().with_features(features.clone()),
            features,
            ..self.clone()
        }
    }

    /// Whether a file or an override says something about a key.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn is_written(path: &Path, overrides: &[String], key: &str) -> Result<bool, Error> {
        let entries = written::Written::load(path, overrides)?.entries;
        Ok(entries.iter().any(|e| e.key == key && e.value != written::Text::Raw(String::new())))
    }

    /// The same for another run: without the folder of this one, and what is in it.
    #[must_use]
    pub fn without_run(&self) -> Config {
        let mut other = self.clone();
        let in_run = Source::Derived(resolver::IN_RUN);
        other.settings.retain(|s| s.key != "runner.run_dir" && s.source != in_run);
        other
    }

    /// The value of a key, if it has one.
    pub fn get(&self, key: &str) -> Option<&HyperValue> {
        self.settings.iter().find(|s| s.key == key).map(|s| &s.value)
    }
}
