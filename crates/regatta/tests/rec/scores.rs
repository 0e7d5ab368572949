//! Files of scores: kept columns, names, formats, standard input.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{Ran, SMALL_HYPER, Scratch, small};

const COLUMNS: &str = "features:
  label: {kind: label, column: click}
  \"1\": {kind: hash, buckets: 200, column: a}
  \"2\": {kind: id, buckets: 201, column: b}
  \"3\": {kind: hash, buckets: 200, column: c}
  \"4\": {kind: hash, buckets: 200, column: a}
  numbers: {kind: raw, column: [x, y, z]}";

/// Rows of different users; every seventh is malformed.
fn rows(delimiter: char, with_bad: bool) -> (String, Vec<String>) {
    let head = ["user", "item", "click", "a", "b", "c", "x", "y", "z"];
    let (mut text, mut users) = (head.join(&delimiter.to_string()) + "\n", Vec::new());
    for i in 0..100 {
        let is_bad = i % 7 == 3;
        if is_bad && !with_bad {
            continue;
        }
        let user = format!("u{i}{delimiter} the \"{}th\"", i + 1);
        let click = if is_bad { "maybe".to_string() } else { (i % 3 % 2).to_string() };
        let quoted = format!("\"{}\"", user.replace('"', "\"\""));
        let (item, a) = (format!("item {}", i % 5), format!("a{}", i % 11));
        let fields = [quoted, item, click, a, (i % 13).to_string(), "c".into()];
        let dense = [format!("0.{i}"), "1".into(), String::new()];
        text += &([&fields[..], &dense].concat().join(&delimiter.to_string()) + "\n");
        if !is_bad {
            users.push(user);
        }
    }
    (text, users)
}

/// Trains on the rows without those that are malformed.
fn trained(s: &Scratch) {
    s.write("train/a.csv", &rows(',', false).0);
    let config = config(s, "csv", COLUMNS);
    s.write("c.yaml", &s.read(&config).replace("test_data_dir: data", "train_data_dir: train"));
    s.run(&["train", "-m", "c.yaml", "--run-dir", "run"]).ok();
}

fn config(s: &Scratch, format: &str, columns: &str) -> String {
    let name = format!("{format}.yaml");
    let runner = format!("  train_batch_size: 8\n  data_format: {format}\n  max_bad_lines: 50");
    let header = if format == "tsv" { "\n  data_header: True" } else { "" };
    s.write(
        &name,
        &format!(
            "model: dnn\nrunner:\n  test_data_dir: data\n{runner}{header}\n{columns}\n{SMALL_HYPER}"
        ),
    );
    name
}

fn predict(s: &Scratch, config: &str, more: &[&str]) -> Ran {
    s.run(&[&["predict", "-m", "run/epochs/0", "--config", config], more].concat())
}

/// Fields of a written file, with the quotes of our own writing.
fn fields(text: &str, delimiter: char) -> Vec<Vec<String>> {
    let line = |line: &str| {
        let (mut fields, mut inside) = (vec![String::new()], false);
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            let last = fields.last_mut().unwrap();
            match c {
                '"' if inside && chars.peek() == Some(&'"') => last.push(chars.next().unwrap()),
                '"' => inside = !inside,
                c if c == delimiter && !inside => fields.push(String::new()),
                c => last.push(c),
            }
        }
        fields
    };
    text.lines().map(line).collect()
}

