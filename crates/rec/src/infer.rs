//! Evaluation of saved epochs by the measure that belongs to the model: in one process, or by
//! workers that share the test data and pull rows from running servers.

use std::path::Path;
use std::time::Instant;

use regatta_checkpoint::server_parts::ServerParts;
use regatta_checkpoint::{PERSISTABLES_FILE, load_about, load_statistics};
use regatta_exec::{Options, Scope};
use regatta_ir::Program;
use regatta_passes::split_trainer;
use regatta_ps::Client;
use regatta_tensor::Tensor;
use regatta_train::job::client_config;
use regatta_train::metrics::{Measure, Meter, Metric, analogy_accuracy, rank_groups, rank_lists};
use regatta_train::observe::{Event, Observer};
use regatta_train::report::{EpochReport, Report, StageSeconds, peak_rss_mb};
use regatta_train::{
    Backend, Evaluation as DataPass, Evaluator, Farewell, Job, PassTotals, ReduceOp, Rows,
    SavedTable, epoch_report, leave,
};

use crate::config::FormatSpec;
use crate::data::{Data, analogies};
use crate::learn::with_saved;
use crate::network::Network;
use crate::run::Outcome;
use crate::save::{epoch_folder, has_server_parts, load_epoch};
use crate::zoo::Evaluation;
use crate::{Config, Error, HyperValue};

/// Evaluates the saved epochs `infer_start_epoch..infer_end_epoch` on the test data.
///
/// # Errors
/// If an epoch has not been saved, the data cannot be read, or they are not what the model's
/// evaluation needs.
pub fn infer(config: &Config, observer: &mut dyn Observer) -> Result<Report, Error> {
    let config = &judged(&with_learned_of_first(config)?)?;
    let network = Network::build(config)?;
    let mut judge = Judge::new(config, &network)?;
    begin(config, &network, judge.data.as_ref(), observer);
    let mut epochs = Vec::new();
    for epoch in config.runner.infer_epochs.clone() {
        let folder = epoch_folder(config.runner.load_path()?, epoch);
        let (mut evaluator, mut scope) = judge.load(config, &network, &folder)?;
        let report = match &mut judge.data {
            None => judge.answer(config, &network, &scope, epoch)?,
            Some(data) => {
                let (_, all) =
                    evaluate(config, &network, &mut evaluator, &mut scope, data, epoch, observer)?;
                EpochReport { missing_ids: evaluator.missing_ids(), ..all }
            }
        };
        report_epoch(&report, observer);
        epochs.push(report);
    }
    Ok(report(config, epochs))
}

/// The configuration with what the first epoch that is judged knows of its features; the others of
/// one training know the same.
fn with_learned_of_first(config: &Config) -> Result<Config, Error> {
    let first = epoch_folder(config.runner.load_path()?, config.runner.infer_epochs.start);
    with_saved(config, &first)
}

/// The configuration of the network that is judged: where the test data are queries each with its
/// document, there are no wrong documents.
fn judged(config: &Config) -> Result<Config, Error> {
    let mut judged = config.clone();
    if config.runner.test.format == Some(FormatSpec::VectorPairs) {
        judged.hyper.set("neg_num", HyperValue::Int(0))?;
    }
    Ok(judged)
}

/// Evaluates as worker `worker` of a job whose servers are started for it. Files (or their records,
/// if there are fewer files than workers) are divided between workers; the report counts all of
/// them, and measures are those of one process over the same examples.
///
/// # Errors
/// If an epoch has not been saved by servers, data cannot be read, a server fails, or the model is
/// judged by something that needs all examples in one process.
pub fn infer_worker(
    config: &Config,
    job: &Job,
    worker: usize,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    if config.model.evaluation != Evaluation::Heads {
        return Err(Error::Evaluation(format!(
            "model {} is judged by all examples in their order: evaluate it without --servers",
            config.model.name
        )));
    }
    let config = &judged(&with_learned_of_first(config)?)?;
    let network = Network::build(config)?;
    let split = split_trainer(&network.train)?;
    let reading = &config.runner.test;
    let schema = network.checked_schema(false)?;
    let mut data = Data::open_divided(config, reading, &schema, worker, job.workers)?;
    let client = Client::connect(client_config(&split, job, worker))?;
    let tables: Vec<String> = split.tables.iter().map(|t| t.name.clone()).collect();
    let rows = Rows::Servers(Box::new(client));
    let (evaluator, scope) = Evaluator::new(&network.forward, &tables, rows, options(config))?;
    // Dense parameters in the order of the servers.
    let dense = split.dense.iter().map(|d| d.name.clone()).collect();
    let mut servers = OnServers { evaluator, scope, dense };
    begin(config, &network, Some(&data), observer);
    let (mut all, mut own) = (Vec::new(), Vec::new());
    for epoch in config.runner.infer_epochs.clone() {
        match servers.epoch(config, &network, &mut data, epoch, observer) {
            Ok((mine, everybody)) => {
                report_epoch(&everybody, observer);
                all.push(everybody);
                own.push(mine);
            }
            Err(e) => {
                // While the connections are there: when they are closed, servers end too.
                observer.event(&Event::Note(&format!("this worker ends: {e}")));
                return Err(e);
            }
        }
    }
    let Farewell { servers, lost } = leave(&mut servers.evaluator)?;
    Ok(Outcome { report: report(config, all), own, servers, lost })
}

