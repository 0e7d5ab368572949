//! `regatta predict`: scores files with a trained model on this machine.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail};
use regatta_checkpoint::{Encoding, PROGRAM_FILE, verify_model};
use regatta_data::{Batch, STDIN, Schema, Slot};
use regatta_features::NO_LABEL;
use regatta_predict::{Error as PredictError, MissingIds, Model, Options, Session};
use regatta_rec::config::Reading;
use regatta_rec::data::Data;
use regatta_rec::network::Network;
use regatta_rec::{Config, ModelSource};
use regatta_tensor::{Data as Numbers, Tensor, Value};
use regatta_train::metrics::{ExampleKeys, Grouping, Meter};

use super::Outcome;
use super::export::{Scratch, config_of, export};
use super::remote::{CacheArgs, local};
use super::scores::ScoreFile;

/// Scores data with an exported model, or straight from a checkpoint or a saved epoch.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An exported model, a checkpoint, a directory of checkpoints, or the folder of an epoch; a
    /// path or the address of a remote store.
    #[arg(short = 'm', long = "model", value_name = "MODEL")]
    model: PathBuf,
    #[command(flatten)]
    copies: CacheArgs,
    /// A directory of files of the format of the test data, a synthetic:// URL, or - for a file of
    /// that format on standard input; else the test data of the configuration.
    #[arg(long, value_name = "DIR|-")]
    data: Option<String>,
    /// Where scores go, a row for each example in the order of the data: .csv, .tsv or .parquet.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Columns of csv, tsv or parquet data that are written before the scores: their names or, in
    /// files without a line of names, their numbers from 0.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',', requires = "out")]
    keep: Vec<String>,
    /// The YAML file of the training, where the model does not say what it is.
    #[arg(long, value_name = "CONFIG")]
    config: Option<PathBuf>,
    /// Values that override the configuration.
    #[arg(short = 'o', long = "opt", value_name = "section.key=value", num_args = 1..)]
    overrides: Vec<String>,
    /// Threads that score batches.
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::threads)]
    threads: usize,
    /// What becomes of ids that were never trained.
    #[arg(long, value_enum, default_value_t = MissingRows::Zero)]
    missing_ids: MissingRows,
    /// First compare every byte of the model with its checksums.
    #[arg(long)]
    verify: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum MissingRows {
    /// They count as zeros, and are counted.
    Zero,
    /// They end the command.
    Error,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let overrides = with_data(&args.overrides, args.data.as_ref())?;
    let missing_ids = match args.missing_ids {
        MissingRows::Zero => MissingIds::Zero,
        MissingRows::Error => MissingIds::Error,
    };
    let options = Options { missing_ids, threads: 1 };
    // Lives as long as the model that is mapped in it.
    let scratch;
    let from = local(&args.model, args.copies.cache())?;
    let (path, config) = if from.join(PROGRAM_FILE).exists() {
        (from.as_path(), None)
    } else {
        let trained = ModelSource::open(&from)?;
        let config = config_of(&trained, &from, args.config.as_deref(), &overrides)?;
        scratch = Scratch::beside(args.out.as_deref().unwrap_or(Path::new("scores")))?;
        export(&trained, &config, scratch.path(), Encoding::F32)?;
        (scratch.path(), Some(config))
    };
    if args.verify {
        verify_model(path)?;
    }
    let model = Model::open_with(path, options)?;
    let config = match (config, &args.config) {
        (Some(config), _) => config,
        (None, Some(file)) => Config::load(file, &overrides)?,
        (None, None) => Config::from_json(&model.manifest().about.config, path, &overrides)
            .with_context(|| "name the YAML file of the training with --config".to_string())?,
    };
    score(args, &model, &config)
}

/// Overrides with the data that a flag names.
pub(super) fn with_data(
    overrides: &[String],
    data: Option<&String>,
) -> anyhow::Result<Vec<String>> {
    let mut all = overrides.to_vec();
    if let Some(data) = data {
        // Paths of flags start from here, those of the file from its folder.
        let data = match data.contains("://") || data == STDIN {
            true => data.clone(),
            false => std::path::absolute(data)?.to_string_lossy().into_owned(),
        };
        all.push(format!("runner.test_data_dir={data}"));
    }
    Ok(all)
}

