//! A running server: its threads, its start and its end.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::watch;

use crate::connection::Connections;
use crate::metrics::Totals;
use crate::reload::{Watch, load};
use crate::routes::{Shared, Thread};
use crate::tls::Tls;
use crate::worker::{Engine, Worker};
use crate::{About, Source};

/// How a server behaves.
#[derive(Clone)]
pub struct Config {
    /// Where it listens; port 0 for any that is free.
    pub listen: String,
    /// Threads that serve.
    pub threads: usize,
    /// What `Authorization: Bearer` must carry, if anything.
    pub token: Option<String>,
    /// The certificate of HTTPS; without one, requests and answers are plain HTTP.
    pub tls: Option<Tls>,
    /// The largest body of a request.
    pub max_body_bytes: usize,
    /// How long a request may take, and a client to send its head or to take its answer.
    pub timeout: Duration,
    /// How often to look for a new model; never if nothing is said.
    pub watch_every: Option<Duration>,
    /// Connections that may be open.
    pub max_connections: usize,
    /// How long requests may take to finish when the server stops.
    pub stop_limit: Duration,
    /// Where lines for the operator go.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: "127.0.0.1:8080".into(),
            threads: 1,
            token: None,
            tls: None,
            max_body_bytes: 1 << 20,
            timeout: Duration::from_secs(5),
            watch_every: Some(Duration::from_secs(2)),
            max_connections: 4096,
            stop_limit: Duration::from_secs(10),
            log: Arc::new(|_| {}),
        }
    }
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot be used.
    #[error("{0}")]
    Model(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// A thread or its runtime cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// A setting that makes no sense.
    #[error("{0}")]
    Config(String),
}

/// A running server. Dropping it stops it, too.
pub struct Server {
    address: SocketAddr,
    about: Arc<About>,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    /// Dropped to end the watch for new models.
    stop_watch: Option<SyncSender<()>>,
    threads: Vec<JoinHandle<usize>>,
    watcher: Option<JoinHandle<()>>,
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSummary {
    /// Connections that were closed because they did not end within the limit.
    pub cut_off: usize,
}

impl Server {
    /// Opens the model, listens and answers.
    ///
    /// # Errors
    /// If the model cannot be used, the address cannot be listened on, or the configuration makes
    /// no sense.
    pub fn start(config: Config, source: Arc<dyn Source>) -> Result<Server, Error> {
        check(&config)?;
        let stamp = source.stamp();
        let model = source.open().map_err(Error::Model)?;
        let loaded = load(&model, config.threads).map_err(Error::Model)?;
        let listener = listen(&config.listen)?;
        let address = listener.local_addr()?;
        let (workers, engines): (Vec<_>, Vec<_>) = loaded.into_iter().map(Worker::new).unzip();
        let shared = Arc::new(Shared {
            token: config.token.clone(),
            max_body_bytes: config.max_body_bytes,
            timeout: config.timeout,
            stopping: AtomicBool::new(false),
            about: Mutex::new(model.about()),
            counters: workers.iter().map(|worker| worker.counters.clone()).collect(),
            totals: Totals::default(),
        });
        let (stop, _) = watch::channel(false);
        let mut server = Server {
            address,
            about: model.about(),
            shared: shared.clone(),
            stop,
            stop_watch: None,
            threads: Vec::new(),
            watcher: None,
        };
        for (worker, engine) in workers.iter().zip(engines) {
            let thread = Thread { shared: shared.clone(), worker: worker.clone() };
            server.spawn(&config, &listener, thread, engine)?;
        }
        if let Some(every) = config.watch_every {
            let log = config.log.clone();
            server.watch(Watch { source, every, stamp, shared, workers, log })?;
        }
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The model that it began with.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Waits for SIGTERM, SIGINT or Ctrl-C; gives the word for which it was.
    ///
    /// # Errors
    /// If signals cannot be listened to.
    pub fn wait_for_signal(&self) -> io::Result<&'static str> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(signal())
    }

    /// Stops accepting, lets requests finish within the limit and ends all threads.
    pub fn stop(mut self) -> StopSummary {
        self.end()
    }

    fn end(&mut self) -> StopSummary {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.stop.send_replace(true);
        self.stop_watch = None;
        let ended = self.threads.drain(..).map(|thread| thread.join().unwrap_or(0));
        let cut_off = ended.sum();
        if let Some(watcher) = self.watcher.take() {
            // It ends after the model that it may be opening.
            let _ = watcher.join();
        }
        StopSummary { cut_off }
    }

    fn spawn(
        &mut self,
        config: &Config,
        listener: &TcpListener,
        thread: Thread,
        engine: Engine,
    ) -> Result<(), Error> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = listener.try_clone()?;
        let connections = Connections {
            thread: thread.clone(),
            tls: config.tls.as_ref().map(Tls::acceptor),
            max_connections: config.max_connections as u64,
            stop_limit: config.stop_limit,
            log: config.log.clone(),
        };
        let stop = self.stop.subscribe();
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio::spawn(async move { thread.worker.run(engine).await });
            Ok::<usize, io::Error>(connections.serve(listener, stop).await)
        };
        let log = config.log.clone();
        let name = format!("serve {}", self.threads.len());
        let run = move || match runtime.block_on(serve) {
            Ok(cut_off) => cut_off,
            Err(error) => {
                log(&format!("a thread cannot use the listening socket: {error}"));
                0
            }
        };
        self.threads.push(thread::Builder::new().name(name).spawn(run)?);
        Ok(())
    }

    fn watch(&mut self, watch: Watch) -> Result<(), Error> {
        let (stop, stopped) = sync_channel(0);
        let run = move || watch.run(&stopped);
        self.watcher = Some(thread::Builder::new().name("serve watch".into()).spawn(run)?);
        self.stop_watch = Some(stop);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn check(config: &Config) -> Result<(), Error> {
    let wrong = |what: &str| Err(Error::Config(what.into()));
    match config {
        Config { threads: 0, .. } => wrong("a server needs at least 1 thread"),
        Config { max_connections: 0, .. } => wrong("a server needs at least 1 connection"),
        Config { timeout: Duration::ZERO, .. } => wrong("the time limit must be more than 0"),
        Config { watch_every: Some(Duration::ZERO), .. } => {
            wrong("the time between looks for a new model must be more than 0")
        }
        Config { token: Some(token), .. } if token.is_empty() => wrong("the token is empty"),
        _ => Ok(()),
    }
}

fn listen(address: &str) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        // The threads share it, each with its own runtime.
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| Error::Listen { address: address.into(), source })
}

#[cfg(unix)]
async fn signal() -> io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => Ok("SIGTERM"),
        _ = int.recv() => Ok("SIGINT"),
    }
}

#[cfg(not(unix))]
async fn signal() -> io::Result<&'static str> {
    tokio::signal::ctrl_c().await.map(|()| "Ctrl-C")
}
