//! The training loop of one rank.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_checkpoint::Checksum;
use regatta_collective::{Group, ReduceOp};
use regatta_data::Batch;
use regatta_exec::{Executor, Options, RoleTimes, Scope};
use regatta_ir::{Programs, VarDef};
use regatta_ops::comm::{Comm, Exchange, Reply};
use regatta_passes::snapshot_name;
use regatta_tensor::{Data, Tensor, Value};

use super::{CollectivePlan, GroupComm, When};
use crate::{DistributedStrategy, Error};

/// The variable that holds the learning rate.
const LEARNING_RATE: &str = "learning_rate_0";
/// Name of the exchange in which ranks tell how many examples they have for the next step.
const EXAMPLES: &str = "examples of a step";
/// The most local steps between two averages that adaptive local SGD chooses.
const MOST_LOCAL_STEPS: u64 = 16;

/// One rank in training.
///
/// All ranks run the same number of steps. Before a step they tell each other how many examples they
/// have, while the step before is computed; a rank that has run out of data takes part with nothing,
/// and the pass ends when all have.
pub struct CollectiveTrainer {
    comm: Arc<GroupComm>,
    plan: CollectivePlan,
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
    waited: Duration,
}

/// How adaptive local SGD chooses the number of local steps.
struct Adaptive {
    k_steps: u64,
    /// Loss and learning rate at the first average.
    first: Option<(f64, f64)>,
    loss: f64,
}

/// How a pass over the data went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassEnd {
    /// Steps, the same on all ranks.
    pub steps: u64,
    /// Steps that each rank took part in without examples, because it had fewer than others.
    pub idle: Vec<u64>,
}

impl CollectiveTrainer {
    /// Rewrites a training program as the strategy says. `fetch` are the variables that every step
    /// shows.
    ///
    /// # Errors
    /// If strategy, program and options do not fit together.
    pub fn new(
        programs: &Programs,
        strategy: &DistributedStrategy,
        group: Group,
        options: Options,
        loss: &str,
        fetch: &[&str],
    ) -> Result<CollectiveTrainer, Error> {
        let plan = CollectivePlan::new(programs, strategy, group.rank(), group.size())?;
        let comm = Arc::new(GroupComm::new(group)?);
        let (each, then) = executors(&plan, &comm, options)?;
        let adaptive = match plan.when {
            When::Adaptive { init_k_steps, .. } => {
                Some(Adaptive { k_steps: init_k_steps, first: None, loss: 0.0 })
            }
            _ => None,
        };
        Ok(CollectiveTrainer {
            comm,
            fingerprint: fingerprint(&format!("{}{}", programs.main, strategy.to_yaml())),
            base: programs.clone(),
            plan,
            each,
            then,
            fetch: fetch.iter().map(|f| f.to_string()).collect(),
            loss: loss.to_string(),
            step: 0,
            since: 0,
            adaptive,
            waited: Duration::ZERO,
        })
    }

    /// What this rank runs. Its startup program must have been run before [`CollectiveTrainer::start`].
    pub fn plan(&self) -> &CollectivePlan {
        &self.plan
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.comm.size()
    }

    /// Steps so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Sets the number of the next step, as after loading a checkpoint.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Fetches other variables from now on.
    pub fn set_fetch(&mut self, fetch: &[&str]) {
        self.fetch = fetch.iter().map(|f| f.to_string()).collect();
    }

    /// Computes with other options from now on.
    ///
    /// # Errors
    /// If they make no sense.
    pub fn set_options(&mut self, options: Options) -> Result<(), Error> {
        (self.each, self.then) = executors(&self.plan, &self.comm, options)?;
        Ok(())
    }

    /// Time that steps have taken so far.
    pub fn times(&self) -> RoleTimes {
        let then = self.then.as_ref().map(Executor::times).unwrap_or_default();
        self.each.times() + then
    }

