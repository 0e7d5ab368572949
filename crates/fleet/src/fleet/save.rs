//! Parameters to files and back.

use std::collections::HashMap;
use std::path::Path;

use regatta_checkpoint::server_parts;
use regatta_exec::Scope;
use regatta_ir::Program;
use regatta_ps::Client;
use regatta_table::SaveMode;
use regatta_tensor::Tensor;

use super::Fleet;
use crate::Error;

impl Fleet {
    /// Saves everything that training resumes from: parameters and optimizer state.
    ///
    /// With parameter servers each writes its part into the directory, which all of them and the
    /// first worker must see; [`Fleet::init_server`] and [`Fleet::load_model`] read it, with any
    /// number of servers. Only the first worker saves; the same call does nothing on others. Put
    /// [`Fleet::barrier_worker`] before it if others may still be training, and after it if they
    /// need the files.
    ///
    /// With `sharding` each rank keeps a part of the optimizer state, so all ranks must call it:
    /// the first gets their parts and saves them.
    ///
    /// # Errors
    /// If something cannot be written; what was there before then stays.
    pub fn save_persistables(&self, scope: &mut Scope, dir: impl AsRef<Path>) -> Result<(), Error> {
        let first = self.is_first_worker();
        if !first && !self.is_sharded() {
            return Ok(());
        }
        let dir = dir.as_ref();
        let program = self.main_program();
        let states = self.with_engine("save_persistables", scope, |engine, scope| {
            engine.pull_parameters(scope)?;
            match engine.client() {
                Some(client) => save_parts(client, dir, &program, scope).map(|()| None),
                None => Ok(Some(engine.collect_states(scope)?)),
            }
        })?;
        match states.filter(|_| first) {
            Some(states) => self.save_scope(scope, &states, dir),
            None => Ok(()),
        }
    }

    /// Saves the part of the program that makes `fetches` from `feeds`, with its parameters, for
    /// prediction on one machine. Tables of servers are saved whole: as many rows as the program
    /// declares. Only the first worker saves.
    ///
    /// # Errors
    /// If the outputs need other inputs, or something cannot be written.
    pub fn save_inference_model(
        &self,
        scope: &mut Scope,
        dir: impl AsRef<Path>,
        feeds: &[&str],
        fetches: &[&str],
    ) -> Result<(), Error> {
        if !self.is_first_worker() {
            return Ok(());
        }
        let tables = self.with_engine("save_inference_model", scope, |engine, scope| {
            engine.pull_parameters(scope)?;
            Ok(engine.pull_tables()?)
        })?;
        let state = self.worker_state("save_inference_model")?;
        let Some(plan) = &state.plan else { return Ok(()) };
        let pruned = regatta_passes::prune(&plan.programs.main, fetches)?;
        let value = |name: &str| {
            let table = tables.iter().find(|(table, _)| table == name).map(|(_, tensor)| tensor);
            table.or_else(|| scope.get(name))
        };
        Ok(regatta_checkpoint::save_inference_model(dir, &pruned, feeds, fetches, value)?)
    }

    /// Takes the values that [`Fleet::save_persistables`] has written. The first worker has the
    /// servers load them; every worker gets the dense parameters into its `scope`. Put
    /// [`Fleet::barrier_worker`] after it, so that nobody trains on with the values before.
    ///
    /// # Errors
    /// If the directory is not complete or does not fit the program.
    pub fn load_model(&self, scope: &mut Scope, dir: impl AsRef<Path>) -> Result<(), Error> {
        let (dir, first) = (dir.as_ref(), self.is_first_worker());
        let program = self.main_program();
        let alone = self.with_engine("load_model", scope, |engine, scope| {
            engine.pull_parameters(scope)?;
            let Some(client) = engine.client() else { return Ok(true) };
            if first {
                client.load(&dir.to_string_lossy(), &[])?;
            }
            engine.pull_parameters(scope)?;
            let statistics = regatta_checkpoint::load_statistics(&program, dir)?;
            statistics.into_iter().for_each(|(name, tensor)| scope.set(&name, tensor));
            Ok(false)
        })?;
        let state = self.worker_state("load_model")?;
        if alone && let Some(plan) = &state.plan {
            // With `sharding`, other ranks keep the rest.
            let is_kept = |name: &str| {
                let job = plan.collective.as_ref();
                job.is_none_or(|job| job.plan.each.startup.block().vars.contains_key(name))
            };
            for (name, tensor) in regatta_checkpoint::load_persistables(&plan.programs.main, dir)? {
                if is_kept(&name) {
                    scope.set(&name, tensor);
                }
            }
        }
        Ok(())
    }

    /// Sends what is still to be sent and takes the latest dense parameters into `scope`, for a
    /// look at the model between steps.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn pull_parameters(&self, scope: &mut Scope) -> Result<(), Error> {
        self.with_engine("pull_parameters", scope, |engine, scope| {
            Ok(engine.pull_parameters(scope)?)
        })
    }

    /// Ages all rows of tables by a day and drops those that have not been seen for N days.
    /// Only the first worker does it. Returns how many rows are gone; without servers there are no
    /// such rows.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn shrink(&self, scope: &mut Scope, max_unseen_days: u32) -> Result<u64, Error> {
        if !self.is_first_worker() {
            return Ok(0);
        }
        self.with_engine("shrink", scope, |engine, scope| {
            engine.pull_parameters(scope)?;
            match engine.client() {
                Some(client) => {
                    client.end_day()?;
                    Ok(client.shrink(Some(max_unseen_days))?)
                }
                None => Ok(0),
            }
        })
    }

    /// Takes whole tables of servers into `scope`, as many rows as the program declares, for
    /// programs that read them in this process. Without servers there is nothing to take.
    ///
    /// # Errors
    /// If a server is gone.
    pub fn pull_tables(&self, scope: &mut Scope) -> Result<(), Error> {
        self.with_engine("pull_tables", scope, |engine, scope| {
            engine.pull_parameters(scope)?;
            let tables = engine.pull_tables()?;
            tables.into_iter().for_each(|(name, table)| scope.set(&name, table));
            Ok(())
        })
    }

    /// The training program, as far as there is one.
    fn main_program(&self) -> Program {
        let state = self.lock();
        let main = state.plan.as_ref().map(|plan| plan.programs.main.clone());
        main.unwrap_or_else(|| Program::new("main"))
    }

    /// Whether ranks keep different optimizer states.
    fn is_sharded(&self) -> bool {
        let state = self.lock();
        let job = state.plan.as_ref().and_then(|plan| plan.collective.as_ref());
        job.is_some_and(|job| job.plan.sharded)
    }

    /// Saves what is in `scope`, and `states` of other ranks.
    fn save_scope(
        &self,
        scope: &Scope,
        states: &HashMap<String, Tensor>,
        dir: &Path,
    ) -> Result<(), Error> {
        let state = self.worker_state("save_persistables")?;
        let Some(plan) = &state.plan else { return Ok(()) };
        let program = &plan.programs.main;
        let value = |name: &str| states.get(name).or_else(|| scope.get(name));
        Ok(regatta_checkpoint::save_persistables(program, value, dir)?)
    }
}

/// Lets every server write its part beside the directory, which the parts then replace. Running
/// statistics are this worker's.
fn save_parts(client: &Client, dir: &Path, program: &Program, scope: &Scope) -> Result<(), Error> {
    regatta_checkpoint::publish_epoch(dir, |temp| {
        client.save(&temp.to_string_lossy(), SaveMode::All)?;
        server_parts::check_arrived(temp)?;
        Ok(regatta_checkpoint::save_statistics(program, |name| scope.get(name), temp)?)
    })
}
