//! Recommender models from PaddleRec YAML files and click logs.
//!
//! ```no_run
//! use regatta_rec::{Config, train};
//! use regatta_train::observe::Event;
//!
//! let overrides = ["runner.epochs=2", "runner.run_dir=run"].map(String::from);
//! let config = Config::load("models/rank/dnn/config.yaml", &overrides)?;
//! let report = train(&config, &mut |event: &Event| {
//!     if let Event::Epoch(epoch) = event {
//!         eprintln!("{epoch}");
//!     }
//! })?;
//! assert_eq!(report.epochs.len(), 2);
//! # Ok::<(), regatta_rec::Error>(())
//! ```
//!
//! Reading order: [`config`] (what a file says), [`Hyper`] and [`zoo`] (the models), [`network`]
//! (programs), [`data`] (where examples come from), `arriving` (while training), [`run`] (a
//! configuration becomes a run of `regatta_train`), `learn` (what features need from the data),
//! [`infer()`], `save` (epochs on disk), `arriving_saves` and `donefile` (models by days), `export`
//! (models that predict), `import` (weights from elsewhere), `vectors` (of items and users, for
//! nearest neighbours).

mod arriving;
mod arriving_saves;
pub mod config;
pub mod data;
mod donefile;
mod error;
mod export;
mod gpubox;
mod hyper;
mod import;
mod infer;
mod learn;
mod memory;
pub mod network;
pub mod run;
mod save;
mod vectors;
pub mod zoo;

pub use config::Config;
pub use error::Error;
pub use export::{ModelSource, export};
pub use hyper::{Hyper, HyperKey, HyperValue};
pub use import::{ParameterSpec, import, needed};
pub use infer::{infer, infer_worker};
pub use learn::{learn, with_learned, with_saved};
pub use save::{INFERENCE_FOLDER, epoch_folder};
pub use vectors::{Vectors, table_vectors, towers};

pub use run::{Outcome, Place, train, train_as};
