//! Where examples come from: the reading part of a configuration becomes a dataset.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use regatta_data::{
    Batches, Criteo, DataLoader, Dataset, Dictionary, Format, InMemoryDataset, LoaderOptions,
    MemoryOptions, PaddleRec, Position, QueueDataset, QueueOptions, RowUse, Schema, SkipGram, Slot,
    SlotKind, Source, Stages, Stores, Synthetic, Table, Visitor, list_files,
};
use regatta_exec::{available_memory, gigabytes};
use regatta_features::{Feature, Features, Learned, Transform};

use regatta_checkpoint::Checksum;
use regatta_train::{Feed, Sharing};

use crate::config::{FormatSpec, Reader, Reading};
use crate::run::Place;
use crate::{Config, Error};

/// A dataset that can be read again and again.
pub struct Data {
    kind: Kind,
    /// Examples of a data pass, as far as that can be known.
    pub examples: Option<u64>,
    /// What to say of data that are fewer than a batch.
    pub note: Option<String>,
    sharing: Sharing,
    /// Names and sizes of all files, in short.
    identity: Option<String>,
    /// For a worker of servers: opens the data of any other.
    shards: Option<ShardFn>,
}

impl Kind {
    fn new(
        reading: &Reading,
        source: Source,
        batch_size: usize,
        drop_last: bool,
    ) -> Result<Kind, Error> {
        let seed = reading.seed;
        Ok(match reading.reader {
            Reader::Loader { shuffle_buffer } => {
                let base = LoaderOptions::new(batch_size);
                let options = LoaderOptions { drop_last, shuffle_buffer, seed, ..base };
                Kind::Loader(DataLoader::new(source, options)?)
            }
            Reader::Queue { threads } => {
                let base = QueueOptions::new(batch_size);
                let options = QueueOptions { drop_last, thread_num: threads, ..base };
                Kind::Queue(QueueDataset::new(source, options)?)
            }
            Reader::Memory { threads, shuffle } => {
                let base = MemoryOptions::new(batch_size);
                let options = MemoryOptions { drop_last, thread_num: threads, ..base };
                let dataset = InMemoryDataset::new(source, options)?;
                Kind::Memory { dataset, shuffle, seed }
            }
        })
    }
}

type ShardFn = Box<dyn Fn(usize) -> Result<Data, Error>>;

enum Kind {
    Loader(DataLoader),
    Queue(QueueDataset),
    Memory { dataset: InMemoryDataset, shuffle: bool, seed: u64 },
}

impl Data {
    /// Finds the files (or the synthetic source) and checks that they can fill the slots. Nothing
    /// is read yet, but for data that are held in memory.
    ///
    /// # Errors
    /// If a key is not set, or there are no data.
    pub fn open(config: &Config, reading: &Reading, schema: &Schema) -> Result<Data, Error> {
        Data::open_for(config, reading, schema, &Place::Alone)
    }

    /// As [`Data::open`] for one process of a job. Processes divide the data between them, unless
    /// `split_file_list` is off: files (or the parts of a synthetic source), or the records of each
    /// file if there are fewer files than processes. Where the key is written, workers of servers
    /// divide whole files, as PaddleRec's do.
    ///
    /// # Errors
    /// As [`Data::open`].
    pub fn open_for(
        config: &Config,
        reading: &Reading,
        schema: &Schema,
        place: &Place<'_>,
    ) -> Result<Data, Error> {
        let (index, n) = place.index();
        match place {
            Place::Rank(_) => Data::open_divided(config, reading, schema, index, n),
            Place::Alone => Data::open_worker(config, reading, schema, (index, n)),
            Place::Worker(..) => {
                let mut data = Data::open_worker(config, reading, schema, (index, n))?;
                let own = (config.clone(), reading.clone(), schema.clone());
                let open = move |worker| Data::open_worker(&own.0, &own.1, &own.2, (worker, n));
                data.shards = Some(Box::new(open));
                Ok(data)
            }
        }
    }

