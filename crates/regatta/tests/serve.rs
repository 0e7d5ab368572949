//! `regatta serve` as a process, with models that `regatta train` exported: scores, mistakes of
//! clients, new models, the end.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use regatta_predict::Model;
use regatta_rec::Config;
use regatta_rec::config::Reader;
use regatta_rec::data::Data;
use regatta_rec::network::Network;
use regatta_tensor::{Data as Numbers, Value};
use serde_json::{Value as Json, json};

const DATA: &str = "synthetic://ctr?slots=26&vocab=50&dense=13&seed=1&examples=300";
/// Nothing here takes so long unless it is broken.
const LIMIT: Duration = Duration::from_secs(60);

fn regatta() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.stdin(Stdio::null());
    command
}

fn done(mut command: Command) -> String {
    let output = command.output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out.into_owned()
}

/// Exports of the same model after one and two passes, made once for all tests.
struct Trained {
    dir: tempfile::TempDir,
    /// Examples as JSON objects, and the scores that `regatta predict` gives them.
    rows: Vec<Json>,
    scores: [Vec<f64>; 2],
}

fn trained() -> &'static Trained {
    static ONCE: OnceLock<Trained> = OnceLock::new();
    ONCE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let config =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/dnn/config.yaml");
        let mut train = regatta();
        train.current_dir(&dir).arg("train").arg("-m").arg(config).arg("-o");
        train.args([
            format!("runner.train_data_dir={DATA}"),
            format!("runner.test_data_dir={DATA}"),
            format!("runner.model_save_path={}", dir.path().join("epochs").display()),
            "runner.epochs=2".into(),
            "runner.train_batch_size=50".into(),
            "runner.use_inference=True".into(),
            "hyper_parameters.sparse_feature_number=1301".into(),
            "hyper_parameters.fc_sizes=[16,8]".into(),
        ]);
        done(train);
        let scores = [0, 1].map(|epoch| {
            let (model, out) = (export_in(dir.path(), epoch), dir.path().join("scores.csv"));
            let mut predict = regatta();
            predict.arg("predict").arg("-m").arg(model).args(["--data", DATA, "--out"]).arg(&out);
            done(predict);
            let text = fs::read_to_string(out).unwrap();
            let last = |line: &str| line.rsplit(',').next().unwrap().parse().unwrap();
            text.lines().skip(1).map(last).collect::<Vec<f64>>()
        });
        let rows = rows(&export_in(dir.path(), 0));
        assert_eq!((rows.len(), scores[0].len()), (300, 300));
        Trained { dir, rows, scores }
    })
}

fn export_in(dir: &Path, epoch: usize) -> PathBuf {
    dir.join(format!("epochs/{epoch}/inference_model"))
}

/// The examples of the data, as clients send them.
fn rows(model: &Path) -> Vec<Json> {
    let model = Model::open(model).unwrap();
    let config = Config::from_json(&model.manifest().about.config, model.path(), &[]).unwrap();
    let network = Network::build(&config).unwrap();
    let mut reading = config.runner.test.clone();
    reading.reader = Reader::Loader { shuffle_buffer: 0 };
    let mut data = Data::open(&config, &reading, &network.schema).unwrap();
    let (mut batches, _) = data.pass(0).unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = batches.next().unwrap() {
        for row in 0..batch.examples() {
            let named = model.inputs().iter().map(|input| {
                let Value::Dense(tensor) = batch.get(&input.name).unwrap() else {
                    panic!("the model takes fixed numbers of ids")
                };
                let width = tensor.numel() / batch.examples();
                let range = row * width..(row + 1) * width;
                let values = match tensor.data() {
                    Numbers::F32(v) => json!(v[range]),
                    Numbers::U64(v) => json!(v[range]),
                    other => panic!("{:?}", other.dtype()),
                };
                (input.name.clone(), values)
            });
            rows.push(Json::Object(named.collect()));
        }
    }
    rows
}

