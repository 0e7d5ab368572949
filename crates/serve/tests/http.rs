//! A real server, asked over real sockets.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use regatta_serve::{
    About, Config, Error, Feature, Kind, Model, ScoreError, Scorer, Server, Source,
};
use regatta_tensor::{Tensor, Value};

/// Models that answer `weight * x[0] + x[1]`, one after the other; an error where there is a text.
struct Weights {
    now: Mutex<Result<f32, String>>,
    version: AtomicU64,
    gate: Option<Arc<Gate>>,
}

/// Stops a scorer that meets the number 99 until it is told to continue.
struct Gate {
    entered: SyncSender<()>,
    go_on: Mutex<Receiver<()>>,
}

struct Linear {
    weight: f32,
    version: u64,
    gate: Option<Arc<Gate>>,
}

struct LinearScorer {
    weight: f32,
    gate: Option<Arc<Gate>>,
    outputs: Vec<Tensor>,
    missing_ids: u64,
}

impl Weights {
    fn new(weight: f32) -> Weights {
        Weights { now: Mutex::new(Ok(weight)), version: AtomicU64::new(1), gate: None }
    }

    fn set(&self, model: Result<f32, String>) {
        *self.now.lock().unwrap() = model;
        self.version.fetch_add(1, Ordering::SeqCst);
    }
}

impl Source for Weights {
    fn open(&self) -> Result<Arc<dyn Model>, String> {
        let (weight, version) =
            (self.now.lock().unwrap().clone()?, self.version.load(Ordering::SeqCst));
        Ok(Arc::new(Linear { weight, version, gate: self.gate.clone() }))
    }

    fn stamp(&self) -> Option<Vec<u8>> {
        Some(self.version.load(Ordering::SeqCst).to_le_bytes().to_vec())
    }
}

impl Model for Linear {
    fn about(&self) -> Arc<About> {
        let features = vec![
            Feature { name: "x".into(), kind: Kind::Floats(2) },
            Feature { name: "ids".into(), kind: Kind::RaggedIds },
        ];
        let outputs = vec!["y".to_string()];
        let (name, serial, step) = ("linear".to_string(), Some(self.version), Some(100));
        let (path, transform) = ("linear".into(), None);
        Arc::new(About { name, path, serial, step, features, transform, outputs })
    }

    fn scorer(&self) -> Result<Box<dyn Scorer>, String> {
        let gate = self.gate.clone();
        Ok(Box::new(LinearScorer { weight: self.weight, gate, outputs: vec![], missing_ids: 0 }))
    }
}

impl Scorer for LinearScorer {
    fn score(&mut self, batch: &[(&str, &Value)]) -> Result<&[Tensor], ScoreError> {
        let x = batch[0].1.as_dense().unwrap();
        if let (true, Some(gate)) = (x.f32().contains(&99.0), &self.gate) {
            gate.entered.send(()).unwrap();
            gate.go_on.lock().unwrap().recv_timeout(LIMIT).unwrap();
        }
        let Value::Ragged(ids) = batch[1].1 else { panic!("ragged") };
        self.missing_ids += ids.u64().iter().filter(|id| **id > 1000).count() as u64;
        let y: Vec<f32> = x.f32().chunks(2).map(|x| self.weight * x[0] + x[1]).collect();
        self.outputs = vec![Tensor::from_f32(&[y.len(), 1], y).unwrap()];
        Ok(&self.outputs)
    }

    fn missing_ids(&self) -> u64 {
        self.missing_ids
    }
}

/// Nothing here takes so long unless it is broken.
const LIMIT: Duration = Duration::from_secs(20);

fn config() -> Config {
    Config { listen: "127.0.0.1:0".into(), timeout: LIMIT, watch_every: None, ..Config::default() }
}

fn start(config: Config) -> Server {
    Server::start(config, Arc::new(Weights::new(3.0))).unwrap()
}

/// A connection that can be asked several times.
struct Client {
    socket: TcpStream,
    read: VecDeque<u8>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Client {
    fn new(address: SocketAddr) -> Client {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Client { socket, read: VecDeque::new() }
    }

    fn ask(&mut self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let n = body.len();
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {n}\r\n{headers}\r\n{body}"
        ));
        self.answer().expect("an answer")
    }

    fn send(&mut self, text: &str) {
        self.socket.write_all(text.as_bytes()).unwrap();
    }

    /// The next byte; none at the end.
    fn byte(&mut self) -> Option<u8> {
        if self.read.is_empty() {
            let mut buffer = [0; 4096];
            let n = self.socket.read(&mut buffer).ok()?;
            self.read.extend(&buffer[..n]);
        }
        self.read.pop_front()
    }

    /// The next answer; none if the server has closed the connection.
    fn answer(&mut self) -> Option<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.byte()?);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let status: u16 = head.split(' ').nth(1)?.parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |text| text.parse().unwrap());
        let body: Option<Vec<u8>> = (0..length).map(|_| self.byte()).collect();
        Some(Answer { status, head, body: String::from_utf8(body?).unwrap() })
    }
}

