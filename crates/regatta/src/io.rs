//! Save and load what a [`Scope`] holds, and predict with a saved model.

use std::path::Path;

use regatta_exec::Scope;
use regatta_ir::Program;
use regatta_predict::{Model, Options, Session};
use regatta_tensor::{Tensor, Value};

/// A save or load that did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The files, or what should go into them.
    #[error(transparent)]
    Checkpoint(#[from] regatta_checkpoint::Error),
    /// The program cannot be pruned to the outputs.
    #[error(transparent)]
    Program(#[from] regatta_ir::Error),
    /// The saved model cannot be used, or not on this batch.
    #[error(transparent)]
    Predict(#[from] regatta_predict::Error),
}

/// Saves everything that `program` keeps (parameters, optimizer state, statistics) to
/// `dir/persistables.safetensors`, to the bit.
///
/// # Errors
/// If the scope lacks a value or the file cannot be written; an old file then stays.
pub fn save_persistables(
    program: &Program,
    scope: &Scope,
    dir: impl AsRef<Path>,
) -> Result<(), Error> {
    Ok(regatta_checkpoint::save_persistables(program, |name| scope.get(name), dir)?)
}

/// Loads what [`save_persistables`] wrote. Training continues from there as if it had never
/// stopped.
///
/// # Errors
/// If the file is missing or damaged or does not fit the program; the scope is then as before.
pub fn load_persistables(
    program: &Program,
    scope: &mut Scope,
    dir: impl AsRef<Path>,
) -> Result<(), Error> {
    for (name, tensor) in regatta_checkpoint::load_persistables(program, dir)? {
        scope.set(&name, tensor);
    }
    Ok(())
}

/// Saves the part of `program` that makes `fetches` from `feeds`, in inference form, with its
/// parameters, as the directory `dir`. [`Predictor::load`] reads it.
///
/// # Errors
/// If an output is unknown, the outputs need other inputs than `feeds`, the scope lacks a value, or
/// something cannot be written; an old model then stays.
pub fn save_inference_model(
    dir: impl AsRef<Path>,
    program: &Program,
    feeds: &[&str],
    fetches: &[&str],
    scope: &Scope,
) -> Result<(), Error> {
    let pruned = regatta_passes::prune(program, fetches)?;
    let lookup = |name: &str| scope.get(name);
    Ok(regatta_checkpoint::save_inference_model(dir, &pruned, feeds, fetches, lookup)?)
}

/// A saved model in one thread, ready to predict. For several threads, see [`Model`].
pub struct Predictor {
    model: Model,
    session: Session,
    feeds: Vec<String>,
}

impl Predictor {
    /// Loads a model that [`save_inference_model`] or `regatta export` wrote, to run on one thread.
    ///
    /// # Errors
    /// If a file is missing or damaged, or the program uses an op that this version does not have.
    pub fn load(dir: impl AsRef<Path>) -> Result<Predictor, Error> {
        Predictor::load_with(dir, Options::default())
    }

    /// As [`Predictor::load`], with options.
    ///
    /// # Errors
    /// As [`Predictor::load`].
    pub fn load_with(dir: impl AsRef<Path>, options: Options) -> Result<Predictor, Error> {
        let model = Model::open_with(dir, options)?;
        let session = model.session()?;
        let feeds = model.inputs().iter().map(|input| input.name.clone()).collect();
        Ok(Predictor { model, session, feeds })
    }

    /// Names of the inputs.
    pub fn feeds(&self) -> &[String] {
        &self.feeds
    }

    /// Names of the outputs.
    pub fn fetches(&self) -> &[String] {
        self.model.outputs()
    }

    /// The outputs for a batch, in the order of [`Predictor::fetches`].
    ///
    /// # Errors
    /// If an input is missing, unknown, or of another type or shape.
    pub fn predict(&mut self, feeds: &[(&str, &Value)]) -> Result<Vec<Tensor>, Error> {
        Ok(self.session.score(feeds)?.to_vec())
    }
}
