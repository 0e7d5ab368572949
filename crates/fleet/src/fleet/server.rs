//! The life of a server: start, listen, serve until all workers have left.

use std::io::Write;
use std::sync::atomic::AtomicBool;

use regatta_ps::Server;

use super::{Fleet, State};
use crate::Error;
use regatta_train::Farewell;
use regatta_train::job::server_config;

impl Fleet {
    /// Makes this server's part of the parameters. With a directory, it takes the values that
    /// [`Fleet::save_persistables`] has written there, by any number of servers: of the named
    /// tables and parameters, or of all of them if there are no names.
    ///
    /// # Errors
    /// If nothing was minimized yet, this process is no server, its endpoint is taken, or the
    /// directory does not hold what is requested. An unknown name comes with the known ones.
    pub fn init_server(&self, model_dir: Option<&str>, var_names: &[&str]) -> Result<(), Error> {
        let mut state = self.lock();
        self.start_server(&mut state, "init_server", model_dir, var_names)
    }

    /// Serves until all workers have left. Calls [`Fleet::init_server`] if that was not done.
    ///
    /// # Errors
    /// As [`Fleet::init_server`], or if a worker never came or was lost, naming it.
    pub fn run_server(&self) -> Result<(), Error> {
        self.run_server_unless(&AtomicBool::new(false))
    }

    /// As [`Fleet::run_server`], and stops soon after `stop` is set, whatever the workers do.
    ///
    /// # Errors
    /// As [`Fleet::run_server`], and if it was stopped.
    pub fn run_server_unless(&self, stop: &AtomicBool) -> Result<(), Error> {
        let mut state = self.lock();
        if state.server.is_none() {
            self.start_server(&mut state, "run_server", None, &[])?;
        }
        let Some(server) = state.server.take() else { return Ok(()) };
        drop(state);
        say(&format!("Server listening on {}", server.endpoint()));
        let outcome = server.run_unless(stop);
        say("pserver ended");
        Ok(Farewell::check(&outcome?.lost)?)
    }

    fn start_server(
        &self,
        state: &mut State,
        call: &'static str,
        model_dir: Option<&str>,
        var_names: &[&str],
    ) -> Result<(), Error> {
        let order = |reason: String| Err(Error::Order { call, reason });
        if !self.is_server() {
            return order(format!("this process is {}, not a server", self.place()));
        }
        if state.server.is_some() {
            return order("this server has been started already".to_string());
        }
        let Some(ps) = state.plan.as_ref().and_then(|plan| plan.ps.as_ref()) else {
            return order("call minimize of the distributed optimizer first".to_string());
        };
        if model_dir.is_none() && !var_names.is_empty() {
            return order(format!(
                "{} can only be loaded from a directory, and none is given",
                var_names.join(", ")
            ));
        }
        say("start pserver...");
        let config = server_config(&ps.split, &ps.job, self.server_index())?;
        let names: Vec<String> = var_names.iter().map(|name| name.to_string()).collect();
        state.server = Some(match model_dir {
            Some(dir) => Server::start_from(config, dir, &names)?,
            None => Server::start(config)?,
        });
        say("pserver start up ok");
        Ok(())
    }
}

/// A line on standard output, where launchers look for it. Servers continue when nobody reads.
fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
