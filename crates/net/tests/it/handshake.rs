//! Strangers, garbage, and processes of the job that found the wrong door.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use regatta_net::frame::{HEADER_LEN, Header, VERSION};
use regatta_net::{
    Client, ClientOptions, Error, Event, Family, Identity, JobToken, Server, ServerOptions, Serving,
};

use crate::{
    PATIENCE, address, client_options, echo, next_event, observer, serve, server_options,
    tcp_options,
};

fn watched(options: ServerOptions) -> (Serving, Receiver<Event>) {
    let (observer, events) = observer();
    (serve(ServerOptions { observer, ..options }, echo), events)
}

fn next_refusal(events: &Receiver<Event>) -> String {
    next_event(events, |event| match event {
        Event::Refused { address, problem } => Some(format!("{address} {problem}")),
        _ => None,
    })
}

/// Options of a client that does not try for long.
fn hasty_options() -> ClientOptions {
    ClientOptions { connect_timeout: Duration::from_millis(300), ..client_options() }
}

fn assert_serves(server: &Serving) {
    let client = Client::connect(server.endpoint(), client_options()).unwrap();
    let reply = client.send(1, 0, &[b"still there?"]).unwrap().wait(PATIENCE).unwrap();
    assert_eq!(&reply.payload[..], b"still there?");
}

/// Sends `bytes` to the server and returns what it answers until it closes.
fn knock(server: &Serving, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address(server.endpoint())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may refuse before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the server must close");
    }
    answer
}

#[test]
fn a_wrong_token_is_refused_on_both_sides() {
    let (server, events) = watched(server_options());
    for shortcut in [false, true] {
        let token = JobToken::new("another job");
        let (observer, reports) = observer();
        let options = ClientOptions { token, shortcut, observer, ..hasty_options() };
        let error = Client::connect(server.endpoint(), options).unwrap_err();
        let expected = format!("server 0 at {} refused the job token", server.endpoint());
        // The first refusal is reported at once, although it may come from anybody.
        let report = reports.try_recv().unwrap().to_string();
        assert!(report.contains(&expected), "{report}");
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert_eq!(error.family(), Family::You);
        let refusal = next_refusal(&events);
        assert!(refusal.contains("worker 0 presented a wrong job token"), "{refusal}");
    }
    assert_serves(&server);
}

#[test]
fn a_worker_at_the_wrong_server_is_told_who_is_there() {
    let me = Identity::server(2);
    let (server, events) = watched(ServerOptions { me, ..server_options() });
    let options = ClientOptions { server: Identity::server(1), ..client_options() };
    let error = Client::connect(server.endpoint(), options).unwrap_err().to_string();
    let expected = format!("expected server 1 at {} but server 2 answers", server.endpoint());
    assert!(error.starts_with(&expected), "{error}");
    assert!(next_refusal(&events).contains("worker 0 wanted server 1, this is server 2"));
}

/// A header with another version and, as a real one would have, a matching length.
fn foreign_header() -> Vec<u8> {
    let mut bytes =
        Header { kind: 0xff01, payload_len: 100, ..Header::default() }.encode().to_vec();
    bytes[4..6].copy_from_slice(&9u16.to_le_bytes());
    bytes
}

#[test]
fn a_client_of_another_version_is_refused_with_our_version() {
    let (server, events) = watched(server_options());
    let answer = knock(&server, &foreign_header());
    assert_eq!(&answer[..4], b"RGTA");
    assert_eq!(u16::from_le_bytes([answer[4], answer[5]]), VERSION);
    assert!(next_refusal(&events).contains(&format!("protocol version 9, not {VERSION}")));
    assert_serves(&server);
}

/// Something that reads a little of every connection and answers with `answer`.
fn impersonate(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read_exact(&mut [0; HEADER_LEN]);
            let _ = stream.write_all(&answer);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    endpoint
}

/// A refusal that nobody has signed, as whoever takes the port can send it.
fn forged_refusal() -> Vec<u8> {
    let text = [&[0; 32][..], &[3], b"go away"].concat();
    let header = Header { kind: 0xff05, payload_len: text.len() as u64, ..Header::default() };
    [&header.encode()[..], &text].concat()
}

