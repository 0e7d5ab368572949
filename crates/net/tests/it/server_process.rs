//! A server in a process of its own, killed with -9.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use regatta_net::{Client, ClientOptions, Error, Event, Server};

use crate::{PATIENCE, client_options, echo, next_event, observer, server_options, tcp_options};

/// Not a test: the child process. It serves until it is killed.
#[test]
#[ignore = "run by the other tests of this file as a separate process"]
fn child_server() {
    let server = Server::bind("127.0.0.1:0", server_options()).unwrap().serve(echo).unwrap();
    println!("\nLISTENING {}", server.endpoint());
    // Ends with its parent, whose end of the pipe closes then.
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn start_child() -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["server_process::child_server", "--exact", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let endpoint = loop {
        let line = lines.next().expect("the child prints its endpoint").unwrap();
        if let Some(endpoint) = line.strip_prefix("LISTENING ") {
            break endpoint.to_owned();
        }
    };
    (child, endpoint)
}

#[test]
fn a_killed_server_is_lost_within_the_limit() {
    for shortcut in [false, true] {
        let (mut child, endpoint) = start_child();
        let reconnect_timeout = Duration::from_millis(500);
        let options = ClientOptions { shortcut, reconnect_timeout, ..client_options() };
        let client = Client::connect(endpoint.as_str(), options).unwrap();
        client.send(1, 0, &[b"hello"]).unwrap().wait(PATIENCE).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let start = Instant::now();
        // It is lost with or without a request in flight.
        let error = match client.send(1, 0, &[]) {
            Ok(pending) => pending.wait(PATIENCE).unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error, Error::PeerLost { .. }));
        assert!(
            error.to_string().starts_with(&format!("lost server 0 at {endpoint}: ")),
            "{error}"
        );
        assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
        let again = client.send(1, 0, &[]).unwrap_err();
        assert_eq!(again.to_string(), error.to_string(), "and stays lost");
    }
}

#[test]
fn closing_during_an_outage_does_not_wait_for_its_end() {
    let (mut child, endpoint) = start_child();
    let (observer, events) = observer();
    let reconnect_timeout = Duration::from_secs(600);
    let options = ClientOptions { observer, reconnect_timeout, ..client_options() };
    let client = Client::connect(endpoint.as_str(), options).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    next_event(&events, |event| matches!(event, Event::Broken { .. }).then_some(()));
    let pending = client.send(1, 0, &[b"kept"]).unwrap();
    let start = Instant::now();
    client.close();
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert!(matches!(pending.wait(Duration::MAX), Err(Error::Closed { .. })));
}

#[test]
fn a_restarted_server_is_noticed_and_named() {
    let (mut child, endpoint) = start_child();
    let (observer, events) = observer();
    let options = ClientOptions { observer, ..tcp_options() };
    let client = Client::connect(endpoint.as_str(), options).unwrap();
    client.send(1, 0, &[b"state"]).unwrap().wait(PATIENCE).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    next_event(&events, |event| matches!(event, Event::Broken { .. }).then_some(()));
    let pending = client.send(1, 0, &[b"kept for the new connection"]);

    // Another process on the same port, without what the first one held.
    let _successor =
        Server::bind(endpoint.as_str(), server_options()).unwrap().serve(echo).unwrap();
    let error = match pending {
        Ok(pending) => pending.wait(PATIENCE).unwrap_err(),
        Err(error) => error,
    };
    let expected = format!("server 0 at {endpoint} was restarted and has lost its state");
    assert_eq!(error.to_string(), expected);
    assert_eq!(client.send(1, 0, &[]).unwrap_err().to_string(), expected, "later ones too");
}
