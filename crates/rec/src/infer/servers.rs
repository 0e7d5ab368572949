//! Evaluation against running servers: they load an epoch, workers share the test data and pull the
//! rows of their batches. Nothing is created on servers, ids without a row get zeros.

use regatta_fleet::ps::{Job, client_config};
use regatta_passes::{Split, split_trainer};
use regatta_ps::Client;
use regatta_ps::message::ReduceOp;

use super::engine::{Engine, ps};
use super::pass::{Pass, pass};
use super::tell_missing;
use crate::data::Data;
use crate::metrics::Meter;
use crate::network::Network;
use crate::observe::{Event, Observer};
use crate::ps::{WorkerReport, told};
use crate::report::{EpochReport, Report, peak_rss_mb};
use crate::save::epoch_folder;
use crate::train::epoch_report;
use crate::zoo::Evaluation;
use crate::{Config, Error};

/// Scores that travel at once.
const SCORES_AT_ONCE: usize = 1 << 15;

/// Evaluates as worker `worker` of a job whose servers are started for it. Files (or their records, if
/// there are fewer files than workers) are divided between workers; the report counts all of them, and
/// measures are those of one process over the same examples.
///
/// # Errors
/// If an epoch has not been saved by servers, data cannot be read, a server fails, or the model is
/// judged by something that needs all examples in one place.
pub fn infer_worker(
    config: &Config,
    job: &Job,
    worker: usize,
    observer: &mut dyn Observer,
) -> Result<WorkerReport, Error> {
    if config.model.evaluation != Evaluation::Heads {
        return Err(Error::Evaluation(format!(
            "model {} is judged by all examples in their order: evaluate it without --servers",
            config.model.name
        )));
    }
    let network = Network::build(config)?;
    let split = split_trainer(&network.train)?;
    let reading = &config.runner.test;
    let mut data = Data::open_rank(config, reading, &network.schema, worker, job.workers)?;
    let client = Client::connect(client_config(&split, job, worker)).map_err(ps)?;
    let tables: Vec<String> = split.tables.iter().map(|t| t.name.clone()).collect();
    let engine = Engine::servers(config, &network, &tables, client)?;
    let wanted = config.runner.infer_epochs.clone();
    observer.event(&Event::Begin {
        model: config.model.name,
        parameters: network.parameters(),
        epochs: wanted.end - wanted.start,
        examples: data.examples,
    });
    let mut run = WorkerRun { engine, dense: dense_names(&split), meters: Vec::new() };
    let (mut all, mut own) = (Vec::new(), Vec::new());
    for epoch in wanted {
        let reports = run.epoch(config, &network, &mut data, epoch, observer);
        let (mine, everybody) =
            reports.map_err(|e| told(e, &mut |text| observer.event(&Event::Note(text))))?;
        tell_missing(&everybody, observer);
        observer.event(&Event::Epoch(&everybody));
        all.push(everybody);
        own.push(mine);
    }
    let client = run.engine.client();
    let servers = if worker == 0 { client.stats().map_err(ps)? } else { vec![] };
    client.barrier("end").map_err(ps)?;
    client.leave().map_err(ps)?;
    let report = Report {
        config: config.to_json(),
        epochs: all,
        peak_rss_mb: peak_rss_mb(),
        resumed_from: None,
        checkpoints: vec![],
    };
    Ok(WorkerReport { report, own, servers })
}

fn dense_names(split: &Split) -> Vec<String> {
    split.dense.iter().map(|d| d.name.clone()).collect()
}

struct WorkerRun {
    engine: Engine,
    /// Dense parameters in the order of the servers.
    dense: Vec<String>,
    meters: Vec<Meter>,
}

impl WorkerRun {
    /// Evaluates an epoch: this worker's share, and that of all workers together.
    fn epoch(
        &mut self,
        config: &Config,
        network: &Network,
        data: &mut Data,
        epoch: u64,
        observer: &mut dyn Observer,
    ) -> Result<(EpochReport, EpochReport), Error> {
        let folder = epoch_folder(&config.runner.infer_load_path, epoch);
        if self.engine.client().worker() == 0 {
            self.engine.client().load(&folder.to_string_lossy(), &[]).map_err(ps)?;
        }
        self.engine.client().barrier("loaded").map_err(ps)?;
        let missed = self.missed()?;
        self.engine.pull_dense(&self.dense)?;
        self.engine.load_statistics(network, &folder)?;
        self.meters = network.meters(Meter::exact);
        let mine = self.share(config, network, data, epoch, observer)?;
        let everybody = self.global(&mine)?;
        // All have pulled their last rows when all have given their sums.
        let missing_ids = self.missed()? - missed;
        Ok((mine, EpochReport { missing_ids, ..everybody }))
    }

