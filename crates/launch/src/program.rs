//! From what the user typed to something that can be started.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// How this very command line is started once more: as a process of a job, or as its guardian.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ThisProgram {
    /// The file of this process, without further arguments.
    #[default]
    Binary,
    /// This process is an interpreter of Python.
    Python {
        /// Its file.
        interpreter: PathBuf,
        /// What comes before the arguments of the command line, such as `-m regatta`.
        args: Vec<String>,
    },
}

impl ThisProgram {
    /// What to start.
    ///
    /// # Errors
    /// If the system does not say which file this process runs.
    pub fn program(&self) -> Result<Program, Error> {
        match self {
            ThisProgram::Binary => std::env::current_exe()
                .map(Program::binary)
                .map_err(|e| Error::System(format!("cannot find this program: {e}"))),
            ThisProgram::Python { interpreter, args } => {
                Ok(Program { path: interpreter.clone(), args: args.clone() })
            }
        }
    }

    /// A command that starts it, also if another version has taken the place of the file meanwhile.
    pub(crate) fn command(&self) -> Result<Command, Error> {
        if *self == ThisProgram::Binary && cfg!(target_os = "linux") {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("regatta");
            return Ok(command);
        }
        let program = self.program()?;
        let mut command = Command::new(&program.path);
        command.args(&program.args);
        Ok(command)
    }
}

/// What runs: a file and the arguments before the user's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The file, or a name that is looked up in `PATH`.
    pub path: PathBuf,
    /// For a script: the script itself.
    pub args: Vec<String>,
}

impl Program {
    /// A file that can run by itself.
    pub fn binary(path: impl Into<PathBuf>) -> Program {
        Program { path: path.into(), args: Vec::new() }
    }

    /// What the user means: a binary, a script by its first line or its suffix (`.py`, `.sh`), or a
    /// command. `regatta` is this very command line.
    ///
    /// # Errors
    /// If there is such a file, but nothing says how to run it, or a path that leads nowhere.
    pub fn resolve(text: &str, this: &ThisProgram) -> Result<Program, Error> {
        let path = Path::new(text);
        if text == "regatta" {
            return this.program();
        }
        if !path.is_file() {
            if text.contains('/') || path.extension().is_some_and(|e| e == "py" || e == "sh") {
                return Err(Error::Program(format!("there is no file {text}")));
            }
            return Ok(Program::binary(path));
        }
        // `Command` would look a bare name up in PATH.
        let path = if text.contains('/') { path.to_path_buf() } else { Path::new(".").join(path) };
        let is_executable = fs::metadata(&path).is_ok_and(|m| m.permissions().mode() & 0o111 != 0);
        let first_line = first_line(&path);
        if is_executable && (first_line.is_some() || by_suffix(&path).is_none()) {
            return Ok(Program::binary(path));
        }
        let interpreter = by_suffix(&path).or(first_line).ok_or_else(|| {
            Error::Program(format!(
                "{text} is neither executable nor a script: use chmod +x, a first line with #!, or \
                 the suffix .py or .sh"
            ))
        })?;
        Ok(Program::script(&interpreter, &path))
    }

    fn script(interpreter: &[String], path: &Path) -> Program {
        let mut args: Vec<String> = interpreter[1..].to_vec();
        args.push(path.to_string_lossy().into_owned());
        Program { path: PathBuf::from(&interpreter[0]), args }
    }
}

/// The interpreter in the first line, if it begins with `#!`.
fn first_line(path: &Path) -> Option<Vec<String>> {
    let mut line = Vec::new();
    let file = BufReader::new(File::open(path).ok()?);
    std::io::Read::take(file, 256).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line).ok()?;
    let words: Vec<String> =
        line.strip_prefix("#!")?.split_whitespace().map(str::to_string).collect();
    if words.is_empty() { None } else { Some(words) }
}

fn by_suffix(path: &Path) -> Option<Vec<String>> {
    match path.extension()?.to_str()? {
        "py" => Some(vec!["python3".into()]),
        "sh" => Some(vec!["sh".into()]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::{Program, ThisProgram};

    #[test]
    fn scripts_binaries_and_commands() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.to_string_lossy().into_owned()
        };
        let this = ThisProgram::Python {
            interpreter: "/this".into(),
            args: vec!["-m".into(), "regatta".into()],
        };
        let resolve = |text: &str| Program::resolve(text, &this).map_err(|e| e.to_string());
        let how = |text: &str| {
            let program = resolve(text).unwrap();
            let words = program.args.iter().map(|a| a.replace(text, "FILE"));
            let first = program.path.to_string_lossy().replace(text, "FILE");
            [first].into_iter().chain(words).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(how(&file("a.py", "print()", 0o644)), "python3 FILE");
        assert_eq!(how(&file("b.py", "print()", 0o755)), "python3 FILE");
        assert_eq!(how(&file("c.py", "#!/usr/bin/env python3\n", 0o755)), "FILE");
        assert_eq!(how(&file("d.sh", "true", 0o644)), "sh FILE");
        assert_eq!(how(&file("e", "#!/bin/sh -e\n", 0o644)), "/bin/sh -e FILE");
        assert_eq!(how(&file("f", "ELF", 0o755)), "FILE");
        assert_eq!(how("regatta"), "/this -m FILE");
        assert_eq!(how("python3"), "FILE");
        assert!(resolve(&file("g", "text", 0o644)).unwrap_err().contains("neither executable"));
        assert!(resolve("nowhere/x").unwrap_err().contains("no file nowhere/x"));
        assert!(resolve("missing.py").unwrap_err().contains("no file missing.py"));
    }
}
