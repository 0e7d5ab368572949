//! Training by ranks: every rank has all parameters, computes gradients on its own examples, and
//! makes the same updates with the sum of all ranks' gradients.

mod values;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use regatta_checkpoint::{CheckpointConfig, Topology};
use regatta_collective::{Group, ReduceOp as GroupOp};
use regatta_exec::{Executor, Options, RoleTimes, Scope};
use regatta_ir::{Programs, VarDef};
use regatta_ops::comm::{Comm, Exchange, Reply};
use regatta_passes::snapshot_name;
use regatta_ps::SnapshotOrder;
use regatta_ps::message::ReduceOp;
use regatta_tensor::Tensor;

use self::values::fingerprint;
use crate::Error;
use crate::backend::{Backend, PassEnd, PassStart, Snapshot, SnapshotValues, StepTimes, Turn};
use crate::group_comm::GroupComm;
use crate::input::{Input, Next};
use crate::rank_plan::{RankPlan, When};
use crate::runner::feeds;

/// The variable that holds the learning rate.
const LEARNING_RATE: &str = "learning_rate_0";
/// Name of the exchange in which ranks report how many examples they have for the next step.
const EXAMPLES: &str = "examples of a step";
/// The most local steps between two averages that adaptive local SGD chooses.
const MOST_LOCAL_STEPS: u64 = 16;

/// One rank in training.
///
/// All ranks run the same number of steps. Before a step they report to each other how many
/// examples they have, while the step before is computed; a rank that has run out of data takes
/// part with nothing, and the data pass ends when all have.
pub struct Ranks {
    comm: Arc<GroupComm>,
    plan: RankPlan,
    base: Programs,
    fingerprint: String,
    each: Executor,
    then: Option<Executor>,
    fetch: Vec<String>,
    loss: String,
    step: u64,
    /// Steps since the second program ran.
    since: u64,
    adaptive: Option<Adaptive>,
    times: StepTimes,
    /// Times of the executors that were taken before.
    reported: RoleTimes,
    phase: Phase,
    /// What was read for the step after the next, and is announced.
    prefetched: Option<Input>,
    /// In case that other ranks have more.
    last: Option<Input>,
    end: PassEnd,
    wants_snapshot: bool,
    /// A program that trains step by step has no input now.
    put_off: bool,
}

/// Where a rank is in a data pass.
enum Phase {
    /// The first batch is to be read.
    Begin,
    /// It has been requested.
    Reading,
    /// The counts of the next step are on their way.
    Announced,
    /// The batch after this one has been requested.
    ReadingAhead { current: Input, weight: f64 },
    /// The data pass is over, or a program trains step by step.
    Idle,
}

/// How adaptive local SGD chooses the number of local steps.
struct Adaptive {
    k_steps: u64,
    /// Loss and learning rate at the first average.
    first: Option<(f64, f64)>,
    loss: f64,
}

impl Ranks {
    /// Prepares what the rank plan has made of a training program. All ranks must have the same
    /// `settings`.
    ///
    /// # Errors
    /// If program and options do not fit together.
    pub fn new(
        programs: &Programs,
        plan: RankPlan,
        group: Group,
        options: Options,
        loss: &str,
        settings: &str,
    ) -> Result<Ranks, Error> {
        let comm = Arc::new(GroupComm::new(group)?);
        let (each, then) = executors(&plan, &comm, options)?;
        let adaptive = match plan.when {
            When::Adaptive { init_k_steps, .. } => {
                Some(Adaptive { k_steps: init_k_steps, first: None, loss: 0.0 })
            }
            _ => None,
        };
        Ok(Ranks {
            comm,
            fingerprint: fingerprint(&format!("{}{settings}", programs.main)),
            base: programs.clone(),
            plan,
            each,
            then,
            fetch: Vec::new(),
            loss: loss.to_string(),
            step: 0,
            since: 0,
            adaptive,
            times: StepTimes::default(),
            reported: RoleTimes::default(),
            phase: Phase::Idle,
            prefetched: None,
            last: None,
            end: PassEnd::default(),
            wants_snapshot: false,
            put_off: false,
        })
    }

    /// What this rank runs. Its startup program must have been run before [`Backend::start`].
    pub fn plan(&self) -> &RankPlan {
        &self.plan
    }

    fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Brings ranks together if their last steps have not: merges what is left, or averages
    /// parameters. All ranks call it.
    fn settle(&mut self, scope: &mut Scope) -> Result<(), Error> {
        if self.since > 0 { self.run_then(scope) } else { Ok(()) }
    }

    /// Starts the next step: all ranks know how many examples each has for it.
    fn begin_step(&mut self, scope: &mut Scope) -> Result<Turn, Error> {
        let counts = self.counts()?;
        let total: u64 = counts.iter().sum();
        if total == 0 {
            self.phase = Phase::Idle;
            self.settle(scope)?;
            return Ok(Turn::End);
        }
        refuse_empty_ranks(self.end.steps, &counts)?;
        counts.iter().zip(&mut self.end.idle).for_each(|(n, idle)| *idle += u64::from(*n == 0));
        self.end.steps += 1;
        let weight = counts[self.rank()] as f64 / total as f64;
        if let Some(current) = self.prefetched.take() {
            self.phase = Phase::ReadingAhead { current, weight };
            return Ok(Turn::Read);
        }
        self.announce(0)?;
        self.take_part(scope)?;
        self.after_step(scope)?;
        Ok(Turn::Idle)
    }

    /// A step on this rank's batch, when the one after it is announced.
    fn run_announced(
        &mut self,
        scope: &mut Scope,
        current: Input,
        weight: f64,
    ) -> Result<Turn, Error> {
        self.run(scope, &current, weight)?;
        if self.prefetched.is_none()
            && let Input::Batch(batch) = &current
        {
            self.last = Some(Input::Batch(batch.clone()));
        }
        self.after_step(scope)?;
        Ok(Turn::Step(current))
    }

    /// One step of a program that reads its data itself, which all ranks take together.
    fn run_alone(&mut self, scope: &mut Scope, input: Input) -> Result<Turn, Error> {
        let rows = |(name, value): (&str, &regatta_tensor::Value)| {
            let var = self.each.program().block().vars.get(name)?;
            var.ty.is_batched().then(|| value.rows())
        };
        let examples = input.iter().find_map(rows).unwrap_or(1) as u64;
        self.announce(examples)?;
        let counts = self.counts()?;
        let weight = examples as f64 / counts.iter().sum::<u64>().max(1) as f64;
        self.run(scope, &input, weight)?;
        self.after_step(scope)?;
        Ok(Turn::Step(input))
    }

    fn after_step(&mut self, scope: &mut Scope) -> Result<(), Error> {
        self.step += 1;
        self.since += 1;
        if self.is_due() { self.run_then(scope) } else { Ok(()) }
    }

    /// Reports to the others how many examples the next batch has.
    fn announce(&self, examples: u64) -> Result<(), Error> {
        let exchange = Exchange::gather(examples.to_le_bytes().to_vec());
        self.comm.start(&Arc::from(EXAMPLES), exchange).map_err(comm_error)
    }

    /// How many examples each rank has for the next step.
    fn counts(&mut self) -> Result<Vec<u64>, Error> {
        let start = Instant::now();
        let reply = self.comm.wait(EXAMPLES).map_err(comm_error)?;
        self.times.pull += start.elapsed();
        let Reply::Gathered(parts) = reply else {
            return Err(Error::Internal("ranks exchanged no numbers of examples".into()));
        };
        let number = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        Ok(parts.iter().map(number).collect())
    }

    fn run(&mut self, scope: &mut Scope, input: &Input, weight: f64) -> Result<(), Error> {
        let feeds = feeds(self.each.program(), input);
        let mut fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        // Behind what the caller wants to see.
        fetch.extend(self.adaptive.as_ref().map(|_| self.loss.as_str()));
        self.each.set_share(if self.plan.when.is_local() { 1.0 } else { weight as f32 });
        self.each.set_step(self.step);
        let run = self.each.run(scope, &feeds, &fetch);
        run.map_err(|e| Error::from(e).in_batch(input))?;
        if let (Some(adaptive), Some(loss)) = (&mut self.adaptive, self.each.fetched().last()) {
            adaptive.loss = f64::from(loss.f32()[0]);
        }
        Ok(())
    }

