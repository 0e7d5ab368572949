//! The keys `runner.validation.*`: data that epochs are judged by while training.

use regatta_train::Validation;

use super::Reading;
use super::resolver::Resolver;
use crate::zoo::{Evaluation, Model};

fn key(name: &str) -> String {
    format!("runner.validation.{name}")
}

/// How validation data are read, as test data are, and what they decide.
pub(super) fn resolve_validation(
    r: &mut Resolver,
    model: &Model,
    test: &Reading,
) -> Option<(Reading, Validation)> {
    let data = r.text(&key("data_dir"));
    let metric = r.text(&key("metric"));
    let patience = r.int(&key("patience"));
    if data.is_none() {
        let names = ["metric", "patience"];
        names.iter().for_each(|name| r.unused(&key(name), "runner.validation.data_dir is not set"));
        return None;
    }
    if model.evaluation == Evaluation::Analogy {
        let reason = format!("model {} is judged by questions: use `regatta infer`", model.name);
        r.problem(&key("data_dir"), reason);
    }
    let data_key = "runner.validation.data_dir";
    let reading = Reading { data_key, data, ..test.clone() };
    Some((reading, Validation { metric, patience }))
}