    /// Ids that had no row so far, of all workers. They wait for each other before and after, so
    /// that all of them see the same number.
    fn missed(&self) -> Result<u64, Error> {
        let client = self.engine.client();
        let mut missed = 0.0;
        if client.worker() == 0 {
            let stats = client.stats().map_err(ps)?;
            let tables = stats.iter().flat_map(|server| server.tables.values());
            missed = tables.map(|table| table.missed as f64).sum();
        }
        let all = client.reduce("missing ids", ReduceOp::Sum, &[missed]).map_err(ps)?;
        Ok(all.first().map_or(0, |n| *n as u64))
    }

    /// Evaluates this worker's share of the data.
    fn share(
        &mut self,
        config: &Config,
        network: &Network,
        data: &mut Data,
        epoch: u64,
        observer: &mut dyn Observer,
    ) -> Result<EpochReport, Error> {
        let meters = &mut self.meters;
        let done = pass(config, network, &mut self.engine, data, meters, epoch, observer)?;
        let Pass { examples, loss, seconds, stages } = done;
        let measured = self.meters.iter().flat_map(|m| m.all(self.meters.len() == 1)).collect();
        Ok(epoch_report(epoch, loss, examples, seconds, stages, &self.meters, measured))
    }

    /// The same over all workers: sums of examples, losses and counters, all scores, the longest
    /// time.
    fn global(&mut self, mine: &EpochReport) -> Result<EpochReport, Error> {
        let client = self.engine.client();
        let examples = mine.examples as f64;
        let mut sums = vec![examples, mine.loss.unwrap_or(0.0) * examples];
        let own: Vec<Vec<f64>> = self.meters.iter().map(Meter::counters).collect();
        sums.extend(own.iter().flatten());
        let sums = client.reduce("epoch", ReduceOp::Sum, &sums).map_err(ps)?;
        let longest = client.reduce("seconds", ReduceOp::Max, &[mine.seconds]).map_err(ps)?;
        let mut rest = &sums[2..];
        for (meter, own) in self.meters.iter_mut().zip(&own) {
            let (now, later) = rest.split_at(own.len());
            meter.set_counters(now);
            let scores = all_scores(client, meter.scores())?;
            meter.set_scores(scores);
            rest = later;
        }
        let examples = sums[0] as u64;
        let loss = (examples > 0).then(|| sums[1] / sums[0]);
        let measured = self.meters.iter().flat_map(|m| m.all(self.meters.len() == 1)).collect();
        let seconds = longest.first().copied().unwrap_or(mine.seconds);
        Ok(epoch_report(mine.epoch, loss, examples, seconds, mine.stages, &self.meters, measured))
    }
}

/// The scores of all workers, with their labels.
fn all_scores(client: &Client, own: &[(f32, bool)]) -> Result<Vec<(f32, bool)>, Error> {
    let most = client.reduce("scores", ReduceOp::Max, &[own.len() as f64]).map_err(ps)?;
    let most = most.first().map_or(0, |n| *n as usize);
    let mut all = Vec::new();
    for first in (0..most).step_by(SCORES_AT_ONCE) {
        let part = own.get(first..own.len().min(first + SCORES_AT_ONCE)).unwrap_or_default();
        let packed: Vec<f64> = part.iter().map(|&score| pack(score)).collect();
        let gathered = client.reduce("scores", ReduceOp::Gather, &packed).map_err(ps)?;
        all.extend(gathered.into_iter().map(unpack));
    }
    Ok(all)
}

/// A score and its label in 33 bits, which the mantissa of a double holds.
fn pack((score, label): (f32, bool)) -> f64 {
    (u64::from(score.to_bits()) << 1 | u64::from(label)) as f64
}

fn unpack(packed: f64) -> (f32, bool) {
    let bits = packed as u64;
    (f32::from_bits((bits >> 1) as u32), bits & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_travel_unchanged() {
        for score in [0.0, -0.0, 1.0, f32::MIN_POSITIVE, 0.123_456_79, f32::MAX] {
            for label in [false, true] {
                let back = unpack(pack((score, label)));
                assert_eq!((back.0.to_bits(), back.1), (score.to_bits(), label));
            }
        }
    }
}
