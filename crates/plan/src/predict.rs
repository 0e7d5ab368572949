//! One cluster: how fast it trains, what it holds, and what stops it from being faster.
//!
//! A worker computes a step, then exchanges with all servers at once, and begins again. Servers are
//! alike, so one stands for all: it is a station with a queue for its cores and another for its
//! network card. With the time that a worker spends elsewhere and the time that a step takes at
//! each station, mean value analysis of closed queueing networks gives the speed of M workers
//! (Reiser and Lavenberg).

use serde::Serialize;

use crate::cluster::{Cluster, Machines};
use crate::workload::{Pace, TableLoad, Workload};

/// What a process takes before it holds anything: code, stacks, buffers.
const BASE_MEMORY: f64 = 48.0 * 1024.0 * 1024.0;

/// What one cluster comes to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Server processes.
    pub servers: u64,
    /// Worker processes.
    pub workers: u64,
    /// Examples per second of all workers.
    pub examples_per_sec: f64,
    /// What is used most.
    pub bottleneck: Bottleneck,
    /// How much of it is used, from 0 to 1.
    pub bottleneck_share: f64,
    /// Bytes that the fullest server holds.
    pub server_memory: f64,
    /// Bytes that a worker holds.
    pub worker_memory: f64,
    /// Bytes per second into and out of a server, the larger of the two.
    pub server_network: f64,
    /// Seconds to write all tables once, if servers have disks.
    pub save_seconds: Option<f64>,
    /// Bytes of a server's part of a saved model.
    pub saved_bytes: f64,
    /// Bytes of a server's files for rows on disk, at most.
    pub cold_bytes: f64,
}

/// What keeps a cluster from being faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Workers compute all the time.
    WorkerCores,
    /// Workers' network cards.
    WorkerNetwork,
    /// Servers' cores.
    ServerCores,
    /// Servers' network cards.
    ServerNetwork,
    /// Workers wait for messages to come and go.
    Waiting,
}

impl std::fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Bottleneck::WorkerCores => "cores of workers",
            Bottleneck::WorkerNetwork => "network of workers",
            Bottleneck::ServerCores => "cores of servers",
            Bottleneck::ServerNetwork => "network of servers",
            Bottleneck::Waiting => "waiting for exchanges",
        })
    }
}

/// Seconds that a step takes at each station.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Demands {
    /// Cores of the worker, of one thread after the other.
    pub(crate) worker_cpu: f64,
    /// From the beginning to the end of computing, with the worker's threads.
    pub(crate) compute: f64,
    /// Cores of one server.
    pub(crate) server_cpu: f64,
    /// Network card of one server, the busier direction.
    pub(crate) server_card: f64,
    /// Network card of the worker, the busier direction.
    pub(crate) worker_card: f64,
    /// The same of gradients and dense parameters alone.
    pub(crate) push_card: f64,
    /// Messages on their way, with nobody busy.
    pub(crate) travel: f64,
}

impl Demands {
    pub(crate) fn new(w: &Workload, c: &Cluster, servers: u64) -> Demands {
        let (f, n) = (&c.figures, servers as f64);
        let often = 1.0 / w.steps_per_exchange();
        let (up, down) = (w.bytes_up() * often, w.bytes_down() * often);
        let sockets = (up + down) * f.byte_ns * 1e-9 + often * n * f.message_us * 1e-6;
        let local_rows = match w.pace {
            // Rows of the worker's own copy are updated by the worker.
            Pace::Every(_) => w.keys_per_batch() * (f.pull_ns + f.push_ns) * 1e-9,
            _ => 0.0,
        };
        let calculate = match f.compute_us {
            Some(us) => w.batch * us * 1e-6,
            None => {
                let flops = w.flops_per_example / (f.gflops * 1e9);
                w.batch * (flops + w.ids_per_example * f.id_ns * 1e-9)
            }
        };
        let parse = w.batch * w.bytes_per_example / f.parse;
        let threads = w.threads.min(c.workers.cores).max(f64::MIN_POSITIVE);
        let rows = w.keys_per_batch() * (f.pull_ns + f.push_ns) * 1e-9;
        let dense = w.dense * f.dense_ns * 1e-9;
        let served = (often * (rows + dense) + (up + down) * f.byte_ns * 1e-9) / n;
        Demands {
            worker_cpu: calculate + local_rows + parse + sockets,
            // Reading runs beside computing where there is a core for it.
            compute: calculate / threads + local_rows + sockets,
            server_cpu: served + often * f.message_us * 1e-6,
            server_card: up.max(down) / n / c.servers.network,
            worker_card: up.max(down) / c.workers.network,
            push_card: up.max(w.float_bytes * w.dense * often) / c.workers.network,
            travel: often * f.round_trip_us * 1e-6,
        }
    }
}

