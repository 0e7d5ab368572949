//! From the flags to the end of the job: the whole of `regatta launch`.

use std::fs;
use std::slice;
use std::time::{Duration, Instant};

use regatta_cluster::{Env, JobIdentity, OtherFrameworks, Place, PsRole, endpoints, names, token};
use regatta_net::counted;

use crate::flags::{Flags, JobRequest, Members, Shape};
use crate::meeting::{Card, ListenRule, Meeting, Participants, Point, Spare};
use crate::plan::{self, Here, Node, Plan};
use crate::{
    Error, Options, Outcome, Part, Program, Report, Spec, Supervisor, ThisProgram, devices, ports,
    program, random_token,
};

/// Where machines meet if nobody says otherwise: this port of the first one.
const MEETING_PORT: u16 = 6767;

/// Starts `command` as the flags say and stays until the job has ended. `this` is the running
/// program; `started` is when it was started.
///
/// # Errors
/// If the job cannot be started. What happens after that is in the report.
pub fn launch(
    flags: &Flags,
    env: &Env,
    command: &[String],
    this: &ThisProgram,
    started: Instant,
) -> Result<Report, Error> {
    flags.check_removed()?;
    let (program, args) = Program::of_command(command, this, flags.paddle)?;
    let mut request = flags.resolve(env)?;
    request.notes.extend(devices::without_missing(&mut request.shape, env));
    request.notes.iter().for_each(|note| eprintln!("note: {note}"));
    let (token, with_gloo) = (given_token(flags, env)?, with_gloo(env)?);
    let (plan, meeting) = plan_of(&request, token)?;
    let held = ports::hold(&plan.endpoints())?;
    let meeting = match meeting {
        Some(MeetingPlan::Met(meeting)) => Some(*meeting),
        Some(MeetingPlan::ToMeet(point, mut card)) => {
            card.spare = spare(&plan.here, slice::from_ref(&point.address))?;
            Some(Meeting::join(&point, Participants::Hosts(plan.hosts.clone()), &card)?)
        }
        None => None,
    };
    let spare = match &meeting {
        Some(meeting) => meeting.spare(),
        None => spare(&plan.here, &[])?,
    };
    if let Some(meeting) = &meeting {
        meeting.check(&plan.elsewhere)?;
    }
    drop(held);
    let others = other_frameworks(&plan, &spare, with_gloo);
    let specs = specs(&plan, &request, &program, &args, others.as_ref())?;
    supervise(specs, meeting, Options::new(this, started))
}

/// What `--emit k8s` prints.
///
/// # Errors
/// If the flags do not make a job there.
pub fn emit(flags: &Flags, env: &Env, command: &[String]) -> Result<String, Error> {
    flags.check_removed()?;
    let command = program::of_pods(command, flags.paddle)?;
    let request = flags.resolve_in(env, false)?;
    let token = given_token(flags, env)?;
    let objects = crate::k8s::objects(&request, flags.image.as_deref(), &command, token)?;
    Ok(crate::k8s::to_yaml(&objects))
}

fn supervise(
    specs: Vec<Spec>,
    meeting: Option<Meeting>,
    mut options: Options,
) -> Result<Report, Error> {
    if let Some(meeting) = &meeting {
        options.follower_limit = None;
        options.on_leaders_done = Some(std::sync::Arc::new(meeting.leaders_done()));
    }
    let supervisor = Supervisor::new(specs, options)?;
    if let Some(meeting) = &meeting {
        meeting.watch(supervisor.remote());
    }
    let report = supervisor.run();
    if let Some(meeting) = meeting {
        meeting.end(match &report {
            Ok(Report { outcome: Outcome::Done, .. }) => None,
            Ok(Report { outcome: Outcome::Failed(failure), .. }) => Some(failure.message.clone()),
            Ok(Report { outcome: Outcome::Interrupted(signal), .. }) => {
                Some(format!("the launcher was ended by signal {signal}"))
            }
            Ok(Report { outcome: Outcome::Stopped(reason), .. }) => Some(reason.clone()),
            Err(error) => Some(error.to_string()),
        });
    }
    report
}

