//! The place of a process in its job: alone, a parameter server, a worker, or one rank of a group.
//!
//! A launcher writes the place into environment variables and the started program reads it back.
//! This crate is both sides of that contract and the only code of the workspace that looks at
//! environment variables. It opens no sockets and resolves no names.
//!
//! ```
//! use regatta_cluster::{Env, Place, PsRole};
//!
//! let env = Env::from([
//!     ("TRAINING_ROLE", "TRAINER"),
//!     ("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:6000, 10.0.0.2:6000"),
//!     ("PADDLE_TRAINERS_NUM", "4"),
//!     ("PADDLE_TRAINER_ID", "3"),
//! ]);
//! let Place::ParameterServer(place) = Place::from_env(&env)? else { panic!() };
//! assert_eq!(place.role, PsRole::Worker(3));
//! assert_eq!(place.servers, ["10.0.0.1:6000", "10.0.0.2:6000"]);
//!
//! // A variable that is missing is named.
//! let env = Env::from([("TRAINING_ROLE", "TRAINER"), ("PADDLE_TRAINERS_NUM", "4")]);
//! let error = Place::from_env(&env).unwrap_err().to_string();
//! assert!(error.starts_with("PADDLE_PSERVERS_IP_PORT_LIST is not set"), "{error}");
//!
//! // None at all is a local run.
//! assert_eq!(Place::from_env(&Env::default())?, Place::Local);
//! # Ok::<(), regatta_cluster::Error>(())
//! ```
//!
//! # Reading order
//!
//! 1. `place`: [`Place`] and what belongs to it
//! 2. `env`: [`Env`], where variables are looked up; [`names`]: what they are called
//! 3. `read`: [`Place::from_env`], one file per way of saying it: `paddle_cloud` (parameter
//!    servers), `fluid` (the older names), `collective`, `scheduler` (mpirun, srun, Kubernetes)
//! 4. `write`: [`Place::to_env`], [`OtherFrameworks::to_env`]
//! 5. [`token`]: the secret of a job; `tls`: how its connections are protected
//! 6. `devices`: [`Devices`] of a process
//! 7. [`endpoints`]: lists of `host:port`; `error`: what can be wrong
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod devices;
pub mod endpoints;
mod env;
mod error;
pub mod names;
mod place;
mod read;
mod tls;
pub mod token;
mod write;

pub use devices::Devices;
pub use env::Env;
pub use error::Error;
pub use place::{CollectivePlace, JobIdentity, Place, PsPlace, PsRole};
pub use tls::{Tls, TlsFiles, TlsMode};
pub use write::OtherFrameworks;
