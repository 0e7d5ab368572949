//! A server's pieces of the dense parameters, end to end.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use regatta_optim::{RowRule, Rule};
use regatta_table::{DenseConfig, DenseHistory, DenseParam, DensePiece, DenseTable, TableId};

use super::DenseSetup;
use crate::Error;

/// All pieces of a server. Each is a table of its own, because parameters may have different rules.
pub(super) struct Dense {
    pieces: Vec<Piece>,
    len: usize,
    /// For sums of several workers' gradients; whoever needs one takes it.
    sums: Mutex<Vec<Vec<f32>>>,
}

struct Piece {
    param: String,
    rule: Rule,
    table: DenseTable,
    /// Where it is in the floats of this server.
    at: Range<usize>,
    /// Its values come from files.
    loaded: AtomicBool,
}

impl Piece {
    fn new(number: usize, at: usize, setup: &DenseSetup) -> Result<Piece, Error> {
        let end = setup.start + setup.len;
        // How the parameter continues after this piece does not matter here.
        let param = DenseParam { name: setup.param.clone(), len: end, lr_scale: setup.lr_scale };
        let config = DenseConfig {
            table: TableId(number as u32),
            rule: setup.rule,
            params: vec![param],
            range: setup.start..end,
        };
        let table = DenseTable::new(config).map_err(|e| Error::parameter(&setup.param, e))?;
        let loaded = AtomicBool::new(false);
        let (param, rule, at) = (setup.param.clone(), setup.rule, at..at + setup.len);
        Ok(Piece { param, rule, table, at, loaded })
    }
}

impl Dense {
    pub(super) fn new(setups: &[DenseSetup]) -> Result<Dense, Error> {
        let mut pieces = Vec::with_capacity(setups.len());
        let mut len = 0;
        for (number, setup) in setups.iter().enumerate() {
            pieces.push(Piece::new(number, len, setup)?);
            len += setup.len;
        }
        Ok(Dense { pieces, len, sums: Mutex::default() })
    }

    /// Floats of all pieces.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The parameters of which there are pieces here, with their rules.
    pub(super) fn params(&self) -> impl Iterator<Item = (&str, &Rule)> {
        self.pieces.iter().map(|p| (p.param.as_str(), &p.rule))
    }

    /// Checks that there are as many floats as here.
    pub(super) fn check(&self, len: usize) -> Result<(), Error> {
        if len == self.len {
            return Ok(());
        }
        Err(Error::malformed(format!("{len} dense floats, but this server holds {}", self.len)))
    }

    fn each(
        &self,
        mut work: impl FnMut(&Piece) -> Result<(), regatta_table::Error>,
    ) -> Result<(), Error> {
        self.pieces.iter().try_for_each(|p| work(p).map_err(|e| Error::parameter(&p.param, e)))
    }

    /// Gives all weights their initial values; those that were loaded keep what they have.
    pub(super) fn set(&self, values: &[f32]) -> Result<(), Error> {
        self.check(values.len())?;
        self.each(|p| {
            if p.loaded.load(Ordering::Acquire) {
                return Ok(());
            }
            p.table.set(&values[p.at.clone()])
        })
    }

    /// Copies all weights.
    pub(super) fn pull(&self, out: &mut [f32]) -> Result<(), Error> {
        self.check(out.len())?;
        self.each(|p| p.table.pull(0..p.at.len(), &mut out[p.at.clone()]))
    }

    /// Lets `predict` write all weights from their last versions, under rules with momentum; others
    /// are copied.
    pub(super) fn pull_predicted(
        &self,
        out: &mut [f32],
        predict: impl Fn(&DenseHistory<'_>, &mut [f32]),
    ) -> Result<(), Error> {
        self.check(out.len())?;
        self.each(|p| {
            let (all, out) = (0..p.at.len(), &mut out[p.at.clone()]);
            if p.rule.has_momentum() {
                p.table.pull_history(all, out, &predict)
            } else {
                p.table.pull(all, out)
            }
        })
    }

    /// One step with the weighted sum of gradients.
    pub(super) fn push(&self, parts: &[(f32, &[f32])], lr: f32) -> Result<(), Error> {
        parts.iter().try_for_each(|(_, gradient)| self.check(gradient.len()))?;
        (0..self.pieces.len()).try_for_each(|number| self.push_piece(number, parts, lr))
    }

    /// How many pieces there are.
    pub(super) fn n_pieces(&self) -> usize {
        self.pieces.len()
    }

    /// One step of one piece with the weighted sum of gradients, which have been checked. Piece by
    /// piece the sum is used before it leaves the caches.
    pub(super) fn push_piece(
        &self,
        number: usize,
        parts: &[(f32, &[f32])],
        lr: f32,
    ) -> Result<(), Error> {
        let Piece { table, at, param, .. } = &self.pieces[number];
        let outcome = match parts {
            [] => return Ok(()),
            [(1.0, gradient)] => table.push(&gradient[at.clone()], lr),
            [(first, gradient), others @ ..] => {
                let sums = || self.sums.lock().unwrap_or_else(|e| e.into_inner());
                let mut sum = sums().pop().unwrap_or_default();
                sum.clear();
                sum.extend(gradient[at.clone()].iter().map(|g| first * g));
                for (weight, gradient) in others {
                    let gradient = &gradient[at.clone()];
                    sum.iter_mut().zip(gradient).for_each(|(s, g)| *s += weight * g);
                }
                let outcome = table.push(&sum, lr);
                sums().push(sum);
                outcome
            }
        };
        outcome.map_err(|e| Error::parameter(param, e))
    }

    /// All pieces with their optimizer state.
    pub(super) fn export(&self) -> Result<Vec<DensePiece>, Error> {
        let mut all = Vec::new();
        self.each(|p| {
            all.extend(p.table.export()?);
            Ok(())
        })?;
        Ok(all)
    }

    /// Takes what belongs here of the pieces of any number of servers; `wanted` chooses parameters.
    /// Pieces that hold weights `alone` leave the states as they are.
    pub(super) fn import(
        &self,
        saved: &[DensePiece],
        alone: bool,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        for piece in self.pieces.iter().filter(|p| wanted(&p.param)) {
            let names: Vec<&str> = piece.rule.states().iter().map(|s| s.name).collect();
            let same = saved.iter().filter(|s| s.name == piece.param);
            let ordered = |s: &DensePiece| if alone { Ok(s.clone()) } else { in_order(s, &names) };
            let ordered = same.map(ordered).collect::<Result<Vec<_>, _>>()?;
            let n = piece.table.import(&ordered).map_err(|e| Error::parameter(&piece.param, e))?;
            if n != piece.at.len() {
                let (len, param) = (piece.at.len(), &piece.param);
                return Err(Error::usage(format!("{n} of {len} floats of '{param}' were saved")));
            }
            piece.loaded.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// The piece with its states in the order of the rule, which files do not keep.
fn in_order(piece: &DensePiece, names: &[&str]) -> Result<DensePiece, Error> {
    let found = |name: &&str| piece.states.iter().find(|(n, _)| n == name).cloned();
    let states: Vec<_> = names.iter().filter_map(found).collect();
    if states.len() != names.len() || states.len() != piece.states.len() {
        let saved: Vec<_> = piece.states.iter().map(|(n, _)| n.as_str()).collect();
        return Err(Error::usage(format!(
            "parameter '{}' was saved with the states [{}] of another optimizer, this one has [{}]",
            piece.name,
            saved.join(", "),
            names.join(", ")
        )));
    }
    Ok(DensePiece { states, ..piece.clone() })
}
