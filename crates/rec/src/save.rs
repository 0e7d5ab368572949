//! Epochs on disk: `<model_save_path>/<epoch>/`, and what a run begins with.

use std::path::{Path, PathBuf};

use regatta_checkpoint::{
    Difference, Encoding, Error as CheckpointError, ModelAbout, ModelSpec, PERSISTABLES_FILE,
    TableRows, load_statistics, load_tensors, save_about, save_model, save_persistables,
};
use regatta_exec::Scope;
use regatta_ir::{Program, VarDef};
use regatta_passes::prune;
use regatta_tensor::Tensor;

use crate::config::InferenceExport;
use crate::network::{Network, inputs};
use crate::{Config, Error};

/// Name of the exported inference model within the folder of its epoch.
pub const INFERENCE_FOLDER: &str = "inference_model";

/// The folder of an epoch.
pub fn epoch_folder(path: &Path, epoch: u64) -> PathBuf {
    path.join(epoch.to_string())
}

/// Saves everything that the training program keeps.
pub(crate) fn save_epoch(
    network: &Network,
    scope: &Scope,
    export: Option<&Export>,
    about: ModelAbout,
    folder: &Path,
) -> Result<(), Error> {
    save_epoch_with(network, |name| scope.get(name), export, about, folder)
}

/// As [`save_epoch`], with values from anywhere.
pub(crate) fn save_epoch_with<'a>(
    network: &Network,
    lookup: impl Fn(&str) -> Option<&'a Tensor> + Copy,
    export: Option<&Export>,
    about: ModelAbout,
    folder: &Path,
) -> Result<(), Error> {
    save_persistables(&network.train.main, lookup, folder)?;
    save_about(folder, &about)?;
    if let Some(export) = export {
        let (feeds, fetches): (Vec<&str>, Vec<&str>) = (
            export.feeds.iter().map(String::as_str).collect(),
            export.fetches.iter().map(String::as_str).collect(),
        );
        let spec = ModelSpec {
            program: &export.program,
            feeds: &feeds,
            fetches: &fetches,
            about,
            encoding: Encoding::F32,
        };
        let whole = |name: &str| match lookup(name) {
            Some(tensor) => Ok(TableRows::Whole(tensor)),
            None => Err(CheckpointError::Model { reason: format!("'{name}' has no value") }),
        };
        save_model(folder.join(INFERENCE_FOLDER), &spec, lookup, whole)?;
    }
    Ok(())
}

/// What an exported model says about itself after so many steps.
pub(crate) fn about(config: &Config, step: u64) -> ModelAbout {
    let (name, config) = (config.model.name.to_string(), config.to_json());
    ModelAbout { name, serial: None, step: Some(step), config }
}

/// An inference model that is exported again and again.
pub(crate) struct Export {
    program: Program,
    feeds: Vec<String>,
    fetches: Vec<String>,
}

impl Export {
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) fn feeds(&self) -> &[String] {
        &self.feeds
    }

    pub(crate) fn fetches(&self) -> &[String] {
        &self.fetches
    }

    /// Prunes the model to the outputs that the configuration names, or to its predictions. PaddleRec
    /// files name outputs by Paddle's own numbering (`sigmoid_0.tmp_0`), which is not ours: such a
    /// name stands for the predictions, and a note says so.
    pub(crate) fn new(
        network: &Network,
        wanted: &InferenceExport,
        note: &mut dyn FnMut(&str),
    ) -> Result<Export, Error> {
        let predictions = || network.outputs.clone();
        let vars = &network.forward.main.block().vars;
        let mut fetches = wanted.fetches.clone().unwrap_or_else(predictions);
        let key = "runner.save_inference_fetch_varnames";
        if let Some(name) = fetches.iter().find(|name| !vars.contains_key(*name)) {
            if !name.contains(".tmp_") {
                let near = regatta_ir::nearest(name, vars.keys().map(String::as_str));
                let hint = near.map(|n| format!("; did you mean '{n}'?")).unwrap_or_default();
                return Err(Error::key(key, format!("the model has no variable '{name}'{hint}")));
            }
            let instead = predictions();
            note(&format!(
                "{key}: '{name}' is a name of Paddle's; exporting the predictions {} instead",
                instead.join(", ")
            ));
            fetches = instead;
        }
        if fetches.is_empty() {
            return Err(Error::key(key, "names nothing"));
        }
        let targets: Vec<&str> = fetches.iter().map(String::as_str).collect();
        let program = prune(&network.forward.main, &targets)?;
        let needed = inputs(&program);
        let key = "runner.save_inference_feed_varnames";
        let feeds = match &wanted.feeds {
            None => needed,
            Some(feeds) => {
                if let Some(name) = feeds.iter().find(|f| !needed.contains(f)) {
                    let reason = format!("'{name}' is no input of the outputs ({needed:?})");
                    return Err(Error::key(key, reason));
                }
                if let Some(name) = needed.iter().find(|n| !feeds.contains(n)) {
                    return Err(Error::key(key, format!("the outputs need '{name}' too")));
                }
                feeds.clone()
            }
        };
        Ok(Export { program, feeds, fetches })
    }
}

