//! Requests and replies while nothing is broken.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use regatta_net::fault::Wrap;
use regatta_net::memory::Network;
use regatta_net::{
    Client, ClientOptions, Disconnect, Endpoint, Error, Event, Identity, Pending, Request,
    Responder, Server, ServerOptions, Stream, Wait,
};

use crate::{
    Change, PATIENCE, Watcher, client_options, echo, echo_server, next_event, observer, serve,
    server_options, tcp_options,
};

/// A payload that differs from all others.
fn payload(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(131)) as u8).collect()
}

#[test]
fn every_transport_carries_the_same_requests() {
    let network = Network::new();
    let path = std::env::temp_dir().join(format!("regatta-net-{}.sock", std::process::id()));
    let cases = [
        (Endpoint::from("127.0.0.1:0"), false, "tcp"),
        (Endpoint::from("127.0.0.1:0"), true, "unix"),
        (Endpoint::from("localhost:0"), false, "tcp"),
        (Endpoint::Unix(path.clone()), true, "unix"),
        (network.endpoint("a"), true, "memory"),
    ];
    for (endpoint, shortcut, transport) in cases {
        let server = Server::bind(endpoint, server_options()).unwrap().serve(echo).unwrap();
        let options = ClientOptions { shortcut, ..client_options() };
        let client = Client::connect(server.endpoint(), options).unwrap();
        assert_eq!(client.stats().transport, transport);
        for len in [0, 1, 63, 64, 65, 16_000, 16_384, 100_000, 3_000_000] {
            let bytes = payload(len, len);
            let (head, tail) = bytes.split_at(len / 3);
            let reply = client.send(7, 5, &[head, &[], tail]).unwrap().wait(PATIENCE).unwrap();
            assert_eq!(reply.status, 5);
            assert!(reply.payload[..] == bytes[..], "{transport}, {len} bytes");
        }
        assert_eq!(client.stats().traffic.bytes_sent, server.stats().traffic.bytes_received);
        assert_eq!(client.stats().traffic.bytes_received, server.stats().traffic.bytes_sent);
        assert_eq!(server.stats().traffic.frames_received, 9);
        client.close();
        assert!(server.shutdown(PATIENCE));
    }
    assert!(!path.exists(), "the socket file is removed");
}

/// Counts the bytes that pass.
#[derive(Debug)]
struct Counted {
    stream: Box<dyn Stream>,
    bytes: Arc<AtomicU64>,
}

impl Stream for Counted {
    fn read(&self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.stream.read(buf)?;
        self.bytes.fetch_add(n as u64, Ordering::SeqCst);
        Ok(n)
    }
    fn write(&self, bufs: &[std::io::IoSlice<'_>], wait: Wait) -> std::io::Result<usize> {
        let n = self.stream.write(bufs, wait)?;
        self.bytes.fetch_add(n as u64, Ordering::SeqCst);
        Ok(n)
    }
    fn set_read_timeout(&self, limit: Option<Duration>) -> std::io::Result<()> {
        self.stream.set_read_timeout(limit)
    }
    fn set_write_timeout(&self, limit: Option<Duration>) -> std::io::Result<()> {
        self.stream.set_write_timeout(limit)
    }
    fn shutdown(&self, how: std::net::Shutdown) {
        self.stream.shutdown(how);
    }
    fn write_with_file(&self, frame: &[u8], file: BorrowedFd<'_>) -> std::io::Result<()> {
        self.stream.write_with_file(frame, file)
    }
    fn take_file(&self) -> Option<OwnedFd> {
        self.stream.take_file()
    }
    fn peer(&self) -> String {
        self.stream.peer()
    }
    fn transport(&self) -> &'static str {
        self.stream.transport()
    }

    fn is_local(&self) -> bool {
        self.stream.is_local()
    }
}

#[cfg(target_os = "linux")]
#[test]
fn large_payloads_do_not_pass_through_the_socket_of_one_machine() {
    const LEN: usize = 1_000_000;
    let server = serve(server_options(), |request: Request, responder: Responder| {
        let mut answer = responder.buffer(LEN);
        answer.extend_from_slice(&request.payload);
        responder.reply_owned(0, answer).unwrap();
    });
    let bytes = Arc::new(AtomicU64::new(0));
    let theirs = bytes.clone();
    let wrap: Wrap = Arc::new(move |stream| Box::new(Counted { stream, bytes: theirs.clone() }));
    let options = ClientOptions { wrap: Some(wrap), ..client_options() };
    let client = Client::connect(server.endpoint(), options).unwrap();
    // Buffers are shared from when the connection is in use.
    client.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap();
    for i in 0..50 {
        let mut buf = client.buffer(LEN);
        buf.extend_from_slice(&payload(i, LEN));
        let reply = client.send_owned(1, 0, vec![buf]).unwrap().wait(PATIENCE).unwrap();
        assert!(reply.payload[..] == payload(i, LEN)[..], "reply {i}");
    }
    assert!(bytes.load(Ordering::SeqCst) < LEN as u64);
    assert!(client.stats().traffic.bytes_sent > 50 * LEN as u64, "what was carried is counted");
}

