//! Connections that break at every interesting byte, fall silent, or are damaged on the way.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use regatta_net::fault::{Faults, Wrap};
use regatta_net::frame::HEADER_LEN;
use regatta_net::memory::Network;
use regatta_net::{
    Client, ClientOptions, Disconnect, Endpoint, Error, Event, Pending, Request, Responder, Server,
    ServerOptions, Serving, Stream, Wait,
};

use crate::{
    Change, PATIENCE, Watcher, address, client_options, next_event, observer, serve,
    server_options, tcp_options,
};

const REQUESTS: u64 = 3;
const PAYLOAD: usize = 100;

/// Faults for the first connection, none for those after it.
fn only_once(faults: Faults) -> Wrap {
    let first = AtomicBool::new(true);
    Arc::new(
        move |stream| {
            if first.swap(false, Ordering::SeqCst) { faults.clone().on(stream) } else { stream }
        },
    )
}

/// What the handler saw.
#[derive(Default)]
struct Seen {
    handled: Mutex<Vec<u64>>,
    inside: AtomicUsize,
}

fn counting_server(endpoint: impl Into<Endpoint>) -> (Serving, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let theirs = seen.clone();
    let handler = move |request: Request, responder: Responder| {
        assert_eq!(theirs.inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
        theirs.handled.lock().unwrap().push(request.id);
        let _ = responder.reply(0, &[&request.payload]);
        theirs.inside.fetch_sub(1, Ordering::SeqCst);
    };
    (Server::bind(endpoint, server_options()).unwrap().serve(handler).unwrap(), seen)
}

/// Sends the requests and checks the replies; returns how often a handler ran again.
fn exchange(client: &Client, seen: &Seen) -> usize {
    seen.handled.lock().unwrap().clear();
    let pending: Vec<Pending> = (0..REQUESTS)
        .map(|i| client.send(1, 0, &[&[i as u8; PAYLOAD / 2], &[9; PAYLOAD / 2]]).unwrap())
        .collect();
    for (i, pending) in pending.into_iter().enumerate() {
        let reply = pending.wait(PATIENCE).unwrap();
        assert_eq!(reply.payload.len(), PAYLOAD);
        assert_eq!(reply.payload[0], i as u8);
    }
    let handled = seen.handled.lock().unwrap();
    let once: BTreeSet<u64> = handled.iter().copied().collect();
    assert_eq!(once.len() as u64, REQUESTS, "each at least once");
    handled.len() - once.len()
}

/// Byte positions around the borders of frames, and some between.
fn positions(handshake: u64) -> Vec<u64> {
    let frame = (HEADER_LEN + PAYLOAD) as u64;
    let end = handshake + REQUESTS * frame;
    let borders: Vec<u64> = (0..=REQUESTS)
        .flat_map(|i| [handshake + i * frame, handshake + i * frame + HEADER_LEN as u64])
        .collect();
    (0..=end).filter(|&n| n % 11 == 0 || borders.iter().any(|&b| n.abs_diff(b) <= 1)).collect()
}

/// Bytes of the client's and of the server's half of the handshake.
fn handshake_len(connect: impl Fn(Wrap) -> Client) -> (u64, u64) {
    #[derive(Debug)]
    struct Counting(Box<dyn Stream>, Arc<[AtomicU64; 2]>);
    impl Stream for Counting {
        fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
            let n = self.0.read(buf)?;
            self.1[1].fetch_add(n as u64, Ordering::SeqCst);
            Ok(n)
        }
        fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
            let n = self.0.write(bufs, wait)?;
            self.1[0].fetch_add(n as u64, Ordering::SeqCst);
            Ok(n)
        }
        fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
            self.0.set_read_timeout(limit)
        }
        fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
            self.0.set_write_timeout(limit)
        }
        fn shutdown(&self, how: Shutdown) {
            self.0.shutdown(how);
        }
        fn take_file(&self) -> Option<OwnedFd> {
            self.0.take_file()
        }
        fn peer(&self) -> String {
            self.0.peer()
        }
        fn transport(&self) -> &'static str {
            self.0.transport()
        }

        fn is_local(&self) -> bool {
            self.0.is_local()
        }
    }
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let theirs = counts.clone();
    let _client = connect(Arc::new(move |stream| Box::new(Counting(stream, theirs.clone()))));
    (counts[0].load(Ordering::SeqCst), counts[1].load(Ordering::SeqCst))
}

