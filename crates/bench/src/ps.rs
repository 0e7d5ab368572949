//! Pulls and pushes of one worker against one server in a process of its own, over real sockets,
//! beside what a bare socket carries of the same bytes between the same processes.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_checkpoint::SaveMode;
use regatta_optim::{Adagrad, Adam, Rule, Schedule};
use regatta_ps::{
    AsyncConfig, Client, ClientConfig, ClientTable, Gradients, JobToken, Mode, PullSpec, Server,
    ServerConfig, TableSetup, Tune, Wire,
};
use regatta_table::{Accessor, Initializer, PlainConfig, SparseConfig, TableId};
use regatta_tensor::Rng;
use serde::Serialize;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys per request, one measurement each.
    pub keys: Vec<usize>,
    /// Floats per row.
    pub dim: usize,
    /// Requests in flight at a time, one measurement each.
    pub in_flight: Vec<usize>,
    /// Seconds per measurement.
    pub seconds: f64,
    /// Rows of the table that requests choose from.
    pub rows: u64,
    /// Rows of the table whose memory is measured; 0 leaves that out.
    pub memory_rows: u64,
    /// Rows of a table that is saved and loaded in this folder, if any.
    pub files: Option<(u64, PathBuf)>,
}

/// All figures.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Floats per row.
    pub dim: usize,
    /// Rows of the table that requests choose from.
    pub rows: u64,
    /// Speed of requests.
    pub speeds: Vec<Speed>,
    /// Memory of rows, if it was measured.
    pub memory: Option<Memory>,
    /// Saving and loading, if it was measured.
    pub files: Option<Files>,
}

/// Speed of one kind of request.
#[derive(Debug, Clone, Serialize)]
pub struct Speed {
    /// `tcp` or `unix`.
    pub transport: &'static str,
    /// `pull`, `push`, `push_pull`; `bare pull` is as many bytes through a socket and nothing else.
    pub what: String,
    /// Keys per request.
    pub keys: usize,
    /// Requests in flight at a time.
    pub in_flight: usize,
    /// Millions of keys per second; a fused request counts its keys once.
    pub mkeys_per_sec: f64,
    /// Payload in both directions.
    pub gb_per_sec: f64,
    /// Mean time per request.
    pub us_per_request: f64,
}

/// Memory of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Memory {
    /// Rows.
    pub rows: u64,
    /// Floats per row, optimizer state included.
    pub floats_per_row: usize,
    /// What the table takes per row beyond them.
    pub extra_bytes_per_row: f64,
    /// Peak resident memory of the server's process per row, beyond the floats.
    pub extra_resident_bytes_per_row: f64,
}

/// Saving and loading of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Files {
    /// Rows that were saved.
    pub rows: u64,
    /// Rows that another server had after loading.
    pub loaded_rows: u64,
    /// Seconds from the request to the answer.
    pub save_s: f64,
    /// Seconds from the request to the answer.
    pub load_s: f64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Seconds to write as many bytes to one file and to wait until the disk has them.
    pub write_s: f64,
    /// Seconds to read that file.
    pub read_s: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "dim {}, {} rows, Adagrad; one worker, one server", self.dim, self.rows)?;
        writeln!(f, "transport  request    keys  in flight  M keys/s    GB/s  us/request")?;
        for s in &self.speeds {
            writeln!(
                f,
                "{:9}  {:9} {:>5}  {:>9}  {:>8.2}  {:>6.2}  {:>10.1}",
                s.transport,
                s.what,
                s.keys,
                s.in_flight,
                s.mkeys_per_sec,
                s.gb_per_sec,
                s.us_per_request
            )?;
        }
        if let Some(m) = &self.memory {
            writeln!(
                f,
                "{} rows of {} floats: {:.1} bytes per row beyond the floats in the table, {:.1} \
                 resident",
                m.rows, m.floats_per_row, m.extra_bytes_per_row, m.extra_resident_bytes_per_row
            )?;
        }
        if let Some(x) = &self.files {
            writeln!(
                f,
                "{} rows, {:.0} MB: saved in {:.3} s, loaded in {:.3} s; a plain file of that \
                 size: written in {:.3} s, read in {:.3} s",
                x.rows,
                x.bytes as f64 / 1e6,
                x.save_s,
                x.load_s,
                x.write_s,
                x.read_s
            )?;
        }
        Ok(())
    }
}

