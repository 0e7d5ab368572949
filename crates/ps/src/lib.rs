//! Parameter servers: workers pull values and push gradients, servers hold tables and update them.
//!
//! It does not know of programs.
//!
//! Reading order: [`Mode`], [`communicator`] (what a worker exchanges when), [`message`] (the bytes),
//! [`partition`] (who holds what).
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod client;
pub mod communicator;
mod error;
pub mod message;
mod mode;
pub mod partition;
pub mod rounds;
mod route;
mod server;
pub mod storage;

pub use client::{
    Client, ClientConfig, ClientTable, GeoTicket, Gradients, PullTicket, PushTicket, Wanted,
};
pub use error::Error;
pub use mode::{AsyncConfig, Mode};
pub use regatta_net::{Event as NetEvent, JobToken, Observer};
pub use server::{DenseSetup, Server, ServerConfig, TableSetup, Tune};

/// The status of an answer that is what was asked for; any other carries a reason as text.
pub(crate) const STATUS_OK: u32 = 0;
/// The status of an answer that carries a reason.
pub(crate) const STATUS_REFUSED: u32 = 1;
