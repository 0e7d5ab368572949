//! The hub: one data pass of any kind of training or evaluation.
//!
//! In: batches of a [`Feed`]. Out: steps of a [`Backend`], counted, reported, and kept in
//! checkpoints when those are due.

use std::time::{Duration, Instant};

use regatta_data::{Batch, Batches, Stages};
use regatta_exec::Scope;
use regatta_ps::Idle;
use regatta_tensor::{Tensor, Value};

use crate::backend::{Backend, BatchProgress, PassEnd, StepTimes, Turn};
use crate::checkpoints::{CheckpointLog, Due};
use crate::input::{Input, Next};
use crate::lookahead::Lookahead;
use crate::marks::HeldShard;
use crate::metrics::{ExampleKeys, Measure, Meter, Metric};
use crate::observe::{self, Event, Interval, Observer};
use crate::own_part::OwnPart;
use crate::report::{EpochReport, StageSeconds};
use crate::state::WorkerState;
use crate::{Error, Feed};

/// Runs a data pass that the backend has begun, or the rest of one, until it is over for all
/// workers or there is another worker's shard to train: read, step, count, report, take a snapshot
/// when one is due.
///
/// # Errors
/// If data, a step, an exchange or a checkpoint fails.
pub fn run_pass(
    backend: &mut dyn Backend,
    scope: &mut Scope,
    feed: &mut dyn Feed,
    pass: &mut Pass<'_>,
) -> Result<Idle, Error> {
    let mut lookahead = Lookahead::default();
    loop {
        match backend.advance(scope)? {
            Turn::Read => lookahead.read(feed, backend)?,
            Turn::Step(input) => pass.count_step(backend, feed, input)?,
            Turn::Idle => pass.after_turn(backend)?,
            Turn::Snapshot => pass.snapshot(backend, scope)?,
            Turn::Wait => return Err(lost("a data pass waits for a batch that was not deferred")),
            Turn::End => break,
        }
    }
    wait_for_others(backend, scope, pass)
}

/// Waits until the data pass is over for all workers, or there is a shard to take over.
///
/// # Errors
/// If an exchange or a checkpoint fails.
pub(crate) fn wait_for_others(
    backend: &mut dyn Backend,
    scope: &mut Scope,
    pass: &mut Pass<'_>,
) -> Result<Idle, Error> {
    loop {
        pass.own_part.finish(backend)?;
        match backend.wait_for_others()? {
            Idle::Snapshot => pass.snapshot(backend, scope)?,
            other => return Ok(other),
        }
    }
}

/// One step on values by name, for a program that reads its data itself. In modes that wait for
/// servers the gradients travel with the request for the next step.
///
/// # Errors
/// If a step or an exchange fails.
pub fn run_step(
    backend: &mut dyn Backend,
    scope: &mut Scope,
    feeds: &[(&str, &Value)],
) -> Result<Vec<Tensor>, Error> {
    let owned = feeds.iter().map(|(name, value)| (name.to_string(), (*value).clone()));
    let mut input = Some(Input::Feeds(owned.collect()));
    let mut fetched = Vec::new();
    loop {
        match backend.advance(scope)? {
            Turn::Read => backend.give(input.take().map_or(Next::Later, Next::Input))?,
            Turn::Step(_) => fetched = backend.fetched().to_vec(),
            Turn::Wait => return Ok(fetched),
            // The program keeps its own position in its data.
            Turn::Snapshot => drop(backend.snapshot(scope, "")?),
            Turn::Idle => {}
            Turn::End => return Err(lost("a single step has ended a data pass")),
        }
    }
}

fn lost(what: &str) -> Error {
    Error::Internal(what.to_string())
}

/// What a data pass counts, and where it reports.
pub struct Pass<'a> {
    /// Where this worker is.
    pub state: &'a mut WorkerState,
    /// The shards of the data that it trains; the last one is being read.
    pub(crate) held: &'a mut Vec<HeldShard>,
    /// One for each head.
    pub meters: &'a mut [Meter],
    /// What tells the examples of an evaluation apart.
    pub(crate) keys: &'a mut ExampleKeys,
    /// What is fetched: the loss, then predictions and labels of each head; or anything.
    pub fetch: Fetch<'a>,
    /// How many losses in a row may be NaN or infinite; none for any number of them.
    pub(crate) non_finite: Option<u32>,
    /// Steps between two reports.
    pub print_interval: u64,
    /// When checkpoints are due; all workers know.
    pub(crate) due: &'a mut Due,
    /// The first worker makes them.
    pub(crate) checkpoints: &'a mut CheckpointLog,
    pub(crate) own_part: &'a mut OwnPart,
    /// Who hears of it.
    pub observer: &'a mut dyn Observer,
    pub(crate) clock: IntervalClock,
}