/// There are few places that both ends see; what finds none goes through the socket.
#[test]
fn more_large_payloads_than_places_arrive_as_well() {
    const LEN: usize = 400_000;
    const N: usize = 30;
    let parked = Mutex::new(Vec::new());
    let server = serve(server_options(), move |request: Request, responder: Responder| {
        let mut parked = parked.lock().unwrap();
        parked.push((request, responder));
        if parked.len() == N {
            for (request, responder) in parked.drain(..) {
                let mut answer = responder.buffer(LEN);
                answer.extend_from_slice(&request.payload);
                responder.reply_owned(0, answer).unwrap();
            }
        }
    });
    let client = Client::connect(server.endpoint(), client_options()).unwrap();
    for round in 0..3 {
        let send = |i: usize| {
            let mut buf = client.buffer(LEN);
            buf.extend_from_slice(&payload(round + i, LEN));
            client.send_owned(1, 0, vec![buf]).unwrap()
        };
        let pending: Vec<Pending> = (0..N).map(send).collect();
        // Kept until all are there, so that replies find no place either.
        let wait = |pending: Pending| pending.wait(PATIENCE).unwrap();
        let replies: Vec<_> = pending.into_iter().map(wait).collect();
        for (i, reply) in replies.iter().enumerate() {
            assert!(reply.payload[..] == payload(round + i, LEN)[..], "reply {i}");
        }
    }
}

#[test]
fn replies_may_come_in_any_order_and_from_any_thread() {
    const N: usize = 48;
    let (sender, receiver) = sync_channel::<(Request, Responder)>(N);
    let server = serve(server_options(), move |request: Request, responder: Responder| {
        sender.send((request, responder)).unwrap();
    });
    let answering = thread::spawn(move || {
        let mut all: Vec<_> = receiver.iter().take(N).collect();
        // They were handed over in the order of sending.
        assert!(all.is_sorted_by_key(|(request, _)| request.id));
        all.reverse();
        for (request, responder) in all {
            responder.reply(0, &[&request.payload]).unwrap();
        }
    });
    let client = Client::connect(server.endpoint(), client_options()).unwrap();
    let pending: Vec<Pending> =
        (0..N).map(|i| client.send(1, 0, &[&payload(i, 50_000)]).unwrap()).collect();
    for (i, pending) in pending.into_iter().enumerate() {
        assert!(pending.wait(PATIENCE).unwrap().payload[..] == payload(i, 50_000)[..], "{i}");
    }
    answering.join().unwrap();
}

#[test]
fn many_threads_share_a_client() {
    let server = echo_server();
    let client = Client::connect(server.endpoint(), tcp_options()).unwrap();
    let round = |seed: usize| {
        thread::scope(|scope| {
            for t in 0..6 {
                let client = &client;
                scope.spawn(move || {
                    for i in 0..100 {
                        let bytes = payload(seed + t * 1000 + i, (i * 137) % 9000);
                        let mut buf = client.buffer(bytes.len());
                        buf.extend_from_slice(&bytes);
                        let pending = client.send_owned(1, 0, vec![buf]).unwrap();
                        assert!(pending.wait(PATIENCE).unwrap().payload[..] == bytes[..]);
                    }
                });
            }
        });
    };
    round(1);
    round(2);
    assert_eq!(client.stats().in_flight, 0);
    assert_eq!(server.stats().traffic.frames_received, 1200);
}

#[test]
fn a_steady_state_allocates_no_buffers() {
    let server = echo_server();
    let options = client_options();
    let pool = options.pool.clone();
    let client = Client::connect(server.endpoint(), options).unwrap();
    let exchange = || {
        let mut buf = client.buffer(300_000);
        buf.grow(300_000).fill(3);
        let reply = client.send_owned(1, 0, vec![buf]).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(reply.payload.len(), 300_000);
    };
    exchange();
    exchange();
    let before = pool.allocated();
    (0..100).for_each(|_| exchange());
    // The sender's buffer is given back by another thread, possibly after the reply was taken.
    assert!(pool.allocated() <= before + 1, "{before} -> {}", pool.allocated());
}