#[test]
fn a_refusal_of_a_stranger_ends_an_attempt_and_not_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap();
    let (observer, reports) = observer();
    let options = ClientOptions { observer, ..client_options() };
    let waiting = thread::spawn(move || Client::connect(endpoint, options));
    for mut stream in listener.incoming().flatten().take(2) {
        stream.read_exact(&mut [0; HEADER_LEN]).unwrap();
        stream.write_all(&forged_refusal()).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    drop(listener);
    let report = reports.recv_timeout(PATIENCE).unwrap().to_string();
    assert!(report.contains("refused this process: go away"), "{report}");
    // The stranger is gone, the server comes.
    let server = Server::bind(endpoint, server_options()).unwrap().serve(echo).unwrap();
    let client = waiting.join().unwrap().unwrap();
    client.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap();
    drop(server);
    let endpoint = impersonate(forged_refusal());
    let error = Client::connect(endpoint, hasty_options()).unwrap_err();
    assert!(matches!(&error, Error::Refused { problem, .. } if problem == "go away"), "{error}");
}

#[test]
fn a_server_of_another_version_is_named() {
    let endpoint = impersonate(foreign_header());
    let error = Client::connect(endpoint, hasty_options()).unwrap_err();
    assert!(matches!(error, Error::WrongVersion { ours: VERSION, theirs: 9, .. }), "{error}");
}

#[test]
fn something_else_on_the_port_is_named() {
    let endpoint = impersonate(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    let error = Client::connect(endpoint.as_str(), hasty_options()).unwrap_err();
    assert!(matches!(error, Error::NotOurProtocol { .. }));
    assert!(error.to_string().contains(&endpoint), "{error}");
}

#[test]
fn something_that_never_answers_hits_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ClientOptions {
        connect_timeout: Duration::from_millis(300),
        handshake_timeout: Duration::from_millis(100),
        ..client_options()
    };
    let error = Client::connect(listener.local_addr().unwrap(), options).unwrap_err();
    assert!(error.to_string().contains("no answer to the handshake"), "{error}");
}

#[test]
fn garbage_costs_its_sender_the_connection_and_nothing_else() {
    let oversized = Header { kind: 0xff01, payload_len: 1 << 40, ..Header::default() }.encode();
    let too_large_here =
        Header { kind: 0xff01, payload_len: 65 << 10, ..Header::default() }.encode();
    let request = Header { kind: 1, ..Header::default() }.encode();
    let empty_hello = Header { kind: 0xff01, ..Header::default() }.encode();
    let mut damaged = empty_hello;
    damaged[20] ^= 1;
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "not a frame"),
        (b"X", "not a frame"),
        (b"RGTX", "not a frame"),
        (&oversized, "more than the limit of 65536"),
        (&too_large_here, "more than the limit of 65536"),
        (&request, "unexpected frame of kind 0x1"),
        (&empty_hello, "malformed hello"),
        (&damaged, "checksum"),
    ] {
        let (server, events) = watched(server_options());
        knock(&server, bytes);
        let refusal = next_refusal(&events);
        assert!(refusal.contains(expected), "{refusal}");
        assert!(refusal.starts_with("127.0.0.1:"), "{refusal}");
        assert_eq!(server.stats().refused, 1);
        assert_serves(&server);
    }
}

#[test]
fn a_flood_of_strangers_is_a_few_lines_in_the_log() {
    let (server, events) = watched(server_options());
    for _ in 0..100 {
        knock(&server, b"GET / HTTP/1.1\r\n\r\n");
    }
    assert_serves(&server);
    // The last one was counted before its connection was closed.
    assert_eq!(server.stats().refused, 100);
    assert_eq!(events.try_iter().filter(|e| matches!(e, Event::Refused { .. })).count(), 5);
}

#[test]
fn a_truncated_handshake_is_noticed() {
    let (server, events) = watched(server_options());
    let header = Header { kind: 0xff01, payload_len: 58, ..Header::default() }.encode();
    for n in [1, 3, 4, 63, 64] {
        let mut stream = TcpStream::connect(address(server.endpoint())).unwrap();
        stream.write_all(&header[..n]).unwrap();
        drop(stream);
        let refusal = next_refusal(&events);
        assert!(refusal.contains("in the middle of a frame"), "{n}: {refusal}");
    }
    // A connection without a byte is a probe and not worth a line.
    drop(TcpStream::connect(address(server.endpoint())).unwrap());
    assert_serves(&server);
    assert_eq!(server.stats().refused, 5);
}

