//! Evaluation of saved epochs by the measure that belongs to the model.
//!
//! Reading order: [`infer`] and `Judge` (one process), `pass` (over the data), `engine` (what runs the
//! program, and where rows come from), `servers` (workers that share the data, against running
//! servers).

mod engine;
mod pass;
mod servers;

use std::path::Path;
use std::time::Instant;

use regatta_checkpoint::PERSISTABLES_FILE;
use regatta_ir::Program;
use regatta_passes::split_trainer;

use crate::data::{Data, analogies};
use crate::metrics::{Measure, Meter, analogy_accuracy, rank_groups};
use crate::network::Network;
use crate::observe::{Event, Observer};
use crate::report::{EpochReport, Report, StageSeconds, peak_rss_mb};
use crate::save::{epoch_folder, has_server_parts, load_epoch};
use crate::train::epoch_report;
use crate::zoo::Evaluation;
use crate::{Config, Error};

use engine::Engine;
use pass::{Pass, pass};
pub use servers::infer_worker;

/// Evaluates the saved epochs `infer_start_epoch..infer_end_epoch` on the test data.
///
/// # Errors
/// If an epoch has not been saved, the data cannot be read, or they are not what the model's
/// evaluation needs.
pub fn infer(config: &Config, observer: &mut dyn Observer) -> Result<Report, Error> {
    let network = Network::build(config)?;
    let mut judge = Judge::new(config, &network)?;
    let wanted = config.runner.infer_epochs.clone();
    observer.event(&Event::Begin {
        model: config.model.name,
        parameters: network.parameters(),
        epochs: wanted.end - wanted.start,
        examples: judge.data.as_ref().and_then(|d| d.examples),
    });
    let mut epochs = Vec::new();
    for epoch in wanted {
        let folder = epoch_folder(&config.runner.infer_load_path, epoch);
        let mut engine = judge.load(config, &network, &folder)?;
        let report = judge.evaluate(config, &network, &mut engine, epoch, observer)?;
        tell_missing(&report, observer);
        observer.event(&Event::Epoch(&report));
        epochs.push(report);
    }
    Ok(Report {
        config: config.to_json(),
        epochs,
        peak_rss_mb: peak_rss_mb(),
        resumed_from: None,
        checkpoints: vec![],
    })
}

/// Says how many ids counted as zeros.
fn tell_missing(report: &EpochReport, observer: &mut dyn Observer) {
    if report.missing_ids > 0 {
        let n = report.missing_ids;
        observer.event(&Event::Note(&format!("ids without a row, taken as zeros: {n}")));
    }
}

/// A model under evaluation.
struct Judge {
    /// None where questions are answered without examples.
    data: Option<Data>,
    questions: Vec<[u64; 4]>,
}

impl Judge {
    fn new(config: &Config, network: &Network) -> Result<Judge, Error> {
        let (mut data, mut questions) = (None, Vec::new());
        match config.model.evaluation {
            Evaluation::Analogy => questions = analogies(config)?,
            Evaluation::Heads | Evaluation::Ranking { .. } => {
                data = Some(Data::open(config, &config.runner.test, &network.schema)?);
            }
        }
        Ok(Judge { data, questions })
    }

    /// Loads an epoch: whole, or rows by id where servers have saved it.
    fn load(&self, config: &Config, network: &Network, folder: &Path) -> Result<Engine, Error> {
        let by_servers = !folder.join(PERSISTABLES_FILE).exists() && has_server_parts(folder);
        if by_servers && self.data.is_some() {
            let tables: Vec<String> =
                split_trainer(&network.train)?.tables.into_iter().map(|t| t.name).collect();
            return Engine::saved(config, network, &tables, folder);
        }
        let mut engine = Engine::whole(config, network)?;
        load_epoch(&network.forward.main, &mut engine.scope, folder, None)?;
        Ok(engine)
    }

    fn evaluate(
        &mut self,
        config: &Config,
        network: &Network,
        engine: &mut Engine,
        epoch: u64,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, Error> {
        let Some(data) = &mut self.data else {
            return self.answer(config, network, engine, epoch);
        };
        let mut meters = network.meters(Meter::exact);
        let done = pass(config, network, engine, data, &mut meters, epoch, observer)?;
        let measures = measures(config, &meters)?;
        let Pass { examples, loss, seconds, stages } = done;
        let report = epoch_report(epoch, loss, examples, seconds, stages, &meters, measures);
        Ok(EpochReport { missing_ids: engine.missing_ids, ..report })
    }

    /// Judges word vectors by analogy questions.
    fn answer(
        &self,
        config: &Config,
        network: &Network,
        engine: &Engine,
        epoch: u64,
    ) -> Result<EpochReport, Error> {
        let start = Instant::now();
        let first = &network.schema.slots()[0].name;
        let table = table_of(&network.forward.main, first).ok_or_else(|| {
            Error::Evaluation(format!("model {} embeds no '{first}'", config.model.name))
        })?;
        let vectors = engine.scope.get(&table).expect("a parameter of the program");
        let dim = vectors.shape().last().copied().unwrap_or(1);
        let found = analogy_accuracy(vectors.f32(), dim, &self.questions)
            .map_err(|e| Error::Evaluation(format!("{}: {e}", config.runner.test.data_key)))?;
        let measures = vec![("acc".to_string(), found.accuracy)];
        let seconds = start.elapsed().as_secs_f64();
        let stages = StageSeconds { forward: seconds, ..Default::default() };
        Ok(epoch_report(epoch, None, found.questions as u64, seconds, stages, &[], measures))
    }
}

fn measures(config: &Config, meters: &[Meter]) -> Result<Vec<Measure>, Error> {
    let mut all: Vec<Measure> = meters.iter().flat_map(|m| m.all(meters.len() == 1)).collect();
    if let Evaluation::Ranking { k } = config.model.evaluation {
        let scores = meters.first().map(Meter::scores).unwrap_or_default();
        let ranking = rank_groups(scores, k)
            .map_err(|e| Error::Evaluation(format!("{}: {e}", config.runner.test.data_key)))?;
        all.push((format!("hr@{k}"), ranking.hit_rate));
        all.push((format!("ndcg@{k}"), ranking.ndcg));
    }
    Ok(all)
}

/// The parameter whose rows stand for the ids of an input.
fn table_of(program: &Program, input: &str) -> Option<String> {
    let block = program.block();
    let reads = |op: &&regatta_ir::Op| op.input_vars().any(|v| v == input);
    let is_param =
        |v: &&str| block.vars.get(*v).is_some_and(|v| v.origin == regatta_ir::Origin::Param);
    block.ops.iter().filter(reads).find_map(|op| op.input_vars().find(is_param).map(str::to_string))
}