    /// Time spent waiting for the slowest rank before steps, since the last call.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Checks that all ranks have the same program, and gives them the values of rank 0.
    ///
    /// # Errors
    /// If a rank has another program or strategy, a value is missing, or a rank is gone.
    pub fn start(&mut self, scope: &mut Scope) -> Result<(), Error> {
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

    fn compare_programs(&self) -> Result<(), Error> {
        let own = self.fingerprint.clone();
        let all = self.comm.call(move |g| g.all_gather_bytes("program", own.as_bytes()))?;
        let differs = |rank: &usize| all[*rank] != all[0];
        let other: Vec<String> =
            (0..all.len()).filter(differs).map(|rank| format!("rank {rank}")).collect();
        if other.is_empty() {
            return Ok(());
        }
        Err(Error::Config(format!(
            "{} and rank 0 do not have the same program, settings and strategy",
            other.join(", ")
        )))
    }

    /// Gives these values of rank 0 to all. What all ranks have already is not sent: first values are
    /// the same everywhere if all begin with the same seed.
    fn share(&self, scope: &mut Scope, names: &[String]) -> Result<(), Error> {
        let mut sums = Vec::new();
        for name in names {
            let tensor = scope.get(name).ok_or_else(|| not_initialised(name))?;
            sums.extend_from_slice(&Checksum::of_elements(tensor).0.to_le_bytes());
        }
        let all = self.comm.call(move |g| g.all_gather_bytes("checksums of values", &sums))?;
        let same = |number: usize| {
            let of = |rank: &Vec<u8>| rank.as_chunks::<8>().0.get(number).copied();
            all.iter().all(|rank| of(rank) == of(&all[0]))
        };
        let mut differing = (0..).zip(names).filter(|(number, _)| !same(*number));
        differing.try_for_each(|(_, name)| self.broadcast(scope, name))
    }

    /// Gives a value of rank 0 to all.
    fn broadcast(&self, scope: &mut Scope, name: &str) -> Result<(), Error> {
        let tensor = scope.get_mut(name).ok_or_else(|| not_initialised(name))?;
        let (label, rank) = (name.to_string(), self.rank());
        match tensor.data_mut() {
            Data::F32(values) => {
                let mut moved = std::mem::take(values);
                *values = self.comm.call(move |g| {
                    g.broadcast(&label, &mut moved, 0)?;
                    Ok(moved)
                })?;
            }
            Data::I64(values) => {
                let own = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                let own = if rank == 0 { own } else { vec![] };
                let bytes = self.comm.call(move |g| g.broadcast_bytes(&label, own, 0))?;
                let new = bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
                values.iter_mut().zip(new).for_each(|(v, x)| *v = x);
            }
            other => {
                let reason = format!("'{name}' ({other:?}) cannot be given to other ranks");
                return Err(Error::Config(reason));
            }
        }
        Ok(())
    }

    /// One pass: trains until all ranks have run out of batches. `next` reads this rank's batches;
    /// `on_step(examples, fetched, batch)` sees every step that had examples and takes the batch back,
    /// so that its memory can be used again.
    ///
    /// # Errors
    /// If data or a step fails, a rank is gone, or a rank has no batch at all while others have.
    pub fn train(
        &mut self,
        scope: &mut Scope,
        next: impl FnMut() -> Result<Option<Batch>, Error>,
        on_step: impl FnMut(usize, &[Tensor], Batch) -> Result<(), Error>,
    ) -> Result<PassEnd, Error> {
        self.train_with(scope, next, on_step, |_, _, _| Ok(()))
    }

    /// As [`CollectiveTrainer::train`]; `between(trainer, scope, step)` is called on all ranks after
    /// every step of the pass, counted from 0, with examples or without.
    ///
    /// # Errors
    /// As [`CollectiveTrainer::train`].
    pub fn train_with(
        &mut self,
        scope: &mut Scope,
        mut next: impl FnMut() -> Result<Option<Batch>, Error>,
        mut on_step: impl FnMut(usize, &[Tensor], Batch) -> Result<(), Error>,
        mut between: impl FnMut(&CollectiveTrainer, &Scope, u64) -> Result<(), Error>,
    ) -> Result<PassEnd, Error> {
        let mut end = PassEnd { steps: 0, idle: vec![0; self.ranks()] };
        let mut last: Option<Batch> = None;
        let mut ahead = self.announce(next()?)?;
        loop {
            let counts = self.counts()?;
            let total: u64 = counts.iter().sum();
            if total == 0 {
                break;
            }
            refuse_empty_ranks(end.steps, &counts)?;
            let current = ahead.take();
            let more = if current.is_some() { next()? } else { None };
            ahead = self.announce(more)?;
            let share = counts[self.rank()] as f64 / total as f64;
            match current {
                Some(batch) => {
                    self.run_batch(scope, &batch, share)?;
                    // In case that other ranks have more.
                    if ahead.is_none() {
                        last = Some(batch.clone());
                    }
                    on_step(batch.examples(), self.fetched(), batch)?;
                }
                None => self.take_part(scope, last.as_ref())?,
            }
            counts.iter().zip(&mut end.idle).for_each(|(n, idle)| *idle += u64::from(*n == 0));
            end.steps += 1;
            self.after_step(scope)?;
            between(self, scope, end.steps - 1)?;
        }
        self.finish(scope)?;
        Ok(end)
    }

    /// One step on named inputs, which all ranks take together.
    ///
    /// # Errors
    /// If an input or output does not fit, or a rank is gone.
    pub fn run(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
    ) -> Result<Vec<Tensor>, Error> {
        self.set_fetch(fetch);
        let rows = |(name, value): &(&str, &Value)| {
            let var = self.each.program().block().vars.get(*name)?;
            var.ty.is_batched().then(|| value.rows())
        };
        let examples = feeds.iter().find_map(rows).unwrap_or(1) as u64;
        self.announce_examples(examples)?;
        let counts = self.counts()?;
        let share = examples as f64 / counts.iter().sum::<u64>().max(1) as f64;
        self.run_step(scope, feeds, share)?;
        let fetched = self.fetched().to_vec();
        self.after_step(scope)?;
        Ok(fetched)
    }

    /// Whether ranks are together: their last step was followed by everything that is due, and all
    /// have the same parameters.
    pub fn is_settled(&self) -> bool {
        self.since == 0 || self.plan.when == When::Never
    }

    /// Brings ranks together if their last steps have not: merges what is left, or averages
    /// parameters. All ranks call it.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn finish(&mut self, scope: &mut Scope) -> Result<(), Error> {
        if self.since > 0 { self.run_then(scope) } else { Ok(()) }
    }