/// What a step fetches.
#[derive(Debug, Clone, Copy)]
pub struct Fetch<'a> {
    /// Names.
    pub names: &'a [String],
    /// The first one is the loss; the others are predictions and labels, by turns.
    pub heads: bool,
    /// Observers hear the predictions of each batch.
    pub scores: bool,
}

impl Pass<'_> {
    /// Counts and reports a step, and requests a snapshot if one is due after it.
    fn count_step(
        &mut self,
        backend: &mut dyn Backend,
        feed: &mut dyn Feed,
        input: Input,
    ) -> Result<(), Error> {
        let fetched = backend.fetched();
        let n = input.examples() as u64;
        let loss = self.fetch.heads.then(|| fetched[0].f32()[0]);
        self.check_loss(loss).map_err(|e| e.in_batch(&input))?;
        self.measure(fetched, &input)?;
        let (epoch, batch_id) = (self.state.epoch, self.state.batches);
        self.state.count(n, loss);
        self.clock.count(n);
        if let Input::Batch(batch) = input {
            if let Some(shard) = self.held.last_mut() {
                shard.position.advance(&batch);
                shard.count(n, loss);
                backend.progressed(&BatchProgress { shard, reads: batch.reads() });
            }
            feed.done(batch, backend.fetched())?;
        }
        let examples = self.state.examples;
        self.observer.event(&Event::Batch(&observe::Batch { epoch, batch_id, examples, loss }));
        if batch_id.is_multiple_of(self.print_interval) {
            let position = (epoch, batch_id, self.state.steps);
            // Exact measures of an evaluation take long; they come at its end.
            let measured = if self.fetch.scores { vec![] } else { measures(self.meters) };
            let interval = self.clock.interval(position, loss, measured, feed.stages());
            self.observer.event(&Event::Interval(&interval));
        }
        self.after_turn(backend)
    }

    /// Ends the training when the loss is no number any more: nothing comes of it but such values.
    fn check_loss(&mut self, loss: Option<f32>) -> Result<(), Error> {
        let Some(loss) = loss.filter(|loss| !loss.is_finite()) else {
            self.clock.non_finite = 0;
            return Ok(());
        };
        self.clock.non_finite += 1;
        if self.non_finite.is_none_or(|most| self.clock.non_finite <= most) {
            return Ok(());
        }
        let (epoch, batch) = (self.state.epoch, self.state.batches);
        let (step, name) = (self.state.steps, self.fetch.names[0].clone());
        Err(Error::NonFiniteLoss { step, name, epoch, batch, loss })
    }

    fn measure(&mut self, fetched: &[Tensor], input: &Input) -> Result<(), Error> {
        if !self.fetch.heads {
            return Ok(());
        }
        let examples = input.examples();
        self.keys.add(examples, |name| input.get(name)).map_err(Error::Config)?;
        for (meter, head) in self.meters.iter_mut().zip(fetched[1..].chunks_exact(2)) {
            meter.add(&head[0], &head[1]);
        }
        if self.fetch.scores {
            let named = self.fetch.names.iter().map(String::as_str).zip(fetched);
            let heads: Vec<(&str, &Tensor)> = named.skip(1).step_by(2).collect();
            self.observer.event(&Event::Scores { examples, heads: &heads });
        }
        Ok(())
    }

    /// A step of the job is done, with examples of this worker or without.
    fn after_turn(&mut self, backend: &mut dyn Backend) -> Result<(), Error> {
        let (epoch, step) = (self.state.epoch, self.state.pass_steps);
        self.state.pass_steps += 1;
        self.own_part.poll(backend)?;
        self.checkpoints.poll(backend, self.observer)?;
        let (log, observer) = (&mut *self.checkpoints, &mut *self.observer);
        if let Some(order) = self.due.after_step(backend, log, observer, (epoch, step))? {
            backend.request_snapshot(order.as_ref())?;
        }
        Ok(())
    }

    /// Writes down where this worker is, takes part in a snapshot, and lets it be written.
    pub(crate) fn snapshot(
        &mut self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
    ) -> Result<(), Error> {
        self.own_part.finish(backend)?;
        let start = Instant::now();
        let seconds = self.clock.seconds();
        self.state.write_down(backend.step(), seconds, backend.worker(), self.held, self.meters);
        let mut snapshot = backend.snapshot(scope, &self.state.encode())?;
        let stall = start.elapsed();
        if let Some((dir, tensors)) = snapshot.own.take() {
            self.own_part.begin(backend, &dir, tensors)?;
        }
        self.checkpoints.write(snapshot, backend.workers(), stall)
    }

    /// What this worker has counted in its data pass.
    pub(crate) fn counted(&self) -> PassTotals {
        PassTotals {
            epoch: self.state.epoch,
            examples: self.state.examples,
            loss: self.state.mean_loss().filter(|_| self.fetch.heads),
            seconds: self.clock.seconds(),
        }
    }
}

impl Feed for Batches {
    fn next(&mut self) -> Result<Option<Batch>, Error> {
        Ok(Batches::next(self)?)
    }

