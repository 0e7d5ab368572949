//! Ranks that `mpirun`, `srun` or Kubernetes give to the processes they start.

use super::{counted, counts, job, worker};
use crate::names::*;
use crate::{CollectivePlace, Env, Error, Place, PsPlace, PsRole};

/// The first port on each machine if none is said.
const DEFAULT_PORT: u16 = 6070;

/// Variables with a rank. A batch script of Slurm has a rank, too, without being one of several
/// processes: [`ranks`] looks at `SLURM_PROCID` only within a step.
const RANKS: [&str; 4] =
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"];

fn ranks(env: &Env) -> impl Iterator<Item = &'static str> {
    let in_step = env.get("SLURM_STEP_ID").is_some();
    RANKS.into_iter().filter(move |name| in_step || *name != "SLURM_PROCID")
}

/// The index of this process, from `name` or, if that is not set, from a scheduler; with the
/// variable it came from.
pub(super) fn index(
    env: &Env,
    name: Option<&'static str>,
) -> Result<Option<(usize, &'static str)>, Error> {
    let names: Vec<&'static str> = name.into_iter().chain(ranks(env)).collect();
    let Some(name) = env.first_set(&names) else { return Ok(None) };
    Ok(env.index(name)?.map(|index| (index, name)))
}

/// What a scheduler says about one of its processes.
struct Allocation {
    /// The variable with the rank.
    name: &'static str,
    rank: usize,
    size: usize,
    local_rank: usize,
    local_size: usize,
    /// Machines with the number of their processes, in order of the ranks.
    machines: Vec<(String, usize)>,
}

/// The place of a process about which only a scheduler says something.
pub(super) fn read(env: &Env) -> Result<Place, Error> {
    let servers = env.count(SERVER_NUM)?.unwrap_or(0);
    let Some(scheduled) = scheduled(env, servers)? else { return Ok(Place::Local) };
    scheduled.check()?;
    let endpoints = scheduled.endpoints(env)?;
    if servers > 0 {
        return scheduled.parameter_server(env, servers, endpoints).map(Place::ParameterServer);
    }
    Ok(Place::Collective(CollectivePlace {
        rank: scheduled.rank,
        size: endpoints.len(),
        local_rank: scheduled.local_rank,
        local_size: scheduled.local_size,
        nodes: scheduled.machines.len(),
        master: env.get(MASTER).map(str::to_string),
        devices: Vec::new(),
        world_devices: Vec::new(),
        endpoints,
        job: job(env)?,
    }))
}

/// Nothing if this process is on its own.
fn scheduled(env: &Env, servers: usize) -> Result<Option<Allocation>, Error> {
    let Some(rank) = ranks(env).find(|name| env.get(name).is_some()) else { return Ok(None) };
    let (size, local_rank, local_size) = match rank {
        "OMPI_COMM_WORLD_RANK" => {
            ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
        }
        "PMI_RANK" => ("PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        "SLURM_PROCID" => ("SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
        // Kubernetes says neither how many there are nor where; the other variables must.
        _ => return Ok(None),
    };
    let why = format!("{rank} is");
    let need =
        |name: &str, found: Option<usize>| found.ok_or_else(|| Error::missing(name, why.clone()));
    let n = need(size, env.count(size)?)?;
    if n == 1 && servers == 0 {
        return Ok(None);
    }
    let local = need(local_rank, env.index(local_rank)?)?;
    let machines = if rank == "SLURM_PROCID" {
        slurm_machines(env)?
    } else {
        let here = need(local_size, env.count(local_size)?)?;
        mpi_machines(env, n, here)?
    };
    let index = env.index(rank)?.unwrap_or(0);
    Ok(Some(Allocation {
        name: rank,
        rank: index,
        size: n,
        local_rank: local,
        local_size: tasks_beside(&machines, index),
        machines,
    }))
}

/// How many processes are on the machine of a rank.
fn tasks_beside(machines: &[(String, usize)], rank: usize) -> usize {
    let mut end = 0;
    let found = machines.iter().find(|(_, tasks)| {
        end += tasks;
        rank < end
    });
    found.map_or(0, |(_, tasks)| *tasks)
}

/// `mpirun` does not say which machines it uses.
fn mpi_machines(env: &Env, size: usize, here: usize) -> Result<Vec<(String, usize)>, Error> {
    if size == here {
        return Ok(vec![("127.0.0.1".into(), size)]);
    }
    let why = "processes are on several machines; list their addresses in the order of the ranks";
    let hosts = env.required(IPS, why)?.split(',');
    Ok(hosts.map(|host| (host.trim().to_string(), here)).collect())
}

fn slurm_machines(env: &Env) -> Result<Vec<(String, usize)>, Error> {
    let why = "SLURM_PROCID is";
    let (nodes, tasks) = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE");
    let hosts = match env.get(IPS) {
        Some(list) => list.split(',').map(|host| host.trim().to_string()).collect(),
        None => node_list(nodes, env.required(nodes, why)?)?,
    };
    let tasks_per_node = task_counts(tasks, env.required(tasks, why)?)?;
    if hosts.len() != tasks_per_node.len() {
        let reason = counts((hosts.len(), "machine"), (tasks_per_node.len(), "count"));
        return Err(Error::contradiction(nodes, tasks, reason));
    }
    Ok(hosts.into_iter().zip(tasks_per_node).collect())
}

/// `gpu[01-03,7],login` becomes `gpu01 gpu02 gpu03 gpu7 login`.
fn node_list(name: &str, text: &str) -> Result<Vec<String>, Error> {
    let wrong = |what: &str| Error::invalid(name, text, format!("cannot understand '{what}'"));
    let mut hosts = Vec::new();
    for entry in split_outside_brackets(text) {
        let Some((prefix, rest)) = entry.split_once('[') else {
            hosts.push(entry.to_string());
            continue;
        };
        let ranges = rest.strip_suffix(']').ok_or_else(|| wrong(entry))?;
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let from: u64 = first.parse().map_err(|_| wrong(range))?;
            let to: u64 = last.parse().map_err(|_| wrong(range))?;
            if to < from || to - from > 100_000 {
                return Err(wrong(range));
            }
            hosts.extend((from..=to).map(|i| format!("{prefix}{i:0width$}", width = first.len())));
        }
    }
    Ok(hosts)
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut inside = false;
    let at_comma = |c: char| {
        inside = (inside || c == '[') && c != ']';
        c == ',' && !inside
    };
    text.split(at_comma).map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// `2(x3),1` becomes `2 2 2 1`.
fn task_counts(name: &str, text: &str) -> Result<Vec<usize>, Error> {
    let wrong = |part: &str| Error::invalid(name, text, format!("cannot understand '{part}'"));
    let mut counts = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(|| wrong(part))?),
            None => (part, "1"),
        };
        let count: usize = count.parse().map_err(|_| wrong(part))?;
        let times: usize = times.parse().map_err(|_| wrong(part))?;
        if times > 100_000 {
            return Err(wrong(part));
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    Ok(counts)
}

