//! PaddleRec's reader modules by name: the formats of their files, and what they say of the model.

use std::path::Path;

use super::resolver::Resolver;
use crate::HyperValue;
use crate::zoo::Model;

/// Keys of PaddleRec's files that are written in two ways: the other one, and that of the list.
pub(super) const ALIASES: &[(&str, &str)] = &[
    (
        "hyper_parameters.optimizer.learning_rate_base_lr",
        "hyper_parameters.optimizer.learning_rate",
    ),
    ("hyper_parameters.latent_dim", "hyper_parameters.mf_dim"),
];

/// The format behind a reader module of PaddleRec, in the folder of a model.
pub(super) fn format_of_reader(model: &str, module: &str) -> Option<&'static str> {
    // `models.rank.dnn.criteo_reader` and `models/rank/dnn/criteo_reader` are the same module.
    let name = module.rsplit(['.', '/']).next().unwrap_or(module);
    match (name, model) {
        ("criteo_reader" | "queuedataset_reader", "slot_dnn") => Some("slot_ids"),
        ("criteo_reader", _) => Some("criteo"),
        ("queuedataset_reader", _) => Some("multislot"),
        ("word2vec_reader" | "word2vec_infer_reader", _) => Some("word2vec"),
        ("benchmark_reader", _) => Some("criteo_raw"),
        ("reader", "dcn") => Some("criteo"),
        ("reader", "dcn_v2") => Some("criteo_log"),
        ("esmm_reader", "esmm") => Some("esmm"),
        ("census_reader", "mmoe") => Some("census"),
        ("dinReader", "din") => Some("din"),
        ("criteo_lr_reader", "logistic_regression") => Some("ids_values"),
        ("movielens_reader", "ncf") => Some("movielens"),
        ("bq_reader_train", "dssm") => Some("vectors"),
        ("bq_reader_infer", "dssm") => Some("vector_pairs"),
        _ => None,
    }
}

/// The format of files that go through one of PaddleRec's scripts (`python benchmark_reader.py`),
/// if that script is not in the folder: it is built in. A script that is there is run.
pub(super) fn format_of_command(model: &str, command: &str, dir: &Path) -> Option<&'static str> {
    let mut words = command.split_whitespace();
    let program = words.next()?.rsplit('/').next()?;
    let script = words.next()?;
    if !program.starts_with("python") || dir.join(script).exists() {
        return None;
    }
    let name = script.rsplit('/').next()?.strip_suffix(".py")?;
    match (name, model) {
        ("queuedataset_reader", "dnn" | "wide_deep" | "deepfm") => Some("criteo"),
        ("queuedataset_reader", "ncf") => Some("movielens"),
        ("queuedataset_reader", "slot_dnn") => Some("slot_ids"),
        ("benchmark_reader", _) => Some("criteo_raw"),
        _ => None,
    }
}

/// Hyper-parameters that follow from the reader of the training data unless they are written:
/// PaddleRec has the form of the inputs in the reader's code.
pub(super) fn implied(r: &Resolver, model: &Model) -> Vec<(&'static str, HyperValue)> {
    let yes = HyperValue::Bool(true);
    let reader = r.peek("runner.train_reader_path");
    let format = reader.and_then(|module| format_of_reader(model.name, &module));
    let command = r.peek("runner.pipe_command");
    let command = command.and_then(|text| format_of_command(model.name, &text, &r.dir));
    match (format, command) {
        (Some("vectors"), _) => vec![("counts", yes)],
        (Some("ids_values"), _) => vec![("feature_values", yes)],
        // Ids of 64 bits, which PaddleRec's servers take as they are.
        (_, Some("slot_ids")) => vec![("hash_ids", yes)],
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_modules() {
        assert_eq!(format_of_reader("dnn", "criteo_reader"), Some("criteo"));
        assert_eq!(format_of_reader("dnn", "models.rank.dnn.criteo_reader"), Some("criteo"));
        assert_eq!(format_of_reader("dcn", "reader"), Some("criteo"));
        assert_eq!(format_of_reader("dcn_v2", "reader"), Some("criteo_log"));
        assert_eq!(format_of_reader("dnn", "reader"), None);
        assert_eq!(format_of_reader("din", "dinReader"), Some("din"));
    }

    #[test]
    fn scripts_that_are_not_there() {
        let format = |model: &str, command: &str| {
            format_of_command(model, command, Path::new(env!("CARGO_MANIFEST_DIR")))
        };
        assert_eq!(format("dnn", "python3.7 queuedataset_reader.py"), Some("criteo"));
        assert_eq!(format("ncf", "python queuedataset_reader.py config.yaml"), Some("movielens"));
        assert_eq!(format("dnn", "python models/rank/dnn/benchmark_reader.py"), Some("criteo_raw"));
        assert_eq!(format("dnn", "python my_reader.py"), None);
        assert_eq!(format("dnn", "sh queuedataset_reader.py"), None);
        assert_eq!(format("dnn", "cat"), None);
        assert_eq!(format("dnn", "python src/lib.rs"), None);
    }
}
