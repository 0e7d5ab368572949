//! Launchers on several machines find each other, check that they can work together, and hear when
//! one of them fails.
//!
//! The first machine is the host of a rendezvous (`regatta_net::rendezvous`); all, itself included,
//! are its guests. They exchange cards, then whom they cannot reach, then that their leaders are
//! done; in between each waits for the news that another one has failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use regatta_cluster::{Tls, TlsMode};
use regatta_net::rendezvous::{Admission, Answer, Guest, Host, Seat};
use regatta_net::{
    Certificates, ClientOptions, Encryption, Error as NetError, Event, Family, Identity, JobToken,
    Role, Server, ServerOptions, connect_tcp,
};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::supervisor::Remote;

/// The launcher of the first machine, and all launchers as its guests.
const HOST: Identity = Identity { role: Role::Tool, index: 0 };
const GUEST: Identity = Identity { role: Role::Tool, index: 1 };

/// Rounds of the rendezvous: whom each machine cannot reach, and that its leaders are done.
const CHECKS: u32 = 1;
const LEADERS: u32 = 2;

/// How often missing machines are named.
const REPORT_EVERY: Duration = Duration::from_secs(3);
/// How long one attempt to reach a process elsewhere may take.
const REACH_LIMIT: Duration = Duration::from_secs(5);
/// Clocks that differ by more are pointed out.
const CLOCK_LIMIT_MS: i64 = 2000;

/// Free ports of a machine that processes of other frameworks may listen on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spare {
    /// One of its addresses.
    pub host: String,
    /// For PyTorch.
    pub torch: u16,
    /// For Gloo of PaddlePaddle.
    pub gloo: u16,
}

/// What a launcher says of its machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Its addresses, as the lists name them.
    pub hosts: Vec<String>,
    /// Its number, if the user said one.
    pub rank: Option<usize>,
    /// Addresses of the ranks it will start, if others cannot know them.
    pub endpoints: Vec<String>,
    /// Ports for what other frameworks open, should the first process be there.
    pub spare: Vec<Spare>,
    /// What must be the same in the command of every machine.
    pub job: String,
    /// Version of the program.
    pub version: String,
    /// Milliseconds on its clock.
    pub clock_ms: i64,
}

impl Card {
    /// A card of this machine.
    pub fn new(hosts: Vec<String>, job: String) -> Card {
        let version = env!("CARGO_PKG_VERSION").to_string();
        let (endpoints, spare) = (Vec::new(), Vec::new());
        Card { hosts, rank: None, endpoints, spare, job, version, clock_ms: clock_ms() }
    }

    fn name(&self) -> String {
        self.hosts.join(", ")
    }

    fn decode(bytes: &[u8]) -> Result<Card, String> {
        serde_json::from_slice(bytes)
            .map_err(|e| format!("a launcher of another version speaks here: {e}"))
    }

    /// Points out a clock that is off: times in logs will not match.
    fn compare_clocks(&self) {
        let off = self.clock_ms - clock_ms();
        if off.abs() > CLOCK_LIMIT_MS {
            let (name, seconds) = (self.name(), off as f64 / 1000.0);
            eprintln!(
                "note: the clock of {name} is {seconds:+.1} s off; times in logs will not match"
            );
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "clocks of machines are compared")]
fn clock_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Whom to wait for.
#[derive(Debug, Clone)]
pub enum Participants {
    /// Machines with these addresses, in this order.
    Hosts(Vec<String>),
    /// This number of machines.
    Count(usize),
}

impl Participants {
    fn seats(&self) -> Vec<String> {
        match self {
            Participants::Hosts(hosts) => hosts.clone(),
            Participants::Count(n) => (1..=*n).map(|i| format!("machine {i} of {n}")).collect(),
        }
    }

    /// The seats of a machine, or why it has none.
    fn admit(&self, card: &[u8]) -> Result<Admission, String> {
        let card = Card::decode(card)?;
        card.compare_clocks();
        let Participants::Hosts(hosts) = self else { return Ok(Admission::Any(card.name())) };
        let seat = |host: &String| {
            let all = || format!("{host} is not one of the machines {}", hosts.join(", "));
            hosts.iter().position(|listed| listed == host).ok_or_else(all)
        };
        card.hosts.iter().map(seat).collect::<Result<_, _>>().map(Admission::Seats)
    }
}

/// Whether a machine listens at the meeting point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenRule {
    /// It is the first one.
    Yes,
    /// It is another one.
    No,
    /// If nobody does yet: several launchers of one machine cannot know beforehand.
    IfFree,
}

