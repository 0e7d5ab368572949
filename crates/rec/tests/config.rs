//! Configurations: PaddleRec's files, kinds of values, and text that makes no sense.

use std::path::{Path, PathBuf};

use regatta_checkpoint::{CheckpointConfig, Resume};
use regatta_fleet::strategy::DistributedStrategy;
use regatta_optim::{Rule, Schedule};
use regatta_ps::{AsyncConfig, Mode};
use regatta_rec::config::{
    Arrivals, DeviceChoice, DeviceKind, FormatSpec, Kind, Reader, Source, StreamSource, keys,
};
use regatta_rec::{Config, HyperValue};
use regatta_train::tier::LOOKAHEAD;

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
    assert_eq!(runner.distributed.mode, Mode::default());
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
fn tables_with_rows_on_disk() {
    let text = "model: dnn\ntable_parameters:\n  emb:\n    memory_mb: 64\n    ssd_dir: cold\n    \
                shard_num: 10\n";
    let config = load(text, &["table_parameters.other.memory_mb=2"]).err().unwrap();
    assert!(config.contains("table_parameters.other.ssd_dir: must be set"), "{config}");
    let config = load(text, &[]).unwrap();
    let tier = &config.runner.distributed.tiers["emb"];
    assert_eq!((tier.memory_mb, tier.lookahead), (64, LOOKAHEAD));
    assert!(tier.ssd_dir.is_absolute() && tier.ssd_dir.ends_with("cold"), "{tier:?}");
    // It comes back from what manifests hold, and `--print-config` shows it.
    let again = Config::from_json(&config.to_json(), Path::new("."), &[]).unwrap();
    assert_eq!(again.runner.distributed.tiers, config.runner.distributed.tiers);
    let shown = config.to_string();
    assert!(shown.contains("table_parameters.emb.lookahead") && shown.contains(" 64 "), "{shown}");
    // An override takes the tier back.
    let config = load(text, &["table_parameters.emb.memory_mb="]).unwrap();
    assert!(config.runner.distributed.tiers.is_empty());
    for (given, want) in [
        (
            "table_parameters.a.ssd_dir=/x",
            "table_parameters.a.ssd_dir: needs table_parameters.a.memory_mb",
        ),
        (
            "table_parameters.a.lookahead=2",
            "table_parameters.a.lookahead: needs table_parameters.a.memory_mb",
        ),
        (
            "table_parameters.emb.memory_mb=0",
            "table_parameters.emb.memory_mb: should be an integer from 1",
        ),
        (
            "table_parameters.emb.lookahead=300",
            "table_parameters.emb.lookahead: should be an integer from 1 to 256",
        ),
    ] {
        let error = load(text, &[given]).err().unwrap();
        assert!(error.contains(want), "{error}");
    }
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
    // Without a mode it is async.
    let config = load("model: dnn\n", &keys).unwrap();
    assert_eq!(config.runner.distributed.mode, Mode::default());
    assert_eq!(config.ignored.len(), 2);
    // What is ignored is checked all the same.
    let error = load("model: dnn\n", &["runner.geo_step=often"]).err().unwrap();
    assert!(error.contains("runner.geo_step: should be an integer"), "{error}");
}

/// Every mode with the keys that belong to it alone.
const MODES: [(&str, &[&str]); 5] = [
    ("sync", &[]),
    ("half_async", &[]),
    ("bounded", &["runner.staleness"]),
    ("geo", &["runner.geo_step"]),
    (
        "async",
        &[
            "runner.max_merge_var_num",
            "runner.send_queue_size",
            "runner.pull_ahead",
            "runner.dense_ahead",
            "runner.min_send_grad_num_before_recv",
        ],
    ),
];

/// What configurations hold must not depend on how often they were written and read.
fn assert_same(a: &Config, b: &Config) {
    let values = |c: &Config| -> Vec<(String, HyperValue)> {
        c.settings.iter().map(|s| (s.key.clone(), s.value.clone())).collect()
    };
    assert_eq!(values(a), values(b));
    assert_eq!(a.runner, b.runner);
    assert_eq!(a.optimizer, b.optimizer);
    assert!(b.ignored.is_empty(), "{:?}", b.ignored);
}

