//! Data passes without a session: an evaluation, or a feed that a program reads itself.

use regatta_data::Position;
use regatta_exec::Scope;

use crate::Error;
use crate::backend::Backend;
use crate::checkpoints::{CheckpointLog, Due};
use crate::front::{Data, Feed};
use crate::marks::HeldShard;
use crate::metrics::{ExampleKeys, Grouping, Measure, Meter};
use crate::observe::{Event, Observer};
use crate::own_part::OwnPart;
use crate::pass::{Fetch, IntervalClock, Pass, epoch_report, run_pass, stage_seconds};
use crate::report::EpochReport;
use crate::session::tell_end;
use crate::state::WorkerState;
use crate::totals::{gather_keys, sum_over_workers};

/// One data pass over a feed, with no meters, reports and checkpoints; [`Feed::done`] sees the
/// steps.
///
/// # Errors
/// If data, a step or an exchange fails.
pub fn run_feed(
    backend: &mut dyn Backend,
    scope: &mut Scope,
    feed: &mut dyn Feed,
) -> Result<(), Error> {
    let mut pass = Pass {
        state: &mut WorkerState::default(),
        held: &mut vec![HeldShard::default()],
        meters: &mut [],
        keys: &mut ExampleKeys::default(),
        fetch: Fetch { names: &[], heads: false, scores: false },
        non_finite: None,
        print_interval: u64::MAX,
        due: &mut Due::default(),
        checkpoints: &mut CheckpointLog::default(),
        own_part: &mut OwnPart::default(),
        observer: &mut |_: &Event<'_>| {},
        clock: IntervalClock::new(0.0),
    };
    backend.begin_pass(None)?;
    run_pass(backend, scope, feed, &mut pass).map(|_| ())
}

/// What a report names beside the loss, from meters.
pub type MeasureFn<'a> = dyn Fn(&[Meter]) -> Result<Vec<Measure>, Error> + 'a;

/// One data pass of an evaluation: `meters` count this worker's examples; the second report is that
/// of all workers. Nothing is trained and nothing saved.
pub struct Evaluation<'a> {
    /// The epoch that is judged.
    pub epoch: u64,
    /// The loss, then prediction and label of each head.
    pub fetch: &'a [String],
    /// Steps between two reports.
    pub print_interval: u64,
    /// How the examples are divided, for measures of groups and slices.
    pub grouping: &'a Grouping,
}

impl Evaluation<'_> {
    /// Evaluates on all batches. `measures` gives what the report names beside the loss.
    ///
    /// # Errors
    /// If data, a step or an exchange fails.
    pub fn run(
        &self,
        backend: &mut dyn Backend,
        scope: &mut Scope,
        data: &mut dyn Data,
        mut meters: Vec<Meter>,
        measures: &MeasureFn<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(EpochReport, EpochReport), Error> {
        let names: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        backend.set_fetch(&names);
        let mut state = WorkerState { epoch: self.epoch, ..WorkerState::default() };
        state.steps = backend.step();
        let (mut held, mut due) = (vec![HeldShard::default()], Due::default());
        let (mut log, mut own_part) = (CheckpointLog::default(), OwnPart::default());
        let (clock, mut keys) = (IntervalClock::new(0.0), ExampleKeys::new(self.grouping));
        let (mut feed, loading) = data.begin_pass(0, &Position::default())?;
        let mut pass = Pass {
            state: &mut state,
            held: &mut held,
            meters: &mut meters,
            keys: &mut keys,
            fetch: Fetch { names: self.fetch, heads: true, scores: true },
            non_finite: None,
            print_interval: self.print_interval,
            due: &mut due,
            checkpoints: &mut log,
            own_part: &mut own_part,
            observer,
            clock,
        };
        backend.begin_pass(None)?;
        run_pass(backend, scope, &mut *feed, &mut pass)?;
        let counted = pass.counted();
        let stages = stage_seconds(&[loading, feed.stages()], backend.take_times());
        tell_end(self.epoch, backend, &*feed, observer);
        drop(feed);
        let report = |counted, meters: &[Meter], keys: &ExampleKeys| {
            let all = [measures(meters)?, keys.measures(meters)].concat();
            let report = epoch_report(counted, stages, meters, all);
            Ok::<_, Error>(EpochReport { slices: keys.slices(meters), ..report })
        };
        let mine = report(counted, &meters, &keys)?;
        if backend.workers() == 1 {
            return Ok((mine.clone(), mine));
        }
        let counted = sum_over_workers(backend, &mut meters, &state, &mine)?;
        gather_keys(backend, &mut keys)?;
        let all = report(counted, &meters, &keys)?;
        Ok((mine, all))
    }
}