/// Where and how to meet.
#[derive(Debug, Clone)]
pub struct Point {
    /// The address.
    pub address: String,
    /// Whether this machine listens there.
    pub listen: ListenRule,
    /// The secret of the job.
    pub token: String,
    /// How connections are protected.
    pub tls: Tls,
    /// How long others may take to come.
    pub timeout: Duration,
}

/// A machine among those that met.
pub struct Meeting {
    guest: Arc<Guest>,
    /// Who is who, in order.
    pub roster: Vec<Card>,
    name: String,
    host: Option<Host>,
    timeout: Duration,
    /// The supervisor of this machine, once it exists.
    remote: Arc<OnceLock<Remote>>,
}

impl Meeting {
    /// Goes to the meeting point and waits for the others.
    ///
    /// # Errors
    /// If machines do not come in time, or do not fit together; they are named.
    pub fn join(point: &Point, expected: Participants, me: &Card) -> Result<Meeting, Error> {
        let token = job_token(point)?;
        let (host, refused) = match point.listen {
            ListenRule::No => (None, None),
            ListenRule::Yes => (Some(open(point, expected, &token)?), None),
            // Whoever has the port should be another launcher of this job.
            ListenRule::IfFree => match open(point, expected, &token) {
                Ok(host) => (Some(host), None),
                Err(refused) => (None, Some(refused)),
            },
        };
        let entered = thread::scope(|scope| {
            if let Some(host) = &host {
                scope.spawn(|| attend(host, point.timeout));
            }
            let entered = enter(point, me, token);
            if let (Some(host), Err(error)) = (&host, &entered) {
                host.fail(error.to_string());
            }
            entered
        });
        // If it was not, both reasons are of interest.
        let (guest, roster) = entered.map_err(|error| match (refused, error) {
            (Some(refused), Error::Machines(why)) => Error::Machines(format!("{why}\n{refused}")),
            (_, error) => error,
        })?;
        let (name, timeout, remote) = (me.name(), point.timeout, Arc::default());
        Ok(Meeting { guest: Arc::new(guest), roster, name, host, timeout, remote })
    }

    /// Ports of all machines for other frameworks, in the order of the machines.
    pub fn spare(&self) -> Vec<Spare> {
        self.roster.iter().flat_map(|card| card.spare.clone()).collect()
    }

    /// Tries to reach what others will start, and hears what they found.
    ///
    /// # Errors
    /// If any machine cannot reach a process of another.
    pub fn check(&self, elsewhere: &[(String, String)]) -> Result<(), Error> {
        let name = &self.name;
        let problems: Vec<String> = elsewhere
            .iter()
            .filter_map(|(what, endpoint)| {
                let problem = reach(endpoint).err()?;
                Some(format!("{name} cannot reach {what} at {endpoint}: {problem}"))
            })
            .collect();
        let problems = problems.join("\n");
        let limit = self.timeout + REACH_LIMIT * (elsewhere.len() as u32 + 1);
        let all = all_of(self.guest.gather(CHECKS, problems.as_bytes(), limit))?;
        let all: Vec<_> = all.iter().map(|text| String::from_utf8_lossy(text)).collect();
        let found: Vec<&str> = all.iter().map(AsRef::as_ref).filter(|t| !t.is_empty()).collect();
        if found.is_empty() { Ok(()) } else { Err(Error::Machines(found.join("\n"))) }
    }

    /// Lets the supervisor of this machine hear how the others are doing.
    pub fn watch(&self, remote: Remote) {
        let guest = self.guest.clone();
        // There is one supervisor.
        let _ = self.remote.set(remote.clone());
        thread::spawn(move || match guest.watch() {
            Ok(Answer::Over(reason)) => remote.stop(&reason),
            Ok(Answer::All(_)) | Err(NetError::Closed { .. }) => {}
            Err(error) => remote.stop(&format!("the first machine is gone: {error}")),
        });
    }

