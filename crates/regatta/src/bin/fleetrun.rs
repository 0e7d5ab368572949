//! `fleetrun`: another name for `regatta launch`.
#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let this = std::env::current_exe().unwrap_or_else(|_| "fleetrun".into());
    let regatta = this.with_file_name("regatta");
    // Only returns if it could not be started.
    let error = Command::new(&regatta).arg("launch").args(std::env::args_os().skip(1)).exec();
    eprintln!("error: cannot start {}, which belongs beside fleetrun: {error}", regatta.display());
    ExitCode::from(2)
}
