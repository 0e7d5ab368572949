//! Parameter servers.

pub mod communicator;
mod mode;
pub mod partition;

pub use mode::{AsyncConfig, Mode};
