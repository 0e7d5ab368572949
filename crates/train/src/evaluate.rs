//! Evaluation: the predicting part of a program on test data, with all parameters in memory, or
//! with rows of tables that are fetched batch by batch. Ids without a row get zeros, as predictions
//! get them, and are counted.

use std::collections::HashMap;

use regatta_checkpoint::Topology;
use regatta_exec::{Lookup, Options, Scope, run_startup};
use regatta_ir::{Origin, Program, Programs};
use regatta_passes::{TableExchange, clone_for_test, pull_tables};
use regatta_ps::{Client, Idle, PullSpec};
use regatta_tensor::{RowIndex, Tensor, Value};

use crate::Error;
use crate::backend::{Backend, Snapshot, StepTimes, Turn};
use crate::input::{Input, Next};
use crate::runner::{Inbox, Runner, fetches_by_runner, steps_by_runner};

/// A program that predicts, with its parameters.
pub struct Evaluator {
    runner: Runner,
    inbox: Inbox,
    /// Inputs that the program reads as they are.
    direct: Vec<String>,
    tables: Vec<TableExchange>,
    lookups: Vec<Lookup>,
    index: RowIndex,
    rows: Rows,
    times: StepTimes,
    missing_ids: u64,
}

/// Where rows of tables come from.
pub enum Rows {
    /// All parameters are in the scope.
    InScope,
    /// Saved rows of these tables, in the order of their names.
    Saved(Vec<SavedTable>),
    /// Servers that are running.
    Servers(Box<Client>),
}

/// The rows of a table that have been trained.
#[derive(Default)]
pub struct SavedTable {
    offsets: HashMap<u64, usize>,
    values: Vec<f32>,
}

impl SavedTable {
    /// Adds a row.
    pub fn insert(&mut self, key: u64, row: &[f32]) {
        self.offsets.insert(key, self.values.len());
        self.values.extend_from_slice(row);
    }

    /// Writes the rows of a batch; gives how many ids have none.
    fn fill(&self, lookup: &mut Lookup) -> u64 {
        let keys = lookup.keys().to_vec();
        if keys.is_empty() {
            return 0;
        }
        let rows = lookup.rows_mut();
        let dim = rows.len() / keys.len();
        let mut missing = 0;
        for (key, row) in keys.iter().zip(rows.chunks_exact_mut(dim)) {
            match self.offsets.get(key) {
                Some(&at) => row.copy_from_slice(&self.values[at..at + dim]),
                None => {
                    row.fill(0.0);
                    missing += 1;
                }
            }
        }
        missing
    }
}

impl Evaluator {
    /// Prepares the program of a model; `tables` are those whose rows are not in the scope. Returns
    /// it with a scope of initial values, without these tables.
    ///
    /// # Errors
    /// If the program cannot predict, or the options do not fit.
    pub fn new(
        forward: &Programs,
        tables: &[String],
        rows: Rows,
        options: Options,
    ) -> Result<(Evaluator, Scope), Error> {
        let program = clone_for_test(&forward.main)?;
        let (program, tables) = match rows {
            Rows::InScope => (program, Vec::new()),
            Rows::Saved(_) | Rows::Servers(_) => pull_tables(&program, tables)?,
        };
        let made: Vec<&String> = tables
            .iter()
            .flat_map(|t| t.inputs.iter().map(|(_, local)| local).chain([&t.pulled]))
            .collect();
        let inputs = program.block().vars.values().filter(|v| v.origin == Origin::Data);
        let direct = inputs.map(|v| v.name.clone()).filter(|name| !made.contains(&name)).collect();
        let mut scope = Scope::new();
        let names: Vec<&String> = tables.iter().map(|t| &t.name).collect();
        run_startup(&without(&forward.startup, &names), &mut scope)?;
        let evaluator = Evaluator {
            runner: Runner::new(program, options)?,
            inbox: Inbox::default(),
            direct,
            lookups: tables.iter().map(|_| Lookup::default()).collect(),
            tables,
            index: RowIndex::default(),
            rows,
            times: StepTimes::default(),
            missing_ids: 0,
        };
        Ok((evaluator, scope))
    }

    /// Names of the dense parameters.
    pub fn dense_names(&self) -> Vec<String> {
        self.runner.program().param_names()
    }

    /// Ids without a row so far: distinct ones of each batch and table. Servers count theirs.
    pub fn missing_ids(&self) -> u64 {
        self.missing_ids
    }

