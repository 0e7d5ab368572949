//! A small job: one table, one dense parameter that is cut over the servers, gradients that are
//! whole numbers and a learning rate of 1, so that every sum is exact.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use regatta_net::{ClientOptions, ServerOptions};
use regatta_optim::{Rule, Schedule, Sgd, Sum};
use regatta_ps::message::ServerStats;
use regatta_ps::partition::dense_pieces;
use regatta_ps::{
    Client, ClientConfig, ClientTable, DenseSetup, Error, Gradients, JobToken, Mode, NetEvent,
    PullSpec, Server, ServerConfig, TableSetup, Tune, Wire,
};
use regatta_table::{Accessor, Admission, Initializer, PlainConfig, SparseConfig, TableId};

pub(crate) const DIM: usize = 3;
pub(crate) const DENSE: usize = 7;

#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) servers: usize,
    pub(crate) workers: usize,
    pub(crate) mode: Mode,
    pub(crate) rule: Rule,
    pub(crate) admission: Admission,
    pub(crate) initializer: Initializer,
    pub(crate) schedule: Schedule,
    pub(crate) allow_worker_loss: bool,
    pub(crate) start_timeout: Duration,
    pub(crate) worker_timeout: Duration,
    pub(crate) name: String,
    pub(crate) token: String,
    pub(crate) wire: Wire,
    pub(crate) tune_server: Option<Tune<ServerOptions>>,
    pub(crate) tune_client: Option<Tune<ClientOptions>>,
    /// What connections and servers had to say.
    pub(crate) events: Arc<Mutex<Vec<String>>>,
}

impl Job {
    pub(crate) fn new(servers: usize, workers: usize, mode: Mode) -> Job {
        let geo = matches!(mode, Mode::Geo { .. });
        Job {
            servers,
            workers,
            mode,
            rule: if geo { Rule::Sum(Sum {}) } else { Rule::Sgd(Sgd {}) },
            admission: Admission::None,
            initializer: Initializer::Constant(0.0),
            schedule: Schedule::Constant,
            allow_worker_loss: false,
            start_timeout: Duration::from_secs(20),
            worker_timeout: Duration::from_secs(3),
            name: "job".into(),
            token: "secret".into(),
            wire: Wire::F32,
            tune_server: None,
            tune_client: None,
            events: Arc::default(),
        }
    }

    fn observer(&self) -> regatta_ps::Observer {
        let events = self.events.clone();
        Arc::new(move |event: &NetEvent| events.lock().unwrap().push(event.to_string()))
    }

    pub(crate) fn heard(&self, text: &str) -> bool {
        self.events.lock().unwrap().iter().any(|e| e.contains(text))
    }

    pub(crate) fn server_config(&self, index: usize) -> ServerConfig {
        let mut plain = PlainConfig::new(DIM, self.rule);
        plain.initializer = self.initializer;
        let mut config = SparseConfig::new(TableId(0), 42, Accessor::Plain(plain));
        config.admission = self.admission.clone();
        let pieces = dense_pieces(&[DENSE], self.servers, false);
        ServerConfig {
            index,
            servers: self.servers,
            workers: self.workers,
            endpoint: "127.0.0.1:0".into(),
            network: None,
            token: JobToken::new(&self.token),
            job: self.name.clone(),
            mode: self.mode,
            tables: vec![TableSetup { name: "t".into(), config, lr_scale: 1.0 }],
            dense: pieces[index]
                .iter()
                .map(|p| DenseSetup {
                    param: "w".into(),
                    start: p.range.start,
                    len: p.range.len(),
                    rule: self.rule,
                    lr_scale: 1.0,
                })
                .collect(),
            params: vec!["t".into(), "w".into()],
            learning_rate: 1.0,
            schedule: self.schedule.clone(),
            allow_worker_loss: self.allow_worker_loss,
            start_timeout: self.start_timeout,
            worker_timeout: self.worker_timeout,
            observer: self.observer(),
            notices: Arc::new(|_| {}),
            tune: self.tune_server.clone(),
        }
    }

    pub(crate) fn client_config(&self, endpoints: &[String], worker: usize) -> ClientConfig {
        let counted = self.admission != Admission::None;
        ClientConfig {
            worker,
            workers: self.workers,
            endpoints: endpoints.to_vec(),
            network: None,
            token: JobToken::new(&self.token),
            job: self.name.clone(),
            tables: vec![ClientTable { name: "t".into(), dim: DIM, counted, lookahead: 0 }],
            pieces: dense_pieces(&[DENSE], self.servers, false),
            wire: self.wire,
            connect_timeout: Duration::from_secs(10),
            reply_timeout: Duration::from_secs(30),
            observer: self.observer(),
            tune: self.tune_client.clone(),
        }
    }

