//! What runs the program of an evaluation: all parameters in memory, or rows of tables that are
//! fetched batch by batch. Ids without a row get zeros, as predictions get them, and are counted.

use std::collections::HashMap;
use std::path::Path;

use regatta_checkpoint::load_statistics;
use regatta_data::Batch;
use regatta_exec::{Executor, Options, RoleTimes, Scope, run_startup};
use regatta_fleet::ps::{Exchange, Lookup, TableExchange};
use regatta_ir::Program;
use regatta_passes::{clone_for_test, compute_stage, pull_tables};
use regatta_ps::{Client, Wanted};
use regatta_tensor::{RowIndex, Tensor, Value};

use crate::network::{Network, inputs};
use crate::{Config, Error};

/// The program of an evaluation with its parameters.
pub(super) struct Engine {
    executor: Executor,
    pub(super) scope: Scope,
    /// Inputs that the program reads as they are.
    direct: Vec<String>,
    tables: Vec<TableExchange>,
    lookups: Vec<Lookup>,
    index: RowIndex,
    rows: Rows,
    /// Ids without a row: distinct ones of each batch and table.
    pub(super) missing_ids: u64,
}

/// Where rows of tables come from.
enum Rows {
    /// All parameters are in the scope.
    InScope,
    /// What servers have saved.
    Saved(Vec<SavedTable>),
    /// Servers that are running.
    Servers(Box<Client>),
}

/// The rows of a table that have been trained.
struct SavedTable {
    places: HashMap<u64, usize>,
    values: Vec<f32>,
}

impl Engine {
    /// With all parameters in memory, at their first values.
    pub(super) fn whole(config: &Config, network: &Network) -> Result<Engine, Error> {
        let program = clone_for_test(&network.forward.main)?;
        Engine::new(config, network, program, Vec::new(), Rows::InScope)
    }

    /// With what servers have saved in a folder.
    pub(super) fn saved(
        config: &Config,
        network: &Network,
        tables: &[String],
        folder: &Path,
    ) -> Result<Engine, Error> {
        let mut engine = Engine::pulling(config, network, tables, Rows::Saved(Vec::new()))?;
        let dir = folder.to_string_lossy();
        let mut saved = Vec::new();
        for table in &engine.tables {
            let (mut places, mut values) = (HashMap::new(), Vec::new());
            regatta_ps::storage::load_rows(&dir, &table.name, table.dim, |key, row| {
                places.insert(key, values.len());
                values.extend_from_slice(row);
            })
            .map_err(ps)?;
            saved.push(SavedTable { places, values });
        }
        engine.rows = Rows::Saved(saved);
        for name in engine.dense_names() {
            let Some(tensor) = engine.scope.get_mut(&name) else { continue };
            let values = tensor.f32_mut();
            let loaded = regatta_ps::storage::load_dense(&dir, &name, values.len()).map_err(ps)?;
            values.copy_from_slice(&loaded);
        }
        engine.load_statistics(network, folder)?;
        Ok(engine)
    }

    /// With servers that are running; [`Engine::pull_dense`] brings the dense parameters.
    pub(super) fn servers(
        config: &Config,
        network: &Network,
        tables: &[String],
        client: Client,
    ) -> Result<Engine, Error> {
        Engine::pulling(config, network, tables, Rows::Servers(Box::new(client)))
    }

    fn pulling(
        config: &Config,
        network: &Network,
        tables: &[String],
        rows: Rows,
    ) -> Result<Engine, Error> {
        let program = pull_tables(&clone_for_test(&network.forward.main)?, tables)?;
        let exchange = Exchange::of(&program, tables)?;
        Engine::new(config, network, compute_stage(&program)?, exchange.tables, rows)
    }

    fn new(
        config: &Config,
        network: &Network,
        program: Program,
        tables: Vec<TableExchange>,
        rows: Rows,
    ) -> Result<Engine, Error> {
        let made: Vec<&String> = tables
            .iter()
            .flat_map(|t| t.inputs.iter().map(|(_, local)| local).chain([&t.pulled]))
            .collect();
        let direct = inputs(&program).into_iter().filter(|name| !made.contains(&name)).collect();
        let mut scope = Scope::new();
        let names: Vec<&String> = tables.iter().map(|t| &t.name).collect();
        run_startup(&without(&network.forward.startup, &names), &mut scope)?;
        let options = Options { threads: config.runner.thread_num, ..Options::default() };
        let lookups = tables.iter().map(|_| Lookup::default()).collect();
        let executor = Executor::new(program, options)?;
        let index = RowIndex::default();
        Ok(Engine { executor, scope, direct, tables, lookups, index, rows, missing_ids: 0 })
    }

