//! Tables larger than memory: rows that were not used for long lie in files.

mod config;

pub use config::TierConfig;
