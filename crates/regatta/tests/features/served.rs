//! One messy CSV through training with servers, evaluation, export, predictions and requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use regatta_predict::{Model, RawRows};
use serde_json::{Value as Json, json};

use crate::log::{Example, FEATURES, Log, NAMES, config};
use crate::support::Scratch;

/// A process that serves; killed at the end.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(model: &Path) -> Serving {
        let mut child = Command::new(env!("CARGO_BIN_EXE_regatta"))
            .args(["serve", "--listen", "127.0.0.1:0", "-m"])
            .arg(model)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.map_while(Result::ok).find(|line| line.contains("http://")).unwrap();
        let address = line.rsplit_once("http://").unwrap().1.to_string();
        Serving { child, address }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Json) {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a client sends for an example: lists as lists, or as text as in files.
fn request(example: &Example, as_lists: bool) -> Json {
    let list = |values: &[String]| match as_lists {
        true => json!(values),
        false => json!(values.join("|")),
    };
    json!({
        "user": example.user,
        "item": example.item,
        "tags": list(&example.tags),
        "history": list(&example.history),
        "age": example.age,
        "price": example.price,
    })
}

#[test]
fn a_messy_log_becomes_a_served_model() {
    let s = Scratch::new();
    s.write("c.yaml", &config("deepfm", FEATURES));
    for part in 0..2 {
        let log = Log { seed: 5 + part, ..Log::default() };
        s.write(&format!("train/{part}.csv"), &log.csv(NAMES));
    }
    let test = Log { seed: 2, rows: 600, ..Log::default() };
    s.write("test/a.csv", &test.csv(NAMES));
    let servers = ["--servers", "2", "--workers", "2"];
    let mode = ["-o", "runner.sync_mode=sync", "-o", "runner.split_file_list=True"];
    let out = s.run(&[&["train", "-m", "c.yaml"], &servers[..], &mode[..]].concat()).ok();
    assert!(out.contains("note: feature user: a vocabulary of 200"), "{out}");

    let last = ["-o", "runner.infer_start_epoch=1"];
    let infer = s.run(&[&["infer", "-m", "c.yaml"], &last[..]].concat()).ok();
    s.run(&["export", "epochs/1", "--to", "model"]).ok();
    // Neither the configuration nor the training data are needed any more.
    std::fs::remove_file(s.path("c.yaml")).unwrap();
    std::fs::remove_dir_all(s.path("train")).unwrap();
    let predict = s.run(&["predict", "-m", "model", "--data", "test", "--out", "scores.csv"]).ok();
    let auc = |text: &str| {
        let found = text.rsplit_once("auc: ").unwrap().1;
        found[..found.find([',', '\n']).unwrap()].parse::<f64>().unwrap()
    };
    assert!((auc(&predict) - auc(&infer)).abs() < 1e-6, "{predict}\n{infer}");
    let scores: Vec<f64> =
        s.read("scores.csv").lines().skip(1).map(|l| l.parse().unwrap()).collect();
    let examples = test.examples();
    assert_eq!(scores.len(), examples.len());

    let serving = Serving::start(&s.path("model"));
    let last = |answer: &Json| {
        let output = answer.as_object().unwrap().values().next().unwrap();
        output.as_array().unwrap().last().unwrap().as_f64().unwrap()
    };
    for as_lists in [true, false] {
        let instances: Vec<Json> = examples.iter().map(|e| request(e, as_lists)).collect();
        let body = json!({ "instances": instances }).to_string();
        let (status, answer) = serving.ask("POST", "/predict", &body);
        assert_eq!(status, 200, "{answer}");
        let served: Vec<f64> = answer["predictions"].as_array().unwrap().iter().map(last).collect();
        for (served, scored) in served.iter().zip(&scores) {
            assert!((served - scored).abs() < 1e-6, "{served} is not {scored}");
        }
    }
    refusals(&serving, &request(&examples[0], true));
    rows_of_the_library(&s.path("model"), &examples, &scores);
}

/// What does not fit is said with the column.
fn refusals(serving: &Serving, good: &Json) {
    let fails = |change: &dyn Fn(&mut Json), words: &str| {
        let mut row = good.clone();
        change(&mut row);
        let (status, answer) =
            serving.ask("POST", "/predict", &json!({"features": row}).to_string());
        let message = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(words), "{status}: {answer}");
    };
    fails(&|row| drop(row.as_object_mut().unwrap().remove("age")), "column 'age' is missing; null");
    fails(&|row| row["aeg"] = json!(1), "there is no column 'aeg'; did you mean 'age'?");
    fails(
        &|row| row["price"] = json!("cheap"),
        "column 'price': a number was expected, but 'cheap'",
    );
    let (_, about) = serving.ask("GET", "/model", "");
    assert_eq!(about["inputs"][0], json!({"name": "age", "takes": "raw values", "width": 1}));
}

/// Programs score raw rows, too.
fn rows_of_the_library(model: &Path, examples: &[Example], scores: &[f64]) {
    use regatta_features::Value;
    let model = Model::open(model).unwrap();
    let mut rows = RawRows::new(&model).unwrap();
    assert_eq!(rows.columns(), ["age", "history", "item", "price", "tags", "user"]);
    for e in examples {
        let (history, tags) = (e.history.join("|"), e.tags.join("|"));
        let price = e.price.map_or(Value::Missing, Value::Float);
        let age = e.age.map_or(Value::Missing, |age| Value::Int(age.into()));
        let [history, item, tags, user] =
            [&history, &e.item, &tags, &e.user].map(|text| Value::Text(text.as_bytes()));
        rows.push(&[age, history, item, price, tags, user]).unwrap();
    }
    let batch = rows.batch().unwrap();
    let batch: Vec<_> = batch.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let mut session = model.session().unwrap();
    for (own, scored) in session.score(&batch).unwrap()[0].f32().iter().zip(scores) {
        assert!((f64::from(*own) - scored).abs() < 1e-6, "{own} is not {scored}");
    }
}

/// New data have no labels yet, and where a few do, those are judged.
#[test]
fn data_without_labels_are_scored() {
    let s = Scratch::new();
    s.write("c.yaml", &config("deepfm", FEATURES));
    s.write("train/a.csv", &Log::default().csv(NAMES));
    let text = Log { seed: 2, rows: 100, ..Log::default() }.csv(NAMES);
    s.run(&["train", "-m", "c.yaml"]).ok();
    let predict = |data: &str, out: &str| {
        let keep = ["--keep", "user"];
        s.run(&[&["predict", "-m", "epochs/1", "--data", data, "--out", out], &keep[..]].concat())
            .ok()
    };
    s.write("labelled.csv", &text);
    assert!(predict("labelled.csv", "a.csv").contains("auc: "));
    s.write("new.csv", &text.replacen("clicked,", "something,", 1));
    let out = predict("new.csv", "b.csv");
    assert!(out.contains("labels missing: 100") && !out.contains("auc: "), "{out}");
    assert_eq!(s.read("a.csv"), s.read("b.csv"));
    s.write("some.csv", &text.replacen("\n1.0,", "\n,", 3));
    let out = predict("some.csv", "c.csv");
    assert!(out.contains("labels missing: 3") && out.contains("auc: "), "{out}");
    assert_eq!(s.read("a.csv"), s.read("c.csv"));
}
