//! Who takes part in a job becomes the places of the processes that this machine starts.

use std::collections::BTreeSet;

use regatta_cluster::{CollectivePlace, JobIdentity, Place, PsPlace, PsRole, endpoints};

use crate::{Error, ports};

/// The first port of ranks on several machines if none is said.
pub const FIRST_RANK_PORT: u16 = 6070;

/// A job, seen from one machine.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The processes that this machine starts.
    pub places: Vec<Place>,
    /// Machines of the job, as the lists name them, in order.
    pub hosts: Vec<String>,
    /// Those of them that are this one.
    pub here: Vec<String>,
    /// Names and addresses of the processes that other machines start.
    pub elsewhere: Vec<(String, String)>,
}

impl Plan {
    /// Whether all processes are on this machine.
    pub fn is_whole(&self) -> bool {
        self.elsewhere.is_empty()
    }

    /// Names and addresses of the processes that this machine starts.
    pub fn endpoints(&self) -> Vec<(String, String)> {
        self.places.iter().filter_map(|place| Some((place.to_string(), endpoint(place)?))).collect()
    }

    fn new(all: Vec<Place>, this: Here<'_>) -> Result<Plan, Error> {
        let hosts = distinct_hosts(all.iter().filter_map(endpoint));
        let here = match this {
            Here::Endpoints(mine) => distinct_hosts(mine.iter().cloned()),
            Here::Host(host) => hosts_here(&hosts, Some(host))?,
            Here::Found => hosts_here(&hosts, None)?,
        };
        let is_here = |place: &Place| match (endpoint(place), this) {
            (Some(endpoint), Here::Endpoints(mine)) => mine.contains(&endpoint),
            (Some(endpoint), _) => here.iter().any(|host| host == endpoints::host(&endpoint)),
            (None, _) => false,
        };
        let (places, others): (Vec<Place>, Vec<Place>) = all.into_iter().partition(is_here);
        let elsewhere = others.iter().filter_map(|p| Some((p.to_string(), endpoint(p)?))).collect();
        Ok(Plan { places, hosts, here, elsewhere })
    }
}

/// How a machine knows which of the processes it starts.
#[derive(Debug, Clone, Copy)]
pub enum Here<'a> {
    /// Those with addresses that processes here can listen on.
    Found,
    /// Those on the machine of this name.
    Host(&'a str),
    /// Those with these addresses.
    Endpoints(&'a [String]),
}

fn endpoint(place: &Place) -> Option<String> {
    match place {
        Place::Local => None,
        Place::ParameterServer(place) => place.endpoint().map(str::to_string),
        Place::Collective(place) => place.endpoints.get(place.rank).cloned(),
    }
}

fn distinct_hosts(list: impl Iterator<Item = String>) -> Vec<String> {
    let mut hosts: Vec<String> = Vec::new();
    for endpoint in list {
        let host = endpoints::host(&endpoint);
        if !hosts.iter().any(|known| known == host) {
            hosts.push(host.to_string());
        }
    }
    hosts
}

/// Which of the machines of a job this one is. `host` says it; otherwise those whose addresses
/// processes here can listen on.
fn hosts_here(hosts: &[String], host: Option<&str>) -> Result<Vec<String>, Error> {
    if let Some(host) = host {
        return match hosts.iter().find(|h| *h == host) {
            Some(host) => Ok(vec![host.clone()]),
            None => Err(Error::Usage(format!(
                "--host {host} is not one of the machines {}",
                hosts.join(", ")
            ))),
        };
    }
    let mut here = Vec::new();
    for host in hosts {
        if ports::is_local(host)? {
            here.push(host.clone());
        }
    }
    if here.is_empty() {
        return Err(Error::Usage(format!(
            "none of the machines {} is this one; --host says which of them it is",
            hosts.join(", ")
        )));
    }
    Ok(here)
}

/// A parameter-server job with these addresses.
///
/// # Errors
/// If an address occurs twice, or none of them is on this machine.
pub fn parameter_server(
    servers: &[String],
    workers: &[String],
    job: &JobIdentity,
    this: Here<'_>,
) -> Result<Plan, Error> {
    let all: Vec<&String> = servers.iter().chain(workers).collect();
    if let Some(twice) = first_repeated(&all) {
        return Err(Error::Usage(format!("{twice} is the address of two processes")));
    }
    let place = |role| {
        Place::ParameterServer(PsPlace {
            role,
            servers: servers.to_vec(),
            workers: workers.len(),
            worker_endpoints: workers.to_vec(),
            job: job.clone(),
        })
    };
    let roles =
        (0..servers.len()).map(PsRole::Server).chain((0..workers.len()).map(PsRole::Worker));
    Plan::new(roles.map(place).collect(), this)
}

fn first_repeated<'a>(list: &[&'a String]) -> Option<&'a String> {
    let mut seen = BTreeSet::new();
    list.iter().find(|entry| !seen.insert(**entry)).copied()
}

/// A parameter-server job on this machine alone, on free ports or from `start_port` on.
///
/// # Errors
/// If there are not enough free ports.
pub fn local_parameter_server(
    servers: usize,
    workers: usize,
    job: &JobIdentity,
    start_port: Option<u16>,
) -> Result<Plan, Error> {
    let mut servers_first = local_endpoints(servers + workers, start_port)?;
    let workers = servers_first.split_off(servers);
    parameter_server(&servers_first, &workers, job, Here::Host(LOOPBACK))
}

/// Where processes of a job on one machine listen.
const LOOPBACK: &str = "127.0.0.1";

/// Addresses for `n` processes on this machine.
///
/// # Errors
/// If there are not enough ports.
pub fn local_endpoints(n: usize, start_port: Option<u16>) -> Result<Vec<String>, Error> {
    host_endpoints(LOOPBACK, n, start_port)
}