#[test]
fn a_slow_handshake_is_cut_off_however_steadily_it_trickles() {
    let limit = Duration::from_millis(300);
    let (server, events) = watched(ServerOptions { handshake_timeout: limit, ..server_options() });
    let mut stream = TcpStream::connect(address(server.endpoint())).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let header = Header { kind: 0xff01, payload_len: 60_000, ..Header::default() }.encode();
    let start = Instant::now();
    stream.write_all(&header).unwrap();
    // A byte every 20 ms, until the server closes.
    loop {
        match stream.read(&mut [0; 100]) {
            Ok(0) => break,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
            Ok(_) => panic!("the server must not answer"),
        }
        if stream.write_all(&[0]).is_err() {
            break;
        }
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(next_refusal(&events).contains("nothing heard"));
    assert_serves(&server);
}

#[test]
fn random_bytes_do_not_hurt() {
    let (server, _events) = watched(ServerOptions {
        handshake_timeout: Duration::from_millis(100),
        ..server_options()
    });
    let client = Client::connect(server.endpoint(), client_options()).unwrap();
    let seed: u64 = 0x5eed;
    let mut state = seed;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..300 {
        let len = random() as usize % 400;
        let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        // Most begin well and go wrong later.
        let kind = 0xff00 + (random() % 8) as u16;
        let header = Header { kind, payload_len: random() % 400, ..Header::default() }.encode();
        let keep = random() as usize % (HEADER_LEN * 2);
        let keep = keep.min(HEADER_LEN);
        bytes.splice(..0, header[..keep].iter().copied());
        let mut stream = TcpStream::connect(address(server.endpoint())).unwrap();
        let _ = stream.write_all(&bytes);
        drop(stream);
        if round % 50 == 0 {
            client.send(1, 0, &[b"x"]).unwrap().wait(PATIENCE).expect("seed 0x5eed");
        }
    }
    assert_serves(&server);
    assert_eq!(client.stats().reconnects, 0);
}

#[test]
fn an_occupied_port_is_named_with_a_hint() {
    let server = crate::echo_server();
    let Err(error) = Server::bind(server.endpoint(), server_options()) else { panic!("must fail") };
    let text = error.to_string();
    assert!(text.starts_with(&format!("cannot listen on {}: ", server.endpoint())), "{text}");
    assert!(text.contains("another process has it"), "{text}");
    assert!(Server::bind("nonsense", server_options()).is_err());
}

/// A port that was free a moment ago.
fn free_endpoint() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_client_may_start_before_its_server() {
    let endpoint = free_endpoint();
    let (observer, events) = observer();
    let report_every = Duration::from_millis(20);
    let options = ClientOptions { observer, report_every, ..client_options() };
    let waiting = {
        let endpoint = endpoint.clone();
        thread::spawn(move || Client::connect(endpoint, options))
    };
    let line = next_event(&events, |event| match event {
        Event::Waiting { .. } => Some(event.to_string()),
        _ => None,
    });
    assert!(line.starts_with(&format!("waiting for server 0 at {endpoint} (0 s): ")), "{line}");
    let _server = Server::bind(endpoint, server_options()).unwrap().serve(echo).unwrap();
    let client = waiting.join().unwrap().unwrap();
    client.send(1, 0, &[]).unwrap().wait(PATIENCE).unwrap();
}

#[test]
fn a_server_that_never_starts_is_an_error_after_the_limit() {
    let endpoint = free_endpoint();
    let connect_timeout = Duration::from_millis(200);
    let start = Instant::now();
    let options = ClientOptions { connect_timeout, ..tcp_options() };
    let error = Client::connect(endpoint.as_str(), options).unwrap_err();
    assert!(start.elapsed() < PATIENCE);
    let expected = format!("server 0 at {endpoint} could not be reached within 0.2 s: ");
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!(error.family(), Family::Them);
}
