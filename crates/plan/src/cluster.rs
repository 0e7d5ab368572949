//! The cluster file: machines, data and figures, as YAML.

use std::path::Path;

use regatta_fleet::yaml::{self, Kind, Node};

use crate::Error;

/// What a cluster file says.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Machines that hold parameters.
    pub servers: Machines,
    /// Machines that read data and compute.
    pub workers: Machines,
    /// Whether servers and workers share the machine of `workers`.
    pub one_machine: bool,
    /// The training data.
    pub data: Data,
    /// How fast a core and the network are.
    pub figures: Figures,
    /// Examples per second that are wanted, if any.
    pub wanted: Option<f64>,
}

/// Machines of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Machines {
    /// Numbers of processes that the cluster plan considers; each is a process on a machine of its
    /// own unless `one_machine` is set.
    pub counts: Vec<u64>,
    /// Cores of a process.
    pub cores: f64,
    /// Memory of a process in bytes.
    pub memory: f64,
    /// Bytes per second, each way.
    pub network: f64,
    /// Bytes on disk for saved models; 0 if there is no disk.
    pub disk: f64,
    /// Bytes per second of the disk.
    pub disk_speed: f64,
}

/// What is known about the data; the rest is measured on those of the configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Data {
    /// Rows that all tables will hold.
    pub rows: Option<f64>,
    /// Examples of a data pass.
    pub examples: Option<f64>,
    /// Ids of an example that are looked up.
    pub ids_per_example: Option<f64>,
    /// Distinct ids of a batch / all its ids.
    pub distinct_share: Option<f64>,
    /// Bytes of an example in its file.
    pub bytes_per_example: Option<f64>,
}

/// Speeds of one core and of the network. `regatta plan --calibrate` measures those of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Multiply-adds of training steps: 10^9 floating-point operations per second.
    pub gflops: f64,
    /// Microseconds per example of computing, if measured; replaces `gflops` and `id_ns`.
    pub compute_us: Option<f64>,
    /// Worker: nanoseconds per id for finding distinct ids, gathering rows and adding up gradients.
    pub id_ns: f64,
    /// Server: nanoseconds to pull a row.
    pub pull_ns: f64,
    /// Server: nanoseconds to update a row.
    pub push_ns: f64,
    /// Server: nanoseconds to update one dense parameter.
    pub dense_ns: f64,
    /// Nanoseconds of a core per byte through a socket, at either end.
    pub byte_ns: f64,
    /// Microseconds of a core per message, at either end.
    pub message_us: f64,
    /// Bytes per second that one core parses.
    pub parse: f64,
    /// Microseconds there and back on an idle network.
    pub round_trip_us: f64,
}

impl Default for Figures {
    /// One core of an AMD EPYC with AVX2 and a network within one data centre.
    fn default() -> Figures {
        Figures {
            gflops: 80.0,
            compute_us: None,
            id_ns: 70.0,
            pull_ns: 35.0,
            push_ns: 45.0,
            dense_ns: 1.2,
            byte_ns: 0.25,
            message_us: 12.0,
            parse: 500e6,
            round_trip_us: 50.0,
        }
    }
}

const GIB: f64 = (1u64 << 30) as f64;

impl Cluster {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or [`Error::Cluster`] with every mistake in it.
    pub fn load(path: &Path) -> Result<Cluster, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
        Cluster::parse(&text, &path.display().to_string())
    }

    /// Reads a text; `name` stands in messages.
    ///
    /// # Errors
    /// [`Error::Cluster`] with every mistake.
    pub fn parse(text: &str, name: &str) -> Result<Cluster, Error> {
        let root = yaml::parse(text)
            .map_err(|e| Error::Cluster(vec![format!("{name}:{}: {}", e.line, e.reason)]))?;
        let mut errors = Vec::new();
        let mut top = Section::new(&root, "", &mut errors);
        let servers = top.section("servers");
        let workers = top.section("workers");
        let data = top.section("data");
        let figures = top.section("figures");
        let one_machine = top.flag("one_machine");
        let wanted = top.number("wanted_examples_per_sec", 1.0, 1e15);
        top.finish();
        let cluster = Cluster {
            servers: machines(servers, "servers", &mut errors),
            workers: machines(workers, "workers", &mut errors),
            one_machine,
            data: read_data(data, &mut errors),
            figures: read_figures(figures, &mut errors),
            wanted,
        };
        if errors.is_empty() {
            return Ok(cluster);
        }
        let lines = errors.into_iter().map(|(line, what)| format!("{name}:{line}: {what}"));
        Err(Error::Cluster(lines.collect()))
    }
}