#[test]
fn two_hundred_connections_meet_at_a_barrier() {
    const N: u32 = 200;
    let waiting = Mutex::new(Vec::new());
    let server = serve(server_options(), move |_: Request, responder: Responder| {
        let mut waiting = waiting.lock().unwrap();
        waiting.push(responder);
        if waiting.len() == N as usize {
            for responder in waiting.drain(..) {
                let index = responder.peer().identity.index;
                responder.reply(0, &[&index.to_le_bytes()]).unwrap();
            }
        }
    });
    let clients: Vec<Client> = thread::scope(|scope| {
        let connect = |index| {
            let me = Identity::worker(index);
            let options = ClientOptions { me, shortcut: index % 2 == 0, ..client_options() };
            Client::connect(server.endpoint(), options).unwrap()
        };
        let starting: Vec<_> = (0..N).map(|i| scope.spawn(move || connect(i))).collect();
        starting.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let pending: Vec<Pending> = clients.iter().map(|c| c.send(1, 0, &[]).unwrap()).collect();
    for (index, pending) in pending.into_iter().enumerate() {
        let reply = pending.wait(PATIENCE).unwrap();
        assert_eq!(reply.payload[..], (index as u32).to_le_bytes());
    }
    assert_eq!(server.stats().connections, N as usize);
    assert_eq!(server.peers().len(), N as usize);
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let (observer, events) = observer();
    let server = serve(ServerOptions { max_connections: 2, observer, ..server_options() }, echo);
    let first = Client::connect(server.endpoint(), tcp_options()).unwrap();
    let _second = Client::connect(server.endpoint(), tcp_options()).unwrap();
    let options = ClientOptions { connect_timeout: Duration::from_millis(300), ..tcp_options() };
    let error = Client::connect(server.endpoint(), options).unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { problem, .. } if problem.contains("all 2")),
        "{error}"
    );
    next_event(&events, |e| matches!(e, Event::Refused { .. }).then_some(()));
    first.close();
    Client::connect(server.endpoint(), tcp_options()).expect("a place is free again");
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    let held = Arc::new(Mutex::new(Vec::new()));
    let (arrived, arrivals) = sync_channel(8);
    let keep = held.clone();
    let server = serve(server_options(), move |_: Request, responder: Responder| {
        keep.lock().unwrap().push(responder);
        arrived.send(()).unwrap();
    });
    let options = ClientOptions {
        max_in_flight: 3,
        send_timeout: Duration::from_millis(50),
        ..client_options()
    };
    let client = Client::connect(server.endpoint(), options).unwrap();
    let mut pending: Vec<Pending> = (0..3).map(|_| client.send(1, 0, &[]).unwrap()).collect();
    let error = client.send(1, 0, &[]).unwrap_err();
    assert!(error.to_string().contains("no room for a request from server 0 at 127"), "{error}");
    (0..3).for_each(|_| arrivals.recv().unwrap());

    // Not even a forgotten request gives up its place before the answer.
    drop(pending.pop());
    assert!(matches!(client.send(1, 0, &[]), Err(Error::Timeout { .. })));
    for responder in held.lock().unwrap().drain(..) {
        responder.reply(0, &[]).unwrap();
    }
    for pending in pending {
        pending.wait(PATIENCE).unwrap();
    }
    client.send(1, 0, &[]).expect("room again").wait(Duration::from_millis(1)).unwrap_err();
}

#[test]
fn failures_of_a_handler_become_errors_of_one_request() {
    let (observer, events) = observer();
    let options = ServerOptions { observer, max_payload: 1000, ..server_options() };
    let server = serve(options, |request: Request, responder: Responder| match request.kind {
        1 => panic!("table is on fire"),
        2 => drop(responder),
        3 => assert!(matches!(
            responder.reply(0, &[&[0; 5001]]),
            Err(Error::PayloadTooLarge { len: 5001, limit: 5000, .. })
        )),
        4 => drop(responder.reply(u32::MAX, &[])),
        _ => responder.reply(0, &[]).unwrap(),
    });
    let options = ClientOptions { max_payload: 5000, ..client_options() };
    let client = Client::connect(server.endpoint(), options).unwrap();
    let expected = ["panicked", "without a reply", "larger than this client", "without a reply"];
    for (kind, expected) in (1..).zip(expected) {
        let error = client.send(kind, 0, &[]).unwrap().wait(PATIENCE).unwrap_err();
        assert!(matches!(error, Error::Remote { .. }));
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.to_string().starts_with("server 0 at 127.0.0.1:"), "{error}");
    }
    client.send(9, 0, &[]).unwrap().wait(PATIENCE).expect("the connection is as good as new");
    let message = next_event(&events, |e| match e {
        Event::HandlerPanicked { message, .. } => Some(message.clone()),
        _ => None,
    });
    assert_eq!(message, "table is on fire");
    assert_eq!(server.stats().panics, 1);
    assert_eq!(client.stats().reconnects, 0);

    let error = client.send(9, 0, &[&[0; 600], &[0; 600]]).unwrap_err();
    assert!(matches!(error, Error::PayloadTooLarge { len: 1200, limit: 1000, .. }));
    assert!(matches!(client.send(0xff06, 0, &[]), Err(Error::Config(_))));
}

