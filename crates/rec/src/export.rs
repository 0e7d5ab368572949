//! Trained models become models that predict: a checkpoint or a saved epoch, of one process or of
//! any number of servers, becomes one directory with everything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use regatta_checkpoint::server_parts::ServerParts;
use regatta_checkpoint::{
    Checkpoint, CheckpointDir, EachRow, Encoding, Error as CheckpointError, MANIFEST_FILE,
    ModelAbout, ModelManifest, ModelSpec, PERSISTABLES_FILE, RowBody, SavedTable, TableRows,
    load_about, load_checked, load_statistics, lookup_tables, save_model,
};
use regatta_ir::Program;
use regatta_table::row_order;
use regatta_tensor::Tensor;

use crate::config::InferenceExport;
use crate::network::Network;
use crate::save::{Export, about_of, has_server_parts};
use crate::{Config, Error};

/// A trained model on disk.
pub enum ModelSource {
    /// A checkpoint, with its configuration.
    Checkpoint(Box<Checkpoint>),
    /// The folder of a saved epoch of one process, and what it says about itself.
    Epoch(PathBuf, Option<Box<ModelAbout>>),
    /// The folder of a saved epoch of servers, their parts, and what it says about itself.
    Parts(PathBuf, ServerParts, Option<Box<ModelAbout>>),
}

impl ModelSource {
    /// What a path means: a checkpoint, a directory of checkpoints (the newest of them), or the
    /// folder of a saved epoch.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn open(path: &Path) -> Result<ModelSource, Error> {
        if path.join(MANIFEST_FILE).exists() {
            return Ok(ModelSource::Checkpoint(Box::new(Checkpoint::open(path)?)));
        }
        if path.join(PERSISTABLES_FILE).exists() {
            let about = load_about(path)?.map(Box::new);
            return Ok(ModelSource::Epoch(path.to_path_buf(), about));
        }
        if has_server_parts(path) {
            let about = load_about(path)?.map(Box::new);
            return Ok(ModelSource::Parts(path.to_path_buf(), ServerParts::open(path)?, about));
        }
        if path.is_dir()
            && let Some(newest) = CheckpointDir::open(path).newest_complete()?
        {
            return Ok(ModelSource::Checkpoint(Box::new(Checkpoint::open(newest.path)?)));
        }
        let reason = "there is no checkpoint, no saved epoch and no model";
        Err(Error::resume(format!("{}: {reason}", path.display())))
    }

    /// The configuration that it was trained with, if it says so; `overrides` go on top.
    ///
    /// # Errors
    /// If that configuration means nothing to this version.
    pub fn config(&self, overrides: &[String]) -> Result<Option<Config>, Error> {
        match self {
            ModelSource::Checkpoint(c) => {
                Config::from_json(&c.manifest().config, c.path(), overrides).map(Some)
            }
            ModelSource::Epoch(path, about) | ModelSource::Parts(path, _, about) => about
                .as_ref()
                .map(|about| Config::from_json(&about.config, path, overrides))
                .transpose(),
        }
    }

    fn about(&self, config: &Config) -> ModelAbout {
        let progress = match self {
            ModelSource::Checkpoint(c) => {
                (Some(c.manifest().serial), Some(c.manifest().progress.global_step))
            }
            ModelSource::Epoch(_, about) | ModelSource::Parts(_, _, about) => {
                (None, about.as_ref().and_then(|about| about.step))
            }
        };
        let (serial, step) = progress;
        ModelAbout { serial, ..about_of(config, step) }
    }

    /// The values of a program's persistables that are not tables of servers.
    pub(crate) fn dense(&self, program: &Program) -> Result<BTreeMap<String, Tensor>, Error> {
        match self {
            ModelSource::Checkpoint(c) => checkpoint_dense(c, program),
            ModelSource::Epoch(folder, _) => {
                Ok(load_checked(folder.join(PERSISTABLES_FILE))?.tensors)
            }
            ModelSource::Parts(folder, parts, _) => parts_dense(folder, parts, program),
        }
    }

    /// Ids and rows of a table, in order of ids, however it was saved; and the other parameters.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub(crate) fn table(
        &self,
        dense: &BTreeMap<String, Tensor>,
        name: &str,
        dim: usize,
    ) -> Result<(Vec<u64>, Vec<f32>), Error> {
        if let Some(tensor) = dense.get(name) {
            let values = tensor.f32().to_vec();
            return Ok(((0..(values.len() / dim) as u64).collect(), values));
        }
        let mut rows: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        self.rows(name, dim)?(&mut |id, row| {
            rows.insert(id, row.to_vec());
            Ok(())
        })?;
        Ok((rows.keys().copied().collect(), rows.into_values().flatten().collect()))
    }

    /// The rows of a table that servers have saved.
    fn rows<'a>(&self, name: &str, dim: usize) -> Result<EachRow<'a>, Error> {
        match self {
            ModelSource::Checkpoint(c) => {
                let table = c.table(name)?;
                check_weights(c, &table, dim)?;
                Ok(Box::new(move |put| {
                    table.for_each(|row| match row.body {
                        RowBody::Base(words) | RowBody::Extended(words) => {
                            put(row.key, &words[..dim])
                        }
                        // It waits for admission: it has no row yet.
                        RowBody::Candidate { .. } => Ok(()),
                    })
                }))
            }
            ModelSource::Epoch(folder, _) => {
                let folder = folder.display();
                Err(Error::resume(format!("{folder}: it holds no table '{name}'")))
            }
            ModelSource::Parts(_, parts, _) => {
                let mut rows: Vec<(u64, Vec<f32>)> = Vec::new();
                let collect = |key: u64, row: &[f32]| rows.push((key, row.to_vec()));
                parts.rows(name, dim, collect)?;
                rows.sort_by_key(|(key, _)| row_order(*key));
                Ok(Box::new(move |put| rows.iter().try_for_each(|(key, row)| put(*key, row))))
            }
        }
    }
}

