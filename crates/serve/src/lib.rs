//! Trained models that answer over HTTP.
//!
//! A [`Server`] listens, reads JSON, scores rows and answers; [`Config`] holds its limits. It does
//! not know how a model works or where it is stored: a [`Source`] opens one and says when there is
//! another, a [`Model`] hands out a [`Scorer`] for every thread.
//!
//! Every thread has a runtime, connections, a scorer and counters of its own, so threads meet only
//! at the listening socket. Rows of requests that have arrived together are scored together: the
//! cost of walking over the weights is shared, and nobody waits for a batch to fill.
//!
//! Reading order: `scorer` (what is served), `server` ([`Server`]: threads, start and stop),
//! `connection` (sockets, slow clients), `tls` ([`Tls`]: HTTPS), `routes` (paths, tokens,
//! statuses), `request` (JSON to rows), `raw` (raw values, by
//! declared features), `rows` (rows to batches), `worker` (the scoring of one
//! thread), `reply` (scores to JSON), `reload` (a new model), `metrics`.
#![warn(missing_docs)]
#![warn(clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connection;
mod metrics;
mod raw;
mod reload;
mod reply;
mod request;
mod routes;
mod rows;
mod scorer;
mod server;
mod tls;
mod worker;

pub use scorer::{About, Feature, Kind, Model, ScoreError, Scorer, Source};
pub use server::{Config, Error, Server, StopSummary};
pub use tls::Tls;
