//! The flags of the launcher and the variables that override them, resolved to one description.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use regatta_cluster::{Env, Tls, endpoints, names};
use regatta_net::counted;

use crate::Error;

/// Starts a program as the processes of a job: with parameter servers (`--worker_num`,
/// `--server_num`, `--workers`, `--servers`) or as equal ranks (`--nproc_per_node`, `--ips`,
/// `--gpus`, `--master`).
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// Number of workers, all on this machine [env: PADDLE_TRAINER_NUM].
    #[arg(long = "worker_num", aliases = ["trainer_num", "worker-num"], value_name = "N")]
    pub worker_num: Option<String>,
    /// Number of parameter servers, all on this machine [env: PADDLE_SERVER_NUM].
    #[arg(long = "server_num", alias = "server-num", value_name = "N")]
    pub server_num: Option<String>,
    /// Addresses of all workers, ip:port or ip, separated by commas; the same on every machine
    /// [env: PADDLE_TRAINERS_ENDPOINTS].
    #[arg(long, alias = "trainers", value_name = "LIST")]
    pub workers: Option<String>,
    /// Addresses of all parameter servers, ip:port, separated by commas; the same on every machine
    /// [env: PADDLE_SERVERS_ENDPOINTS].
    #[arg(long, value_name = "LIST")]
    pub servers: Option<String>,
    /// Number of ranks on each machine [env: PADDLE_NPROC_PER_NODE].
    #[arg(long = "nproc_per_node", alias = "nproc-per-node", value_name = "N")]
    pub nproc_per_node: Option<String>,
    /// Number of machines; without --ips they meet at --master [env: PADDLE_NNODES].
    #[arg(long, value_name = "N")]
    pub nnodes: Option<String>,
    /// Addresses of the machines of a job of ranks, separated by commas; the same on every machine
    /// [env: PADDLE_IPS].
    #[arg(long, value_name = "LIST")]
    pub ips: Option<String>,
    /// Devices of each machine, such as "1, 3": one for each rank, or all for its worker of a job
    /// with servers, several workers in equal parts [env: PADDLE_DEVICES].
    #[arg(long, alias = "gpus", value_name = "LIST")]
    pub devices: Option<String>,
    /// Where the machines meet, host:port; the first machine listens there [env: PADDLE_MASTER].
    #[arg(long, value_name = "ADDRESS")]
    pub master: Option<String>,
    /// Number of this machine among those that meet at --master [env: PADDLE_RANK].
    #[arg(long, value_name = "N")]
    pub rank: Option<String>,
    /// Which of the machines this is, as the lists name it [env: POD_IP].
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Folder for the logs, one file per process [env: PADDLE_LOG_DIR] [default: log].
    #[arg(long = "log_dir", alias = "log-dir", value_name = "DIR")]
    pub log_dir: Option<String>,
    /// ps or collective; found out from the other flags if not said [env: PADDLE_RUN_MODE].
    #[arg(long = "run_mode", alias = "run-mode", value_name = "MODE")]
    pub run_mode: Option<String>,
    /// Name of the job [env: PADDLE_JOB_ID] [default: default].
    #[arg(long = "job_id", alias = "job-id", value_name = "NAME")]
    pub job_id: Option<String>,
    /// First port on each machine; free ones on a single machine [env: PADDLE_START_PORT]
    /// [default: 6070 on several].
    #[arg(long = "start_port", alias = "start-port", value_name = "PORT")]
    pub start_port: Option<String>,
    /// How often a worker that failed and can resume is started again [env: PADDLE_MAX_RESTART]
    /// [default: 0].
    #[arg(long = "max_restart", alias = "max-restart", value_name = "N")]
    pub max_restart: Option<String>,
    /// Seconds that machines and processes may take to appear [default: 60].
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<String>,
    /// File with the secret that all machines of the job share; or set REGATTA_JOB_TOKEN.
    #[arg(long = "token-file", alias = "token_file", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Which connections are encrypted: on (those between machines), off or always
    /// [env: REGATTA_TLS] [default: on].
    #[arg(long, value_name = "WHICH", value_parser = ["on", "off", "always"])]
    pub tls: Option<String>,
    /// Certificate chain of this machine in PEM, if processes should not make their own
    /// [env: REGATTA_TLS_CERT].
    #[arg(long = "tls-cert", value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// The private key of --tls-cert [env: REGATTA_TLS_KEY].
    #[arg(long = "tls-key", value_name = "FILE")]
    pub tls_key: Option<String>,
    /// Who must have signed the certificates of other machines [env: REGATTA_TLS_CA].
    #[arg(long = "tls-ca", value_name = "FILE")]
    pub tls_ca: Option<String>,
    /// Run a program of PaddlePaddle on Regatta: a script of Python, or -m with a module. Needs the
    /// Python package.
    #[arg(long)]
    pub paddle: bool,
    /// Say how long it took until processes were started and training began.
    #[arg(long)]
    pub timing: bool,
    /// Print what to give to another system instead of starting anything.
    #[arg(long, value_name = "SYSTEM", value_parser = ["k8s"])]
    pub emit: Option<String>,
    /// With --emit k8s: the container image.
    #[arg(long, value_name = "IMAGE", requires = "emit")]
    pub image: Option<String>,
    #[command(flatten)]
    removed: RemovedFlags,
}

