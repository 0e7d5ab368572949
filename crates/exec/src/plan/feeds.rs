//! What is fed and fetched, checked against a program.

use regatta_ir::{Layout, Origin, Program, VarType};
use regatta_tensor::Value;

use crate::Error;

/// The type of a value as a program would declare it.
pub(crate) fn type_of(value: &Value) -> VarType {
    match value {
        Value::Dense(t) => {
            VarType::dense(t.dtype(), t.shape().iter().map(|&d| d as i64).collect::<Vec<_>>())
        }
        Value::Ragged(r) => VarType {
            dtype: r.values().dtype(),
            layout: Layout::Ragged,
            shape: vec![r.rows() as i64],
        },
    }
}

/// Checks the feeds against the declared inputs; returns the number of examples.
pub(super) fn check_feeds(program: &Program, feeds: &[(String, VarType)]) -> Result<usize, Error> {
    let block = program.block();
    let inputs: Vec<&str> =
        block.vars.values().filter(|v| v.origin == Origin::Data).map(|v| v.name.as_str()).collect();
    let mut batch: Option<(&str, usize)> = None;
    for (name, ty) in feeds {
        if !inputs.contains(&name.as_str()) {
            return Err(Error::UnknownFeed {
                name: name.clone(),
                nearest: regatta_ir::nearest(name, inputs.iter().copied()).map(str::to_string),
                inputs: inputs.iter().map(|i| i.to_string()).collect(),
            });
        }
        let declared = &block.vars[name].ty;
        if !fits(declared, ty) {
            return Err(Error::FeedType {
                name: name.clone(),
                expected: declared.to_string(),
                actual: ty.to_string(),
            });
        }
        if declared.is_batched() {
            let rows = ty.shape[0] as usize;
            match batch {
                Some((other, other_rows)) if other_rows != rows => {
                    let (name, other) = (name.clone(), other.to_string());
                    return Err(Error::BatchSize { name, rows, other, other_rows });
                }
                _ => batch = Some((name, rows)),
            }
        }
    }
    let used = |name: &str| block.ops.iter().any(|op| op.input_vars().any(|v| v == name));
    for name in inputs {
        if used(name) && !feeds.iter().any(|(f, _)| f == name) {
            let ty = block.vars[name].ty.to_string();
            return Err(Error::MissingFeed { name: name.to_string(), ty });
        }
    }
    Ok(batch.map_or(1, |(_, rows)| rows))
}

fn fits(declared: &VarType, given: &VarType) -> bool {
    declared.dtype == given.dtype
        && declared.layout == given.layout
        && declared.shape.len() == given.shape.len()
        && declared.shape.iter().zip(&given.shape).all(|(d, g)| d == g || *d < 0)
}

pub(super) fn check_fetches(program: &Program, fetch: &[String]) -> Result<(), Error> {
    let block = program.block();
    for name in fetch {
        let problem = |reason: String| Error::Fetch { name: name.clone(), reason };
        let var = block.vars.get(name).ok_or_else(|| {
            let near = regatta_ir::nearest(name, block.vars.keys().map(String::as_str));
            let hint = near.map(|n| format!("; did you mean '{n}'?")).unwrap_or_default();
            problem(format!("no such variable in program '{}'{hint}", program.name))
        })?;
        if var.ty.layout == Layout::Ragged {
            return Err(problem(format!("it is {}, a ragged input", var.ty)));
        }
    }
    Ok(())
}
