//! Sizes that make no sense or do not fit are refused at once, by the name of their key.

use crate::support::{Scratch, small};

fn over<'a>(key: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "-m", "c.yaml", "-o", key], more].concat()
}

#[test]
fn absurd_integers_name_key_value_and_limit() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    for (key, value, range) in [
        ("hyper_parameters.sparse_inputs_slots", "9223372036854775807", "0 to 10000"),
        ("hyper_parameters.sparse_inputs_slots", "1000000", "0 to 10000"),
        ("hyper_parameters.sparse_feature_number", "9223372036854775807", "0 to 1099511627776"),
        ("hyper_parameters.sparse_feature_dim", "1099511627776", "0 to 1048576"),
        ("hyper_parameters.fc_sizes", "[16, 99999999]", "0 to 1048576"),
        ("runner.thread_num", "1000000", "1 to 1024"),
        ("runner.reader_threads", "1000000", "1 to 1024"),
        ("runner.train_batch_size", "1000000000000", "1 to 16777216"),
        ("runner.send_queue_size", "1000000000", "0 to 4096"),
        ("runner.epochs", "9223372036854775807", "1 to 1000000000"),
    ] {
        let given = format!("{key}={value}");
        let said = [format!("{key}: should be "), format!("{range}, but is {value}")];
        s.run(&over(&given, &[])).fails(2, &[&said[0], &said[1]]);
    }
}

#[test]
fn a_model_that_does_not_fit_names_its_key() {
    let s = Scratch::new();
    s.write("c.yaml", &small(""));
    let table = "hyper_parameters.sparse_feature_number=1000000000000";
    let words = [
        "hyper_parameters.sparse_feature_number=1000000000000: parameters and optimizer states",
        "need 48000.0 GB",
        "[1000000000000, 4] takes 16000.0 GB",
        "available; make it smaller",
        "runner.check_memory=False",
    ];
    s.run(&over(table, &[])).fails(1, &words);
    s.run(&over(table, &["--ranks", "2"])).fails(1, &words);
    let geo = ["runner.sync_mode=geo", "runner.geo_step=2", "--servers", "1", "--workers", "1"];
    s.run(&over(table, &geo)).fails(1, &words);
    let wide = over("hyper_parameters.fc_sizes=[1000000, 1000000]", &[]);
    s.run(&wide)
        .fails(1, &["hyper_parameters.fc_sizes=[1000000, 1000000]: ", "[1000000, 1000000]"]);
    assert!(!s.path("model_output").exists());
}

/// What the check lets through and the system refuses is an error as well, not an abort.
#[test]
fn memory_that_the_system_refuses() {
    let s = Scratch::new();
    s.write("c.yaml", &small("  check_memory: False"));
    let regatta = env!("CARGO_BIN_EXE_regatta");
    let train = "train -m c.yaml -o hyper_parameters.sparse_feature_number=1000000000";
    let line = format!("ulimit -v 4000000 && exec {regatta} {train}");
    let ran = std::process::Command::new("sh")
        .args(["-c", &line])
        .current_dir(s.path("."))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{error}");
    assert!(error.contains("the system refuses 16.0 GB of memory for '"), "{error}");
}