fn given_token(flags: &Flags, env: &Env) -> Result<Option<String>, Error> {
    let Some(file) = &flags.token_file else {
        let given = env.get(names::JOB_TOKEN).map(str::to_string);
        given.iter().try_for_each(|given| token::check(names::JOB_TOKEN, given))?;
        return Ok(given);
    };
    let read = token::from_file(file);
    Ok(Some(read.map_err(|e| Error::Usage(format!("--token-file {e}")))?))
}

/// How this machine meets the others.
enum MeetingPlan {
    /// They have met already, because nobody could know who takes part.
    Met(Box<Meeting>),
    ToMeet(Point, Box<Card>),
}

fn plan_of(
    request: &JobRequest,
    token: Option<String>,
) -> Result<(Plan, Option<MeetingPlan>), Error> {
    let mut job = JobIdentity {
        id: request.job_id.clone(),
        token: Some(token.clone().map_or_else(random_token, Ok)?),
        start_timeout: request.timeout,
        tls: request.tls.clone(),
    };
    if let Shape::Collective { nodes, ips, .. } = &request.shape
        && *nodes > 1
        && ips.is_empty()
    {
        job.token = Some(token.ok_or_else(no_token)?);
        let (plan, meeting) = meet_first(request, &job)?;
        return Ok((plan, Some(MeetingPlan::Met(Box::new(meeting)))));
    }
    let plan = known_plan(request, &job)?;
    if plan.is_whole() {
        return Ok((plan, None));
    }
    let token = token.ok_or_else(no_token)?;
    let card = Box::new(Card::new(plan.here.clone(), fingerprint(request)));
    let address = request.master.clone();
    let address = address.unwrap_or_else(|| format!("{}:{MEETING_PORT}", plan.hosts[0]));
    let host = endpoints::host(&address);
    let is_first = if plan.hosts.iter().any(|h| h == host) {
        plan.here.iter().any(|h| h == host)
    } else {
        ports::is_local(host)?
    };
    let listen = if is_first { ListenRule::Yes } else { ListenRule::No };
    let (tls, timeout) = (request.tls.clone(), request.timeout);
    let point = Point { address, listen, token, tls, timeout };
    Ok((plan, Some(MeetingPlan::ToMeet(point, card))))
}

fn no_token() -> Error {
    Error::Usage(format!(
        "a job on several machines needs a secret that all of them share: make one with\n  \
         (umask 077; {} > token)\n\
         copy the file to every machine and add --token-file token, or set {}",
        token::MAKE_ONE,
        names::JOB_TOKEN
    ))
}

/// What must be the same in the command of every machine.
fn fingerprint(request: &JobRequest) -> String {
    let ports = request.start_port.map(|p| format!(", ports from {p}")).unwrap_or_default();
    let list = |members: &Members| match members {
        Members::Count(n) => n.to_string(),
        Members::List(list) => list.join(","),
    };
    let who = match &request.shape {
        Shape::ParameterServer { servers, workers, .. } => {
            format!("servers {}, workers {}", list(servers), list(workers))
        }
        Shape::Collective { nodes, ips, per_node, .. } => {
            format!("{} on each of {nodes} machines {}", counted(*per_node, "rank"), ips.join(","))
        }
    };
    format!("job {}: {who}{ports}", request.job_id)
}