/// Flags that are gone; each says what to use.
#[derive(Debug, Clone, Default, clap::Args)]
struct RemovedFlags {
    #[arg(long = "cluster_node_ips", hide = true, num_args = 0..=1)]
    cluster_node_ips: Option<Option<String>>,
    #[arg(long = "selected_gpus", hide = true, num_args = 0..=1)]
    selected_gpus: Option<Option<String>>,
    #[arg(long = "node_ip", hide = true, num_args = 0..=1)]
    node_ip: Option<Option<String>>,
    #[arg(long = "use_paddlecloud", hide = true, num_args = 0..=1)]
    use_paddlecloud: Option<Option<String>>,
    #[arg(long = "started_port", hide = true, num_args = 0..=1)]
    started_port: Option<Option<String>>,
    #[arg(long = "log_level", hide = true, num_args = 0..=1)]
    log_level: Option<Option<String>>,
    #[arg(long = "print_config", hide = true, num_args = 0..=1)]
    print_config: Option<Option<String>>,
}

/// The flags that are gone, and what to do instead.
const GONE: [(&str, &str); 7] = [
    ("--cluster_node_ips", "use --ips"),
    ("--selected_gpus", "use --gpus"),
    ("--node_ip", "a machine finds its own address; --host says it if not"),
    ("--use_paddlecloud", "the environment says so by itself"),
    ("--started_port", "use --start_port"),
    ("--log_level", "the launcher has one level"),
    ("--print_config", "what is started is always printed"),
];

impl RemovedFlags {
    fn check(&self) -> Result<(), Error> {
        // In the order of the table.
        let values = [
            &self.cluster_node_ips,
            &self.selected_gpus,
            &self.node_ip,
            &self.use_paddlecloud,
            &self.started_port,
            &self.log_level,
            &self.print_config,
        ];
        match GONE.iter().zip(values).find(|(_, value)| value.is_some()) {
            Some(((flag, instead), _)) => Err(gone(flag, instead)),
            None => Ok(()),
        }
    }
}

fn gone(flag: &str, instead: &str) -> Error {
    Error::Usage(format!("no such argument: {flag}; {instead}"))
}

/// A number of processes on this machine, or their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Members {
    /// This number, here.
    Count(usize),
    /// These.
    List(Vec<String>),
}

impl Members {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Members::Count(n) => *n,
            Members::List(list) => list.len(),
        }
    }

    /// Never: a job has at least one of each.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What kind of job, and who takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// Servers and workers.
    ParameterServer {
        /// The servers.
        servers: Members,
        /// The workers.
        workers: Members,
        /// Devices for the workers of each machine; empty if there are none.
        devices: Vec<String>,
    },
    /// Equal ranks.
    Collective {
        /// Number of machines.
        nodes: usize,
        /// Their addresses; empty for a single machine, and for machines that meet.
        ips: Vec<String>,
        /// Ranks on each machine.
        per_node: usize,
        /// Devices of each rank of a machine; empty if there are none.
        devices: Vec<Vec<String>>,
        /// The number of this machine, if it was said.
        rank: Option<usize>,
    },
}

/// What the flags and variables mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRequest {
    /// What kind of job, and who takes part.
    pub shape: Shape,
    /// Where machines meet.
    pub master: Option<String>,
    /// Which machine this is.
    pub host: Option<String>,
    /// First port.
    pub start_port: Option<u16>,
    /// Name of the job.
    pub job_id: String,
    /// How long machines and processes may take to appear.
    pub timeout: Duration,
    /// How connections are protected.
    pub tls: Tls,
    /// Folder for the logs.
    pub log_dir: PathBuf,
    /// How often a failed worker is started again.
    pub max_restart: u32,
    /// Whether the program is one of PaddlePaddle that runs on Regatta.
    pub paddle: bool,
    /// Things the user should know: variables that won over flags.
    pub notes: Vec<String>,
}

