//! All keys that a configuration file may hold, apart from the hyper-parameters of the models.

use super::precision::PRECISIONS;
use super::value::Kind;

/// A key with everything that is known of it.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Name with its section.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Value if nothing is written, as it would be written; `None` if it then has none.
    pub default: Option<&'static str>,
    /// What happens to it.
    pub used: Used,
    /// Words of Paddle's that cannot be honoured, each with the reason.
    pub refused: &'static [(&'static str, &'static str)],
    /// What it means, in a line.
    pub doc: &'static str,
}

/// What happens to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Used {
    /// It does what it says.
    Honoured,
    /// It has no meaning here; the reason is in its documentation.
    Ignored,
    /// Only these values can be honoured, and they change nothing; others are errors.
    Only(&'static [&'static str]),
}

const fn key(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key { name, kind, default: Some(default), used: Used::Honoured, refused: &[], doc }
}

const fn unset(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { name, kind, default: None, used: Used::Honoured, refused: &[], doc }
}

const fn refusing(key: Key, refused: &'static [(&'static str, &'static str)]) -> Key {
    Key { refused, ..key }
}

const fn ignored(name: &'static str, doc: &'static str) -> Key {
    Key { used: Used::Ignored, ..unset(name, Kind::Any, doc) }
}

/// As [`ignored`], with values that are checked all the same.
const fn without_effect(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { used: Used::Ignored, ..unset(name, kind, doc) }
}

const fn off(name: &'static str, doc: &'static str) -> Key {
    Key { used: Used::Only(&["False"]), ..unset(name, Kind::Bool, doc) }
}

const fn empty(name: &'static str, doc: &'static str) -> Key {
    Key { used: Used::Only(&["", "None"]), ..unset(name, Kind::Text, doc) }
}

/// Kinds of readers by PaddleRec's names.
pub const READER_TYPES: &[&str] = &["DataLoader", "QueueDataset", "RecDataset", "InmemoryDataset"];
/// Formats of data files.
pub const DATA_FORMATS: &[&str] =
    &["criteo", "multislot", "criteo_raw", "csv", "tsv", "parquet", "word2vec"];

/// Largest values: of what is only counted, of threads, of examples in a batch, of messages that
/// wait somewhere. Whoever writes more has written something else than was meant.
pub(super) const MANY: i64 = 1_000_000_000;
const THREADS: i64 = 1024;
const BATCH: i64 = 1 << 24;
const IN_FLIGHT: i64 = 4096;
const LOOKAHEAD: i64 = regatta_train::tier::MAX_LOOKAHEAD as i64;

const CUSTOM_READER: &[(&str, &str)] = &[("CustomizeDataLoader", "it is Python code")];
const HETER: &[(&str, &str)] = &[("heter", "workers and devices are one process: see gpubox")];

/// Consistency modes of parameter servers, and the mode with rows in tiers.
const SYNC_MODES: &[&str] = &["sync", "async", "half_async", "bounded", "geo", GPUBOX];
/// Rows on devices, in memory and on disk.
pub(super) const GPUBOX: &str = "gpubox";

/// Before the path of a directory that grows.
pub(super) const TAIL: &str = "tail:";
const DAYS: &str = "PaddleRec's trainers do not read it: days are `start_day` to `end_day`";
const THREADS_OF_READERS: &str = "reader_threads read files, local_shuffle shuffles them";
const TESTS: &str = "`regatta infer` reads test_data_dir";
const OFFLINE: &str =
    "belongs to PaddleRec's offline_infer.py; `regatta infer` reads test_data_dir";
const DUMP: &str = "tensors are not dumped here";
const EMBEDDING_FILES: &str = "embeddings are saved with the model, not as text";
const REMOTE: &str = "a remote store is named in the path: train_data_dir: hdfs://host:port/path";

/// What becomes of the values of a feature.
pub const FEATURE_KINDS: &[&str] = &[
    "label",
    "id",
    "hash",
    "vocabulary",
    "bucketize",
    "cross",
    "sequence",
    "raw",
    "log",
    "standardize",
];
/// How the vectors of several values become one.
const POOLINGS: &[&str] = &["sum", "mean", "sqrtn", "max"];
const MOST_IDS: i64 = 1 << 48;

