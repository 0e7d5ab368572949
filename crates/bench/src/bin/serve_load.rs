//! Load on `regatta serve`: the click model of `bench/compare` answers on one core, the loader has
//! another one.
//!
//! ```sh
//! cargo build --release -p regatta -p regatta-bench && bench/serve
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

/// Requests per second and latencies of single rows, of batches and, as a ceiling, of /healthz.
#[derive(Parser)]
struct Args {
    /// The program that serves; else the one beside this program.
    #[arg(long)]
    regatta: Option<PathBuf>,
    /// An export to serve; else one of the click model is made.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Rows of the table of that model.
    #[arg(long, default_value_t = 260_001)]
    rows: u64,
    /// Connections, each with one request on its way.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Seconds of each measurement, at most.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Requests of each measurement, at most.
    #[arg(long, default_value_t = 200_000)]
    requests: u64,
    /// Measurements; the median is reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The core of the server.
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// The core of the loader.
    #[arg(long, default_value_t = 1)]
    load_core: usize,
    /// Fail below N single rows per second.
    #[arg(long)]
    at_least: Option<f64>,
    /// Fail if more than one single row in a hundred takes longer than N milliseconds.
    #[arg(long)]
    p99_below: Option<f64>,
    /// Also write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    measure::run(&Args::parse())
}

#[cfg(not(target_os = "linux"))]
mod measure {
    use super::*;

    pub(super) fn run(_: &Args) -> Result<()> {
        anyhow::bail!("the loader waits for its sockets as Linux lets it")
    }
}

#[cfg(target_os = "linux")]
mod measure {
    use std::fmt::Write as _;
    use std::io::{BufRead, BufReader};
    use std::net::SocketAddr;
    use std::process::{Child, Command, Stdio};

    use anyhow::{Context, ensure};
    use regatta_bench::click_model;
    use regatta_bench::load::{self, Load};
    use regatta_predict::Model;
    use regatta_rec::Config;
    use regatta_rec::config::Reader;
    use regatta_rec::data::Data;
    use regatta_rec::network::Network;
    use regatta_tensor::{Data as Numbers, Value};
    use rustix::thread::{CpuSet, sched_setaffinity};
    use serde_json::json;

    use super::*;

    /// Rows of a batch.
    const BATCH: usize = 64;
    /// Different rows that are sent in turn.
    const ROWS: usize = 4096;

    pub(super) fn run(args: &Args) -> Result<()> {
        let temp = tempfile::tempdir()?;
        let made = temp.path().join("model");
        if args.model.is_none() {
            click_model::export(temp.path(), args.rows, &made)?;
        }
        let model = args.model.as_deref().unwrap_or(&made);
        let rows = rows(model)?;
        let server = Server::start(args, model)?;
        pin(args.load_core)?;
        let singles: Vec<Vec<u8>> = rows
            .iter()
            .map(|row| load::request("/predict", Some(&format!("{{\"features\":{row}}}"))))
            .collect();
        let batches: Vec<Vec<u8>> = rows
            .chunks_exact(BATCH)
            .map(|rows| {
                let body = format!("{{\"instances\":[{}]}}", rows.join(","));
                load::request("/predict", Some(&body))
            })
            .collect();
        let idle = vec![load::request("/healthz", None)];
        let mut figures = Figures::default();
        for _ in 0..args.rounds {
            for (at, (requests, rows)) in
                [(&singles, 1), (&batches, BATCH), (&idle, 0)].iter().enumerate()
            {
                let load = Load {
                    connections: args.connections,
                    limit: Duration::from_secs_f64(args.seconds),
                    requests: args.requests,
                };
                let served = load::run(server.address, requests, &load)?;
                figures.add(at, *rows, &served);
            }
        }
        figures.report(args)
    }

    /// The first rows of the model's own test data as JSON objects.
    fn rows(model: &Path) -> Result<Vec<String>> {
        let model = Model::open(model)?;
        let data = click_model::examples(
            model.manifest().tables.first().map_or(27, |table| table.rows),
            ROWS as u64,
        );
        let setting = format!("runner.test_data_dir={data}");
        let config = Config::from_json(&model.manifest().about.config, model.path(), &[setting])?;
        let network = Network::build(&config)?;
        let mut reading = config.runner.test.clone();
        reading.reader = Reader::Loader { shuffle_buffer: 0 };
        let mut data = Data::open(&config, &reading, &network.schema)?;
        let (mut batches, _) = data.pass(0)?;
        let mut rows = Vec::new();
        while rows.len() < ROWS
            && let Some(batch) = batches.next()?
        {
            for row in 0..batch.examples() {
                rows.push(object(&model, &|name| batch.get(name), row)?);
            }
        }
        ensure!(rows.len() >= BATCH, "there are only {} examples", rows.len());
        Ok(rows)
    }