/// A value and where it came from.
#[derive(Clone)]
struct Setting {
    source: String,
    text: String,
}

impl Setting {
    fn parse<T: std::str::FromStr>(&self, what: &str) -> Result<T, Error> {
        self.text.trim().parse().map_err(|_| self.wrong(format!("it must be {what}")))
    }

    fn count(&self) -> Result<usize, Error> {
        match self.parse::<usize>("a whole number")? {
            n if (1..=4096).contains(&n) => Ok(n),
            _ => Err(self.wrong("it must be a whole number from 1 to 4096")),
        }
    }

    fn list(&self) -> Vec<String> {
        self.text.split(',').map(|entry| entry.trim().to_string()).collect()
    }

    fn devices(&self) -> Result<Vec<String>, Error> {
        let list = self.list();
        match list.iter().any(String::is_empty) {
            true => Err(self.wrong("an entry between commas is empty")),
            false => Ok(list),
        }
    }

    fn wrong(&self, reason: impl std::fmt::Display) -> Error {
        Error::Usage(format!("{} is '{}': {reason}", self.source, self.text))
    }
}

/// Looks values up: a variable wins over a flag, as users of `fleetrun` know it, and says so.
struct Sources<'a> {
    env: &'a Env,
    notes: Vec<String>,
}

impl Sources<'_> {
    fn get(&mut self, flag: &str, typed: &Option<String>, variable: &str) -> Option<Setting> {
        let typed = typed.as_deref().filter(|text| !text.trim().is_empty());
        if let Some(text) = self.env.get(variable) {
            if let Some(typed) = typed.filter(|typed| *typed != text) {
                self.notes.push(format!("{variable}={text} wins over --{flag} {typed}"));
            }
            return Some(Setting { source: variable.to_string(), text: text.to_string() });
        }
        typed.map(|text| Setting { source: format!("--{flag}"), text: text.to_string() })
    }
}

impl Flags {
    /// What the flags and these variables mean together.
    ///
    /// # Errors
    /// If they contradict each other, or ask for what there is not.
    pub fn resolve(&self, env: &Env) -> Result<JobRequest, Error> {
        self.resolve_in(env, true)
    }

    /// The same; `must_meet` is false where machines find each other by other means.
    pub(crate) fn resolve_in(&self, env: &Env, must_meet: bool) -> Result<JobRequest, Error> {
        self.check_removed()?;
        let mut from = Sources { env, notes: Vec::new() };
        let start_port = from.get("start_port", &self.start_port, "PADDLE_START_PORT");
        let start_port = start_port.map(|s| s.parse::<u16>("a port")).transpose()?;
        let master = from.get("master", &self.master, "PADDLE_MASTER");
        if let Some(setting) = &master {
            if setting.text.contains("://") {
                return Err(setting.wrong("it must be host:port; there is no elastic mode"));
            }
            endpoints::parse(&setting.source, &setting.text)?;
        }
        let shape = self.shape(&mut from, master.is_some() || !must_meet)?;
        let restart = from.get("max_restart", &self.max_restart, "PADDLE_MAX_RESTART");
        Ok(JobRequest {
            shape,
            master: master.map(|setting| setting.text.trim().to_string()),
            host: from
                .get("host", &self.host, "POD_IP")
                .map(|setting| setting.text.trim().to_string()),
            start_port,
            job_id: from
                .get("job_id", &self.job_id, "PADDLE_JOB_ID")
                .map_or("default".to_string(), |setting| setting.text),
            timeout: timeout(&self.timeout)?,
            tls: self.tls(env)?,
            log_dir: from
                .get("log_dir", &self.log_dir, "PADDLE_LOG_DIR")
                .map_or("log".into(), |setting| setting.text.into()),
            max_restart: restart.map_or(Ok(0), |setting| setting.parse("a whole number"))?,
            paddle: self.paddle,
            notes: from.notes,
        })
    }

    /// Refuses flags that are gone.
    pub(crate) fn check_removed(&self) -> Result<(), Error> {
        self.removed.check()
    }

