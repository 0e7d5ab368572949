//! Recommender models from PaddleRec YAML files and click logs.
//!
//! Reading order: [`zoo`] (the models), [`Hyper`] (what a YAML file says of one).

mod error;
mod hyper;
pub mod zoo;

pub use error::Error;
pub use hyper::{Hyper, HyperKey, HyperValue};