/// Steps per second of `m` customers that spend `elsewhere` seconds away and then queue at each of
/// the `stations` (mean value analysis). Never more than the busiest station allows.
pub(crate) fn closed_rate(m: u64, elsewhere: f64, stations: [f64; 2]) -> f64 {
    let top = stations[0].max(stations[1]);
    let (mut queues, mut rate) = ([0.0; 2], 0.0);
    for customers in 1..=m {
        let waits = [stations[0] * (1.0 + queues[0]), stations[1] * (1.0 + queues[1])];
        rate = customers as f64 / (elsewhere + waits[0] + waits[1]);
        queues = waits.map(|wait| rate * wait);
        // Far beyond saturation nothing changes any more.
        if rate * top > 1.0 - 1e-9 {
            break;
        }
    }
    rate
}

/// What `servers` servers and `workers` workers come to.
pub fn predict(w: &Workload, c: &Cluster, servers: u64, workers: u64) -> Prediction {
    let d = Demands::new(w, c, servers);
    let m = workers as f64;
    let (cores, threads) = (c.servers.cores.max(1.0), w.threads.min(c.workers.cores));
    // A station with several cores: one that is faster by their number, and the rest of the service
    // elsewhere (Seidmann).
    let (queued, beside) = (d.server_cpu / cores, d.server_cpu * (1.0 - 1.0 / cores));
    let exchange = d.worker_card + d.travel + beside;
    let rate = match w.pace {
        Pace::Own => closed_rate(workers, d.compute + exchange, [queued, d.server_card]),
        // Everybody comes at once, and the last one is answered when all are served.
        Pace::All => m / (d.compute + exchange + m * queued.max(d.server_card)),
        Pace::Push => {
            let waits = d.compute + d.push_card + d.travel + beside;
            closed_rate(workers, waits.max(exchange), [queued, d.server_card])
        }
        Pace::Hidden | Pace::Every(_) => {
            let away = d.compute.max(exchange);
            closed_rate(workers, away, [queued, d.server_card])
        }
    };
    // A worker's cores do its reading as well.
    let rate = rate.min(m * c.workers.cores / d.worker_cpu).min(m / d.worker_card);
    let rate = if c.one_machine { rate.min(one_machine_rate(&d, c, servers)) } else { rate };
    let shares = [
        (Bottleneck::WorkerCores, rate / m * (d.compute * threads).max(d.worker_cpu) / threads),
        (Bottleneck::WorkerNetwork, rate / m * d.worker_card),
        (Bottleneck::ServerCores, rate * queued),
        (Bottleneck::ServerNetwork, rate * d.server_card),
    ];
    let (bottleneck, share) = busiest(&shares);
    let saved_bytes = w.table_bytes() / servers as f64 + 4.0 * w.dense_floats / servers as f64;
    Prediction {
        servers,
        workers,
        examples_per_sec: rate * w.batch,
        bottleneck,
        bottleneck_share: share,
        server_memory: server_memory(w, servers, workers),
        worker_memory: worker_memory(w),
        server_network: rate * d.server_card * c.servers.network,
        save_seconds: (c.servers.disk > 0.0).then(|| saved_bytes / c.servers.disk_speed),
        saved_bytes,
        cold_bytes: cold_bytes(w, servers),
    }
}