fn cut_everywhere(endpoint: impl Into<Endpoint>, shortcut: bool) {
    let (server, seen) = counting_server(endpoint);
    let connect = |wrap: Wrap| {
        let options = ClientOptions { wrap: Some(wrap), shortcut, ..client_options() };
        Client::connect(server.endpoint(), options).unwrap()
    };
    let (written, read) = handshake_len(connect);
    let mut again = 0;
    for n in positions(written) {
        let client = connect(only_once(Faults { cut_after_written: Some(n), ..Faults::default() }));
        again += exchange(&client, &seen);
        let stats = client.stats();
        assert!(stats.reconnects <= 1, "cut after {n} written bytes: {stats:?}");
    }
    for n in positions(read) {
        let client = connect(only_once(Faults { cut_after_read: Some(n), ..Faults::default() }));
        again += exchange(&client, &seen);
    }
    assert!(again > 0, "some cuts hit between the handler and the reply");
    assert_eq!(server.stats().panics, 0);
}

#[test]
fn a_cut_at_any_byte_loses_no_request_in_memory() {
    cut_everywhere(Network::new().endpoint("cut"), false);
}

#[test]
fn a_cut_at_any_byte_loses_no_request_over_tcp() {
    cut_everywhere("127.0.0.1:0", false);
}

#[test]
fn a_stream_in_single_bytes_is_the_same_stream() {
    let (server, seen) = counting_server("127.0.0.1:0");
    let chopped: Wrap = Arc::new(|stream| Faults { chop: Some(1), ..Faults::default() }.on(stream));
    let options = ClientOptions { wrap: Some(chopped), ..client_options() };
    let client = Client::connect(server.endpoint(), options).unwrap();
    assert_eq!(exchange(&client, &seen), 0);
    assert_eq!(client.stats().reconnects, 0);
}

#[test]
fn a_delayed_stream_is_the_same_stream() {
    let (server, seen) = counting_server("127.0.0.1:0");
    let delay = Some(Duration::from_millis(3));
    let delayed: Wrap = Arc::new(move |stream| Faults { delay, ..Faults::default() }.on(stream));
    let options = ClientOptions { wrap: Some(delayed), ..client_options() };
    let client = Client::connect(server.endpoint(), options).unwrap();
    assert_eq!(exchange(&client, &seen), 0);
}

/// Payloads that both ends see are sent again like others when the connection breaks, over one that
/// shares other memory.
#[test]
fn a_cut_at_any_byte_loses_no_shared_payload() {
    const LEN: usize = 50_000;
    let server = serve(server_options(), |request: Request, responder: Responder| {
        let mut answer = responder.buffer(LEN);
        answer.extend_from_slice(&request.payload);
        let _ = responder.reply_owned(0, answer);
    });
    let connect = |faults: Faults| {
        let options = ClientOptions { wrap: Some(only_once(faults)), ..client_options() };
        Client::connect(server.endpoint(), options).unwrap()
    };
    for n in (0..1500).step_by(17) {
        for faults in [
            Faults { cut_after_written: Some(n), ..Faults::default() },
            Faults { cut_after_read: Some(n), ..Faults::default() },
        ] {
            let client = connect(faults.clone());
            assert_eq!(client.stats().transport, "unix");
            let pending: Vec<Pending> = (0..REQUESTS)
                .map(|i| {
                    let mut buf = client.buffer(LEN);
                    buf.grow(LEN).fill(i as u8);
                    client.send_owned(1, 0, vec![buf]).unwrap()
                })
                .collect();
            for (i, pending) in pending.into_iter().enumerate() {
                let reply = pending.wait(PATIENCE).unwrap();
                assert!(reply.payload[..] == [i as u8; LEN][..], "{faults:?}");
            }
        }
    }
}