fn ask(server: &Server, method: &str, path: &str, body: &str) -> Answer {
    Client::new(server.address()).ask(method, path, "", body)
}

fn predict(server: &Server, body: &str) -> Answer {
    ask(server, "POST", "/predict", body)
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = ask(server, "GET", "/metrics", "").body;
    let line = text.lines().find(|line| line.starts_with(&format!("regatta_{name} ")));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Looks until something is true; what it waits for is in the message.
fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::yield_now();
    }
}

#[test]
fn one_and_many_examples_are_scored() {
    let server = start(config());
    let one = predict(&server, r#"{"features":{"x":[2,1],"ids":[5]}}"#);
    assert_eq!((one.status, &*one.body), (200, r#"{"prediction":{"y":[7.0]}}"#));
    assert!(one.head.contains("content-type: application/json"), "{}", one.head);
    let body = r#"{"instances":[{"x":[1,0],"ids":[]},{"ids":[1,5000],"x":[0,2]}]}"#;
    let two = predict(&server, body);
    assert_eq!((two.status, &*two.body), (200, r#"{"predictions":[{"y":[3.0]},{"y":[2.0]}]}"#));
    assert_eq!(metric(&server, "rows_total"), 3);
    assert_eq!(metric(&server, "missing_ids_total"), 1);
    assert_eq!(metric(&server, "requests_total{path=\"/predict\"}"), 2);
    assert_eq!(metric(&server, "request_seconds_count"), 2);
    assert_eq!(metric(&server, "model_serial"), 1);
}

#[test]
fn the_model_and_the_health_are_shown() {
    let server = start(config());
    let model = ask(&server, "GET", "/model", "");
    let json: serde_json::Value = serde_json::from_str(&model.body).unwrap();
    assert_eq!(json["name"], "linear");
    assert_eq!(json["step"], 100);
    assert_eq!(json["inputs"][0], serde_json::json!({"name": "x", "takes": "floats", "width": 2}));
    assert_eq!(json["inputs"][1]["width"], serde_json::Value::Null);
    assert_eq!(json["outputs"][0], "y");
    let health = ask(&server, "GET", "/healthz", "");
    assert_eq!((health.status, &*health.body), (200, r#"{"status":"ok"}"#));
}

#[test]
fn wrong_requests_are_named_and_the_connection_goes_on() {
    let server = start(config());
    let mut client = Client::new(server.address());
    let cases = [
        (
            "POST",
            "/predict",
            r#"{"features":{"y":[1,2]}}"#,
            400,
            "no feature 'y'; did you mean 'x'?",
        ),
        ("POST", "/predict", r#"{"features":{"x":[1]}}"#, 400, "takes 2 floats, but 1 was given"),
        ("POST", "/predict", "not json", 400, "line 1 column"),
        ("GET", "/predict", "", 405, "/predict takes POST, not GET"),
        ("POST", "/healthz", "", 405, "takes GET"),
        ("POST", "/predct", "", 404, "did you mean /predict?"),
    ];
    for (method, path, body, status, message) in cases {
        let answer = client.ask(method, path, "", body);
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let json: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert!(json["error"].as_str().unwrap().contains(message), "{answer:?}");
    }
    assert_eq!(client.ask("POST", "/predict", "", GOOD).status, 200);
    assert_eq!(metric(&server, "errors_total{kind=\"bad_request\"}"), 3);
    assert_eq!(metric(&server, "errors_total{kind=\"method_not_allowed\"}"), 2);
    assert_eq!(metric(&server, "errors_total{kind=\"not_found\"}"), 1);
}

const GOOD: &str = r#"{"features":{"x":[2,1],"ids":[]}}"#;

#[test]
fn a_token_is_asked_for() {
    let server = start(Config { token: Some("secret".into()), ..config() });
    let mut client = Client::new(server.address());
    for path in ["/metrics", "/model"] {
        assert_eq!(client.ask("GET", path, "", "").status, 401);
    }
    let none = client.ask("POST", "/predict", "", GOOD);
    assert_eq!(none.status, 401);
    assert!(none.head.contains("www-authenticate: bearer"), "{}", none.head);
    for wrong in ["secre", "secret2", "Secret", ""] {
        let header = format!("authorization: Bearer {wrong}\r\n");
        assert_eq!(client.ask("POST", "/predict", &header, GOOD).status, 401);
    }
    let right = "authorization: Bearer secret\r\n";
    assert_eq!(client.ask("POST", "/predict", right, GOOD).status, 200);
    assert_eq!(client.ask("GET", "/healthz", "", "").status, 200);
}

#[test]
fn large_bodies_are_refused() {
    let server = start(Config { max_body_bytes: 1000, ..config() });
    let mut announced = Client::new(server.address());
    announced.send("POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n{");
    let answer = announced.answer().unwrap();
    assert_eq!(answer.status, 413);
    assert!(answer.body.contains("the limit of 1000 bytes"), "{}", answer.body);
    let mut chunked = Client::new(server.address());
    chunked.send("POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    chunked.send(&format!("3e9\r\n{}\r\n", " ".repeat(1001)));
    assert_eq!(chunked.answer().unwrap().status, 413);
    assert!(chunked.answer().is_none(), "the connection is closed");
    let exactly = format!("{}{GOOD}", " ".repeat(1000 - GOOD.len()));
    assert_eq!(predict(&server, &exactly).status, 200);
}

#[test]
fn slow_clients_are_given_up() {
    let server = start(Config { timeout: Duration::from_millis(300), ..config() });
    let mut slow_body = Client::new(server.address());
    slow_body.send("POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{");
    let mut slow_head = Client::new(server.address());
    slow_head.send("POST /predict HTTP/1.1\r\nhost:");
    let answer = slow_body.answer().unwrap();
    assert_eq!(answer.status, 408);
    assert!(answer.body.contains("did not arrive within 0.3 seconds"), "{}", answer.body);
    assert!(slow_head.answer().is_none_or(|answer| answer.status == 408));
    assert_eq!(predict(&server, GOOD).status, 200);
}

#[test]
fn a_client_that_never_reads_is_given_up() {
    let server =
        start(Config { timeout: Duration::from_millis(300), max_body_bytes: 1 << 24, ..config() });
    let row = r#"{"x":[2,1],"ids":[]}"#;
    let body = format!(r#"{{"instances":[{}]}}"#, vec![row; 5000].join(","));
    let n = body.len();
    let request = format!("POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {n}\r\n\r\n{body}");
    let mut client = Client::new(server.address());
    client.socket.set_write_timeout(Some(LIMIT)).unwrap();
    // Far more answers than the buffers of both sockets hold; at some point nobody takes more.
    let cut = (0..2000).any(|_| client.socket.write_all(request.as_bytes()).is_err());
    assert!(cut, "the server continues for ever with a client that does not read");
    wait_until("the end of the connection", || metric(&server, "connections") == 1);
}

/// A server on one thread with a scorer that stops at 99, and both ends of its gate.
fn gated(config: Config) -> (Server, Receiver<()>, SyncSender<()>) {
    let (entered, was_entered) = sync_channel(1);
    let (go_on, may_go_on) = sync_channel(1);
    let gate = Gate { entered, go_on: Mutex::new(may_go_on) };
    let weights = Weights { gate: Some(Arc::new(gate)), ..Weights::new(3.0) };
    (Server::start(config, Arc::new(weights)).unwrap(), was_entered, go_on)
}

const GATED: &str = r#"{"features":{"x":[99,1],"ids":[]}}"#;

#[test]
fn a_request_that_waited_too_long_hears_that_the_server_is_busy() {
    let timeout = Duration::from_millis(300);
    let (server, entered, go_on) = gated(Config { timeout, ..config() });
    let mut waiting = Client::new(server.address());
    let n = GOOD.len();
    let head = "POST /predict HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n";
    waiting.send(&format!("{head}content-length: {n}\r\n\r\n"));
    assert_eq!(waiting.answer().unwrap().status, 100, "the head is read");
    let mut blocking = Client::new(server.address());
    let body = GATED.len();
    blocking.send(&format!(
        "POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {body}\r\n\r\n{GATED}"
    ));
    entered.recv_timeout(LIMIT).unwrap();
    waiting.send(GOOD);
    // The time limit passes while the only thread is at work.
    let end = Instant::now() + timeout;
    wait_until("the time limit", || Instant::now() > end);
    go_on.send(()).unwrap();
    assert_eq!(waiting.answer().unwrap().status, 503);
    assert!(matches!(blocking.answer().unwrap().status, 200 | 503));
    assert_eq!(predict(&server, GOOD).status, 200);
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let server = start(Config { max_connections: 1, ..config() });
    let mut first = Client::new(server.address());
    assert_eq!(first.ask("GET", "/healthz", "", "").status, 200);
    let answer = Client::new(server.address()).answer().unwrap();
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("too many connections"), "{}", answer.body);
    assert_eq!(first.ask("POST", "/predict", "", GOOD).status, 200);
}

#[test]
fn stopping_lets_requests_finish() {
    let (server, entered, go_on) = gated(config());
    let address = server.address();
    let mut idle = Client::new(address);
    assert_eq!(idle.ask("GET", "/healthz", "", "").status, 200);
    let asked = std::thread::spawn(move || Client::new(address).ask("POST", "/predict", "", GATED));
    entered.recv_timeout(LIMIT).unwrap();
    let stopping = std::thread::spawn(move || server.stop());
    go_on.send(()).unwrap();
    let answer = asked.join().unwrap();
    assert_eq!((answer.status, &*answer.body), (200, r#"{"prediction":{"y":[298.0]}}"#));
    assert_eq!(stopping.join().unwrap().cut_off, 0);
    assert!(idle.answer().is_none(), "connections without a request are closed");
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn stopping_has_a_limit() {
    let server = start(Config { stop_limit: Duration::from_millis(100), ..config() });
    let mut slow = Client::new(server.address());
    slow.send(
        "POST /predict HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n",
    );
    assert_eq!(slow.answer().unwrap().status, 100);
    assert_eq!(server.stop().cut_off, 1);
}

#[test]
fn a_new_model_takes_over_without_a_lost_request() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = {
        let lines = lines.clone();
        Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_string()))
    };
    let weights = Arc::new(Weights::new(0.0));
    let watch_every = Some(Duration::from_millis(5));
    let config = Config { watch_every, threads: 2, log, ..config() };
    let server = Server::start(config, weights.clone()).unwrap();
    let (address, done) = (server.address(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let (mut client, mut seen) = (Client::new(address), Vec::new());
                    while !done.load(Ordering::Relaxed) {
                        let body = r#"{"features":{"x":[1,0],"ids":[]}}"#;
                        let answer = client.ask("POST", "/predict", "", body);
                        assert_eq!(answer.status, 200, "{answer:?}");
                        let json: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
                        seen.push(json["prediction"]["y"][0].as_f64().unwrap());
                    }
                    seen
                })
            })
            .collect();
        for i in 1..=20 {
            weights.set(Ok(i as f32));
            wait_until("the new model", || metric(&server, "reloads_total") == i);
        }
        weights.set(Err("rows.bin is truncated".into()));
        wait_until("the refusal", || metric(&server, "failed_reloads_total") > 0);
        done.store(true, Ordering::Relaxed);
        for client in clients {
            let seen = client.join().unwrap();
            assert!(!seen.is_empty());
            assert!(seen.is_sorted(), "an old model answered after a new one");
        }
    });
    assert_eq!(
        predict(&server, r#"{"features":{"x":[1,0],"ids":[]}}"#).body,
        r#"{"prediction":{"y":[20.0]}}"#
    );
    let expected = "new model refused, the old one stays: rows.bin is truncated";
    assert_eq!(lines.lock().unwrap().iter().filter(|line| *line == expected).count(), 1);
    weights.set(Ok(21.0));
    wait_until("the next good model", || metric(&server, "reloads_total") == 21);
}

#[test]
fn what_cannot_work_is_refused_at_the_start() {
    let start = |config, weights| Server::start(config, Arc::new(weights)).err().unwrap();
    let broken = Weights::new(1.0);
    broken.set(Err("model/manifest.json is no manifest of a model".into()));
    let error = start(config(), broken);
    assert!(matches!(&error, Error::Model(what) if what.contains("manifest.json")), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = start(Config { listen: address.clone(), ..config() }, Weights::new(1.0));
    assert!(error.to_string().contains(&format!("cannot listen on {address}")), "{error}");
    let error = start(Config { threads: 0, ..config() }, Weights::new(1.0));
    assert!(error.to_string().contains("at least 1 thread"), "{error}");
}
