//! Dense parameters with their optimizer states: from servers to the device and back.

use regatta_exec::Scope;
use regatta_passes::{DenseSpec, Split};
use regatta_ps::message::DenseState;
use regatta_table::DensePiece;
use regatta_tensor::Tensor;

use super::engine::Engine;
use crate::Error;

/// Puts what servers have on the device, and into `scope`.
pub(super) fn load(
    split: &Split,
    state: &DenseState,
    engine: &mut Engine,
    scope: &mut Scope,
) -> Result<(), Error> {
    let whole: Vec<DensePiece> =
        split.dense.iter().map(|spec| joined(spec, &state.pieces)).collect::<Result<_, _>>()?;
    for (spec, piece) in split.dense.iter().zip(&whole) {
        scope.set(&spec.name, tensor(spec, piece.weights.clone())?);
    }
    engine.write_values(scope)?;
    for piece in whole {
        let states: Vec<Vec<f32>> = piece.states.into_iter().map(|(_, values)| values).collect();
        engine.set_states(&piece.name, &states)?;
    }
    Ok(())
}

/// Takes all dense parameters from the device, in the order of the job, and puts them into `scope`.
pub(super) fn take(
    split: &Split,
    engine: &Engine,
    scope: &mut Scope,
) -> Result<Vec<DensePiece>, Error> {
    engine.read_values(scope)?;
    let mut pieces = Vec::new();
    for spec in &split.dense {
        let missing = || Error::Internal(format!("'{}' is not on the device", spec.name));
        let weights = scope.get(&spec.name).ok_or_else(missing)?.f32().to_vec();
        let states = engine.states(&spec.name)?.ok_or_else(missing)?;
        let states = states.into_iter().map(|(name, values)| (name.to_string(), values)).collect();
        pieces.push(DensePiece { name: spec.name.clone(), offset: 0, weights, states });
    }
    Ok(pieces)
}

/// A parameter from the pieces of all servers.
fn joined(spec: &DenseSpec, pieces: &[DensePiece]) -> Result<DensePiece, Error> {
    let mut own: Vec<&DensePiece> = pieces.iter().filter(|p| p.name == spec.name).collect();
    own.sort_by_key(|piece| piece.offset);
    let mut whole = DensePiece {
        name: spec.name.clone(),
        offset: 0,
        weights: Vec::new(),
        states: own.first().map_or(vec![], |first| first.states.clone()),
    };
    whole.states.iter_mut().for_each(|(_, values)| values.clear());
    for piece in own {
        whole.weights.extend(&piece.weights);
        for ((_, all), (_, values)) in whole.states.iter_mut().zip(&piece.states) {
            // One value for each weight, or one for all.
            match values.len() == piece.weights.len() && values.len() != 1 {
                true => all.extend(values),
                false if all.is_empty() || piece.weights.len() == 1 => all.extend(values),
                false => {}
            }
        }
    }
    Ok(whole)
}

fn tensor(spec: &DenseSpec, weights: Vec<f32>) -> Result<Tensor, Error> {
    let n = weights.len();
    Tensor::from_f32(&spec.shape, weights)
        .map_err(|_| Error::Internal(format!("{n} floats of '{}' for {:?}", spec.name, spec.shape)))
}
