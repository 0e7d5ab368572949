//! The two kinds of rows, resolved: a configuration goes in, lengths and first contents come out.

use regatta_optim::SharedState;

use crate::config::{Accessor, SparseConfig};
use crate::ctr::Ctr;
use crate::group::Columns;
use crate::plain::Plain;

/// What the rows of a table are.
#[derive(Debug)]
pub(crate) enum Kind {
    Plain(Plain),
    Ctr(Ctr),
}

impl Kind {
    pub(crate) fn new(config: &SparseConfig) -> Self {
        match &config.accessor {
            Accessor::Plain(plain) => Kind::Plain(Plain::new(config, plain)),
            Accessor::Ctr(ctr) => Kind::Ctr(Ctr::new(config, ctr)),
        }
    }

    /// Counts a step, and gives what its rows share. Rows of CTR tables share nothing.
    pub(crate) fn next_step(&self) -> SharedState {
        match self {
            Kind::Plain(plain) => plain.next_step(),
            Kind::Ctr(_) => SharedState::default(),
        }
    }

    /// Values per key in a pull.
    pub(crate) fn pull_width(&self) -> usize {
        match self {
            Kind::Plain(plain) => plain.dim,
            Kind::Ctr(ctr) => ctr.pull_width(),
        }
    }

    /// Values per key in a push.
    pub(crate) fn push_columns(&self) -> Columns {
        match self {
            Kind::Plain(plain) => Columns { width: plain.dim, labels: 0, unweighted: 0 },
            Kind::Ctr(ctr) => ctr.push_columns(),
        }
    }

    /// Floats of a row in its first stage.
    pub(crate) fn base_len(&self) -> usize {
        match self {
            Kind::Plain(plain) => plain.row_len(),
            Kind::Ctr(ctr) => ctr.base_len(),
        }
    }

    /// Floats of a row in its second stage; 0 if there is none.
    pub(crate) fn extended_len(&self) -> usize {
        match self {
            Kind::Plain(_) => 0,
            Kind::Ctr(ctr) => ctr.extended_len(),
        }
    }

    /// Writes a new row.
    pub(crate) fn init_base(&self, key: u64, row: &mut [f32]) {
        match self {
            Kind::Plain(plain) => plain.init(key, row),
            Kind::Ctr(ctr) => ctr.init_base(key, row),
        }
    }

    /// Writes what a row gains with its second stage.
    pub(crate) fn init_extension(&self, key: u64, rest: &mut [f32]) {
        if let Kind::Ctr(ctr) = self {
            ctr.init_extension(key, rest);
        }
    }

    /// Writes what a pull gives of a row.
    pub(crate) fn copy_out(&self, row: &[f32], out: &mut [f32]) {
        match self {
            // Weights, or the whole row.
            Kind::Plain(_) => out.copy_from_slice(&row[..out.len()]),
            Kind::Ctr(ctr) => ctr.copy_out(Some(row), out),
        }
    }

    /// Days without a push after which a shrink removes a row or a candidate.
    pub(crate) fn delete_after_unseen_days(&self) -> u32 {
        match self {
            Kind::Plain(plain) => plain.delete_after_unseen_days,
            Kind::Ctr(ctr) => ctr.config.delete_after_unseen_days,
        }
    }

    /// Names and lengths of the parts of a full row, in storage order.
    pub(crate) fn parts(&self) -> Vec<(String, usize)> {
        match self {
            Kind::Plain(plain) => plain.parts(),
            Kind::Ctr(ctr) => ctr.parts(),
        }
    }
}