/// Rows of a table begin with the weights that the program looks up.
fn check_weights(c: &Checkpoint, table: &SavedTable, dim: usize) -> Result<(), Error> {
    match table.parts().first() {
        Some((part, n)) if part == "weight" && *n == dim => Ok(()),
        first => {
            let (path, name) = (c.path().display(), table.name());
            let first = first.map_or("nothing".into(), |(part, n)| format!("{part} {n}"));
            Err(Error::resume(format!(
                "{path}: rows of table '{name}' begin with {first}, not with weight {dim}"
            )))
        }
    }
}

/// Puts together what servers hold partitions of, and adds what the first worker keeps for itself.
fn checkpoint_dense(c: &Checkpoint, program: &Program) -> Result<BTreeMap<String, Tensor>, Error> {
    let mut all = BTreeMap::new();
    let mut partitions: BTreeMap<String, Vec<(usize, Vec<f32>)>> = BTreeMap::new();
    for part in c.tensor_parts() {
        let other_worker = part.name.starts_with("worker-") && !part.name.starts_with("worker-0-");
        if other_worker {
            continue;
        }
        for (name, tensor) in c.tensors(&part.name)?.tensors {
            match piece_of(&name) {
                Some((param, offset, "weights")) => {
                    let partition = (offset, tensor.f32().to_vec());
                    partitions.entry(param.to_string()).or_default().push(partition);
                }
                Some(_) => {}
                None => drop(all.insert(name, tensor)),
            }
        }
    }
    for (name, mut partitions) in partitions {
        let Some(var) = program.block().vars.get(&name) else { continue };
        let shape: Vec<usize> = var.ty.shape.iter().map(|&d| d.max(0) as usize).collect();
        partitions.sort_by_key(|(offset, _)| *offset);
        let mut values: Vec<f32> = Vec::with_capacity(shape.iter().product());
        let whole = partitions.iter().all(|(offset, partition)| {
            let follows = *offset == values.len();
            values.extend_from_slice(partition);
            follows
        });
        let n = values.len();
        let tensor = Tensor::from_f32(&shape, values).ok().filter(|_| whole);
        let tensor = tensor.ok_or_else(|| {
            let path = c.path().display();
            Error::resume(format!("{path}: partitions of '{name}' ({}) with {n} floats", var.ty))
        })?;
        all.insert(name, tensor);
    }
    Ok(all)
}

/// Parameter, position and content of a partition of a dense parameter:
/// `dense/<name>/<offset>/<what>`.
fn piece_of(name: &str) -> Option<(&str, usize, &str)> {
    let (rest, what) = name.strip_prefix("dense/")?.rsplit_once('/')?;
    let (param, at) = rest.rsplit_once('/')?;
    Some((param, at.parse().ok()?, what))
}

fn parts_dense(
    folder: &Path,
    parts: &ServerParts,
    program: &Program,
) -> Result<BTreeMap<String, Tensor>, Error> {
    let tables = lookup_tables(program);
    let mut all = BTreeMap::new();
    for var in program.block().params().filter(|var| !tables.contains(&var.name)) {
        let shape: Vec<usize> = var.ty.shape.iter().map(|&d| d.max(0) as usize).collect();
        let len = shape.iter().product();
        let values = parts.dense(&var.name, len)?;
        if let Ok(tensor) = Tensor::from_f32(&shape, values) {
            all.insert(var.name.clone(), tensor);
        }
    }
    all.extend(load_statistics(program, folder)?);
    Ok(all)
}

/// Exports a trained model as the directory `to`, pruned to the outputs that the configuration
/// names, or to its predictions. `note` hears what the user should know.
///
/// # Errors
/// If something of the model is missing (all of it is named), or it cannot be written.
pub fn export(
    trained: &ModelSource,
    config: &Config,
    to: &Path,
    encoding: Encoding,
    note: &mut dyn FnMut(&str),
) -> Result<ModelManifest, Error> {
    let network = Network::build(config)?;
    let wanted = InferenceExport { feeds: None, fetches: None };
    let export = Export::new(&network, config.runner.inference.as_ref().unwrap_or(&wanted), note)?;
    let program = export.program();
    let dense = trained.dense(program)?;
    let feeds: Vec<&str> = export.feeds().iter().map(String::as_str).collect();
    let fetches: Vec<&str> = export.fetches().iter().map(String::as_str).collect();
    let about = trained.about(config);
    let spec = ModelSpec { program, feeds: &feeds, fetches: &fetches, about, encoding };
    // Whatever is missing is found before anything is written.
    let mut tables = BTreeMap::new();
    for name in lookup_tables(program) {
        let shape = &program.block().vars[&name].ty.shape;
        let (expected, dim) = (&shape[..], shape[1] as usize);
        let rows = match dense.get(&name) {
            Some(tensor)
                if tensor.shape().iter().map(|&d| d as i64).eq(expected.iter().copied()) =>
            {
                TableRows::Whole(tensor)
            }
            Some(tensor) => {
                let reason = format!(
                    "table '{name}' is {:?}, but the configuration says {expected:?}",
                    tensor.shape()
                );
                return Err(Error::resume(reason));
            }
            None => TableRows::ById(trained.rows(&name, dim)?),
        };
        tables.insert(name, rows);
    }
    let rows = |name: &str| {
        let rows = tables.remove(name);
        rows.ok_or_else(|| CheckpointError::Model { reason: format!("no table '{name}'") })
    };
    Ok(save_model(to, &spec, |name| dense.get(name), rows)?)
}