    /// What is wrong with something that stands where the program should be, but looks like a flag.
    pub(crate) fn unknown(text: &str) -> Error {
        let flag = text.split('=').next().unwrap_or(text);
        let spelt = flag.trim_start_matches('-').replace('-', "_");
        if let Some((_, instead)) = GONE.iter().find(|(gone, _)| gone[2..] == spelt) {
            return gone(flag, instead);
        }
        let near = match nearest(flag) {
            Some(near) => format!("did you mean {near}?"),
            None => "--help lists all".into(),
        };
        Error::Usage(format!(
            "no such argument: {flag}; {near} (flags of the launcher go before the program, those \
             of the program after it)"
        ))
    }

    /// What flags say goes before what variables say.
    fn tls(&self, env: &Env) -> Result<Tls, Error> {
        let typed = [
            (names::TLS, &self.tls),
            (names::TLS_CERT, &self.tls_cert),
            (names::TLS_KEY, &self.tls_key),
            (names::TLS_CA, &self.tls_ca),
        ];
        let env = typed.into_iter().fold(env.clone(), |env, (name, typed)| match typed {
            Some(value) => env.with(name, value),
            None => env,
        });
        Ok(Tls::from_env(&env)?)
    }

    fn shape(&self, from: &mut Sources<'_>, can_meet: bool) -> Result<Shape, Error> {
        let server_num = from.get("server_num", &self.server_num, "PADDLE_SERVER_NUM");
        let worker_num = from.get("worker_num", &self.worker_num, "PADDLE_TRAINER_NUM");
        let servers = from.get("servers", &self.servers, "PADDLE_SERVERS_ENDPOINTS");
        let workers = from.get("workers", &self.workers, "PADDLE_TRAINERS_ENDPOINTS");
        let mode = from.get("run_mode", &self.run_mode, "PADDLE_RUN_MODE");
        let some = [&server_num, &worker_num, &servers, &workers].into_iter().flatten().next();
        let is_ps = match mode.as_ref().map(|setting| (setting.text.as_str(), setting)) {
            None => some.is_some(),
            Some(("ps", _)) => true,
            Some(("collective", _)) => match some {
                Some(some) => {
                    let reason = format!("it must be ps, because {} is given", some.source);
                    return Err(mode.map_or(Error::Usage(reason.clone()), |m| m.wrong(&reason)));
                }
                None => false,
            },
            Some((_, setting)) => return Err(setting.wrong("it must be ps or collective")),
        };
        if !is_ps {
            return self.collective(from, can_meet);
        }
        let servers = members("server_num", "servers", server_num, servers, None)?;
        let first_port = 6170 + servers.len();
        let workers = members("worker_num", "workers", worker_num, workers, Some(first_port))?;
        let devices = from.get("devices", &self.devices, "PADDLE_DEVICES");
        let devices = devices.map_or(Ok(vec![]), |setting| setting.devices())?;
        Ok(Shape::ParameterServer { servers, workers, devices })
    }

    fn collective(&self, from: &mut Sources<'_>, can_meet: bool) -> Result<Shape, Error> {
        let ips = from.get("ips", &self.ips, "PADDLE_IPS").map_or(vec![], |setting| setting.list());
        let nnodes = from.get("nnodes", &self.nnodes, "PADDLE_NNODES");
        let nodes = match &nnodes {
            Some(setting) if setting.text.contains(':') => {
                return Err(setting.wrong("it must be one number; there is no elastic mode"));
            }
            Some(setting) => setting.count()?,
            None => ips.len().max(1),
        };
        if let Some(setting) = nnodes.filter(|_| !ips.is_empty() && ips.len() != nodes) {
            return Err(setting.wrong(format!("--ips has {}", counted(ips.len(), "machine"))));
        }
        if nodes > 1 && ips.is_empty() && !can_meet {
            return Err(Error::Usage(format!(
                "{nodes} machines must know where to meet: add --master ADDRESS:PORT with the \
                 address of the first one and run the same command on each, or list them with --ips"
            )));
        }
        let rank = from.get("rank", &self.rank, "PADDLE_RANK").filter(|s| s.text != "-1");
        let rank = rank.map(|setting| match setting.parse::<usize>("a whole number from 0") {
            Ok(rank) if rank >= nodes => {
                Err(setting.wrong(format!("the number of machines is {nodes}")))
            }
            other => other,
        });
        let (per_node, devices) = self.ranks(from)?;
        Ok(Shape::Collective { nodes, ips, per_node, devices, rank: rank.transpose()? })
    }