    fn open_worker(
        config: &Config,
        reading: &Reading,
        schema: &Schema,
        place: (usize, usize),
    ) -> Result<Data, Error> {
        match config.runner.distributed.split_file_list {
            None => Data::open_divided(config, reading, schema, place.0, place.1),
            Some(split) => Data::open_share(config, reading, schema, place, split, Source::split),
        }
    }

    /// As ranks divide them, and workers unless the file says how; so do workers of an evaluation.
    pub(crate) fn open_divided(
        config: &Config,
        reading: &Reading,
        schema: &Schema,
        index: usize,
        n: usize,
    ) -> Result<Data, Error> {
        let split = config.runner.distributed.split_file_list.unwrap_or(true);
        let divide = |source: Source, rank, ranks| match source.parts().len() >= ranks {
            true => source.split(rank, ranks),
            false => source.every_nth(rank, ranks),
        };
        let mut data = Data::open_share(config, reading, schema, (index, n), split, divide)?;
        if split && n > 1 {
            // Fewer files than processes are divided line by line, which depends on their number.
            data.sharing = Sharing::Mixed;
        }
        Ok(data)
    }

    fn open_share(
        config: &Config,
        reading: &Reading,
        schema: &Schema,
        (worker, workers): (usize, usize),
        split: bool,
        divide: fn(Source, usize, usize) -> Result<Source, regatta_data::Error>,
    ) -> Result<Data, Error> {
        let divided = split && workers > 1;
        let mut own = reading.clone();
        if let Some(url) = reading.data.as_deref().filter(|d| divided && Synthetic::is_url(d)) {
            own.data = Some(part_of_url(url, worker as u64, workers as u64)?);
        }
        let (mut source, mut examples, identity) = source(config, &own, schema)?;
        if divided && reading.data == own.data {
            source = divide(source, worker, workers)?;
            examples = examples.map(|n| n / workers as u64);
        }
        if config.runner.check_memory && matches!(reading.reader, Reader::Memory { .. }) {
            check_fits(reading, schema, examples)?;
        }
        let batch_size = required(reading.batch_size, reading.batch_key)?;
        let note = examples.and_then(|n| only_batch(reading, n, batch_size, workers, divided));
        let drop_last = reading.drop_last && note.is_none();
        let kind = Kind::new(reading, source, batch_size, drop_last)?;
        let sharing = sharing(config, reading);
        Ok(Data { kind, examples, note, sharing, identity, shards: None })
    }

    /// The part of worker `(index, n)` in one data pass over data that arrive while training. Parts
    /// are divided, or the records of each of them if they are fewer than the workers.
    pub(crate) fn of_pass(
        config: &Config,
        schema: &Schema,
        parts: &[String],
        (worker, workers): (usize, usize),
        stores: &Stores,
    ) -> Result<Data, Error> {
        let reading = &config.runner.train;
        let spec = reading.format.as_ref().expect("data that arrive have a format");
        let parts: Vec<PathBuf> = parts.iter().map(PathBuf::from).collect();
        let format = format(config, spec, schema, reading.seed)?;
        let source = Source::arrived(schema.clone(), format, parts)?;
        let mut source = from_files(config, reading, source, stores)?;
        if config.runner.distributed.split_file_list.unwrap_or(true) && workers > 1 {
            source = match source.parts().len() >= workers {
                true => source.split(worker, workers)?,
                false => source.every_nth(worker, workers)?,
            };
        }
        let batch_size = required(reading.batch_size, reading.batch_key)?;
        let kind = Kind::new(reading, source, batch_size, reading.drop_last)?;
        let (examples, note, identity, shards) = (None, None, None, None);
        Ok(Data { kind, examples, note, sharing: Sharing::Mixed, identity, shards })
    }

    /// Starts a data pass. The first one of data that are held in memory loads them, and the stages
    /// of loading come back with it.
    ///
    /// # Errors
    /// Whatever loading meets.
    pub fn pass(&mut self, epoch: u64) -> Result<(Batches, Stages), Error> {
        self.resume(epoch, &Position::default())
    }

