//! The configurations under `models/`: one for each model, on data that fit to it.

use std::path::PathBuf;

use regatta_data::Synthetic;
use regatta_rec::Config;
use regatta_rec::zoo;

use crate::evaluate::evaluate;
use crate::train::{Trainer, for_each_batch};

fn load(path: &str) -> Config {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
    Config::load(models.join(path), &[]).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The configuration of every model, with the URLs of its training and test data.
fn each(f: impl Fn(&Config, &str, &str)) {
    for model in zoo::all() {
        let config = load(&format!("{}/{}/config.yaml", model.group, model.name));
        assert_eq!(config.model.name, model.name);
        let (train, test) = (&config.runner.train.data, &config.runner.test.data);
        f(&config, train.as_ref().unwrap(), test.as_ref().unwrap());
    }
}

#[test]
fn configs_fit_to_their_data_and_take_some_steps() {
    each(|config, train, test| {
        let name = config.model.name;
        let schema = config.model.schema_of(&config.hyper).unwrap();
        for url in [train, test] {
            assert_eq!(Synthetic::parse(url).unwrap().schema(), schema, "{name}");
        }
        let mut trainer =
            Trainer::of_model(config.model, &config.hyper, config.optimizer.clone(), 1);
        let few = format!("{train}&examples=400");
        for_each_batch(&few, 200, 0, |batch| assert!(trainer.step(batch).is_finite(), "{name}"));
    });
}

/// Takes a minute: `cargo test -p regatta-rec --test zoo configs -- --ignored --nocapture`.
#[test]
#[ignore = "trains every configuration to the end"]
fn configs_reach_more_than_chance() {
    each(|config, train, test| {
        let begin = std::time::Instant::now();
        let mut trainer =
            Trainer::of_model(config.model, &config.hyper, config.optimizer.clone(), 1);
        let mut losses = Vec::new();
        for epoch in 0..config.runner.epochs {
            for_each_batch(train, config.runner.train.batch_size.unwrap(), epoch, |batch| {
                losses.push(trainer.step(batch));
            });
        }
        let metrics = evaluate(config.model, test, &mut trainer);
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        let seconds = begin.elapsed().as_secs_f64();
        println!("{}: {first:.3} -> {last:.3}, {metrics:.4?}, {seconds:.1} s", config.model.name);
        assert!(metrics.iter().all(|(_, value)| *value > 0.6), "{metrics:?}");
    });
}

#[test]
fn paddlerecs_own_files_are_read() {
    for (path, data) in [
        ("rank/dnn/config_sample.yaml", "models/rank/dnn/data/sample_data/train"),
        ("recall/word2vec/config_sample.yaml", "models/recall/word2vec/data/train"),
    ] {
        let train = load(path).runner.train.data.unwrap();
        assert!(train.ends_with(data), "{train}");
        assert!(PathBuf::from(train).is_dir());
    }
}