/// Puts a copy of an export into the place of another in one step, as an export does.
fn publish(from: &Path, to: &Path) {
    let new = to.with_extension("new");
    copy(from, &new);
    if to.exists() {
        let old = to.with_extension("old");
        fs::rename(to, &old).unwrap();
        fs::rename(&new, to).unwrap();
        fs::remove_dir_all(old).unwrap();
    } else {
        fs::rename(&new, to).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A process that serves; killed at the end unless it has ended.
struct Serving {
    child: Child,
    address: SocketAddr,
    lines: Receiver<String>,
    heard: Mutex<Vec<String>>,
}

impl Serving {
    fn start(model: &Path, flags: &[&str]) -> Serving {
        let mut child = regatta()
            .arg("serve")
            .arg("-m")
            .arg(model)
            .args(["--listen", "127.0.0.1:0", "--threads", "2", "--watch", "0.02"])
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send, lines) = sync_channel(1 << 12);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut serving =
            Serving { child, address: ([127, 0, 0, 1], 0).into(), lines, heard: Mutex::default() };
        let line = serving.hear("serving ");
        serving.address = line.rsplit_once("http://").unwrap().1.parse().unwrap();
        serving
    }

    /// Waits for a line of the log with these words, those already heard included.
    fn hear(&self, words: &str) -> String {
        let mut heard = self.heard.lock().unwrap();
        if let Some(line) = heard.iter().find(|line| line.contains(words)) {
            return line.clone();
        }
        loop {
            let line = self.lines.recv_timeout(LIMIT);
            let line = line.unwrap_or_else(|e| panic!("'{words}': {e}; heard {heard:?}"));
            heard.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    fn client(&self) -> Client {
        Client::new(self.address)
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.client().ask("GET", "/metrics", "", "").unwrap().1;
        let line = text.lines().find(|line| line.starts_with(&format!("regatta_{name} ")));
        line.unwrap_or_else(|| panic!("{text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that is kept.
struct Client {
    socket: BufReader<TcpStream>,
}

impl Client {
    fn new(address: SocketAddr) -> Client {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Client { socket: BufReader::new(socket) }
    }

    fn send(&mut self, text: &str) {
        // A server that has closed the connection shows in the answer.
        let _ = self.socket.get_mut().write_all(text.as_bytes());
    }

    /// Status and body of an answer; none if the server has closed the connection.
    fn answer(&mut self) -> Option<(u16, String)> {
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            if self.socket.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            }
            if let Some(rest) = line.strip_prefix("content-length: ") {
                length = rest.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.socket.read_exact(&mut body).ok()?;
        Some((status, String::from_utf8(body).unwrap()))
    }

    fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Option<(u16, String)> {
        let n = body.len();
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {n}\r\n{headers}\r\n{body}"
        ));
        self.answer()
    }

    /// The last number of each prediction.
    fn predict(&mut self, body: &Json) -> Vec<f64> {
        let (status, answer) = self.ask("POST", "/predict", "", &body.to_string()).expect("answer");
        assert_eq!(status, 200, "{answer}");
        let answer: Json = serde_json::from_str(&answer).unwrap();
        let all = match &answer["predictions"] {
            Json::Array(all) => all.clone(),
            _ => vec![answer["prediction"].clone()],
        };
        let last = |row: &Json| {
            let output = row.as_object().unwrap().values().next().unwrap();
            output.as_array().unwrap().last().unwrap().as_f64().unwrap()
        };
        all.iter().map(last).collect()
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6
}

#[test]
fn scores_are_those_of_predict() {
    let trained = trained();
    let serving = Serving::start(&export_in(trained.dir.path(), 0), &[]);
    let mut client = serving.client();
    for (row, score) in trained.rows.iter().zip(&trained.scores[0]).take(40) {
        let scored = client.predict(&json!({ "features": row }));
        assert!(scored.len() == 1 && near(scored[0], *score), "{scored:?} {score}");
    }
    // More rows than are scored at once.
    let scored = client.predict(&json!({ "instances": trained.rows }));
    assert_eq!(scored.len(), 300);
    let differs = scored.iter().zip(&trained.scores[0]).find(|(a, b)| !near(**a, **b));
    assert_eq!(differs, None);
    // Many clients at once get their own scores.
    std::thread::scope(|scope| {
        for first in 0..8 {
            let mut client = serving.client();
            scope.spawn(move || {
                for at in (first..300).step_by(8) {
                    let scored = client.predict(&json!({ "features": trained.rows[at] }));
                    assert!(near(scored[0], trained.scores[0][at]), "row {at}");
                }
            });
        }
    });
    let about: Json =
        serde_json::from_str(&client.ask("GET", "/model", "", "").unwrap().1).unwrap();
    assert_eq!(
        (about["name"].as_str(), about["inputs"].as_array().unwrap().len()),
        (Some("dnn"), 27)
    );
}

#[test]
fn mistakes_of_clients_are_answered_and_the_service_goes_on() {
    let trained = trained();
    let model = export_in(trained.dir.path(), 0);
    let token = trained.dir.path().join("token");
    fs::write(&token, "secret-word\n").unwrap();
    let flags = ["--max-body", "20000", "--timeout", "1", "--token-file", token.to_str().unwrap()];
    let serving = Serving::start(&model, &flags);
    let right = "authorization: Bearer secret-word\r\n";
    let row = &trained.rows[0];
    let ask = |headers: &str, body: &Json| {
        let (status, body) =
            serving.client().ask("POST", "/predict", headers, &body.to_string()).unwrap();
        (status, serde_json::from_str::<Json>(&body).unwrap()["error"].to_string())
    };
    let good = json!({ "features": row });
    assert_eq!(ask("", &good).0, 401);
    assert_eq!(ask("authorization: Bearer other\r\n", &good).0, 401);
    assert_eq!(ask(right, &good).0, 200);

    let mut misnamed = row.clone();
    let object = misnamed.as_object_mut().unwrap();
    let value = object.remove("dense_input").unwrap();
    object.insert("dense_inputs".into(), value);
    let (status, error) = ask(right, &json!({ "features": misnamed }));
    assert_eq!(status, 400);
    assert!(error.contains("no feature 'dense_inputs'; did you mean 'dense_input'?"), "{error}");
    let mut narrow = row.clone();
    narrow["dense_input"].as_array_mut().unwrap().pop();
    let (status, error) = ask(right, &json!({ "features": narrow }));
    assert_eq!(status, 400);
    assert!(error.contains("'dense_input' takes 13 floats, but 12 were given"), "{error}");
    let (status, error) = ask(right, &json!({ "instances": vec![row; 200] }));
    assert_eq!(status, 413);
    assert!(error.contains("20000 bytes"), "{error}");

    // A client that sends half a body, one that sends half a head, and one that says nothing.
    let mut slow = serving.client();
    slow.send(&format!(
        "POST /predict HTTP/1.1\r\nhost: x\r\n{right}content-length: 500\r\n\r\n{{"
    ));
    let mut slower = serving.client();
    slower.send("POST /pre");
    let mut silent = serving.client();
    assert_eq!(slow.answer().unwrap().0, 408);
    assert!(slow.answer().is_none(), "the connection is closed");
    assert!(slower.answer().is_none_or(|(status, _)| status == 408));
    assert!(silent.answer().is_none_or(|(status, _)| status == 408));
    assert_eq!(ask(right, &good).0, 200);
}

#[test]
fn a_new_export_takes_over_under_load_and_a_bad_one_does_not() {
    let trained = trained();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("model");
    publish(&export_in(trained.dir.path(), 0), &place);
    let serving = Serving::start(&place, &[]);
    let stop = Arc::new(AtomicBool::new(false));
    let (old, new) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ends = EndsLoad(stop.clone());
        for first in 0..4 {
            let (mut client, stop) = (serving.client(), stop.clone());
            let (old, new) = (&old, &new);
            scope.spawn(move || {
                for at in (first..300).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // Every request is answered, by one of the two models.
                    let score = client.predict(&json!({ "features": trained.rows[at] }))[0];
                    let by_old = near(score, trained.scores[0][at]);
                    assert!(by_old || near(score, trained.scores[1][at]), "row {at}: {score}");
                    (if by_old { old } else { new }).fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("requests to the old model", || old.load(Ordering::Relaxed) > 20);

        // Truncated: the file of rows ends too soon.
        let bad = dir.path().join("bad");
        copy(&export_in(trained.dir.path(), 1), &bad);
        let values = fs::read_dir(&bad).unwrap().map(|entry| entry.unwrap().path());
        let values =
            values.into_iter().find(|path| path.extension().is_some_and(|e| e == "values"));
        let values = values.expect("a table");
        let bytes = fs::read(&values).unwrap();
        fs::write(&values, &bytes[..bytes.len() / 2]).unwrap();
        publish(&bad, &place);
        let line = serving.hear("new model refused, the old one stays");
        assert!(line.contains("values"), "{line}");

        // Foreign: something else that has a manifest.
        fs::remove_dir_all(&bad).unwrap();
        fs::create_dir(&bad).unwrap();
        fs::write(bad.join("manifest.json"), "{\"kind\": \"cake\"}").unwrap();
        publish(&bad, &place);
        let refused = |serving: &Serving| serving.metric("failed_reloads_total");
        let before = refused(&serving);
        until("the foreign model to be refused", || refused(&serving) > before);
        let at_refusal = old.load(Ordering::Relaxed);
        until("requests to the old model", || old.load(Ordering::Relaxed) > at_refusal + 20);
        assert_eq!(new.load(Ordering::Relaxed), 0);
        assert_eq!(serving.metric("reloads_total"), 0);

        // A good one.
        publish(&export_in(trained.dir.path(), 1), &place);
        serving.hear("new model: dnn");
        until("requests to the new model", || new.load(Ordering::Relaxed) > 20);
    });
    let scored = serving.client().predict(&json!({ "instances": trained.rows }));
    assert!(scored.iter().zip(&trained.scores[1]).all(|(a, b)| near(*a, *b)));
    assert_eq!(serving.metric("reloads_total"), 1);
}

/// Ends the load when the test ends, also by a failure.
struct EndsLoad(Arc<AtomicBool>);

impl Drop for EndsLoad {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::yield_now();
    }
}

#[test]
fn sigterm_lets_requests_finish() {
    let trained = trained();
    let mut serving = Serving::start(&export_in(trained.dir.path(), 0), &[]);
    let body = json!({ "features": trained.rows[0] }).to_string();
    let (sent, rest) = body.split_at(body.len() / 2);
    let mut under_way = serving.client();
    let n = body.len();
    under_way.send(&format!(
        "POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {n}\r\nexpect: 100-continue\r\n\r\n"
    ));
    // The server has read the head when it asks for the body.
    assert_eq!(under_way.answer().unwrap().0, 100);
    under_way.send(sent);
    let mut idle = serving.client();
    assert_eq!(idle.ask("GET", "/healthz", "", "").unwrap().0, 200);
    serving.signal("-TERM");
    serving.hear("SIGTERM: stopping");
    // Connections that nobody uses end, new ones are refused, the request is answered.
    assert!(idle.answer().is_none());
    under_way.send(rest);
    let (status, answer) = under_way.answer().expect("the answer to what was in flight");
    assert_eq!(status, 200, "{answer}");
    serving.hear("stopped");
    assert!(serving.child.wait().unwrap().success());
    assert!(TcpStream::connect(serving.address).is_err());
}

#[test]
fn what_is_no_export_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let output = regatta().arg("serve").arg("-m").arg(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("cannot serve") && error.contains("model.program"), "{error}");
}
