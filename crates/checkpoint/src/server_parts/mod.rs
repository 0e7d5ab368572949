//! The files of parameter servers, and how any number of servers (or one machine) reads them back.
//!
//! Checkpoints: [`ServerSnapshot`] is a server's part of one (`snapshot.rs`). Saved models are
//! plain tensors: a directory holds one `server-<i>-of-<n>.safetensors` per server (`save.rs`,
//! `load.rs`). Table rows are there as keys, rows of words (weights and optimizer state) and a word
//! of bookkeeping per row; pieces of dense parameters carry their position in their name.
//!
//! Which rows a server owns is not known here: whoever reads passes a test of keys.

mod load;
mod save;
mod snapshot;

use std::collections::BTreeMap;

use regatta_table::DensePiece;
use regatta_tensor::{DType, Tensor};

pub(crate) use load::open_all;
pub use load::{
    ServerParts, check_arrived, is_part, is_weights_alone, load_table, not_finite, saved_pieces,
};
pub use save::{SavePart, TableWeights, save_part, save_weights};
pub use snapshot::{ServerSnapshot, restore_pieces, restore_table, saved_keys};

use crate::Metadata;

/// Threads that load a table.
const LOAD_THREADS: usize = 4;
/// Where a file says how far the learning rate's schedule was.
const STEPS: &str = "steps";
/// What a row is, beside its words: days unseen, and what kind of body it has.
const KIND_BASE: u64 = 0;
const KIND_EXTENDED: u64 = 1;
const KIND_CANDIDATE: u64 = 2;

/// What the values of a dense piece are called, beside the names of its states.
const WEIGHTS: &str = "weights";
/// Where a file says which save it belongs to.
const SAVE_ID: &str = "save";
/// Where a file names a variable that holds NaN or infinity, if there is one.
const NOT_FINITE: &str = "not_finite";
/// Where a file says what it holds, if it holds less than a server does.
const CONTENT: &str = "content";
/// Weights that come from elsewhere, without optimizer state.
const WEIGHTS_ALONE: &str = "weights";

/// What a file calls a part of a table.
fn part_of(table: &str, what: &str) -> String {
    format!("table/{table}/{what}")
}

/// Where a file says how many steps a table has had.
fn steps_key(table: &str) -> String {
    format!("{STEPS}/{table}")
}

/// How many steps tables have had, by the files of a saved model or of a checkpoint.
#[derive(Debug, Default)]
pub struct TableSteps(Metadata);

impl TableSteps {
    /// Takes what a file says.
    pub fn read(&mut self, metadata: &Metadata) {
        let counts = metadata.iter().filter(|(key, _)| key.starts_with(STEPS));
        self.0.extend(counts.map(|(key, steps)| (key.clone(), steps.clone())));
    }

    /// 0 if no file says.
    pub fn of(&self, table: &str) -> u64 {
        self.0.get(&steps_key(table)).and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

/// The pieces of dense parameters among tensors, with states in any order.
fn dense_pieces(tensors: impl IntoIterator<Item = (String, Tensor)>) -> Vec<DensePiece> {
    let mut pieces: BTreeMap<(String, usize), DensePiece> = BTreeMap::new();
    for (name, tensor) in tensors {
        let (Some((param, offset, what)), DType::F32) = (piece_name(&name), tensor.dtype()) else {
            continue;
        };
        let piece = pieces.entry((param.to_string(), offset)).or_insert_with(|| DensePiece {
            name: param.to_string(),
            offset,
            weights: Vec::new(),
            states: Vec::new(),
        });
        let values = tensor.f32().to_vec();
        match what {
            WEIGHTS => piece.weights = values,
            state => piece.states.push((state.to_string(), values)),
        }
    }
    pieces.into_values().collect()
}

/// Parameter, position and content of a piece.
fn piece_name(name: &str) -> Option<(&str, usize, &str)> {
    let (rest, what) = name.strip_prefix("dense/")?.rsplit_once('/')?;
    let (param, at) = rest.rsplit_once('/')?;
    Some((param, at.parse().ok()?, what))
}
