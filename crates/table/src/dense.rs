//! The dense table: one contiguous range of a flat vector of parameters, with optimizer state.
//! Gradients go in ([`DenseTable::push`]), values come out ([`DenseTable::pull`]).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use regatta_optim::{RowRule, Rule, StateDesc, StateMut};
use serde::{Deserialize, Serialize};

use crate::error::check_len;
use crate::sparse::poisoned;
use crate::{Error, TableId};

/// A parameter of the flat vector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseParam {
    /// Its name in the program.
    pub name: String,
    /// How many values it has.
    pub len: usize,
    /// Its own factor of the learning rate.
    pub lr_scale: f32,
}

impl DenseParam {
    /// A parameter that learns at the common rate.
    pub fn new(name: impl Into<String>, len: usize) -> Self {
        DenseParam { name: name.into(), len, lr_scale: 1.0 }
    }
}

/// All that makes a dense table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseConfig {
    /// Its number.
    pub table: TableId,
    /// How parameters are updated. [`Rule::Sum`] makes it a geo table: what is pushed are deltas.
    pub rule: Rule,
    /// All parameters of the flat vector, one after the other.
    pub params: Vec<DenseParam>,
    /// The part of the flat vector that this table holds; it may be empty and may cut parameters.
    pub range: Range<usize>,
}

/// The part of one parameter that a table holds. It has its own scalar states, such as the powers
/// of Adam's betas, which count the steps of this parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DensePiece {
    /// The name of the parameter.
    pub name: String,
    /// Where the piece begins in the parameter.
    pub offset: usize,
    /// Its values.
    pub weights: Vec<f32>,
    /// Names and values of the optimizer states: as many values as weights, or one.
    pub states: Vec<(String, Vec<f32>)>,
}

/// Values of a parameter and what they were, where that was kept.
#[derive(Debug, Clone, Copy)]
pub struct DenseHistory<'a> {
    /// As they are.
    pub now: &'a [f32],
    /// Before the last step.
    pub before: Option<&'a [f32]>,
    /// Before the step before that.
    pub earlier: Option<&'a [f32]>,
}

#[derive(Debug)]
struct Piece {
    lr_scale: f32,
    /// Where it is in the range of the table.
    at: Range<usize>,
    data: DensePiece,
    /// The weights before the last step, if they were kept.
    before: Vec<f32>,
    /// And those before the step before that.
    earlier: Vec<f32>,
}

/// A range of dense parameters that several threads use at the same time. Each parameter has its
/// own lock: two requests never see half of each other's change of a parameter.
#[derive(Debug)]
pub struct DenseTable {
    table: TableId,
    rule: Rule,
    len: usize,
    /// The ranges of `pieces`, readable without a lock.
    ranges: Vec<Range<usize>>,
    pieces: Vec<RwLock<Piece>>,
    /// Somebody has pulled the history, and will again.
    keeps_before: AtomicBool,
    is_set: AtomicBool,
}

impl DenseTable {
    /// A table that waits for its initial values.
    ///
    /// # Errors
    /// [`Error::Config`] if the range is not part of the vector, or cuts a parameter under a rule
    /// that needs the norm of whole parameters; [`Error::Rule`].
    pub fn new(config: DenseConfig) -> Result<Self, Error> {
        let DenseConfig { table, rule, params, range } = config;
        rule.validate().map_err(|source| Error::Rule { table, source })?;
        let total: usize = params.iter().map(|param| param.len).sum();
        let refuse = |what| Err(Error::Config { table, what });
        if range.start > range.end || range.end > total {
            return refuse(format!("`range` is {range:?}, but there are {total} values"));
        }
        let mut pieces = Vec::new();
        let mut start = 0;
        for param in params {
            let own = start.max(range.start)..(start + param.len).min(range.end);
            if own.start < own.end {
                if own.len() < param.len && matches!(rule, Rule::Lamb(_) | Rule::LarsMomentum(_)) {
                    let (name, rule) = (param.name, rule.name());
                    return refuse(format!(
                        "`range` cuts `{name}`, of which {rule} needs the norm"
                    ));
                }
                pieces.push(Piece::new(&rule, &param, own.start - start, &own, range.start));
            }
            start += param.len;
        }
        Ok(DenseTable {
            table,
            rule,
            len: range.len(),
            ranges: pieces.iter().map(|piece| piece.at.clone()).collect(),
            pieces: pieces.into_iter().map(RwLock::new).collect(),
            keeps_before: AtomicBool::new(false),
            is_set: AtomicBool::new(false),
        })
    }

