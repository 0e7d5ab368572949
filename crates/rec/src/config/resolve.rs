//! From what was written to a [`Config`]: defaults, kinds, and which keys mean something.

use std::path::{Path, PathBuf};

use regatta_checkpoint::{CheckpointConfig, Resume};
use regatta_data::{CriteoRaw, DenseTransform, Synthetic, Table, Tokens};
use regatta_ps::{AsyncConfig, Wire};
use regatta_table::Admission;

use super::keys::{self, IGNORED_SECTIONS, KEYS, Key, Used};
use super::optimizer::{optimizer_keys, resolve_optimizer};
use super::precision::{resolve_amp, resolve_recompute};
use super::reading::{FormatSpec, Reader, Reading, format_of_reader, parse_column};
use super::value::Kind;
use super::written::{Entry, Source, Text, Written};
use regatta_train::Checkpointing;

use super::{Config, Distributed, Ignored, InferenceExport, Runner, Setting};
use crate::hyper::HyperDefault;
use crate::zoo::{self, Evaluation, Model};
use crate::{Error, Hyper, HyperKey, HyperValue};

pub(super) fn resolve(path: &Path, written: Written) -> Result<Config, Error> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = folder.canonicalize().map_err(|e| {
        Error::Config(vec![format!("cannot find the folder of {}: {e}", path.display())])
    })?;
    let mut r = Resolver::new(dir.clone(), written);
    let model = resolve_model(&mut r, &dir)?;
    let hyper = resolve_hyper(&mut r, model);
    let mut optimizer = resolve_optimizer(&mut r, model.optimizer);
    let mut runner = resolve_runner(&mut r, model, &hyper);
    optimizer.amp = resolve_amp(&mut r);
    (optimizer.recompute, runner.offload_dir) = resolve_recompute(&mut r);
    r.pass_over_the_rest(model);
    if !r.problems.is_empty() {
        return Err(Error::Config(r.problems));
    }
    let (settings, ignored) = (r.settings, r.ignored);
    Ok(Config { path: path.to_path_buf(), dir, model, hyper, optimizer, runner, settings, ignored })
}

/// Takes values out of what was written and collects settings and problems.
pub(super) struct Resolver {
    dir: PathBuf,
    workspace: String,
    written: Written,
    settings: Vec<Setting>,
    ignored: Vec<Ignored>,
    problems: Vec<String>,
}

impl Resolver {
    fn new(dir: PathBuf, written: Written) -> Resolver {
        let workspace = dir.to_string_lossy().into_owned();
        let (settings, ignored, problems) = (Vec::new(), Vec::new(), Vec::new());
        let mut r = Resolver { dir, workspace, written, settings, ignored, problems };
        if let Some(workspace) = r.text("workspace") {
            r.workspace = workspace;
        }
        r
    }

    /// Notes a mistake at the place where the key was written.
    pub(super) fn problem(&mut self, key: &str, reason: String) {
        let source = self.settings.iter().find(|s| s.key == key).map(|s| &s.source);
        let place = match source {
            Some(source @ Source::File { .. }) => format!("{source}: "),
            Some(Source::Override) => "-o ".to_string(),
            _ => String::new(),
        };
        self.problems.push(format!("{place}{key}: {reason}"));
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.written.entries.iter().any(|e| e.key == key)
    }

    /// The value of a key of the list, or its default.
    fn value(&mut self, key: &str) -> Option<HyperValue> {
        let key = keys::find(key).unwrap_or_else(|| panic!("'{key}' is not in the list of keys"));
        self.field(key.name, key.kind, key.default)
    }

    /// The value of a key, or its default.
    pub(super) fn field(
        &mut self,
        key: &str,
        kind: Kind,
        default: Option<&str>,
    ) -> Option<HyperValue> {
        // `-o key=` takes back what the file says.
        let written = self.written.take(key).filter(|e| e.value != Text::Raw(String::new()));
        let (value, source) = match written {
            Some(entry) => (self.read(&entry, kind)?, entry.source),
            None => {
                let node = kind.node(default?);
                let value = kind.read(&node, &self.dir).expect("a default is of its kind");
                (value, Source::Default)
            }
        };
        self.settings.push(Setting { key: key.to_string(), value: value.clone(), source });
        Some(value)
    }