/// The server's process: says on standard output where it listens (the server, then the bare
/// socket), and serves until the worker has left. Rows are updated by Adam or Adagrad.
///
/// # Errors
/// If it cannot listen or the worker is lost.
pub fn serve(dim: usize, adam: bool) -> Result<()> {
    let rule = if adam { Rule::Adam(Adam::default()) } else { Rule::Adagrad(Adagrad::default()) };
    let mut plain = PlainConfig::new(dim, rule);
    plain.initializer = Initializer::Uniform { low: -0.1, high: 0.1 };
    let config = SparseConfig::new(TableId(0), 1, Accessor::Plain(plain));
    let server = Server::start(ServerConfig {
        index: 0,
        servers: 1,
        workers: 1,
        endpoint: "127.0.0.1:0".into(),
        network: None,
        token: JobToken::new("bench"),
        job: "bench".into(),
        mode: Mode::Async(AsyncConfig { pull_ahead: 0, ..AsyncConfig::default() }),
        tables: vec![TableSetup { name: "table".into(), config, lr_scale: 1.0 }],
        dense: vec![],
        params: vec!["table".into()],
        learning_rate: 0.01,
        schedule: Schedule::Constant,
        allow_worker_loss: false,
        start_timeout: Duration::from_secs(20),
        worker_timeout: Duration::from_secs(3),
        observer: Arc::new(|_| {}),
        notices: Arc::new(|_| {}),
        tune: None,
    })?;
    let bare = TcpListener::bind("127.0.0.1:0")?;
    let mut out = std::io::stdout();
    writeln!(out, "{} {}", server.endpoint(), bare.local_addr()?)?;
    out.flush()?;
    std::thread::spawn(move || answer_bare(&bare));
    server.run()?;
    Ok(())
}

/// Answers connections to the bare socket.
fn answer_bare(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        // Its end is the end of a measurement.
        let _ = answer_stream(stream);
    }
}

/// Answers requests `[bytes that follow, bytes of the answer]` until the peer is gone.
fn answer_stream(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut head, mut buf) = ([0; 16], Vec::new());
    loop {
        stream.read_exact(&mut head)?;
        let [question, answer] = bytemuck::cast::<[u8; 16], [u64; 2]>(head);
        buf.resize(buf.len().max(question.max(answer) as usize), 0);
        stream.read_exact(&mut buf[..question as usize])?;
        stream.write_all(&buf[..answer as usize])?;
    }
}

/// A server process that does not outlive the benchmark.
struct ServerProcess {
    child: Child,
    endpoint: String,
    bare: String,
}

impl ServerProcess {
    fn start(mut command: Command) -> Result<ServerProcess> {
        let mut child =
            command.stdout(Stdio::piped()).spawn().context("cannot start the server")?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let Some((endpoint, bare)) = line.trim().split_once(' ') else {
            bail!("the server process said {line:?} instead of where it listens");
        };
        Ok(ServerProcess { endpoint: endpoint.into(), bare: bare.into(), child })
    }

