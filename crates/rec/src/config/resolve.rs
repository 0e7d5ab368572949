//! From what was written to a [`Config`]: section by section, collecting every mistake.

use std::path::Path;
use std::sync::Arc;

use regatta_features::Learned;

use super::arrivals::resolve_arrivals;
use super::checkpoints::resolve_checkpoint;
use super::distributed::resolve_distributed;
use super::features::{FeatureSet, resolve_features};
use super::formats::Formats;
use super::grouping::resolve_grouping;
use super::optimizer::resolve_optimizer;
use super::paddle_readers::implied;
use super::precision::{resolve_amp, resolve_recompute};
use super::reading::{test_reading, train_reading};
use super::resolver::Resolver;
use super::validation::resolve_validation;
use super::value::Kind;
use super::written::{Source, Written};
use super::{Config, EPOCHS, InferenceExport, Runner, Setting};
use crate::hyper::HyperDefault;
use crate::zoo::fields::INPUT_KEYS;
use crate::zoo::{self, Model};
use crate::{Error, Hyper, HyperKey, HyperValue};

pub(super) fn resolve(path: &Path, written: Written, known: &Learned) -> Result<Config, Error> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = folder.canonicalize().map_err(|e| {
        Error::Config(vec![format!("cannot find the folder of {}: {e}", path.display())])
    })?;
    let mut r = Resolver::new(dir.clone(), written);
    let model = resolve_model(&mut r, &dir)?;
    let features = resolve_features(&mut r, known);
    let hyper = resolve_hyper(&mut r, model, features.clone());
    let mut optimizer = resolve_optimizer(&mut r, model.optimizer);
    let mut runner = resolve_runner(&mut r, model, &hyper);
    if model.keys.iter().any(|key| key.name == "reg") {
        // The model says which of its parameters it is for.
        optimizer.regularizer = None;
    }
    optimizer.amp = resolve_amp(&mut r);
    (optimizer.recompute, runner.offload_dir) = resolve_recompute(&mut r);
    r.pass_over_the_rest(model);
    if !r.problems.is_empty() {
        return Err(Error::Config(r.problems));
    }
    let (settings, ignored) = (r.settings, r.ignored);
    let path = path.to_path_buf();
    Ok(Config { path, dir, model, hyper, features, optimizer, runner, settings, ignored })
}

/// The model by its key, or by the name of the file's folder.
fn resolve_model(r: &mut Resolver, dir: &Path) -> Result<&'static Model, Error> {
    let name = match r.text("model") {
        Some(name) => name,
        None => {
            let folder = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (key, value) = ("model".to_string(), HyperValue::Str(folder.clone()));
            r.settings.push(Setting { key, value, source: Source::Derived("name of the folder") });
            folder
        }
    };
    zoo::find(&name).ok_or_else(|| {
        let known: Vec<&str> = zoo::all().iter().map(|m| m.name).collect();
        let hint = match regatta_ir::nearest(&name, known.iter().copied()) {
            Some(near) => format!("; did you mean '{near}'?"),
            None => format!("; set model: to one of {}", known.join(", ")),
        };
        r.problem("model", format!("there is no model '{name}'{hint}"));
        Error::Config(std::mem::take(&mut r.problems))
    })
}

fn resolve_hyper(r: &mut Resolver, model: &Model, features: Option<Arc<FeatureSet>>) -> Hyper {
    let mut hyper = Hyper::defaults(model.keys).with_features(features);
    let implied = implied(r, model);
    for HyperKey { name, default, max, .. } in model.keys {
        let kind = match default {
            HyperDefault::Int(_) => Kind::Int(0, *max),
            HyperDefault::Float(_) => Kind::Float,
            HyperDefault::Bool(_) => Kind::Bool,
            HyperDefault::Str(_) => Kind::Text,
            HyperDefault::Ints(_) => Kind::Ints(0, *max),
            HyperDefault::Strs(_) => Kind::Texts,
        };
        let key = format!("hyper_parameters.{name}");
        if r.has(&key) {
            if let Some(value) = r.field(&key, kind, None)
                && let Err(e) = hyper.set(name, value)
            {
                r.problem(&key, e.to_string());
            }
        } else if let Some((_, value)) = implied.iter().find(|(key, _)| key == name) {
            hyper.set(name, value.clone()).expect("a reader implies values of the key's type");
            r.derive_value(&key, value.clone());
        } else {
            r.derive_value(&key, (*default).into());
        }
    }
    if hyper.features().is_some() {
        for name in INPUT_KEYS {
            let reason = "the section features says what the inputs are";
            r.unused(&format!("hyper_parameters.{name}"), reason);
        }
    }
    if let Err(e) = model.schema_of(&hyper) {
        r.problems.push(e.to_string());
    }
    hyper
}