    fn read(&mut self, entry: &Entry, kind: Kind) -> Option<HyperValue> {
        let node = match &entry.value {
            Text::Node(node) => node.clone(),
            Text::Raw(text) => kind.node(text),
        };
        let node = replace_workspace(node, &self.workspace);
        match kind.read(&node, &self.dir) {
            Ok(value) => Some(value),
            Err(reason) => {
                let place = place(&entry.source);
                self.problems.push(format!("{place}{}: {reason}", entry.key));
                None
            }
        }
    }

    /// Records a value that follows from something else.
    pub(super) fn derive(&mut self, key: &str, value: &str) -> String {
        self.derive_value(key, HyperValue::Str(value.to_string()));
        value.to_string()
    }

    pub(super) fn derive_value(&mut self, key: &str, value: HyperValue) {
        self.settings.push(Setting { key: key.to_string(), value, source: Source::Default });
    }

    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        match self.value(key)? {
            HyperValue::Str(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn path(&mut self, key: &str) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    pub(super) fn ints(&mut self, key: &str) -> Option<Vec<i64>> {
        match self.value(key)? {
            HyperValue::Ints(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn texts(&mut self, key: &str) -> Option<Vec<String>> {
        match self.value(key)? {
            HyperValue::Strs(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn bool(&mut self, key: &str) -> Option<bool> {
        match self.value(key)? {
            HyperValue::Bool(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn int(&mut self, key: &str) -> Option<u64> {
        match self.value(key)? {
            HyperValue::Int(x) => Some(x as u64),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn float(&mut self, key: &str) -> Option<f64> {
        match self.value(key)? {
            HyperValue::Float(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    fn ignore(&mut self, key: &str, source: Source, reason: impl Into<String>) {
        self.ignored.push(Ignored { key: key.to_string(), source, reason: reason.into() });
    }

    /// Takes back a setting that turned out to have no effect.
    pub(super) fn unused(&mut self, key: &str, reason: &str) {
        if let Some(at) = self.settings.iter().position(|s| s.key == key) {
            let setting = self.settings.remove(at);
            if setting.source != Source::Default {
                self.ignore(key, setting.source, reason);
            }
        }
    }

    /// Sorts what nobody has asked for into ignored, impossible and unknown.
    fn pass_over_the_rest(&mut self, model: &Model) {
        for entry in std::mem::take(&mut self.written.entries) {
            let section = entry.key.split('.').next().unwrap_or_default();
            if let Some((_, reason)) = IGNORED_SECTIONS.iter().find(|(name, _)| *name == section) {
                if !self.ignored.iter().any(|i| i.key == section) {
                    self.ignore(section, entry.source, *reason);
                }
                continue;
            }
            match keys::find(&entry.key) {
                Some(key) => self.pass_over(key, &entry),
                None => self.unknown(model, &entry),
            }
        }
    }

    fn pass_over(&mut self, key: &Key, entry: &Entry) {
        let Used::Only(allowed) = key.used else {
            self.ignore(key.name, entry.source.clone(), key.doc);
            return;
        };
        let Some(value) = self.read(entry, key.kind) else { return };
        let text = match &value {
            HyperValue::Str(text) => text.clone(),
            other => other.to_string(),
        };
        if allowed.contains(&text.as_str()) {
            self.ignore(key.name, entry.source.clone(), key.doc);
            return;
        }
        let place = place(&entry.source);
        self.problems.push(format!(
            "{place}{}: {text} cannot be honoured: {}; use -o {}={}",
            key.name, key.doc, key.name, allowed[0]
        ));
    }

    fn unknown(&mut self, model: &Model, entry: &Entry) {
        let (key, place) = (&entry.key, place(&entry.source));
        if let Some(name) = key.strip_prefix("hyper_parameters.")
            && model.ignored_keys.contains(&name)
        {
            self.ignore(key, entry.source.clone(), "has no meaning here");
            return;
        }
        let hyper = model.keys.iter().map(|k| format!("hyper_parameters.{}", k.name));
        let optimizer = optimizer_keys();
        if optimizer.contains(key) {
            let reason = "does not belong to this optimizer or schedule";
            self.problems.push(format!("{place}{key}: {reason}"));
            return;
        }
        let known: Vec<String> =
            KEYS.iter().map(|k| k.name.to_string()).chain(hyper).chain(optimizer).collect();
        let hint = match nearest_key(key, &known) {
            Some(near) => format!("; did you mean '{near}'?"),
            None if key.starts_with("hyper_parameters.") => {
                let names: Vec<&str> = model.keys.iter().map(|k| k.name).collect();
                format!("; model {} knows {}", model.name, names.join(", "))
            }
            None => String::new(),
        };
        self.problems.push(format!("{place}unknown key '{key}'{hint}"));
    }
}

/// The key that was probably meant: a like name in the same section, or the same name in another one.
fn nearest_key<'a>(key: &str, known: &'a [String]) -> Option<&'a String> {
    let split = |key: &'a str| key.rsplit_once('.').unwrap_or(("", key));
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mates = known.iter().filter(|k| split(k).0 == section);
    let near = regatta_ir::nearest(name, mates.map(|k| split(k).1));
    let in_section = |near: &str| known.iter().find(|k| split(k) == (section, near));
    let same_name = || known.iter().find(|k| split(k).1 == name);
    near.and_then(in_section).or_else(same_name)
}

/// The place of a value at the head of a message.
fn place(source: &Source) -> String {
    match source {
        Source::Override => "-o ".to_string(),
        other => format!("{other}: "),
    }
}

fn replace_workspace(mut node: super::yaml::Node, workspace: &str) -> super::yaml::Node {
    use super::yaml::Kind as NodeKind;
    match &mut node.kind {
        NodeKind::Scalar { text, .. } => {
            if text.contains("{workspace}") {
                *text = text.replace("{workspace}", workspace);
            }
        }
        NodeKind::List(items) => {
            for item in items {
                *item = replace_workspace(item.clone(), workspace);
            }
        }
        NodeKind::Map(_) => {}
    }
    node
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

fn resolve_hyper(r: &mut Resolver, model: &Model) -> Hyper {
    let mut hyper = Hyper::defaults(model.keys);
    for HyperKey { name, default, .. } in model.keys {
        let kind = match default {
            HyperDefault::Int(_) => Kind::Int(i64::MIN),
            HyperDefault::Float(_) => Kind::Float,
            HyperDefault::Bool(_) => Kind::Bool,
            HyperDefault::Str(_) => Kind::Text,
            HyperDefault::Ints(_) => Kind::Ints,
        };
        let key = format!("hyper_parameters.{name}");
        if r.has(&key) {
            if let Some(value) = r.field(&key, kind, None)
                && let Err(e) = hyper.set(name, value)
            {
                r.problem(&key, e.to_string());
            }
        } else {
            r.derive_value(&key, (*default).into());
        }
    }
    if let Err(e) = (model.schema)(&hyper) {
        r.problems.push(e.to_string());
    }
    hyper
}

fn resolve_runner(r: &mut Resolver, model: &Model, hyper: &Hyper) -> Runner {
    let epochs = r.int("runner.epochs").unwrap_or(1);
    let thread_num = r.int("runner.thread_num").unwrap_or(1) as usize;
    let seed = r.int("runner.seed").unwrap_or_default();
    let formats = Formats::take(r, hyper);
    let train = train_reading(r, &formats, thread_num, seed);
    let test = test_reading(r, &formats, model, &train);
    let model_save_path = r.path("runner.model_save_path").unwrap_or_default();
    let load = r.path("runner.infer_load_path");
    let start = r.int("runner.infer_start_epoch").unwrap_or(0);
    let end = r.int("runner.infer_end_epoch").unwrap_or(epochs);
    if end <= start {
        let reason = format!("epochs {start} to {end} (exclusive) are none");
        r.problem("runner.infer_end_epoch", reason);
    }
    let runner = Runner {
        train,
        test,
        epochs,
        seed,
        thread_num,
        use_auc: r.bool("runner.use_auc").unwrap_or(false),
        print_interval: r.int("runner.print_interval").unwrap_or(10),
        dataset_debug: r.bool("runner.dataset_debug").unwrap_or(false),
        check_nan_inf: r.bool("runner.check_nan_inf").unwrap_or(false),
        offload_dir: None,
        infer_load_path: load.unwrap_or_else(|| model_save_path.clone()),
        model_save_path,
        model_init_path: r.path("runner.model_init_path"),
        init_var_names: r.texts("runner.init_var_names"),
        inference: resolve_inference(r),
        infer_epochs: start..end,
        checkpoint: resolve_checkpoint(r),
        distributed: resolve_distributed(r),
    };
    let begins_anew =
        runner.model_init_path.is_none() && runner.distributed.warmup_model_path.is_none();
    if runner.init_var_names.is_some() && begins_anew {
        let reason = "needs runner.model_init_path or runner.warmup_model_path".to_string();
        r.problem("runner.init_var_names", reason);
    }
    runner
}

fn resolve_inference(r: &mut Resolver) -> Option<InferenceExport> {
    let on = r.bool("runner.use_inference").unwrap_or(false);
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

fn resolve_checkpoint(r: &mut Resolver) -> Option<Checkpointing> {
    let key = |name: &str| format!("runner.checkpoint.{name}");
    let dir = r.path(&key("dir"));
    let local = r.path(&key("local_dir"));
    let store = dir.as_deref().filter(|dir| regatta_data::is_remote(dir));
    let store = store.map(|dir| dir.to_string_lossy().into_owned());
    if local.is_some() && store.is_none() {
        r.unused(&key("local_dir"), "runner.checkpoint.dir is no remote store");
    }
    let dir = match &store {
        Some(address) => local.or_else(|| Some(regatta_train::remote::cache_of(address))),
        None => dir,
    };
    let default = CheckpointConfig::default();
    let seconds = r.float(&key("seconds"));
    let steps = r.int(&key("step_interval"));
    let config = CheckpointConfig {
        dir: dir.clone().unwrap_or_default(),
        keep: r.int(&key("keep")).map_or(default.keep, |n| n as usize),
        epoch_interval: r.int(&key("epoch_interval")).unwrap_or(default.epoch_interval),
        step_interval: steps.or(default.step_interval.filter(|_| seconds.is_none())),
        seconds,
        full_every: r.int(&key("full_every")).unwrap_or(default.full_every),
        keep_when_done: r.bool(&key("keep_when_done")).unwrap_or(default.keep_when_done),
    };
    let text = r.text(&key("resume"));
    if dir.is_none() {
        let names =
            ["keep", "epoch_interval", "step_interval", "seconds", "full_every", "keep_when_done"];
        names.iter().for_each(|name| r.unused(&key(name), "runner.checkpoint.dir is not set"));
        if text.as_deref().is_some_and(|text| text != "none" && text != "auto") {
            r.problem(&key("resume"), "there are no checkpoints: set runner.checkpoint.dir".into());
        }
        r.unused(&key("resume"), "runner.checkpoint.dir is not set");
        return None;
    }
    if let Some(problem) = config.problem() {
        r.problem(&key("dir"), problem);
    }
    let resume = text.map_or(Resume::Auto, |text| match Resume::from(text) {
        Resume::Path(path) => Resume::Path(r.dir.join(path)),
        other => other,
    });
    Some(Checkpointing { config, store, resume })
}

fn resolve_distributed(r: &mut Resolver) -> Distributed {
    let key = "runner.sync_mode";
    let sync_mode = r.text(key);
    if let Some(mode @ ("heter" | "gpubox")) = sync_mode.as_deref() {
        let reason = format!("{mode} cannot be honoured: it needs GPUs; use -o {key}=async");
        r.problem(key, reason);
    }
    let geo_step = r.int("runner.geo_step");
    if sync_mode.as_deref() == Some("geo") && geo_step.is_none() {
        r.problem("runner.geo_step", "must be set for sync_mode geo".to_string());
    }
    let staleness = r.int("runner.staleness");
    if sync_mode.as_deref() == Some("bounded") && staleness.is_none() {
        r.problem("runner.staleness", "must be set for sync_mode bounded".to_string());
    }
    let default = AsyncConfig::default();
    let asynchronous = AsyncConfig {
        max_merge_var_num: r.int("runner.max_merge_var_num").unwrap_or(default.max_merge_var_num),
        send_queue_size: r.int("runner.send_queue_size").unwrap_or(default.send_queue_size),
        // Batches come from a reader here, so the values of the next one can be asked for early.
        pull_ahead: r.int("runner.pull_ahead").unwrap_or(1),
        dense_ahead: r.bool("runner.dense_ahead").unwrap_or(true),
        min_send_grad_num_before_recv: r
            .int("runner.min_send_grad_num_before_recv")
            .unwrap_or(default.min_send_grad_num_before_recv),
        send_wait_times: r.int("runner.send_wait_times"),
        independent_recv_thread: r.bool("runner.independent_recv_thread").unwrap_or(false),
        thread_pool_size: r.int("runner.thread_pool_size").unwrap_or(default.thread_pool_size),
    };
    if let Err(reason) = asynchronous.check() {
        r.problem("runner.sync_mode", reason.to_string());
    }
    note_other_modes(r, sync_mode.as_deref());
    let wire = r.text("runner.wire").and_then(|text| text.parse().ok()).unwrap_or_default();
    if sync_mode.as_deref() == Some("geo") && wire != Wire::F32 {
        r.problem(
            "runner.wire",
            format!("{wire} cannot be honoured: differences of geo travel whole"),
        );
    }
    let entry = resolve_entry(r);
    let split = r.bool("runner.split_file_list");
    Distributed {
        sync_mode,
        staleness,
        asynchronous,
        geo_step,
        wire,
        split_file_list: split.unwrap_or(false),
        split_ranks: split.unwrap_or(true),
        use_fleet: r.bool("runner.use_fleet").unwrap_or(false),
        strategy: r.path("runner.strategy"),
        warmup_model_path: r.path("runner.warmup_model_path"),
        entry,
    }
}

/// Keys that another mode than the chosen one would use.
fn note_other_modes(r: &mut Resolver, mode: Option<&str>) {
    let Some(mode) = mode else { return };
    if mode != "geo" {
        r.unused("runner.geo_step", "only sync_mode geo uses it");
    }
    if mode != "bounded" {
        r.unused("runner.staleness", "only sync_mode bounded uses it");
    }
    if mode != "async" {
        let keys = [
            "max_merge_var_num",
            "send_queue_size",
            "pull_ahead",
            "dense_ahead",
            "min_send_grad_num_before_recv",
            "send_wait_times",
            "independent_recv_thread",
            "thread_pool_size",
        ];
        keys.iter()
            .for_each(|key| r.unused(&format!("runner.{key}"), "only sync_mode async uses it"));
    }
}

fn resolve_entry(r: &mut Resolver) -> Admission {
    let key = "table_parameters.entry";
    let Some(text) = r.text(key) else { return Admission::None };
    let reason = match text.parse::<Admission>() {
        Ok(Admission::ShowClick { .. }) => {
            "show_click_entry cannot be honoured: rows of these models have no shows and clicks"
                .to_string()
        }
        Ok(Admission::Probability(p)) if !(p > 0.0 && p <= 1.0) => {
            format!("the probability is {p}, expected more than 0 and at most 1")
        }
        Ok(entry) => return entry,
        Err(reason) => reason,
    };
    r.problem(key, reason);
    Admission::None
}

/// What the keys of formats say.
struct Formats {
    chosen: Option<String>,
    columns: Option<Vec<String>>,
    header: Option<bool>,
    delimiter: Option<u8>,
    raw: CriteoRaw,
    dictionary: Option<(PathBuf, PathBuf)>,
    tokens: Tokens,
    window_size: usize,
    negatives: usize,
}

impl Formats {
    fn take(r: &mut Resolver, hyper: &Hyper) -> Formats {
        let delimiter = r.text("runner.data_delimiter").and_then(|text| {
            let byte = match text.as_str() {
                "\\t" | "tab" => Some(b'\t'),
                text if text.len() == 1 => Some(text.as_bytes()[0]),
                _ => None,
            };
            if byte.is_none() {
                let reason = format!("should be one byte or \\t, but is {text:?}");
                r.problem("runner.data_delimiter", reason);
            }
            byte
        });
        let dense = match r.text("runner.dense_transform").as_deref() {
            Some("log") => DenseTransform::Log,
            Some("plain") => DenseTransform::Plain,
            _ => DenseTransform::PaddleRange,
        };
        let rows = hyper.find_int("sparse_feature_number").filter(|n| *n > 0).map(|n| n as u64);
        let hash_dim = r.int("runner.hash_dim").or(rows);
        let counts = r.path("runner.word_count_dict_path");
        let ids = r.path("runner.word_id_dict_path");
        let words = r.text("runner.tokens").as_deref() == Some("words");
        let size = |name: &str| hyper.find_int(name).unwrap_or(5).max(1) as usize;
        Formats {
            chosen: r.text("runner.data_format"),
            columns: r.texts("runner.data_columns"),
            header: r.bool("runner.data_header"),
            delimiter,
            raw: CriteoRaw { hash_dim, dense },
            dictionary: counts.zip(ids),
            tokens: if words { Tokens::Words } else { Tokens::Ids },
            window_size: size("window_size"),
            negatives: size("neg_num"),
        }
    }

    /// The format of files whose reader is the module of a key.
    fn of(&self, r: &mut Resolver, reader_key: &str, analogy: bool) -> Option<FormatSpec> {
        let module = r.text(reader_key);
        let name = match (&self.chosen, &module) {
            (Some(name), module) => {
                if module.is_some() {
                    r.unused(reader_key, "runner.data_format says what the files are");
                }
                name.clone()
            }
            (None, Some(module)) => match format_of_reader(module) {
                Some(name) => name.to_string(),
                None => {
                    let formats = keys::DATA_FORMATS.join(", ");
                    r.problem(
                        reader_key,
                        format!(
                            "the files of reader module '{module}' are not known here; name their \
                             format with runner.data_format ({formats})"
                        ),
                    );
                    return None;
                }
            },
            (None, None) => "multislot".to_string(),
        };
        self.spec(r, &name, analogy)
    }

    fn spec(&self, r: &mut Resolver, name: &str, analogy: bool) -> Option<FormatSpec> {
        match name {
            "criteo" => Some(FormatSpec::Criteo),
            "multislot" => Some(FormatSpec::MultiSlot),
            "criteo_raw" => Some(FormatSpec::CriteoRaw(self.raw.clone())),
            "csv" | "tsv" => {
                let csv = name == "csv";
                let header = self.header.unwrap_or(csv);
                let columns = self.columns(r, header)?;
                let base = if csv { Table::csv(columns) } else { Table::tsv(columns) };
                let delimiter = self.delimiter.unwrap_or(base.delimiter);
                Some(FormatSpec::Table(Table { header, delimiter, ..base }))
            }
            "parquet" => Some(FormatSpec::Parquet(self.columns(r, true)?)),
            "word2vec" => {
                let Some((counts, ids)) = self.dictionary.clone() else {
                    for key in ["runner.word_count_dict_path", "runner.word_id_dict_path"] {
                        if !r.settings.iter().any(|s| s.key == key) {
                            r.problem(key, "must be set for word2vec data".to_string());
                        }
                    }
                    return None;
                };
                if analogy {
                    return Some(FormatSpec::Analogy { counts, ids });
                }
                let Formats { tokens, window_size, negatives, .. } = *self;
                Some(FormatSpec::Word2vec { counts, ids, tokens, window_size, negatives })
            }
            other => unreachable!("'{other}' is not in the list of formats"),
        }
    }

    fn columns(&self, r: &mut Resolver, header: bool) -> Option<Vec<regatta_data::Column>> {
        let key = "runner.data_columns";
        let Some(columns) = &self.columns else {
            r.problem(key, "must be set for csv, tsv and parquet data".to_string());
            return None;
        };
        let parsed: Result<Vec<_>, String> =
            columns.iter().map(|text| parse_column(text, header)).collect();
        parsed.map_err(|reason| r.problem(key, reason)).ok()
    }
}

fn train_reading(r: &mut Resolver, formats: &Formats, thread_num: usize, seed: u64) -> Reading {
    let data = r.text("runner.train_data_dir");
    let kind = r.text("runner.reader_type").unwrap_or_default();
    let threads = r.int("runner.reader_threads").map_or(thread_num, |n| n as usize);
    let shuffle_buffer = r.int("runner.shuffle_buffer").unwrap_or(0) as usize;
    let local_shuffle = r.bool("runner.local_shuffle").unwrap_or(false);
    let reader = reader(r, "runner.reader_type", &kind, threads, shuffle_buffer, local_shuffle);
    if shuffle_buffer > 0 && (!matches!(reader, Reader::Loader { .. }) || kind == "RecDataset") {
        r.problem("runner.shuffle_buffer", format!("{kind} has no shuffle buffer"));
    }
    if local_shuffle && !matches!(reader, Reader::Memory { .. }) {
        r.problem("runner.local_shuffle", format!("{kind} does not hold the data in memory"));
    }
    let (format, pipe_command) =
        format_and_pipe(r, formats, "runner.train_reader_path", data.as_deref(), reader, false);
    let loader = matches!(reader, Reader::Loader { .. });
    let drop_last = r.bool("runner.drop_last").unwrap_or_else(|| {
        r.derive_value("runner.drop_last", HyperValue::Bool(loader));
        loader
    });
    Reading {
        data_key: "runner.train_data_dir",
        data,
        format,
        reader,
        pipe_command,
        batch_key: "runner.train_batch_size",
        batch_size: r.int("runner.train_batch_size").map(|n| n as usize),
        drop_last,
        max_bad_lines: r.int("runner.max_bad_lines").unwrap_or(0),
        seed,
    }
}

fn test_reading(r: &mut Resolver, formats: &Formats, model: &Model, train: &Reading) -> Reading {
    let data = r.text("runner.test_data_dir");
    let kind = r.text("runner.infer_reader_type").unwrap_or_default();
    let threads = match train.reader {
        Reader::Queue { threads } | Reader::Memory { threads, .. } => threads,
        Reader::Loader { .. } => 1,
    };
    let reader = reader(r, "runner.infer_reader_type", &kind, threads, 0, false);
    let analogy = model.evaluation == Evaluation::Analogy;
    let (format, pipe_command) =
        format_and_pipe(r, formats, "runner.infer_reader_path", data.as_deref(), reader, analogy);
    let batch_size = r.int("runner.infer_batch_size").map(|n| n as usize);
    Reading {
        data_key: "runner.test_data_dir",
        data,
        format,
        reader,
        pipe_command,
        batch_key: "runner.infer_batch_size",
        batch_size: batch_size.or(train.batch_size),
        drop_last: false,
        max_bad_lines: train.max_bad_lines,
        seed: train.seed,
    }
}

fn reader(
    r: &mut Resolver,
    key: &str,
    kind: &str,
    threads: usize,
    shuffle_buffer: usize,
    shuffle: bool,
) -> Reader {
    match kind {
        "QueueDataset" => Reader::Queue { threads },
        "InmemoryDataset" => Reader::Memory { threads, shuffle },
        "CustomizeDataLoader" => {
            let reason = "CustomizeDataLoader is Python code; use -o runner.reader_type=DataLoader";
            r.problem(key, reason.to_string());
            Reader::Loader { shuffle_buffer }
        }
        _ => Reader::Loader { shuffle_buffer },
    }
}

/// The format of the files and the command that they go through. Commands belong to the queue and
/// in-memory readers, and print MultiSlot text unless `data_format` says otherwise.
fn format_and_pipe(
    r: &mut Resolver,
    formats: &Formats,
    reader_key: &str,
    data: Option<&str>,
    reader: Reader,
    analogy: bool,
) -> (Option<FormatSpec>, Option<String>) {
    const PIPE: &str = "runner.pipe_command";
    let training = reader_key == "runner.train_reader_path";
    // The key may have been taken for the training data already.
    let taken = r.settings.iter().find(|s| s.key == PIPE).map(|s| s.value.clone());
    let command = match taken {
        Some(HyperValue::Str(command)) => Some(command),
        _ => r.text(PIPE),
    };
    let piped = !matches!(reader, Reader::Loader { .. });
    if data.is_some_and(Synthetic::is_url) {
        // Synthetic examples are records already.
        if r.text(reader_key).is_some() {
            r.unused(reader_key, "the data are synthetic");
        }
        if training {
            r.unused(PIPE, "the data are synthetic");
        }
        return (None, None);
    }
    match command {
        Some(command) if piped => {
            if r.text(reader_key).is_some() {
                r.unused(reader_key, "runner.pipe_command reads the files");
            }
            let name = formats.chosen.clone().unwrap_or_else(|| "multislot".into());
            (formats.spec(r, &name, analogy), Some(command))
        }
        command => {
            if command.is_some() && training {
                let reason = "only QueueDataset and InmemoryDataset read through a command";
                r.unused(PIPE, reason);
            }
            (formats.of(r, reader_key, analogy), None)
        }
    }
}
