//! `regatta predict`: scores files with a trained model on this machine.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail};
use regatta_checkpoint::{Encoding, PROGRAM_FILE, verify_model};
use regatta_data::Batch;
use regatta_predict::{Error as PredictError, MissingIds, Model, Options, Session};
use regatta_rec::data::Data;
use regatta_rec::network::Network;
use regatta_rec::{Config, ModelSource};
use regatta_tensor::{Tensor, Value};
use regatta_train::metrics::Meter;

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
    /// A directory of files of the format of the test data, or a synthetic:// URL; else the test
    /// data of the configuration.
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Where scores go, as CSV: a line for each example, in the order of the data.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
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
    let overrides = overrides(args)?;
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

fn overrides(args: &Args) -> anyhow::Result<Vec<String>> {
    let mut all = args.overrides.clone();
    if let Some(data) = &args.data {
        // Paths of flags start from here, those of the file from its folder.
        let data = match data.contains("://") {
            true => data.clone(),
            false => std::path::absolute(data)?.to_string_lossy().into_owned(),
        };
        all.push(format!("runner.test_data_dir={data}"));
    }
    Ok(all)
}

fn score(args: &Args, model: &Model, config: &Config) -> anyhow::Result<Outcome> {
    let network = Network::build(config)?;
    let mut data = Data::open(config, &config.runner.test.in_order(), &network.schema)?;
    let mut judge = Judge::new(args, model, &network)?;
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
struct Judge {
    outputs: Vec<String>,
    /// Output, label and meter of each head that is among the outputs.
    meters: Vec<(usize, String, Meter)>,
    file: Option<ScoreFile>,
    examples: u64,
}

impl Judge {
    fn new(args: &Args, model: &Model, network: &Network) -> anyhow::Result<Judge> {
        let outputs = model.outputs().to_vec();
        let heads = network.heads.iter().filter_map(|head| {
            let at = outputs.iter().position(|output| *output == head.predict)?;
            Some((at, head.label.clone(), Meter::exact(head.metric, head.kind)))
        });
        let meters = heads.collect();
        let file = args.out.as_deref().map(ScoreFile::create);
        Ok(Judge { meters, file: file.transpose()?, outputs, examples: 0 })
    }

    /// Takes the next batch of a lane.
    fn take(&mut self, lane: &Lane<'_>) -> anyhow::Result<()> {
        let (batch, scores) = match lane.scored.recv() {
            Ok(scored) => scored?,
            Err(_) => bail!("a thread that scores is gone"),
        };
        for (at, label, meter) in &mut self.meters {
            let label = batch.iter().find(|(name, _)| name == label);
            if let Some(label) = label.and_then(|(_, value)| value.as_dense()) {
                meter.add(&scores[*at], label);
            }
        }
        if let Some(file) = &mut self.file {
            let named: Vec<_> = self.outputs.iter().map(String::as_str).zip(&scores).collect();
            file.write(batch.examples(), &named)?;
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
        for (name, value) in self.meters.iter().flat_map(|(_, _, meter)| meter.all(alone)) {
            writeln!(out, "{name}: {value}")?;
        }
        if missing > 0 {
            writeln!(out, "ids without a row, taken as zeros: {missing}")?;
        }
        let rate = examples as f64 / seconds.max(1e-9);
        writeln!(out, "{examples} examples in {seconds:.2} s, {rate:.0} examples/s")?;
        Ok(Outcome::Done)
    }
}
