//! A model on disk, opened once and shared by all threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use regatta_checkpoint::{Encoding, ModelManifest, open_model};
use regatta_features::Transform;
use regatta_ir::Program;
use regatta_passes::{TableExchange, pull_tables};
use regatta_tensor::Tensor;

use crate::mapped::MappedTable;
use crate::{Error, Input, Session};

/// What becomes of ids that have no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingIds {
    /// They count as rows of zeros, and are counted.
    #[default]
    Zero,
    /// They are an error.
    Error,
}

/// How a model is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// What becomes of ids that have no row.
    pub missing_ids: MissingIds,
    /// Threads that share each batch of a session.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { missing_ids: MissingIds::default(), threads: 1 }
    }
}

/// A model that is ready to predict. Clones share everything.
#[derive(Clone)]
pub struct Model {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    /// Takes local rows instead of ids.
    pub(crate) program: Program,
    pub(crate) params: Vec<(String, Tensor)>,
    pub(crate) tables: Vec<(TableExchange, MappedTable)>,
    pub(crate) inputs: Vec<Input>,
    /// Inputs that the program reads as they are.
    pub(crate) direct: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) options: Options,
    /// What makes the inputs of raw values, if features were declared.
    transform: Option<Transform>,
    manifest: ModelManifest,
}

/// What there is to say about a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Number of the checkpoint that it was made of.
    pub serial: Option<u64>,
    /// Steps of training.
    pub step: Option<u64>,
    /// Number of tables.
    pub tables: usize,
    /// Rows of all tables.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Floats of all other parameters.
    pub dense_parameters: u64,
    /// How rows are written.
    pub encoding: Encoding,
}

impl Model {
    /// Opens the model in the directory `path`.
    ///
    /// # Errors
    /// If a file is missing, truncated, changed, foreign or of another version, or the program uses
    /// an op that this version does not have.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::open_with(path, Options::default())
    }

    /// As [`Model::open`], with a say in how it is used.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Model, Error> {
        let path = path.as_ref();
        let opened = open_model(path)?;
        let names: Vec<String> = opened.manifest.tables.iter().map(|t| t.name.clone()).collect();
        let (program, pulls) = pull_tables(&opened.program, &names)?;
        let manifest = &opened.manifest;
        let mapped = manifest.tables.iter().map(|table| MappedTable::open(path, manifest, table));
        let mapped = mapped.collect::<Result<Vec<_>, _>>()?;
        let inputs = opened.feeds.iter().map(|name| Input::of(&opened.program, name));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let is_read = |name: &&String| program.block().vars.contains_key(*name);
        if let Some(input) = inputs.iter().find(|i| i.dims.len() > 1 && !is_read(&&i.name)) {
            let (name, dims) = (&input.name, &input.dims);
            let reason = format!("input '{name}' has ids in dimensions {dims:?}, not in a row");
            return Err(Error::Input(reason));
        }
        let declared = opened.manifest.about.features.as_ref().map(Transform::inputs_from_json);
        let transform = declared.transpose().map_err(|reason| {
            Error::Input(format!("{}: its features make no sense: {reason}", path.display()))
        })?;
        let shared = Shared {
            path: path.to_path_buf(),
            direct: opened.feeds.iter().filter(is_read).cloned().collect(),
            program,
            params: opened.params,
            tables: pulls.into_iter().zip(mapped).collect(),
            inputs,
            outputs: opened.fetches,
            options,
            transform,
            manifest: opened.manifest,
        };
        let model = Model { shared: Arc::new(shared) };
        // A program that cannot be run is found out now, not by the first request.
        model.session()?;
        Ok(model)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// What it takes.
    pub fn inputs(&self) -> &[Input] {
        &self.shared.inputs
    }

    /// Names of what it gives, in the order of scores.
    pub fn outputs(&self) -> &[String] {
        &self.shared.outputs
    }

    /// What makes its inputs of raw values, if its features were declared.
    pub fn transform(&self) -> Option<&Transform> {
        self.shared.transform.as_ref()
    }

    /// What its files say about it.
    pub fn manifest(&self) -> &ModelManifest {
        &self.shared.manifest
    }

    /// What there is to say about it.
    pub fn info(&self) -> Info {
        let manifest = &self.shared.manifest;
        let dense = self.shared.params.iter().map(|(_, tensor)| tensor.numel() as u64);
        Info {
            name: manifest.about.name.clone(),
            serial: manifest.about.serial,
            step: manifest.about.step,
            tables: manifest.tables.len(),
            rows: manifest.tables.iter().map(|table| table.rows).sum(),
            bytes: manifest.files.iter().map(|file| file.bytes).sum(),
            dense_parameters: dense.sum(),
            encoding: manifest.tables.first().map_or(Encoding::F32, |table| table.encoding),
        }
    }

    /// A session for one thread. It keeps its own copy of all parameters but the tables.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub fn session(&self) -> Result<Session, Error> {
        Session::new(self.shared.clone())
    }
}
