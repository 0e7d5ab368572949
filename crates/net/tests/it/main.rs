//! Real sockets, real threads, real processes. No test sleeps to wait for another thread: they wait
//! for replies, events and closed connections.
#![allow(clippy::unwrap_used, reason = "tests")]

mod broken;
mod handshake;
mod rendezvous;
mod requests;
mod server_process;
mod tls;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use regatta_net::{
    ClientOptions, Disconnect, Endpoint, Event, Handler, Identity, JobToken, Observer, Peer,
    Request, Responder, Server, ServerOptions, Serving,
};

/// Longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn token() -> JobToken {
    JobToken::new("the job of these tests")
}

fn server_options() -> ServerOptions {
    ServerOptions::new(Identity::server(0), token())
}

fn client_options() -> ClientOptions {
    ClientOptions::new(Identity::worker(0), Identity::server(0), token())
}

/// Options for a client that stays on TCP.
fn tcp_options() -> ClientOptions {
    ClientOptions { shortcut: false, ..client_options() }
}

fn serve(options: ServerOptions, handler: impl Handler) -> Serving {
    Server::bind("127.0.0.1:0", options).unwrap().serve(handler).unwrap()
}

/// Sends the payload back, with the flags as status.
fn echo(request: Request, responder: Responder) {
    // The client may be gone already.
    let _ = responder.reply(request.flags, &[&request.payload]);
}

fn echo_server() -> Serving {
    serve(server_options(), echo)
}

/// An observer and the events it sees.
fn observer() -> (Observer, Receiver<Event>) {
    let (sender, receiver) = sync_channel(10_000);
    (Arc::new(move |event: &Event| drop(sender.try_send(event.clone()))), receiver)
}

/// The next event that `pick` accepts.
fn next_event<T>(events: &Receiver<Event>, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
    loop {
        let event = events.recv_timeout(PATIENCE).expect("an event");
        if let Some(found) = pick(&event) {
            return found;
        }
    }
}

fn address(endpoint: &Endpoint) -> String {
    endpoint.to_string()
}

/// Echoes, and reports who comes and goes.
struct Watcher {
    changes: SyncSender<Change>,
}

#[derive(Debug)]
enum Change {
    Connected(Peer),
    Disconnected(Peer, Disconnect),
}

impl Watcher {
    fn new() -> (Watcher, Receiver<Change>) {
        let (sender, receiver) = sync_channel(10_000);
        (Watcher { changes: sender }, receiver)
    }
}

impl Handler for Watcher {
    fn request(&self, request: Request, responder: Responder) {
        echo(request, responder);
    }

    fn connected(&self, peer: &Peer) {
        let _ = self.changes.send(Change::Connected(peer.clone()));
    }

    fn disconnected(&self, peer: &Peer, how: &Disconnect) {
        let _ = self.changes.send(Change::Disconnected(peer.clone(), how.clone()));
    }
}
