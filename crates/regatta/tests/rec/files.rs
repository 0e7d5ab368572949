//! Formats that a configuration can name, and files that `regatta data synth` writes.

use crate::support::{SMALL_HYPER, Scratch};

fn config(format: &str, more: &str) -> String {
    format!(
        "model: dnn\nrunner:\n  train_data_dir: data\n  train_batch_size: 10\n  \
         data_format: {format}\n{more}\n{SMALL_HYPER}"
    )
}

#[test]
fn written_files_read_back() {
    let url = "synthetic://ctr?slots=4&vocab=50&dense=3&examples=100";
    let mut losses = Vec::new();
    for format in ["multislot", "criteo"] {
        let s = Scratch::new();
        s.run(&["data", "synth", url, "--out", "data", "--files", "3", "--format", format]).ok();
        assert_eq!(s.list("data").len(), 3);
        s.write("c.yaml", &config(format, ""));
        let out = s.run(&["train", "-m", "c.yaml"]).ok();
        let done = out.lines().find(|l| l.contains(" done, ")).unwrap();
        losses.push(done.split("cost: ").nth(1).unwrap()[..8].to_string());
    }
    assert_eq!(losses[0], losses[1]);
}

#[test]
fn tables_need_features() {
    let s = Scratch::new();
    s.write("data/a.csv", "label,a\n1,x\n");
    for format in ["csv", "tsv", "parquet"] {
        s.write("c.yaml", &config(format, ""));
        let said = format!("{format} data need the section `features`");
        s.run(&["train", "-m", "c.yaml"]).fails(2, &[&said]);
    }
}

#[test]
fn original_criteo_lines() {
    let s = Scratch::new();
    let line = |label: u32| {
        let ints: Vec<String> = (0..13).map(|i| i.to_string()).collect();
        let cats: Vec<String> = (0..26).map(|i| format!("{:08x}", i * 77 + label)).collect();
        format!("{label}\t{}\t{}\n", ints.join("\t"), cats.join("\t"))
    };
    s.write("data/day_0", &format!("{}{}", line(0), line(1)).repeat(5));
    let text = "model: dnn
runner:
  train_data_dir: data
  train_batch_size: 5
  data_format: criteo_raw
  dense_transform: log
hyper_parameters:
  sparse_feature_number: 1000
  fc_sizes: [8]
";
    s.write("c.yaml", text);
    let out = s.run(&["train", "-m", "c.yaml"]).ok();
    assert!(out.contains("examples: 10,"), "{out}");
}

#[test]
fn sources_that_do_not_fit_the_model() {
    let s = Scratch::new();
    let text = config("multislot", "")
        .replace("train_data_dir: data", "train_data_dir: \"synthetic://ctr?slots=3&dense=3\"");
    s.write("c.yaml", &text);
    s.run(&["train", "-m", "c.yaml"]).fails(2, &["runner.train_data_dir", "slot '4'"]);
    let bad = ["train", "-m", "c.yaml", "-o", "runner.train_data_dir=synthetic://crt"];
    s.run(&bad).fails(2, &["did you mean 'ctr'"]);
    s.write(
        "c.yaml",
        &config("multislot", "  train_reader_path: dinReader")
            .replace("  data_format: multislot\n", ""),
    );
    s.run(&["train", "-m", "c.yaml"]).fails(2, &["dinReader", "runner.data_format"]);
}
