//! Bounded, versioned, authenticated frames between the processes of a job.
//!
//! This crate moves requests and replies; it does not know what they mean, who takes part in a job
//! beyond a role and an index, or what an environment variable is.
//!
//! ```
//! use std::time::Duration;
//! use regatta_net::{
//!     Client, ClientOptions, Identity, JobToken, Request, Responder, Server, ServerOptions,
//! };
//!
//! let token = JobToken::new("secret of this job");
//! let options = ServerOptions::new(Identity::server(0), token.clone());
//! let server = Server::bind("127.0.0.1:0", options)?
//!     .serve(|request: Request, responder: Responder| {
//!         // From here or from any other thread, now or later.
//!         responder.reply(0, &[b"you sent ", &request.payload]).ok();
//!     })?;
//!
//! let options = ClientOptions::new(Identity::worker(3), Identity::server(0), token);
//! let client = Client::connect(server.endpoint(), options)?;
//! let first = client.send(1, 0, &[b"one"])?; // both in flight at the same time
//! let second = client.send(1, 0, &[b"two"])?;
//! assert_eq!(&second.wait(Duration::from_secs(5))?.payload[..], b"you sent two");
//! assert_eq!(&first.wait(Duration::from_secs(5))?.payload[..], b"you sent one");
//! # Ok::<(), regatta_net::Error>(())
//! ```
//!
//! What the layer above can rely on, and what it must do itself:
//!
//! - A request whose [`Pending`] is kept reaches the handler **at least once**, or the caller gets
//!   an error. After a broken connection it is sent again, so handlers must make repetition
//!   harmless.
//! - Requests of one client are handed over in order and one at a time; replies come in any order.
//! - Every wait has a limit, and the error names the role, the index and the endpoint.
//! - A server that came back as another process is [`Error::ServerRestarted`], never silently used.
//! - Strangers, garbage and oversized frames cost their sender its connection and the server a line
//!   in the log.
//!
//! A request on its way, module by module:
//!
//! 1. `client`: [`Client::send`] takes a slot of the window and writes; [`Pending`] waits;
//!    `client::keeper` connects, reconnects and sends again
//! 2. `endpoint`, `stream`: where the server is, and the bytes to it: TCP, Unix sockets
//!    ([`memory`] within a process, [`fault`] for tests); [`tls`] encrypts those that leave the
//!    machine
//! 3. [`handshake`]: the first four frames, for every connection of a job; `token`: [`JobToken`];
//!    `terms`: what client and server state there
//! 4. [`frame`]: the 64-byte header and how frames are read
//! 5. `server`: [`Server`] accepts; `server::connection` reads requests and calls the [`Handler`]
//! 6. `server::outbox`: how [`Responder::reply`] writes without waiting for slow clients
//! 7. `pool`: the buffers of all of them; `arena`: those that both ends of a Unix socket see, so
//!    that large payloads are not copied by the kernel; `identity`, `observe`, `refusals`, `error`:
//!    what they report
//!
//! [`rendezvous`] is on top of these: where launchers and ranks find each other.
//!
//! Blocking threads rather than an async runtime: measured side by side neither was consistently
//! ahead, a process talks to tens of peers and not to thousands, and the tables behind the handlers
//! are synchronous.
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod arena;
mod client;
mod endpoint;
mod error;
pub mod fault;
pub mod frame;
pub mod handshake;
mod identity;
pub mod memory;
mod observe;
mod pool;
mod refusals;
pub mod rendezvous;
mod server;
mod stream;
mod sync;
mod terms;
pub mod tls;
mod token;

pub use client::{Client, ClientOptions, ClientStats, Pending, Reply};
pub use endpoint::{Endpoint, bind_hint, connect_tcp, own_address};
pub use error::{Error, Family, Result, counted};
pub use identity::{Identity, Peer, Role};
pub use observe::{Event, Observer, Traffic};
pub use pool::{Buf, Pool};
pub use refusals::RefusalLog;
pub use server::{
    Disconnect, Handler, Request, Responder, Server, ServerOptions, ServerStats, Serving,
};
pub use stream::{Stream, Wait, over_tcp, over_unix};
pub use tls::{Certificates, Encryption};
pub use token::{JobToken, RANDOM, host, random};
