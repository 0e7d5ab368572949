//! Ranks that know only where rank 0 is. It is the host of a meeting (`regatta_net::rendezvous`) at
//! the master address, the others are its guests; the card of a rank says where it listens.
//!
//! Rank 0 keeps listening at the master address as its own endpoint.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use regatta_net::rendezvous::{Admission, Answer, Guest, Host, Seat};
use regatta_net::{
    ClientOptions, Error as NetError, Event as NetEvent, Family, Identity, Server, ServerOptions,
    bind_hint, counted, own_address,
};

use crate::config::{Event, GroupConfig};
use crate::error::{Absent, Error, Result, system};

use super::HANDSHAKE;
use super::dial::RETRY;
use super::greet::reason;

/// Connections that strangers may keep open.
const SPARE_CONNECTIONS: usize = 64;

/// Finds the endpoints of `size` ranks, and the listener of this one; both go into `config`.
pub(crate) fn meet(config: &mut GroupConfig, master: &str, size: usize) -> Result<()> {
    if config.rank >= size {
        let rank = config.rank;
        return Err(Error::Config(format!("rank {rank} of {size}: ranks count from 0")));
    }
    let deadline = Instant::now() + config.start_timeout;
    let (listener, mut endpoints) = match config.rank {
        0 => host(config, master, size)?,
        _ => join(config, master, size, deadline)?,
    };
    // Rank 0 may know itself by another name, such as 0.0.0.0.
    endpoints[0] = master.to_owned();
    config.listener = Some(listener);
    config.endpoints = endpoints;
    config.start_timeout = deadline.saturating_duration_since(Instant::now());
    Ok(())
}

/// What a rank announces.
struct Card {
    rank: usize,
    /// How many ranks there are, as this one is configured.
    size: usize,
    /// Where it listens.
    endpoint: String,
}

