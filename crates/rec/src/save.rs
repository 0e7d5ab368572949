//! Epochs on disk: `<model_save_path>/<epoch>/`, and what a run begins with.

use std::path::{Path, PathBuf};

use regatta_checkpoint::server_parts::{self, ServerParts};
use regatta_checkpoint::{
    Difference, Encoding, Error as CheckpointError, ModelAbout, ModelSpec, PERSISTABLES_FILE,
    TableRows, load_about, load_checked, load_statistics, not_finite, publish_epoch, publish_link,
    save_about, save_model, save_persistables, save_statistics, try_epoch, try_link,
};
use regatta_exec::Scope;
use regatta_ir::{Program, VarDef};
use regatta_passes::prune;
use regatta_ps::Client;
use regatta_table::SaveMode;
use regatta_tensor::Tensor;
use regatta_train::observe::Observer;
use regatta_train::report::EpochReport;
use regatta_train::{
    Backend, Error as TrainError, ModelFiles, TrainedModel, save_parts, try_target,
};

use crate::arriving_saves::StreamSaves;
use crate::config::InferenceExport;
use crate::data::transform;
use crate::donefile::LastModel;
use crate::export::{ModelSource, export};
use crate::infer::Validator;
use crate::network::{Network, inputs};
use crate::{Config, Error};

/// Name of the exported inference model within the folder of its epoch.
pub const INFERENCE_FOLDER: &str = "inference_model";

/// The folder of an epoch.
pub fn epoch_folder(path: &Path, epoch: u64) -> PathBuf {
    path.join(epoch.to_string())
}

/// Files of a configuration's models.
pub(crate) struct Files<'a> {
    pub(crate) config: &'a Config,
    pub(crate) network: &'a Network,
    /// Where epochs are saved.
    pub(crate) root: &'a Path,
    /// The inference model that is exported with every epoch.
    pub(crate) export: Option<Export>,
    /// Judges epochs by validation data.
    pub(crate) validator: Option<Validator>,
    /// The saved model that training by days continues with.
    pub(crate) last: Option<LastModel>,
    /// What was saved of data that arrive.
    pub(crate) stream: StreamSaves,
}

/// The link to the epoch that is the best by the validation data.
const BEST: &str = "best";

impl ModelFiles for Files<'_> {
    fn load_initial(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        note: &mut dyn FnMut(&str),
    ) -> Result<bool, TrainError> {
        if let Some(last) = self.last.as_ref().filter(|_| backend.worker() == 0) {
            note(&last.describe());
        }
        let loaded = match backend.client() {
            Some(client) => self.load_to_servers(client, scope),
            None => self.load_here(&backend.kept(), scope, note).map(|()| false),
        };
        loaded.map_err(Error::in_loop)
    }

    fn try_targets(&mut self, backend: &dyn Backend) -> Result<(), TrainError> {
        let root = self.root;
        try_target(backend, root)?;
        // Folders that are there already will be replaced.
        for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
            let epoch = entry.file_name().to_string_lossy().parse::<u64>().ok();
            if epoch.is_some_and(|epoch| epoch < self.config.runner.epochs) {
                try_epoch(&entry.path())?;
            }
        }
        if self.validator.is_some() {
            try_link(&root.join(BEST))?;
        }
        Ok(())
    }

    fn is_saved(&self, epoch: u64) -> bool {
        epoch_folder(self.root, epoch).is_dir()
    }

    fn save(
        &mut self,
        model: &TrainedModel<'_>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<PathBuf>, TrainError> {
        if let Some(arrivals) = &self.config.runner.arrivals {
            return self.save_arriving(arrivals, model, note).map_err(Error::in_loop);
        }
        let folder = epoch_folder(self.root, model.epoch);
        let saved = self.save_as(SaveMode::All, model, &folder, note);
        saved.map(|()| Some(folder)).map_err(Error::in_loop)
    }

    fn validate(
        &mut self,
        epoch: u64,
        folder: &Path,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, TrainError> {
        let Some(validator) = &mut self.validator else {
            return Err(TrainError::Internal("only the first worker validates".into()));
        };
        validator.run(self.network, epoch, folder, observer).map_err(Error::in_loop)
    }

    fn is_best(&mut self, epoch: u64) -> Result<(), TrainError> {
        Ok(publish_link(&self.root.join(BEST), &epoch.to_string())?)
    }
}