fn options(config: &Config) -> Options {
    Options { threads: config.runner.thread_num, ..Options::default() }
}

fn begin(config: &Config, network: &Network, data: Option<&Data>, observer: &mut dyn Observer) {
    if let Some(warning) = &config.runner.gpu_warning {
        observer.event(&Event::Note(&format!("warning: {warning}")));
    }
    let epochs = &config.runner.infer_epochs;
    observer.event(&Event::Begin {
        model: config.model.name,
        parameters: network.parameters(),
        epochs: Some(epochs.end - epochs.start),
        examples: data.and_then(|data| data.examples),
    });
}

fn report(config: &Config, epochs: Vec<EpochReport>) -> Report {
    let (config, peak_rss_mb) = (config.to_json(), peak_rss_mb());
    let (resumed_from, checkpoints, device, best_epoch) = (None, vec![], None, None);
    Report { config, device, epochs, peak_rss_mb, resumed_from, checkpoints, best_epoch }
}

/// Judges saved epochs while training, as [`infer`] does.
pub(crate) struct Validator {
    config: Config,
    judge: Judge,
}

impl Validator {
    /// None if there are no validation data.
    ///
    /// # Errors
    /// If they cannot be found.
    pub(crate) fn new(config: &Config, network: &Network) -> Result<Option<Validator>, Error> {
        let Some((reading, _)) = &config.runner.validation else { return Ok(None) };
        let mut config = config.clone();
        config.runner.test = reading.clone();
        let judge = Judge::new(&config, network)?;
        Ok(Some(Validator { config, judge }))
    }

    /// Judges the epoch of a folder.
    ///
    /// # Errors
    /// If it or the data cannot be read.
    pub(crate) fn run(
        &mut self,
        network: &Network,
        epoch: u64,
        folder: &Path,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, Error> {
        let config = &self.config;
        let (mut evaluator, mut scope) = self.judge.load(config, network, folder)?;
        let Some(data) = &mut self.judge.data else {
            return self.judge.answer(config, network, &scope, epoch);
        };
        // Its batches and scores are nobody's business but the summary's.
        let mut quiet = |event: &Event<'_>| match event {
            Event::Note(_) | Event::BadLines(_) => observer.event(event),
            _ => {}
        };
        let (_, all) =
            evaluate(config, network, &mut evaluator, &mut scope, data, epoch, &mut quiet)?;
        Ok(EpochReport { missing_ids: evaluator.missing_ids(), ..all })
    }
}

/// One data pass over the test data: this worker's numbers, and those of all.
fn evaluate(
    config: &Config,
    network: &Network,
    evaluator: &mut Evaluator,
    scope: &mut Scope,
    data: &mut Data,
    epoch: u64,
    observer: &mut dyn Observer,
) -> Result<(EpochReport, EpochReport), Error> {
    let fetch: Vec<String> = network.fetches().iter().map(|name| name.to_string()).collect();
    let print_interval = config.runner.print_interval;
    let grouping = &config.runner.grouping;
    let pass = DataPass { epoch, fetch: &fetch, print_interval, grouping };
    let judge = |meters: &[Meter]| measures(config, meters).map_err(Error::in_loop);
    let meters = network.meters(Meter::exact);
    // Outputs by the names that users know.
    let mut named = |event: &Event<'_>| {
        let Event::Scores { examples, heads } = event else { return observer.event(event) };
        let named: Vec<(String, Tensor)> =
            heads.iter().map(|(name, values)| network.named_output(name, values)).collect();
        let heads: Vec<_> = named.iter().map(|(name, values)| (name.as_str(), values)).collect();
        observer.event(&Event::Scores { examples: *examples, heads: &heads });
    };
    Ok(pass.run(evaluator, scope, data, meters, &judge, &mut named)?)
}