    /// Its number.
    pub fn table(&self) -> TableId {
        self.table
    }

    /// How many values it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none, as happens with more servers than values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where each parameter, or its part, is in the range of this table.
    pub fn pieces(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Whether values were set or imported.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Overwrites all values; optimizer states stay as they are.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Poisoned`].
    pub fn set(&self, values: &[f32]) -> Result<(), Error> {
        check_len(self.table, "values of a dense table", values.len(), self.len)?;
        for (idx, at) in self.ranges.iter().enumerate() {
            let piece = &mut *self.write(idx)?;
            piece.data.weights.copy_from_slice(&values[at.clone()]);
            piece.forget_weights();
        }
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    /// Copies a range of the values, counted from the start of this table.
    ///
    /// # Errors
    /// [`Error::NotSet`], [`Error::NoSuch`], [`Error::Length`], [`Error::Poisoned`].
    pub fn pull(&self, range: Range<usize>, out: &mut [f32]) -> Result<(), Error> {
        self.pull_pieces(range, out, |piece, from, out| {
            out.copy_from_slice(&piece.data.weights[from]);
        })
    }

    /// As [`pull`](Self::pull), but `write` makes the output of the values and those before the
    /// last two steps. They are kept from the first such pull on, which finds none.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn pull_history(
        &self,
        range: Range<usize>,
        out: &mut [f32],
        write: impl Fn(&DenseHistory<'_>, &mut [f32]),
    ) -> Result<(), Error> {
        self.keeps_before.store(true, Ordering::Relaxed);
        self.pull_pieces(range, out, |piece, from, out| {
            let history = DenseHistory {
                now: &piece.data.weights[from.clone()],
                before: piece.before.get(from.clone()),
                earlier: piece.earlier.get(from),
            };
            write(&history, out);
        })
    }

    fn pull_pieces(
        &self,
        range: Range<usize>,
        out: &mut [f32],
        pull: impl Fn(&Piece, Range<usize>, &mut [f32]),
    ) -> Result<(), Error> {
        self.check_set()?;
        if range.start > range.end || range.end > self.len {
            let (table, len) = (self.table, self.len);
            return Err(Error::NoSuch { table, what: "end of a pull at", index: range.end, len });
        }
        check_len(self.table, "output of a pull", out.len(), range.len())?;
        for (idx, at) in self.ranges.iter().enumerate() {
            let both = at.start.max(range.start)..at.end.min(range.end);
            if both.start < both.end {
                let piece = self.read(idx)?;
                let from = both.start - at.start..both.end - at.start;
                let to = both.start - range.start..both.end - range.start;
                pull(&piece, from, &mut out[to]);
            }
        }
        Ok(())
    }

    /// One step of the update rule with a gradient for all values.
    ///
    /// # Errors
    /// [`Error::NotSet`], [`Error::Length`], [`Error::Poisoned`].
    pub fn push(&self, gradient: &[f32], lr: f32) -> Result<(), Error> {
        check_len(self.table, "a dense gradient", gradient.len(), self.len)?;
        let mut pieces = self.ranges.iter().enumerate();
        pieces.try_for_each(|(idx, at)| self.push_piece(idx, &gradient[at.clone()], lr))
    }

    /// One step of one parameter, or of its part, by its position in [`pieces`](Self::pieces).
    ///
    /// # Errors
    /// [`Error::NotSet`], [`Error::NoSuch`], [`Error::Length`], [`Error::Poisoned`].
    pub fn push_piece(&self, idx: usize, gradient: &[f32], lr: f32) -> Result<(), Error> {
        self.check_set()?;
        let (table, len) = (self.table, self.ranges.len());
        let no_such = Error::NoSuch { table, what: "parameter", index: idx, len };
        let at = self.ranges.get(idx).ok_or(no_such)?;
        check_len(table, "a dense gradient", gradient.len(), at.len())?;
        let piece = &mut *self.write(idx)?;
        if self.keeps_before.load(Ordering::Relaxed) {
            piece.keep_weights();
        }
        let DensePiece { weights, states, .. } = &mut piece.data;
        let states: StateMut<'_> = states.iter_mut().map(|(_, values)| values).collect();
        self.rule.update(lr * piece.lr_scale, weights, gradient, states);
        Ok(())
    }

    /// Values and states of all pieces, each as of one moment.
    ///
    /// # Errors
    /// [`Error::NotSet`], [`Error::Poisoned`].
    pub fn export(&self) -> Result<Vec<DensePiece>, Error> {
        self.check_set()?;
        (0..self.pieces.len()).map(|idx| Ok(self.read(idx)?.data.clone())).collect()
    }

    /// Takes over what exported pieces say about the values this table holds, however parameters
    /// were cut when they were exported. Gives how many values that were; with all of them, the
    /// table counts as set. A piece without states leaves those of the table as they are.
    ///
    /// # Errors
    /// [`Error::Config`] if a piece comes from another rule, [`Error::Poisoned`].
    pub fn import(&self, pieces: &[DensePiece]) -> Result<usize, Error> {
        let mut n = 0;
        for idx in 0..self.pieces.len() {
            let own = &mut *self.write(idx)?;
            own.forget_weights();
            for piece in pieces {
                let taken = own.data.take(piece);
                n += taken.map_err(|what| Error::Config { table: self.table, what })?;
            }
        }
        if n >= self.len {
            self.is_set.store(true, Ordering::Release);
        }
        Ok(n)
    }

    fn check_set(&self) -> Result<(), Error> {
        if self.is_set() || self.is_empty() {
            Ok(())
        } else {
            Err(Error::NotSet { table: self.table })
        }
    }

    fn read(&self, idx: usize) -> Result<RwLockReadGuard<'_, Piece>, Error> {
        self.pieces[idx].read().map_err(|_| poisoned(self.table, idx))
    }

    fn write(&self, idx: usize) -> Result<RwLockWriteGuard<'_, Piece>, Error> {
        self.pieces[idx].write().map_err(|_| poisoned(self.table, idx))
    }
}

impl Piece {
    fn new(
        rule: &Rule,
        param: &DenseParam,
        offset: usize,
        own: &Range<usize>,
        table_start: usize,
    ) -> Self {
        let state = |s: &StateDesc| (s.name.to_string(), vec![s.initial; s.len_for(own.len())]);
        Piece {
            lr_scale: param.lr_scale,
            at: own.start - table_start..own.end - table_start,
            data: DensePiece {
                name: param.name.clone(),
                offset,
                weights: vec![0.0; own.len()],
                states: rule.states().iter().map(state).collect(),
            },
            before: Vec::new(),
            earlier: Vec::new(),
        }
    }

    /// Keeps the weights of now, before a step.
    fn keep_weights(&mut self) {
        std::mem::swap(&mut self.before, &mut self.earlier);
        self.before.clone_from(&self.data.weights);
    }

    /// The next weights do not come from a step.
    fn forget_weights(&mut self) {
        self.before.clear();
        self.earlier.clear();
    }
}

impl DensePiece {
    /// Copies what another piece, if it is of the same parameter, has in common with this one.
    fn take(&mut self, other: &DensePiece) -> Result<usize, String> {
        if self.name != other.name {
            return Ok(0);
        }
        let names = |piece: &DensePiece| -> Vec<String> {
            piece.states.iter().map(|(name, _)| name.clone()).collect()
        };
        // Weights from elsewhere come alone: the states stay as they are.
        if !other.states.is_empty() && names(self) != names(other) {
            let (own, given) = (names(self), names(other));
            return Err(format!("`{}` has states {own:?}, imported {given:?}", self.name));
        }
        let start = self.offset.max(other.offset);
        let end = (self.offset + self.weights.len()).min(other.offset + other.weights.len());
        if start >= end {
            return Ok(0);
        }
        let (to, from) = (start - self.offset, start - other.offset);
        let n = end - start;
        let whole = other.weights.len();
        let own_whole = self.weights.len();
        self.weights[to..to + n].copy_from_slice(&other.weights[from..from + n]);
        for ((name, own), (_, given)) in self.states.iter_mut().zip(&other.states) {
            if given.len() == whole && own.len() == own_whole {
                own[to..to + n].copy_from_slice(&given[from..from + n]);
            } else if given.len() == 1 && own.len() == 1 {
                own[0] = given[0];
            } else {
                return Err(format!(
                    "state `{name}` of `{}` has {} values",
                    self.name,
                    given.len()
                ));
            }
        }
        Ok(n)
    }
}