    /// As [`Data::pass`], from where an earlier data pass over the same data stood.
    ///
    /// # Errors
    /// Whatever loading meets.
    pub fn resume(&mut self, epoch: u64, from: &Position) -> Result<(Batches, Stages), Error> {
        let mut loading = Stages::default();
        let batches = match &mut self.kind {
            Kind::Loader(dataset) => dataset.resume(epoch, from)?,
            Kind::Queue(dataset) => dataset.resume(epoch, from)?,
            Kind::Memory { dataset, shuffle, seed } => {
                if dataset.memory_data_size() == 0 {
                    dataset.load_into_memory()?;
                    self.examples = Some(dataset.memory_data_size() as u64);
                    loading = dataset.load_stages();
                }
                if *shuffle {
                    // Seeds of different epochs must not meet those of other runs.
                    let mixed = seed.wrapping_add(epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    dataset.local_shuffle(mixed)?;
                }
                dataset.resume(epoch, from)?
            }
        };
        Ok((batches, loading))
    }
}

impl regatta_train::Data for Data {
    fn begin_pass(
        &mut self,
        epoch: u64,
        from: &Position,
    ) -> Result<(Box<dyn Feed + '_>, Stages), regatta_train::Error> {
        let (batches, loading) = self.resume(epoch, from).map_err(Error::in_loop)?;
        Ok((Box::new(batches), loading))
    }

    fn reads_all_shards(&self) -> bool {
        self.shards.is_some()
    }

    fn shard(&self, worker: usize) -> Result<Box<dyn regatta_train::Data>, regatta_train::Error> {
        let open = self.shards.as_ref().ok_or_else(|| {
            regatta_train::Error::Internal("only workers of servers take data over".into())
        })?;
        Ok(Box::new(open(worker).map_err(Error::in_loop)?))
    }

    fn identity(&self) -> Option<String> {
        self.identity.clone()
    }

    fn examples(&self) -> Option<u64> {
        self.examples
    }

