//! What a configuration's features need from training data: known from a model or a checkpoint, or
//! learned in one pass over the data.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use regatta_checkpoint::{Checkpoint, CheckpointDir, Resume, load_about};
use regatta_features::{Learned, LearnedFeature, Learner};
use regatta_train::observe::{Event, Observer};
use serde_json::Value;

use crate::config::LEARNED;
use crate::data::visit_rows;
use crate::run::Place;
use crate::{Config, Error, ModelSource};

/// The configuration of a training with everything that its features need: what the checkpoint that
/// it resumes from or the model that it begins with knows, or what the training data say.
///
/// # Errors
/// If data or a model cannot be read, or if one of several processes would have to learn for all.
pub fn with_learned(
    config: &Config,
    place: &Place<'_>,
    observer: &mut dyn Observer,
) -> Result<Config, Error> {
    let Some(set) = &config.features else { return Ok(config.clone()) };
    if !set.features.are_learned() {
        return Ok(config.clone());
    }
    if let Some((path, saved)) = known(config)? {
        return adopt(config, &path, saved);
    }
    if set.is_learned() {
        return Ok(config.clone());
    }
    if place.index().1 > 1 {
        let e = set.learned.check(&set.features).err();
        let what = e.map(|e| e.to_string()).unwrap_or_default();
        let reason = format!(
            "{what}. Several processes must know the same: run `regatta features -m {} --learn \
             FILE` once, and give all of them -o runner.features_learned=FILE",
            config.path.display()
        );
        return Err(Error::key("features", reason));
    }
    learn(config, observer)
}

/// Learns from the training data, whatever is known already.
///
/// # Errors
/// If they cannot be read, or hold no value of a feature.
pub fn learn(config: &Config, observer: &mut dyn Observer) -> Result<Config, Error> {
    let Some(set) = &config.features else { return Ok(config.clone()) };
    let names: Vec<&str> = set
        .features
        .all()
        .iter()
        .filter(|f| f.kind.is_learned())
        .map(|f| f.name.as_str())
        .collect();
    if names.is_empty() {
        return Ok(config.clone());
    }
    if config.runner.arrivals.is_some() {
        let reason = format!(
            "{} must be learned before training, and the data are still to come: learn from older \
             data (`regatta features -m CONFIG -o runner.train_data_dir=DIR --learn FILE`) and set \
             runner.features_learned",
            names.join(", ")
        );
        return Err(Error::key("features", reason));
    }
    let text = format!("learning {} from the training data", names.join(", "));
    observer.event(&Event::Note(&text));
    let learner = Learner::new(&set.features);
    let columns = learner.columns().to_vec();
    let learner = Arc::new(Mutex::new(Some(learner)));
    let visitor = learner.clone();
    let visit = Arc::new(Mutex::new(move |row: &[regatta_features::Value<'_>]| {
        if let Some(learner) = &mut *visitor.lock().unwrap_or_else(PoisonError::into_inner) {
            learner.observe(row);
        }
    }));
    visit_rows(config, &config.runner.train, columns, visit)?;
    let learner = learner.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut learned = learner.map(Learner::finish).transpose()?.unwrap_or_default();
    for (name, found) in &learned.features {
        let text = format!("feature {name}: {}", describe(found));
        observer.event(&Event::Note(&text));
    }
    // Vocabularies of files stay.
    for (name, found) in &set.learned.features {
        learned.features.entry(name.clone()).or_insert_with(|| found.clone());
    }
    Ok(config.with_learned(learned))
}

fn describe(found: &LearnedFeature) -> String {
    match found {
        LearnedFeature::Words(words) => format!("a vocabulary of {}", words.len()),
        LearnedFeature::Bounds(bounds) => format!("{} intervals", bounds.len() + 1),
        LearnedFeature::Moments { mean, std } => {
            format!("mean {mean:.6}, standard deviation {std:.6}")
        }
    }
}

/// The configuration with what a saved model knows about its features.
///
/// # Errors
/// If the model was trained with another vocabulary than that of the configuration's file.
pub fn with_saved(config: &Config, folder: &Path) -> Result<Config, Error> {
    if config.features.is_none() {
        return Ok(config.clone());
    }
    match load_about(folder)?.and_then(|about| learned_of(&about.config)) {
        Some(saved) => adopt(config, &folder.display().to_string(), saved),
        None => Ok(config.clone()),
    }
}

/// What is known of the features from what the training continues; with its place.
fn known(config: &Config) -> Result<Option<(String, Learned)>, Error> {
    if let Some(wanted) = &config.runner.checkpoint {
        let path = match &wanted.resume {
            Resume::None => None,
            Resume::Path(path) => Some(path.clone()),
            Resume::Auto | Resume::Latest => {
                let newest = CheckpointDir::open(&wanted.config.dir).newest_complete()?;
                newest.map(|newest| newest.path)
            }
        };
        if let Some(path) = path.filter(|path| path.is_dir()) {
            let checkpoint = Checkpoint::open(&path)?;
            if let Some(saved) = learned_of(&checkpoint.manifest().config) {
                return Ok(Some((path.display().to_string(), saved)));
            }
        }
    }
    let runner = &config.runner;
    let initial = runner.distributed.warmup_model_path.as_ref().or(runner.model_init_path.as_ref());
    let Some(path) = initial.filter(|path| path.is_dir()) else { return Ok(None) };
    let saved = match ModelSource::open(path)? {
        ModelSource::Checkpoint(checkpoint) => learned_of(&checkpoint.manifest().config),
        ModelSource::Epoch(_, about) | ModelSource::Parts(_, _, about) => {
            about.and_then(|about| learned_of(&about.config))
        }
    };
    Ok(saved.map(|saved| (path.display().to_string(), saved)))
}

fn learned_of(config: &Value) -> Option<Learned> {
    serde_json::from_value(config.get(LEARNED)?.clone()).ok()
}

fn adopt(config: &Config, path: &str, saved: Learned) -> Result<Config, Error> {
    let Some(set) = &config.features else { return Ok(config.clone()) };
    let is_other = |(name, own): &(&String, &LearnedFeature)| {
        let is_learned = set.features.find(name).is_some_and(|f| f.kind.is_learned());
        !is_learned && saved.features.get(*name).is_some_and(|known| known != *own)
    };
    if let Some((name, _)) = set.learned.features.iter().find(is_other) {
        let reason = format!("is not the one that {path} was trained with");
        return Err(Error::key(format!("features.{name}.vocabulary"), reason));
    }
    let changed = config.with_learned(saved);
    if let Some(set) = &changed.features {
        set.learned.check(&set.features)?;
    }
    Ok(changed)
}
