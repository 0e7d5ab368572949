//! Figures of this machine: short measurements of one core, to be put into a cluster file.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use regatta_data::Batch;
use regatta_exec::{Scope, run_startup};
use regatta_optim::{RowRule, Rule, StateMut};
use regatta_passes::split_trainer;
use regatta_rec::Config;
use regatta_rec::data::Data as Examples;
use regatta_rec::network::Network;
use regatta_rec::run::options;
use regatta_table::{
    Accessor, Initializer, PlainConfig, PullMode, Scratch, SparseConfig, SparseTable, TableId,
};
use regatta_tensor::{Rng, Tensor};
use regatta_train::{Feed, Local, run_feed};

use crate::Error;
use crate::cluster::{Data, Figures};
use crate::workload::Workload;

/// Tables beyond this many bytes are not made for a measurement.
const MOST_BYTES: f64 = 4e9;
/// Rows of the table that pulls and pushes are measured on.
const TABLE_ROWS: u64 = 1_000_000;
/// Batches kept in memory for the compute step.
const BATCHES: usize = 16;
/// How long each measurement runs.
const SPAN: Duration = Duration::from_millis(700);

/// Measures the figures for a model: its own training step, its rows, and the sockets of this
/// machine.
///
/// # Errors
/// If the data of the configuration cannot be read, its tables are too large to be made here, or a
/// socket cannot be opened.
pub fn calibrate(config: &Config) -> Result<Figures, Error> {
    let workload = Workload::new(config, &Data::default())?;
    if workload.table_bytes() > MOST_BYTES {
        return Err(measure(
            "the training step",
            format!(
                "the tables of the model take {}; calibrate with fewer rows (the speed of a step \
                 hardly depends on them)",
                crate::advice::bytes(workload.table_bytes())
            ),
        ));
    }
    let network = Network::build(config)?;
    let split = split_trainer(&network.train)?;
    let (step, parse) = step_and_parse(config, &network, &workload)?;
    let (pull_ns, push_ns) = match split.tables.first() {
        Some(t) => rows(t.dim, t.rule, workload.keys_per_batch() as usize)?,
        None => (Figures::default().pull_ns, Figures::default().push_ns),
    };
    let dense_ns = split.dense.first().map_or(Figures::default().dense_ns, |d| dense(d.rule));
    let (round_trip_us, byte_ns) = sockets().map_err(|e| measure("sockets", e.to_string()))?;
    // In the trainer of one process rows and parameters are updated too; servers do that elsewhere.
    let updates = workload.keys_per_batch() * push_ns + workload.dense * dense_ns;
    let compute_us = (step * 1e6 - updates * 1e-3).max(step * 1e5) / workload.batch;
    Ok(Figures {
        gflops: workload.flops_per_example / compute_us / 1e3,
        compute_us: Some(compute_us),
        pull_ns,
        push_ns,
        dense_ns,
        byte_ns,
        // Two messages there and two back, each handled at both ends.
        message_us: round_trip_us / 4.0,
        parse,
        round_trip_us,
        ..Figures::default()
    })
}

fn measure(what: &'static str, reason: String) -> Error {
    Error::Measure { what, reason }
}

/// Seconds of a training step in one process, and bytes per second of reading.
fn step_and_parse(
    config: &Config,
    network: &Network,
    workload: &Workload,
) -> Result<(f64, f64), Error> {
    let mut data = Examples::open(config, &config.runner.train, &network.schema)?;
    let (mut batches, _) = data.pass(0)?;
    let mut kept = Vec::new();
    while kept.len() < BATCHES {
        let Some(batch) = batches.next().map_err(regatta_rec::Error::from)? else { break };
        kept.push(batch);
    }
    let stages = batches.stages();
    let examples: usize = kept.iter().map(Batch::examples).sum();
    // Readers may have prefetched more than was taken, so this is a little less than what they
    // reach.
    let seconds = (stages.read + stages.parse).as_secs_f64().max(1e-9);
    let parse = examples as f64 * workload.bytes_per_example / seconds;
    let mut scope = Scope::new();
    run_startup(&network.train.startup, &mut scope).map_err(regatta_rec::Error::from)?;
    let local = Local::new(network.train.main.clone(), options(config));
    let mut backend = local.map_err(regatta_rec::Error::from)?;
    let mut steps =
        TimedSteps { batches: kept.into(), times: Vec::new(), start: None, begin: None };
    run_feed(&mut backend, &mut scope, &mut steps).map_err(regatta_rec::Error::from)?;
    // The first round makes rows and execution plans.
    let mut times = steps.times.split_off(steps.batches.len());
    Ok((median(&mut times) * workload.batch, parse))
}

/// Batches in memory, again and again, with the time per example of each step.
struct TimedSteps {
    batches: VecDeque<Batch>,
    times: Vec<f64>,
    /// When the second round began, and the step.
    start: Option<Instant>,
    begin: Option<Instant>,
}

impl Feed for TimedSteps {
    fn next(&mut self) -> Result<Option<Batch>, regatta_train::Error> {
        let (rounds, now) = (self.times.len() / self.batches.len().max(1), Instant::now());
        if rounds >= 1 && self.start.get_or_insert(now).elapsed() > SPAN && rounds >= 2 {
            return Ok(None);
        }
        self.begin = Some(now);
        Ok(self.batches.pop_front())
    }

    fn done(&mut self, batch: Batch, _: &[Tensor]) -> Result<(), regatta_train::Error> {
        let seconds = self.begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
        self.times.push(seconds / batch.examples() as f64);
        self.batches.push_back(batch);
        Ok(())
    }
}

