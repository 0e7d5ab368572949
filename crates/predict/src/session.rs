//! One thread's use of a model.

use std::sync::Arc;

use regatta_exec::Lookup;
use regatta_exec::{Executor, Options as ExecOptions, Scope};
use regatta_tensor::{RowIndex, Tensor, Value};

use crate::model::Shared;
use crate::{Error, Input, MissingIds};

/// Scores batches. Buffers and execution plans are kept from batch to batch, for the last sizes of
/// batches.
pub struct Session {
    model: Arc<Shared>,
    executor: Executor,
    scope: Scope,
    lookups: Vec<Lookup>,
    /// The distinct ids of one table and batch.
    index: RowIndex,
    missing_ids: u64,
}

impl Session {
    pub(crate) fn new(model: Arc<Shared>) -> Result<Session, Error> {
        let options = ExecOptions { threads: model.options.threads, ..ExecOptions::default() };
        let executor = Executor::new(model.program.clone(), options)?;
        let mut scope = Scope::new();
        for (name, tensor) in &model.params {
            scope.set(name, tensor.clone());
        }
        let lookups = model.tables.iter().map(|_| Lookup::default()).collect();
        Ok(Session { model, executor, scope, lookups, index: RowIndex::default(), missing_ids: 0 })
    }

    /// The outputs for a batch of named inputs, in the order of [`Model::outputs`]. They are
    /// overwritten by the next batch.
    ///
    /// # Errors
    /// If an input is missing, unknown, or of another type or width, or an id has no row where that
    /// is an error. The session can be used on.
    ///
    /// [`Model::outputs`]: crate::Model::outputs
    pub fn score(&mut self, batch: &[(&str, &Value)]) -> Result<&[Tensor], Error> {
        let Session { model, executor, scope, lookups, index, missing_ids } = self;
        check(model, batch)?;
        let value =
            |name: &str| batch.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
        for ((exchange, table), lookup) in model.tables.iter().zip(lookups.iter_mut()) {
            lookup.prepare(exchange, false, index, value)?;
            let rows = lookup.rows_mut().chunks_exact_mut(exchange.dim);
            for (&id, row) in index.ids().iter().zip(rows) {
                if table.read(id, row)? {
                    continue;
                }
                if model.options.missing_ids == MissingIds::Error {
                    let inputs: Vec<&str> =
                        exchange.inputs.iter().map(|(name, _)| name.as_str()).collect();
                    let (input, table) = (inputs.join(", "), exchange.name.clone());
                    return Err(Error::MissingId { input, table, id });
                }
                row.fill(0.0);
                *missing_ids += 1;
            }
        }
        let shaped = |input: &Input| Some((input.name.clone(), input.shaped(value(&input.name)?)?));
        let shaped: Vec<(String, Value)> = model.inputs.iter().filter_map(shaped).collect();
        let given = |name: &str| match shaped.iter().find(|(own, _)| own == name) {
            Some((_, value)) => Some(value),
            None => value(name),
        };
        let mut feeds: Vec<(&str, &Value)> =
            model.direct.iter().filter_map(|name| Some((name.as_str(), given(name)?))).collect();
        for ((exchange, _), lookup) in model.tables.iter().zip(lookups.iter()) {
            feeds.extend(lookup.feeds(exchange));
        }
        let fetches: Vec<&str> = model.outputs.iter().map(String::as_str).collect();
        Ok(executor.run(scope, &feeds, &fetches)?)
    }

    /// How many ids had no row so far: distinct ones of each batch and table.
    pub fn missing_ids(&self) -> u64 {
        self.missing_ids
    }
}

/// Compares a batch with the inputs of the model.
fn check(model: &Shared, batch: &[(&str, &Value)]) -> Result<(), Error> {
    let known = || {
        let all = model.inputs.iter().map(|input| format!("'{}'", input.name));
        all.collect::<Vec<_>>().join(", ")
    };
    for (i, (name, _)) in batch.iter().enumerate() {
        if !model.inputs.iter().any(|input| input.name == *name) {
            let reason = format!("'{name}' is no input of the model (inputs: {})", known());
            return Err(Error::Input(reason));
        }
        if batch[..i].iter().any(|(other, _)| other == name) {
            return Err(Error::Input(format!("input '{name}' is given twice")));
        }
    }
    let mut examples = None;
    for input in &model.inputs {
        let Some((_, value)) = batch.iter().find(|(name, _)| *name == input.name) else {
            return Err(Error::Input(format!(
                "input '{}' ({}) is missing",
                input.name, input.kind
            )));
        };
        let n = input.examples(value)?;
        let first = *examples.get_or_insert(n);
        if n != first {
            let (name, other) = (&input.name, &model.inputs[0].name);
            let reason = format!("input '{name}' has {n} examples, but '{other}' has {first}");
            return Err(Error::Input(reason));
        }
    }
    match examples {
        Some(0) => Err(Error::Input("the batch has no examples".into())),
        _ => Ok(()),
    }
}