    /// Ranks on a machine and the devices of each.
    fn ranks(&self, from: &mut Sources<'_>) -> Result<(usize, Vec<Vec<String>>), Error> {
        let per_node = from.get("nproc_per_node", &self.nproc_per_node, "PADDLE_NPROC_PER_NODE");
        let n = per_node.as_ref().map(Setting::count).transpose()?;
        let devices = from.get("devices", &self.devices, "PADDLE_DEVICES").or_else(|| {
            // Visible devices are meant to be used, unless the user sets a number of ranks.
            let source = "CUDA_VISIBLE_DEVICES";
            let text = from.env.get(source).filter(|_| n.is_none())?;
            Some(Setting { source: source.into(), text: text.into() })
        });
        let Some(devices) = devices else { return Ok((n.unwrap_or(1), vec![])) };
        let list = devices.devices()?;
        let n = n.unwrap_or(list.len());
        if list.len() % n != 0 {
            let reason = format!("{} devices cannot be shared evenly by {n} ranks", list.len());
            return Err(devices.wrong(reason));
        }
        Ok((n, list.chunks(list.len() / n).map(<[String]>::to_vec).collect()))
    }
}

/// The flag that was probably meant.
fn nearest(flag: &str) -> Option<String> {
    let command = <Flags as clap::Args>::augment_args(clap::Command::new("launch"));
    let error = command.try_get_matches_from(["launch", flag]).err()?;
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(near) => Some(near.clone()),
        _ => None,
    }
}

fn timeout(typed: &Option<String>) -> Result<Duration, Error> {
    let Some(text) = typed else { return Ok(Duration::from_secs(60)) };
    match text.trim().parse::<f64>() {
        Ok(s) if s > 0.0 && s < 1e7 => Ok(Duration::from_millis((s * 1000.0).ceil() as u64)),
        _ => Err(Error::Usage(format!("--timeout is '{text}': it must be a number of seconds"))),
    }
}

