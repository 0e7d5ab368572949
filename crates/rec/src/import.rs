//! Weights from elsewhere become a saved epoch, which training, evaluation and export begin with.

use std::collections::BTreeMap;
use std::path::Path;

use regatta_checkpoint::server_parts::{TableWeights, save_weights};
use regatta_checkpoint::{lookup_tables, publish_epoch, save_about, save_statistics};
use regatta_ir::{Origin, Program};
use regatta_tensor::Tensor;

use regatta_train::Error as TrainError;

use crate::config::InferenceExport;
use crate::network::Network;
use crate::save::Export;
use crate::save::about_of;
use crate::{Config, Error};

/// A parameter, or a statistic that predictions need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterSpec {
    /// Its name.
    pub name: String,
    /// Its shape; that of a table begins with the rows that are declared.
    pub shape: Vec<usize>,
    /// Whether it is a table, with rows by id.
    pub is_table: bool,
}

/// What an import must bring for the model of a configuration.
///
/// # Errors
/// If the hyper-parameters do not fit together.
pub fn needed(config: &Config) -> Result<Vec<ParameterSpec>, Error> {
    let program = predictions(config)?;
    let tables = lookup_tables(&program);
    let all = program.persistables().map(|var| ParameterSpec {
        name: var.name.clone(),
        shape: var.ty.shape.iter().map(|&d| d.max(0) as usize).collect(),
        is_table: tables.contains(&var.name),
    });
    Ok(all.collect())
}

fn predictions(config: &Config) -> Result<Program, Error> {
    let network = Network::build(config)?;
    let all = InferenceExport { feeds: None, fetches: None };
    Ok(Export::new(&network, &all, &mut |_| {})?.program().clone())
}

/// Writes tables and all other values that are [`needed`] as the folder of an epoch, which must not
/// be there yet. It appears when it is complete.
///
/// # Errors
/// If something is missing or of another size, or the folder cannot be written.
pub fn import(
    config: &Config,
    tables: Vec<TableWeights>,
    values: &BTreeMap<String, Vec<f32>>,
    to: &Path,
) -> Result<(), Error> {
    let program = predictions(config)?;
    let (mut dense, mut statistics) = (Vec::new(), BTreeMap::new());
    let known = lookup_tables(&program);
    for var in program.persistables().filter(|var| !known.contains(&var.name)) {
        let name = &var.name;
        let shape: Vec<usize> = var.ty.shape.iter().map(|&d| d.max(0) as usize).collect();
        let given = values.get(name).cloned().unwrap_or_default();
        let tensor = Tensor::from_f32(&shape, given);
        let tensor = tensor.map_err(|e| Error::resume(format!("'{name}': {e}")))?;
        match var.origin {
            Origin::Param => dense.push((name.clone(), tensor.f32().to_vec())),
            _ => drop(statistics.insert(name.clone(), tensor)),
        }
    }
    let about = about_of(config, None);
    if to.exists() {
        let source = std::io::Error::other("it is there already");
        return Err(TrainError::Write { path: to.to_path_buf(), source }.into());
    }
    publish_epoch(to, |dir| {
        save_weights(dir, tables, &dense)?;
        save_statistics(&program, |name| statistics.get(name), dir)?;
        Ok(save_about(dir, &about)?)
    })
}
