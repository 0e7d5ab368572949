//! Parameter servers: workers pull values and push gradients, servers hold tables and update them.
//!
//! It knows nothing of programs, data or configuration files.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use regatta_optim::{Rule, Schedule, Sgd};
//! # use regatta_ps::partition::dense_pieces;
//! use regatta_ps::*;
//! # use regatta_table::{Accessor, Initializer, PlainConfig, SparseConfig, TableId};
//! # let mut rows = PlainConfig::new(2, Rule::Sgd(Sgd {}));
//! # rows.initializer = Initializer::Constant(0.0);
//! # let config = SparseConfig::new(TableId(0), 42, Accessor::Plain(rows));
//! # let config = ServerConfig {
//! #     index: 0, servers: 1, workers: 1, endpoint: "127.0.0.1:0".into(), network: None,
//! #     token: JobToken::new("secret"), job: "example".into(), mode: Mode::HalfAsync,
//! #     tables: vec![TableSetup { name: "t".into(), config, lr_scale: 1.0 }], dense: vec![],
//! #     params: vec!["t".into()], learning_rate: 0.5, schedule: Schedule::Constant,
//! #     allow_worker_loss: false, start_timeout: Duration::from_secs(9),
//! #     worker_timeout: Duration::from_secs(9), observer: Arc::new(|_: &NetEvent| {}),
//! #     notices: Arc::new(|_: &Notice| {}), tune: None,
//! # };
//! let server = Server::start(config)?;
//! # let config = ClientConfig {
//! #     worker: 0, workers: 1, endpoints: vec![server.endpoint()], network: None,
//! #     token: JobToken::new("secret"), job: "example".into(),
//! #     tables: vec![ClientTable { name: "t".into(), dim: 2, counted: false, lookahead: 0 }],
//! #     pieces: dense_pieces(&[], 1, false), wire: Wire::F32,
//! #     connect_timeout: Duration::from_secs(9), reply_timeout: Duration::from_secs(9),
//! #     observer: Arc::new(|_: &NetEvent| {}), tune: None,
//! # };
//! let client = Client::connect(config)?;
//! let keys: [&[u64]; 1] = [&[7, 9]];
//! let spec = PullSpec { step: 0, test: false, dense: false, keys: &keys, counts: &[] };
//! let mut rows = [1.0; 4];
//! client.finish_pull(client.pull(&spec)?, &mut [&mut rows], &mut [])?;
//! assert_eq!(rows, [0.0; 4]);
//! let gradients: [(&[u64], &[f32]); 1] = [(&[7], &[1.0, 2.0])];
//! let gradients =
//!     Gradients { step: 0, examples: 1, dense: &[], tables: &gradients, mark: None };
//! client.finish_push(client.push(&gradients)?)?;
//! client.finish_pull(client.pull(&spec)?, &mut [&mut rows], &mut [])?;
//! assert_eq!(rows, [-0.5, -1.0, 0.0, 0.0]);
//! client.leave()?;
//! # drop(client);
//! # server.run()?;
//! # Ok::<(), regatta_ps::Error>(())
//! ```
//!
//! Reading order:
//!
//! 1. `mode`: [`Mode`], how far workers may be ahead of each other
//! 2. [`communicator`]: what a worker exchanges when, as pure state machines
//! 3. [`partition`] (which server holds what) and `route` (where the keys of a request go)
//! 4. `client`: [`Client`], the worker's side
//! 5. [`message`]: the bytes, one file per verb with both directions
//! 6. `server`: [`Server`]; on the way of a request `request`, `exchange`, `round`, `apply`
//! 7. [`rounds`]: waiting for each other, pure bookkeeping
//! 8. [`shards`]: who trains which data, and how far, pure bookkeeping
//! 9. [`snapshot`]: one state of the whole job, for checkpoints, pure bookkeeping
//! 10. `error`: [`Error`], in families: you, them, us
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod client;
pub mod communicator;
mod error;
pub mod message;
mod mode;
pub mod partition;
pub mod rounds;
mod route;
mod server;
pub mod shards;
pub mod snapshot;

pub use client::{
    Client, ClientConfig, ClientTable, GeoTicket, Idle, PullTicket, Pulled, PushTicket, Rejoined,
    TakenShard, WrittenTicket,
};
pub use error::Error;
pub use message::{Gradients, PullSpec, Wire};
pub use mode::{AsyncConfig, BadSetting, Mode};
pub use regatta_net::memory::Network;
pub use regatta_net::{Certificates, Encryption, Event as NetEvent, JobToken, Observer};
pub use server::{DenseSetup, Notice, NoticeObserver, Server, ServerConfig, TableSetup, Tune};
pub use shards::{DataStart, FileProgress, Mark, Progress};
pub use snapshot::{SnapshotOrder, SnapshotScope};