    /// A step for which this rank has no examples. Ranks that train apart rest; others compute with
    /// the last batch once more, whose gradients then count for nothing, so that nobody waits.
    fn take_part(&mut self, scope: &mut Scope) -> Result<(), Error> {
        if self.plan.when.is_local() {
            return Ok(());
        }
        let Some(last) = self.last.take() else { return Ok(()) };
        self.run(scope, &last, 0.0)?;
        self.last = Some(last);
        Ok(())
    }

    fn is_due(&self) -> bool {
        match self.plan.when {
            When::Never => false,
            When::Every(k) => self.since >= k,
            When::Local { k_steps, begin_step } => self.step <= begin_step || self.since >= k_steps,
            When::Adaptive { begin_step, .. } => {
                let k_steps = self.adaptive.as_ref().map_or(1, |a| a.k_steps);
                self.step <= begin_step || self.since >= k_steps
            }
        }
    }

    fn run_then(&mut self, scope: &mut Scope) -> Result<(), Error> {
        self.since = 0;
        let Some(then) = &mut self.then else { return Ok(()) };
        then.set_step(self.step);
        then.run(scope, &[], &[])?;
        self.adapt(scope)
    }

    /// Chooses the number of local steps until the next average: more while the loss is far below
    /// that of the beginning or the learning rate has fallen.
    fn adapt(&mut self, scope: &Scope) -> Result<(), Error> {
        let (When::Adaptive { init_k_steps, .. }, Some(adaptive)) =
            (self.plan.when, &mut self.adaptive)
        else {
            return Ok(());
        };
        let own = adaptive.loss;
        let loss = self.comm.call(move |g| {
            let mut loss = [own];
            g.all_reduce_f64("loss", &mut loss, GroupOp::Mean)?;
            Ok(loss[0])
        })?;
        let lr = scope.get(LEARNING_RATE).map_or(0.0, |t| f64::from(t.f32()[0]));
        let (first_loss, first_lr) = *adaptive.first.get_or_insert((loss, lr));
        adaptive.k_steps = next_k_steps(init_k_steps, (first_loss, first_lr), (loss, lr));
        Ok(())
    }

    fn all_reduce(&self, name: &str, values: &[f64], op: GroupOp) -> Result<Vec<f64>, Error> {
        let (name, mut values) = (name.to_string(), values.to_vec());
        self.comm.call(move |g| {
            g.all_reduce_f64(&name, &mut values, op)?;
            Ok(values)
        })
    }
}

impl Backend for Ranks {
    fn worker(&self) -> usize {
        self.comm.rank()
    }

    fn workers(&self) -> usize {
        self.comm.size()
    }

    fn topology(&self) -> Topology {
        let ranks = self.comm.size();
        Topology { mode: "collective".into(), ranks, workers: ranks, ..Topology::default() }
    }

    fn step(&self) -> u64 {
        self.step
    }

    fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    fn set_fetch(&mut self, fetch: &[&str]) {
        self.fetch = fetch.iter().map(|f| f.to_string()).collect();
    }

    fn fetched(&self) -> &[Tensor] {
        &self.each.fetched()[..self.fetch.len()]
    }

    fn start(&mut self, scope: &mut Scope, _: bool) -> Result<(), Error> {
        self.compare_programs()?;
        let params = self.base.main.block().params().map(|v| v.name.clone());
        let mut names: Vec<String> = params.collect();
        if !self.plan.sharded {
            let states = self.plan.each.startup.persistables().map(|v| v.name.clone());
            names.extend(
                states.filter(|name| !self.base.main.block().vars.get(name).is_some_and(is_param)),
            );
        }
        self.share(scope, &names)?;
        if self.plan.when.is_local() {
            for name in self.base.main.param_names() {
                let Some(param) = scope.get(&name).cloned() else { continue };
                if scope.get(&snapshot_name(&name)).is_some() {
                    scope.set(&snapshot_name(&name), param);
                }
            }
        }
        Ok(())
    }

    fn begin_pass(&mut self, _: Option<PassStart>) -> Result<(), Error> {
        (self.prefetched, self.last, self.phase) = (None, None, Phase::Begin);
        self.end = PassEnd { steps: 0, idle: vec![0; self.comm.size()] };
        Ok(())
    }

