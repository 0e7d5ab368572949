//! A directory that grows: every file that is moved into it is read once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_store::{Stores, is_remote};

use super::{LONGEST_WAIT, PassPlan, Planner, Upcoming, Waiting};
use crate::Error;
use crate::files::list_files;

/// Which directory, and when it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailOptions {
    /// The directory.
    pub folder: String,
    /// Most files of a data pass.
    pub files_per_pass: usize,
    /// When the data end.
    pub end: End,
}

/// When data that arrive while training end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct End {
    /// Nothing has come for this long; never if there is none.
    pub idle: Option<Duration>,
    /// This file is there: the data end after the data pass that is being trained.
    pub stop_file: Option<PathBuf>,
}

impl End {
    /// Why the data end now, if somebody has asked for that.
    pub(super) fn asked(&self) -> Option<Upcoming> {
        let file = self.stop_file.as_deref().filter(|file| file.exists())?;
        Some(Upcoming::End(format!("{} is there", file.display())))
    }

    /// Nothing has come: waits for a while, or ends.
    pub(super) fn wait(&self, waiting: &mut Waiting, what: &str) -> Upcoming {
        const PAUSE: Duration = Duration::from_millis(200);
        let waited = waiting.elapsed();
        match self.idle {
            Some(idle) if waited >= idle => {
                let seconds = idle.as_secs_f64();
                Upcoming::End(format!("nothing has come for {seconds} s: {what}"))
            }
            idle => {
                let left = idle.map_or(LONGEST_WAIT, |idle| idle - waited);
                std::thread::sleep(PAUSE.min(left));
                Upcoming::Later(what.to_string())
            }
        }
    }
}

/// Plans data passes over the files of a directory that grows.
pub struct Tail {
    options: TailOptions,
    stores: Stores,
    waiting: Waiting,
}

impl Tail {
    /// A planner; nothing is looked for yet.
    pub fn new(options: TailOptions, stores: &Stores) -> Tail {
        Tail { options, stores: stores.clone(), waiting: Waiting::default() }
    }

    fn list(&self) -> Result<Vec<PathBuf>, Error> {
        match list_files(&self.options.folder, &self.stores) {
            Err(Error::NoFiles(_)) => Ok(vec![]),
            listed => listed,
        }
    }
}

impl Planner for Tail {
    fn next_pass(&mut self, after: Option<&PassPlan>) -> Result<Upcoming, Error> {
        if let Some(end) = self.options.end.asked() {
            return Ok(end);
        }
        let trained: BTreeSet<String> = match after {
            None => BTreeSet::new(),
            Some(plan) => serde_json::from_str(&plan.next).map_err(|_| {
                let folder = &self.options.folder;
                Error::config(format!(
                    "'{}' is not of {folder}: other data were trained",
                    plan.title
                ))
            })?,
        };
        let files = self.list()?;
        // What was removed needs no memory; a new file of that name is another one.
        let mut known: BTreeSet<String> =
            files.iter().map(|file| name_of(file)).filter(|name| trained.contains(name)).collect();
        let is_new = |file: &&PathBuf| !known.contains(&name_of(file));
        let new = files.iter().filter(is_new).take(self.options.files_per_pass);
        let new: Vec<&PathBuf> = new.collect();
        let Some(first) = new.first() else {
            let what = format!("a new file in {}", self.options.folder);
            return Ok(self.options.end.wait(&mut self.waiting, &what));
        };
        self.waiting.end();
        let title = match new.len() {
            1 => format!("file {}", name_of(first)),
            n => format!("{n} files, {} first", name_of(first)),
        };
        let parts = new.iter().map(|file| file.to_string_lossy().into_owned()).collect();
        known.extend(new.iter().map(|file| name_of(file)));
        let next = serde_json::to_string(&known).expect("names are plain data");
        Ok(Upcoming::Pass(PassPlan { title, parts, next }))
    }
}

/// The name of a file within its directory, whose path may be written in another way tomorrow.
fn name_of(file: &Path) -> String {
    let text = file.to_string_lossy();
    let name = if is_remote(file) { text.rsplit('/').next() } else { None };
    let own = || file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.map_or_else(own, str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(folder: &Path, end: End) -> Tail {
        let folder = folder.to_string_lossy().into_owned();
        Tail::new(TailOptions { folder, files_per_pass: 2, end }, &Stores::new())
    }

    fn pass(tail: &mut Tail, after: Option<&PassPlan>) -> PassPlan {
        match tail.next_pass(after).unwrap() {
            Upcoming::Pass(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_file_is_read_once_whenever_it_comes() {
        let dir = tempfile::tempdir().unwrap();
        let add = |name: &str| std::fs::write(dir.path().join(name), "x\n").unwrap();
        let end = End { idle: Some(Duration::ZERO), stop_file: None };
        let mut tail = tail(dir.path(), end);
        ["b", "c", "a", ".hidden"].iter().for_each(|name| add(name));
        let first = pass(&mut tail, None);
        assert_eq!(first.title, "2 files, a first");
        let names = |plan: &PassPlan| -> Vec<String> {
            plan.parts.iter().map(|part| name_of(Path::new(part))).collect()
        };
        assert_eq!(names(&first), ["a", "b"]);
        // Another process continues, and a file sorts before those that were read.
        add("0");
        let second = pass(&mut tail, Some(&first));
        assert_eq!(names(&second), ["0", "c"]);
        // The same file again is another one once it was gone.
        std::fs::remove_file(dir.path().join("b")).unwrap();
        let end = tail.next_pass(Some(&second)).unwrap();
        assert!(matches!(&end, Upcoming::End(why) if why.starts_with("nothing has come")));
        std::fs::write(dir.path().join("d"), "x\n").unwrap();
        let third = pass(&mut tail, Some(&second));
        assert_eq!((third.title.as_str(), names(&third)), ("file d", vec!["d".to_string()]));
        add("b");
        assert_eq!(names(&pass(&mut tail, Some(&third))), ["b"]);
    }

    #[test]
    fn a_stop_file_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let stop = dir.path().join("stop");
        let mut tail = tail(dir.path(), End { idle: None, stop_file: Some(stop.clone()) });
        let waits = tail.next_pass(None).unwrap();
        assert!(matches!(waits, Upcoming::Later(_)), "{waits:?}");
        std::fs::write(&stop, "").unwrap();
        let end = tail.next_pass(None).unwrap();
        assert_eq!(end, Upcoming::End(format!("{} is there", stop.display())));
    }
}