impl Files<'_> {
    /// Takes what this process keeps from `model_init_path`.
    fn load_here(
        &self,
        kept: &[String],
        scope: &mut Scope,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        let last = self.last.as_ref().map(|last| &last.folder);
        let init = last.or(self.config.runner.model_init_path.as_ref());
        let Some(folder) = init else { return Ok(()) };
        // States that only other ranks keep would only take memory.
        let mut own = Program::new("kept");
        for var in self.network.train.main.persistables().filter(|v| kept.contains(&v.name)) {
            own.block_mut().declare(var.clone())?;
        }
        let names = self.config.runner.init_var_names.as_deref().filter(|_| self.last.is_none());
        let fresh = load_epoch(&own, scope, folder, names)?;
        if let Some(first) = fresh.first() {
            let (folder, n) = (folder.display(), fresh.len());
            note(&format!("{folder}: has no {first} ({n} in all); training begins with new ones"));
        }
        Ok(())
    }

    /// Lets servers load a saved model. True if it is whole: servers then keep what they have
    /// loaded.
    fn load_to_servers(&self, client: &Client, scope: &mut Scope) -> Result<bool, Error> {
        let runner = &self.config.runner;
        let last = self.last.as_ref().map(|last| &last.folder);
        let init = last.or(runner.distributed.warmup_model_path.as_ref());
        let Some(dir) = init.or(runner.model_init_path.as_ref()) else { return Ok(false) };
        let names = runner.init_var_names.as_deref().filter(|_| self.last.is_none());
        if client.worker() == 0 {
            client.load(&dir.to_string_lossy(), names.unwrap_or_default())?;
        }
        // Statistics are not on servers: every worker begins with those that were saved.
        if has_server_parts(dir) {
            load_about(dir)?;
            let wanted = |name: &String| names.is_none_or(|names| names.contains(name));
            for (name, tensor) in load_statistics(&self.network.forward.main, dir)? {
                if wanted(&name) {
                    scope.set(&name, tensor);
                }
            }
        }
        Ok(names.is_none())
    }

    /// Refuses values that are no numbers, which would take the place of a good epoch.
    fn check_finite(
        &self,
        model: &TrainedModel<'_>,
        find: impl FnOnce() -> Result<Option<String>, Error>,
    ) -> Result<(), Error> {
        if self.config.runner.allow_non_finite_loss {
            return Ok(());
        }
        let (epoch, step) = (model.epoch, model.step);
        match find()? {
            None => Ok(()),
            Some(variable) => Err(TrainError::NonFiniteValue { epoch, step, variable }.into()),
        }
    }

    /// Saves a model to a folder. Only servers can leave rows out.
    pub(crate) fn save_as(
        &self,
        mode: SaveMode,
        model: &TrainedModel<'_>,
        folder: &Path,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        match model.backend.client() {
            Some(_) => self.save_by_servers(mode, model, folder, note),
            None => self.save_here(model, folder),
        }
    }

    /// Saves everything that the training program keeps.
    fn save_here(&self, model: &TrainedModel<'_>, folder: &Path) -> Result<(), Error> {
        let main = &self.network.train.main;
        self.check_finite(model, || Ok(not_finite(main, |name| model.get(name))))?;
        let about = about_of(self.config, Some(model.step));
        let fill = |temp: &Path| {
            save_persistables(&self.network.train.main, |name| model.get(name), temp)?;
            save_about(temp, &about)?;
            self.export_here(model, &temp.join(INFERENCE_FOLDER), about)
        };
        Ok(publish_epoch(folder, |temp| fill(temp).map_err(|error| error.moved(temp, folder)))?)
    }

    /// Exports the inference model, if there is to be one.
    fn export_here(
        &self,
        model: &TrainedModel<'_>,
        to: &Path,
        about: ModelAbout,
    ) -> Result<(), CheckpointError> {
        let Some(export) = &self.export else { return Ok(()) };
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
        let whole = |name: &str| match model.get(name) {
            Some(tensor) => Ok(TableRows::Whole(tensor)),
            None => Err(CheckpointError::Model { reason: format!("'{name}' has no value") }),
        };
        save_model(to, &spec, |name| model.get(name), whole)?;
        Ok(())
    }

    /// Lets the servers save an epoch. The folder appears when all of them have written their part.
    fn save_by_servers(
        &self,
        mode: SaveMode,
        model: &TrainedModel<'_>,
        folder: &Path,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        let config = self.config;
        publish_epoch(folder, |temp| {
            save_parts(model.backend, temp, mode)?;
            server_parts::check_arrived(temp)?;
            self.check_finite(model, || Ok(server_parts::not_finite(temp)?))?;
            save_about(temp, &about_of(config, Some(model.step)))?;
            let forward = &self.network.forward.main;
            save_statistics(forward, |name| model.scope.get(name), temp)?;
            // A delta alone predicts nothing.
            if config.runner.inference.is_some() && mode != SaveMode::Delta {
                let to = temp.join(INFERENCE_FOLDER);
                export(&ModelSource::open(temp)?, config, &to, Encoding::F32, note)?;
            }
            Ok(())
        })
    }
}