type Mistakes = Vec<(usize, String)>;

fn machines(node: Option<&Node>, name: &str, errors: &mut Mistakes) -> Machines {
    let empty = Node { line: 1, kind: Kind::Map(vec![]) };
    let given = node.is_some();
    let mut s = Section::new(node.unwrap_or(&empty), name, errors);
    if !given {
        s.mistake(
            1,
            format!("section '{name}' is missing: say how many there are and what they have"),
        );
    }
    let counts = s.counts("count");
    let cores = s.required("cores", 0.01, 1e5, given);
    let memory = s.required("memory_gib", 0.001, 1e7, given) * GIB;
    let network = s.required("network_gbit", 0.001, 1e6, given) * 1e9 / 8.0;
    let disk = s.number("disk_gib", 0.0, 1e9).unwrap_or(0.0) * GIB;
    let disk_speed = s.number("disk_gb_per_sec", 1e-6, 1e6).unwrap_or(0.5) * 1e9;
    s.finish();
    Machines { counts, cores, memory, network, disk, disk_speed }
}

fn read_data(node: Option<&Node>, errors: &mut Mistakes) -> Data {
    let Some(node) = node else { return Data::default() };
    let mut s = Section::new(node, "data", errors);
    let data = Data {
        rows: s.number("rows", 0.0, 1e15),
        examples: s.number("examples", 1.0, 1e18),
        ids_per_example: s.number("ids_per_example", 0.0, 1e9),
        distinct_share: s.number("distinct_share", 1e-9, 1.0),
        bytes_per_example: s.number("bytes_per_example", 0.0, 1e9),
    };
    s.finish();
    data
}

fn read_figures(node: Option<&Node>, errors: &mut Mistakes) -> Figures {
    let base = Figures::default();
    let Some(node) = node else { return base };
    let mut s = Section::new(node, "figures", errors);
    let mut get = |key: &str, default: f64| s.number(key, 1e-6, 1e9).unwrap_or(default);
    let figures = Figures {
        gflops: get("gflops_per_core", base.gflops),
        compute_us: None,
        id_ns: get("id_ns", base.id_ns),
        pull_ns: get("pull_ns", base.pull_ns),
        push_ns: get("push_ns", base.push_ns),
        dense_ns: get("dense_ns", base.dense_ns),
        byte_ns: get("byte_ns", base.byte_ns),
        message_us: get("message_us", base.message_us),
        parse: get("parse_mb_per_sec", base.parse / 1e6) * 1e6,
        round_trip_us: get("round_trip_us", base.round_trip_us),
    };
    let compute_us = s.number("compute_us_per_example", 1e-6, 1e9);
    s.finish();
    Figures { compute_us, ..figures }
}

/// A map whose keys are taken one by one, so that those left over can be named as unknown.
struct Section<'a, 'm> {
    name: &'a str,
    line: usize,
    entries: Vec<(&'a str, &'a Node)>,
    known: Vec<String>,
    mistakes: &'m mut Mistakes,
}

impl<'a, 'm> Section<'a, 'm> {
    fn new(node: &'a Node, name: &'a str, mistakes: &'m mut Mistakes) -> Section<'a, 'm> {
        let entries = match &node.kind {
            Kind::Map(entries) => entries.iter().map(|(k, n)| (k.as_str(), n)).collect(),
            _ => {
                let what = if name.is_empty() { "the file" } else { name };
                mistakes.push((node.line, format!("{what} must be a list of 'key: value' lines")));
                vec![]
            }
        };
        Section { name, line: node.line, entries, known: vec![], mistakes }
    }

    fn mistake(&mut self, line: usize, what: String) {
        self.mistakes.push((line, what));
    }

