//! From what the user typed to something that can be started.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::flags::Flags;

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

    /// The interpreter for programs of Python: that which this process is, else what is called so.
    fn python(&self) -> PathBuf {
        match self {
            ThisProgram::Binary => PYTHON.into(),
            ThisProgram::Python { interpreter, .. } => interpreter.clone(),
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

    /// What the user means by the words after the flags: a program with its arguments, or `-m` with
    /// a module of Python. With `paddle`, programs of PaddlePaddle run on Regatta.
    ///
    /// # Errors
    /// If there is no program, nothing says how to run it, or it should be Python and is not.
    pub fn of_command(
        command: &[String],
        this: &ThisProgram,
        paddle: bool,
    ) -> Result<(Program, Vec<String>), Error> {
        let (first, rest) = first_word(command)?;
        if first == MODULE_FLAG || paddle {
            if first != MODULE_FLAG {
                check_python(first)?;
                check_file(first)?;
            }
            return Ok((Program::binary(this.python()), python_words(command, paddle)));
        }
        Ok((Program::resolve(first, this)?, rest.to_vec()))
    }

    /// What the user means: a binary, a script by its first line or its suffix (`.py`, `.sh`), or a
    /// command. `regatta` is this very command line. If that runs inside an interpreter of Python,
    /// so do scripts with its suffix.
    ///
    /// # Errors
    /// If there is such a file, but nothing says how to run it, or a path that leads nowhere.
    pub fn resolve(text: &str, this: &ThisProgram) -> Result<Program, Error> {
        let path = Path::new(text);
        if text == "regatta" {
            return this.program();
        }
        if !path.is_file() {
            if text.contains('/') || is_script(path) {
                check_file(text)?;
            }
            return Ok(Program::binary(path));
        }
        // `Command` would look a bare name up in PATH.
        let path = if text.contains('/') { path.to_path_buf() } else { Path::new(".").join(path) };
        if let (ThisProgram::Python { interpreter, .. }, Some("py")) = (this, suffix(&path)) {
            let args = vec![path.to_string_lossy().into_owned()];
            return Ok(Program { path: interpreter.clone(), args });
        }
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

/// What stands before the name of a module of Python.
const MODULE_FLAG: &str = "-m";
/// The module that runs programs of PaddlePaddle on Regatta.
const PADDLE_MODULE: &str = "regatta.paddle";
/// The interpreter if this command line does not run inside one.
const PYTHON: &str = "python3";

/// What pods of Kubernetes start: the words as they are, but for what [`Program::of_command`] would
/// give to an interpreter. Files are not here, so nobody looks for them.
///
/// # Errors
/// If there is no program, or it should be one of Python and is not.
pub(crate) fn of_pods(command: &[String], paddle: bool) -> Result<Vec<String>, Error> {
    let (first, _) = first_word(command)?;
    if first != MODULE_FLAG {
        if !paddle {
            return Ok(command.to_vec());
        }
        check_python(first)?;
    }
    Ok([vec![PYTHON.to_string()], python_words(command, paddle)].concat())
}

/// The program, which is no flag, and what follows.
fn first_word(command: &[String]) -> Result<(&str, &[String]), Error> {
    match command.split_first() {
        None => Err(Error::Usage("what should be started? add a program".into())),
        Some((first, rest)) if first == MODULE_FLAG => match rest.first() {
            Some(module) if !module.starts_with('-') => Ok((first, rest)),
            _ => Err(Error::Usage("-m needs the name of a module of Python".into())),
        },
        Some((first, _)) if first.starts_with('-') => Err(Flags::unknown(first)),
        Some((first, rest)) => Ok((first, rest)),
    }
}

/// Arguments of the interpreter.
fn python_words(command: &[String], paddle: bool) -> Vec<String> {
    let before: &[&str] = if paddle { &[MODULE_FLAG, PADDLE_MODULE] } else { &[] };
    before.iter().map(|word| word.to_string()).chain(command.iter().cloned()).collect()
}

/// Refuses what is no program of Python.
fn check_python(text: &str) -> Result<(), Error> {
    let path = Path::new(text);
    let has_line = || first_line(path).is_some_and(|words| words.concat().contains("python"));
    if suffix(path) == Some("py") || has_line() {
        return Ok(());
    }
    let is_interpreter =
        path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"python"));
    let why = match is_interpreter {
        true => "is an interpreter; leave it out and name the script",
        false => "is no script of Python, which ends in .py or has a first line with #!",
    };
    Err(Error::Program(format!("--paddle runs programs of PaddlePaddle, but {text} {why}")))
}

fn check_file(text: &str) -> Result<(), Error> {
    match Path::new(text).is_file() {
        true => Ok(()),
        false => Err(Error::Program(format!("there is no file {text}"))),
    }
}

fn suffix(path: &Path) -> Option<&str> {
    path.extension()?.to_str()
}

fn is_script(path: &Path) -> bool {
    by_suffix(path).is_some()
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
    match suffix(path)? {
        "py" => Some(vec![PYTHON.into()]),
        "sh" => Some(vec!["sh".into()]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::{Program, ThisProgram};

    fn file(dir: &Path, name: &str, text: &str, mode: u32) -> String {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_string_lossy().into_owned()
    }

    fn inside_python() -> ThisProgram {
        let args = ["-m", "regatta"].map(String::from).to_vec();
        ThisProgram::Python { interpreter: "/this".into(), args }
    }

    /// The words of a command line, the file and the arguments before the user's.
    fn words(program: &Program) -> String {
        let first = program.path.to_string_lossy().into_owned();
        [vec![first], program.args.clone()].concat().join(" ")
    }

    #[test]
    fn scripts_binaries_and_commands() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| file(dir.path(), name, text, mode);
        let resolve = |text: &str, this: &ThisProgram| {
            Program::resolve(text, this).map_err(|error| error.to_string())
        };
        let how =
            |text: &str| words(&resolve(text, &ThisProgram::Binary).unwrap()).replace(text, "FILE");
        assert_eq!(how(&file("a.py", "print()", 0o644)), "python3 FILE");
        assert_eq!(how(&file("b.py", "print()", 0o755)), "python3 FILE");
        let own_line = file("c.py", "#!/usr/bin/env python3\n", 0o755);
        assert_eq!(how(&own_line), "FILE");
        assert_eq!(how(&file("d.sh", "true", 0o644)), "sh FILE");
        assert_eq!(how(&file("e", "#!/bin/sh -e\n", 0o644)), "/bin/sh -e FILE");
        let binary = file("f", "ELF", 0o755);
        assert_eq!(how(&binary), "FILE");
        assert_eq!(how("python3"), "FILE");
        let error = |text: &str| resolve(text, &ThisProgram::Binary).unwrap_err();
        assert!(error(&file("g", "text", 0o644)).contains("neither executable"));
        assert!(error("nowhere/x").contains("no file nowhere/x"));
        assert!(error("missing.py").contains("no file missing.py"));
        // Inside an interpreter, that one runs what is Python.
        let inside = |text: &str| words(&resolve(text, &inside_python()).unwrap());
        assert_eq!(inside(&own_line), format!("/this {own_line}"));
        assert_eq!(inside(&binary), binary);
        assert_eq!(inside("regatta"), "/this -m regatta");
    }

    #[test]
    fn programs_of_paddle_and_modules() {
        let dir = tempfile::tempdir().unwrap();
        let script = file(dir.path(), "train.py", "print()", 0o644);
        let by_line = file(dir.path(), "train", "#!/usr/bin/env python3\n", 0o755);
        let how = |text: &str, this: &ThisProgram, paddle| {
            let command: Vec<String> = text.split_whitespace().map(str::to_string).collect();
            let (program, args) =
                Program::of_command(&command, this, paddle).map_err(|error| error.to_string())?;
            Ok::<_, String>([vec![words(&program)], args].concat().join(" "))
        };
        let (binary, inside) = (ThisProgram::Binary, inside_python());
        for text in [format!("{script} -m x --gpus 1"), by_line.clone(), "-m pkg.mod -x".into()] {
            let paddle = format!("-m regatta.paddle {text}");
            assert_eq!(how(&text, &binary, true), Ok(format!("python3 {paddle}")));
            assert_eq!(how(&text, &inside, true), Ok(format!("/this {paddle}")));
        }
        assert_eq!(how("-m pkg.mod -x", &binary, false), Ok("python3 -m pkg.mod -x".into()));
        assert_eq!(how("-m pkg.mod", &inside, false), Ok("/this -m pkg.mod".into()));
        for (text, paddle, reason) in [
            ("regatta train", true, "regatta is no script of Python"),
            ("python3 train.py", true, "python3 is an interpreter; leave it out"),
            ("missing.py", true, "there is no file missing.py"),
            ("-m", false, "-m needs the name of a module"),
            ("-m -x", true, "-m needs the name of a module"),
            ("-x", true, "no such argument: -x"),
            ("", false, "what should be started?"),
        ] {
            let error = how(text, &binary, paddle).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let pods = |text: &str| {
            let command: Vec<String> = text.split_whitespace().map(str::to_string).collect();
            super::of_pods(&command, true).map(|words| words.join(" "))
        };
        let there = pods("/data/train.py x").unwrap();
        assert_eq!(there, "python3 -m regatta.paddle /data/train.py x");
        assert!(pods("sh x").is_err());
    }
}
