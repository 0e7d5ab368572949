//! From a split program to the settings of servers and workers.

use std::time::Duration;

use regatta_collective::{Group, GroupConfig, Observer as GroupObserver};
use regatta_ir::{Op, Program};
use regatta_optim::{Rule, Sum};
use regatta_passes::{ServerPartition, Split, TableSpec};
use regatta_ps::partition::{Piece, dense_pieces};
use regatta_ps::{
    Client, ClientConfig, ClientTable, DenseSetup, JobToken, Mode, Network, NoticeObserver,
    Observer, ServerConfig, TableSetup, Wire,
};
use regatta_table::{Accessor, Admission, Initializer, PlainConfig, SparseConfig, Stream, TableId};

use crate::Error;
use crate::tier::{Tiers, check_names, remove_leftovers};

/// A parameter-server job: who takes part and how.
#[derive(Clone)]
pub struct Job {
    /// Addresses of the servers, in order.
    pub endpoints: Vec<String>,
    /// The addresses are names in this network of the process: workers and servers are in one.
    pub network: Option<Network>,
    /// Number of workers.
    pub workers: usize,
    /// Consistency.
    pub mode: Mode,
    /// Secret that all processes share.
    pub token: JobToken,
    /// How gradients and values travel between workers and servers.
    pub wire: Wire,
    /// Which ids become rows.
    pub admission: Admission,
    /// Which tables have rows on disk. Values do not depend on it.
    pub tiers: Tiers,
    /// Continue without workers that are lost.
    pub allow_worker_loss: bool,
    /// How long processes may take to appear.
    pub start_timeout: Duration,
    /// How long a worker may be away before it counts as lost.
    pub worker_timeout: Duration,
    /// How long an answer may take.
    pub reply_timeout: Duration,
    /// Is notified of trouble with connections.
    pub observer: Observer,
    /// Is notified by servers of workers that are lost.
    pub notices: NoticeObserver,
}

impl Job {
    /// A job with the usual time limits, which admits every id.
    pub fn new(endpoints: Vec<String>, workers: usize, mode: Mode, token: JobToken) -> Job {
        Job {
            endpoints,
            network: None,
            workers,
            mode,
            token,
            wire: Wire::F32,
            admission: Admission::None,
            tiers: Tiers::new(),
            allow_worker_loss: false,
            start_timeout: Duration::from_secs(60),
            worker_timeout: Duration::from_secs(3),
            reply_timeout: Duration::from_secs(600),
            observer: std::sync::Arc::new(|_| {}),
            notices: std::sync::Arc::new(|_| {}),
        }
    }
}

/// The part of a startup program that a worker of a split program needs: tables and the states of
/// optimizers live on the servers, and are not made here.
pub fn worker_startup(startup: &Program, split: &Split) -> Program {
    let used = &split.trainer.block().vars;
    let mut own = startup.clone();
    let block = own.block_mut();
    block.ops.retain(|op| op.output_vars().any(|var| used.contains_key(var)));
    block.drop_unused_vars(&[]);
    own
}

/// Rules that look at a whole parameter cannot work on a partition of it.
fn needs_whole(rule: &Rule) -> bool {
    matches!(rule, Rule::Lamb(_) | Rule::LarsMomentum(_))
}

/// Which server holds which partition of which dense parameter.
pub fn pieces(split: &Split, servers: usize) -> Vec<Vec<Piece>> {
    let lens: Vec<usize> = split.dense.iter().map(|d| d.shape.iter().product()).collect();
    dense_pieces(&lens, servers, split.dense.iter().any(|d| needs_whole(&d.rule)))
}

/// The partitions of one server with names, as its program shows them.
pub fn server_partitions(split: &Split, servers: usize, server: usize) -> Vec<ServerPartition> {
    let all = pieces(split, servers);
    let number = |piece: &Piece| {
        let same = all[..server].iter().flatten().filter(|p| p.param == piece.param);
        same.count()
    };
    let named = |piece: &Piece| {
        let param = split.dense[piece.param].name.clone();
        let name = format!("{param}.block{}", number(piece));
        ServerPartition { name, param, range: piece.range.clone() }
    };
    all[server].iter().map(named).collect()
}

/// What all processes of a job must agree on, in short.
pub fn fingerprint(split: &Split, job: &Job) -> String {
    let (mode, admission) = (&job.mode, &job.admission);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let text = format!(
        "{split}{:?}{:?}{}{:?}{mode:?}{admission}",
        split.tables, split.dense, split.learning_rate, split.schedule
    );
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{}:{hash:016x}", mode.name())
}