    fn advance(&mut self, scope: &mut Scope) -> Result<Turn, Error> {
        if self.wants_snapshot {
            return Ok(Turn::Snapshot);
        }
        match std::mem::replace(&mut self.phase, Phase::Announced) {
            Phase::Begin | Phase::Reading => {
                self.phase = Phase::Reading;
                Ok(Turn::Read)
            }
            Phase::Announced => self.begin_step(scope),
            Phase::ReadingAhead { current, weight } => self.run_announced(scope, current, weight),
            Phase::Idle => {
                self.phase = Phase::Idle;
                match self.prefetched.take() {
                    Some(input) => self.run_alone(scope, input),
                    None if std::mem::take(&mut self.put_off) => Ok(Turn::Wait),
                    None => Ok(Turn::Read),
                }
            }
        }
    }

    fn give(&mut self, next: Next) -> Result<(), Error> {
        let input = match next {
            Next::Input(input) => Some(input),
            Next::Later => {
                self.put_off = true;
                return Ok(());
            }
            Next::End => None,
        };
        if !matches!(self.phase, Phase::Idle) {
            self.announce(input.as_ref().map_or(0, Input::examples) as u64)?;
        }
        if matches!(self.phase, Phase::Reading) {
            self.phase = Phase::Announced;
        }
        self.prefetched = input;
        Ok(())
    }

    fn pass_end(&self) -> PassEnd {
        self.end.clone()
    }

    fn decides_together(&self) -> bool {
        true
    }

    fn is_settled(&self) -> bool {
        self.since == 0 || self.plan.when == When::Never
    }

    fn refuses_checkpoints(&self, config: &CheckpointConfig) -> Option<&'static str> {
        if config.seconds.is_some() {
            Some("ranks make checkpoints by steps: use step_interval instead of seconds")
        } else if self.plan.keeps_unsent {
            Some(
                "with dgc every rank keeps what it has not sent yet, which checkpoints do not hold",
            )
        } else if matches!(self.plan.when, When::Adaptive { .. }) {
            Some(
                "adaptive_localsgd chooses its next steps from losses that checkpoints do not \
                 hold; use localsgd",
            )
        } else if self.plan.when.is_local() && keeps_own_states(&self.base) {
            Some(
                "with localsgd every rank keeps states of its own (momentum, loss scaling), which \
                 checkpoints do not hold; use the sgd optimizer without float16",
            )
        } else {
            None
        }
    }

    fn request_snapshot(&mut self, _: Option<&SnapshotOrder>) -> Result<(), Error> {
        self.wants_snapshot = true;
        Ok(())
    }

    fn snapshot(&mut self, scope: &mut Scope, state: &str) -> Result<Snapshot, Error> {
        self.wants_snapshot = false;
        let texts = self.gather("checkpoint", state.as_bytes())?;
        let others = self.states_of_others(scope)?;
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let states = texts.iter().map(text).enumerate().collect();
        if self.rank() > 0 {
            let values = SnapshotValues::Elsewhere;
            return Ok(Snapshot { states, orphans: vec![], values, own: None });
        }
        let kept = self.plan.kept().into_iter().map(|var| &var.name);
        let kept = kept.filter_map(|name| Some((name.clone(), scope.get(name)?.clone())));
        let tensors = kept.filter(|(name, _)| !others.contains_key(name)).collect::<Vec<_>>();
        let tensors = tensors.into_iter().chain(others).collect();
        let values = SnapshotValues::Here(tensors);
        Ok(Snapshot { states, orphans: vec![], values, own: None })
    }

    fn kept(&self) -> Vec<String> {
        self.plan.kept().into_iter().map(|var| var.name.clone()).collect()
    }

    fn collect_states(&mut self, scope: &Scope) -> Result<HashMap<String, Tensor>, Error> {
        self.states_of_others(scope)
    }

    fn reduce(&mut self, name: &str, op: ReduceOp, values: &[f64]) -> Result<Vec<f64>, Error> {
        match op {
            ReduceOp::Sum => self.all_reduce(name, values, GroupOp::Sum),
            ReduceOp::Max => self.all_reduce(name, values, GroupOp::Max),
            ReduceOp::Min => self.all_reduce(name, values, GroupOp::Min),
            ReduceOp::Gather => {
                let own: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                let all = self.gather(name, &own)?;
                let all = all.iter().flat_map(|bytes| bytes.as_chunks::<8>().0);
                Ok(all.map(|b| f64::from_le_bytes(*b)).collect())
            }
        }
    }

    fn gather(&mut self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (name, own) = (name.to_string(), bytes.to_vec());
        self.comm.call(move |g| g.all_gather_bytes(&name, &own))
    }

    fn barrier(&mut self, name: &str) -> Result<(), Error> {
        let name = name.to_string();
        self.comm.call(move |g| g.barrier(&name))
    }

    fn take_times(&mut self) -> StepTimes {
        let then = self.then.as_ref().map(Executor::times).unwrap_or_default();
        let now = self.each.times() + then;
        let before = std::mem::replace(&mut self.reported, now);
        std::mem::take(&mut self.times).with_roles(now, before)
    }

    fn set_options(&mut self, options: Options) -> Result<(), Error> {
        (self.each, self.then) = executors(&self.plan, &self.comm, options)?;
        self.reported = RoleTimes::default();
        Ok(())
    }

    fn finish(&mut self, scope: &mut Scope) -> Result<(), Error> {
        self.settle(scope)
    }
}