/// The description of a model after N steps, if these are known.
pub(crate) fn about_of(config: &Config, step: Option<u64>) -> ModelAbout {
    let features = transform(config).ok().map(|transform| transform.to_json());
    let (name, config) = (config.model.name.to_string(), config.to_json());
    ModelAbout { name, serial: None, step, config, features }
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

    /// Prunes the model to the outputs that the configuration names, or to its predictions.
    /// PaddleRec files name outputs by Paddle's own numbering (`sigmoid_0.tmp_0`), which is not
    /// ours: such a name stands for the predictions, and a note says so.
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
/// run had.
const LEARNING_RATE: &str = "learning_rate_0";

/// Loads what a program keeps from a saved epoch into a scope. State that the file lacks or that
/// has another shape, such as that of another optimizer, stays as it is; its names are returned.
/// With `names`, only these variables are loaded.
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
    // Whatever it says: a damaged folder is not to be trained on.
    load_about(folder)?;
    if !path.exists() && has_server_parts(folder) {
        return load_servers(program, scope, folder, wanted);
    }
    let mut file = load_checked(&path)?;
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
    entries.into_iter().any(|e| server_parts::is_part(&e.file_name().to_string_lossy()))
}

/// Loads what servers have saved, to train on: dense parameters whole, and the rows of tables that
/// were trained (other rows keep their initial values); and the statistics that a worker has saved
/// beside them.
fn load_servers(
    program: &Program,
    scope: &mut Scope,
    folder: &Path,
    wanted: impl Fn(&String) -> bool,
) -> Result<Vec<String>, Error> {
    let names: Vec<String> = program.param_names();
    let parts = ServerParts::open(folder)?;
    for name in names.iter().filter(|name| wanted(name)) {
        let Some(tensor) = scope.get_mut(name) else { continue };
        let values = tensor.f32_mut();
        match parts.dense(name, values.len()) {
            Ok(saved) => values.copy_from_slice(&saved),
            Err(dense) => {
                let dim = program.block().vars[name].ty.shape.last().map_or(1, |&d| d as usize);
                let rows = parts.rows(name, dim, |key, row| {
                    let at = (key as usize).saturating_mul(dim);
                    if let Some(to) = values.get_mut(at..at.saturating_add(dim)) {
                        to.copy_from_slice(row);
                    }
                });
                // Neither a dense parameter nor a table: the first reason is the one to report.
                rows.map_err(|_| dense)?;
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
