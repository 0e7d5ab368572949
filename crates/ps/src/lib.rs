//! Parameter servers: workers pull values and push gradients, servers hold tables and update them.
//!
//! It does not know of programs.
//!
//! Reading order: [`Mode`], [`communicator`] (what a worker exchanges when), [`cut`] (one state of the
//! whole job, for checkpoints), [`message`] (the bytes),
//! [`partition`] (who holds what).
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod client;
pub mod communicator;
pub mod cut;
mod error;
pub mod message;
mod mode;
pub mod partition;
pub mod rounds;
mod route;
mod server;

pub use client::{
    Client, ClientConfig, ClientTable, GeoTicket, PullTicket, Pulled, PushTicket, WrittenTicket,
};
pub use cut::{CutOrder, CutScope};
pub use error::Error;
pub use message::{Gradients, PullSpec, Wire};
pub use mode::{AsyncConfig, BadSetting, Mode};
pub use regatta_net::{Event as NetEvent, JobToken, Observer};
pub use server::{DenseSetup, Server, ServerConfig, TableSetup, Tune};