/// Whether steps change more than parameters and what follows from their number.
fn keeps_own_states(programs: &Programs) -> bool {
    let mut ops = programs.main.block().ops.iter();
    ops.any(|op| op.kind == "update_loss_scaling" || !op.outs("StatesOut").is_empty())
}

/// What runs at every step, and what runs after some of them.
fn executors(
    plan: &RankPlan,
    comm: &Arc<GroupComm>,
    options: Options,
) -> Result<(Executor, Option<Executor>), Error> {
    let mut each = Executor::new(plan.each.main.clone(), options.clone())?;
    each.set_comm(Arc::clone(comm) as Arc<dyn Comm>);
    let Some(program) = &plan.then else { return Ok((each, None)) };
    // It has no batch that threads could share.
    let mut then = Executor::new(program.clone(), Options { threads: 1, ..options })?;
    then.set_comm(Arc::clone(comm) as Arc<dyn Comm>);
    Ok((each, Some(then)))
}

fn is_param(var: &VarDef) -> bool {
    var.origin == regatta_ir::Origin::Param
}

fn comm_error(e: regatta_ops::KernelError) -> Error {
    Error::Exchange(e.to_string())
}

/// At the first step of a data pass every rank must have a batch, because it computes with its last
/// one when others have more.
fn refuse_empty_ranks(step: u64, counts: &[u64]) -> Result<(), Error> {
    let empty: Vec<String> = (0..counts.len())
        .filter(|&rank| step == 0 && counts[rank] == 0)
        .map(|rank| format!("rank {rank}"))
        .collect();
    if empty.is_empty() {
        return Ok(());
    }
    Err(Error::Exchange(format!(
        "{} has no batch in this data pass, but other ranks have; make batches smaller or use \
         fewer ranks, or let every rank read all data (split_file_list: False)",
        empty.join(", ")
    )))
}

/// `ceil(sqrt(lr0 * loss / (lr * loss0) * k0))`, from 1 to 16, as Paddle has it.
fn next_k_steps(init: u64, first: (f64, f64), now: (f64, f64)) -> u64 {
    let ((first_loss, first_lr), (loss, lr)) = (first, now);
    let ratio = (first_lr * loss) / (lr * first_loss) * init as f64;
    let steps = ratio.sqrt().ceil();
    if steps.is_finite() { (steps as u64).clamp(1, MOST_LOCAL_STEPS) } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adaptive_steps_follow_loss_and_learning_rate() {
        let first = (2.0, 0.1);
        assert_eq!(next_k_steps(4, first, (2.0, 0.1)), 2);
        assert_eq!(next_k_steps(4, first, (0.5, 0.1)), 1);
        assert_eq!(next_k_steps(4, first, (2.0, 0.001)), 16);
        assert_eq!(next_k_steps(4, first, (f64::NAN, 0.1)), 1);
        assert_eq!(next_k_steps(4, first, (2.0, 0.0)), 1);
    }

    #[test]
    fn ranks_without_data_are_named() {
        assert!(refuse_empty_ranks(3, &[1, 0]).is_ok());
        let error = refuse_empty_ranks(0, &[4, 0, 2, 0]).unwrap_err().to_string();
        assert!(error.starts_with("rank 1, rank 3 has no batch in this data pass"), "{error}");
    }
}
