//! Training in one process: a step runs the whole program.

use regatta_checkpoint::Topology;
use regatta_exec::{Options, Scope};
use regatta_ir::Program;
use regatta_ps::SnapshotOrder;

use crate::Error;
use crate::backend::{Backend, Snapshot, SnapshotValues, StepTimes, Turn};
use crate::input::Next;
use crate::runner::{Inbox, Runner, fetches_by_runner, steps_by_runner};

/// One process that trains alone.
pub struct Local {
    runner: Runner,
    inbox: Inbox,
    wants_snapshot: bool,
}

impl Local {
    /// Prepares a training program.
    ///
    /// # Errors
    /// If the program or the options do not fit.
    pub fn new(program: Program, options: Options) -> Result<Local, Error> {
        let runner = Runner::new(program, options)?;
        Ok(Local { runner, inbox: Inbox::default(), wants_snapshot: false })
    }
}

impl Backend for Local {
    fn topology(&self) -> Topology {
        Topology { mode: "local".into(), workers: 1, ..Topology::default() }
    }

    steps_by_runner!();
    fetches_by_runner!();

    fn advance(&mut self, scope: &mut Scope) -> Result<Turn, Error> {
        if self.wants_snapshot {
            return Ok(Turn::Snapshot);
        }
        self.inbox.turn(|input| self.runner.run(scope, input))
    }

    fn give(&mut self, next: Next) -> Result<(), Error> {
        self.inbox.give(next);
        Ok(())
    }

    fn request_snapshot(&mut self, _: Option<&SnapshotOrder>) -> Result<(), Error> {
        self.wants_snapshot = true;
        Ok(())
    }

    fn snapshot(&mut self, scope: &mut Scope, state: &str) -> Result<Snapshot, Error> {
        self.wants_snapshot = false;
        let kept = self.runner.kept();
        let kept = kept.filter_map(|name| Some((name.clone(), scope.get(name)?.clone())));
        let values = SnapshotValues::Here(kept.collect());
        Ok(Snapshot { states: vec![(0, state.to_string())], orphans: vec![], values, own: None })
    }

    fn kept(&self) -> Vec<String> {
        self.runner.kept().cloned().collect()
    }

    fn take_times(&mut self) -> StepTimes {
        self.runner.take_times(&mut StepTimes::default())
    }

    fn set_options(&mut self, options: Options) -> Result<(), Error> {
        self.runner.set_options(options)
    }
}