    fn after_step(&mut self, scope: &mut Scope) -> Result<(), Error> {
        self.step += 1;
        self.since += 1;
        if self.is_due() { self.run_then(scope) } else { Ok(()) }
    }

    /// Tells the others how many examples the next batch has.
    fn announce(&self, batch: Option<Batch>) -> Result<Option<Batch>, Error> {
        self.announce_examples(batch.as_ref().map_or(0, Batch::examples) as u64)?;
        Ok(batch)
    }

    fn announce_examples(&self, n: u64) -> Result<(), Error> {
        let exchange = Exchange::gather(n.to_le_bytes().to_vec());
        self.comm.start(&Arc::from(EXAMPLES), exchange).map_err(comm_error)
    }

    /// How many examples each rank has for the next step.
    fn counts(&mut self) -> Result<Vec<u64>, Error> {
        let start = Instant::now();
        let reply = self.comm.wait(EXAMPLES).map_err(comm_error)?;
        self.waited += start.elapsed();
        let Reply::Gathered(parts) = reply else {
            return Err(Error::Config("ranks exchanged no numbers of examples".into()));
        };
        let number = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        Ok(parts.iter().map(number).collect())
    }

    fn run_batch(&mut self, scope: &mut Scope, batch: &Batch, share: f64) -> Result<(), Error> {
        let block = self.each.program().block();
        let feeds: Vec<(&str, &Value)> =
            batch.iter().filter(|(name, _)| block.vars.contains_key(*name)).collect();
        self.run_step(scope, &feeds, share)
    }

    fn run_step(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
        share: f64,
    ) -> Result<(), Error> {
        let mut fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        // Behind what the caller wants to see.
        fetch.extend(self.adaptive.as_ref().map(|_| self.loss.as_str()));
        self.each.set_share(if self.plan.when.is_local() { 1.0 } else { share as f32 });
        self.each.set_step(self.step);
        self.each.run(scope, feeds, &fetch)?;
        if let (Some(adaptive), Some(loss)) = (&mut self.adaptive, self.each.fetched().last()) {
            adaptive.loss = f64::from(loss.f32()[0]);
        }
        Ok(())
    }

    /// What the caller wanted to see of the last step.
    fn fetched(&self) -> &[Tensor] {
        &self.each.fetched()[..self.fetch.len()]
    }

