//! Meetings over real sockets: all hear of all, and of whoever is lost or missing.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use regatta_net::rendezvous::{Admission, Admit, Answer, Guest, Host, Seat};
use regatta_net::{ClientOptions, Error, Identity, JobToken, Server, ServerOptions};

use crate::PATIENCE;

/// Seats with the names of small numbers; a card is the number of its seat.
fn seats(n: u8) -> (Vec<String>, Admit) {
    let admit = move |card: &[u8]| match card {
        [seat] if *seat < n => Ok(Admission::Seats(vec![usize::from(*seat)])),
        _ => Err(format!("there is no seat {card:?}")),
    };
    ((0..n).map(|i| format!("guest {i}")).collect(), Box::new(admit))
}

fn host(n: u8) -> (Host, String) {
    let options = ServerOptions::new(Identity::tool(0), JobToken::new("meeting"));
    let server = Server::bind("127.0.0.1:0", options).unwrap();
    let endpoint = server.endpoint().to_string();
    let (seats, admit) = seats(n);
    (Host::open(server, seats, admit).unwrap(), endpoint)
}

fn guest(endpoint: &str, n: u8) -> Guest {
    let token = JobToken::new("meeting");
    let options = ClientOptions::new(Identity::tool(n.into()), Identity::tool(0), token);
    Guest::connect(endpoint, options).unwrap()
}

/// All guests of a meeting that has begun.
fn begin(endpoint: &str, n: u8) -> Vec<Arc<Guest>> {
    let join = |i| {
        let endpoint = endpoint.to_owned();
        thread::spawn(move || {
            let guest = guest(&endpoint, i);
            let cards = Answer::All((0..n).map(|i| vec![i]).collect());
            assert_eq!(guest.join(&[i], PATIENCE).unwrap(), cards);
            Arc::new(guest)
        })
    };
    let joining: Vec<JoinHandle<_>> = (0..n).rev().map(join).collect();
    let mut guests: Vec<_> = joining.into_iter().map(|thread| thread.join().unwrap()).collect();
    guests.reverse();
    guests
}

#[test]
fn all_hear_of_all_and_gather_more() {
    let (host, endpoint) = host(3);
    let guests = begin(&endpoint, 3);
    assert_eq!(host.wait_for_all(PATIENCE, PATIENCE, |_, _| {}).unwrap(), [[0], [1], [2]]);
    let gather = |guest: &Arc<Guest>, text: &'static str| {
        let guest = guest.clone();
        thread::spawn(move || guest.gather(7, text.as_bytes(), PATIENCE).unwrap())
    };
    let texts = ["a", "", "ccc"];
    let gathering: Vec<_> = guests.iter().zip(texts).map(|(g, text)| gather(g, text)).collect();
    for thread in gathering {
        let all = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        assert_eq!(thread.join().unwrap(), Answer::All(all));
    }
    guests.iter().for_each(|guest| guest.leave(None));
    host.wait_for_end();
}

#[test]
fn a_lost_guest_ends_the_meeting_for_all_and_names_it() {
    let (_host, endpoint) = host(2);
    let guests = begin(&endpoint, 2);
    let watcher = guests[0].clone();
    let watching = thread::spawn(move || watcher.watch());
    let mut guests = guests.into_iter();
    let (first, second) = (guests.next().unwrap(), guests.next().unwrap());
    // Without a word that it has done its part.
    drop(second);
    let why = Answer::Over("guest 1 has left".to_owned());
    assert_eq!(watching.join().unwrap().unwrap(), why);
    assert_eq!(first.gather(1, &[], PATIENCE).unwrap(), why);
}

#[test]
fn who_ends_may_leave_and_who_fails_says_why() {
    let (host, endpoint) = host(3);
    let guests = begin(&endpoint, 3);
    guests[1].leave(None);
    guests[2].leave(Some("guest 2 fell"));
    assert_eq!(guests[0].watch().unwrap(), Answer::Over("guest 2 fell".to_owned()));
    host.wait_for_end();
    guests[0].leave(None);
    assert!(matches!(guests[0].watch(), Err(Error::Closed { .. })));
}

#[test]
fn missing_guests_are_named_and_strangers_refused() {
    let (host, endpoint) = host(3);
    let early = guest(&endpoint, 2);
    let second = Arc::new(guest(&endpoint, 1));
    let waiting = second.clone();
    let waiting = thread::spawn(move || waiting.join(&[1], PATIENCE).unwrap());
    let refused = early.join(&[9], PATIENCE).unwrap();
    assert_eq!(refused, Answer::Over("there is no seat [9]".to_owned()));
    let mut reports = 0;
    let limit = Duration::from_millis(300);
    let missing = |seats: &[Seat]| -> Vec<String> {
        let free = seats.iter().filter(|seat| seat.guest.is_none());
        free.map(|seat| seat.name.clone()).collect()
    };
    let outcome = host.wait_for_all(limit, limit / 10, |_, seats| {
        reports += usize::from(missing(seats).len() >= 2);
    });
    assert!(reports > 0);
    assert_eq!(missing(&outcome.unwrap_err()), ["guest 0", "guest 2"]);
    host.fail("too few".to_owned());
    assert_eq!(waiting.join().unwrap(), Answer::Over("too few".to_owned()));
}

/// The socket serves another purpose before and after the meeting.
#[test]
fn a_lent_socket_outlives_the_meeting() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = socket.local_addr().unwrap().to_string();
    let options = ServerOptions::new(Identity::tool(0), JobToken::new("meeting"));
    let server = Server::on(socket.try_clone().unwrap(), options).unwrap();
    let (seats, admit) = seats(2);
    let host = Host::open(server, seats, admit).unwrap();
    host.take_seat(0, vec![0]);
    let guest = guest(&endpoint, 1);
    assert_eq!(guest.join(&[1], PATIENCE).unwrap(), Answer::All(vec![vec![0], vec![1]]));
    guest.leave(None);
    drop(host);
    let client = std::net::TcpStream::connect(&endpoint).unwrap();
    socket.set_nonblocking(false).unwrap();
    let (_, peer) = socket.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
}