#[test]
fn a_damaged_header_costs_the_connection_but_no_request() {
    let (observer, events) = observer();
    let server = serve(ServerOptions { observer, ..server_options() }, crate::echo);
    let connect = |wrap| {
        let options = ClientOptions { wrap: Some(wrap), ..tcp_options() };
        Client::connect(server.endpoint(), options).unwrap()
    };
    let (written, _) = handshake_len(connect);
    for at in [0, 5, 8, 24, 33, 63] {
        let faults = Faults { flip_written_at: Some(written + at), ..Faults::default() };
        let client = connect(only_once(faults));
        let reply = client.send(1, 0, &[b"abc"]).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(&reply.payload[..], b"abc");
        assert_eq!(client.stats().reconnects, 1, "byte {at}");
        next_event(&events, |e| matches!(e, Event::Misbehaved { .. }).then_some(()));
    }
}

#[test]
fn a_broken_connection_is_reported_with_its_repair() {
    let (client_observer, events) = observer();
    let (watcher, changes) = Watcher::new();
    let server = serve(server_options(), watcher);
    let wrap = Some(only_once(Faults { cut_after_read: Some(500), ..Faults::default() }));
    let options = ClientOptions { wrap, observer: client_observer, ..tcp_options() };
    let client = Client::connect(server.endpoint(), options).unwrap();
    let reply = client.send(1, 0, &[&[1; 5000]]).unwrap().wait(PATIENCE).unwrap();
    assert_eq!(reply.payload.len(), 5000);
    let lines: Vec<String> =
        (0..3).map(|_| events.recv_timeout(PATIENCE).unwrap().to_string()).collect();
    assert!(lines[0].starts_with("connected to server 0 at 127.0.0.1:"), "{lines:?}");
    assert!(lines[1].starts_with("connection to server 0 at 127.0.0.1:"), "{lines:?}");
    assert!(lines[2].contains("1 request sent again"), "{lines:?}");
    let stats = client.stats();
    assert_eq!((stats.reconnects, stats.resent), (1, 1));
    assert!(stats.last_problem.is_some());

    // The server saw one client leave and come back, in this order.
    let order: Vec<Change> = (0..3).map(|_| changes.recv_timeout(PATIENCE).unwrap()).collect();
    let [Change::Connected(a), Change::Disconnected(b, how), Change::Connected(c)] = &order[..]
    else {
        panic!("{order:?}")
    };
    assert!(matches!(how, Disconnect::Lost(_) | Disconnect::Replaced));
    assert_eq!((a, a.session), (b, c.session));
    assert_ne!(a.connection, c.connection);
}

#[test]
fn a_connection_that_breaks_every_time_is_given_up() {
    let server = crate::echo_server();
    // Enough for the handshake, never for a reply.
    let wrap: Wrap =
        Arc::new(|stream| Faults { cut_after_read: Some(1000), ..Faults::default() }.on(stream));
    let reconnect_timeout = Duration::from_millis(300);
    let options = ClientOptions { wrap: Some(wrap), reconnect_timeout, ..tcp_options() };
    let client = Client::connect(server.endpoint(), options).unwrap();
    let error = client.send(1, 0, &[&[0; 5000]]).unwrap().wait(PATIENCE).unwrap_err();
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    assert!(client.stats().reconnects < 50, "with pauses in between");
}

/// A stream that, when told so, swallows what is written and hears nothing: a host that vanished.
#[derive(Debug)]
struct Vanishing {
    stream: Box<dyn Stream>,
    vanished: Arc<AtomicBool>,
}

impl Vanishing {
    fn wrap(vanished: &Arc<AtomicBool>) -> Wrap {
        let vanished = vanished.clone();
        Arc::new(move |stream| Box::new(Vanishing { stream, vanished: vanished.clone() }))
    }

