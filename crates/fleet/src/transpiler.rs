//! The transpiler calls of earlier Paddle versions, as a thin view over the compiler passes that
//! split programs.

use regatta_ir::{Program, Programs};
use regatta_passes::{Split, split_server, split_trainer};

use crate::Error;
use regatta_train::job::server_partitions;

/// A training program divided between trainers and parameter servers.
///
/// ```
/// use regatta_fleet::DistributeTranspiler;
/// # use regatta_ir::Act;
/// # use regatta_optim::{Rule, Sgd};
/// # use regatta_passes::{Backward, Optimizer, minimize};
/// # use regatta_tensor::DType;
/// # let mut b = regatta_ops::builder(1);
/// # let x = b.data("x", DType::F32, &[-1, 13])?;
/// # let y = b.data("y", DType::F32, &[-1, 1])?;
/// # let p = b.fc(&x, 1, Act::None)?;
/// # let cost = b.square_error_cost(&p, &y)?;
/// # let loss = b.mean(&cost)?;
/// # let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.01);
/// # let programs = minimize(&b.finish(), loss.name(), &sgd, &Backward::default())?.programs;
/// let t = DistributeTranspiler::transpile(&programs, 0, "10.0.0.1:6174, 10.0.0.2:6174", 4)?;
/// let trainer = t.get_trainer_program();
/// let server = t.get_pserver_program("10.0.0.2:6174")?;
/// let startup = t.get_startup_program("10.0.0.2:6174", &server)?;
/// assert!(trainer.to_string().contains("send("));
/// assert!(server.to_string().contains("sgd("));
/// # assert!(startup.to_string().contains("slice("));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DistributeTranspiler {
    split: Split,
    startup: Program,
    endpoints: Vec<String>,
}

impl DistributeTranspiler {
    /// Divides a training program for `trainers` trainers and the servers at `pservers`, a list of
    /// `host:port` separated by commas.
    ///
    /// # Errors
    /// If the endpoints or numbers make no sense, or memory is shared already: sharing memory is
    /// the last thing to do to a program.
    pub fn transpile(
        programs: &Programs,
        trainer_id: usize,
        pservers: &str,
        trainers: usize,
    ) -> Result<DistributeTranspiler, Error> {
        if trainer_id >= trainers {
            return Err(Error::Config(format!(
                "trainer_id is {trainer_id}, but with {trainers} trainers it is below {trainers}"
            )));
        }
        let endpoints = parse_endpoints(pservers)?;
        let split = split_trainer(programs)?;
        Ok(DistributeTranspiler { split, startup: programs.startup.clone(), endpoints })
    }

    /// Forward and backward, and what a trainer pulls and receives before them and pushes and sends
    /// afterwards, instead of updates.
    pub fn get_trainer_program(&self) -> &Split {
        &self.split
    }

    /// What the server at an endpoint holds and how it updates it.
    ///
    /// # Errors
    /// If there is no such server.
    pub fn get_pserver_program(&self, endpoint: &str) -> Result<Program, Error> {
        Ok(self.server(endpoint)?.main)
    }

    /// The initial values of everything that a server's program holds.
    ///
    /// # Errors
    /// If there is no such server, or the program is another server's.
    pub fn get_startup_program(
        &self,
        endpoint: &str,
        pserver_program: &Program,
    ) -> Result<Program, Error> {
        let server = self.server(endpoint)?;
        if server.main != *pserver_program {
            return Err(Error::Config(format!("this is not the program of the server {endpoint}")));
        }
        Ok(server.startup)
    }

    fn server(&self, endpoint: &str) -> Result<Programs, Error> {
        let index = self.endpoints.iter().position(|e| e == endpoint.trim()).ok_or_else(|| {
            let all = self.endpoints.join(", ");
            Error::Config(format!("there is no server at '{endpoint}' (servers: {all})"))
        })?;
        let partitions = server_partitions(&self.split, self.endpoints.len(), index);
        Ok(split_server(&self.split, &self.startup, &partitions)?)
    }
}

/// Reads `host:port,host:port`.
///
/// # Errors
/// If one of them has no port or occurs twice.
pub fn parse_endpoints(list: &str) -> Result<Vec<String>, Error> {
    let mut endpoints: Vec<String> = Vec::new();
    for endpoint in list.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        let port = endpoint.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(Error::Config(format!("'{endpoint}' is not of the form host:port")));
        }
        if endpoints.iter().any(|e| e == endpoint) {
            return Err(Error::Config(format!("the endpoint {endpoint} is listed twice")));
        }
        endpoints.push(endpoint.to_string());
    }
    if endpoints.is_empty() {
        return Err(Error::Config("no servers are listed".into()));
    }
    Ok(endpoints)
}

#[cfg(test)]
mod tests {
    use super::parse_endpoints;

    #[test]
    fn endpoint_lists() {
        assert_eq!(parse_endpoints("a:1, b:2,").unwrap(), ["a:1", "b:2"]);
        for (bad, want) in [
            ("a:1,a:1", "the endpoint a:1 is listed twice"),
            ("a", "'a' is not of the form host:port"),
            ("a:99999", "'a:99999' is not of the form host:port"),
            (":1", "':1' is not of the form host:port"),
            (" ,", "no servers are listed"),
        ] {
            assert_eq!(parse_endpoints(bad).unwrap_err().to_string(), want);
        }
    }
}