/// Steps per second that the cores of one machine have time for, all processes together.
fn one_machine_rate(d: &Demands, c: &Cluster, servers: u64) -> f64 {
    let whole = d.worker_cpu + servers as f64 * d.server_cpu;
    c.workers.cores / whole
}

/// What is used most; waiting, if nothing is used for more than three quarters.
fn busiest(shares: &[(Bottleneck, f64)]) -> (Bottleneck, f64) {
    let by_share = |a: &&(Bottleneck, f64), b: &&(Bottleneck, f64)| a.1.total_cmp(&b.1);
    let (what, share) = *shares.iter().max_by(by_share).expect("there are stations");
    match share {
        s if s < 0.75 => (Bottleneck::Waiting, s),
        s => (what, s.min(1.0)),
    }
}

/// Bytes of the fullest of `servers` servers. Keys are spread by a hash, so the fullest holds about
/// three standard deviations more than the mean.
pub fn server_memory(w: &Workload, servers: u64, workers: u64) -> f64 {
    let n = servers as f64;
    let rows: f64 = w.tables.iter().map(|t| t.memory_of(most_rows(t, servers))).sum();
    let connections = workers as f64 * (w.bytes_up() + w.bytes_down()) / n;
    BASE_MEMORY + rows + 4.0 * w.dense_floats / n + connections
}

/// Bytes of files for rows on disk of the fullest of `servers` servers.
fn cold_bytes(w: &Workload, servers: u64) -> f64 {
    w.tables.iter().map(|t| t.disk_of(most_rows(t, servers))).sum()
}

fn most_rows(table: &TableLoad, servers: u64) -> f64 {
    let mean = table.rows / servers as f64;
    let most = if servers == 1 { mean } else { mean + 3.0 * mean.sqrt() };
    most.min(table.rows)
}

/// Bytes of a worker: parameters, the rows of a batch, prefetched batches; with geo training its
/// own copy of every row.
pub fn worker_memory(w: &Workload) -> f64 {
    const BATCHES_AHEAD: f64 = 4.0;
    let dense = 4.0 * 3.0 * w.dense;
    let exchange = 2.0 * (w.bytes_up() + w.bytes_down());
    let read = BATCHES_AHEAD * w.batch * (w.bytes_per_example + 8.0 * w.ids_per_example);
    let copy = if matches!(w.pace, Pace::Every(_)) { w.table_bytes() } else { 0.0 };
    BASE_MEMORY + dense + exchange + read + copy
}

/// What the disk of a server must hold: rows on disk, and two models, because the last one stays
/// until the next is complete.
pub(crate) fn disk_need(p: &Prediction) -> f64 {
    2.0 * p.saved_bytes + p.cold_bytes
}

/// Whether that fits; a cluster file need not speak of disks.
pub(crate) fn fits_disk(p: &Prediction, servers: &Machines) -> bool {
    servers.disk == 0.0 || disk_need(p) <= servers.disk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_customer_never_queues() {
        assert!((closed_rate(1, 3.0, [1.0, 0.5]) - 1.0 / 4.5).abs() < 1e-12);
    }

    #[test]
    fn many_customers_saturate_the_busiest_place() {
        let rate = closed_rate(100_000, 1.0, [0.01, 0.002]);
        assert!((rate - 100.0).abs() < 0.01, "{rate}");
    }

    #[test]
    fn few_customers_with_little_service_scale_in_proportion() {
        let (one, ten) = (closed_rate(1, 1.0, [1e-4, 0.0]), closed_rate(10, 1.0, [1e-4, 0.0]));
        assert!((ten / one - 10.0).abs() < 0.02, "{}", ten / one);
    }
}
