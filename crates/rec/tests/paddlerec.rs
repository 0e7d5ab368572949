//! PaddleRec's own configuration files with its sample data: every one trains and is evaluated, or
//! says which key cannot be honoured. The files are in the folder that `PADDLEREC` names.

use std::path::{Path, PathBuf};

use regatta_rec::{Config, Place, infer, train_as, zoo};
use regatta_train::observe::Event;

/// Files that ask for something that is not there, with one of the keys that say so.
const REFUSED: &[(&str, &str)] = &[
    ("match/dssm/config_online.yaml", "runner.days"),
    ("rank/dnn/benchmark_gpubox.yaml", "runner.use_gpu"),
    ("rank/dnn/config_gpubox.yaml", "runner.use_gpu"),
    ("rank/dnn/online.yaml", "runner.days"),
    ("rank/slot_dnn/config_offline_infer.yaml", "runner.data_dir"),
    ("rank/slot_dnn/config_online.yaml", "runner.save_delta_frequency"),
    ("rank/slot_dnn/config_queuedataset.yaml", "runner.save_inference_feed_varnames"),
    ("rank/slot_dnn/config_queuedataset_for_concat.yaml", "runner.save_inference_feed_varnames"),
    ("rank/wide_deep/benchmark_dump.yaml", "runner.need_dump"),
    ("rank/wide_deep/config_gpups.yaml", "runner.use_gpu"),
    ("recall/ncf/config_fl.yaml", "runner.need_dump"),
];

/// Copies files but scripts: what readers do is built in.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else if path.extension().is_none_or(|e| e != "py") {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// Where the data of the other files are, in each folder.
fn sample(folder: &Path, text: &str) -> Option<[PathBuf; 2]> {
    if text.contains("benchmark_reader") && !text.contains("data/sample_data/train\"") {
        return Some([folder.join("raw"), folder.join("raw")]);
    }
    let main = Config::load(folder.join("config.yaml"), &[]).ok()?.runner;
    Some([main.train.data?.into(), main.test.data?.into()])
}

/// Twenty lines of the raw Criteo log, with every third field empty.
fn write_raw(folder: &Path) {
    std::fs::create_dir_all(folder.join("raw")).unwrap();
    let line = |i: usize| {
        let field = |c: usize| match (c, (i + c) % 3) {
            (0, _) => (i % 2).to_string(),
            (_, 0) => String::new(),
            (1..14, _) => (i * c).to_string(),
            _ => format!("{:08x}", i * 31 + c),
        };
        (0..40).map(field).collect::<Vec<_>>().join("\t")
    };
    let lines: Vec<String> = (0..20).map(line).collect();
    std::fs::write(folder.join("raw/part-0"), lines.join("\n")).unwrap();
}

/// Tables that are made in no time, and what belongs to the sample data.
fn smaller(folder: &Path, text: &str) -> Vec<String> {
    let mut over = Vec::new();
    if folder.ends_with("dssm") {
        over.push("hyper_parameters.trigram_d=2900".to_string());
    }
    if folder.ends_with("word2vec") {
        for name in ["word_count_dict", "word_id_dict"] {
            over.push(format!("runner.{name}_path=data/dict/{name}.txt"));
        }
    }
    if text.contains("sparse_feature_number") && !folder.ends_with("word2vec") {
        over.push("hyper_parameters.sparse_feature_number=1024".to_string());
        over.push("hyper_parameters.hash_ids=True".to_string());
    }
    over
}

/// Trains an epoch of a file, and evaluates it.
fn try_file(file: &Path) -> Result<(), String> {
    let folder = file.parent().unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let mut over: Vec<String> = [
        "runner.epochs=1",
        "runner.infer_start_epoch=0",
        "runner.infer_end_epoch=1",
        "runner.thread_num=1",
        "runner.model_save_path=saved",
        "runner.infer_load_path=saved",
        "runner.model_init_path=",
    ]
    .map(str::to_string)
    .to_vec();
    if let Some([train, test]) = sample(folder, &text) {
        over.push(format!("runner.train_data_dir={}", train.display()));
        over.push(format!("runner.test_data_dir={}", test.display()));
    }
    over.extend(smaller(folder, &text));
    let config = Config::load(file, &over).map_err(|e| e.to_string())?;
    let trained =
        train_as(&config, Place::Alone, &mut |_: &Event<'_>| {}).map_err(|e| e.to_string())?;
    let loss = trained.report.epochs[0].loss;
    assert!(loss.is_some_and(f64::is_finite), "{}: {loss:?}", file.display());
    let judged = infer(&config, &mut |_: &Event<'_>| {}).map_err(|e| e.to_string())?;
    assert!(judged.epochs[0].examples > 0, "{}", file.display());
    std::fs::remove_dir_all(folder.join("saved")).map_err(|e| e.to_string())
}

#[expect(clippy::disallowed_methods, reason = "it says where a test finds files, no role")]
fn root() -> Option<PathBuf> {
    std::env::var_os("PADDLEREC").map(PathBuf::from)
}

#[test]
fn every_file_trains_or_names_a_key() {
    let Some(root) = root() else {
        eprintln!("skipped: set PADDLEREC to a folder with PaddleRec's models");
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let (mut trained, mut refused) = (Vec::new(), Vec::new());
    for model in zoo::all() {
        let name = format!("{}/{}", model.group, model.name);
        let folder = scratch.path().join(&name);
        copy(&root.join("models").join(&name), &folder);
        write_raw(&folder);
        let entries = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
        let mut files: Vec<PathBuf> =
            entries.filter(|p| p.extension().is_some_and(|e| e == "yaml")).collect();
        files.sort();
        for file in files {
            let path = format!("{name}/{}", file.file_name().unwrap().to_string_lossy());
            let key = REFUSED.iter().find(|(file, _)| *file == path).map(|(_, key)| *key);
            match (try_file(&file), key) {
                (Ok(()), None) => trained.push(path),
                (Err(e), Some(key)) if e.contains(&format!("{key}:")) => refused.push(path),
                (Err(e), key) => panic!("{path}: {e} (expected: {key:?})"),
                (Ok(()), Some(key)) => panic!("{path}: {key} was honoured"),
            }
        }
    }
    assert_eq!((trained.len(), refused.len()), (37, 11), "{trained:#?}");
}
