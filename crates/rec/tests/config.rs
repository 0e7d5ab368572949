//! Configurations: PaddleRec's files, kinds of values, and text that makes no sense.

use std::path::{Path, PathBuf};

use regatta_optim::{Rule, Schedule};
use regatta_rec::config::{FormatSpec, Reader, Source};
use regatta_rec::{Config, HyperValue};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

fn load(text: &str, overrides: &[&str]) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    std::fs::write(&path, text).unwrap();
    let overrides: Vec<String> = overrides.iter().map(|o| o.to_string()).collect();
    let shown = path.display().to_string();
    Config::load(&path, &overrides).map_err(|e| e.to_string().replace(&shown, "c.yaml"))
}

#[test]
fn paddle_dnn() {
    let config = Config::load(models().join("rank/dnn/config_sample.yaml"), &[]).unwrap();
    assert_eq!(config.model.name, "dnn");
    let runner = &config.runner;
    assert_eq!((runner.epochs, runner.seed, runner.print_interval), (3, 12345, 2));
    assert_eq!(runner.train.format, Some(FormatSpec::Criteo));
    assert_eq!(runner.train.reader, Reader::Loader { shuffle_buffer: 0 });
    assert!(runner.train.drop_last && !runner.test.drop_last && runner.use_auc);
    assert_eq!(runner.infer_epochs, 0..3);
    assert_eq!(runner.distributed.sync_mode.as_deref(), Some("async"));
    assert!(matches!(config.optimizer.rule, Rule::Adam(_)));
    assert_eq!(config.optimizer.learning_rate, 0.001);
    let ignored: Vec<&str> = config.ignored.iter().map(|i| i.key.as_str()).collect();
    assert!(ignored.contains(&"runner.use_gpu") && ignored.contains(&"runner.num_workers"));
    let dir = PathBuf::from(runner.train.data.as_deref().unwrap());
    assert!(dir.is_absolute() && dir.ends_with("rank/dnn/data/sample_data/train"));
}

#[test]
fn paddle_word2vec() {
    let config = Config::load(models().join("recall/word2vec/config_sample.yaml"), &[]).unwrap();
    assert!(matches!(config.runner.train.format, Some(FormatSpec::Word2vec { negatives: 5, .. })));
    assert!(matches!(config.runner.test.format, Some(FormatSpec::Analogy { .. })));
    assert!(matches!(config.optimizer.rule, Rule::Sgd(_)));
    let schedule =
        Schedule::Exponential { decay_steps: 100_000, decay_rate: 0.999, staircase: true };
    assert_eq!(config.optimizer.schedule, schedule);
}

#[test]
fn all_configurations_of_the_zoo_load() {
    let mut n = 0;
    for group in std::fs::read_dir(models()).unwrap() {
        for model in std::fs::read_dir(group.unwrap().path()).unwrap() {
            let folder = model.unwrap().path();
            let config = Config::load(folder.join("config.yaml"), &[]).unwrap();
            assert_eq!(config.model.name, folder.file_name().unwrap().to_str().unwrap());
            n += 1;
        }
    }
    assert!(n >= 16, "{n}");
}

#[test]
fn sources_and_workspace() {
    let text = "model: dnn\nworkspace: work\nrunner:\n  train_data_dir: \"{workspace}/data\"\n";
    let config = load(text, &["runner.epochs=4", "runner.epochs=5"]).unwrap();
    let source = |key: &str| &config.settings.iter().find(|s| s.key == key).unwrap().source;
    assert_eq!(*source("runner.epochs"), Source::Override);
    assert!(matches!(source("runner.train_data_dir"), Source::File { line: 4, .. }));
    assert_eq!(*source("runner.seed"), Source::Default);
    assert_eq!(config.runner.epochs, 5);
    let data = config.runner.train.data.as_deref().unwrap();
    assert!(data.ends_with("work/data"), "{data}");
    assert_eq!(config.get("runner.seed"), Some(&HyperValue::Int(12345)));
}