impl Allocation {
    /// Addresses follow from ranks only if the ranks of a machine follow each other.
    fn check(&self) -> Result<(), Error> {
        let total: usize = self.machines.iter().map(|(_, tasks)| tasks).sum();
        if total != self.size || self.rank >= self.size {
            let reason = format!(
                "rank {} of {}, but {} on {}",
                self.rank,
                self.size,
                counted(total, "process"),
                counted(self.machines.len(), "machine")
            );
            return Err(Error::contradiction(self.name, IPS, reason));
        }
        let mut first = 0;
        for (_, tasks) in &self.machines {
            if self.rank < first + tasks {
                break;
            }
            first += tasks;
        }
        if self.rank - first == self.local_rank {
            return Ok(());
        }
        let reason = format!(
            "local rank {} should be {}: the ranks of a machine must follow each other \
             (mpirun --map-by slot, srun --distribution=block)",
            self.local_rank,
            self.rank - first
        );
        Err(Error::invalid(self.name, &self.rank.to_string(), reason))
    }

    fn endpoints(&self, env: &Env) -> Result<Vec<String>, Error> {
        let start = env.parse::<u16>(START_PORT, "a port")?.unwrap_or(DEFAULT_PORT);
        let most = self.machines.iter().map(|(_, tasks)| *tasks).max().unwrap_or(0);
        if usize::from(start) + most > 65536 || start == 0 {
            let reason = format!("it needs {} from there on", counted(most, "port"));
            return Err(Error::invalid(START_PORT, &start.to_string(), reason));
        }
        let on = |(host, tasks): &(String, usize)| {
            let host = host.clone();
            (0..*tasks).map(move |i| format!("{host}:{}", usize::from(start) + i))
        };
        Ok(self.machines.iter().flat_map(on).collect())
    }

    /// The first ranks are the servers.
    fn parameter_server(
        &self,
        env: &Env,
        servers: usize,
        endpoints: Vec<String>,
    ) -> Result<PsPlace, Error> {
        if servers >= self.size {
            let reason = format!(
                "the job has only {} for servers and workers",
                counted(self.size, "process")
            );
            return Err(Error::invalid(SERVER_NUM, &servers.to_string(), reason));
        }
        let (servers, workers) = endpoints.split_at(servers);
        let role = match self.rank.checked_sub(servers.len()) {
            None => PsRole::Server(self.rank),
            Some(index) => worker(index, self.name, workers.len(), SERVER_NUM)?,
        };
        Ok(PsPlace {
            role,
            servers: servers.to_vec(),
            workers: workers.len(),
            worker_endpoints: workers.to_vec(),
            job: job(env)?,
        })
    }
}
