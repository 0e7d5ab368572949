//! Recommender models from PaddleRec YAML files and click logs.
//!
//! ```no_run
//! use regatta_rec::{Config, observe::Event, train};
//!
//! let config = Config::load("models/rank/dnn/config.yaml", &["runner.epochs=2".to_string()])?;
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
//! (programs), [`data`] (where examples come from), [`train()`] (the loop and the step), [`infer()`],
//! [`ps`] (the same against parameter servers), [`collective`] (the same by ranks without servers),
//! [`metrics`], `save` (epochs on disk), `export` (models that predict), `import` (weights from
//! elsewhere), `checkpoint` (going on after a crash), [`remote`] (checkpoints and models in stores),
//! [`observe`] and [`report`] (what a run tells), [`events`] (curves for TensorBoard).

mod checkpoint;
pub mod collective;
pub mod config;
pub mod data;
mod error;
pub mod events;
mod export;
mod hyper;
mod import;
mod infer;
pub mod metrics;
pub mod network;
pub mod observe;
pub mod ps;
pub mod remote;
pub mod report;
mod save;
mod train;
pub mod zoo;

pub use config::Config;
pub use error::Error;
pub use export::{Trained, export};
pub use hyper::{Hyper, HyperKey, HyperValue};
pub use import::{Needed, import, needed};
pub use infer::{infer, infer_worker};
pub use report::Report;
pub use save::{INFERENCE_FOLDER, epoch_folder};
pub use train::{Trainer, train};
