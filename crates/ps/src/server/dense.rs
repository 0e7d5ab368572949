//! A server's pieces of the dense parameters, with their optimizer state.

use regatta_optim::{RowRule, Rule, StateMut};

use super::DenseSetup;
use crate::Error;

/// One piece.
pub(super) struct DensePiece {
    pub(super) param: String,
    pub(super) start: usize,
    pub(super) weights: Vec<f32>,
    /// State name and values.
    pub(super) states: Vec<(&'static str, Vec<f32>)>,
    rule: Rule,
    lr_scale: f32,
}

/// All pieces of a server, end to end.
pub(super) struct Dense {
    pub(super) pieces: Vec<DensePiece>,
    len: usize,
    /// Whether somebody has given the weights their first values.
    pub(super) is_set: bool,
    /// For sums of several workers' gradients.
    sum: Vec<f32>,
}

impl Dense {
    pub(super) fn new(setups: &[DenseSetup]) -> Result<Dense, Error> {
        let piece = |setup: &DenseSetup| {
            setup.rule.validate().map_err(|e| Error::Job(format!("'{}': {e}", setup.param)))?;
            let state = |s: &regatta_optim::StateDesc| (s.name, vec![s.initial; s.len_for(setup.len)]);
            Ok(DensePiece {
                param: setup.param.clone(),
                start: setup.start,
                weights: vec![0.0; setup.len],
                states: setup.rule.states().iter().map(state).collect(),
                rule: setup.rule,
                lr_scale: setup.lr_scale,
            })
        };
        let pieces = setups.iter().map(piece).collect::<Result<Vec<_>, Error>>()?;
        let len = setups.iter().map(|s| s.len).sum();
        Ok(Dense { pieces, len, is_set: false, sum: Vec::new() })
    }

    /// Floats of all pieces.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn check(&self, len: usize) -> Result<(), Error> {
        if len == self.len {
            return Ok(());
        }
        Err(Error::malformed(format!("{len} dense floats, but this server holds {}", self.len)))
    }

    /// Replaces all weights.
    pub(super) fn set(&mut self, values: &[f32]) -> Result<(), Error> {
        self.check(values.len())?;
        let mut rest = values;
        for piece in &mut self.pieces {
            let (now, later) = rest.split_at(piece.weights.len());
            piece.weights.copy_from_slice(now);
            rest = later;
        }
        self.is_set = true;
        Ok(())
    }

    /// Copies all weights.
    pub(super) fn pull(&self, out: &mut [f32]) {
        let mut rest = out;
        for piece in &self.pieces {
            let (now, later) = rest.split_at_mut(piece.weights.len());
            now.copy_from_slice(&piece.weights);
            rest = later;
        }
    }

    /// One step with the weighted sum of gradients.
    pub(super) fn push(&mut self, parts: &[(f32, &[f32])], lr: f32) -> Result<(), Error> {
        for (_, gradient) in parts {
            self.check(gradient.len())?;
        }
        match parts {
            [] => Ok(()),
            [(1.0, gradient)] => {
                self.step(gradient, lr);
                Ok(())
            }
            _ => {
                let mut sum = std::mem::take(&mut self.sum);
                sum.clear();
                sum.resize(self.len, 0.0);
                for (weight, gradient) in parts {
                    sum.iter_mut().zip(*gradient).for_each(|(s, g)| *s += weight * g);
                }
                self.step(&sum, lr);
                self.sum = sum;
                Ok(())
            }
        }
    }

    fn step(&mut self, gradient: &[f32], lr: f32) {
        let mut rest = gradient;
        for piece in &mut self.pieces {
            let (now, later) = rest.split_at(piece.weights.len());
            let states: StateMut<'_> = piece.states.iter_mut().map(|(_, s)| s).collect();
            piece.rule.update(lr * piece.lr_scale, &mut piece.weights, now, states);
            rest = later;
        }
    }

    /// Adds differences.
    pub(super) fn add(&mut self, values: &[f32]) -> Result<(), Error> {
        self.check(values.len())?;
        let weights = self.pieces.iter_mut().flat_map(|p| &mut p.weights);
        weights.zip(values).for_each(|(w, d)| *w += d);
        Ok(())
    }
}