    /// To be called when the leaders of this machine are done. The supervisor hears when those of
    /// all machines are.
    pub fn leaders_done(&self) -> impl Fn() + Send + Sync + 'static + use<> {
        let (guest, remote) = (self.guest.clone(), self.remote.clone());
        move || {
            let (guest, remote) = (guest.clone(), remote.clone());
            // The supervisor has other things to do than to wait for the others.
            thread::spawn(move || {
                // If it cannot be: `watch` says why.
                if let Ok(Answer::All(_)) = guest.gather(LEADERS, &[], Duration::MAX)
                    && let Some(remote) = remote.get()
                {
                    remote.leaders_are_done();
                }
            });
        }
    }

    /// Says how the processes of this machine ended. The first machine then stays until the others
    /// have ended, too, because they hear of each other through it.
    pub fn end(self, problem: Option<String>) {
        let problem = problem.map(|problem| format!("on {}: {problem}", self.name));
        self.guest.leave(problem.as_deref());
        if let Some(host) = &self.host {
            host.wait_for_end();
        }
    }
}

/// What launchers authenticate with.
fn job_token(point: &Point) -> Result<JobToken, Error> {
    let token = JobToken::new(&point.token);
    let encryption = match point.tls.mode {
        TlsMode::On => Encryption::BetweenMachines,
        TlsMode::Always => Encryption::Always,
        TlsMode::Off => {
            eprintln!("note: connections between machines are not encrypted (--tls off)");
            Encryption::Off
        }
    };
    let Some(files) = &point.tls.files else { return Ok(token.encrypted(encryption)) };
    let (chain, key, authority) = (files.cert.clone(), files.key.clone(), files.ca.clone());
    let files = Certificates { chain, key, authority };
    token.certified(encryption, &files).map_err(|e| Error::Usage(e.to_string()))
}

/// Opens the meeting on the first machine.
fn open(point: &Point, expected: Participants, token: &JobToken) -> Result<Host, Error> {
    let options = ServerOptions::new(HOST, token.clone());
    let listen = |e| failed(&e, format!("{e}; --master HOST:PORT chooses another address"));
    let server = Server::bind(point.address.as_str(), options).map_err(listen)?;
    let seats = expected.seats();
    let admit = Box::new(move |card: &[u8]| expected.admit(card));
    Host::open(server, seats, admit).map_err(listen)
}

/// Names the machines that are missing until all are here or it takes too long.
fn attend(host: &Host, timeout: Duration) {
    let report = |waited: Duration, seats: &[Seat]| {
        eprintln!("waiting for machines ({} s):{}", waited.as_secs(), table(seats));
    };
    if let Err(seats) = host.wait_for_all(timeout, REPORT_EVERY, report) {
        let (seconds, table) = (timeout.as_secs_f32(), table(&seats));
        host.fail(format!("not all machines came within {seconds} s:{table}"));
    }
}

/// Every machine of the job, one line each.
fn table(seats: &[Seat]) -> String {
    let line = |seat: &Seat| {
        let state = if seat.guest.is_some() { "here" } else { "missing" };
        format!("\n  {:<24} {state}", seat.name)
    };
    seats.iter().map(line).collect()
}

/// Connects to the first machine and waits for the cards of all.
fn enter(point: &Point, me: &Card, token: JobToken) -> Result<(Guest, Vec<Card>), Error> {
    let mut options = ClientOptions::new(GUEST, HOST, token);
    options.connect_timeout = point.timeout;
    options.report_every = REPORT_EVERY;
    options.observer = Arc::new(|event| {
        if let Event::Waiting { endpoint, waited, problem, .. } = event {
            let seconds = waited.as_secs();
            eprintln!("waiting for the first machine at {endpoint} ({seconds} s): {problem}");
        }
    });
    let guest = Guest::connect(point.address.as_str(), options)
        .map_err(|e| failed(&e, format!("cannot meet at {}: {e}", point.address)))?;
    let card = serde_json::to_vec(me).map_err(|e| Error::Internal(e.to_string()))?;
    // The host has its own limit and says who is missing; this one is for a host that hangs.
    let cards = all_of(guest.join(&card, point.timeout + Duration::from_secs(10)))?;
    let cards = cards.iter().map(|card| Card::decode(card)).collect::<Result<Vec<_>, _>>();
    let cards = cards.map_err(Error::Machines)?;
    match conflicts(&cards) {
        problems if problems.is_empty() => Ok((guest, in_order(cards))),
        problems => Err(Error::Usage(problems.join("\n"))),
    }
}

/// What all machines sent, or why the meeting is over.
fn all_of(answer: Result<Answer, NetError>) -> Result<Vec<Vec<u8>>, Error> {
    match answer {
        Ok(Answer::All(all)) => Ok(all),
        Ok(Answer::Over(reason)) => Err(Error::Machines(reason)),
        Err(e) => Err(failed(&e, format!("the first machine does not answer: {e}"))),
    }
}