/// A worker of an evaluation against running servers. Nothing is created on them, ids without a row
/// get zeros.
struct OnServers {
    evaluator: Evaluator,
    scope: Scope,
    dense: Vec<String>,
}

impl OnServers {
    /// Evaluates an epoch that the servers load: this worker's part, and that of all workers.
    fn epoch(
        &mut self,
        config: &Config,
        network: &Network,
        data: &mut Data,
        epoch: u64,
        observer: &mut dyn Observer,
    ) -> Result<(EpochReport, EpochReport), Error> {
        let folder = epoch_folder(config.runner.load_path()?, epoch);
        if let Some(client) = self.evaluator.client().filter(|client| client.worker() == 0) {
            client.load(&folder.to_string_lossy(), &[])?;
        }
        self.evaluator.barrier("loaded")?;
        let missed = self.missed()?;
        self.evaluator.pull_dense(&mut self.scope, &self.dense)?;
        load_statistics_into(network, &folder, &mut self.scope)?;
        let (evaluator, scope) = (&mut self.evaluator, &mut self.scope);
        let (mine, all) = evaluate(config, network, evaluator, scope, data, epoch, observer)?;
        // All have pulled their last rows when all have given their sums.
        let missing_ids = self.missed()? - missed;
        Ok((mine, EpochReport { missing_ids, ..all }))
    }

    /// Ids that had no row so far, of all workers. They wait for each other before and after, so
    /// that all of them see the same number.
    fn missed(&mut self) -> Result<u64, Error> {
        let stats = self.evaluator.server_stats()?;
        let tables = stats.iter().flat_map(|server| server.tables.values());
        let missed = tables.map(|table| table.missed as f64).sum();
        let all = self.evaluator.reduce("missing ids", ReduceOp::Sum, &[missed])?;
        Ok(all.first().map_or(0, |n| *n as u64))
    }
}

/// Loads the statistics that a worker has saved beside the parts of servers.
fn load_statistics_into(network: &Network, folder: &Path, scope: &mut Scope) -> Result<(), Error> {
    let statistics = load_statistics(&network.forward.main, folder)?;
    statistics.into_iter().for_each(|(name, tensor)| scope.set(&name, tensor));
    Ok(())
}

/// Reports an epoch, and how many ids counted as zeros.
fn report_epoch(report: &EpochReport, observer: &mut dyn Observer) {
    if report.missing_ids > 0 {
        let n = report.missing_ids;
        observer.event(&Event::Note(&format!("ids without a row, taken as zeros: {n}")));
    }
    observer.event(&Event::Epoch(report));
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
                let schema = network.checked_schema(false)?;
                data = Some(Data::open(config, &config.runner.test, &schema)?);
            }
        }
        Ok(Judge { data, questions })
    }

    /// Loads an epoch: whole, or rows by id where servers have saved it.
    fn load(
        &self,
        config: &Config,
        network: &Network,
        folder: &Path,
    ) -> Result<(Evaluator, Scope), Error> {
        let by_servers = !folder.join(PERSISTABLES_FILE).exists() && has_server_parts(folder);
        if by_servers && self.data.is_some() {
            return load_parts(config, network, folder);
        }
        let (evaluator, mut scope) =
            Evaluator::new(&network.forward, &[], Rows::InScope, options(config))?;
        load_epoch(&network.forward.main, &mut scope, folder, None)?;
        Ok((evaluator, scope))
    }

    /// Judges word vectors by analogy questions.
    fn answer(
        &self,
        config: &Config,
        network: &Network,
        scope: &Scope,
        epoch: u64,
    ) -> Result<EpochReport, Error> {
        let start = Instant::now();
        let first = &network.schema.slots()[0].name;
        let table = table_of(&network.forward.main, first).ok_or_else(|| {
            Error::Evaluation(format!("model {} embeds no '{first}'", config.model.name))
        })?;
        let vectors = scope.get(&table).expect("a parameter of the program");
        let dim = vectors.shape().last().copied().unwrap_or(1);
        let found = analogy_accuracy(vectors.f32(), dim, &self.questions)
            .map_err(|e| Error::Evaluation(format!("{}: {e}", config.runner.test.data_key)))?;
        let measures = vec![("acc".to_string(), found.accuracy)];
        let seconds = start.elapsed().as_secs_f64();
        let stages = StageSeconds { forward: seconds, ..Default::default() };
        let counted = PassTotals { epoch, examples: found.questions as u64, loss: None, seconds };
        Ok(epoch_report(counted, stages, &[], measures))
    }
}

