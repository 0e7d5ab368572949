//! What does not fit or is too slow, and the smallest change that helps.

use crate::cluster::Cluster;
use crate::predict::{
    Bottleneck, Prediction, disk_need, fits_disk, predict, server_memory, worker_memory,
};
use crate::tier::TierLoad;
use crate::workload::{Pace, Workload};

/// The most servers or workers that a search tries.
const MOST: u64 = 1 << 20;

/// One thing that is wrong with a cluster, and what would help.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Advice {
    /// What does not fit or is too slow.
    pub problem: String,
    /// The smallest changes that would help, any one of them.
    pub remedies: Vec<String>,
}

/// Everything that is wrong with `servers` x `workers`.
pub fn advise(w: &Workload, c: &Cluster, p: &Prediction) -> Vec<Advice> {
    let found = [memory_of_servers(w, c, p), memory_of_workers(w, c), disk(c, p), speed(w, c, p)];
    found.into_iter().flatten().collect()
}

fn memory_of_servers(w: &Workload, c: &Cluster, p: &Prediction) -> Option<Advice> {
    let (need, have) = (p.server_memory, c.servers.memory);
    if need <= have {
        return None;
    }
    let mut remedies = Vec::new();
    let fits = |n: u64| server_memory(w, n, p.workers) <= have;
    if let Some(n) = smallest(p.servers, fits) {
        remedies.push(format!("{n} servers instead of {}", p.servers));
    }
    remedies.push(format!("{} of memory in each server", bytes(need)));
    remedies.extend(rows_on_disk(w, have, p));
    let problem = format!("a server needs {} and has {}", bytes(need), bytes(have));
    Some(Advice { problem, remedies })
}

/// The memory of the largest table whose rows are all in memory, if it may have rows on disk.
fn rows_on_disk(w: &Workload, have: f64, p: &Prediction) -> Option<String> {
    let whole = w.tables.iter().filter(|t| t.tier.is_none());
    let largest = whole.max_by(|a, b| (a.rows * a.row_bytes).total_cmp(&(b.rows * b.row_bytes)))?;
    let with = |memory_mb: u64| {
        let mut w = w.clone();
        for table in w.tables.iter_mut().filter(|t| t.name == largest.name) {
            table.tier = Some(TierLoad::new(memory_mb, table));
        }
        server_memory(&w, p.servers, p.workers)
    };
    // The budget counts rows; their index comes on top.
    let mut memory_mb = ((have - with(1)) / f64::from(1 << 20)).floor() as u64;
    while memory_mb > 0 && with(memory_mb) > have {
        memory_mb -= (memory_mb / 64).max(1);
    }
    let name = &largest.name;
    (memory_mb > 0).then(|| {
        format!("rows on disk: table_parameters.{name}.memory_mb: {memory_mb} (docs/tiers.md)")
    })
}

fn memory_of_workers(w: &Workload, c: &Cluster) -> Option<Advice> {
    let (need, have) = (worker_memory(w), c.workers.memory);
    if need <= have {
        return None;
    }
    let mut remedies = vec![format!("{} of memory in each worker", bytes(need))];
    if matches!(w.pace, Pace::Every(_)) {
        remedies.push("sync_mode async, in which workers keep no copy of the tables".into());
    }
    let smaller = |batch: u64| Workload { batch: batch as f64, ..w.clone() };
    if let Some(b) = (1..w.batch as u64).rev().find(|b| worker_memory(&smaller(*b)) <= have) {
        remedies.push(format!("batches of {b} instead of {}", w.batch));
    }
    let problem = format!("a worker needs {} and has {}", bytes(need), bytes(have));
    Some(Advice { problem, remedies })
}

fn disk(c: &Cluster, p: &Prediction) -> Option<Advice> {
    if fits_disk(p, &c.servers) {
        return None;
    }
    let need = disk_need(p);
    let saved = bytes(2.0 * p.saved_bytes);
    let saved = format!(
        "saving takes {saved} of disk on each server (the last model and the one being written)"
    );
    let cold = match p.cold_bytes {
        0.0 => String::new(),
        n => format!(", rows on disk take up to {}", bytes(n)),
    };
    let problem = format!("{saved}{cold}, and there are {}", bytes(c.servers.disk));
    let n = (p.servers as f64 * need / c.servers.disk).ceil();
    let remedies = vec![format!("{} of disk", bytes(need)), format!("{n} servers")];
    Some(Advice { problem, remedies })
}

