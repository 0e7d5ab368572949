//! Parameter servers: workers pull values and push gradients, servers hold tables and update them.
//!
//! It does not know of programs.
//!
//! Reading order: [`Mode`], [`communicator`] (what a worker exchanges when), [`message`] (the bytes),
//! [`partition`] (who holds what).

pub mod communicator;
mod error;
pub mod message;
mod mode;
pub mod partition;
pub mod rounds;

pub use error::Error;
pub use mode::{AsyncConfig, Mode};