fn score(args: &Args, model: &Model, config: &Config) -> anyhow::Result<Outcome> {
    let network = Network::build(config)?;
    let (mut reading, schema) = reading_with(("--keep", &args.keep), config, &network)?;
    if args.data.as_deref() == Some(STDIN) {
        reading.data = Some(STDIN.to_string());
    }
    let mut data = Data::open(config, &reading, &schema)?;
    let mut judge = Judge::new(args, model, &network, &config.runner.grouping)?;
    let start = Instant::now();
    let (mut batches, _) = data.pass(0)?;
    let missing = thread::scope(|scope| -> anyhow::Result<u64> {
        let mut lanes = Vec::new();
        for _ in 0..args.threads {
            lanes.push(Lane::start(scope, model.session()?, model));
        }
        let mut sent = 0;
        while let Some(batch) = batches.next()? {
            let lane = &lanes[sent % lanes.len()];
            if sent >= 2 * lanes.len() {
                judge.take(lane)?;
            }
            lane.send(batch)?;
            sent += 1;
        }
        let waiting = sent.min(2 * lanes.len());
        for i in sent - waiting..sent {
            judge.take(&lanes[i % lanes.len()])?;
        }
        lanes.into_iter().map(Lane::end).sum()
    })?;
    let bad = batches.bad_lines();
    if bad.count > 0 {
        eprintln!("note: {} malformed lines were skipped", bad.count);
    }
    judge.finish(start.elapsed().as_secs_f64(), missing)
}

/// What is read: the test data in their order, with the columns that a flag keeps.
pub(super) fn reading_with(
    (flag, keep): (&str, &[String]),
    config: &Config,
    network: &Network,
) -> anyhow::Result<(Reading, Schema)> {
    let mut reading = config.runner.test.in_order();
    let texts: Vec<(String, String)> =
        keep.iter().map(|name| (name.clone(), kept_slot(name))).collect();
    let format = match &reading.format {
        Some(format) => format.to_score(&texts).map(Some),
        None if keep.is_empty() => Ok(None),
        None => Err("synthetic data have no columns".to_string()),
    };
    reading.format = format.map_err(|reason| anyhow::anyhow!("{flag}: {reason}"))?;
    let slots = texts.into_iter().map(|(_, slot)| Slot::ids(slot));
    let schema = Schema::new(network.schema.slots().iter().cloned().chain(slots).collect());
    Ok((reading, schema.map_err(|reason| anyhow::anyhow!("{flag}: {reason}"))?))
}

/// The slot of a column that is kept; no slot of a model has such a name.
pub(super) fn kept_slot(column: &str) -> String {
    format!("column {column}")
}

type ScoreResult = Result<(Batch, Vec<Tensor>), PredictError>;

/// A thread that scores batches; each lane has at most two of them.
struct Lane<'s> {
    batches: SyncSender<Batch>,
    scored: Receiver<ScoreResult>,
    thread: thread::ScopedJoinHandle<'s, u64>,
}

impl<'s> Lane<'s> {
    fn start<'e>(scope: &'s thread::Scope<'s, 'e>, session: Session, model: &Model) -> Lane<'s> {
        let (batches, to_score) = sync_channel(2);
        let (scores, scored) = sync_channel(2);
        let inputs: Vec<String> = model.inputs().iter().map(|input| input.name.clone()).collect();
        let thread = scope.spawn(move || work(session, &inputs, &to_score, &scores));
        Lane { batches, scored, thread }
    }

    fn send(&self, batch: Batch) -> anyhow::Result<()> {
        self.batches.send(batch).map_err(|_| anyhow::anyhow!("a thread that scores is gone"))
    }

    fn end(self) -> anyhow::Result<u64> {
        drop(self.batches);
        self.thread.join().map_err(|_| anyhow::anyhow!("a thread that scores has panicked"))
    }
}

/// Scores batches until there are no more; gives how many ids had no row.
fn work(
    mut session: Session,
    inputs: &[String],
    batches: &Receiver<Batch>,
    scores: &SyncSender<ScoreResult>,
) -> u64 {
    for batch in batches {
        let wanted = |(name, _): &(&str, &Value)| inputs.iter().any(|input| input == name);
        let feeds: Vec<(&str, &Value)> = batch.iter().filter(wanted).collect();
        let scored = session.score(&feeds).map(<[Tensor]>::to_vec);
        // The other side is gone after an error there.
        if scores.send(scored.map(|scored| (batch, scored))).is_err() {
            break;
        }
    }
    session.missing_ids()
}

/// Writes scores and measures them where there are labels.
struct Judge<'a> {
    network: &'a Network,
    /// What tells examples apart.
    keys: ExampleKeys,
    /// The variables that the model gives.
    outputs: Vec<String>,
    /// Columns that go along.
    keep: Vec<String>,
    /// Output, label and meter of each head that is among the outputs.
    meters: Vec<(usize, String, Meter)>,
    file: Option<ScoreFile>,
    examples: u64,
    /// Labels that were missing.
    unlabelled: u64,
}