    fn connect(&self, dim: usize, transport: &str) -> Result<Client> {
        let shortcut = transport == "unix";
        let tune: Tune<regatta_net::ClientOptions> = Arc::new(move |o| o.shortcut = shortcut);
        Ok(Client::connect(ClientConfig {
            worker: 0,
            workers: 1,
            endpoints: vec![self.endpoint.clone()],
            network: None,
            token: JobToken::new("bench"),
            job: "bench".into(),
            tables: vec![ClientTable { name: "table".into(), dim, counted: false, lookahead: 0 }],
            pieces: vec![vec![]],
            wire: Wire::F32,
            connect_timeout: Duration::from_secs(20),
            reply_timeout: Duration::from_secs(60),
            observer: Arc::new(|_| {}),
            tune: Some(tune),
        })?)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It has ended by itself, unless something went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures everything; `server` makes the command of a process that calls [`serve`].
///
/// # Errors
/// If a process cannot be started or an exchange fails.
pub fn measure(options: &Options, server: impl Fn() -> Command) -> Result<Report> {
    let server = &server;
    let mut speeds = Vec::new();
    for transport in ["tcp", "unix"].into_iter().filter(|_| !options.keys.is_empty()) {
        let process = ServerProcess::start(server())?;
        let client = process.connect(options.dim, transport)?;
        create(&client, options.dim, 0..options.rows)?;
        for &keys in &options.keys {
            let mut load = Load::new(&client, options, keys);
            for &in_flight in &options.in_flight {
                for what in [What::Pull, What::Push, What::PushPull] {
                    speeds.push(load.speed(what, in_flight, transport)?);
                }
            }
            if transport == "tcp" {
                let stream = TcpStream::connect(&process.bare)?;
                speeds.push(bare(stream, options, keys)?);
            }
        }
        client.leave()?;
    }
    let memory = match options.memory_rows {
        0 => None,
        rows => Some(memory(options.dim, rows, ServerProcess::start(server())?)?),
    };
    let files = match &options.files {
        None => None,
        Some((rows, folder)) => Some(files(options.dim, *rows, folder, server)?),
    };
    Ok(Report { dim: options.dim, rows: options.rows, speeds, memory, files })
}

/// Pulls rows so that they come into being.
fn create(client: &Client, dim: usize, keys: std::ops::Range<u64>) -> Result<()> {
    const AT_A_TIME: u64 = 50_000;
    let mut rows = vec![0.0; AT_A_TIME as usize * dim];
    let mut first = keys.start;
    while first < keys.end {
        let some: Vec<u64> = (first..keys.end.min(first + AT_A_TIME)).collect();
        let ticket = client.pull(&wanted(&[&some]))?;
        client.finish_pull(ticket, &mut [&mut rows[..some.len() * dim]], &mut [])?;
        first += AT_A_TIME;
    }
    Ok(())
}

fn wanted<'a>(keys: &'a [&'a [u64]]) -> PullSpec<'a> {
    PullSpec { step: 0, test: false, dense: false, keys, counts: &[] }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Pull,
    Push,
    PushPull,
}

/// Requests of one size.
struct Load<'a> {
    client: &'a Client,
    dim: usize,
    seconds: f64,
    /// Distinct keys in random order, different from request to request.
    batches: Vec<Vec<u64>>,
    rows: Vec<f32>,
    gradients: Vec<f32>,
    next: usize,
}

enum Ticket {
    Pull(regatta_ps::PullTicket),
    Push(regatta_ps::PushTicket),
}

impl<'a> Load<'a> {
    fn new(client: &'a Client, options: &Options, keys: usize) -> Load<'a> {
        const BATCHES: u64 = 32;
        let distinct = |batch: u64| {
            let rng = Rng::new(7, batch);
            let mut seen = std::collections::HashSet::with_capacity(keys);
            let random = (0..).map(|i| rng.u64(i) % options.rows);
            random.filter(|key| seen.insert(*key)).take(keys).collect()
        };
        Load {
            client,
            dim: options.dim,
            seconds: options.seconds,
            batches: (0..BATCHES).map(distinct).collect(),
            rows: vec![0.0; keys * options.dim],
            gradients: vec![0.001; keys * options.dim],
            next: 0,
        }
    }

    fn send(&mut self, what: What) -> Result<Ticket> {
        let keys: &[u64] = &self.batches[self.next % self.batches.len()];
        self.next += 1;
        let tables: [(&[u64], &[f32]); 1] = [(keys, &self.gradients)];
        let gradients = Gradients { step: 0, examples: 1, dense: &[], tables: &tables, mark: None };
        Ok(match what {
            What::Pull => Ticket::Pull(self.client.pull(&wanted(&[keys]))?),
            What::Push => Ticket::Push(self.client.push(&gradients)?),
            What::PushPull => Ticket::Pull(self.client.push_pull(&gradients, &wanted(&[keys]))?),
        })
    }

    fn finish(&mut self, ticket: Ticket) -> Result<()> {
        match ticket {
            Ticket::Pull(t) => {
                self.client.finish_pull(t, &mut [&mut self.rows], &mut [])?;
            }
            Ticket::Push(t) => self.client.finish_push(t)?,
        }
        Ok(())
    }

    fn requests(&mut self, what: What, in_flight: usize, seconds: f64) -> Result<(u64, f64)> {
        let start = Instant::now();
        let mut tickets = VecDeque::new();
        let mut done = 0;
        loop {
            let elapsed = start.elapsed().as_secs_f64();
            if elapsed < seconds {
                while tickets.len() < in_flight {
                    tickets.push_back(self.send(what)?);
                }
            }
            let Some(ticket) = tickets.pop_front() else { return Ok((done, elapsed)) };
            self.finish(ticket)?;
            done += 1;
        }
    }

    fn speed(&mut self, what: What, in_flight: usize, transport: &'static str) -> Result<Speed> {
        self.requests(what, in_flight, self.seconds / 4.0)?;
        let (requests, seconds) = self.requests(what, in_flight, self.seconds)?;
        let (keys, row) = (self.rows.len() / self.dim, self.dim * 4);
        let bytes = match what {
            What::Pull | What::Push => keys * (8 + row),
            What::PushPull => keys * (16 + 2 * row),
        };
        let name = match what {
            What::Pull => "pull",
            What::Push => "push",
            What::PushPull => "push_pull",
        };
        Ok(speed(transport, name, keys, in_flight, bytes, requests, seconds))
    }
}

fn speed(
    transport: &'static str,
    what: &str,
    keys: usize,
    in_flight: usize,
    bytes: usize,
    requests: u64,
    seconds: f64,
) -> Speed {
    let per_second = requests as f64 / seconds;
    Speed {
        transport,
        what: what.to_string(),
        keys,
        in_flight,
        mkeys_per_sec: per_second * keys as f64 / 1e6,
        gb_per_sec: per_second * bytes as f64 / 1e9,
        us_per_request: 1e6 / per_second,
    }
}

/// As many bytes as a pull, through a bare socket.
fn bare(mut stream: TcpStream, options: &Options, keys: usize) -> Result<Speed> {
    stream.set_nodelay(true)?;
    let (question, answer) = (keys * 8, keys * options.dim * 4);
    let mut request =
        bytemuck::cast::<[u64; 2], [u8; 16]>([question as u64, answer as u64]).to_vec();
    request.resize(16 + question, 1);
    let mut buf = vec![0; answer];
    let (mut requests, mut seconds) = (0, 0.0);
    for limit in [options.seconds / 4.0, options.seconds] {
        let start = Instant::now();
        (requests, seconds) = (0, 0.0);
        while seconds < limit {
            stream.write_all(&request)?;
            stream.read_exact(&mut buf)?;
            requests += 1;
            seconds = start.elapsed().as_secs_f64();
        }
    }
    Ok(speed("tcp", "bare pull", keys, 1, question + answer, requests, seconds))
}

fn memory(dim: usize, rows: u64, process: ServerProcess) -> Result<Memory> {
    let client = process.connect(dim, "unix")?;
    let before = client.stats()?;
    // Ids as they come from hashes, not from counting.
    let rng = Rng::new(3, 0);
    let mut out = Vec::new();
    let mut next = 0;
    while next < rows {
        let some: Vec<u64> = (next..rows.min(next + 50_000)).map(|i| rng.u64(i)).collect();
        out.resize(some.len() * dim, 0.0);
        let ticket = client.pull(&wanted(&[&some]))?;
        client.finish_pull(ticket, &mut [&mut out], &mut [])?;
        next += some.len() as u64;
    }
    let after = client.stats()?;
    client.leave()?;
    let (Some(before), Some(after)) = (before.first(), after.first()) else {
        bail!("the server has no figures");
    };
    let Some(table) = after.tables.get("table") else { bail!("the server has no table") };
    let floats_per_row = dim * 2;
    let beyond = |bytes: u64| bytes as f64 / table.rows as f64 - floats_per_row as f64 * 4.0;
    Ok(Memory {
        rows: table.rows,
        floats_per_row,
        extra_bytes_per_row: beyond(table.bytes),
        extra_resident_bytes_per_row: beyond(after.peak_rss_bytes - before.peak_rss_bytes),
    })
}

/// Fills a table on one server, saves it, and loads it into another.
fn files(dim: usize, rows: u64, folder: &Path, server: impl Fn() -> Command) -> Result<Files> {
    let saved = folder.join("saved");
    let dir = saved.to_string_lossy();
    let process = ServerProcess::start(server())?;
    let client = process.connect(dim, "unix")?;
    create(&client, dim, 0..rows)?;
    let begin = Instant::now();
    client.save(&dir, SaveMode::All)?;
    let save_s = begin.elapsed().as_secs_f64();
    client.leave()?;
    drop(process);
    let process = ServerProcess::start(server())?;
    let client = process.connect(dim, "unix")?;
    let begin = Instant::now();
    client.load(&dir, &[])?;
    let load_s = begin.elapsed().as_secs_f64();
    let stats = client.stats()?;
    client.leave()?;
    let loaded_rows = stats.iter().flat_map(|s| s.tables.values()).map(|t| t.rows).sum();
    let bytes = bytes_in(&saved)?;
    let (write_s, read_s) = plain_file(folder, bytes)?;
    Ok(Files { rows, loaded_rows, save_s, load_s, bytes, write_s, read_s })
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        sum += if kind.is_dir() { bytes_in(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(sum)
}

/// Seconds to write N bytes, down to the disk, and to read them: what no format can beat.
fn plain_file(folder: &Path, bytes: u64) -> Result<(f64, f64)> {
    let path = folder.join("plain");
    let mut block: Vec<u8> =
        (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let begin = Instant::now();
    let mut file = std::fs::File::create(&path)?;
    let mut left = bytes as usize;
    while left > 0 {
        let n = left.min(block.len());
        file.write_all(&block[..n])?;
        left -= n;
    }
    file.sync_all()?;
    let write_s = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let mut file = std::fs::File::open(&path)?;
    while file.read(&mut block)? > 0 {}
    let read_s = begin.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok((write_s, read_s))
}