/// Nanoseconds to pull and to push a row.
fn rows(dim: usize, rule: Rule, keys: usize) -> Result<(f64, f64), Error> {
    let fail = |e: regatta_table::Error| measure("pulls and pushes", e.to_string());
    let initializer = Initializer::Uniform { low: -0.1, high: 0.1 };
    let plain = PlainConfig { initializer, ..PlainConfig::new(dim, rule) };
    let table = SparseTable::new(SparseConfig::new(TableId(0), 1, Accessor::Plain(plain)));
    let table = table.map_err(fail)?;
    let keys = keys.clamp(64, 1 << 18);
    let (mut scratch, mut out) = (Scratch::default(), vec![0.0; keys * dim]);
    let gradients = vec![0.01; keys * dim];
    let all: Vec<u64> = (0..TABLE_ROWS).collect();
    for some in all.chunks(keys) {
        let out = &mut out[..some.len() * dim];
        table.pull(some, out, PullMode::Train, &mut scratch).map_err(fail)?;
    }
    let rng = Rng::new(5, 0);
    let (mut pulls, mut pushes, start) = (Vec::new(), Vec::new(), Instant::now());
    let mut drawn = 0;
    while start.elapsed() < SPAN {
        let mut some: Vec<u64> =
            (drawn..drawn + keys as u64).map(|i| rng.u64(i) % TABLE_ROWS).collect();
        drawn += keys as u64;
        some.sort_unstable();
        some.dedup();
        let n = some.len() as f64;
        let (begin, out) = (Instant::now(), &mut out[..some.len() * dim]);
        table.pull(&some, out, PullMode::Train, &mut scratch).map_err(fail)?;
        let between = Instant::now();
        let gradients = &gradients[..some.len() * dim];
        table.push(&some, gradients, 1e-3, &mut scratch).map_err(fail)?;
        pulls.push((between - begin).as_secs_f64() * 1e9 / n);
        pushes.push(between.elapsed().as_secs_f64() * 1e9 / n);
    }
    Ok((median(&mut pulls), median(&mut pushes)))
}

/// Nanoseconds to update a dense parameter.
fn dense(rule: Rule) -> f64 {
    const N: usize = 1 << 16;
    let (mut w, g) = (vec![0.1; N], vec![0.01; N]);
    let states = rule.states();
    let mut state: Vec<Vec<f32>> = states.iter().map(|s| vec![s.initial; s.len_for(N)]).collect();
    let mut times = Vec::new();
    for _ in 0..64 {
        let begin = Instant::now();
        let view: StateMut<'_> = state.iter_mut().map(Vec::as_mut_slice).collect();
        rule.update(1e-3, &mut w, &g, view);
        times.push(begin.elapsed().as_secs_f64() * 1e9 / N as f64);
    }
    median(&mut times)
}

/// Microseconds of a round trip and nanoseconds per byte between two threads over TCP.
fn sockets() -> std::io::Result<(f64, f64)> {
    const BLOCK: usize = 1 << 20;
    const SMALL: usize = 64;
    const TRIPS: usize = 2000;
    let limit = Some(Duration::from_secs(10));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(limit)?;
        let (mut small, mut block) = ([0; SMALL], vec![0; BLOCK]);
        for _ in 0..TRIPS {
            stream.read_exact(&mut small)?;
            stream.write_all(&small)?;
        }
        // Blocks until the other side has had enough.
        while stream.read_exact(&mut block).is_ok() {
            stream.write_all(&small)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(limit)?;
    let (mut small, block) = ([0; SMALL], vec![1; BLOCK]);
    let mut trips = Vec::new();
    for _ in 0..TRIPS {
        let begin = Instant::now();
        stream.write_all(&small)?;
        stream.read_exact(&mut small)?;
        trips.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    let (mut blocks, start) = (Vec::new(), Instant::now());
    while start.elapsed() < SPAN / 2 {
        let begin = Instant::now();
        stream.write_all(&block)?;
        stream.read_exact(&mut small)?;
        blocks.push(begin.elapsed().as_secs_f64() * 1e9 / BLOCK as f64);
    }
    drop(stream);
    let _ = echo.join();
    Ok((median(&mut trips), median(&mut blocks)))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl std::fmt::Display for Figures {
    /// The section of a cluster file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "figures:")?;
        writeln!(f, "  gflops_per_core: {:.1}", self.gflops)?;
        if let Some(us) = self.compute_us {
            writeln!(f, "  compute_us_per_example: {us:.2}")?;
        }
        writeln!(f, "  id_ns: {:.1}", self.id_ns)?;
        writeln!(f, "  pull_ns: {:.1}", self.pull_ns)?;
        writeln!(f, "  push_ns: {:.1}", self.push_ns)?;
        writeln!(f, "  dense_ns: {:.3}", self.dense_ns)?;
        writeln!(f, "  byte_ns: {:.3}", self.byte_ns)?;
        writeln!(f, "  message_us: {:.1}", self.message_us)?;
        writeln!(f, "  parse_mb_per_sec: {:.0}", self.parse / 1e6)?;
        writeln!(f, "  round_trip_us: {:.1}", self.round_trip_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cluster;

    #[test]
    fn printed_figures_are_read_back() {
        let figures = Figures { compute_us: Some(31.25), gflops: 80.5, ..Figures::default() };
        let machine = "{cores: 1, memory_gib: 1, network_gbit: 1}";
        let text = format!("servers: {machine}\nworkers: {machine}\n{figures}");
        let read = Cluster::parse(&text, "x").unwrap().figures;
        assert_eq!(read, figures);
    }

    #[test]
    fn sockets_and_rules_can_be_measured() {
        let (trip, byte) = sockets().unwrap();
        assert!(trip > 0.0 && byte > 0.0);
        assert!(dense(Rule::Adam(regatta_optim::Adam::default())) > 0.0);
    }
}