    fn full(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_string() } else { format!("{}.{key}", self.name) }
    }

    fn take(&mut self, key: &str) -> Option<&'a Node> {
        self.known.push(key.to_string());
        let at = self.entries.iter().position(|(k, _)| *k == key)?;
        Some(self.entries.remove(at).1)
    }

    fn section(&mut self, key: &str) -> Option<&'a Node> {
        self.take(key)
    }

    fn flag(&mut self, key: &str) -> bool {
        let Some(node) = self.take(key) else { return false };
        match node.scalar() {
            Some("true" | "True") => true,
            Some("false" | "False") => false,
            _ => {
                let what = format!("{} must be true or false", self.full(key));
                self.mistake(node.line, what);
                false
            }
        }
    }

    fn number(&mut self, key: &str, min: f64, max: f64) -> Option<f64> {
        let node = self.take(key)?;
        let found = node.scalar().and_then(|t| t.replace('_', "").parse::<f64>().ok());
        match found.filter(|x| (min..=max).contains(x)) {
            Some(x) => Some(x),
            None => {
                let text = node.scalar().unwrap_or("a list or section");
                let what = format!(
                    "{} must be a number from {min} to {max}, not '{text}'",
                    self.full(key)
                );
                self.mistake(node.line, what);
                None
            }
        }
    }

    fn required(&mut self, key: &str, min: f64, max: f64, given: bool) -> f64 {
        let there = self.entries.iter().any(|(k, _)| *k == key);
        let found = self.number(key, min, max);
        if !there && given {
            let what = format!("{} is missing", self.full(key));
            self.mistake(self.line, what);
        }
        found.unwrap_or(min)
    }

    /// One count or a list of them.
    fn counts(&mut self, key: &str) -> Vec<u64> {
        const MOST: u64 = 1_000_000;
        let Some(node) = self.take(key) else { return vec![1] };
        let one = |n: &Node| n.scalar()?.replace('_', "").parse::<u64>().ok();
        let found: Option<Vec<u64>> = match &node.kind {
            Kind::List(items) => items.iter().map(one).collect(),
            _ => one(node).map(|n| vec![n]),
        };
        match found {
            Some(mut counts)
                if !counts.is_empty() && counts.iter().all(|c| (1..=MOST).contains(c)) =>
            {
                counts.sort_unstable();
                counts.dedup();
                counts
            }
            _ => {
                let what = format!(
                    "{} must be a whole number from 1 to {MOST}, or a list of them",
                    self.full(key)
                );
                self.mistake(node.line, what);
                vec![1]
            }
        }
    }

    /// Names keys that are not known.
    fn finish(self) {
        for (key, node) in &self.entries {
            let near = regatta_ir::nearest(key, self.known.iter().map(String::as_str));
            let hint = near.map(|n| format!("; did you mean '{n}'?")).unwrap_or_default();
            self.mistakes.push((node.line, format!("unknown key '{}'{hint}", self.full(key))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
servers: {count: [4, 1, 4], cores: 16, memory_gib: 64, network_gbit: 25, disk_gib: 500}
workers:
  count: 8
  cores: 4
  memory_gib: 16
  network_gbit: 10
data: {rows: 1_000_000, distinct_share: 0.5}
figures: {gflops_per_core: 40}
wanted_examples_per_sec: 1e6
";

    #[test]
    fn a_file_is_read() {
        let c = Cluster::parse(GOOD, "x").unwrap();
        assert_eq!(c.servers.counts, [1, 4]);
        assert_eq!((c.servers.memory, c.servers.network), (64.0 * GIB, 25e9 / 8.0));
        assert_eq!((c.workers.counts.as_slice(), c.workers.disk), ([8].as_slice(), 0.0));
        assert_eq!((c.data.rows, c.data.examples), (Some(1e6), None));
        assert_eq!((c.figures.gflops, c.figures.id_ns), (40.0, Figures::default().id_ns));
        assert_eq!((c.wanted, c.one_machine), (Some(1e6), false));
    }

    #[test]
    fn every_mistake_is_told_with_its_line() {
        let text = "servers: {count: 0, cores: 1, memory_gib: many, network_gbit: 1}\n\
                    worker:\n  cores: 1\n\
                    data: {distinct_share: 1.5}\n";
        let told = Cluster::parse(text, "c.yaml").unwrap_err().to_string();
        for part in [
            "c.yaml:1: servers.count must be a whole number from 1 to 1000000",
            "c.yaml:1: servers.memory_gib must be a number from 0.001 to 10000000, not 'many'",
            "unknown key 'worker'; did you mean 'workers'?",
            "section 'workers' is missing",
            "c.yaml:4: data.distinct_share must be a number from 0.000000001 to 1, not '1.5'",
        ] {
            assert!(told.contains(part), "{part}\n---\n{told}");
        }
        assert!(Cluster::parse("a: [", "x").unwrap_err().to_string().starts_with("x:"));
        assert!(Cluster::parse("- 1", "x").unwrap_err().to_string().contains("the file must be"));
    }

    #[test]
    fn a_missing_key_of_a_section_is_told() {
        let text = "servers: {cores: 1, memory_gib: 1, network_gbit: 1}\nworkers: {cores: 2}\n";
        let told = Cluster::parse(text, "x").unwrap_err().to_string();
        assert_eq!(
            told,
            "x:2: workers.memory_gib is missing\nx:2: workers.network_gbit is missing"
        );
    }
}
