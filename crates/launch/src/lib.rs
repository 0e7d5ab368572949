//! Flags and environment become a supervised set of processes, on one machine or the local part of
//! a job on several.
//!
//! It does not know what the processes do: they are any program, which finds its place in
//! environment variables (crate `regatta-cluster`).
//!
//! # Reading order
//!
//! 1. [`run`]: the whole of it, in order; [`flags`]: what the user asks for
//! 2. [`plan`]: who takes part becomes the places of the processes on this machine; [`ports`]:
//!    which addresses are here, which ports are free; `devices`: whether there are accelerators
//! 3. [`program`]: what the user typed becomes something that can be started; `process`: [`Spec`],
//!    one process to start; [`cores`]: where it may run
//! 4. `supervisor`: [`Supervisor`] starts them, shows their lines, ends them; `guard` sees to it
//!    that nothing is left, `output` handles lines, [`status`] what processes say beside them;
//!    `folder`: [`JobFolder`], private to the job
//! 5. [`meeting`]: launchers on several machines find each other and hear of each other's failures
//! 6. [`k8s`]: the same job as Kubernetes objects
//! 7. `error`: why a job cannot be launched
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

pub mod cores;
mod devices;
mod error;
pub mod flags;
mod folder;
mod guard;
pub mod k8s;
pub mod meeting;
mod output;
pub mod plan;
pub mod ports;
mod process;
pub mod program;
pub mod run;
pub mod status;
mod supervisor;

pub use error::Error;
pub use folder::JobFolder;
pub use guard::{GUARDIAN, guard};
pub use process::{Exit, Part, Spec};
pub use program::{Program, ThisProgram};
pub use supervisor::{Failure, LISTENING, Options, Outcome, Remote, Report, Supervisor, Timing};

/// A token for a job, which nobody can guess.
///
/// # Errors
/// If the system has no random numbers.
pub fn random_token() -> Result<String, Error> {
    Ok(format!("{}{}", regatta_net::RANDOM, random_hex()?))
}

/// A secret that nobody can guess, as 32 hexadecimal digits.
///
/// # Errors
/// If the system has no random numbers.
pub fn random_hex() -> Result<String, Error> {
    let bytes: [u8; 16] = regatta_net::random().map_err(|e| Error::System(e.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
