//! What backends share: a program with what it fetches, and the input that was given last.

use regatta_exec::{Executor, Options, RoleTimes, Scope};
use regatta_ir::Program;
use regatta_tensor::{Tensor, Value};

use crate::Error;
use crate::backend::{StepTimes, Turn};
use crate::input::{Input, Next};

/// A program that runs step by step, with what is fetched and how long it took.
pub(crate) struct Runner {
    pub(crate) executor: Executor,
    fetch: Vec<String>,
    /// Times that were taken before.
    reported: RoleTimes,
}

impl Runner {
    pub(crate) fn new(program: Program, options: Options) -> Result<Runner, Error> {
        let executor = Executor::new(program, options)?;
        Ok(Runner { executor, fetch: Vec::new(), reported: RoleTimes::default() })
    }

    pub(crate) fn program(&self) -> &Program {
        self.executor.program()
    }

    pub(crate) fn set_fetch(&mut self, fetch: &[&str]) {
        self.fetch = fetch.iter().map(|name| name.to_string()).collect();
    }

    /// Names that the program keeps from step to step.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &String> {
        self.program().persistables().map(|var| &var.name)
    }

    /// One step on the values of an input that the program reads.
    pub(crate) fn run(&mut self, scope: &mut Scope, input: &Input) -> Result<(), Error> {
        let feeds = feeds(self.program(), input);
        self.run_on(scope, &feeds)
    }

    /// One step on these values.
    pub(crate) fn run_on(
        &mut self,
        scope: &mut Scope,
        feeds: &[(&str, &Value)],
    ) -> Result<(), Error> {
        let fetch: Vec<&str> = self.fetch.iter().map(String::as_str).collect();
        self.executor.run(scope, feeds, &fetch)?;
        Ok(())
    }

    pub(crate) fn fetched(&self) -> &[Tensor] {
        self.executor.fetched()
    }

    /// The same program from the same step on, with other options.
    pub(crate) fn set_options(&mut self, options: Options) -> Result<(), Error> {
        let step = self.executor.step();
        self.executor = Executor::new(self.program().clone(), options)?;
        self.executor.set_step(step);
        self.reported = RoleTimes::default();
        Ok(())
    }

    /// These times with those of the program since the last call.
    pub(crate) fn take_times(&mut self, exchanges: &mut StepTimes) -> StepTimes {
        let now = self.executor.times();
        let before = std::mem::replace(&mut self.reported, now);
        std::mem::take(exchanges).with_roles(now, before)
    }
}

/// The methods of a backend that fetches what its `runner` fetches.
macro_rules! fetches_by_runner {
    () => {
        fn set_fetch(&mut self, fetch: &[&str]) {
            self.runner.set_fetch(fetch);
        }

        fn fetched(&self) -> &[regatta_tensor::Tensor] {
            self.runner.fetched()
        }
    };
}

/// The methods of a backend whose steps are those of its `runner`.
macro_rules! steps_by_runner {
    () => {
        fn step(&self) -> u64 {
            self.runner.executor.step()
        }

        fn set_step(&mut self, step: u64) {
            self.runner.executor.set_step(step);
        }
    };
}
pub(crate) use {fetches_by_runner, steps_by_runner};

/// The values of an input that a program reads.
pub(crate) fn feeds<'a>(program: &Program, input: &'a Input) -> Vec<(&'a str, &'a Value)> {
    let vars = &program.block().vars;
    input.iter().filter(|(name, _)| vars.contains_key(*name)).collect()
}

/// What was given last, for a backend that takes one input after the other.
#[derive(Default)]
pub(crate) struct Inbox(Option<Next>);

impl Inbox {
    pub(crate) fn give(&mut self, next: Next) {
        self.0 = Some(next);
    }

    /// The next turn; `run` makes a step.
    pub(crate) fn turn(
        &mut self,
        run: impl FnOnce(&Input) -> Result<(), Error>,
    ) -> Result<Turn, Error> {
        Ok(match self.0.take() {
            None => Turn::Read,
            Some(Next::Input(input)) => {
                run(&input).map_err(|e| e.in_batch(&input))?;
                Turn::Step(input)
            }
            Some(Next::Later) => Turn::Wait,
            Some(Next::End) => Turn::End,
        })
    }
}