    fn sharing(&self) -> Sharing {
        self.sharing
    }
}

/// Checks that data that are held in memory fit, as far as their size is known: a record has at
/// least the bytes of its values and of its place in the order.
fn check_fits(reading: &Reading, schema: &Schema, examples: Option<u64>) -> Result<(), Error> {
    // What a command makes of a line is not known, nor are the rows of a file that is not text.
    let known = reading.pipe_command.is_none()
        && !matches!(reading.format, Some(FormatSpec::Parquet { .. }));
    let (Some(examples), Some(available)) = (examples.filter(|_| known), available_memory()) else {
        return Ok(());
    };
    let bytes = |slot: &Slot| match slot.kind {
        SlotKind::Label | SlotKind::Ids => 8,
        SlotKind::Dense { dim } => 4 * dim as u64,
        SlotKind::FixedIds { count } | SlotKind::Ints { count } => 8 * count as u64,
    };
    let record = 8 + schema.slots().iter().map(bytes).sum::<u64>();
    let needed = examples.saturating_mul(record);
    if needed <= available.bytes {
        return Ok(());
    }
    let needed = gigabytes(needed);
    Err(Error::Memory(format!(
        "{}: InmemoryDataset holds about {examples} examples of {record} bytes or more, {needed}, \
         but {available}; read them with QueueDataset, or try all the same with \
         -o runner.check_memory=False",
        reading.data_key
    )))
}

/// What to say where this process has fewer examples than a batch, if they are trained even so.
fn only_batch(
    reading: &Reading,
    examples: u64,
    batch_size: usize,
    processes: usize,
    divided: bool,
) -> Option<String> {
    if !reading.drop_last || !reading.keep_only_batch || examples >= batch_size as u64 {
        return None;
    }
    let whose = match (divided, processes) {
        (_, 1) => String::new(),
        (true, n) => format!(" for each of {n} processes (runner.split_file_list divides them)"),
        (false, n) => format!(" for each of {n} processes (runner.split_file_list is off)"),
    };
    Some(format!(
        "{}: about {examples} examples{whose} are fewer than {} ({batch_size}); the incomplete \
         batch is trained",
        reading.data_key, reading.batch_key
    ))
}

/// How workers divide these data.
fn sharing(config: &Config, reading: &Reading) -> Sharing {
    let url = reading.data.as_deref().is_some_and(Synthetic::is_url);
    let in_order =
        matches!(reading.reader, Reader::Loader { shuffle_buffer: 0 } | Reader::Queue { .. });
    match config.runner.distributed.split_file_list {
        Some(false) => Sharing::Everything,
        Some(true) if in_order && !url => Sharing::Files,
        _ => Sharing::Mixed,
    }
}

/// The URL of one worker's part of a synthetic source: as many examples as the others', one after
/// the other.
fn part_of_url(url: &str, worker: u64, workers: u64) -> Result<String, Error> {
    let full = Synthetic::parse(url)?.to_string();
    let number = |name: &str| {
        let parameters = full.split(['?', '&']);
        let value = parameters.into_iter().find_map(|p| p.strip_prefix(&format!("{name}=")));
        value.and_then(|v| v.parse::<u64>().ok()).unwrap_or(0)
    };
    let (first, examples) = (number("first"), number("examples"));
    let (from, to) = (examples * worker / workers, examples * (worker + 1) / workers);
    if from == to {
        let reason = format!("{examples} examples are too few for {workers} workers");
        return Err(Error::Evaluation(format!("{url}: {reason}")));
    }
    let set = |p: &str| {
        if p.starts_with("first=") {
            format!("first={}", first + from)
        } else if p.starts_with("examples=") {
            format!("examples={}", to - from)
        } else {
            p.to_string()
        }
    };
    let (base, parameters) = full.split_once('?').unwrap_or((&full, ""));
    Ok(format!("{base}?{}", parameters.split('&').map(set).collect::<Vec<_>>().join("&")))
}

/// The questions of word analogies.
pub(crate) fn analogies(config: &Config) -> Result<Vec<[u64; 4]>, Error> {
    let reading = &config.runner.test;
    let data = required(reading.data.as_deref(), reading.data_key)?;
    if Synthetic::is_url(data) {
        let synthetic = Synthetic::parse(data)?;
        return synthetic.analogies().ok_or_else(|| {
            Error::Evaluation(format!("{data}: only synthetic://corpus has analogy questions"))
        });
    }
    let slots = ["a", "b", "c", "d"].map(|name| Slot::fixed_ids(name, 1)).to_vec();
    let schema = Schema::new(slots)?;
    let mut questions = Vec::new();
    let (mut batches, _) = Data::open(config, reading, &schema)?.pass(0)?;
    while let Some(batch) = batches.next()? {
        let column = |i: usize| batch.values()[i].as_dense().expect("ids of a fixed number").u64();
        questions.extend((0..batch.examples()).map(|row| [0, 1, 2, 3].map(|i| column(i)[row])));
        batches.recycle(batch);
    }
    Ok(questions)
}

fn required<T>(value: Option<T>, key: &str) -> Result<T, Error> {
    value.ok_or_else(|| Error::Config(vec![format!("{key}: must be set")]))
}

fn source(
    config: &Config,
    reading: &Reading,
    schema: &Schema,
) -> Result<(Source, Option<u64>, Option<String>), Error> {
    let data = required(reading.data.as_deref(), reading.data_key)?;
    if Synthetic::is_url(data) {
        let (source, examples) = synthetic(config, reading, data, schema)?;
        return Ok((source, examples, None));
    }
    let stores = Stores::new();
    let files = list_files(data, &stores)?;
    let identity = Some(identity(&files));
    let spec = reading.format.as_ref().expect("files have a format");
    let examples = match spec {
        // One line gives many samples.
        FormatSpec::Word2vec { .. } => None,
        _ => estimate(&files),
    };
    let format = format(config, spec, schema, reading.seed)?;
    let source = Source::files(schema.clone(), format, files)?;
    Ok((from_files(config, reading, source, &stores)?, examples, identity))
}

fn synthetic(
    config: &Config,
    reading: &Reading,
    url: &str,
    schema: &Schema,
) -> Result<(Source, Option<u64>), Error> {
    let synthetic = Synthetic::parse(url)?;
    let own = synthetic.schema();
    for slot in schema.slots() {
        let found = own.slots().iter().find(|s| s.name == slot.name);
        if found.is_none_or(|s| s.kind != slot.kind) {
            let found = found.map_or("no such slot".to_string(), |s| format!("{:?}", s.kind));
            let reason = format!(
                "model {} reads slot '{}' as {:?}, but {url} has {found}; make the parameters of \
                 the source and the hyper-parameters of the model the same",
                config.model.name, slot.name, slot.kind
            );
            return Err(Error::Config(vec![format!("{}: {reason}", reading.data_key)]));
        }
    }
    let corpus = synthetic.dictionary().is_some();
    let examples = (!corpus).then(|| synthetic.examples());
    Ok((Source::from(synthetic), examples))
}

/// Shows the raw values of data to a function, row by row: those of the given columns.
///
/// # Errors
/// If they are no tables, or cannot be read.
pub fn visit_rows(
    config: &Config,
    reading: &Reading,
    columns: Vec<String>,
    visit: Visitor,
) -> Result<(), Error> {
    let data = required(reading.data.as_deref(), reading.data_key)?;
    let rows = RowUse::Visit([].into(), visit.clone());
    let format = match &reading.format {
        Some(FormatSpec::Table { delimiter, header, .. }) => {
            Format::Table(Table { delimiter: *delimiter, header: *header, rows })
        }
        Some(FormatSpec::Parquet { .. }) => parquet(rows)?,
        _ => {
            let reason = "only csv, tsv and parquet data have columns";
            return Err(Error::key(reading.data_key, reason));
        }
    };
    let stores = Stores::new();
    let files = list_files(data, &stores)?;
    let schema = Schema::new(vec![Slot::ids("row")])?;
    let source = from_files(config, reading, Source::files(schema, format, files)?, &stores)?;
    Ok(source.visit_rows(columns, visit)?)
}

/// With everything that the configuration says about files.
fn from_files(
    config: &Config,
    reading: &Reading,
    source: Source,
    stores: &Stores,
) -> Result<Source, Error> {
    let mut source = source.with_stores(stores);
    if let Some(command) = &reading.pipe_command {
        source = source.with_pipe_command(&in_folder(config, &command.text))?;
        if let Some(timeout) = command.timeout {
            source = source.with_pipe_timeout(timeout);
        }
    }
    Ok(source.with_max_bad_lines(reading.max_bad_lines))
}

/// What becomes of the columns of a configuration's data.
///
/// # Errors
/// If it declares no features, or something has to be learned about them first.
pub fn transform(config: &Config) -> Result<Transform, Error> {
    let set = config.features.as_ref().ok_or_else(|| Error::key("features", "must be there"))?;
    Ok(Transform::new(&set.features, &set.learned)?)
}

/// The same for data to be scored: labels may be missing, and some columns go along.
fn to_score(transform: Transform, scored: Option<&[Feature]>) -> Result<Transform, Error> {
    let Some(kept) = scored else { return Ok(transform) };
    let all = [transform.features().all(), kept].concat();
    let more = Transform::new(&Features::new(all)?, transform.learned())?;
    Ok(more.with_optional_labels())
}

fn format(config: &Config, spec: &FormatSpec, schema: &Schema, seed: u64) -> Result<Format, Error> {
    Ok(match spec {
        FormatSpec::MultiSlot => Format::MultiSlot,
        FormatSpec::Criteo => Format::Criteo(criteo_keys(schema)),
        FormatSpec::CriteoLog => Format::PaddleRec(PaddleRec::LogDense(criteo_keys(schema))),
        FormatSpec::PaddleRec(format) => Format::PaddleRec(format.clone()),
        FormatSpec::VectorPairs => Format::PaddleRec(PaddleRec::Vectors),
        FormatSpec::CriteoRaw(raw) => Format::CriteoRaw(raw.clone()),
        FormatSpec::Table { delimiter, header, features, scored } => {
            let (delimiter, header) = (*delimiter, *header);
            let transform = match features {
                Some(features) => Transform::new(features, &Learned::default())?,
                None => transform(config)?,
            };
            let transform = to_score(transform, scored.as_deref())?;
            Format::Table(Table { delimiter, header, rows: RowUse::Records(transform) })
        }
        FormatSpec::Parquet { scored } => {
            let transform = to_score(transform(config)?, scored.as_deref())?;
            parquet(RowUse::Records(transform))?
        }
        FormatSpec::Word2vec { counts, ids, tokens, window_size, negatives } => {
            let dictionary = Arc::new(Dictionary::load(counts, ids)?);
            let skip_gram = SkipGram::new(dictionary, *window_size, *negatives, *tokens, seed)?;
            Format::SkipGram(skip_gram)
        }
        FormatSpec::Analogy { counts, ids } => {
            Format::Analogy(Arc::new(Dictionary::load(counts, ids)?))
        }
    })
}

/// The keys of PaddleRec's sample for a schema: `click` and `dense_feature` beside the numbered
/// slots.
pub fn criteo_keys(schema: &Schema) -> Criteo {
    let key = |slot: &Slot| match slot.name.as_str() {
        "label" => "click".to_string(),
        "dense_input" => "dense_feature".to_string(),
        name => name.to_string(),
    };
    Criteo { keys: schema.slots().iter().map(key).collect() }
}

#[cfg(feature = "parquet")]
fn parquet(rows: RowUse) -> Result<Format, Error> {
    Ok(Format::Parquet(rows))
}

#[cfg(not(feature = "parquet"))]
fn parquet(_rows: RowUse) -> Result<Format, Error> {
    let reason = "this program was built without the feature 'parquet'";
    Err(Error::key("runner.data_format", reason))
}

/// The command as run in the folder of the configuration file, `{config}` being that file. A
/// command that names a file of an enclosing folder runs there: PaddleRec's are run in its root.
fn in_folder(config: &Config, command: &str) -> String {
    let quoted = |path: &Path| format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"));
    let file = config.dir.join(config.path.file_name().unwrap_or_default());
    let folder = folder_of_command(&config.dir, command);
    let command = command.replace("{config}", &quoted(&file));
    format!("cd {} && {command}", quoted(folder))
}

fn folder_of_command<'a>(dir: &'a Path, command: &str) -> &'a Path {
    let words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
    let mut files = words.filter(|word| word.contains('/') && !word.starts_with(['/', '-', '{']));
    let Some(file) = files.next() else { return dir };
    dir.ancestors().find(|folder| folder.join(file).is_file()).unwrap_or(dir)
}