    fn is_gone(&self) -> bool {
        self.vanished.load(Ordering::SeqCst)
    }
}

impl Stream for Vanishing {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.stream.read(buf)?;
            if !self.is_gone() || n == 0 {
                return Ok(n);
            }
        }
    }
    fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        if self.is_gone() {
            return Ok(bufs.iter().map(|buf| buf.len()).sum());
        }
        self.stream.write(bufs, wait)
    }
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(limit)
    }
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_write_timeout(limit)
    }
    fn shutdown(&self, how: Shutdown) {
        if !self.is_gone() {
            self.stream.shutdown(how);
        }
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
fn a_vanished_server_is_noticed_by_its_silence() {
    let vanished = Arc::new(AtomicBool::new(false));
    // On the server's side: its heartbeats and replies go nowhere.
    let options = ServerOptions { wrap: Some(Vanishing::wrap(&vanished)), ..server_options() };
    let server = serve(options, crate::echo);
    let options = ClientOptions {
        peer_timeout: Duration::from_millis(300),
        handshake_timeout: Duration::from_millis(300),
        reconnect_timeout: Duration::from_millis(300),
        ..client_options()
    };
    let client = Client::connect(server.endpoint(), options).unwrap();
    client.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap();
    vanished.store(true, Ordering::SeqCst);
    let error = client.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("lost server 0 at {}: nothing heard", server.endpoint())),
        "{text}"
    );
}

#[test]
fn a_vanished_client_is_noticed_by_its_silence() {
    let (watcher, changes) = Watcher::new();
    let peer_timeout = Duration::from_millis(200);
    let server = serve(ServerOptions { peer_timeout, ..server_options() }, watcher);
    let vanished = Arc::new(AtomicBool::new(false));
    let wrap = Some(Vanishing::wrap(&vanished));
    let client =
        Client::connect(server.endpoint(), ClientOptions { wrap, ..tcp_options() }).unwrap();
    client.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap();
    vanished.store(true, Ordering::SeqCst);
    let lost = loop {
        if let Change::Disconnected(peer, Disconnect::Lost(problem)) =
            changes.recv_timeout(PATIENCE).unwrap()
        {
            break format!("{peer}: {problem}");
        }
    };
    assert!(lost.contains("worker 0") && lost.contains("nothing heard for 0.2 s"), "{lost}");
}

#[test]
fn heartbeats_keep_idle_connections_and_long_handlers_alive() {
    // Whoever is patient keeps to the pace of the one who is not.
    let (short, long) = (Duration::from_millis(250), Duration::from_secs(10));
    for (of_server, of_client) in [(short, long), (long, short)] {
        let (server_observer, events) = observer();
        let options = ServerOptions {
            peer_timeout: of_server,
            observer: server_observer,
            ..server_options()
        };
        let server = serve(options, move |request: Request, responder: Responder| {
            // Three times as long as silence is tolerated; the pulse comes from another thread.
            thread::sleep(short * 3);
            crate::echo(request, responder);
        });
        let options = ClientOptions { peer_timeout: of_client, ..client_options() };
        let client = Client::connect(server.endpoint(), options).unwrap();
        client.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap();
        // And as long without any request: another client's, which takes that time.
        let other = Client::connect(server.endpoint(), client_options()).unwrap();
        other.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap();
        client.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(client.stats().reconnects, 0, "{:?}", client.stats().last_problem);
        assert!(events.try_iter().next().is_none());
    }
}

/// A stream that the test can cut whenever it likes.
#[derive(Debug, Clone)]
struct Cuttable(Arc<dyn Stream>);

impl Stream for Cuttable {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
    fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        self.0.write(bufs, wait)
    }
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(limit)
    }
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_write_timeout(limit)
    }
    fn shutdown(&self, how: Shutdown) {
        self.0.shutdown(how);
    }
    fn take_file(&self) -> Option<OwnedFd> {
        self.0.take_file()
    }
    fn peer(&self) -> String {
        self.0.peer()
    }
    fn transport(&self) -> &'static str {
        self.0.transport()
    }

    fn is_local(&self) -> bool {
        self.0.is_local()
    }
}