    fn object<'b>(
        model: &Model,
        value: &dyn Fn(&str) -> Option<&'b Value>,
        row: usize,
    ) -> Result<String> {
        let mut text = String::new();
        for input in model.inputs() {
            let name = &input.name;
            let value = value(name).with_context(|| format!("the data have no '{name}'"))?;
            let values = match value {
                Value::Dense(tensor) => {
                    let width = tensor.numel() / tensor.shape()[0];
                    numbers(tensor.data(), row * width..(row + 1) * width)
                }
                Value::Ragged(ragged) => {
                    let ends = &ragged.offsets()[row..row + 2];
                    numbers(ragged.values(), ends[0] as usize..ends[1] as usize)
                }
            };
            write!(text, ",\"{name}\":[{}]", values.join(","))?;
        }
        Ok(format!("{{{}}}", &text[1..]))
    }

    fn numbers(data: &Numbers, range: std::ops::Range<usize>) -> Vec<String> {
        match data {
            Numbers::F32(v) => v[range].iter().map(|x| x.to_string()).collect(),
            Numbers::U64(v) => v[range].iter().map(|x| x.to_string()).collect(),
            Numbers::I64(v) => v[range].iter().map(|x| x.to_string()).collect(),
            Numbers::F16(_) | Numbers::BF16(_) => Vec::new(),
        }
    }

    /// This thread, and what it starts from now on, runs on one core.
    fn pin(core: usize) -> Result<()> {
        let mut cores = CpuSet::new();
        cores.set(core);
        sched_setaffinity(None, &cores).with_context(|| format!("there is no core {core}"))
    }

    /// `regatta serve`, ended at the end.
    struct Server {
        child: Child,
        address: SocketAddr,
    }

    impl Server {
        fn start(args: &Args, model: &Path) -> Result<Server> {
            let beside = std::env::current_exe()?.with_file_name("regatta");
            let program = args.regatta.as_ref().unwrap_or(&beside);
            pin(args.server_core)?;
            let mut child = Command::new(program)
                .arg("serve")
                .arg("-m")
                .arg(model)
                .args(["--listen", "127.0.0.1:0", "--threads", "1"])
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| format!("cannot start {}", program.display()))?;
            let stderr = child.stderr.take().context("its lines can be read")?;
            let mut said = String::new();
            for line in BufReader::new(stderr).lines() {
                let line = line?;
                if let Some((_, address)) = line.rsplit_once("http://") {
                    return Ok(Server { child, address: address.parse()? });
                }
                said += &line;
            }
            let _ = child.wait();
            anyhow::bail!("the server did not start: {said}")
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[derive(Default)]
    struct Figures {
        /// Of each kind of request: rows of one, and requests/s, p50 and p99 of every round.
        kinds: [(usize, Vec<[f64; 3]>); 3],
    }

    const KINDS: [&str; 3] = ["single row", "batch of 64", "/healthz"];

    impl Figures {
        fn add(&mut self, kind: usize, rows: usize, served: &load::LoadResult) {
            let (p50, p99) = (served.quantile_ms(0.5), served.quantile_ms(0.99));
            self.kinds[kind].0 = rows;
            self.kinds[kind].1.push([served.per_second(), p50, p99]);
        }

        fn median(&self, kind: usize) -> [f64; 3] {
            [0, 1, 2].map(|at| {
                let mut values: Vec<f64> = self.kinds[kind].1.iter().map(|f| f[at]).collect();
                values.sort_by(f64::total_cmp);
                values.get(values.len() / 2).copied().unwrap_or(0.0)
            })
        }

        fn report(&self, args: &Args) -> Result<()> {
            println!(
                "one core serves, {} connections; medians of {}",
                args.connections, args.rounds
            );
            println!(
                "{:<12} {:>10} {:>10} {:>8} {:>8}",
                "", "requests/s", "rows/s", "p50 ms", "p99 ms"
            );
            let mut all = Vec::new();
            for (kind, name) in KINDS.iter().enumerate() {
                let [rate, p50, p99] = self.median(kind);
                let rows = rate * self.kinds[kind].0 as f64;
                println!("{name:<12} {rate:>10.0} {rows:>10.0} {p50:>8.2} {p99:>8.2}");
                all.push(json!({"kind": name, "requests_per_sec": rate, "rows_per_sec": rows,
                    "p50_ms": p50, "p99_ms": p99}));
            }
            if let Some(path) = &args.json {
                std::fs::write(path, serde_json::to_string_pretty(&all)?)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
            let [rate, _, p99] = self.median(0);
            if let Some(floor) = args.at_least {
                ensure!(rate >= floor, "{rate:.0} single rows per second, not {floor}");
            }
            if let Some(limit) = args.p99_below {
                ensure!(p99 < limit, "the 99th percentile is {p99:.2} ms, not below {limit}");
            }
            Ok(())
        }
    }
}
