//! The real binary: exit codes, lines, and files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use regatta::prelude::Predictor;
use regatta::tensor::{DType, Tensor};

/// Runs the binary in a directory; returns exit code, standard output and standard error.
fn regatta(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    let Output { status, stdout, stderr } = command.args(args).current_dir(dir).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn fit_a_line_reaches_its_goal_and_saves() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, err) = regatta(dir.path(), &["fit-a-line", "--save", "out"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("404 rows to train, 102 to test"), "{out}");
    assert!(out.contains("\nPass 0, Batch 0, Cost "), "{out}");
    assert!(out.contains(" is below 10 after "), "{out}");
    assert!(out.ends_with("Saved to out.\n"), "{out}");
    let mut predictor = Predictor::load(dir.path().join("out/inference")).unwrap();
    let x = Tensor::zeros(DType::F32, &[1, 13]).into();
    let price = predictor.predict(&[("x", &x)]).unwrap()[0].f32()[0];
    assert!((20.0..25.0).contains(&price), "an average house costs {price}");

    // Again, into the same place; the same seed gives the same lines.
    assert_eq!(regatta(dir.path(), &["fit-a-line", "--save", "out"]), (0, out, err));
}

#[test]
fn fit_a_line_says_when_the_goal_was_missed() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["fit-a-line", "--epochs", "1", "--learning-rate", "1e-5", "--save", "out"];
    let (code, _, err) = regatta(dir.path(), &args);
    assert_eq!(code, 1);
    assert!(err.starts_with("not reached: after 1 pass the test loss is "), "{err}");
    let (code, _, err) = regatta(dir.path(), &["fit-a-line", "--learning-rate", "50"]);
    assert_eq!(code, 1);
    assert!(err.contains("no longer a number; try a smaller --learning-rate"), "{err}");
    assert_eq!(entries(dir.path()), 0);
}

/// Rows in the form of the UCI file, with a price that follows from the first feature.
fn table(rows: usize) -> String {
    let row = |i: usize| {
        let features: Vec<String> =
            (0..13).map(|j| format!("{:7.4}", ((i * (j + 3)) % 17) as f32)).collect();
        format!(" {}  {:.2}\n", features.join("  "), 15.0 + ((i * 3) % 17) as f32)
    };
    (0..rows).map(row).collect()
}

#[test]
fn fit_a_line_reads_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("housing.data");
    fs::write(&file, table(100) + "\n").unwrap();
    let args =
        ["fit-a-line", "--data", "housing.data", "--learning-rate", "0.05", "--threads", "2"];
    let (code, out, err) = regatta(dir.path(), &args);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.starts_with("housing.data: 80 rows to train, 20 to test"), "{out}");
}

#[test]
fn bad_tables_are_named_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let good = table(20);
    let short = good.lines().next().unwrap().rsplit_once(' ').unwrap().0.to_string();
    let cases = [
        (format!("{good}{short}\n"), "bad.data:21: expected 14 numbers, found 13"),
        (
            format!("{good}{} 1\n", good.lines().next().unwrap()),
            "bad.data:21: expected 14 numbers, found 15",
        ),
        (good.replacen(" 3.0000", " 3,0000", 1), "expected 14 numbers, found '3,0000' in column"),
        ("<html>\n".into(), "bad.data:1: expected 14 numbers, found '<html>' in column 1"),
        (String::new(), "bad.data: 0 rows are too few"),
        ("\n \n".into(), "bad.data: 0 rows are too few"),
        (table(1), "bad.data: 1 rows are too few"),
    ];
    for (text, expected) in cases {
        fs::write(dir.path().join("bad.data"), text).unwrap();
        let args = ["fit-a-line", "--data", "bad.data", "--save", "out"];
        let (code, out, err) = regatta(dir.path(), &args);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.starts_with("error: ") && err.contains(expected), "{err} lacks '{expected}'");
        assert_eq!(entries(dir.path()), 1, "only the table is there");
    }
    // Not even text.
    fs::write(dir.path().join("bad.data"), [0xff, 0xfe, 0, 1, 10]).unwrap();
    let (code, _, err) = regatta(dir.path(), &["fit-a-line", "--data", "bad.data"]);
    assert!(code == 2 && err.contains("bad.data:1: expected 14 numbers"), "{err}");
    let (code, _, err) = regatta(dir.path(), &["fit-a-line", "--data", "none.data"]);
    assert_eq!(code, 2);
    let expected = "error: cannot read none.data: No such file or directory (os error 2)\n";
    assert_eq!(err, expected, "the reason is said once");
    let (code, _, err) = regatta(dir.path(), &["fit-a-line", "--data", "."]);
    assert!(code == 2 && err.starts_with("error: cannot read .: "), "{err}");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "mine").unwrap();
    let (code, _, err) = regatta(dir.path(), &["fit-a-line", "--save", "file"]);
    assert_eq!(code, 2);
    assert!(err.starts_with("error: cannot create file: "), "{err}");
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"mine");
}