fn resolve_runner(r: &mut Resolver, model: &Model, hyper: &Hyper) -> Runner {
    let epochs = r.int("runner.epochs").unwrap_or_default();
    let thread_num = r.int("runner.thread_num").unwrap_or_default() as usize;
    let seed = r.int("runner.seed").unwrap_or_default();
    let formats = Formats::take(r, model.name, hyper);
    let mut train = train_reading(r, &formats, thread_num, seed);
    let test = test_reading(r, &formats, model, &train);
    let validation = resolve_validation(r, model, &test);
    let arrivals = resolve_arrivals(r, &mut train);
    if let Some(dir) =
        r.peek("runner.run_dir").filter(|dir| regatta_data::is_remote(Path::new(dir)))
    {
        let reason =
            format!("{dir}: the folder of a run is on this machine; checkpoints may go there");
        r.problem("runner.run_dir", reason);
    }
    let run_dir = r.path("runner.run_dir");
    let model_save_path = r.path_in_run("runner.model_save_path", run_dir.as_deref(), EPOCHS);
    let load = r.path("runner.infer_load_path");
    let start = r.int("runner.infer_start_epoch").unwrap_or_default();
    let end = r.int("runner.infer_end_epoch").unwrap_or(epochs);
    if end <= start {
        let reason = format!("epochs {start} to {end} (exclusive) are none");
        r.problem("runner.infer_end_epoch", reason);
    }
    let gpu_warning = resolve_use_gpu(r);
    let distributed = resolve_distributed(r);
    let runner = Runner {
        gpu_warning,
        train,
        arrivals,
        test,
        epochs,
        seed,
        thread_num,
        use_auc: r.bool("runner.use_auc").unwrap_or_default(),
        print_interval: r.int("runner.print_interval").unwrap_or_default(),
        dataset_debug: r.bool("runner.dataset_debug").unwrap_or_default(),
        check_nan_inf: r.bool("runner.check_nan_inf").unwrap_or_default(),
        allow_non_finite_loss: r.bool("runner.allow_non_finite_loss").unwrap_or_default(),
        check_memory: r.bool("runner.check_memory").unwrap_or_default(),
        offload_dir: None,
        infer_load_path: load.or_else(|| model_save_path.clone()),
        checkpoint: resolve_checkpoint(r, run_dir.as_deref()),
        run_dir,
        model_save_path,
        model_init_path: r.path("runner.model_init_path"),
        init_var_names: r.texts("runner.init_var_names"),
        inference: resolve_inference(r),
        infer_epochs: start..end,
        grouping: resolve_grouping(r, model, hyper),
        validation,
        distributed,
    };
    let has_no_model =
        runner.model_init_path.is_none() && runner.distributed.warmup_model_path.is_none();
    if runner.init_var_names.is_some() && has_no_model {
        let reason = "needs runner.model_init_path or runner.warmup_model_path".to_string();
        r.problem("runner.init_var_names", reason);
    }
    runner
}

/// Outside of gpubox, `use_gpu` computes on the CPU, with a warning; if that will not do, it is a
/// mistake.
fn resolve_use_gpu(r: &mut Resolver) -> Option<String> {
    let required = r.bool("runner.require_gpu").unwrap_or_default();
    let gpubox = r.peek("runner.sync_mode").is_some_and(|mode| mode.eq_ignore_ascii_case("gpubox"));
    if gpubox {
        return None;
    }
    let key = "runner.use_gpu";
    let reason = "only sync_mode gpubox computes on devices";
    match (r.bool(key), required) {
        (Some(true), true) => {
            let reason = format!("True cannot be honoured: {reason}, and a device is required");
            r.problem(key, reason);
            None
        }
        (None | Some(false), true) => {
            let reason = "is set, but runner.use_gpu is not".to_string();
            r.problem("runner.require_gpu", reason);
            None
        }
        (Some(true), false) => {
            r.unused(key, reason);
            Some(format!("{key}: True: {reason}; this run computes on the CPU"))
        }
        (_, false) => {
            r.unused(key, reason);
            None
        }
    }
}

fn resolve_inference(r: &mut Resolver) -> Option<InferenceExport> {
    let on = r.bool("runner.use_inference").unwrap_or_default();
    let keys = ["runner.save_inference_feed_varnames", "runner.save_inference_fetch_varnames"];
    let [feeds, fetches] = keys.map(|key| r.texts(key));
    if !on {
        for key in keys {
            r.unused(key, "runner.use_inference is not set");
        }
        return None;
    }
    Some(InferenceExport { feeds, fetches })
}