#[test]
fn kept_columns_stay_beside_their_scores() {
    let s = Scratch::new();
    trained(&s);
    for (format, delimiter) in [("csv", ','), ("tsv", '\t')] {
        let config = config(&s, format, COLUMNS);
        let (good, users) = rows(delimiter, false);
        s.write("data/a.txt", &good);
        let out = format!("out.{format}");
        let plain = predict(&s, &config, &["--out", &out]).ok();
        assert!(plain.contains("auc: ") && !plain.contains("malformed"), "{plain}");
        let scores: Vec<String> = s.read(&out).lines().skip(1).map(String::from).collect();
        assert_eq!((scores.len(), s.read(&out).lines().next()), (users.len(), Some("score")));
        // Threads and malformed rows move nothing.
        s.write("data/a.txt", &rows(delimiter, true).0);
        let keep = ["--out", &out, "--keep", "user,item", "--threads", "3"];
        let ran = predict(&s, &config, &keep);
        assert!(ran.err.contains("14 malformed lines were skipped"), "{}", ran.err);
        ran.ok();
        let written = fields(&s.read(&out), delimiter);
        assert_eq!(written[0], ["user", "item", "score"]);
        assert_eq!(written.len(), users.len() + 1);
        for ((row, user), score) in written[1..].iter().zip(&users).zip(&scores) {
            let number: usize = user[1..].split(delimiter).next().unwrap().parse().unwrap();
            assert_eq!(row, &[user.clone(), format!("item {}", number % 5), score.clone()]);
        }
        // The same through a pipe.
        let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
        command.args(["predict", "-m", "run/epochs/0", "--config", &config, "--data", "-"]);
        command.args(["--out", "piped", "--keep", "user"]).current_dir(s.path("."));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(rows(delimiter, true).0.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        let piped: Vec<Vec<String>> = fields(&s.read("piped"), ',').into_iter().skip(1).collect();
        let expected = users.iter().zip(&scores).map(|(u, score)| vec![u.clone(), score.clone()]);
        assert_eq!(piped, expected.collect::<Vec<_>>());
    }
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_is_written_and_read() {
    let s = Scratch::new();
    trained(&s);
    let csv = config(&s, "csv", COLUMNS);
    let (text, users) = rows(',', false);
    s.write("data/a.txt", &text);
    predict(&s, &csv, &["--out", "first.csv", "--keep", "user,click"]).ok();
    std::fs::create_dir(s.path("scores")).unwrap();
    predict(&s, &csv, &["--out", "scores/a.parquet", "--keep", "user,click"]).ok();
    let slots = (1..=4).map(|i| format!("  \"{i}\": {{kind: hash, buckets: 200, column: user}}\n"));
    let columns = format!(
        "features:\n  label: {{kind: label, column: click}}\n{}  \
         numbers: {{kind: raw, column: [score, score, score]}}",
        slots.collect::<String>()
    );
    let parquet = config(&s, "parquet", &columns);
    let data = ["--data", "scores", "--out", "second.csv", "--keep", "user,score"];
    predict(&s, &parquet, &data).ok();
    let (first, second) = (fields(&s.read("first.csv"), ','), fields(&s.read("second.csv"), ','));
    assert_eq!(second[0], ["user", "score", "score"]);
    assert_eq!(second.len(), users.len() + 1);
    for (first, second) in first[1..].iter().zip(&second[1..]) {
        assert_eq!((&first[0], &first[2]), (&second[0], &second[1]));
    }
}

#[test]
fn columns_that_cannot_be_kept_are_named() {
    let s = Scratch::new();
    trained(&s);
    let csv = config(&s, "csv", COLUMNS);
    s.write("data/a.txt", &rows(',', false).0);
    let keep =
        |config: &str, names: &str| predict(&s, config, &["--out", "o.csv", "--keep", names]);
    s.write(&csv, &s.read(&csv).replace("max_bad_lines: 50", "max_bad_lines: 0"));
    let ran = keep(&csv, "users");
    assert_ne!(ran.code, 0);
    assert!(ran.err.contains("a.txt:1:") && ran.err.contains("'users'"), "{}", ran.err);
    let numbers = COLUMNS.replace("column: click", "column: 0").replace("column: a", "column: 1");
    let numbers = numbers.replace("column: b", "column: 2").replace("column: c", "column: 3");
    let numbers = numbers.replace("[x, y, z]", "[4, 5, 6]");
    let plain = config(&s, "csv", &numbers);
    s.write("p.yaml", &s.read(&plain).replace("format: csv", "format: csv\n  data_header: False"));
    keep("p.yaml", "user").fails(2, &["--keep: there is no column 'user'", "numbers from 0"]);
    predict(&s, "c.yaml", &["--keep", "user"]).fails(2, &["--out"]);
}

#[test]
fn data_without_columns_keep_none() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    s.run(&["train", "-m", "c.yaml", "--run-dir", "run", "-o", "runner.epochs=1"]).ok();
    let keep = ["--out", "o.csv", "--keep", "user"];
    predict(&s, "c.yaml", &keep).fails(2, &["--keep: synthetic data have no columns"]);
    s.write("data/a", "1 1\n");
    let other = config(&s, "multislot", "");
    let said = ["--keep: only csv, tsv and parquet files have columns"];
    predict(&s, &other, &keep).fails(2, &said);
}

#[test]
fn outputs_are_called_by_what_they_predict() {
    let s = Scratch::with_model("multitask/esmm");
    let config = "models/multitask/esmm/config.yaml";
    let data = "synthetic://multitask?slots=8&vocab=200&dense=0&ids_per_slot=3&seed=1&examples=600";
    let keys = ["-o", &format!("runner.train_data_dir={data}"), "runner.epochs=1"];
    s.run(&[&["train", "-m", config, "--run-dir", "run"], &keys[..]].concat()).ok();
    s.run(&["predict", "-m", "run/epochs/0", "--data", data, "--out", "a.csv"]).ok();
    assert_eq!(s.read("a.csv").lines().next(), Some("ctr,ctcvr"));
    let test = format!("runner.test_data_dir={data}");
    let epochs = ["runner.infer_start_epoch=0", "runner.infer_end_epoch=1"];
    let infer = ["infer", "-m", config, "--run-dir", "run", "--out", "b.csv", "-o", &test];
    s.run(&[&infer[..], &epochs].concat()).ok();
    assert_eq!(s.read("b.csv"), s.read("a.csv"));
}