#[test]
fn a_request_that_is_sent_again_waits_until_its_first_handling_is_over() {
    let (entered, entries) = sync_channel(10);
    let (release, released) = sync_channel::<()>(10);
    let released = Mutex::new(released);
    let server = serve(server_options(), move |request: Request, responder: Responder| {
        entered.send(request.id).unwrap();
        released.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        crate::echo(request, responder);
    });
    let connections: Arc<Mutex<Vec<Cuttable>>> = Arc::default();
    let made = connections.clone();
    let wrap: Wrap = Arc::new(move |stream| {
        let stream = Cuttable(stream.into());
        made.lock().unwrap().push(stream.clone());
        Box::new(stream)
    });
    let (observer, events) = observer();
    let options = ClientOptions { wrap: Some(wrap), observer, ..tcp_options() };
    let client = Client::connect(server.endpoint(), options).unwrap();
    let pending = client.send(1, 0, &[b"push"]).unwrap();
    let first = entries.recv_timeout(PATIENCE).unwrap();

    connections.lock().unwrap()[0].shutdown(Shutdown::Both);
    let resent = next_event(&events, |event| match event {
        Event::Reconnected { resent, .. } => Some(*resent),
        _ => None,
    });
    assert_eq!(resent, 1);
    // The request is at the server a second time, but its handler is still at the first.
    assert!(entries.recv_timeout(Duration::from_millis(150)).is_err());
    release.send(()).unwrap();
    assert_eq!(entries.recv_timeout(PATIENCE).unwrap(), first, "the same number");
    release.send(()).unwrap();
    assert_eq!(&pending.wait(PATIENCE).unwrap().payload[..], b"push");
}

/// A relay whose first connection can be cut towards the server, while the client hears nothing.
fn half_open(to: String) -> (String, SyncSender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let (cut, cutting) = sync_channel::<()>(1);
    thread::spawn(move || {
        let mut cutting = Some(cutting);
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(&to).unwrap();
            let copy = |from: &TcpStream, to: &TcpStream| {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                // Its end is not passed on.
                thread::spawn(move || io::copy(&mut from, &mut to));
            };
            copy(&near, &far);
            copy(&far, &near);
            if let Some(cutting) = cutting.take() {
                thread::spawn(move || {
                    cutting.recv().unwrap();
                    far.shutdown(Shutdown::Both).unwrap();
                    // Open for as long as the test runs.
                    std::mem::forget(near);
                });
            }
        }
    });
    (endpoint, cut)
}

/// The server's side is gone and the client's side only silent, as behind a proxy. Silence alone
/// would be noticed after an hour here.
#[test]
fn a_half_open_connection_is_replaced() {
    let peer_timeout = Duration::from_secs(3600);
    let (watcher, changes) = Watcher::new();
    let server = serve(ServerOptions { peer_timeout, ..server_options() }, watcher);
    let (endpoint, cut) = half_open(address(server.endpoint()));
    let (observer, events) = observer();
    let options = ClientOptions { peer_timeout, observer, ..tcp_options() };
    let client = Client::connect(endpoint, options).unwrap();
    client.send(1, 0, &[b"before"]).unwrap().wait(PATIENCE).unwrap();
    cut.send(()).unwrap();
    // The server knows.
    while !matches!(changes.recv_timeout(PATIENCE).unwrap(), Change::Disconnected(..)) {}
    let reply = client.send(1, 0, &[b"after"]).unwrap().wait(PATIENCE).unwrap();
    assert_eq!(&reply.payload[..], b"after");
    assert_eq!(client.stats().reconnects, 1);
    let problem = next_event(&events, |event| match event {
        Event::Broken { problem, .. } => Some(problem.clone()),
        _ => None,
    });
    assert_eq!(problem, "it went silent, and the server answers on another");
}