/// The plan of a job whose addresses everybody knows.
fn known_plan(request: &JobRequest, job: &JobIdentity) -> Result<Plan, Error> {
    let this = request.host.as_deref().map_or(Here::Found, Here::Host);
    match &request.shape {
        Shape::ParameterServer { servers, workers, .. } => match (servers, workers) {
            (Members::Count(s), Members::Count(w)) => {
                plan::local_parameter_server(*s, *w, job, request.start_port)
            }
            (Members::List(servers), Members::List(workers)) => {
                plan::parameter_server(servers, workers, job, this)
            }
            (Members::List(servers), Members::Count(w)) => {
                let workers = beside(servers, *w, "--servers", "--workers")?;
                plan::parameter_server(servers, &workers, job, this)
            }
            (Members::Count(s), Members::List(workers)) => {
                let servers = beside(workers, *s, "--workers", "--servers")?;
                plan::parameter_server(&servers, workers, job, this)
            }
        },
        Shape::Collective { ips, per_node, devices, .. } => {
            let devices = || devices.clone();
            if ips.is_empty() || *ips == ["127.0.0.1"] {
                let endpoints = plan::local_endpoints(*per_node, request.start_port)?;
                let all: Vec<String> = endpoints.clone();
                let node = Node { endpoints, devices: devices() };
                return plan::collective(&[node], None, job, Here::Endpoints(&all));
            }
            let first = Some(request.start_port.unwrap_or(plan::FIRST_RANK_PORT));
            let node = |ip: &String| {
                let endpoints = plan::host_endpoints(ip, *per_node, first)?;
                Ok(Node { endpoints, devices: devices() })
            };
            let nodes = ips.iter().map(node).collect::<Result<Vec<_>, Error>>()?;
            plan::collective(&nodes, request.master.as_deref(), job, this)
        }
    }
}

/// Addresses for processes that were only counted, beside others that were listed.
fn beside(list: &[String], n: usize, listed: &str, missing: &str) -> Result<Vec<String>, Error> {
    let host = endpoints::host(&list[0]);
    if list.iter().any(|e| endpoints::host(e) != host) {
        return Err(Error::Usage(format!(
            "{listed} are on several machines, so {missing} must be a list, too"
        )));
    }
    plan::host_endpoints(host, n, None)
}

/// Machines that know where to meet but not each other: those who come take part.
fn meet_first(request: &JobRequest, job: &JobIdentity) -> Result<(Plan, Meeting), Error> {
    let Shape::Collective { nodes, per_node, devices, rank, .. } = &request.shape else {
        return Err(Error::Internal("only ranks meet before they are known".into()));
    };
    let address = request.master.clone().unwrap_or_default();
    let is_here = ports::is_local(endpoints::host(&address))?;
    let host = match &request.host {
        Some(host) => host.clone(),
        None if is_here => endpoints::host(&address).to_string(),
        None => regatta_net::own_address(&address)
            .map_err(|e| Error::Usage(format!("cannot find a way to {address}: {e}; say --host")))?
            .to_string(),
    };
    let mine = plan::host_endpoints(&host, *per_node, request.start_port)?;
    let taken: Vec<String> = mine.iter().chain([&address]).cloned().collect();
    let spare = spare(slice::from_ref(&host), &taken)?;
    let mut card = Card { spare, ..Card::new(vec![host], fingerprint(request)) };
    (card.rank, card.endpoints) = (*rank, mine.clone());
    let listen = if is_here { ListenRule::IfFree } else { ListenRule::No };
    let token = job.token.clone().unwrap_or_default();
    let (tls, timeout) = (request.tls.clone(), request.timeout);
    let point = Point { address: address.clone(), listen, token, tls, timeout };
    let meeting = Meeting::join(&point, Participants::Count(*nodes), &card)?;
    let node = |card: &Card| Node { endpoints: card.endpoints.clone(), devices: devices.clone() };
    let all: Vec<Node> = meeting.roster.iter().map(node).collect();
    let plan = plan::collective(&all, Some(&address), job, Here::Endpoints(&mine))?;
    Ok((plan, meeting))
}

/// Ports of this machine that are free beside those of the job and `taken` ones.
fn spare(hosts: &[String], taken: &[String]) -> Result<Vec<Spare>, Error> {
    let of_host = |host: &String| match ports::free_beside(host, 2, taken)?[..] {
        [torch, gloo] => Ok(Spare { host: host.clone(), torch, gloo }),
        _ => Err(Error::Usage(format!("{host} has no two free ports beside those of the job"))),
    };
    hosts.iter().map(of_host).collect()
}

/// Where PyTorch and PaddlePaddle meet: at the first worker, and at the first server.
fn other_frameworks(plan: &Plan, spare: &[Spare], with_gloo: u8) -> Option<OtherFrameworks> {
    let (first, server) = match plan.places.first()? {
        Place::Local => return None,
        Place::Collective(c) => (c.endpoints.first()?, None),
        Place::ParameterServer(ps) => (ps.worker_endpoints.first()?, ps.servers.first()),
    };
    let at = |endpoint: &str| spare.iter().find(|spare| spare.host == endpoints::host(endpoint));
    let first = at(first)?;
    let torch = format!("{}:{}", first.host, first.torch);
    let gloo = server.and_then(|server| at(server)).map(|at| format!("{}:{}", at.host, at.gloo));
    Some(OtherFrameworks { torch, gloo, with_gloo })
}