    /// Runs the program on a batch; what is fetched is overwritten by the next one.
    pub(super) fn run(&mut self, batch: &Batch, fetch: &[&str]) -> Result<&[Tensor], Error> {
        let value = |name: &str| {
            batch.get(name).ok_or_else(|| Error::Evaluation(format!("the data have no '{name}'")))
        };
        for (table, lookup) in self.tables.iter().zip(&mut self.lookups) {
            for (name, _) in &table.inputs {
                value(name)?;
            }
            let value = |name: &str| batch.get(name).expect("it was looked for");
            lookup.prepare(table, false, &mut self.index, value);
        }
        self.fill_rows()?;
        let direct = self.direct.iter().map(|name| Ok((name.as_str(), value(name)?)));
        let mut feeds = direct.collect::<Result<Vec<(&str, &Value)>, Error>>()?;
        for (table, lookup) in self.tables.iter().zip(&self.lookups) {
            feeds.extend(lookup.feeds(table));
        }
        Ok(self.executor.run(&mut self.scope, &feeds, fetch)?)
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
                let ticket = client.pull_exactly(&looking(&keys, false)).map_err(ps)?;
                let mut rows: Vec<&mut [f32]> =
                    self.lookups.iter_mut().map(Lookup::rows_mut).collect();
                client.finish_pull(ticket, &mut rows, &mut []).map_err(ps)?;
            }
        }
        Ok(())
    }

    /// Brings the dense parameters of the servers, which are `names` in their order.
    pub(super) fn pull_dense(&mut self, names: &[String]) -> Result<(), Error> {
        let Rows::Servers(client) = &self.rows else { return Ok(()) };
        let keys: Vec<&[u64]> = self.tables.iter().map(|_| &[][..]).collect();
        let ticket = client.pull_exactly(&looking(&keys, true)).map_err(ps)?;
        let mut rows: Vec<&mut [f32]> = keys.iter().map(|_| &mut [][..]).collect();
        let params = self.scope.get_many_mut(names).ok_or_else(|| {
            Error::Evaluation("a dense parameter of the servers is not in the program".into())
        })?;
        let mut dense: Vec<&mut [f32]> = params.into_iter().map(Tensor::f32_mut).collect();
        client.finish_pull(ticket, &mut rows, &mut dense).map_err(ps)?;
        Ok(())
    }

    /// The connections to running servers.
    ///
    /// # Panics
    /// If there are none.
    pub(super) fn client(&self) -> &Client {
        match &self.rows {
            Rows::Servers(client) => client,
            Rows::InScope | Rows::Saved(_) => unreachable!("made with servers"),
        }
    }

    fn dense_names(&self) -> Vec<String> {
        self.executor.program().param_names()
    }

    /// Loads the statistics that a worker has saved beside the parts of servers.
    pub(super) fn load_statistics(
        &mut self,
        network: &Network,
        folder: &Path,
    ) -> Result<(), Error> {
        for (name, tensor) in load_statistics(&network.forward.main, folder)? {
            self.scope.set(&name, tensor);
        }
        Ok(())
    }

    /// Where the time of runs has gone.
    pub(super) fn times(&self) -> RoleTimes {
        self.executor.times()
    }

    /// Runs so far.
    pub(super) fn step(&self) -> u64 {
        self.executor.step()
    }
}

impl SavedTable {
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
            match self.places.get(key) {
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

/// A pull that creates and counts nothing.
fn looking<'a>(keys: &'a [&'a [u64]], dense: bool) -> Wanted<'a> {
    Wanted { step: 0, test: true, dense, keys, counts: &[] }
}

pub(super) fn ps(e: regatta_ps::Error) -> Error {
    Error::from(regatta_fleet::Error::from(e))
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
