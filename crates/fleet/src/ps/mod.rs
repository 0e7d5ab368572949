//! Training against parameter servers.
//!
//! Reading order: `exchange` (what a trainer program exchanges), `input` (what a step is
//! fed), `lookup` (the ids of a batch become keys and a small local table), `setup` (what servers and
//! workers are told), `run` (what the loop asks of its caller), `trainer` (the loop), `geo` (the loop of workers that train their own copy).

mod exchange;
mod geo;
mod input;
mod lookup;
mod run;
mod setup;
mod trainer;

pub use exchange::{Exchange, TableExchange};
pub use geo::GeoTrainer;
pub use lookup::Lookup;
pub use run::{Run, worker_part};
pub use setup::{
    Job, client_config, fingerprint, pieces, server_config, server_pieces, worker_startup,
};
pub use trainer::{PassTimes, PsTrainer};