fn failed(error: &NetError, text: String) -> Error {
    match error.family() {
        Family::You => Error::Usage(text),
        Family::Them => Error::Machines(text),
        Family::Us => Error::Internal(text),
    }
}

/// What does not fit together.
fn conflicts(cards: &[Card]) -> Vec<String> {
    let Some((first, others)) = cards.split_first() else { return vec![] };
    let mut problems = Vec::new();
    for card in others {
        if card.version != first.version {
            problems.push(format!(
                "{} runs version {}, {} version {}: use the same build everywhere",
                first.name(),
                first.version,
                card.name(),
                card.version
            ));
        }
        if card.job != first.job {
            problems.push(format!(
                "{} and {} were started with different commands:\n    {}\n    {}",
                first.name(),
                card.name(),
                first.job,
                card.job
            ));
        }
    }
    let ranks: Vec<usize> = cards.iter().filter_map(|card| card.rank).collect();
    if ranks.iter().collect::<BTreeSet<_>>().len() < ranks.len() {
        problems.push(format!("two machines have the same --rank: {ranks:?}"));
    }
    problems
}

/// Machines with a number take their position; the others fill the gaps, in the order of seats.
fn in_order(cards: Vec<Card>) -> Vec<Card> {
    let (numbered, others): (Vec<_>, Vec<_>) = cards.into_iter().partition(|c| c.rank.is_some());
    let mut placed: BTreeMap<usize, Card> =
        numbered.into_iter().filter_map(|card| Some((card.rank?, card))).collect();
    let mut position = 0;
    for card in others {
        while placed.contains_key(&position) {
            position += 1;
        }
        placed.insert(position, card);
    }
    placed.into_values().collect()
}

/// Connects once. The other machine may still be about to open its ports, so a refusal is only
/// believed after a while.
fn reach(endpoint: &str) -> Result<(), String> {
    let until = Instant::now() + REACH_LIMIT;
    loop {
        let problem = match connect_tcp(endpoint, REACH_LIMIT) {
            Ok(_) => return Ok(()),
            Err(problem) => problem,
        };
        if problem.kind() != std::io::ErrorKind::ConnectionRefused || Instant::now() > until {
            return Err(problem.to_string());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(host: &str, rank: Option<usize>) -> Card {
        Card { rank, ..Card::new(vec![host.to_string()], "job".to_string()) }
    }

    fn names(cards: &[Card]) -> Vec<String> {
        cards.iter().map(Card::name).collect()
    }

    #[test]
    fn numbered_machines_take_their_position_and_others_fill_the_gaps() {
        let cards = vec![card("a", None), card("b", Some(0)), card("c", None), card("d", Some(2))];
        assert!(conflicts(&cards).is_empty());
        assert_eq!(names(&in_order(cards)), ["b", "a", "d", "c"]);
    }

    #[test]
    fn machines_that_do_not_fit_together_are_named() {
        let mut cards = vec![card("a", Some(1)), card("b", Some(1)), card("c", None)];
        assert_eq!(conflicts(&cards), ["two machines have the same --rank: [1, 1]"]);
        cards[1].rank = None;
        cards[2].version = "0.0.0".to_string();
        cards[1].job = "another".to_string();
        let problems = conflicts(&cards).join("\n");
        assert!(problems.contains("a and b were started with different commands"), "{problems}");
        assert!(problems.contains("c version 0.0.0: use the same build everywhere"), "{problems}");
    }

    #[test]
    fn listed_machines_have_their_seats_and_counted_ones_any() {
        let encode = |card: &Card| serde_json::to_vec(card).unwrap();
        let listed = Participants::Hosts(["a", "b", "c"].map(str::to_string).to_vec());
        let both = Card::new(vec!["c".to_string(), "a".to_string()], String::new());
        assert_eq!(listed.admit(&encode(&both)).unwrap(), Admission::Seats(vec![2, 0]));
        let stranger = listed.admit(&encode(&card("d", None))).unwrap_err();
        assert_eq!(stranger, "d is not one of the machines a, b, c");
        assert!(listed.admit(b"{}").unwrap_err().starts_with("a launcher of another version"));
        assert_eq!(Participants::Count(2).seats(), ["machine 1 of 2", "machine 2 of 2"]);
        let counted = Participants::Count(2).admit(&encode(&both)).unwrap();
        assert_eq!(counted, Admission::Any("c, a".to_string()));
    }
}