#[test]
fn every_mode_prints_its_keys_and_is_read_again() {
    let own: Vec<&str> = MODES.iter().flat_map(|(_, keys)| keys.iter().copied()).collect();
    for (mode, keys) in MODES {
        let chosen = format!("runner.sync_mode={mode}");
        let mut given = vec![chosen.as_str(), "runner.checkpoint.dir=ckpt"];
        // The two without a default.
        match mode {
            "bounded" => given.push("runner.staleness=0"),
            "geo" => given.push("runner.geo_step=7"),
            "async" => given.push("runner.send_wait_times=5"),
            _ => {}
        }
        let config = load("model: dnn\n", &given).unwrap();
        assert_eq!(config.runner.distributed.mode.name(), mode);
        let shown: Vec<&str> = own.iter().copied().filter(|k| config.get(k).is_some()).collect();
        assert_eq!(shown, keys, "{mode}");
        for key in ["sync_mode", "wire", "split_file_list", "use_fleet", "checkpoint.resume"] {
            assert!(config.get(&format!("runner.{key}")).is_some(), "{mode}: {key}");
        }
        assert!(config.get("table_parameters.entry").is_some(), "{mode}");
        assert_same(&config, &load(&config.to_yaml(), &[]).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("about.json");
        assert_same(&config, &Config::from_json(&config.to_json(), &place, &[]).unwrap());
    }
}

#[test]
fn all_settings_of_asynchronous_training_have_a_source() {
    let config = load("model: dnn\nrunner:\n  send_queue_size: 4\n", &["runner.pull_ahead=2"]);
    let config = config.unwrap();
    let of = |key: &str| {
        let setting = config.settings.iter().find(|s| s.key == format!("runner.{key}")).unwrap();
        (setting.value.to_string(), setting.source.clone())
    };
    assert_eq!(of("dense_ahead"), ("True".to_string(), Source::Default));
    assert_eq!(of("sync_mode"), ("\"async\"".to_string(), Source::Default));
    assert_eq!(of("pull_ahead"), ("2".to_string(), Source::Override));
    assert!(matches!(of("send_queue_size").1, Source::File { line: 3, .. }));
    let Mode::Async(a) = config.runner.distributed.mode else { panic!("asynchronous") };
    assert_eq!(a, AsyncConfig { pull_ahead: 2, send_queue_size: 4, ..AsyncConfig::default() });
}

/// The table of keys, a strategy and the types themselves have the same defaults.
#[test]
fn defaults_are_the_same_everywhere() {
    let checkpoint = CheckpointConfig { dir: "/ckpt".into(), ..CheckpointConfig::default() };
    let config = load("model: dnn\n", &["runner.checkpoint.dir=/ckpt"]).unwrap();
    assert_eq!(config.runner.distributed.mode, Mode::default());
    assert_eq!(config.runner.checkpoint.as_ref().unwrap().config, checkpoint);
    assert_eq!(config.runner.checkpoint.as_ref().unwrap().resume, Resume::Auto);
    assert_eq!(DistributedStrategy::new().ps_mode().unwrap(), Mode::default());
    // One by one, so that no default hides behind another one of the same meaning.
    let options = DistributedStrategy::new().options();
    let of_strategy = |name: &str| {
        let name = format!("a_sync_configs.{name}");
        options.iter().find(|(path, _)| *path == name).map(|(_, value)| value.to_lowercase())
    };
    for name in MODES[4].1.iter().map(|key| &key["runner.".len()..]).chain(["send_wait_times"]) {
        let of_table = keys::find(&format!("runner.{name}")).unwrap().default;
        assert_eq!(of_table.map(str::to_lowercase), of_strategy(name), "{name}");
    }
    // Mixed precision and recompute have the options of a strategy too.
    let number = |text: &str| text.parse::<f64>().map_or(text.to_lowercase(), |x| x.to_string());
    let mut shared = 0;
    for key in keys::KEYS {
        let path = key.name.trim_start_matches("runner.");
        let group = path.starts_with("amp_configs.") || path.starts_with("recompute_configs.");
        let option = options.iter().find(|(name, _)| group && name == path);
        if let (Some(default), Some((_, value))) = (key.default, option) {
            assert_eq!(number(default), number(value), "{path}");
            shared += 1;
        }
    }
    assert!(shared >= 6, "{shared}");
}

#[test]
fn a_mistake_has_one_wording() {
    type Change = fn(&mut DistributedStrategy);
    let mistakes: [(&[&str], Change); 4] = [
        (&["send_queue_size=0"], |s| s.a_sync_configs.send_queue_size = 0),
        (&["max_merge_var_num=0"], |s| s.a_sync_configs.max_merge_var_num = 0),
        (&["thread_pool_size=4"], |s| s.a_sync_configs.thread_pool_size = 4),
        (&["independent_recv_thread=True", "pull_ahead=0"], |s| {
            s.a_sync_configs.independent_recv_thread = true;
            s.a_sync_configs.pull_ahead = 0;
        }),
    ];
    for (given, change) in mistakes {
        let name = given[0].split('=').next().unwrap();
        let given: Vec<String> = given.iter().map(|g| format!("runner.{g}")).collect();
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let yaml = load("model: dnn\n", &given).err().unwrap();
        let mut strategy = DistributedStrategy::new();
        change(&mut strategy);
        let error = strategy.ps_mode().unwrap_err().to_string();
        let reason = error.strip_prefix(&format!("strategy: a_sync_configs.{name} ")).unwrap();
        assert_eq!(yaml, format!("-o runner.{name}: {reason}"));
    }
}

#[test]
fn modes_that_lack_their_key_say_so() {
    let error = |given: &[&str]| load("model: dnn\n", given).err().unwrap();
    assert_eq!(
        error(&["runner.sync_mode=bounded"]),
        "runner.staleness: must be set for sync_mode bounded"
    );
    assert_eq!(error(&["runner.sync_mode=geo"]), "runner.geo_step: must be set for sync_mode geo");
    assert_eq!(
        error(&["runner.sync_mode=geo", "runner.geo_step=0"]),
        "-o runner.geo_step: should be at least 1, but is 0"
    );
    let none = error(&["runner.sync_mode=geo", "runner.geo_step=x"]);
    assert_eq!(none.lines().count(), 1, "{none}");
}

#[test]
fn nothing_is_offered_that_is_refused() {
    let error = |given: &str| load("model: dnn\n", &[given]).err().unwrap();
    assert_eq!(
        error("runner.sync_mode=asinc"),
        "-o runner.sync_mode: should be one of sync, async, half_async, bounded, geo, gpubox, \
         but is asinc"
    );
    assert_eq!(
        error("runner.sync_mode=Heter"),
        "-o runner.sync_mode: heter cannot be honoured: workers and devices are one process: see \
         gpubox; use -o runner.sync_mode=async"
    );
    assert!(!error("runner.reader_type=Loader").contains("CustomizeDataLoader"));
    assert_eq!(
        error("runner.reader_type=CustomizeDataLoader"),
        "-o runner.reader_type: CustomizeDataLoader cannot be honoured: it is Python code; use -o \
         runner.reader_type=DataLoader"
    );
    for key in keys::KEYS {
        let Kind::Choice(offered) = key.kind else { continue };
        assert!(key.refused.iter().all(|(word, _)| !offered.contains(word)), "{}", key.name);
    }
}

#[test]
fn gpubox_reads_memory_only_and_knows_its_device() {
    let text = "model: dnn\nrunner:\n  sync_mode: GPUBox\n  reader_type: InmemoryDataset\n";
    let device =
        |more: &[&str]| load(text, more).unwrap().runner.distributed.gpubox.unwrap().device;
    let kind = |kind, n| DeviceChoice::Kind(kind, n);
    assert_eq!(device(&[]), DeviceChoice::Cpu);
    assert_eq!(device(&["runner.use_gpu=True"]), DeviceChoice::Auto);
    assert_eq!(device(&["runner.use_gpu=False"]), DeviceChoice::Cpu);
    // The file says that there is a GPU, the command which device it is.
    assert_eq!(device(&["runner.use_gpu=True", "runner.device=cpu"]), DeviceChoice::Cpu);
    assert_eq!(device(&["runner.device=opencl-cpu"]), kind(DeviceKind::OpenClCpu, None));
    assert_eq!(device(&["runner.device=CUDA:3"]), kind(DeviceKind::Cuda, Some(3)));
    assert_eq!(load(text, &[]).unwrap().runner.distributed.mode, Mode::Sync);
    let error = |more: &[&str]| load(text, more).err().unwrap();
    assert_eq!(
        error(&["runner.use_gpu=False", "runner.device=opencl"]),
        "-o runner.device: opencl contradicts runner.use_gpu: False; use -o runner.use_gpu=True, or \
         cpu"
    );
    assert!(
        error(&["runner.device=gpu"]).contains("should be auto, cpu, opencl, opencl-cpu or cuda")
    );
    for reader in ["DataLoader", "QueueDataset", "RecDataset"] {
        let reason = error(&[&format!("runner.reader_type={reader}")]);
        let expected = format!(
            "-o runner.reader_type: {reader} cannot be honoured: sync_mode gpubox reads \
             InmemoryDataset only; use -o runner.reader_type=InmemoryDataset"
        );
        assert_eq!(reason, expected);
    }
}

#[test]
fn options_of_paddle_without_effect_go_no_further() {
    let given = ["runner.thread_pool_size=1", "runner.independent_recv_thread=True"];
    let config = load("model: dnn\n", &given).unwrap();
    assert_eq!(config.runner.distributed.mode, Mode::default());
    let ignored: Vec<&str> = config.ignored.iter().map(|i| i.key.as_str()).collect();
    assert_eq!(ignored, ["runner.independent_recv_thread", "runner.thread_pool_size"]);
    assert!(config.get("runner.thread_pool_size").is_none());
}

#[test]
fn checkpoints_by_time_alone() {
    let config = |given: &[&str]| {
        let config = load("model: dnn\n", given).unwrap();
        let interval = config.runner.checkpoint.as_ref().unwrap().config.step_interval;
        (interval, config.get("runner.checkpoint.step_interval").is_some())
    };
    let time = ["runner.checkpoint.dir=/c", "runner.checkpoint.seconds=5"];
    assert_eq!(config(&time[..1]), (Some(10), true));
    assert_eq!(config(&time), (None, false));
    let both = [&time[..], &["runner.checkpoint.step_interval=3"]].concat();
    assert_eq!(config(&both), (Some(3), true));
    // A path means the same in the printed configuration, wherever that is read.
    let given = ["runner.checkpoint.dir=/c", "runner.checkpoint.resume=some/7"];
    let resumed = load("model: dnn\n", &given).unwrap();
    assert_same(&resumed, &load(&resumed.to_yaml(), &[]).unwrap());
    // Without a folder there are none, and no key of theirs is shown.
    let none = load("model: dnn\n", &[]).unwrap();
    assert!(none.settings.iter().all(|s| !s.key.starts_with("runner.checkpoint")));
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = "model: dnn\nrunner:\n  epochs: none\n  use_xpu: True\n  nonsense: 1\n";
    let message = load(text, &[]).err().unwrap();
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 3, "{message}");
    assert!(lines[0].starts_with("c.yaml:3: runner.epochs: should be an integer"), "{message}");
    assert!(lines[1].starts_with("c.yaml:4: runner.use_xpu: True cannot"), "{message}");
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

/// What a configuration says of data that arrive, and again when it is printed and read.
fn arrivals(overrides: &[&str]) -> Result<Arrivals, String> {
    let text = "model: dnn\nrunner:\n  train_batch_size: 2\n  data_format: multislot\n";
    let config = load(text, overrides)?;
    let found = config.runner.arrivals.clone();
    assert!(config.runner.distributed.split_file_list.is_none() && !config.runner.train.drop_last);
    let again = load(&config.to_yaml(), &[]).unwrap();
    assert_same(&config, &again);
    assert_eq!(found, again.runner.arrivals);
    let place = PathBuf::from("c.yaml");
    let again = Config::from_json(&config.to_json(), &place, &[]).unwrap();
    assert_eq!(found, again.runner.arrivals);
    Ok(found.unwrap())
}

#[test]
fn data_that_arrive() {
    let days = ["runner.train_data_dir=/d", "runner.start_day=20240228", "runner.end_day=20240301"];
    let Ok(Arrivals::Days(found)) = arrivals(&days) else { panic!("no days") };
    assert_eq!((found.options.folder.as_str(), found.passes_per_day), ("/d", 288));
    assert!(found.save_delta_frequency.is_none() && !found.save_first_base);
    let stream = |overrides: &[&str]| match arrivals(overrides).unwrap() {
        Arrivals::Stream(stream) => stream,
        other => panic!("{other:?}"),
    };
    for (written, folder) in
        [("tail:/d", "/d"), ("tail:///d", "/d"), ("tail:s3://bucket/d", "s3://bucket/d")]
    {
        let url = format!("runner.train_data_dir={written}");
        let found =
            stream(&[&url, "runner.online.keep_models=2", "runner.online.idle_seconds=1.5"]);
        let StreamSource::Tail(tail) = &found.source else { panic!("{found:?}") };
        assert_eq!(
            (tail.folder.as_str(), tail.files_per_pass, found.keep_models),
            (folder, 16, Some(2))
        );
        assert_eq!(tail.end.idle, Some(std::time::Duration::from_millis(1500)));
    }
    let found = stream(&["runner.train_data_dir=redis://h:1/a,b?field=x", "runner.epochs=3"]);
    let StreamSource::Messages(messages) = &found.source else { panic!("{found:?}") };
    assert_eq!(
        (messages.address.as_str(), messages.per_pass),
        ("redis://h:1/a,b?field=x", 100_000)
    );
    // Keys of other data are checked, and listed as ignored.
    let text = "model: dnn\nrunner:\n  train_data_dir: d\n  online:\n    idle_seconds: 1\n";
    let config = load(text, &["runner.data_donefile=done"]).unwrap();
    assert_eq!(config.runner.arrivals, None);
    let ignored: Vec<&str> = config.ignored.iter().map(|i| i.key.as_str()).collect();
    assert_eq!(ignored, ["runner.data_donefile", "runner.online.idle_seconds"]);
}