/// What the user says about Gloo; it is used, as by the launcher of PaddlePaddle.
fn with_gloo(env: &Env) -> Result<u8, Error> {
    let what = "0 (no Gloo), 1 (workers) or 2 (servers as well)";
    match env.parse::<u8>(names::WITH_GLOO, what)? {
        None => Ok(1),
        Some(n) if n <= 2 => Ok(n),
        Some(n) => Err(Error::Usage(format!("{} is '{n}': it must be {what}", names::WITH_GLOO))),
    }
}

fn specs(
    plan: &Plan,
    request: &JobRequest,
    program: &Program,
    args: &[String],
    others: Option<&OtherFrameworks>,
) -> Result<Vec<Spec>, Error> {
    fs::create_dir_all(&request.log_dir)
        .map_err(|source| Error::Log { path: request.log_dir.clone(), source })?;
    let devices = worker_devices(plan, &request.shape)?;
    let mut devices = devices.iter();
    let mut spec = |place: &Place| {
        let mut spec = Spec::new(place, program.clone());
        let file = match place {
            Place::ParameterServer(ps) => match ps.role {
                PsRole::Server(i) => format!("serverlog.{i}"),
                PsRole::Worker(i) => format!("workerlog.{i}"),
            },
            Place::Collective(c) => format!("workerlog.{}", c.rank),
            Place::Local => "workerlog.0".into(),
        };
        let log = request.log_dir.join(file);
        let at = spec.endpoint.as_deref().unwrap_or_default();
        println!("{} at {at}, log {}", spec.name, log.display());
        spec.args = args.to_vec();
        spec.env.extend(others.map(|others| others.to_env(place)).unwrap_or_default());
        spec.env.push(("PADDLE_LOG_DIR".into(), request.log_dir.to_string_lossy().into_owned()));
        if request.paddle {
            spec.env.push((names::PADDLE.into(), "1".into()));
        }
        spec.log = Some(log);
        if let Some(own) = is_ps_worker(place).then(|| devices.next()).flatten() {
            spec.env.push((names::SELECTED_GPUS.into(), own.join(",")));
        }
        if spec.part == Part::Leader {
            spec.restarts = request.max_restart;
        }
        spec
    };
    Ok(plan.places.iter().map(&mut spec).collect())
}

fn is_ps_worker(place: &Place) -> bool {
    matches!(place, Place::ParameterServer(ps) if matches!(ps.role, PsRole::Worker(_)))
}

/// The devices of each worker here, in a job with servers: equal parts of the list.
fn worker_devices(plan: &Plan, shape: &Shape) -> Result<Vec<Vec<String>>, Error> {
    let Shape::ParameterServer { devices, .. } = shape else { return Ok(vec![]) };
    let workers = plan.places.iter().filter(|place| is_ps_worker(place)).count();
    if devices.is_empty() || workers == 0 {
        return Ok(vec![]);
    }
    if devices.len() % workers != 0 {
        return Err(Error::Usage(format!(
            "--gpus: {} cannot be shared evenly by {} of this machine",
            counted(devices.len(), "device"),
            counted(workers, "worker")
        )));
    }
    Ok(devices.chunks(devices.len() / workers).map(<[String]>::to_vec).collect())
}

/// What `--timing` prints.
pub fn timing_line(report: &Report) -> String {
    let ms = |d: Duration| format!("{:.0} ms", d.as_secs_f64() * 1000.0);
    let timing = &report.timing;
    let mut line = format!("timing: processes started after {}", ms(timing.started));
    if let Some(listening) = timing.listening {
        line += &format!(", servers listening after {}", ms(listening));
    }
    line += &match timing.first_step {
        Some(first) => format!(", first training step of all workers after {}", ms(first)),
        None => ", no first training step was reported".into(),
    };
    line
}