    fn ready(&mut self) -> Result<Option<Batch>, Error> {
        Ok(Batches::ready(self)?)
    }

    fn done(&mut self, batch: Batch, _: &[Tensor]) -> Result<(), Error> {
        self.recycle(batch);
        Ok(())
    }

    fn stages(&self) -> Stages {
        Batches::stages(self)
    }

    fn bad_lines(&self) -> regatta_data::BadLines {
        Batches::bad_lines(self)
    }
}

/// Which rank ran out of data before others, for the user; none if all had data to the end.
pub(crate) fn idle_note(epoch: u64, end: &PassEnd) -> Option<String> {
    let idle = end.idle.iter().enumerate().filter(|(_, steps)| **steps > 0);
    let idle: Vec<String> = idle.map(|(rank, steps)| format!("rank {rank} for {steps}")).collect();
    let (steps, who) = (end.steps, idle.join(", "));
    (!idle.is_empty())
        .then(|| format!("epoch {epoch}: of {steps} steps, some ranks had no data left: {who}"))
}

/// The main measure of every head.
pub fn measures(meters: &[Meter]) -> Vec<Measure> {
    meters.iter().filter_map(|m| Some((m.name().to_string(), m.main()?))).collect()
}

/// What a data pass has counted beside its meters.
#[derive(Debug, Clone, Copy)]
pub struct PassTotals {
    /// Its number.
    pub epoch: u64,
    /// Examples that were used.
    pub examples: u64,
    /// Mean over the examples.
    pub loss: Option<f64>,
    /// Time of the data pass.
    pub seconds: f64,
}

/// Puts the numbers of a data pass together.
pub fn epoch_report(
    counted: PassTotals,
    stages: StageSeconds,
    meters: &[Meter],
    measures: Vec<Measure>,
) -> EpochReport {
    let PassTotals { epoch, examples, loss, seconds } = counted;
    let auc = meters.iter().find(|m| m.kind() == Metric::Auc).and_then(Meter::main);
    // What has a field of its own is not repeated.
    let metrics = measures.into_iter().filter(|(name, _)| name != "auc").collect();
    let examples_per_sec = examples as f64 / seconds.max(1e-9);
    let missing_ids = 0;
    EpochReport {
        epoch,
        loss,
        auc,
        examples,
        examples_per_sec,
        seconds,
        stages,
        missing_ids,
        metrics,
        slices: vec![],
        validation: None,
    }
}

/// Seconds by stage of one data pass.
pub(crate) fn stage_seconds(reading: &[Stages], times: StepTimes) -> StageSeconds {
    let sum = |of: fn(&Stages) -> Duration| reading.iter().map(of).sum::<Duration>().as_secs_f64();
    StageSeconds {
        read: sum(|s| s.read),
        parse: sum(|s| s.parse),
        batch: sum(|s| s.batch),
        wait: sum(|s| s.wait),
        pull: times.pull.as_secs_f64(),
        forward: times.forward.as_secs_f64(),
        backward: times.backward.as_secs_f64(),
        update: times.update.as_secs_f64(),
        push: times.push.as_secs_f64(),
        save: 0.0,
    }
}

/// Means over the batches since the last report, and the time of the whole data pass.
pub(crate) struct IntervalClock {
    /// Of this run, and seconds of the data pass before it.
    begin: Instant,
    before: f64,
    start: Instant,
    waited: Duration,
    batches: u64,
    examples: u64,
    /// Losses in a row that were NaN or infinite.
    non_finite: u32,
}

impl IntervalClock {
    /// A data pass that took N seconds before a restart.
    pub(crate) fn new(before: f64) -> IntervalClock {
        let now = Instant::now();
        let (waited, batches, examples) = (Duration::ZERO, 0, 0);
        let non_finite = 0;
        IntervalClock { begin: now, before, start: now, waited, batches, examples, non_finite }
    }

    /// Seconds of the data pass.
    pub(crate) fn seconds(&self) -> f64 {
        self.before + self.begin.elapsed().as_secs_f64()
    }

    fn count(&mut self, examples: u64) {
        self.batches += 1;
        self.examples += examples;
    }

    /// Ends an interval at `(epoch, batch_id, step)` and begins the next.
    fn interval(
        &mut self,
        (epoch, batch_id, step): (u64, u64, u64),
        loss: Option<f32>,
        metrics: Vec<Measure>,
        reading: Stages,
    ) -> Interval {
        let n = self.batches.max(1) as f64;
        let interval = Interval {
            epoch,
            batch_id,
            step,
            loss,
            metrics,
            reader_seconds: reading.wait.saturating_sub(self.waited).as_secs_f64() / n,
            batch_seconds: self.start.elapsed().as_secs_f64() / n,
            samples: self.examples as f64 / n,
        };
        (self.start, self.waited) = (Instant::now(), reading.wait);
        (self.batches, self.examples) = (0, 0);
        interval
    }
}