#[test]
fn sections_without_meaning_are_listed_once() {
    let text = "model: dnn\ntable_parameters:\n  a:\n    b: 1\n  c: 2\n";
    let config = load(text, &[]).unwrap();
    let ignored: Vec<&str> = config.ignored.iter().map(|i| i.key.as_str()).collect();
    assert_eq!(ignored, ["table_parameters"]);
}

#[test]
fn keys_of_other_modes_are_listed() {
    let keys = ["runner.geo_step=3", "runner.staleness=2", "runner.pull_ahead=1"];
    let ignored = |mode: &str| {
        let mode = format!("runner.sync_mode={mode}");
        let given: Vec<&str> = keys.into_iter().chain([mode.as_str()]).collect();
        let config = load("model: dnn\n", &given).unwrap();
        config.ignored.iter().map(|i| i.key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ignored("async"), ["runner.geo_step", "runner.staleness"]);
    assert_eq!(ignored("geo"), ["runner.staleness", "runner.pull_ahead"]);
    assert_eq!(ignored("bounded"), ["runner.geo_step", "runner.pull_ahead"]);
    let all = ["runner.geo_step", "runner.staleness", "runner.pull_ahead"];
    assert_eq!(
        (ignored("sync"), ignored("half_async")),
        (all.map(String::from).to_vec(), all.map(String::from).to_vec())
    );
    // Without a mode there may be no servers, and nothing to say.
    assert!(load("model: dnn\n", &keys).unwrap().ignored.is_empty());
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = "model: dnn\nrunner:\n  epochs: none\n  use_gpu: True\n  nonsense: 1\n";
    let message = load(text, &[]).err().unwrap();
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 3, "{message}");
    assert!(lines[0].starts_with("c.yaml:3: runner.epochs: should be an integer"), "{message}");
    assert!(lines[1].starts_with("c.yaml:4: runner.use_gpu: True cannot"), "{message}");
    assert_eq!(lines[2], "c.yaml:5: unknown key 'runner.nonsense'");
}

#[test]
fn an_empty_override_takes_a_value_back() {
    let text = "model: dnn\nrunner:\n  epochs: 3\n  model_init_path: old\n";
    let config = load(text, &["runner.epochs=", "runner.model_init_path="]).unwrap();
    assert_eq!((config.runner.epochs, config.runner.model_init_path), (1, None));
    assert!(load(text, &["runner.epoch="]).is_err());
}

#[test]
fn suggestions() {
    let hint = |key: &str| {
        let message = load("model: dnn\n", &[&format!("{key}=1")]).err().unwrap();
        message.split("did you mean '").nth(1).map(|m| m.trim_end_matches("'?").to_string())
    };
    assert_eq!(hint("runner.epoch").as_deref(), Some("runner.epochs"));
    assert_eq!(hint("epochs").as_deref(), Some("runner.epochs"));
    assert_eq!(hint("runner.fc_sizes").as_deref(), Some("hyper_parameters.fc_sizes"));
    assert_eq!(hint("runer.seed").as_deref(), Some("runner.seed"));
    let rate = "hyper_parameters.optimizer.learning_rate";
    assert_eq!(hint("hyper_parameters.optimizer.leraning_rate").as_deref(), Some(rate));
    assert_eq!(hint("hyper_parameters.learning_rate").as_deref(), Some(rate));
    assert_eq!(hint("runner.nonsense"), None);
}

/// Cuts, doubles and changes the text of a file in many ways: there may be errors, never panics.
#[test]
fn rubbish_does_no_harm() {
    let text = std::fs::read(models().join("rank/dnn/config_sample.yaml")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    let mut rng = regatta_data::Rng::new(11, &[]);
    let mut loaded = 0;
    for _ in 0..500 {
        let mut bytes = text.clone();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            let alphabet = b"\n :-[]{}&*'\"#x0\t\xff";
            match rng.below(4) {
                0 => bytes[at] = alphabet[rng.below(alphabet.len() as u64) as usize],
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, alphabet[rng.below(alphabet.len() as u64) as usize]),
                _ => {
                    let end = (at + rng.below(40) as usize).min(bytes.len());
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        loaded += usize::from(Config::load(&path, &["model=dnn".to_string()]).is_ok());
    }
    assert!(loaded > 10, "{loaded} of 500 files made sense");
}