/// What a list of files is, so that another one is noticed: their number, their bytes, and a
/// checksum of their names and sizes.
fn identity(files: &[PathBuf]) -> String {
    let (mut names, mut bytes) = (String::new(), 0);
    for file in files {
        let size = file.metadata().map_or(0, |found| found.len());
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        names.push_str(&format!("{name}\n{size}\n"));
        bytes += size;
    }
    let plural = if files.len() == 1 { "" } else { "s" };
    let Checksum(checksum) = Checksum::of(names.as_bytes());
    format!("{} file{plural} of {bytes} bytes (checksum {checksum:016x})", files.len())
}

/// About how many lines there are, by the length of the first ones.
fn estimate(files: &[PathBuf]) -> Option<u64> {
    const SAMPLE: usize = 1 << 18;
    let packed = |p: &Path| p.extension().is_some_and(|e| e == "gz" || e == "zst" || e == "zstd");
    if files.iter().any(|f| packed(f)) {
        return None;
    }
    let bytes: u64 = files.iter().filter_map(|f| Some(f.metadata().ok()?.len())).sum();
    let mut sample = Vec::new();
    std::fs::File::open(files.first()?).ok()?.take(SAMPLE as u64).read_to_end(&mut sample).ok()?;
    let lines = sample.iter().filter(|b| **b == b'\n').count() as u64;
    (lines > 0).then(|| bytes * lines / sample.len() as u64)
}