impl Card {
    fn encode(&self) -> Vec<u8> {
        format!("{} {} {}", self.rank, self.size, self.endpoint).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Card> {
        let mut words = str::from_utf8(bytes).ok()?.splitn(3, ' ');
        let mut word = || words.next();
        let (rank, size) = (word()?.parse().ok()?, word()?.parse().ok()?);
        Some(Card { rank, size, endpoint: word()?.to_owned() })
    }

    /// The seat of a rank in a meeting of `size`, or why it is none of them.
    fn admit(bytes: &[u8], size: usize) -> Result<Admission, String> {
        let card = Card::decode(bytes).ok_or("the card cannot be read")?;
        let rank = card.rank;
        if rank >= size {
            return Err(format!("there is no rank {rank} among {}", counted(size, "rank")));
        }
        if card.size != size {
            return Err(format!("rank 0 was told of {size} ranks, rank {rank} of {}", card.size));
        }
        Ok(Admission::Seats(vec![rank]))
    }

    fn endpoints(cards: &[Vec<u8>]) -> Option<Vec<String>> {
        cards.iter().map(|card| Some(Card::decode(card)?.endpoint)).collect()
    }
}

/// Waits for all ranks.
fn host(
    config: &GroupConfig,
    master: &str,
    size: usize,
) -> Result<(Arc<TcpListener>, Vec<String>)> {
    let started = Instant::now();
    let (listener, server) = listen(config, master, size)?;
    let seats = (0..size).map(|rank| format!("rank {rank}")).collect();
    let admit = Box::new(move |card: &[u8]| Card::admit(card, size));
    let host = Host::open(server, seats, admit).map_err(|e| system("cannot meet", e))?;
    host.take_seat(0, Card { rank: 0, size, endpoint: master.to_owned() }.encode());
    let report = |waited, seats: &[Seat]| {
        (config.observer)(&Event::Waiting { rank: 0, waited, missing: missing(seats) });
    };
    let cards = host.wait_for_all(config.start_timeout, config.report_every, report);
    let cards = cards.map_err(|seats| {
        let (waited, missing) = (started.elapsed(), missing(&seats));
        let error = Error::Missing { rank: 0, waited, missing };
        host.fail(error.to_string());
        error
    })?;
    let unreadable = || Error::Internal("a card that was admitted cannot be read".to_owned());
    Ok((listener, Card::endpoints(&cards).ok_or_else(unreadable)?))
}

fn missing(seats: &[Seat]) -> Vec<Absent> {
    let free = seats.iter().enumerate().filter(|(_, seat)| seat.guest.is_none());
    let absent = |(rank, seat): (usize, &Seat)| {
        let state = if seat.left { "it came and went away" } else { "it has not come" };
        Absent { rank, state: state.to_owned() }
    };
    free.map(absent).collect()
}

/// The socket at the master address, and a server that has it during the meeting.
fn listen(config: &GroupConfig, master: &str, size: usize) -> Result<(Arc<TcpListener>, Server)> {
    let fail = |error: io::Error| Error::Bind {
        rank: config.rank,
        endpoint: master.to_owned(),
        problem: format!("{error}{}", bind_hint(&error)),
    };
    let listener = match &config.listener {
        Some(bound) => bound.clone(),
        None => Arc::new(TcpListener::bind(master).map_err(fail)?),
    };
    let mut options = ServerOptions::new(Identity::rank(0), config.token.clone());
    options.max_connections = size + SPARE_CONNECTIONS;
    options.shortcut = false;
    let observer = config.observer.clone();
    options.observer = Arc::new(move |event| {
        if let NetEvent::Refused { address, problem } = event {
            let (address, problem) = (address.clone(), problem.clone());
            observer(&Event::TurnedAway { address, problem });
        }
    });
    let server = Server::on(listener.try_clone().map_err(fail)?, options)
        .map_err(|e| system("cannot meet", e))?;
    Ok((listener, server))
}

/// Reports to rank 0 where this rank listens, and waits for the list. A rank 0 that is not up yet,
/// or went away, may come.
fn join(
    config: &GroupConfig,
    master: &str,
    size: usize,
    deadline: Instant,
) -> Result<(Arc<TcpListener>, Vec<String>)> {
    let (rank, started) = (config.rank, Instant::now());
    let refused = |problem| {
        let endpoint = master.to_owned();
        Error::Refused { rank, peer: 0, endpoint, problem }
    };
    loop {
        let error = match join_once(config, master, size, deadline) {
            Ok((listener, Answer::All(cards))) => {
                let endpoints = Card::endpoints(&cards).filter(|list| list.len() == size);
                let senseless = || refused("rank 0 sent a list that cannot be read".to_owned());
                return Ok((listener, endpoints.ok_or_else(senseless)?));
            }
            Ok((_, Answer::Over(problem))) => return Err(refused(problem)),
            Err(error) => error,
        };
        let (family, problem) = (error.family(), reason(error));
        if family != Family::Them {
            return Err(refused(problem));
        }
        if Instant::now() >= deadline {
            let missing = vec![first_rank(master, &problem)];
            return Err(Error::Missing { rank, waited: started.elapsed(), missing });
        }
        thread::sleep(RETRY);
    }
}

fn first_rank(master: &str, problem: &str) -> Absent {
    Absent { rank: 0, state: format!("{master}: {problem}") }
}

fn join_once(
    config: &GroupConfig,
    master: &str,
    size: usize,
    deadline: Instant,
) -> Result<(Arc<TcpListener>, Answer), NetError> {
    let left = deadline.saturating_duration_since(Instant::now());
    let (rank, me) = (config.rank, Identity::rank(config.rank as u32));
    let mut options = ClientOptions::new(me, Identity::rank(0), config.token.clone());
    options.connect_timeout = left;
    options.report_every = config.report_every;
    let (observer, address) = (config.observer.clone(), master.to_owned());
    options.observer = Arc::new(move |event| {
        if let NetEvent::Waiting { waited, problem, .. } = event {
            let missing = vec![first_rank(&address, problem)];
            observer(&Event::Waiting { rank, waited: *waited, missing });
        }
    });
    let guest = Guest::connect(master, options)?;
    // Where rank 0 can be reached from, the others can reach this rank.
    let problem = |e: io::Error| NetError::System(format!("cannot listen for other ranks: {e}"));
    let own = own_address(master).map_err(problem)?;
    let listener = TcpListener::bind((own, 0)).map_err(problem)?;
    let endpoint = listener.local_addr().map_err(problem)?.to_string();
    // Rank 0 answers at its own deadline at the latest, or goes.
    let limit: Duration = deadline.saturating_duration_since(Instant::now()) + HANDSHAKE;
    let answer = guest.join(&Card { rank, size, endpoint }.encode(), limit)?;
    guest.leave(None);
    Ok((Arc::new(listener), answer))
}
