//! Flags of jobs with several processes.

use std::path::PathBuf;

use anyhow::Result;
use regatta_cluster::{Env, names};
use regatta_collective::Transport;

use super::job::JobKind;

/// Flags of jobs with several processes.
#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// Train with this many parameter servers, each a process of its own.
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = at_most_64)]
    pub(super) servers: usize,
    /// Train with this many workers, each a process of its own.
    #[arg(long, value_name = "W", default_value_t = 0, value_parser = at_most_64)]
    pub(super) workers: usize,
    /// In sync and bounded mode, continue without workers that are lost.
    #[arg(long)]
    pub(super) allow_worker_loss: bool,
    /// Start the job again, from its newest checkpoint, up to this many times when a process fails.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) max_restart: u32,
    /// Where a worker or rank leaves its part of the report; set by the process that starts the
    /// others.
    #[arg(long, hide = true, value_name = "FILE")]
    pub(super) part_report: Option<PathBuf>,
}

pub(super) fn at_most_64(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if n <= 64 => Ok(n),
        _ => Err("it must be a whole number up to 64; use several machines beyond that".into()),
    }
}

impl PsArgs {
    /// Whether the job has several processes.
    pub(super) fn is_wanted(&self) -> bool {
        self.servers + self.workers > 0
    }

    /// At least one process of each kind.
    pub(super) fn kind(&self) -> JobKind {
        JobKind::Servers { servers: self.servers.max(1), workers: self.workers.max(1) }
    }
}

/// Flags of collective jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// Train with this many ranks, each a process of its own, that add up their gradients.
    #[arg(long, value_name = "N", value_parser = ranks)]
    #[arg(conflicts_with_all = ["servers", "workers"])]
    pub(super) ranks: Option<usize>,
    /// Be this rank of --ranks, instead of starting all of them: the others are started elsewhere
    /// and meet this one at --master.
    #[arg(long, value_name = "R", requires_all = ["ranks", "master"])]
    rank: Option<usize>,
    /// What carries gradients between ranks. MPI needs ranks that mpirun has started.
    #[arg(long, value_enum, default_value_t)]
    pub(super) transport: Carrier,
    /// Where ranks meet: rank 0 listens there.
    #[arg(long, value_name = "HOST:PORT", requires = "rank")]
    master: Option<String>,
}

/// As [`Transport`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Carrier {
    /// Shared memory on one machine, else the fastest sockets.
    #[default]
    Auto,
    Memory,
    Unix,
    Tcp,
    Mpi,
}

impl Carrier {
    pub(super) fn transport(self) -> Transport {
        match self {
            Carrier::Auto => Transport::Auto,
            Carrier::Memory => Transport::SharedMemory,
            Carrier::Unix => Transport::Unix,
            Carrier::Tcp => Transport::Tcp,
            Carrier::Mpi => Transport::Mpi,
        }
    }

    pub(super) fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |v| v.get_name().into())
    }
}

impl RankArgs {
    /// Whether flags ask this process to start a job, not to be a part of one.
    pub(super) fn starts_job(&self) -> bool {
        self.ranks.is_some() && self.rank.is_none()
    }

    /// Refuses flags that need ranks.
    pub(super) fn check_without_ranks(&self) -> Result<()> {
        if self.transport == Carrier::Auto {
            return Ok(());
        }
        anyhow::bail!("--transport is for ranks: use --ranks, or a launcher with several processes")
    }

    /// The environment with what flags say about the place of this process.
    pub(super) fn place(&self, env: Env) -> Result<Env> {
        let (Some(rank), Some(ranks), Some(master)) = (self.rank, self.ranks, &self.master) else {
            return Ok(env);
        };
        if env.get(names::TRAINER_ENDPOINTS).is_some() {
            anyhow::bail!(
                "{} is set and says where the ranks are; leave out --rank and --master",
                names::TRAINER_ENDPOINTS
            );
        }
        let env = env.with(names::TRAINER_ID, rank).with(names::TRAINERS_NUM, ranks);
        Ok(env.with(names::MASTER, master))
    }
}

fn ranks(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=64).contains(&n) => Ok(n),
        _ => Err("it must be a whole number from 1 to 64; use several machines beyond that".into()),
    }
}