    pub(crate) fn start(&self) -> (Vec<Server>, Vec<String>) {
        let servers: Vec<Server> =
            (0..self.servers).map(|i| Server::start(self.server_config(i)).unwrap()).collect();
        let endpoints = servers.iter().map(Server::endpoint).collect();
        (servers, endpoints)
    }

    pub(crate) fn connect(&self, endpoints: &[String], worker: usize) -> Result<Client, Error> {
        Client::connect(self.client_config(endpoints, worker))
    }

    /// Runs the whole job in threads; every worker does `work` and leaves.
    pub(crate) fn run<T: Send>(
        &self,
        work: impl Fn(usize, &Client) -> T + Sync,
    ) -> (Vec<T>, Vec<ServerStats>) {
        let (servers, endpoints) = self.start();
        thread::scope(|s| {
            let servers: Vec<_> =
                servers.into_iter().map(|server| s.spawn(|| server.run().unwrap())).collect();
            let (work, endpoints) = (&work, &endpoints);
            let workers: Vec<_> = (0..self.workers)
                .map(|w| {
                    s.spawn(move || {
                        let client = self.connect(endpoints, w).unwrap();
                        let result = work(w, &client);
                        client.leave().unwrap();
                        result
                    })
                })
                .collect();
            let results = workers.into_iter().map(|w| w.join().unwrap()).collect();
            (results, servers.into_iter().map(|s| s.join().unwrap()).collect())
        })
    }
}

/// Gives the dense parameters their first values; all workers must call it.
pub(crate) fn begin(client: &Client) {
    if client.worker() == 0 {
        client.set_dense(&[&[0.0; DENSE]]).unwrap();
    }
    client.barrier("begin").unwrap();
}

/// A whole number that is different for every worker, step and position.
pub(crate) fn number(worker: usize, step: u64, at: usize) -> f32 {
    ((worker as u64 * 7 + step * 3 + at as u64) % 16) as f32 - 5.0
}

pub(crate) struct Values {
    pub(crate) keys: Vec<u64>,
    pub(crate) rows: Vec<f32>,
    pub(crate) dense: Vec<f32>,
}

/// What a worker pushes in a step: some keys are common to all workers, some its own.
pub(crate) fn gradients(worker: usize, step: u64) -> Values {
    let keys: Vec<u64> = vec![1, 2, 100 + worker as u64, 200 + step];
    let rows = (0..keys.len() * DIM).map(|i| number(worker, step, i)).collect();
    let dense = (0..DENSE).map(|i| number(worker, step, 50 + i)).collect();
    Values { keys, rows, dense }
}

pub(crate) fn with_gradients<T>(v: &Values, step: u64, f: impl FnOnce(&Gradients<'_>) -> T) -> T {
    let tables: [(&[u64], &[f32]); 1] = [(&v.keys, &v.rows)];
    f(&Gradients { step, examples: 8, dense: &[&v.dense], tables: &tables, mark: None })
}

pub(crate) fn wanted<'a>(step: u64, keys: &'a [&'a [u64]], test: bool) -> PullSpec<'a> {
    PullSpec { step, test, dense: true, keys, counts: &[] }
}

/// Rows of keys and the dense parameters, looked at or to train with.
pub(crate) fn pull(client: &Client, step: u64, keys: &[u64], test: bool) -> (Vec<f32>, Vec<f32>) {
    let ticket = client.pull(&wanted(step, &[keys], test)).unwrap();
    let (mut rows, mut dense) = (vec![f32::NAN; keys.len() * DIM], vec![f32::NAN; DENSE]);
    client.finish_pull(ticket, &mut [&mut rows], &mut [&mut dense]).unwrap();
    (rows, dense)
}

/// The keys that `workers` push in `steps`, and the sums that servers must hold with SGD.
pub(crate) fn expected(workers: usize, steps: u64, scale: f32) -> (Vec<u64>, Vec<f32>, Vec<f32>) {
    let mut rows: std::collections::BTreeMap<u64, [f32; DIM]> = Default::default();
    let mut dense = vec![0.0; DENSE];
    for worker in 0..workers {
        for step in 0..steps {
            let v = gradients(worker, step);
            for (key, row) in v.keys.iter().zip(v.rows.chunks(DIM)) {
                let sum = rows.entry(*key).or_default();
                sum.iter_mut().zip(row).for_each(|(s, g)| *s += scale * g);
            }
            dense.iter_mut().zip(&v.dense).for_each(|(s, g)| *s += scale * g);
        }
    }
    (rows.keys().copied().collect(), rows.values().flatten().copied().collect(), dense)
}

/// Waits until something is so; other threads bring it about.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(std::time::Instant::now() < until, "not so after 20 s: {what}");
        thread::yield_now();
    }
}
