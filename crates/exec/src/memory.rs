//! How much memory the values of a program need, and how much there is.
//!
//! Looked at before values are made: a program that does not fit would end in the middle of an
//! allocation, or later by the kernel, without a word about the cause.

use std::fs;
use std::path::{Path, PathBuf};

use regatta_ir::{Program, VarDef};

use crate::Error;

/// Checks that the parameters and states of a startup program fit into the memory that is
/// available: to the machine, and to the control group of this process.
///
/// # Errors
/// If they do not; it names the largest of them. Where the system does not say what is available,
/// everything fits.
pub fn check_memory(startup: &Program) -> Result<(), Error> {
    match available_memory() {
        Some(available) => check_fits(startup, &available),
        None => Ok(()),
    }
}

/// What is available, and who says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AvailableMemory {
    /// In bytes.
    pub bytes: u64,
    /// `the machine`, or the control group that allows less.
    pub of: String,
}

impl std::fmt::Display for AvailableMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} has {} available", self.of, gigabytes(self.bytes))
    }
}

/// The memory that this process can take now; nothing if the system does not say.
pub fn available_memory() -> Option<AvailableMemory> {
    available_below(Path::new("/"))
}

fn check_fits(startup: &Program, available: &AvailableMemory) -> Result<(), Error> {
    let needed = startup.persistables().map(bytes_of).fold(0, u64::saturating_add);
    if needed <= available.bytes {
        return Ok(());
    }
    let largest = startup.persistables().max_by_key(|var| bytes_of(var));
    let largest = largest.map(|var| (var.name.clone(), var.ty.shape.clone(), bytes_of(var)));
    let (name, shape, bytes) = largest.unwrap_or_default();
    let available = available.clone();
    Err(Error::Memory(Box::new(MemoryShortage { needed, available, name, shape, bytes })))
}

/// Values that do not fit.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryShortage {
    /// Bytes of all parameters and states.
    pub needed: u64,
    /// What there is.
    pub available: AvailableMemory,
    /// The largest variable,
    pub name: String,
    /// its shape
    pub shape: Vec<i64>,
    /// and its bytes.
    pub bytes: u64,
}

impl std::fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MemoryShortage { needed, available, name, shape, bytes } = self;
        let (needed, bytes) = (gigabytes(*needed), gigabytes(*bytes));
        write!(
            f,
            "parameters and optimizer states need {needed}, of which '{name}' {shape:?} takes \
             {bytes}, but {available}"
        )
    }
}

/// Bytes for people.
pub fn gigabytes(bytes: u64) -> String {
    match bytes as f64 {
        small if small < 1e8 => format!("{:.1} MB", small / 1e6),
        large => format!("{:.1} GB", large / 1e9),
    }
}

/// Bytes of a value whose dimensions are known.
pub(crate) fn bytes_of(var: &VarDef) -> u64 {
    let shape = var.ty.shape.iter().map(|&d| d.max(0) as u64);
    shape.fold(var.ty.dtype.size() as u64, u64::saturating_mul)
}

/// The memory that is available according to the files below `root`.
fn available_below(root: &Path) -> Option<AvailableMemory> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kilobytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let free = kilobytes("MemAvailable")?.saturating_add(kilobytes("SwapFree").unwrap_or(0));
    let machine = AvailableMemory { bytes: free.saturating_mul(1024), of: "the machine".into() };
    let groups = control_groups(root).into_iter().filter_map(|(name, group)| {
        Some(AvailableMemory { bytes: left_in(&group)?, of: format!("control group {name}") })
    });
    std::iter::once(machine).chain(groups).min_by_key(|available| available.bytes)
}

/// The folders of the memory controller for this process, and of all groups that it is in.
fn control_groups(root: &Path) -> Vec<(String, PathBuf)> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let mounted = match controllers {
            "" => "sys/fs/cgroup",
            list if list.split(',').any(|c| c == "memory") => "sys/fs/cgroup/memory",
            _ => continue,
        };
        // A path of the host may not exist in a container, whose own group is the root then.
        for group in Path::new(path).ancestors() {
            let inside = group.strip_prefix("/").unwrap_or(group);
            groups.push((group.display().to_string(), root.join(mounted).join(inside)));
        }
    }
    groups
}

/// What the limit of a control group leaves; nothing without a limit. Pages of files that the
/// kernel can drop at any time count as free.
fn left_in(group: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of_stat = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    // Version 2, whose limit is the word "max" if there is none; then version 1.
    let (limit, used, files) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")?, of_stat("inactive_file")),
        None => {
            let limit = number("memory.limit_in_bytes")?;
            (limit, number("memory.usage_in_bytes")?, of_stat("total_inactive_file"))
        }
    };
    Some(limit.saturating_sub(used.saturating_sub(files.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files below a folder that stands for the root.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:  4000 kB\nSwapFree:  1000 kB\n",
    );

    fn available(files: &[(&str, &str)]) -> Option<(u64, String)> {
        let found = available_below(root(files).path())?;
        Some((found.bytes, found.of))
    }

    #[test]
    fn the_machine_and_the_control_groups_of_both_versions() {
        let machine = Some((5000 * 1024, "the machine".to_string()));
        assert_eq!(available(&[]), None);
        assert_eq!(available(&[MEMINFO]), machine);
        let unlimited = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.current", "77\n"),
        ];
        assert_eq!(available(&unlimited), machine);
        let second = [
            MEMINFO,
            ("proc/self/cgroup", "0::/pod/job\n"),
            ("sys/fs/cgroup/pod/job/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/job/memory.current", "50\n"),
            // The limit of a group counts for those inside of it.
            ("sys/fs/cgroup/pod/memory.max", "1000\n"),
            ("sys/fs/cgroup/pod/memory.current", "700\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 600\ninactive_file 90\nactive_file 10\n"),
        ];
        assert_eq!(available(&second), Some((390, "control group /pod".into())));
        let first = [
            MEMINFO,
            ("proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n"),
        ];
        assert_eq!(available(&first), Some((1000, "control group /".into())));
        let beyond = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "100\n"),
            ("sys/fs/cgroup/a/memory.current", "150\n"),
        ];
        assert_eq!(available(&beyond), Some((0, "control group /a".into())));
    }

    #[test]
    fn this_machine_says_how_much_it_has() {
        let available = available_memory().expect("Linux says it");
        assert!(available.bytes > 1 << 20, "{available:?}");
    }
}
