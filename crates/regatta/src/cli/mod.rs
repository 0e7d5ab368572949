//! The command line: flags in, lines out; one file per subcommand.
//!
//! It is a part of the library so that a program in another language can carry it inside. Such a
//! program says how it is started again ([`ThisProgram`]): jobs have processes of their own.
//!
//! Exit codes: 0 done, 1 the training did not reach its goal or failed on the way, 2 wrong flags or
//! input, 101 a defect of this program.

mod checkpoint;
mod console;
mod data;
mod devices;
mod export;
mod features;
mod fit_a_line;
mod import;
mod infer;
mod job;
mod job_args;
mod launch;
mod mlp;
mod models;
mod plan;
mod predict;
mod programs;
mod progress;
mod remote;
mod runs;
mod scores;
mod serve;
mod train;
mod vectors;
mod verify;

use std::ffi::OsString;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use clap::{Parser, Subcommand};
pub use regatta_launch::ThisProgram;

/// What the command is called, however it was started.
const NAME: &str = "regatta";

/// Trains recommender models, on one machine or many.
#[derive(Debug, Parser)]
#[command(name = NAME, version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    FitALine(fit_a_line::Args),
    Mlp(mlp::Args),
    Programs(programs::Args),
    Train(Box<train::Args>),
    Launch(Box<launch::Args>),
    Infer(infer::Args),
    Runs(runs::Args),
    Models(models::Args),
    Data(data::Args),
    Features(features::Args),
    Devices(devices::Args),
    Checkpoint(checkpoint::Args),
    Serve(serve::Args),
    Plan(plan::Args),
    Export(export::Args),
    Import(import::Args),
    Predict(predict::Args),
    /// What a launcher starts beside the processes of its job.
    #[command(name = regatta_launch::GUARDIAN, hide = true)]
    Guardian {
        job: String,
        folder: Option<PathBuf>,
    },
    Verify(verify::Args),
}

/// How a command that found no mistake ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The message is already printed.
    GoalMissed,
    /// With the exit code of another process; the message is already printed.
    Exit(u8),
}

/// Runs the command line with these arguments, without the name of the program, and returns its
/// exit code.
///
/// It is meant for a process of its own, and for the main thread of it. `launch`, `train` with
/// several processes and `serve` take the signals INT and TERM of the process; those of a job also
/// take every child of the process for a part of the job ([`regatta_launch::Supervisor`]). All
/// other commands leave signals as they are: whoever wants Ctrl-C to end them must not have set a
/// handler.
///
/// ```
/// use regatta::cli::{self, ThisProgram};
///
/// // Does not end this process, whatever is asked for.
/// assert_eq!(cli::main(["--version".into()], &ThisProgram::Binary), 0);
/// assert_eq!(cli::main(["row".into()], &ThisProgram::Binary), 2);
/// ```
pub fn main(args: impl IntoIterator<Item = OsString>, this: &ThisProgram) -> u8 {
    let args = [OsString::from(NAME)].into_iter().chain(args);
    // What a binary does about a panic: the message is printed, the exit code is this one. Nothing
    // is used after it.
    let code = match Cli::try_parse_from(args) {
        Ok(cli) => catch_unwind(AssertUnwindSafe(|| run(cli.command, this))).unwrap_or(101),
        Err(error) => {
            // If nobody reads it, there is nobody to tell.
            let _ = error.print();
            u8::try_from(error.exit_code()).unwrap_or(2)
        }
    };
    // Only the end of a Rust program does this by itself.
    let _ = io::stdout().flush();
    code
}

fn run(command: Command, this: &ThisProgram) -> u8 {
    let result = match command {
        Command::FitALine(args) => fit_a_line::run(&args),
        Command::Mlp(args) => mlp::run(&args),
        Command::Programs(args) => programs::run(&args),
        Command::Train(args) => train::run(&args, this),
        Command::Launch(args) => launch::run(&args, this),
        Command::Infer(args) => infer::run(&args, this),
        Command::Runs(args) => runs::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Data(args) => data::run(&args),
        Command::Features(args) => features::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Guardian { job, folder } => {
            regatta_launch::guard(&job, folder.as_deref());
            Ok(Outcome::Done)
        }
        Command::Verify(args) => verify::run(&args),
    };
    match result {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::GoalMissed) => 1,
        Ok(Outcome::Exit(code)) => code,
        // The reader of our lines has seen enough.
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            eprintln!("error: {error}");
            if is_disk(&error) { 1 } else { 2 }
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether the disk refused what flags and input asked for: not their mistake.
fn is_disk(error: &anyhow::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let refused = [FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull];
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| refused.contains(&cause.kind()))
}

/// A number larger than 0 that is one in single precision, too.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && (x as f32).is_finite() => Ok(x),
        _ => Err("it must be a number larger than 0".into()),
    }
}

/// A count of at least 1.
fn count(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=1 << 24).contains(&n) => Ok(n),
        _ => Err(format!("it must be a whole number from 1 to {}", 1 << 24)),
    }
}

/// "1 worker", "2 workers".
fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A number of threads.
fn threads(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=1024).contains(&n) => Ok(n),
        _ => Err("it must be a whole number from 1 to 1024".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        super::Cli::command().debug_assert();
    }
}
