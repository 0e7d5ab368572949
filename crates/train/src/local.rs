//! Training in one process: a step runs the whole program.

use regatta_checkpoint::Topology;
use regatta_exec::{Executor, Options, RoleTimes, Scope};
use regatta_ir::Program;
use regatta_ps::CutOrder;
use regatta_ps::message::ReduceOp;
use regatta_tensor::Tensor;

use crate::Error;
use crate::backend::{Backend, Restored, Snapshot, SnapshotValues, StepTimes, Turn, feeds};
use crate::input::{Input, Next};

/// One process that trains alone.
pub struct Local {
    executor: Executor,
    fetch: Vec<String>,
    next: Option<Next>,
    wants_snapshot: bool,
    /// Times that were taken before.
    reported: RoleTimes,
}

impl Local {
    /// Prepares a training program.
    ///
    /// # Errors
    /// If the program or the options do not fit.
    pub fn new(program: Program, options: Options) -> Result<Local, Error> {
        let executor = Executor::new(program, options)?;
        let reported = executor.times();
        Ok(Local { executor, fetch: Vec::new(), next: None, wants_snapshot: false, reported })
    }

    fn run(&mut self, scope: &mut Scope, input: &Input) -> Result<(), Error> {
        let fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        let feeds = feeds(self.executor.program(), input);
        self.executor.run(scope, &feeds, &fetch)?;
        Ok(())
    }
}

impl Backend for Local {
    fn worker(&self) -> usize {
        0
    }

    fn workers(&self) -> usize {
        1
    }

    fn topology(&self) -> Topology {
        Topology { mode: "local".into(), workers: 1, ..Topology::default() }
    }

    fn step(&self) -> u64 {
        self.executor.step()
    }

    fn set_fetch(&mut self, fetch: &[&str]) {
        self.fetch = fetch.iter().map(|name| name.to_string()).collect();
    }

    fn fetched(&self) -> &[Tensor] {
        self.executor.fetched()
    }

    fn start(&mut self, _: &mut Scope, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn restore(
        &mut self,
        scope: &mut Scope,
        restored: Restored,
    ) -> Result<Option<&'static str>, Error> {
        let tensors = restored.tensors.into_iter().flatten();
        tensors.for_each(|(name, tensor)| scope.set(&name, tensor));
        self.executor.set_step(restored.step);
        Ok(None)
    }

    fn begin_pass(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn advance(&mut self, scope: &mut Scope) -> Result<Turn, Error> {
        if self.wants_snapshot {
            return Ok(Turn::Snapshot);
        }
        Ok(match self.next.take() {
            None => Turn::Read,
            Some(Next::Input(input)) => {
                self.run(scope, &input)?;
                Turn::Step(input)
            }
            Some(Next::Later) => Turn::Wait,
            Some(Next::End) => Turn::End,
        })
    }

    fn give(&mut self, next: Next) -> Result<(), Error> {
        self.next = Some(next);
        Ok(())
    }

    fn request_snapshot(&mut self, _: Option<&CutOrder>) -> Result<(), Error> {
        self.wants_snapshot = true;
        Ok(())
    }

    fn snapshot(&mut self, scope: &mut Scope, state: &str) -> Result<Snapshot, Error> {
        self.wants_snapshot = false;
        let kept = self.kept().into_iter();
        let kept = kept.filter_map(|name| Some((name.clone(), scope.get(&name)?.clone())));
        let values = SnapshotValues::Here(kept.collect());
        Ok(Snapshot { states: vec![(0, state.to_string())], values, own: None })
    }

    fn kept(&self) -> Vec<String> {
        self.executor.program().persistables().map(|var| var.name.clone()).collect()
    }

    fn reduce(&mut self, _: &str, _: ReduceOp, values: &[f64]) -> Result<Vec<f64>, Error> {
        Ok(values.to_vec())
    }

    fn gather(&mut self, _: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Ok(vec![bytes.to_vec()])
    }

    fn take_times(&mut self) -> StepTimes {
        let now = self.executor.times();
        let before = std::mem::replace(&mut self.reported, now);
        StepTimes::default().with_roles(now, before)
    }

    fn set_options(&mut self, options: Options) -> Result<(), Error> {
        let step = self.executor.step();
        self.executor = Executor::new(self.executor.program().clone(), options)?;
        self.executor.set_step(step);
        self.reported = RoleTimes::default();
        Ok(())
    }
}