/// A count, a list, or both if they agree. Entries without a port get one from `first_port` on.
fn members(
    count_flag: &str,
    list_flag: &str,
    count: Option<Setting>,
    list: Option<Setting>,
    first_port: Option<usize>,
) -> Result<Members, Error> {
    let n = count.as_ref().map(Setting::count).transpose()?;
    let Some(list) = list else {
        let missing = format!("a job with parameter servers needs --{count_flag} or --{list_flag}");
        return n.map(Members::Count).ok_or(Error::Usage(missing));
    };
    let with_port = |(i, entry): (usize, String)| match first_port {
        Some(first) if !entry.is_empty() && !entry.contains(':') => {
            format!("{entry}:{}", first + i)
        }
        _ => entry,
    };
    let entries: Vec<String> = list.list().into_iter().enumerate().map(with_port).collect();
    let entries = endpoints::parse(&list.source, &entries.join(","))?;
    match count.zip(n) {
        Some((setting, n)) if n != entries.len() => {
            Err(setting.wrong(format!("--{list_flag} has {} entries", entries.len())))
        }
        _ => Ok(Members::List(entries)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use regatta_cluster::Env;

    use super::{Flags, JobRequest, Members, Shape};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: Flags,
    }

    fn resolve(args: &str, env: Env) -> Result<JobRequest, String> {
        let cli =
            Cli::try_parse_from(["x"].into_iter().chain(args.split('|').filter(|a| !a.is_empty())));
        cli.map_err(|e| e.to_string())?.flags.resolve(&env).map_err(|e| e.to_string())
    }

    fn shape(args: &str) -> Shape {
        resolve(args, Env::default()).unwrap().shape
    }

    fn error(args: &str) -> String {
        resolve(args, Env::default()).unwrap_err()
    }

    fn list(entries: &[&str]) -> Members {
        Members::List(entries.iter().map(|e| e.to_string()).collect())
    }

    #[test]
    fn counts_and_lists_of_parameter_servers() {
        let counts = shape("--worker_num=3|--server_num|2");
        assert_eq!(
            counts,
            Shape::ParameterServer {
                servers: Members::Count(2),
                workers: Members::Count(3),
                devices: vec![],
            }
        );
        let lists = shape("--servers=a:1, b:1|--workers=a, b:9");
        assert_eq!(
            lists,
            Shape::ParameterServer {
                servers: list(&["a:1", "b:1"]),
                workers: list(&["a:6172", "b:9"]),
                devices: vec![],
            }
        );
        let devices = shape("--server_num=1|--worker_num=1|--gpus=0, 1");
        assert!(matches!(devices, Shape::ParameterServer { devices, .. } if devices == ["0", "1"]));
        assert!(error("--server_num=1|--worker_num=1|--gpus=0,").contains("commas is empty"));
        assert!(error("--worker_num=2").contains("needs --server_num or --servers"));
        assert!(error("--servers=a:1|--server_num=2|--workers=a").contains("--servers has 1"));
        assert!(error("--servers=a|--worker_num=1").contains("'a' has no port"));
    }

    #[test]
    fn devices_with_blanks() {
        let Shape::Collective { per_node, devices, nodes, .. } = shape("--gpus|1, 3") else {
            panic!()
        };
        assert_eq!((nodes, per_node), (1, 2));
        assert_eq!(devices, [["1"], ["3"]]);
        let Shape::Collective { devices, .. } = shape("--devices=0,1,2,3|--nproc_per_node=2")
        else {
            panic!()
        };
        assert_eq!(devices, [["0", "1"], ["2", "3"]]);
        assert!(error("--gpus=0,1,2|--nproc_per_node=2").contains("cannot be shared evenly"));
        let visible = resolve("", Env::from([("CUDA_VISIBLE_DEVICES", "0,1,2,3")])).unwrap();
        assert!(matches!(visible.shape, Shape::Collective { per_node: 4, .. }));
    }

    #[test]
    fn machines_of_ranks() {
        let two = shape("--ips=10.0.0.1, 10.0.0.2|--nproc_per_node=8");
        assert!(matches!(two, Shape::Collective { nodes: 2, per_node: 8, .. }));
        assert!(error("--nnodes=2").contains("add --master"));
        assert!(error("--nnodes=2:4|--master=a:1").contains("no elastic mode"));
        assert!(error("--nnodes=3|--ips=a,b").contains("--ips has 2 machines"));
        assert!(error("--nnodes=2|--master=a:1|--rank=2").contains("the number of machines is 2"));
        assert!(error("--master=etcd://a:1").contains("no elastic mode"));
    }

    #[test]
    fn flags_that_are_gone_say_what_to_use() {
        for (flag, instead) in [
            ("--cluster_node_ips=a", "use --ips"),
            ("--selected_gpus=0", "use --gpus"),
            ("--node_ip=a", "--host"),
            ("--use_paddlecloud", "environment"),
            ("--started_port=1", "use --start_port"),
            ("--log_level=20", "one level"),
            ("--print_config", "always printed"),
        ] {
            let error = error(flag);
            assert!(error.starts_with("no such argument: --"), "{error}");
            assert!(error.contains(instead), "{error}");
        }
    }

    #[test]
    fn a_misspelt_flag_names_the_nearest() {
        for (typed, message) in [
            ("--worker_nun", "--worker_nun; did you mean --worker_num?"),
            ("--nproc_per_nod=2", "--nproc_per_nod; did you mean --nproc_per_node?"),
            ("--gpu", "--gpu; did you mean --gpus?"),
            ("--selected-gpus", "--selected-gpus; use --gpus"),
            ("--zzz", "--zzz; --help lists all"),
            ("-x", "-x; --help lists all"),
        ] {
            let error = Flags::unknown(typed).to_string();
            assert!(error.starts_with(&format!("no such argument: {message}")), "{error}");
        }
    }

    #[test]
    fn variables_win_over_flags_and_say_so() {
        let env = Env::from([("PADDLE_TRAINER_NUM", "4"), ("PADDLE_LOG_DIR", "here")]);
        let request = resolve("--worker_num=2|--server_num=1", env).unwrap();
        assert_eq!(request.log_dir.to_str(), Some("here"));
        assert_eq!(request.notes, ["PADDLE_TRAINER_NUM=4 wins over --worker_num 2"]);
        let Shape::ParameterServer { workers, .. } = request.shape else { panic!() };
        assert_eq!(workers, Members::Count(4));
    }

    #[test]
    fn modes_and_numbers_are_checked() {
        assert!(error("--run_mode=collective|--worker_num=2").contains("because --worker_num"));
        assert!(error("--run_mode=ps-heter").contains("it must be ps or collective"));
        assert!(error("--worker_num=0|--server_num=1").contains("from 1 to 4096"));
        assert!(error("--timeout=never").contains("number of seconds"));
        assert!(error("--start_port=70000").contains("a port"));
    }
}