/// Keys of every model.
#[rustfmt::skip] // One line each.
pub const KEYS: &[Key] = &[
    unset("model", Kind::Text, "name of the model; else the name of the file's folder"),
    unset("workspace", Kind::Path, "replaces `{workspace}` in other values; else the file's folder"),
    // Data.
    unset("runner.train_data_dir", Kind::Data, "training data: a directory (all files in it) or a synthetic source"),
    unset("runner.test_data_dir", Kind::Data, "data for `infer`"),
    unset("runner.train_reader_path", Kind::Text, "PaddleRec's reader module, which tells the format of training data"),
    unset("runner.infer_reader_path", Kind::Text, "the same for test data"),
    unset("runner.data_format", Kind::Choice(DATA_FORMATS), "format of the data files, whatever the readers are called"),
    unset("runner.data_header", Kind::Bool, "csv, tsv: whether the first line names the columns; else True for csv, False for tsv"),
    unset("runner.features_learned", Kind::Path, "file with what was learned about features (`regatta features --learn`); else they are learned when training begins"),
    unset("runner.data_delimiter", Kind::Text, "csv, tsv: the one byte between fields"),
    unset("runner.hash_dim", Kind::Int(1, i64::MAX), "criteo_raw: hashes are taken modulo this number; else `sparse_feature_number`"),
    key("runner.dense_transform", Kind::Choice(&["paddle", "log", "plain"]), "paddle", "criteo_raw: what becomes of the 13 integers"),
    key("runner.tokens", Kind::Choice(&["ids", "words"]), "ids", "word2vec: whether the corpus holds ids or words"),
    unset("runner.word_count_dict_path", Kind::Path, "word2vec: words with their frequencies"),
    unset("runner.word_id_dict_path", Kind::Path, "word2vec: words with their ids"),
    refusing(key("runner.reader_type", Kind::Choice(READER_TYPES), "DataLoader", "how training data are read"), CUSTOM_READER),
    refusing(key("runner.infer_reader_type", Kind::Choice(READER_TYPES), "DataLoader", "how test data are read"), CUSTOM_READER),
    unset("runner.pipe_command", Kind::Text, "QueueDataset, InmemoryDataset: shell command that every file goes through"),
    key("runner.pipe_timeout", Kind::Int(0, MANY), "600", "seconds without output after which pipe_command is an error; 0 waits for ever"),
    key("runner.drop_last", Kind::BoolOrAuto, "auto", "leave out an incomplete last batch in training; auto: with DataLoader and RecDataset, unless there is no complete one"),
    key("runner.shuffle_buffer", Kind::Int(0, MANY), "0", "DataLoader: records in the shuffle buffer"),
    key("runner.local_shuffle", Kind::Bool, "False", "InmemoryDataset: a new order in every epoch"),
    key("runner.max_bad_lines", Kind::Int(0, MANY), "0", "malformed lines per epoch that are skipped"),
    // Training.
    unset("runner.train_batch_size", Kind::Int(1, BATCH), "examples per training step"),
    key("runner.epochs", Kind::Int(1, MANY), "1", "data passes over the training data"),
    key("runner.seed", Kind::Int(0, i64::MAX), "12345", "everything random follows from it"),
    key("runner.thread_num", Kind::Int(1, THREADS), "1", "threads that share each batch"),
    unset("runner.reader_threads", Kind::Int(1, THREADS), "QueueDataset, InmemoryDataset: threads that read files; else `thread_num`"),
    key("runner.use_auc", Kind::Bool, "False", "begin every epoch with new AUC counters"),
    key("runner.print_interval", Kind::Int(1, MANY), "10", "batches between two lines of progress"),
    key("runner.dataset_debug", Kind::Bool, "False", "print where the time of every epoch went"),
    key("runner.check_nan_inf", Kind::Bool, "False", "stop at the first NaN or infinity, and name the op that wrote it"),
    key("runner.allow_non_finite_loss", Kind::Bool, "False", "continue when the loss is NaN or infinite, which is an error otherwise"),
    key("runner.check_memory", Kind::Bool, "True", "refuse a model that needs more memory than is available"),
    unset("runner.validation.data_dir", Kind::Data, "data that every saved epoch is judged by while training; read as test data are"),
    unset("runner.validation.metric", Kind::Text, "the measure that finds the best epoch; else auc where the model has one, or loss"),
    unset("runner.validation.patience", Kind::Int(1, MANY), "stop after this many epochs without a better one; else never"),
    // Precision and memory.
    key("runner.amp", Kind::Choice(PRECISIONS), "off", "mixed precision: which 16-bit floats chosen ops compute on"),
    key("runner.amp_configs.use_pure", Kind::Bool, "False", "compute all in 16 bits that is not on the black list"),
    unset("runner.amp_configs.custom_white_list", Kind::Texts, "more kinds of ops that compute in 16 bits"),
    unset("runner.amp_configs.custom_black_list", Kind::Texts, "more kinds of ops that compute in f32"),
    unset("runner.amp_configs.custom_black_varnames", Kind::Texts, "ops that read or write these variables compute in f32"),
    unset("runner.amp_configs.use_loss_scaling", Kind::Bool, "scale the loss and check gradients; else True for fp16, False for bf16"),
    key("runner.amp_configs.init_loss_scaling", Kind::Float, "32768", "initial factor on the loss"),
    key("runner.amp_configs.use_dynamic_loss_scaling", Kind::Bool, "True", "let the factor follow what gradients do"),
    key("runner.amp_configs.incr_every_n_steps", Kind::Int(1, MANY), "1000", "good steps in a row after which the factor grows"),
    key("runner.amp_configs.decr_every_n_nan_or_inf", Kind::Int(1, MANY), "2", "steps with overflows in a row after which it shrinks"),
    key("runner.amp_configs.incr_ratio", Kind::Float, "2.0", "it grows by this"),
    key("runner.amp_configs.decr_ratio", Kind::Float, "0.8", "it shrinks by this"),
    key("runner.recompute", Kind::Bool, "False", "keep few activations and compute the others again for the gradients"),
    unset("runner.recompute_configs.checkpoints", Kind::Texts, "variables to keep; else about every sqrt(n)-th of n"),
    key("runner.recompute_configs.enable_offload", Kind::Bool, "False", "write checkpoints to a memory-mapped file in the meantime"),
    unset("runner.recompute_configs.checkpoint_shape", Kind::Ints(-1, MANY), "shape that every named checkpoint must have, batch included"),
    unset("runner.recompute_configs.offload_dir", Kind::Path, "folder of that file; else the system's temporary folder"),
    // Saving.
    unset("runner.run_dir", Kind::Path, "folder of the run: report, curves, epochs and checkpoints; else a new one below `runs`, as `--run-dir`"),
    unset("runner.model_save_path", Kind::Path, "saved models, one folder per epoch; else `epochs` in the folder of the run"),
    unset("runner.model_init_path", Kind::Path, "saved epoch to begin with"),
    unset("runner.init_var_names", Kind::Texts, "variables to take from model_init_path or warmup_model_path; others keep their initial values; else all"),
    key("runner.use_inference", Kind::Bool, "False", "also export an inference model every epoch"),
    unset("runner.save_inference_feed_varnames", Kind::Texts, "inputs of the inference model; else those that its outputs need"),
    unset("runner.save_inference_fetch_varnames", Kind::Texts, "outputs of the inference model; else the predictions"),
    // Checkpoints. Without any of them there are none, and they are not in the settings.
    unset("runner.checkpoint.dir", Kind::Folder, "checkpoints to resume from after a crash; else `checkpoints` in the folder of the run, if another of these keys is written"),
    unset("runner.checkpoint.local_dir", Kind::Path, "where checkpoints are written before they go to a remote `dir`; else a temporary folder"),
    key("runner.checkpoint.keep", Kind::Int(1, MANY), "3", "newest checkpoints that are kept"),
    key("runner.checkpoint.epoch_interval", Kind::Int(1, MANY), "1", "epochs that are multiples of it have checkpoints"),
    key("runner.checkpoint.step_interval", Kind::Int(1, MANY), "10", "in such an epoch, after batches that are multiples of it; with `seconds`, only if it is written"),
    unset("runner.checkpoint.seconds", Kind::Float, "also when the last checkpoint is that old"),
    key("runner.checkpoint.full_every", Kind::Int(1, MANY), "1", "with parameter servers, every N-th checkpoint is whole; those between hold changes"),
    key("runner.checkpoint.keep_when_done", Kind::Bool, "True", "leave the checkpoints when the job has reached its end"),
    key("runner.checkpoint.resume", Kind::Text, "auto", "what to resume from: auto, latest, none or a checkpoint"),
    // Data that arrive while training: by days, or as files and messages come.
    unset("runner.start_day", Kind::Text, "train by days from this one (20190720): train_data_dir/<day>/<time>/ as PaddleRec's online trainer reads it"),
    unset("runner.end_day", Kind::Text, "the last day; must be set with `start_day`"),
    key("runner.split_interval", Kind::Int(1, 1440), "5", "days: minutes of data in each folder of a day"),
    key("runner.split_per_pass", Kind::Int(1, 1440), "1", "days: such folders that are a data pass"),
    key("runner.checkpoint_per_pass", Kind::Int(1, MANY), "6", "days: a whole model after every N-th pass of a day"),
    unset("runner.save_delta_frequency", Kind::Int(1, MANY), "days: save what has changed in the model after every N-th pass of a day, which needs servers; else never"),
    key("runner.save_first_base", Kind::Bool, "False", "days: also save a model to serve before the first pass"),
    unset("runner.data_donefile", Kind::Text, "days: file in each of these folders that says that it is complete; else nothing is waited for"),
    key("runner.data_sleep_second", Kind::Int(1, MANY), "10", "days: seconds between two looks for it"),
    key("runner.data_wait_limit", Kind::Int(0, MANY), "86400", "days: seconds after which missing data are an error; 0 waits for ever, and says so"),
    key("runner.online.files_per_pass", Kind::Int(1, MANY), "16", "tail: most files in a data pass"),
    key("runner.online.messages_per_pass", Kind::Int(1, MANY), "100000", "streams: most messages in a data pass"),
    key("runner.online.linger_seconds", Kind::Float, "1", "streams: how long a data pass of fewer messages waits for more"),
    unset("runner.online.idle_seconds", Kind::Float, "end when nothing has come for this long; else never"),
    unset("runner.online.stop_file", Kind::Path, "end after the data pass in training when this file is there"),
    unset("runner.online.save_examples", Kind::Int(1, MANY), "save a model after the data pass in which this many examples are complete"),
    key("runner.online.save_seconds", Kind::Float, "600", "also when the last saved model is that old"),
    unset("runner.online.keep_models", Kind::Int(1, MANY), "newest saved models that are kept, older ones are removed; else all are kept"),
    // Evaluation.
    unset("runner.infer_batch_size", Kind::Int(1, BATCH), "examples per evaluation step; else `train_batch_size`"),
    unset("runner.infer_load_path", Kind::Path, "saved models to evaluate; else `model_save_path`, else those of the latest run"),
    key("runner.infer_start_epoch", Kind::Int(0, MANY), "0", "first epoch to evaluate"),
    unset("runner.infer_end_epoch", Kind::Int(1, MANY), "one after the last epoch to evaluate; else `epochs`"),
    unset("runner.gauc_by", Kind::Text, "slot whose values are groups, such as users: AUC within groups (gauc) and, with `ranking_k`, ranks"),
    unset("runner.slice_by", Kind::Texts, "slots whose values are measured by themselves: the ten largest, and all others together"),
    unset("runner.ranking_k", Kind::Ints(1, MANY), "lengths k of lists for hr@k, recall@k and ndcg@k; else 10 in models that are judged by lists"),
    // Several processes. Keys of other modes than the chosen one are not in the settings.
    refusing(key("runner.sync_mode", Kind::Choice(SYNC_MODES), "async", "how workers and servers keep in step; gpubox: rows on a device, in memory and on disk"), HETER),
    unset("runner.staleness", Kind::Int(0, MANY), "bounded: steps that a worker may be ahead of the slowest; must be set"),
    key("runner.max_merge_var_num", Kind::Int(0, IN_FLIGHT), "1", "async: batches whose gradients are added up before they are pushed"),
    key("runner.send_queue_size", Kind::Int(0, IN_FLIGHT), "16", "async: pushes that may be in flight; 1 while a worker waits for dense parameters after every push"),
    key("runner.pull_ahead", Kind::Int(0, IN_FLIGHT), "1", "async: batches that are prefetched at most, at the price of older rows"),
    key("runner.dense_ahead", Kind::Bool, "True", "async: weight prediction: dense parameters extrapolated by one update where another push comes first"),
    key("runner.min_send_grad_num_before_recv", Kind::Int(0, MANY), "1", "async: dense parameters are pulled with every Nth push; with 1 a prefetching worker waits for them"),
    unset("runner.send_wait_times", Kind::Int(0, MANY), "async: with max_merge_var_num, push what there is after N x 10 ms; else only when it is complete"),
    unset("runner.geo_step", Kind::Int(0, MANY), "geo: local steps between two exchanges; must be set"),
    key("runner.wire", Kind::Choice(&["f32", "f16", "bf16"]), "f32", "floats between workers and servers: whole, or rounded to 16 bits to halve the traffic"),
    key("runner.split_file_list", Kind::BoolOrAuto, "auto", "divide the data. auto: every example has one reader; True: workers of servers divide whole files; False: all read all"),
    key("runner.use_fleet", Kind::Bool, "False", "collective training by ranks without servers"),
    unset("runner.strategy", Kind::Path, "collective: file with a DistributedStrategy, as YAML or prototxt"),
    unset("runner.warmup_model_path", Kind::Path, "saved model that the servers begin with"),
    key("table_parameters.entry", Kind::Text, "none", "which ids become rows of tables: none, count_filter_entry:N or probability_entry:P"),
    unset("table_parameters.<table>.memory_mb", Kind::Int(1, MANY), "megabytes of rows of the table in the memory of each server; the other rows are on its disk"),
    unset("table_parameters.<table>.ssd_dir", Kind::Path, "with memory_mb: folder for rows on disk; must be set"),
    key("table_parameters.<table>.lookahead", Kind::Int(1, LOOKAHEAD), "8", "with memory_mb: batches ahead of training whose rows are read from disk"),
    unset("table_parameters.<table>.device_mb", Kind::Float, "gpubox: megabytes of the device for rows of the table; else a quarter of its memory, at most 1024"),
    // Columns of the data, and what becomes of their values.
    unset("features.<feature>.kind", Kind::Choice(FEATURE_KINDS), "what its values are; must be set"),
    unset("features.<feature>.column", Kind::Texts, "the column, or columns, that it is made of; else that of its name"),
    unset("features.<feature>.buckets", Kind::Int(1, MOST_IDS), "id, hash, cross: how many ids there are; must be set"),
    unset("features.<feature>.vocabulary", Kind::Path, "vocabulary: file with a text in each line; else it is learned"),
    unset("features.<feature>.words", Kind::Texts, "vocabulary: the texts themselves"),
    key("features.<feature>.min_count", Kind::Int(1, MANY), "1", "vocabulary that is learned: how often a text must be there"),
    key("features.<feature>.max_size", Kind::Int(1, MANY), "100000", "vocabulary that is learned: most texts"),
    unset("features.<feature>.boundaries", Kind::Floats, "bucketize: numbers between the intervals"),
    unset("features.<feature>.quantiles", Kind::Int(2, 65_536), "bucketize: learned intervals, each with as many values"),
    unset("features.<feature>.mean", Kind::Float, "standardize: else it is learned"),
    unset("features.<feature>.std", Kind::Float, "standardize: else it is learned"),
    unset("features.<feature>.threshold", Kind::Float, "label: 1 from this number on, 0 below; else the label is a whole number"),
    unset("features.<feature>.of", Kind::Text, "sequence: the feature whose ids and vectors it has; must be set"),
    unset("features.<feature>.split", Kind::Text, "the byte between several values in a text"),
    unset("features.<feature>.weight", Kind::Text, "the byte between a value and its weight; needs length"),
    unset("features.<feature>.length", Kind::Int(1, 65_536), "most values of an example, the last ones; floats: exactly as many"),
    unset("features.<feature>.default", Kind::Text, "what counts where there is no value"),
    unset("features.<feature>.table", Kind::Text, "the table of its vectors, which features may share; else one of its own"),
    unset("features.<feature>.dim", Kind::Int(1, 1 << 20), "floats of its vectors; else as many as the model says"),
    key("features.<feature>.pooling", Kind::Choice(POOLINGS), "sum", "how the vectors of several values become one"),
    // No meaning here.
    without_effect("runner.independent_recv_thread", Kind::Bool, "every connection has a receiving thread; pull_ahead prefetches"),
    without_effect("runner.thread_pool_size", Kind::Int(0, THREADS), "requests to all servers are in flight at the same time"),
    unset("runner.device", Kind::Text, "gpubox: auto, cpu, opencl[:n], opencl-cpu[:n] or cuda[:n]; else auto with use_gpu, cpu without"),
    unset("runner.use_gpu", Kind::Bool, "gpubox: compute on a device; an error where there is none. Other modes compute on the CPU, with a warning"),
    key("runner.require_gpu", Kind::Bool, "False", "an error instead of that warning, as `--require-gpu`"),
    off("runner.use_xpu", "training runs on the CPU"),
    off("runner.use_npu", "training runs on the CPU"),
    off("runner.with_coordinator", "there is no federated training"),
    ignored("runner.model_path", "models are built in: the key `model`, or the folder, names one"),
    ignored("runner.inference", "PaddleRec's trainers do not read it either"),
    empty("runner.data_dir", OFFLINE),
    ignored("runner.batch_size", OFFLINE),
    ignored("runner.init_model_path", OFFLINE),
    ignored("runner.model_mode", OFFLINE),
    ignored("runner.shots_shuffle_list", OFFLINE),
    ignored("runner.candidate_size", OFFLINE),
    ignored("runner.local_sparse", "belongs to federated training"),
    ignored("runner.remote_sparse", "belongs to federated training"),
    ignored("runner.auc_num", "all AUC counters of a model are reset together"),
    ignored("runner.use_visual", "curves are written for TensorBoard with --logdir"),
    ignored("runner.num_workers", "readers are threads: see reader_threads"),
    ignored("runner.batch_generator", "readers make whole batches"),
    ignored("runner.example_count_method", "throughput counts examples"),
    off("runner.parse_ins_id", "lines have no instance ids"),
    off("runner.parse_content", "lines have no extra content"),
    off("runner.need_dump", DUMP),
    ignored("runner.dump_fields_path", DUMP),
    ignored("runner.train_dump_fields_dir", DUMP),
    ignored("runner.infer_dump_fields_dir", DUMP),
    ignored("runner.dump_fields", DUMP),
    ignored("runner.dump_param", DUMP),
    off("runner.need_train_dump", DUMP),
    off("runner.need_infer_dump", DUMP),
    off("runner.use_out_vec", EMBEDDING_FILES),
    off("runner.use_save_data", EMBEDDING_FILES),
    ignored("runner.emb_weight_name", EMBEDDING_FILES),
    ignored("runner.out_vec_path", EMBEDDING_FILES),
    empty("runner.fs_name", REMOTE),
    empty("runner.fs_ugi", REMOTE),
    empty("runner.fs_client.uri", REMOTE),
    ignored("runner.fs_client.user", REMOTE),
    ignored("runner.fs_client.passwd", REMOTE),
    ignored("runner.fs_client.hadoop_bin", REMOTE),
    empty("runner.days", DAYS),
    ignored("runner.pass_per_day", DAYS),
    ignored("runner.prefetch", "files are read while others are trained"),
    ignored("runner.train_thread_num", THREADS_OF_READERS),
    ignored("runner.preload_thread_num", THREADS_OF_READERS),
    ignored("runner.shuffle_thread_num", THREADS_OF_READERS),
    ignored("runner.test_batch_size", TESTS),
    ignored("runner.test_thread_num", TESTS),
    ignored("runner.need_prune", "save_inference_fetch_varnames says what is exported"),
    ignored("runner.infer_data_dir", TESTS),
    ignored("runner.infer_thread_num", TESTS),
    // The network's section, apart from what the models list themselves.
    unset("hyper_parameters.optimizer.class", Kind::Text, "update rule; else that of the model"),
    unset("hyper_parameters.optimizer.learning_rate", Kind::Float, "base of the learning rate; else that of the model"),
    key("hyper_parameters.optimizer.adam_lazy_mode", Kind::Bool, "True", "only rows of a batch move; False: rows of earlier batches, too (not with servers)"),
    unset("hyper_parameters.optimizer.schedule", Kind::Text, "how the learning rate changes; else exponential with decay_steps, constant without"),
    unset("hyper_parameters.optimizer.clip_by_norm", Kind::Float, "largest norm of each gradient"),
    unset("hyper_parameters.optimizer.clip_by_global_norm", Kind::Float, "largest norm of all gradients together"),
    unset("hyper_parameters.optimizer.clip_by_value", Kind::Float, "largest absolute value in a gradient"),
    unset("hyper_parameters.reg", Kind::Float, "factor of the L2 regularization of all parameters"),
    ignored("hyper_parameters.optimizer.strategy", "runner.sync_mode says how workers and servers keep in step"),
    ignored("hyper_parameters.distributed_embedding", "follows from runner.sync_mode"),
    ignored("hyper_parameters.adam_d2sum", "dense parameters follow optimizer.class"),
    ignored("hyper_parameters.is_sparse", "gradients of embeddings are always sparse"),
];

/// Keys of sections that are ignored as a whole.
pub const IGNORED_SECTIONS: &[(&str, &str)] =
    &[("table_parameters", "rows follow optimizer.class; the Fleet API has accessors")];

/// The key of that name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|k| k.name == name)
}
