//! Whole rows and dense parameters with their optimizer state, for workers that update them
//! themselves. Workers agree on who owns a row that is away; servers do not check it.

use std::sync::atomic::Ordering;

use regatta_net::{Buf, Responder};
use regatta_table::Scratch;

use super::core::Core;
use crate::Error;
use crate::message::reply::{refuse_for, reply, reply_owned};
use crate::message::{DenseState, LeaseRows, ReturnRows};

impl Core {
    /// Sends whole rows; absent ones are created if their keys are admitted.
    pub(super) fn lease_rows(&self, lease: LeaseRows, payload: &[u8], responder: Responder) {
        let read = || {
            let table = self.table_of(lease.table)?;
            let (keys, counts) = (lease.keys.of(payload), lease.counts.of(payload));
            let width = table.rows.row_width().map_err(|e| table.error(e))?;
            let mut rows = vec![0.0; keys.len() * width];
            let scratch = &mut Scratch::default();
            let absent = table.rows.lease(keys, counts, &mut rows, scratch);
            let absent = absent.map_err(|e| table.error(e))?;
            Ok(LeaseRows::reply(&rows, &absent, |n| responder.buffer(n)))
        };
        answer(read(), responder);
    }

    /// Takes whole rows back.
    pub(super) fn return_rows(&self, given: ReturnRows, payload: &[u8], responder: Responder) {
        let write = || {
            let table = self.table_of(given.table)?;
            let (keys, rows) = (given.keys.of(payload), given.rows.of(payload));
            let scratch = &mut Scratch::default();
            table.rows.give_back(keys, rows, scratch).map_err(|e| table.error(e))
        };
        done(write(), responder);
    }

    /// Sends the dense parameters with their states.
    pub(super) fn lease_dense(&self, responder: Responder) {
        let read = || {
            let tables = self.tables.iter().map(|table| table.rows.steps()).collect();
            let state = DenseState { steps: self.steps(), tables, pieces: self.dense.export()? };
            Ok(state.encode(|n| responder.buffer(n)))
        };
        answer(read(), responder);
    }

    /// Takes the dense parameters back, and counts the steps that they have made.
    pub(super) fn return_dense(&self, state: &DenseState, responder: Responder) {
        let write = || {
            if state.tables.len() != self.tables.len() {
                let (n, tables) = (state.tables.len(), self.tables.len());
                return Err(Error::malformed(format!("steps of {n} tables, there are {tables}")));
            }
            self.dense.import(&state.pieces, false, |_| true)?;
            self.steps.store(state.steps, Ordering::Relaxed);
            for (table, steps) in self.tables.iter().zip(&state.tables) {
                table.rows.set_steps(*steps);
            }
            Ok(())
        };
        done(write(), responder);
    }
}

fn answer(read: Result<Buf, Error>, responder: Responder) {
    match read {
        Ok(payload) => reply_owned(responder, payload),
        Err(e) => refuse_for(responder, &e),
    }
}

fn done(written: Result<(), Error>, responder: Responder) {
    match written {
        Ok(()) => reply(responder, &[]),
        Err(e) => refuse_for(responder, &e),
    }
}