/// A stream whose reads wait for a gate after the first `free` bytes, like a stopped process.
#[derive(Debug)]
struct Gated {
    stream: Box<dyn Stream>,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.opened.notify_all();
    }
}

impl Stream for Gated {
    fn read(&self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.stream.read(buf)?;
        drop(self.gate.opened.wait_while(self.gate.closed.lock().unwrap(), |closed| *closed));
        Ok(n)
    }
    fn write(&self, bufs: &[std::io::IoSlice<'_>], wait: Wait) -> std::io::Result<usize> {
        self.stream.write(bufs, wait)
    }
    fn set_read_timeout(&self, limit: Option<Duration>) -> std::io::Result<()> {
        self.stream.set_read_timeout(limit)
    }
    fn set_write_timeout(&self, limit: Option<Duration>) -> std::io::Result<()> {
        self.stream.set_write_timeout(limit)
    }
    fn shutdown(&self, how: std::net::Shutdown) {
        self.stream.shutdown(how);
    }
    fn take_file(&self) -> Option<OwnedFd> {
        self.stream.take_file()
    }
    fn peer(&self) -> String {
        self.stream.peer()
    }
    fn transport(&self) -> &'static str {
        self.stream.transport()
    }

    fn is_local(&self) -> bool {
        self.stream.is_local()
    }
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_else() {
    const HUGE: usize = 30_000_000;
    let parked = Mutex::new(Vec::new());
    let server = serve(server_options(), move |request: Request, responder: Responder| {
        let mut parked = parked.lock().unwrap();
        match request.kind {
            1 => parked.push(responder),
            _ => {
                // In the thread of the other client, more than any socket buffer holds.
                for (i, slow) in parked.drain(..).enumerate() {
                    slow.reply(0, &[&payload(i, HUGE)]).unwrap();
                }
                responder.reply(0, &[]).unwrap();
            }
        }
    });
    let gate = Arc::new(Gate::default());
    let mut options = client_options();
    let their_gate = gate.clone();
    options.wrap =
        Some(Arc::new(move |stream| Box::new(Gated { stream, gate: their_gate.clone() })));
    let slow = Client::connect(server.endpoint(), options).unwrap();
    let first = slow.send(1, 0, &[]).unwrap();
    let second = slow.send(1, 0, &[]).unwrap();
    slow.send(2, 0, &[]).unwrap().wait(PATIENCE).unwrap(); // releases both, from its own thread
    assert!(first.wait(PATIENCE).unwrap().payload[..] == payload(0, HUGE)[..]);
    drop(second);

    gate.set(true);
    let quick = Client::connect(
        server.endpoint(),
        ClientOptions { me: Identity::worker(1), ..client_options() },
    )
    .unwrap();
    let waiting: Vec<Pending> = (0..3).map(|_| slow.send(1, 0, &[]).unwrap()).collect();
    // All three must have arrived before the quick one releases them.
    while server.stats().traffic.frames_received < 6 {
        thread::yield_now();
    }
    quick.send(2, 0, &[]).unwrap().wait(PATIENCE).expect("not held up by the slow one");
    gate.set(false);
    for (i, pending) in waiting.into_iter().enumerate() {
        let reply = pending.wait(PATIENCE).unwrap();
        assert!(reply.payload[..] == payload(i, HUGE)[..], "reply {i}");
    }
    assert_eq!(slow.stats().reconnects, 0);
}

#[test]
fn a_client_that_never_reads_is_cut_off_when_too_much_waits_for_it() {
    let parked = Mutex::new(Vec::new());
    let (outcome, outcomes) = sync_channel(8);
    let options = ServerOptions { max_queued_bytes: 1_000_000, ..server_options() };
    let server = serve(options, move |request: Request, responder: Responder| {
        let mut parked = parked.lock().unwrap();
        if request.kind == 1 {
            return parked.push(responder);
        }
        let results: Vec<_> =
            parked.drain(..).map(|slow: Responder| slow.reply(0, &[&[0; 900_000]])).collect();
        outcome.send(results).unwrap();
        responder.reply(0, &[]).unwrap();
    });
    let gate = Arc::new(Gate::default());
    let mut options = client_options();
    let their_gate = gate.clone();
    options.wrap =
        Some(Arc::new(move |stream| Box::new(Gated { stream, gate: their_gate.clone() })));
    let slow = Client::connect(server.endpoint(), options).unwrap();
    let me = Identity::worker(1);
    let quick =
        Client::connect(server.endpoint(), ClientOptions { me, ..client_options() }).unwrap();
    gate.set(true);
    let waiting: Vec<Pending> = (0..20).map(|_| slow.send(1, 0, &[]).unwrap()).collect();
    while server.stats().traffic.frames_received < 20 {
        thread::yield_now();
    }
    quick.send(2, 0, &[]).unwrap().wait(PATIENCE).unwrap();
    let results = outcomes.recv().unwrap();
    assert!(results[0].is_ok());
    let refused = results.iter().filter_map(|result| result.as_ref().err()).next().unwrap();
    assert!(refused.to_string().contains("lost worker 0"), "{refused}");
    drop(waiting);
    gate.set(false);
}

#[test]
fn comings_and_goings_are_reported() {
    let (watcher, changes) = Watcher::new();
    let server = serve(server_options(), watcher);
    for (index, shortcut) in [(4, false), (5, true)] {
        let me = Identity::worker(index);
        let options = ClientOptions { me, shortcut, ..client_options() };
        let client = Client::connect(server.endpoint(), options).unwrap();
        client.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap();
        drop(client);
        let Change::Connected(came) = changes.recv_timeout(PATIENCE).unwrap() else { panic!() };
        let Change::Disconnected(went, how) = changes.recv_timeout(PATIENCE).unwrap() else {
            panic!()
        };
        assert_eq!((came.identity, &came), (me, &went));
        assert_eq!(how, Disconnect::Goodbye);
    }
    assert_eq!(server.stats().accepted, 2, "the first steps of a shortcut do not count");
    assert_eq!(server.stats().refused, 0);
}

#[test]
fn a_server_that_shuts_down_first_answers_what_it_owes() {
    let (sender, receiver) = sync_channel::<Responder>(1);
    let server = serve(server_options(), move |_: Request, responder: Responder| {
        sender.send(responder).unwrap();
    });
    let client = Client::connect(server.endpoint(), client_options()).unwrap();
    let pending = client.send(1, 0, &[]).unwrap();
    let responder = receiver.recv_timeout(PATIENCE).unwrap();
    let stopping = thread::spawn(move || server.shutdown(PATIENCE));
    responder.reply(3, &[b"late"]).unwrap();
    assert_eq!(pending.wait(PATIENCE).unwrap().status, 3);
    assert!(stopping.join().unwrap(), "nothing cut short");

    // The goodbye tells the client not to wait for it to come back.
    let error = match client.send(1, 0, &[]) {
        Ok(pending) => pending.wait(PATIENCE).unwrap_err(),
        Err(error) => error,
    };
    assert!(error.to_string().contains("lost server 0 at 127"), "{error}");
    assert!(error.to_string().contains("shut down"), "{error}");
    assert!(client.failure().is_some());
}

#[test]
fn a_server_does_not_wait_for_ever_for_a_reply_that_nobody_gives() {
    let held = Mutex::new(Vec::new());
    let (arrived, arrivals) = sync_channel(8);
    let server = serve(server_options(), move |_: Request, responder: Responder| {
        held.lock().unwrap().push(responder);
        arrived.send(()).unwrap();
    });
    let client = Client::connect(server.endpoint(), client_options()).unwrap();
    let pending = client.send(1, 0, &[]).unwrap();
    arrivals.recv_timeout(PATIENCE).unwrap();
    server.shutdown(Duration::from_millis(50));
    let error = pending.wait(PATIENCE).unwrap_err();
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
}

#[test]
fn closing_a_client_fails_what_it_waits_for() {
    let held = Mutex::new(Vec::new());
    let server = serve(server_options(), move |_: Request, responder: Responder| {
        held.lock().unwrap().push(responder);
    });
    let client = Client::connect(server.endpoint(), client_options()).unwrap();
    let mut pending = client.send(1, 0, &[]).unwrap();
    assert!(pending.try_take().is_none());
    client.close();
    assert!(matches!(pending.wait(PATIENCE), Err(Error::Closed { .. })));
    assert!(matches!(client.send(1, 0, &[]), Err(Error::Closed { .. })));
}
