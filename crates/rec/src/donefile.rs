//! PaddleRec's lists of saved models, which serving systems watch: a line for each.
//!
//! `donefile.txt` has models to continue from, `base_donefile.txt` and `patch_donefile.txt` have
//! models to serve and their changes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use regatta_checkpoint::publish_file;
use regatta_data::arrivals::PassOfDay;
use serde_json::{Value, json};

use crate::Error;

/// The model that training by days continues with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastModel {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// The data pass that it has seen last.
    pub(crate) after: PassOfDay,
}

impl LastModel {
    /// A line for the user.
    pub(crate) fn describe(&self) -> String {
        let LastModel { folder, after: PassOfDay { day, pass } } = self;
        let folder = folder.display();
        format!("donefile.txt: continuing after day {day}, pass {pass} with {folder}")
    }
}

/// The lists in the folder of the models.
pub(crate) struct DoneFiles {
    models: PathBuf,
    bases: PathBuf,
    deltas: PathBuf,
}

/// A number for a base: deltas name the base that they belong to.
#[expect(clippy::disallowed_methods, reason = "PaddleRec's number of a base is the time")]
pub(crate) fn base_key() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl DoneFiles {
    pub(crate) fn new(root: &Path) -> DoneFiles {
        let [models, bases, deltas] =
            ["donefile.txt", "base_donefile.txt", "patch_donefile.txt"].map(|name| root.join(name));
        DoneFiles { models, bases, deltas }
    }

    /// A model after a pass of a day; -1 is the end of the day before.
    pub(crate) fn model(&self, day: &str, pass: i64, folder: &Path) -> Result<(), Error> {
        let (key, path) = (self.key()?, folder.display());
        let same = |line: &str| {
            let fields: Vec<&str> = line.split('\t').collect();
            matches!(fields[..], [d, _, _, p, _] if d == day && p == pass.to_string())
        };
        add(&self.models, &format!("{day}\t{key}\t{path}/\t{pass}\t0"), same)
    }

    pub(crate) fn base(&self, folder: &Path, key: u64) -> Result<(), Error> {
        self.serve(&self.bases, folder, key, key)
    }

    pub(crate) fn delta(&self, folder: &Path) -> Result<(), Error> {
        let key = self.key()?;
        self.serve(&self.deltas, folder, base_key(), key)
    }

    fn serve(&self, list: &Path, folder: &Path, id: u64, key: u64) -> Result<(), Error> {
        // With a slash: its parts are where PaddleRec looks for the day.
        let input = format!("{}/", folder.display());
        let (id, key) = (id.to_string(), key.to_string());
        let line = json!({ "id": id, "key": key, "input": input, "monitor_data": "" });
        let same = |line: &str| input_of(line).is_some_and(|other| other == input);
        add(list, &line.to_string(), same)
    }

    /// The number of the last base.
    fn key(&self) -> Result<u64, Error> {
        let last = read(&self.bases)?.pop();
        let key = last.and_then(|line| serde_json::from_str::<Value>(&line).ok());
        Ok(key.and_then(|line| line["key"].as_str()?.parse().ok()).unwrap_or(0))
    }

    /// The model to continue with, if there is one. A day has so many passes.
    ///
    /// # Errors
    /// If the list cannot be read, or is none.
    pub(crate) fn last(&self, passes_per_day: u32) -> Result<Option<LastModel>, Error> {
        let Some(line) = read(&self.models)?.pop() else { return Ok(None) };
        let fields: Vec<&str> = line.split('\t').collect();
        let wrong = || {
            let (path, expected) = (self.models.display(), "day, key, folder, pass and 0, by tabs");
            Error::resume(format!("{path}: the last line is '{line}', expected {expected}"))
        };
        let [day, _, folder, pass, _] = fields[..] else { return Err(wrong()) };
        let pass: i64 = pass.parse().map_err(|_| wrong())?;
        let after = match u32::try_from(pass) {
            Ok(pass) => PassOfDay { day: day.to_string(), pass },
            // What was saved at the end of a day is in the folder of the next one.
            Err(_) => {
                let next = PassOfDay { day: day.to_string(), pass: passes_per_day };
                PassOfDay { day: next.day_before()?, ..next }
            }
        };
        Ok(Some(LastModel { folder: PathBuf::from(folder), after }))
    }
}

/// The lines of a list; none if there is no such list.
fn read(path: &Path) -> Result<Vec<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().filter(|l| !l.is_empty()).map(str::to_string).collect()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        Err(e) => Err(Error::resume(format!("{}: {e}", path.display()))),
    }
}

/// Adds a line at the end of a list. A line for the same model, saved before a restart, goes.
fn add(path: &Path, line: &str, same: impl Fn(&str) -> bool) -> Result<(), Error> {
    let mut lines = read(path)?;
    lines.retain(|line| !same(line));
    lines.push(line.to_string());
    Ok(publish_file(path, |file| writeln!(file, "{}", lines.join("\n")))?)
}

fn input_of(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    Some(line["input"].as_str()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_the_last_model_once() {
        let dir = tempfile::tempdir().unwrap();
        let done = DoneFiles::new(dir.path());
        assert_eq!(done.last(4).unwrap(), None);
        let model = dir.path().join("20240228").join("2");
        done.model("20240228", 1, &dir.path().join("1")).unwrap();
        done.model("20240228", 2, &model).unwrap();
        done.model("20240228", 2, &model).unwrap();
        let text = std::fs::read_to_string(dir.path().join("donefile.txt")).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.ends_with(&format!("20240228\t0\t{}/\t2\t0\n", model.display())), "{text}");
        let last = done.last(4).unwrap().unwrap();
        assert_eq!(last.after, PassOfDay { day: "20240228".into(), pass: 2 });
        // The end of a day is saved as the beginning of the next.
        done.base(&dir.path().join("20240301/base"), 17).unwrap();
        done.model("20240301", -1, &dir.path().join("20240301/0")).unwrap();
        let last = done.last(4).unwrap().unwrap();
        assert_eq!(last.after, PassOfDay { day: "20240229".into(), pass: 4 });
        done.delta(&dir.path().join("20240301/delta-1")).unwrap();
        let text = std::fs::read_to_string(dir.path().join("patch_donefile.txt")).unwrap();
        let line: Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(line["key"], "17");
        assert!(line["input"].as_str().unwrap().ends_with("/20240301/delta-1/"), "{line}");
    }

    #[test]
    fn a_list_that_is_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("donefile.txt"), "20240228 2\n").unwrap();
        let error = DoneFiles::new(dir.path()).last(4).unwrap_err().to_string();
        assert!(error.contains("donefile.txt: the last line is '20240228 2'"), "{error}");
    }
}