/// The configuration of one server.
///
/// # Errors
/// If a table starts with values that servers cannot make, or its rows cannot be on disk as the
/// job says.
pub fn server_config(split: &Split, job: &Job, index: usize) -> Result<ServerConfig, Error> {
    let geo = matches!(job.mode, Mode::Geo { .. });
    let rule = |rule: &Rule| if geo { Rule::Sum(Sum {}) } else { *rule };
    check_names(&job.tiers, split.tables.iter().map(|t| t.name.as_str()))?;
    let mut tables = Vec::new();
    for (number, table) in split.tables.iter().enumerate() {
        let mut plain = PlainConfig::new(table.dim, rule(&table.rule));
        plain.initializer = initializer(&table.name, &table.init)?;
        let seed = table.init.int("seed").unwrap_or(0) as u64;
        let mut config = SparseConfig::new(TableId(number as u32), seed, Accessor::Plain(plain));
        // The same initial values as a table in one process.
        config.stream = Stream::Variable(table.name.clone());
        config.admission = job.admission.clone();
        let tier = job.tiers.get(&table.name);
        config.tier = tier.map(|tier| tier.on_server(&table.name, index)).transpose()?;
        let lr_scale = if geo { 1.0 } else { table.lr_scale as f32 };
        tables.push(TableSetup { name: table.name.clone(), config, lr_scale });
    }
    remove_leftovers(&job.tiers, index);
    let servers = job.endpoints.len();
    let dense = pieces(split, servers)[index]
        .iter()
        .map(|piece| {
            let spec = &split.dense[piece.param];
            DenseSetup {
                param: spec.name.clone(),
                start: piece.range.start,
                len: piece.range.len(),
                rule: rule(&spec.rule),
                lr_scale: spec.lr_scale as f32,
            }
        })
        .collect();
    let names = split.tables.iter().map(|t| &t.name).chain(split.dense.iter().map(|d| &d.name));
    Ok(ServerConfig {
        index,
        servers,
        workers: job.workers,
        endpoint: job.endpoints[index].clone(),
        network: job.network.clone(),
        token: job.token.clone(),
        job: fingerprint(split, job),
        mode: job.mode,
        tables,
        dense,
        params: names.cloned().collect(),
        learning_rate: split.learning_rate,
        schedule: split.schedule.clone(),
        allow_worker_loss: job.allow_worker_loss,
        start_timeout: job.start_timeout,
        worker_timeout: job.worker_timeout,
        observer: job.observer.clone(),
        notices: job.notices.clone(),
        tune: None,
    })
}

/// The configuration of one worker's connections.
pub fn client_config(split: &Split, job: &Job, worker: usize) -> ClientConfig {
    let counted = job.admission.counts_appearances();
    let table = |t: &TableSpec| {
        let lookahead = job.tiers.get(&t.name).map_or(0, |tier| tier.lookahead as usize);
        ClientTable { name: t.name.clone(), dim: t.dim, counted, lookahead }
    };
    ClientConfig {
        worker,
        workers: job.workers,
        endpoints: job.endpoints.clone(),
        network: job.network.clone(),
        token: job.token.clone(),
        job: fingerprint(split, job),
        tables: split.tables.iter().map(table).collect(),
        pieces: pieces(split, job.endpoints.len()),
        wire: job.wire,
        connect_timeout: job.start_timeout,
        reply_timeout: job.reply_timeout,
        observer: job.observer.clone(),
        tune: None,
    }
}

/// Joins all workers of a job, which find each other through the servers.
///
/// # Errors
/// If a worker is lost, or cannot be reached.
pub fn join_workers(client: &Client, job: &Job, observer: GroupObserver) -> Result<Group, Error> {
    let mut config = GroupConfig::new(client.worker(), vec![], job.token.clone());
    config.start_timeout = job.start_timeout;
    config.observer = observer;
    let server = client.endpoints().first().map_or("", String::as_str);
    let own = config.listen_towards(server)?;
    for (worker, address) in client.gather("addresses", own.as_bytes())?.into_iter().enumerate() {
        let lost = || Error::Lost(format!("worker {worker} is lost: it has given no address"));
        let address = String::from_utf8(address).ok().filter(|address| !address.is_empty());
        config.endpoints.push(address.ok_or_else(lost)?);
    }
    Ok(Group::connect(config)?)
}

fn initializer(table: &str, init: &Op) -> Result<Initializer, Error> {
    let get = |name: &str| Ok::<f32, regatta_ir::Error>(init.float(name)? as f32);
    Ok(match init.kind.as_str() {
        "fill_constant" => Initializer::Constant(get("value")?),
        "uniform_random" => Initializer::Uniform { low: get("low")?, high: get("high")? },
        "gaussian_random" => Initializer::Normal { mean: get("mean")?, std: get("std")? },
        "truncated_gaussian_random" => {
            Initializer::TruncatedNormal { mean: get("mean")?, std: get("std")? }
        }
        other => {
            return Err(Error::Config(format!(
                "table '{table}' cannot start with the values of op '{other}' on servers"
            )));
        }
    })
}
