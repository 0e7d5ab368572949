//! `regatta serve`: an exported model answers over HTTP.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use regatta_checkpoint::{MANIFEST_FILE, PROGRAM_FILE};
use regatta_predict::{InputKind, Model, Session};
use regatta_serve::{About, Config, Feature, Kind, ScoreError, Scorer, Server, Source, Tls};
use regatta_tensor::{Tensor, Value};
use regatta_train::remote::RemoteCopy;

use super::remote::{CacheArgs, cached};
use super::{Outcome, positive, threads};

/// Answers requests with an exported model: JSON over HTTP.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A model that `regatta export` wrote: a path or the address of a remote store.
    #[arg(short = 'm', long = "model", value_name = "MODEL")]
    model: PathBuf,
    /// Where to listen; port 0 for any that is free.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: String,
    #[command(flatten)]
    copies: CacheArgs,
    /// Threads that answer; as many as there are cores unless said otherwise.
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// A file with the token that clients must send as 'Authorization: Bearer TOKEN'.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A PEM file with the server's certificate and those that signed it: serve HTTPS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// A PEM file with the private key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The largest body of a request.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = bytes)]
    max_body: usize,
    /// How long a request may take, and a client to send its head or to take its answer.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: f64,
    /// How often to look for a new export of the model; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds_or_never)]
    watch: f64,
    /// Connections that may be open.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = super::count)]
    max_connections: usize,
    /// How long requests may take to finish after SIGTERM or Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    stop_limit: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let remote = cached(&args.model, args.copies.cache())?;
    let source = Arc::new(ExportFolder { path: args.model.clone(), remote });
    let server = Server::start(config(args)?, source)?;
    let about = server.about();
    let (address, model) = (server.address(), args.model.display());
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    eprintln!("serving {} ({model}) on {scheme}://{address}", about.name);
    let signal = server.wait_for_signal()?;
    eprintln!("{signal}: stopping");
    match server.stop().cut_off {
        0 => eprintln!("stopped"),
        1 => eprintln!("stopped; 1 connection did not end in time and was closed"),
        n => eprintln!("stopped; {n} connections did not end in time and were closed"),
    }
    Ok(Outcome::Done)
}

fn config(args: &Args) -> anyhow::Result<Config> {
    let token = args.token_file.as_deref().map(token).transpose()?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificates), Some(key)) => Some(Tls::load(certificates, key)?),
        _ => None,
    };
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    Ok(Config {
        listen: args.listen.clone(),
        threads: args.threads.unwrap_or_else(cores),
        token,
        tls,
        max_body_bytes: args.max_body,
        timeout: Duration::from_secs_f64(args.timeout),
        watch_every: (args.watch > 0.0).then(|| Duration::from_secs_f64(args.watch)),
        max_connections: args.max_connections,
        stop_limit: Duration::from_secs_f64(args.stop_limit),
        log: Arc::new(|line| eprintln!("{line}")),
    })
}

/// The token in a file: one line of characters that a header can carry.
fn token(file: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read the token in {}", file.display()))?;
    let token = text.trim();
    let usable = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let what = "must hold one token of visible ASCII characters";
    anyhow::ensure!(usable, "{} {what}", file.display());
    Ok(token.to_string())
}

/// A directory with an export, which may be replaced.
struct ExportFolder {
    path: PathBuf,
    /// It is not on this machine.
    remote: Option<RemoteCopy>,
}

impl Source for ExportFolder {
    fn open(&self) -> Result<Arc<dyn regatta_serve::Model>, String> {
        let path = self.path.display();
        let local = match &self.remote {
            None => self.path.clone(),
            Some(remote) => remote.fetch().map_err(|e| format!("cannot serve {path}: {e}"))?,
        };
        if local.join(MANIFEST_FILE).exists() && !local.join(PROGRAM_FILE).exists() {
            let what = "is no exported model: make one of a checkpoint with";
            return Err(format!("{path} {what} 'regatta export {path} --to DIR'"));
        }
        let model = Model::open(&local).map_err(|e| format!("cannot serve {path}: {e}"))?;
        let about = Arc::new(about(&model));
        Ok(Arc::new(OpenModel { model, about }))
    }

    /// The manifest is written last and has the checksums of everything else.
    fn stamp(&self) -> Option<Vec<u8>> {
        match &self.remote {
            None => fs::read(self.path.join(MANIFEST_FILE)).ok(),
            Some(remote) => remote.manifest().ok().flatten(),
        }
    }
}

fn about(model: &Model) -> About {
    let kind = |kind| match kind {
        InputKind::Ids(n) => Kind::Ids(n),
        InputKind::RaggedIds => Kind::RaggedIds,
        InputKind::Floats(n) => Kind::Floats(n),
        InputKind::Ints(n) => Kind::Ints(n),
    };
    let feature = |input: &regatta_predict::Input| Feature {
        name: input.name.clone(),
        kind: kind(input.kind),
    };
    let info = model.info();
    About {
        name: info.name,
        path: model.path().to_path_buf(),
        serial: info.serial,
        step: info.step,
        features: model.inputs().iter().map(feature).collect(),
        transform: model.transform().cloned().map(Arc::new),
        outputs: model.outputs().to_vec(),
    }
}

/// An open export.
struct OpenModel {
    model: Model,
    about: Arc<About>,
}

impl regatta_serve::Model for OpenModel {
    fn about(&self) -> Arc<About> {
        self.about.clone()
    }

    fn scorer(&self) -> Result<Box<dyn Scorer>, String> {
        let session = self.model.session().map_err(|e| e.to_string())?;
        Ok(Box::new(ScoringSession(session)))
    }
}

/// One thread's use of it.
struct ScoringSession(Session);

impl Scorer for ScoringSession {
    fn score(&mut self, batch: &[(&str, &Value)]) -> Result<&[Tensor], ScoreError> {
        self.0.score(batch).map_err(|error| match error.is_input() {
            true => ScoreError::Input(error.to_string()),
            false => ScoreError::Internal(error.to_string()),
        })
    }

    fn missing_ids(&self) -> u64 {
        self.0.missing_ids()
    }
}

/// A size that a request may have.
fn bytes(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=1 << 30).contains(&n) => Ok(n),
        _ => Err(format!("it must be a whole number from 1 to {}", 1 << 30)),
    }
}

/// A time of up to a day.
fn seconds(text: &str) -> Result<f64, String> {
    match positive(text)? {
        x if (0.001..=86_400.0).contains(&x) => Ok(x),
        _ => Err("it must be a number of seconds from 0.001 to 86400".into()),
    }
}

fn seconds_or_never(text: &str) -> Result<f64, String> {
    if text == "0" { Ok(0.0) } else { seconds(text) }
}
