//! Parameters as slices, and whole tables of servers as tensors.

use regatta_exec::Scope;
use regatta_passes::Split;
use regatta_ps::{Client, PullSpec};
use regatta_tensor::Tensor;

use crate::Error;

/// The values of these parameters.
pub(crate) fn floats<'a>(scope: &'a Scope, names: &[String]) -> Result<Vec<&'a [f32]>, Error> {
    names.iter().map(|name| Ok(parameter(scope, name)?.f32())).collect()
}

/// A parameter that the startup program must have made.
pub(crate) fn parameter<'a>(scope: &'a Scope, name: &str) -> Result<&'a Tensor, Error> {
    scope.get(name).ok_or_else(|| not_initialised(name))
}

pub(crate) fn not_initialised(name: &str) -> Error {
    let (what, name) = ("parameter", name.to_string());
    regatta_exec::Error::NotInitialised { what, name }.into()
}

/// Whole tables as tensors, with as many rows as the program declares. Servers create no rows for
/// it; ids without one give what a prediction would get.
pub(crate) fn pull_tables(
    client: &Client,
    split: &Split,
    step: u64,
) -> Result<Vec<(String, Tensor)>, Error> {
    // Large enough for few requests, small enough for one message.
    const IDS: usize = 1 << 15;
    let mut tables = Vec::new();
    for (number, table) in split.tables.iter().enumerate() {
        let mut values = vec![0.0; table.rows * table.dim];
        for (first, part) in (0u64..).step_by(IDS).zip(values.chunks_mut(IDS * table.dim)) {
            let ids: Vec<u64> = (first..).take(part.len() / table.dim).collect();
            let mut keys: Vec<&[u64]> = vec![&[]; split.tables.len()];
            keys[number] = &ids;
            let wanted = PullSpec { step, test: true, dense: false, keys: &keys, counts: &[] };
            let ticket = client.pull_exactly(&wanted)?;
            let mut rows: Vec<&mut [f32]> = keys.iter().map(|_| &mut [][..]).collect();
            rows[number] = part;
            client.finish_pull(ticket, &mut rows, &mut [])?;
        }
        let shape = [table.rows, table.dim];
        let tensor = Tensor::from_f32(&shape, values).expect("as many as the shape holds");
        tables.push((table.name.clone(), tensor));
    }
    Ok(tables)
}