    /// A step for which this rank has no examples. Ranks that train apart rest; others compute with
    /// the last batch once more, whose gradients then count for nothing, so that nobody waits.
    fn take_part(&mut self, scope: &mut Scope, last: Option<&Batch>) -> Result<(), Error> {
        match last {
            Some(batch) if !self.plan.when.is_local() => self.run_batch(scope, batch, 0.0),
            _ => Ok(()),
        }
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
            g.all_reduce_f64("loss", &mut loss, ReduceOp::Mean)?;
            Ok(loss[0])
        })?;
        let lr = scope.get(LEARNING_RATE).map_or(0.0, |t| f64::from(t.f32()[0]));
        let (first_loss, first_lr) = *adaptive.first.get_or_insert((loss, lr));
        adaptive.k_steps = next_k_steps(init_k_steps, (first_loss, first_lr), (loss, lr));
        Ok(())
    }

    /// Adds up numbers of all ranks.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn sum(&self, name: &str, values: &[f64]) -> Result<Vec<f64>, Error> {
        self.reduce(name, values, ReduceOp::Sum)
    }

    /// The largest of the numbers of all ranks.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn max(&self, name: &str, values: &[f64]) -> Result<Vec<f64>, Error> {
        self.reduce(name, values, ReduceOp::Max)
    }

    fn reduce(&self, name: &str, values: &[f64], op: ReduceOp) -> Result<Vec<f64>, Error> {
        let (name, mut values) = (name.to_string(), values.to_vec());
        self.comm.call(move |g| {
            g.all_reduce_f64(&name, &mut values, op)?;
            Ok(values)
        })
    }

    /// Combines numbers of all ranks, or gathers them rank by rank.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn combine(
        &self,
        name: &str,
        op: crate::ReduceOp,
        values: &[f64],
    ) -> Result<Vec<f64>, Error> {
        match op {
            crate::ReduceOp::Sum => self.sum(name, values),
            crate::ReduceOp::Max => self.max(name, values),
            crate::ReduceOp::Min => self.reduce(name, values, ReduceOp::Min),
            crate::ReduceOp::Gather => {
                let own: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                let name = name.to_string();
                let all = self.comm.call(move |g| g.all_gather_bytes(&name, &own))?;
                let all = all.iter().flat_map(|bytes| bytes.as_chunks::<8>().0);
                Ok(all.map(|b| f64::from_le_bytes(*b)).collect())
            }
        }
    }

    /// Texts of all ranks, in order.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn gather_texts(&self, name: &str, text: &str) -> Result<Vec<String>, Error> {
        let (name, own) = (name.to_string(), text.as_bytes().to_vec());
        let all = self.comm.call(move |g| g.all_gather_bytes(&name, &own))?;
        Ok(all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn barrier(&self, name: &str) -> Result<(), Error> {
        let name = name.to_string();
        self.comm.call(move |g| g.barrier(&name))
    }

    /// Brings to rank 0 the optimizer states that only other ranks keep; empty elsewhere, and when
    /// all ranks keep all. All ranks call it, before rank 0 saves.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn collect_states(&self, scope: &Scope) -> Result<HashMap<String, Tensor>, Error> {
        let mut collected = HashMap::new();
        if !self.plan.sharded {
            return Ok(collected);
        }
        let here = &self.plan.each.startup.block().vars;
        let states: Vec<VarDef> =
            self.base.main.persistables().filter(|v| !is_param(v)).cloned().collect();
        let mine: Vec<u8> = states.iter().map(|v| u8::from(here.contains_key(&v.name))).collect();
        let all = self.comm.call(move |g| g.all_gather_bytes("states", &mine))?;
        for (i, var) in states.iter().enumerate().filter(|(i, _)| all[0].get(*i) == Some(&0)) {
            let Some(owner) = all.iter().position(|have| have.get(i) == Some(&1)) else {
                return Err(Error::Config(format!("no rank keeps the state '{}'", var.name)));
            };
            let numel = var.ty.numel().unwrap_or(0);
            let own = scope.get(&var.name).filter(|_| here.contains_key(&var.name));
            let mut values = own.map_or_else(|| vec![0.0; numel], |t| t.f32().to_vec());
            let name = var.name.clone();
            let values = self.comm.call(move |g| {
                g.broadcast(&name, &mut values, owner)?;
                Ok(values)
            })?;
            if self.rank() == 0 {
                let shape: Vec<usize> = var.ty.shape.iter().map(|&d| d as usize).collect();
                let tensor = Tensor::from_f32(&shape, values)
                    .map_err(|e| Error::Config(format!("state '{}': {e}", var.name)))?;
                collected.insert(var.name.clone(), tensor);
            }
        }
        Ok(collected)
    }
}

/// What runs at every step, and what runs after some of them.
fn executors(
    plan: &CollectivePlan,
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
    Error::Config(e.to_string())
}

/// At the first step of a pass every rank must have a batch, because it computes with its last one
/// when others have more.
fn refuse_empty_ranks(step: u64, counts: &[u64]) -> Result<(), Error> {
    let empty: Vec<String> = (0..counts.len())
        .filter(|&rank| step == 0 && counts[rank] == 0)
        .map(|rank| format!("rank {rank}"))
        .collect();
    if empty.is_empty() {
        return Ok(());
    }
    Err(Error::Config(format!(
        "{} has no batch in this pass, but other ranks have; make batches smaller or use fewer ranks",
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

fn not_initialised(name: &str) -> Error {
    let (what, name) = ("parameter", name.to_string());
    regatta_exec::Error::NotInitialised { what, name }.into()
}

/// A short text that differs if the given one does.
fn fingerprint(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x} of {} bytes", text.len())
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
        assert!(error.starts_with("rank 1, rank 3 has no batch in this pass"), "{error}");
    }
}