/// Measures the rows that have a label; gives how many have none.
fn add_labelled(meter: &mut Meter, scores: &Tensor, label: &Tensor) -> anyhow::Result<u64> {
    let Numbers::I64(labels) = label.data() else {
        meter.add(scores, label);
        return Ok(0);
    };
    let has_label = |row: &usize| labels[*row] != NO_LABEL;
    let rows: Vec<usize> = (0..labels.len()).filter(has_label).collect();
    if rows.len() == labels.len() {
        meter.add(scores, label);
    } else if !rows.is_empty() {
        let width = scores.numel() / labels.len();
        let of = |row: &usize| scores.f32()[row * width..(row + 1) * width].to_vec();
        let values = rows.iter().flat_map(of).collect();
        let kept = rows.iter().map(|row| labels[*row]).collect();
        meter.add(
            &Tensor::from_f32(&[rows.len(), width], values)?,
            &Tensor::from_i64(&[rows.len(), 1], kept)?,
        );
    }
    Ok((labels.len() - rows.len()) as u64)
}

impl<'a> Judge<'a> {
    fn new(
        args: &Args,
        model: &Model,
        network: &'a Network,
        grouping: &Grouping,
    ) -> anyhow::Result<Judge<'a>> {
        let outputs = model.outputs().to_vec();
        let heads = network.heads.iter().filter_map(|head| {
            let at = outputs.iter().position(|output| *output == head.predict)?;
            Some((at, head.label.clone(), Meter::exact(head.metric, head.kind)))
        });
        let meters = heads.collect();
        let file = args.out.as_deref().map(ScoreFile::create).transpose()?;
        let keys = ExampleKeys::new(grouping);
        let keep = args.keep.clone();
        Ok(Judge { network, keys, meters, file, outputs, keep, examples: 0, unlabelled: 0 })
    }

    /// Takes the next batch of a lane.
    fn take(&mut self, lane: &Lane<'_>) -> anyhow::Result<()> {
        let (batch, scores) = match lane.scored.recv() {
            Ok(scored) => scored?,
            Err(_) => bail!("a thread that scores is gone"),
        };
        let before = self.unlabelled;
        for (at, label, meter) in &mut self.meters {
            let label = batch.iter().find(|(name, _)| name == label);
            if let Some(label) = label.and_then(|(_, value)| value.as_dense()) {
                self.unlabelled += add_labelled(meter, &scores[*at], label)?;
            }
        }
        // Examples without a label have no score among those that are judged.
        if before == self.unlabelled {
            self.keys.add(batch.examples(), |name| batch.get(name)).map_err(anyhow::Error::msg)?;
        }
        if let Some(file) = &mut self.file {
            let outputs = self.outputs.iter().zip(&scores);
            let outputs: Vec<(String, Tensor)> =
                outputs.map(|(name, values)| self.network.named_output(name, values)).collect();
            let named: Vec<_> = outputs.iter().map(|(name, v)| (name.as_str(), v)).collect();
            let column = |name| {
                let rows = 0..batch.examples();
                rows.map(|row| batch.text(&kept_slot(name), row).unwrap_or_default()).collect()
            };
            let kept: Vec<(&str, Vec<String>)> =
                self.keep.iter().map(|name| (name.as_str(), column(name))).collect();
            file.write(batch.examples(), &kept, &named)?;
        }
        self.examples += batch.examples() as u64;
        Ok(())
    }

    fn finish(self, seconds: f64, missing: u64) -> anyhow::Result<Outcome> {
        let mut out = io::stdout().lock();
        let examples = self.examples;
        if let Some(file) = self.file {
            writeln!(out, "{}", file.finish()?)?;
        }
        let alone = self.meters.len() == 1;
        let meters: Vec<Meter> = self.meters.into_iter().map(|(_, _, meter)| meter).collect();
        let measures = meters.iter().flat_map(|meter| meter.all(alone));
        for (name, value) in measures.chain(self.keys.measures(&meters)) {
            writeln!(out, "{name}: {value}")?;
        }
        match self.unlabelled {
            0 => {
                for slice in self.keys.slices(&meters) {
                    writeln!(out, "{slice}")?;
                }
            }
            n => writeln!(out, "labels missing: {n}")?,
        }
        if missing > 0 {
            writeln!(out, "ids without a row, taken as zeros: {missing}")?;
        }
        let rate = examples as f64 / seconds.max(1e-9);
        writeln!(out, "{examples} examples in {seconds:.2} s, {rate:.0} examples/s")?;
        Ok(Outcome::Done)
    }
}