/// The variable that holds the learning rate: what the configuration says counts, not what another
/// run was told.
const LEARNING_RATE: &str = "learning_rate_0";

/// Loads what a program keeps from a saved epoch into a scope. State that the file lacks or that has
/// another shape, such as that of another optimizer, stays as it is; its names are returned. With
/// `names`, only these variables are loaded.
///
/// # Errors
/// If a parameter is missing or has another shape, or there is no variable of a name.
pub(crate) fn load_epoch(
    program: &Program,
    scope: &mut Scope,
    folder: &Path,
    names: Option<&[String]>,
) -> Result<Vec<String>, Error> {
    let path = folder.join(PERSISTABLES_FILE);
    let known: Vec<String> =
        program.persistables().map(|v| v.name.clone()).filter(|n| n != LEARNING_RATE).collect();
    if let Some(name) = names.unwrap_or_default().iter().find(|name| !known.contains(name)) {
        let reason = format!("the model has no variable '{name}' (known: {})", known.join(", "));
        return Err(Error::key("runner.init_var_names", reason));
    }
    let wanted = |name: &String| names.is_none_or(|names| names.contains(name));
    if !path.exists() && has_server_parts(folder) {
        return load_servers(program, scope, folder, wanted);
    }
    let mut file = load_tensors(&path)?;
    let (mut differences, mut fresh) = (Vec::new(), Vec::new());
    let vars = program.persistables().filter(|v| v.name != LEARNING_RATE);
    for var in vars.filter(|v| wanted(&v.name)) {
        let expected = var.ty.to_string();
        let name = var.name.clone();
        match file.tensors.remove(&var.name) {
            Some(tensor) if fits(var, &tensor) => scope.set(&name, tensor),
            _ if names.is_none() && var.origin != regatta_ir::Origin::Param => fresh.push(name),
            None => differences.push(Difference::Missing { name, expected }),
            Some(tensor) => {
                let actual = format!("{:?}{:?}", tensor.dtype(), tensor.shape());
                differences.push(Difference::Type { name, expected, actual });
            }
        }
    }
    if differences.is_empty() {
        return Ok(fresh);
    }
    let program = program.name.clone();
    Err(CheckpointError::Mismatch { path, program, differences }.into())
}

/// Whether servers have saved a model here.
pub(crate) fn has_server_parts(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("server-"))
}

/// Loads what servers have saved, to train on: dense parameters whole, and the rows of tables that were trained
/// (other rows keep their first values); and the statistics that a worker has saved beside them.
fn load_servers(
    program: &Program,
    scope: &mut Scope,
    folder: &Path,
    wanted: impl Fn(&String) -> bool,
) -> Result<Vec<String>, Error> {
    let dir = folder.to_string_lossy();
    let fail = |e: regatta_ps::Error| Error::from(regatta_fleet::Error::from(e));
    let names: Vec<String> = program.param_names();
    for name in names.iter().filter(|name| wanted(name)) {
        let Some(tensor) = scope.get_mut(name) else { continue };
        let values = tensor.f32_mut();
        match regatta_ps::storage::load_dense(&dir, name, values.len()) {
            Ok(saved) => values.copy_from_slice(&saved),
            Err(dense) => {
                let dim = program.block().vars[name].ty.shape.last().map_or(1, |&d| d as usize);
                let rows = regatta_ps::storage::load_rows(&dir, name, dim, |key, row| {
                    let at = (key as usize).saturating_mul(dim);
                    if let Some(to) = values.get_mut(at..at.saturating_add(dim)) {
                        to.copy_from_slice(row);
                    }
                });
                // Neither a dense parameter nor a table: the first reason is the one to tell.
                rows.map_err(|_| fail(dense))?;
            }
        }
    }
    let statistics = load_statistics(program, folder)?.into_iter();
    statistics.filter(|(name, _)| wanted(name)).for_each(|(name, tensor)| scope.set(&name, tensor));
    Ok(vec![])
}

fn fits(var: &VarDef, tensor: &Tensor) -> bool {
    let shape = tensor.shape().iter().map(|&d| d as i64);
    tensor.dtype() == var.ty.dtype && shape.eq(var.ty.shape.iter().copied())
}