    fn run(&mut self, scope: &mut Scope, input: &Input) -> Result<(), Error> {
        for (table, lookup) in self.tables.iter().zip(&mut self.lookups) {
            lookup.prepare(table, false, &mut self.index, |name| input.get(name))?;
        }
        let start = std::time::Instant::now();
        self.fill_rows()?;
        self.times.pull += start.elapsed();
        let mut feeds: Vec<(&str, &Value)> = Vec::new();
        for name in &self.direct {
            let value = input.get(name);
            let missing = || Error::Config(format!("the data have no '{name}'"));
            feeds.push((name.as_str(), value.ok_or_else(missing)?));
        }
        for (table, lookup) in self.tables.iter().zip(&self.lookups) {
            feeds.extend(lookup.feeds(table));
        }
        self.runner.run_on(scope, &feeds)
    }

    fn fill_rows(&mut self) -> Result<(), Error> {
        match &self.rows {
            Rows::InScope => {}
            Rows::Saved(saved) => {
                for (lookup, table) in self.lookups.iter_mut().zip(saved) {
                    self.missing_ids += table.fill(lookup);
                }
            }
            Rows::Servers(client) => {
                let keys: Vec<&[u64]> = self.lookups.iter().map(Lookup::keys).collect();
                let ticket = client.pull_exactly(&looking(&keys, false))?;
                let mut rows: Vec<&mut [f32]> =
                    self.lookups.iter_mut().map(Lookup::rows_mut).collect();
                client.finish_pull(ticket, &mut rows, &mut [])?;
            }
        }
        Ok(())
    }

    /// Brings the dense parameters of the servers, which are `names` in their order.
    ///
    /// # Errors
    /// If a server is gone, or has parameters that the program does not have.
    pub fn pull_dense(&mut self, scope: &mut Scope, names: &[String]) -> Result<(), Error> {
        let Rows::Servers(client) = &self.rows else { return Ok(()) };
        let keys: Vec<&[u64]> = self.tables.iter().map(|_| &[][..]).collect();
        let ticket = client.pull_exactly(&looking(&keys, true))?;
        let mut rows: Vec<&mut [f32]> = keys.iter().map(|_| &mut [][..]).collect();
        let params = scope.get_many_mut(names).ok_or_else(|| {
            Error::Config("a dense parameter of the servers is not in the program".into())
        })?;
        let mut dense: Vec<&mut [f32]> = params.into_iter().map(Tensor::f32_mut).collect();
        client.finish_pull(ticket, &mut rows, &mut dense)?;
        Ok(())
    }
}

impl Backend for Evaluator {
    fn client(&self) -> Option<&Client> {
        match &self.rows {
            Rows::Servers(client) => Some(client),
            Rows::InScope | Rows::Saved(_) => None,
        }
    }

    fn topology(&self) -> Topology {
        Topology { mode: "evaluation".into(), workers: self.workers(), ..Topology::default() }
    }

    steps_by_runner!();
    fetches_by_runner!();

    fn advance(&mut self, scope: &mut Scope) -> Result<Turn, Error> {
        let mut inbox = std::mem::take(&mut self.inbox);
        inbox.turn(|input| self.run(scope, input))
    }

    fn give(&mut self, next: Next) -> Result<(), Error> {
        self.inbox.give(next);
        Ok(())
    }

    /// Nobody waits in an evaluation: sums are exchanged after it.
    fn wait_for_others(&mut self) -> Result<Idle, Error> {
        Ok(Idle::PassOver { untrained: vec![] })
    }

    fn snapshot(&mut self, _: &mut Scope, _: &str) -> Result<Snapshot, Error> {
        Err(nothing_to_keep())
    }

    fn take_times(&mut self) -> StepTimes {
        self.runner.take_times(&mut self.times)
    }

    fn set_options(&mut self, options: Options) -> Result<(), Error> {
        self.runner.set_options(options)
    }
}

fn nothing_to_keep() -> Error {
    Error::Internal("an evaluation has no checkpoints".into())
}

/// A pull that creates and counts nothing.
fn looking<'a>(keys: &'a [&'a [u64]], dense: bool) -> PullSpec<'a> {
    PullSpec { step: 0, test: true, dense, keys, counts: &[] }
}

/// A startup program that does not make some parameters: tables may be larger than the memory.
fn without(startup: &Program, names: &[&String]) -> Program {
    let mut startup = startup.clone();
    let block = startup.block_mut();
    let is_of = |var: &str| names.iter().any(|name| *name == var);
    block.ops.retain(|op| !op.output_vars().any(is_of));
    block.vars.retain(|name, _| !is_of(name));
    startup
}