/// What servers have saved in a folder: trained rows by id, dense parameters, statistics.
fn load_parts(
    config: &Config,
    network: &Network,
    folder: &Path,
) -> Result<(Evaluator, Scope), Error> {
    let mut tables = Vec::new();
    let mut names = Vec::new();
    load_about(folder)?;
    let parts = ServerParts::open(folder)?;
    for table in split_trainer(&network.train)?.tables {
        let mut saved = SavedTable::default();
        let each = |key: u64, row: &[f32]| saved.insert(key, row);
        parts.rows(&table.name, table.dim, each)?;
        tables.push(saved);
        names.push(table.name);
    }
    let (evaluator, mut scope) =
        Evaluator::new(&network.forward, &names, Rows::Saved(tables), options(config))?;
    for name in evaluator.dense_names() {
        let Some(tensor) = scope.get_mut(&name) else { continue };
        let values = tensor.f32_mut();
        values.copy_from_slice(&parts.dense(&name, values.len())?);
    }
    load_statistics_into(network, folder, &mut scope)?;
    Ok((evaluator, scope))
}

/// Checks that epochs will have the measure that validation asks for.
pub(crate) fn check_metric(config: &Config, network: &Network) -> Result<(), Error> {
    let wanted = config.runner.validation.as_ref().and_then(|(_, how)| how.metric.as_deref());
    let Some(metric) = wanted else { return Ok(()) };
    let meters = network.meters(Meter::exact);
    let mut known = vec!["loss".to_string()];
    if meters.iter().any(|m| m.kind() == Metric::Auc && m.name() != "auc") {
        // That of the first head has this name, too.
        known.push("auc".to_string());
    }
    known.extend(meters.iter().flat_map(|m| m.names(meters.len() == 1)));
    let grouping = &config.runner.grouping;
    let mut more: Vec<String> = Vec::new();
    if grouping.groups.is_some() {
        more.extend(["gauc".to_string(), "gauc_groups".into(), "gauc_left_out".into()]);
    }
    let lists = |k: &usize| [format!("hr@{k}"), format!("recall@{k}"), format!("ndcg@{k}")];
    more.extend(grouping.ranking.iter().flat_map(lists));
    match (&grouping.groups, &meters[..]) {
        (Some(_), [_, _, ..]) => known.extend(
            meters
                .iter()
                .flat_map(|meter| more.iter().map(move |what| format!("{}.{what}", meter.name()))),
        ),
        _ => known.extend(more),
    }
    if known.iter().any(|name| name == metric) {
        return Ok(());
    }
    let reason = format!("there is no measure '{metric}' (known: {})", known.join(", "));
    Err(Error::key("runner.validation.metric", reason))
}

fn measures(config: &Config, meters: &[Meter]) -> Result<Vec<Measure>, Error> {
    let mut all: Vec<Measure> = meters.iter().flat_map(|m| m.all(meters.len() == 1)).collect();
    for &k in &config.runner.grouping.ranking {
        let ranking = match config.model.evaluation {
            // Groups by key are measured with the keys.
            Evaluation::Ranking { .. } if config.runner.grouping.groups.is_none() => {
                let scores = meters.first().map(Meter::scores).unwrap_or_default();
                let ranked = rank_groups(scores, k);
                ranked.map_err(|e| {
                    Error::Evaluation(format!("{}: {e}", config.runner.test.data_key))
                })?
            }
            _ => match meters.iter().find(|meter| meter.ranks().next().is_some()) {
                Some(classes) => rank_lists(classes.ranks().map(|rank| vec![rank]), k),
                None => continue,
            },
        };
        all.push((format!("hr@{k}"), ranking.hit_rate));
        all.push((format!("recall@{k}"), ranking.recall));
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
