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
    assert!(!s.path("runs").exists());
}

/// Servers make rows when ids come: such a job trains, and says what it may come to.
#[test]
fn tables_of_servers_that_may_not_fit_are_told() {
    let s = Scratch::new();
    s.write("c.yaml", &small("  sync_mode: sync\n"));
    let job = ["--servers", "2", "--workers", "2"];
    let rows = "hyper_parameters.sparse_feature_number=1000000000000";
    let said = s.run(&over(rows, &[&["runner.epochs=1"], &job[..]].concat())).ok();
    let words = "with all its 1000000000000 rows, table 'SparseFeatFactors' takes 24000.0 GB on \
                 each of 2 servers, but ";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    assert!(said.contains("table_parameters.SparseFeatFactors.memory_mb"), "{said}");
    let said = s.run(&over("runner.epochs=1", &job)).ok();
    assert!(!said.contains("with all its"), "{said}");
}

#[test]
fn data_that_do_not_fit_into_memory() {
    let s = Scratch::new();
    s.write("c.yaml", &small("  reader_type: InmemoryDataset"));
    let synthetic = "synthetic://ctr?slots=4&vocab=50&dense=3&examples=1000000000000";
    let synthetic = format!("runner.train_data_dir={synthetic}");
    let words = ["InmemoryDataset holds about 1000000000000 examples of 60 bytes", "QueueDataset"];
    s.run(&over(&synthetic, &[])).fails(1, &words);
    // A file of a terabyte that takes no room on the disk.
    let line = "1 1 1 7 1 8 1 9 1 10 3 0.5 0.25 0.75\n";
    let file = s.write("data/a.txt", &line.repeat(10_000));
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    if file.set_len(1 << 40).is_err() {
        eprintln!("left out: no large files here");
        return;
    }
    let words = ["runner.train_data_dir: InmemoryDataset holds about 29", "examples of 60 bytes"];
    s.run(&over("runner.train_data_dir=data", &["runner.data_format=multislot"])).fails(1, &words);
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

/// While a server saves, it holds one of the 16 shards of a table twice, not all rows.
#[test]
fn saving_holds_little_beside_the_table() {
    let s = Scratch::new();
    let text = small("  sync_mode: async\n  drop_last: True\n  check_nan_inf: False\n");
    s.write("c.yaml", &text.replace("use_auc: True", "use_auc: False"));
    let url = "synthetic://ctr?slots=4&vocab=200000&dense=3&examples=250000&zipf=0.1";
    let data = format!("runner.train_data_dir={url}");
    let keys = ["runner.epochs=1", "runner.train_batch_size=5000"];
    let sizes =
        ["hyper_parameters.sparse_feature_number=800001", "hyper_parameters.sparse_feature_dim=16"];
    let job = ["--servers", "1", "--workers", "1", "--report", "report.json"];
    s.run(&over(&data, &[&keys[..], &sizes, &job].concat())).ok();
    let report: serde_json::Value = serde_json::from_str(&s.read("report.json")).unwrap();
    let server = &report["servers"][0];
    let table = server["tables"]["SparseFeatFactors"]["bytes"].as_u64().unwrap();
    let peak = server["peak_rss_bytes"].as_u64().unwrap();
    assert!(table > 100_000_000, "{server}");
    // All rows collected before they are written would be about as much again.
    assert!(peak < table + table / 2 + 60_000_000, "{server}");
}
