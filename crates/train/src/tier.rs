//! Tables larger than memory: what the user says of them becomes the tier of a server's table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use regatta_table::TierConfig;

use crate::Error;

/// Batches ahead of training whose rows are read, if nothing else is said.
pub const LOOKAHEAD: u64 = 8;
/// Most batches ahead: each one is held in memory by its worker.
pub const MAX_LOOKAHEAD: u64 = 256;

/// How much of a table each server keeps in memory; the other rows are on its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// Megabytes (2^20 bytes) of rows in the memory of a server; the index is not counted.
    pub memory_mb: u64,
    /// Folder on a disk of the server's machine. Servers make folders of their own in it.
    pub ssd_dir: PathBuf,
    /// Batches ahead of training whose rows are read.
    pub lookahead: u64,
}

/// The tables that have a tier, by name.
pub type Tiers = BTreeMap<String, Tier>;

impl Tier {
    /// What is wrong with it: the key and the reason.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if self.memory_mb == 0 {
            return Some(("memory_mb", "should be at least 1, but is 0".into()));
        }
        if self.memory_mb > u64::MAX >> 20 {
            return Some(("memory_mb", format!("{} is more than there can be", self.memory_mb)));
        }
        if self.ssd_dir.as_os_str().is_empty() {
            let reason = "must be set with memory_mb: a folder on an SSD of the server's machine";
            return Some(("ssd_dir", reason.into()));
        }
        let lookahead = self.lookahead;
        (!(1..=MAX_LOOKAHEAD).contains(&lookahead)).then(|| {
            ("lookahead", format!("should be from 1 to {MAX_LOOKAHEAD}, but is {lookahead}"))
        })
    }

    /// The tier of a table on one server, whose folder is tried.
    ///
    /// # Errors
    /// If something is wrong with it, or the folder cannot be used.
    pub(crate) fn on_server(&self, table: &str, server: usize) -> Result<TierConfig, Error> {
        let key = |name: &str| format!("table_parameters.{table}.{name}");
        if let Some((name, reason)) = self.problem() {
            return Err(Error::Config(format!("{}: {reason}", key(name))));
        }
        try_folder(&self.ssd_dir).map_err(|e| {
            let dir = self.ssd_dir.display();
            let remedy = "name a folder that the server may write to";
            Error::Config(format!("{}: cannot write to {dir}: {e}; {remedy}", key("ssd_dir")))
        })?;
        Ok(TierConfig {
            memory_bytes: self.memory_mb << 20,
            dir: self.ssd_dir.join(folder_of(table, server)),
            lookahead: self.lookahead as usize,
        })
    }
}

/// Checks that every tier is one of a table of the model.
///
/// # Errors
/// If not, with the names that there are.
pub fn check_names<'a>(
    tiers: &Tiers,
    tables: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), Error> {
    let unknown = tiers.keys().find(|name| !tables.clone().any(|table| table == *name));
    let Some(name) = unknown else { return Ok(()) };
    let known: Vec<&str> = tables.collect();
    Err(Error::Config(match known[..] {
        [] => format!("table_parameters.{name}: the model has no sparse tables"),
        _ => format!(
            "table_parameters.{name}: there is no table '{name}'; the model has {}",
            known.join(", ")
        ),
    }))
}

/// For training without servers, where tables are dense parameters of the process.
///
/// # Errors
/// If a table has a tier.
pub fn refuse_without_servers(tiers: &Tiers) -> Result<(), Error> {
    let Some(name) = tiers.keys().next() else { return Ok(()) };
    Err(Error::Config(format!(
        "table_parameters.{name}.memory_mb: rows on disk need a sparse table, which servers hold; \
         this process trains without servers and holds the whole table as a parameter: start it \
         with a server (fleetrun --server_num=1 --worker_num=1), or leave memory_mb out"
    )))
}

