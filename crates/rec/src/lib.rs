//! Recommender models from PaddleRec YAML files and click logs.
//!
//! Reading order: [`config`] (what a file says), [`Hyper`] and [`zoo`] (the models).

pub mod config;
mod error;
mod hyper;
pub mod zoo;

pub use config::Config;
pub use error::Error;
pub use hyper::{Hyper, HyperKey, HyperValue};