fn speed(w: &Workload, c: &Cluster, p: &Prediction) -> Option<Advice> {
    let wanted = c.wanted?;
    if p.examples_per_sec >= wanted {
        return None;
    }
    let rate = |n: u64, m: u64| predict(w, c, n, m).examples_per_sec;
    let mut remedies = Vec::new();
    if !c.one_machine {
        if let Some(m) = smallest(p.workers, |m| rate(p.servers, m) >= wanted) {
            remedies.push(format!("{m} workers instead of {}", p.workers));
        } else if let Some(n) = smallest(p.servers, |n| rate(n, most_workers(n)) >= wanted)
            && let Some(m) = smallest(p.workers, |m| rate(n, m) >= wanted)
        {
            remedies.push(format!("{} and {}", plural(n, "server"), plural(m, "worker")));
        }
    }
    remedies.extend(ease(p.bottleneck));
    let problem = format!(
        "{} examples/s are wanted and {} x {} reach {}, held up by {}",
        short(wanted),
        p.servers,
        p.workers,
        short(p.examples_per_sec),
        p.bottleneck
    );
    Some(Advice { problem, remedies })
}

/// Number of workers per server beyond which more of them change nothing.
fn most_workers(servers: u64) -> u64 {
    (servers * 4096).min(MOST)
}

fn ease(bottleneck: Bottleneck) -> Option<String> {
    Some(match bottleneck {
        Bottleneck::WorkerCores => return None,
        Bottleneck::WorkerNetwork | Bottleneck::ServerNetwork => {
            "a larger batch: more of its ids are the same, and dense parameters travel less often"
                .into()
        }
        Bottleneck::ServerCores => "more cores in each server".into(),
        Bottleneck::Waiting => {
            "runner.pull_ahead: 1, which hides exchanges behind computing (async)".into()
        }
    })
}

/// The smallest number from `from` on that is good enough, if more is never worse.
fn smallest(from: u64, good: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (from, from.max(1));
    while !good(high) {
        if high >= MOST {
            return None;
        }
        low = high + 1;
        high = (high * 2).min(MOST);
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if good(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(high)
}

/// Bytes as people write them.
pub(crate) fn bytes(n: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut n, mut unit) = (n, 0);
    while n >= 1024.0 && unit + 1 < UNITS.len() {
        n /= 1024.0;
        unit += 1;
    }
    if n >= 100.0 || unit == 0 {
        format!("{n:.0} {}", UNITS[unit])
    } else {
        format!("{n:.1} {}", UNITS[unit])
    }
}

/// "1 server", "2 servers".
pub(crate) fn plural(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Numbers as people write them: 12.3 k, 4.5 M.
pub(crate) fn short(n: f64) -> String {
    let (n, unit) = match n {
        n if n >= 1e9 => (n / 1e9, " G"),
        n if n >= 1e6 => (n / 1e6, " M"),
        n if n >= 1e3 => (n / 1e3, " k"),
        n => (n, ""),
    };
    if n >= 100.0 || unit.is_empty() { format!("{n:.0}{unit}") } else { format!("{n:.1}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_is_found() {
        assert_eq!(smallest(1, |n| n >= 1), Some(1));
        assert_eq!(smallest(3, |n| n >= 1000), Some(1000));
        assert_eq!(smallest(7, |n| n >= 7), Some(7));
        assert_eq!(smallest(1, |n| n >= MOST), Some(MOST));
        assert_eq!(smallest(1, |_| false), None);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            ["512 B", "1.5 GiB", "2048 TiB"],
            [512.0, 1.5 * 2f64.powi(30), 2f64.powi(51)].map(bytes)
        );
        assert_eq!(["999", "12.3 k", "450 M"], [999.0, 12_345.0, 4.5e8].map(short));
    }
}