#[test]
fn mlp_prints_steps_and_figures() {
    let dir = tempfile::tempdir().unwrap();
    for optimizer in ["sgd", "momentum", "adagrad", "adam"] {
        let args = ["mlp", "--steps", "205", "--optimizer", optimizer];
        let (code, out, err) = regatta(dir.path(), &args);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        let lines: Vec<&str> = out.lines().collect();
        let cost = |line: &str| line.split_once("cost=").unwrap().1.parse::<f32>().unwrap();
        let starts = ["step0 cost=", "step100 cost=", "step200 cost=", "step204 cost="];
        assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{out}");
        assert!(cost(lines[3]) < cost(lines[0]), "{out}");
        assert!(lines[4].starts_with("test cost=0.") && lines[4].contains(" accuracy=0."), "{out}");
        assert!(lines[5].contains(" examples/s (26240 in ") && lines.len() == 6, "{out}");
    }
}

#[test]
fn programs_shows_every_pass() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, _) =
        regatta(dir.path(), &["programs", "mlp", "--optimizer", "adam", "--clip-norm", "1"]);
    assert_eq!(code, 0);
    let titles: Vec<&str> = out.lines().filter(|line| line.starts_with("== ")).collect();
    assert_eq!(titles.len(), 8, "{titles:?}");
    assert!(titles[3].starts_with("== 4. clip: "));
    assert!(out.contains("@optimize") && out.contains("buffer=b0"));
    let (code, out, _) = regatta(dir.path(), &["programs", "fit-a-line"]);
    assert!(code == 0 && out.contains("square_error_cost_grad"));
}

/// Stages of `regatta programs` for the click model of the repository: pass and text of each.
fn stages_of(args: &[&str]) -> Vec<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/rank/dnn/config.yaml");
    let all = [&["programs", "-m", config, "--batch", "64"], args].concat();
    let (code, out, err) = regatta(dir.path(), &all);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    let stage = |text: &str| {
        let (title, text) = text.split_once('\n').unwrap();
        let pass = title.split_once(". ").unwrap().1.split_once(':').unwrap().0;
        (pass.to_string(), text.to_string())
    };
    out.split("== ").skip(1).map(stage).collect()
}

#[test]
fn programs_of_a_configuration_end_with_what_every_role_runs() {
    let passes = |stages: &[(String, String)]| -> Vec<String> {
        let mut passes: Vec<String> = stages.iter().map(|(pass, _)| pass.clone()).collect();
        passes.dedup();
        passes
    };
    let training = ["build", "backward", "insert_updates"];
    let execution = ["fuse", "memory_reuse", "concrete_types"];
    let alone = stages_of(&[]);
    assert_eq!(passes(&alone), [&training[..], &execution].concat());
    let text = &alone.last().unwrap().1;
    assert!(text.contains("fc_grad_through_relu(") && text.contains("adam("), "{text}");

    let worker = stages_of(&["--role", "trainer", "-o", "runner.thread_num=2"]);
    let divided = ["split_trainer", "fuse", "split_batch", "memory_reuse", "concrete_types"];
    assert_eq!(passes(&worker), [&training[..], &divided].concat());
    let split = &worker.iter().find(|(pass, _)| pass == "split_trainer").unwrap().1;
    let parts = [
        "pull_sparse(SparseFeatFactors, ",
        "= recv()",
        "program trainer",
        "push_sparse(",
        "send([",
    ];
    let at: Vec<usize> = parts.iter().map(|part| split.find(part).unwrap()).collect();
    assert!(at.is_sorted(), "{at:?}");
    assert!(!split.contains("adam("));
    let last: Vec<&str> = worker.iter().rev().take(3).map(|(_, text)| text.as_str()).collect();
    assert!(last[0].starts_with("program trainer.rest"), "{}", last[0]);
    assert!(last[1].starts_with("program trainer.part1") && last[1].contains("f32[32, 2]"));

    let servers = stages_of(&["--role", "server", "--servers", "2"]);
    assert_eq!(servers.len(), 4);
    assert!(servers[0].1.contains("param fc_0.w_0.block0") && servers[0].1.contains("= adam("));
    assert!(servers[2].1.contains("param fc_0.w_0.block1"), "{}", servers[2].1);

    let rank = stages_of(&["--role", "rank", "--ranks", "4"]);
    let together = [&["data_parallel", "fuse_all_reduce"][..], &execution].concat();
    assert_eq!(passes(&rank), [&training[..], &together].concat());
    assert!(rank.last().unwrap().1.contains("all_reduce_start("));
}

#[test]
fn wrong_flags_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["fit-a-line", "--epoch", "3"][..], "unexpected argument '--epoch'"),
        (&["fit-a-line", "--epochs", "0"], "it must be a whole number from 1"),
        (&["fit-a-line", "--learning-rate", "-1"], "it must be a number larger than 0"),
        (&["fit-a-line", "--learning-rate", "nan"], "it must be a number larger than 0"),
        (&["mlp", "--threads", "0"], "it must be a whole number from 1 to 1024"),
        (&["mlp", "--optimizer", "adamm"], "similar value exists: 'adam'"),
        (&["mlpp"], "similar subcommand exists: 'mlp'"),
        (&["programs"], "required arguments were not provided"),
        (&["programs", "mlp", "--role", "rank"], "cannot be used with"),
        (&[], "Usage: regatta"),
    ] {
        let (code, out, err) = regatta(dir.path(), args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(err.contains(expected), "{args:?}: {err}");
    }
    for args in [&["--help"][..], &["fit-a-line", "--help"], &["mlp", "-h"], &["--version"]] {
        let (code, out, err) = regatta(dir.path(), args);
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
        assert!(out.contains("regatta"), "{out}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let line = format!("{} mlp --log-every 1 | head -n 1", env!("CARGO_BIN_EXE_regatta"));
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("step0 cost="));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
