//! How large a cluster a model needs, before there is one: from a configuration, the look of its
//! data and figures of machines, the memory of every server, the bytes of every example, what will
//! be the bottleneck, and the speed of N servers with M workers.
//!
//! It is arithmetic, not a simulation of the network. `bench/plan_check` compares it with runs.
//!
//! ```no_run
//! use regatta_plan::{Cluster, Workload, survey};
//! use regatta_rec::Config;
//!
//! let config = Config::load("models/rank/dnn/config.yaml", &[])?;
//! let cluster = Cluster::load("cluster.yaml".as_ref())?;
//! let workload = Workload::new(&config, &cluster.data)?;
//! let plan = survey(&workload, &cluster);
//! print!("{plan}");
//! # Ok::<(), regatta_plan::Error>(())
//! ```
//!
//! Reading order: [`cluster`] (the file), [`workload`] (what a step of the model takes),
//! [`predict`] (one cluster), [`advice`] (what does not fit and the smallest change), `survey` (all
//! sizes), [`calibrate`] (figures of this machine).

pub mod advice;
pub mod calibrate;
pub mod cluster;
mod error;
pub mod predict;
mod survey;
pub mod tier;
pub mod workload;

pub use cluster::Cluster;
pub use error::Error;
pub use predict::{Bottleneck, Prediction, predict};
pub use survey::{Survey, survey};
pub use workload::Workload;
