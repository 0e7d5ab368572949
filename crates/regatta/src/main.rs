//! The command line.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use regatta::cli::{self, ThisProgram};

fn main() -> ExitCode {
    cli::main(std::env::args_os().skip(1), &ThisProgram::Binary).into()
}
