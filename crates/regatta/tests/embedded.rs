//! The command line inside another program, as the package for Python has it. A job takes every
//! child of the process for its own, so everything here is one test.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use regatta::cli::{self, ThisProgram};

/// Stands for the module that an interpreter runs: notes what it is started with, then is the
/// command line.
const MODULE: &str = "\
import os, sys
with open(os.path.join(os.path.dirname(__file__), 'started'), 'a') as notes:
    notes.write(sys.argv[1] + '\\n')
binary = BINARY
os.execv(binary, [binary] + sys.argv[1:])
";

/// What was started since the last look, but for guardians: those of short jobs end before they
/// have said anything.
fn started(dir: &Path) -> Vec<String> {
    let notes = fs::read_to_string(dir.join("started")).unwrap_or_default();
    let _ = fs::remove_file(dir.join("started"));
    notes.lines().filter(|line| *line != "guardian").map(str::to_string).collect()
}

fn has_python() -> bool {
    Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success())
}

#[test]
fn the_command_line_starts_its_processes_through_the_program_around_it() {
    if !has_python() {
        eprintln!("skipped: there is no python3");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("module.py");
    fs::write(&module, MODULE.replace("BINARY", &format!("{:?}", env!("CARGO_BIN_EXE_regatta"))))
        .unwrap();
    let this = ThisProgram::Python {
        interpreter: "python3".into(),
        args: vec![module.to_string_lossy().into_owned()],
    };
    let log = format!("--log_dir={}", dir.path().join("log").display());
    let run = |args: &[&str]| cli::main(args.iter().map(OsString::from), &this);

    // Mistakes and questions are answered without ending this process.
    assert_eq!(run(&["--help"]), 0);
    assert_eq!(run(&["launch", "--help"]), 0);
    assert_eq!(run(&["sail"]), 2);
    assert_eq!(run(&["launch"]), 2);
    assert_eq!(started(dir.path()), [""; 0]);

    // The processes of a job are started that way, and so is the guardian.
    assert_eq!(run(&["launch", &log, "--nproc_per_node=2", "regatta", "models"]), 0);
    let text = fs::read_to_string(dir.path().join("log/workerlog.1")).unwrap();
    assert!(text.contains("wide_deep"), "{text}");
    assert_eq!(started(dir.path()), ["models", "models"]);
    let wait =
        format!("until grep -sq guardian {:?}; do sleep 0.05; done", dir.path().join("started"));
    assert_eq!(run(&["launch", &log, "sh", "-c", &format!("{wait}; exit 7")]), 7);
    assert_eq!(started(dir.path()), [""; 0]);

    // So are those of a job that trains.
    let config = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/rank/logistic_regression/config.yaml");
    let config = config.to_string_lossy().into_owned();
    let data = "runner.train_data_dir=synthetic://ctr?slots=26&vocab=500&dense=13&seed=1&\
                examples=500";
    let save = format!("runner.model_save_path={}", dir.path().join("model").display());
    let folder = format!("runner.run_dir={}", dir.path().join("run").display());
    let train = ["train", "-m", &config, "-o", data, &save, &folder, "runner.epochs=1"];
    assert_eq!(run(&[&train[..], &["--workers", "1", "--servers", "1"]].concat()), 0);
    assert_eq!(started(dir.path()), ["train", "train"]);
    assert!(dir.path().join("model").is_dir());
}