/// Addresses for `n` processes on a machine, from `start_port` on, or on free ports if it is this
/// one.
pub(crate) fn host_endpoints(
    host: &str,
    n: usize,
    start_port: Option<u16>,
) -> Result<Vec<String>, Error> {
    let ports = match start_port {
        Some(first) if usize::from(first) + n > 65536 => {
            return Err(Error::Usage(format!("there are no {n} ports from {first} on")));
        }
        Some(first) => (first..=u16::MAX).take(n).collect(),
        None => ports::free(host, n)?,
    };
    Ok(ports.into_iter().map(|port| format!("{host}:{port}")).collect())
}

/// A machine of a collective job.
#[derive(Debug, Clone)]
pub struct Node {
    /// Addresses of its ranks.
    pub endpoints: Vec<String>,
    /// Devices of each of its ranks; empty if there are none.
    pub devices: Vec<Vec<String>>,
}

/// A collective job on these machines.
///
/// # Errors
/// If an address occurs twice, or none of them is on this machine.
pub fn collective(
    nodes: &[Node],
    master: Option<&str>,
    job: &JobIdentity,
    this: Here<'_>,
) -> Result<Plan, Error> {
    let all: Vec<String> = nodes.iter().flat_map(|node| node.endpoints.clone()).collect();
    if let Some(twice) = first_repeated(&all.iter().collect::<Vec<_>>()) {
        return Err(Error::Usage(format!("{twice} is the address of two ranks")));
    }
    let world: Vec<String> = nodes.iter().flat_map(|n| n.devices.concat()).collect();
    let mut places = Vec::new();
    for node in nodes {
        for local_rank in 0..node.endpoints.len() {
            places.push(Place::Collective(CollectivePlace {
                rank: places.len(),
                size: all.len(),
                endpoints: all.clone(),
                local_rank,
                local_size: node.endpoints.len(),
                nodes: nodes.len(),
                master: master.map(str::to_string),
                devices: node.devices.get(local_rank).cloned().unwrap_or_default(),
                world_devices: world.clone(),
                job: job.clone(),
            }));
        }
    }
    Plan::new(places, this)
}

/// A collective job of `n` ranks on this machine alone, on free ports.
///
/// # Errors
/// If there are not enough free ports.
pub fn local_collective(n: usize, job: &JobIdentity) -> Result<Plan, Error> {
    let node = Node { endpoints: local_endpoints(n, None)?, devices: Vec::new() };
    collective(&[node], None, job, Here::Host(LOOPBACK))
}

#[cfg(test)]
mod tests {
    use regatta_cluster::JobIdentity;

    use super::{
        Here, Node, collective, local_collective, local_parameter_server, parameter_server,
    };

    fn list(entries: &[&str]) -> Vec<String> {
        entries.iter().map(|e| e.to_string()).collect()
    }

    #[test]
    fn a_machine_starts_its_own_part() {
        let servers = list(&["127.0.0.2:1000", "127.0.0.3:1000"]);
        let workers = list(&["127.0.0.2:1001", "127.0.0.3:1001"]);
        let job = JobIdentity::default();
        let plan = parameter_server(&servers, &workers, &job, Here::Host("127.0.0.3")).unwrap();
        let names: Vec<String> = plan.places.iter().map(|p| p.to_string()).collect();
        assert_eq!(names, ["server 1", "worker 1"]);
        assert_eq!(plan.elsewhere[0], ("server 0".into(), "127.0.0.2:1000".into()));
        assert!(!plan.is_whole());
        // Without a name, both addresses are this machine.
        assert!(parameter_server(&servers, &workers, &job, Here::Found).unwrap().is_whole());
    }

    #[test]
    fn addresses_must_differ_and_be_here() {
        let job = JobIdentity::default();
        let plan = |s: &[&str], w: &[&str], this| {
            parameter_server(&list(s), &list(w), &job, this).unwrap_err().to_string()
        };
        assert!(plan(&["127.0.0.1:1"], &["127.0.0.1:1"], Here::Found).contains("two processes"));
        let elsewhere = plan(&["192.0.2.1:1"], &["192.0.2.1:2"], Here::Found);
        assert!(elsewhere.contains("none of the machines 192.0.2.1 is this one"), "{elsewhere}");
        assert!(
            plan(&["127.0.0.1:1"], &["127.0.0.1:2"], Here::Host("a")).contains("--host a is not")
        );
    }

    #[test]
    fn counts_give_local_processes() {
        let job = JobIdentity::default();
        let plan = local_parameter_server(2, 3, &job, Some(7000)).unwrap();
        assert_eq!(plan.places.len(), 5);
        assert_eq!(plan.endpoints()[4], ("worker 2".into(), "127.0.0.1:7004".into()));
        assert_eq!(local_collective(3, &job).unwrap().places.len(), 3);
    }

    #[test]
    fn ranks_follow_the_machines() {
        let node = |host: &str| Node {
            endpoints: list(&[&format!("{host}:6070"), &format!("{host}:6071")]),
            devices: vec![list(&["1"]), list(&["3"])],
        };
        let nodes = [node("127.0.0.2"), node("127.0.0.3")];
        let plan =
            collective(&nodes, None, &JobIdentity::default(), Here::Host("127.0.0.3")).unwrap();
        let regatta_cluster::Place::Collective(rank) = &plan.places[1] else { panic!() };
        assert_eq!((rank.rank, rank.local_rank, rank.local_size, rank.nodes), (3, 1, 2, 2));
        assert_eq!(rank.devices, ["3"]);
        assert_eq!(rank.world_devices, ["1", "3", "1", "3"]);
    }
}