/// Removes what a killed server of this number has left of other tables, as of a job whose tables
/// had other names: nobody else would. What another job uses stays.
pub(crate) fn remove_leftovers(tiers: &Tiers, server: usize) {
    let own: Vec<PathBuf> =
        tiers.iter().map(|(table, tier)| tier.ssd_dir.join(folder_of(table, server))).collect();
    let ending = format!(".server-{server}");
    let mut folders: Vec<&PathBuf> = tiers.values().map(|tier| &tier.ssd_dir).collect();
    folders.dedup();
    let entries = folders.into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    for entry in entries.flatten() {
        let Ok(path) = entry.map(|entry| entry.path()) else { continue };
        if path.to_string_lossy().ends_with(&ending) && !own.contains(&path) {
            regatta_table::sweep_tier(&path);
        }
    }
}

/// The folder of a table on one server: several servers may share a machine.
fn folder_of(table: &str, server: usize) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = table.chars().map(plain).collect();
    format!("{name}.server-{server}")
}

/// Makes the folder if need be, and a file in it.
fn try_folder(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    tempfile_in(dir)
}

fn tempfile_in(dir: &Path) -> std::io::Result<()> {
    let path = dir.join(format!(".try-{}", std::process::id()));
    std::fs::write(&path, b"try")?;
    std::fs::remove_file(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(dir: &Path) -> Tier {
        Tier { memory_mb: 4, ssd_dir: dir.to_path_buf(), lookahead: LOOKAHEAD }
    }

    #[test]
    fn servers_have_folders_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let one = tier(dir.path()).on_server("emb/1", 0).unwrap();
        let two = tier(dir.path()).on_server("emb/1", 1).unwrap();
        assert_eq!((one.memory_bytes, one.lookahead), (4 << 20, 8));
        assert_eq!(one.dir, dir.path().join("emb_1.server-0"));
        assert_eq!(two.dir, dir.path().join("emb_1.server-1"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left of trying");
    }

    #[test]
    fn leftovers_of_other_tables_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let left = |name: &str| {
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("lock"), "1").unwrap();
            std::fs::write(folder.join("00000000.cold"), "rows").unwrap();
        };
        for name in ["a.server-0", "b.server-0", "b.server-1", "kept.server-0"] {
            left(name);
        }
        std::fs::write(dir.path().join("kept.server-0/notes.txt"), "mine").unwrap();
        std::fs::create_dir(dir.path().join("empty.server-0")).unwrap();
        let file = std::fs::File::create(dir.path().join("b.server-0/lock")).unwrap();
        file.lock().unwrap();
        let list = || {
            let names = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
            let mut names: Vec<String> = names.map(|n| n.into_string().unwrap()).collect();
            names.sort();
            names
        };
        let tiers = Tiers::from([("a".to_string(), tier(dir.path()))]);
        remove_leftovers(&tiers, 0);
        // Another process has the one of b, as long as it lives.
        let others = ["b.server-1", "empty.server-0", "kept.server-0"];
        assert_eq!(list(), [&["a.server-0", "b.server-0"][..], &others].concat());
        drop(file);
        remove_leftovers(&tiers, 0);
        assert_eq!(list(), [&["a.server-0"][..], &others].concat());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let refusal = |tier: &Tier| tier.on_server("e", 0).unwrap_err().to_string();
        let good = tier(dir.path());
        let error = refusal(&Tier { memory_mb: 0, ..good.clone() });
        assert!(error.contains("table_parameters.e.memory_mb: should be at least 1"), "{error}");
        let error = refusal(&Tier { ssd_dir: PathBuf::new(), ..good.clone() });
        assert!(error.contains("table_parameters.e.ssd_dir: must be set"), "{error}");
        let error = refusal(&Tier { lookahead: 0, ..good });
        assert!(error.contains("table_parameters.e.lookahead: should be from 1"), "{error}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = refusal(&tier(&file.join("below")));
        assert!(error.contains("table_parameters.e.ssd_dir: cannot write to"), "{error}");
        let tiers = Tiers::from([("embeding".to_string(), tier(dir.path()))]);
        let error = check_names(&tiers, ["a", "b"].into_iter()).unwrap_err().to_string();
        assert!(error.contains("there is no table 'embeding'; the model has a, b"), "{error}");
    }
}
