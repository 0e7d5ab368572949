//! Launchers on several machines find each other, check that they can work together, and hear when
//! one of them fails.
//!
//! The first machine listens at the meeting point; all, itself included, connect to it with the job
//! token. The requests:
//!
//! - *join*: who I am; answered when all machines are there, with who is who;
//! - *checked*: whom I could not reach; answered when all have looked, with what everybody found;
//! - *watch*: answered when a machine failed or is gone, or when the leaders of all are done;
//! - *leaders done*, *ended*: how my processes are doing.
//!
//! What is decided here is plain data ([`Desk`]), which a thread per connection feeds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use regatta_net::{
    Client, ClientOptions, Disconnect, Event, Handler, Identity, JobToken, Peer, Request,
    Responder, Server, ServerOptions, Serving,
};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::supervisor::Remote;

const JOIN: u16 = 1;
const CHECKED: u16 = 2;
const WATCH: u16 = 3;
const ENDED: u16 = 4;
const LEADERS_DONE: u16 = 5;

/// How often missing machines are named.
const REPORT_EVERY: Duration = Duration::from_secs(3);
/// How long one attempt to reach a process elsewhere may take.
const REACH_LIMIT: Duration = Duration::from_secs(5);
/// How long the connection of a launcher may be gone.
const AWAY_LIMIT: Duration = Duration::from_secs(5);
/// Clocks that differ by more are pointed out: times in logs will not match.
const CLOCK_LIMIT_MS: i64 = 2000;

/// What a launcher says of its machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Its addresses, as the lists name them.
    pub hosts: Vec<String>,
    /// Its number, if the user said one.
    pub rank: Option<usize>,
    /// Addresses of the ranks it will start, if others cannot know them.
    pub endpoints: Vec<String>,
    /// What every machine must have been told alike.
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
        Card { hosts, rank: None, endpoints: Vec::new(), job, version, clock_ms: clock_ms() }
    }

    fn name(&self) -> String {
        self.hosts.join(", ")
    }
}

#[expect(clippy::disallowed_methods, reason = "clocks of machines are compared")]
fn clock_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Whom to wait for.
#[derive(Debug, Clone)]
pub enum Expected {
    /// Machines with these addresses, in this order.
    Hosts(Vec<String>),
    /// So many.
    Count(usize),
}

/// Whether a machine listens at the meeting point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listens {
    /// It is the first one.
    Yes,
    /// It is another one.
    No,
    /// If nobody does yet: several launchers of one machine cannot tell beforehand.
    IfFree,
}

/// Where and how to meet.
#[derive(Debug, Clone)]
pub struct Point {
    /// The address.
    pub address: String,
    /// Whether this machine listens there.
    pub listens: Listens,
    /// The secret of the job.
    pub token: String,
    /// How long others may take to come.
    pub timeout: Duration,
}

/// The answer to a request: what came of it, or what is wrong.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Answer {
    /// All are here, in order.
    Roster(Vec<Card>),
    /// All is well.
    Go,
    /// The job cannot start, or is over.
    Stop(String),
    /// No machine has workers any more.
    LeadersDone,
}

/// How the processes of a machine ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct EndedCard {
    name: String,
    /// What went wrong, if something did.
    problem: Option<String>,
}

/// A machine among those that met.
pub struct Meeting {
    client: Arc<Client>,
    /// Who is who, in order.
    pub roster: Vec<Card>,
    me: Card,
    desk: Option<OpenDesk>,
    timeout: Duration,
}

impl Meeting {
    /// Goes to the meeting point and waits for the others.
    ///
    /// # Errors
    /// If machines do not come in time, or do not fit together; they are named.
    pub fn join(point: &Point, expected: Expected, me: Card) -> Result<Meeting, Error> {
        let token = JobToken::new(&point.token);
        let desk = match (point.listens, || open_desk(point, expected, &token)) {
            (Listens::No, _) => None,
            (Listens::Yes, open) => Some(open()?),
            // Whoever has the port should be the first launcher; if not, connecting to it says so.
            (Listens::IfFree, open) => open().ok(),
        };
        let me_id = Identity::tool(identity_of(&me));
        let mut options = ClientOptions::new(me_id, Identity::tool(0), token);
        options.connect_timeout = point.timeout;
        options.report_every = REPORT_EVERY;
        options.observer = Arc::new(|event| {
            if let Event::Waiting { endpoint, waited, problem, .. } = event {
                let text = format!(
                    "waiting for the first machine at {endpoint} ({} s): {problem}\n",
                    waited.as_secs()
                );
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
        });
        let problem = |e: regatta_net::Error| {
            Error::Machines(format!("cannot meet at {}: {e}", point.address))
        };
        let client = Arc::new(Client::connect(point.address.as_str(), options).map_err(problem)?);
        // The desk has its own limit and says who is missing; this one is for a desk that hangs.
        let limit = point.timeout + Duration::from_secs(10);
        let roster = match ask(&client, JOIN, &me, limit)? {
            Answer::Roster(roster) => roster,
            Answer::Stop(reason) => return Err(Error::Machines(reason)),
            other => return Err(Error::System(format!("unexpected answer {other:?}"))),
        };
        Ok(Meeting { client, roster, me, desk, timeout: point.timeout })
    }

    /// Tries to reach what others will start, and hears what they found.
    ///
    /// # Errors
    /// If any machine cannot reach a process of another.
    pub fn check(&self, elsewhere: &[(String, String)]) -> Result<(), Error> {
        let name = self.me.name();
        let problems: Vec<String> = elsewhere
            .iter()
            .filter_map(|(what, endpoint)| {
                let problem = reach(endpoint).err()?;
                Some(format!("{name} cannot reach {what} at {endpoint}: {problem}"))
            })
            .collect();
        let limit = self.timeout + REACH_LIMIT * (elsewhere.len() as u32 + 1);
        match ask(&self.client, CHECKED, &(name, problems), limit)? {
            Answer::Go => Ok(()),
            Answer::Stop(reason) => Err(Error::Machines(reason)),
            other => Err(Error::System(format!("unexpected answer {other:?}"))),
        }
    }

    /// Lets the supervisor of this machine hear how the others are doing.
    pub fn watch(&self, remote: Remote) {
        let client = self.client.clone();
        thread::spawn(move || {
            loop {
                // Training may take for ever; the connection notices when the desk is gone.
                match ask(&client, WATCH, &(), Duration::from_secs(3600)) {
                    Ok(Answer::LeadersDone) => remote.leaders_are_done(),
                    Ok(Answer::Stop(reason)) => return remote.stop(&reason),
                    Ok(_) => return,
                    Err(_) => match client.failure() {
                        Some(regatta_net::Error::Closed { .. }) => return,
                        Some(e) => return remote.stop(&format!("the first machine is gone: {e}")),
                        None => {}
                    },
                }
            }
        });
    }

    /// Says that the leaders of this machine are done.
    pub fn leaders_done(&self) -> impl Fn() + Send + Sync + 'static + use<> {
        let (client, name) = (self.client.clone(), self.me.name());
        move || {
            let (client, name) = (client.clone(), name.clone());
            // The supervisor has other things to do than to wait for the answer.
            thread::spawn(move || ask(&client, LEADERS_DONE, &name, Duration::from_secs(10)));
        }
    }

    /// Says how the processes of this machine ended. The first machine then stays until the others
    /// have ended, too, because they hear of each other through it.
    pub fn end(self, problem: Option<String>) {
        let ended = EndedCard { name: self.me.name(), problem };
        let _ = ask(&self.client, ENDED, &ended, Duration::from_secs(10));
        if let Some(desk) = &self.desk {
            desk.shared.wait_for_end();
        }
        self.client.close();
    }
}

/// The desk of the first machine while it is open.
struct OpenDesk {
    serving: Option<Serving>,
    shared: Arc<Shared>,
}

impl Drop for OpenDesk {
    /// Answers that are under way still reach the others.
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.shutdown(Duration::from_secs(2));
        }
    }
}

/// Machines of a meeting only need to differ.
fn identity_of(card: &Card) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    for byte in card.hosts.join(",").bytes().chain(card.endpoints.join(",").bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    hash | 1
}

fn ask(
    client: &Client,
    kind: u16,
    what: &impl Serialize,
    limit: Duration,
) -> Result<Answer, Error> {
    let problem = |e: String| Error::Machines(format!("the first machine does not answer: {e}"));
    let bytes = serde_json::to_vec(what).map_err(|e| problem(e.to_string()))?;
    let reply = client.send(kind, 0, &[&bytes]).and_then(|pending| pending.wait(limit));
    let reply = reply.map_err(|e| problem(e.to_string()))?;
    serde_json::from_slice(&reply.payload).map_err(|e| problem(e.to_string()))
}

/// Connects once. The other machine may still be about to open its ports, so a refusal is only
/// believed after a while.
fn reach(endpoint: &str) -> Result<(), String> {
    let until = Instant::now() + REACH_LIMIT;
    loop {
        let problem = match reach_once(endpoint) {
            Ok(()) => return Ok(()),
            Err(problem) => problem,
        };
        if problem.kind() != std::io::ErrorKind::ConnectionRefused || Instant::now() > until {
            return Err(problem.to_string());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn reach_once(endpoint: &str) -> std::io::Result<()> {
    let mut problem = std::io::Error::other("the name has no address");
    for address in endpoint.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, REACH_LIMIT) {
            Ok(_) => return Ok(()),
            Err(e) => problem = e,
        }
    }
    Err(problem)
}

fn open_desk(point: &Point, expected: Expected, token: &JobToken) -> Result<OpenDesk, Error> {
    let shared =
        Arc::new(Shared { desk: Mutex::new(Desk::new(expected)), changed: Condvar::new() });
    let options = ServerOptions::new(Identity::tool(0), token.clone());
    let listen =
        |e| Error::Machines(format!("{e}; --master HOST:PORT chooses another place to meet"));
    let server = Server::bind(point.address.as_str(), options).map_err(listen)?;
    let serving = server.serve(Service(shared.clone())).map_err(listen)?;
    let (waiting, timeout) = (shared.clone(), point.timeout);
    thread::spawn(move || waiting.wait_for_all(timeout));
    Ok(OpenDesk { serving: Some(serving), shared })
}

/// What the first machine knows, and what it still owes answers to.
struct Desk {
    expected: Expected,
    cards: Vec<Card>,
    joining: Vec<Responder>,
    checked: BTreeMap<String, Vec<String>>,
    checking: Vec<Responder>,
    watching: Vec<Responder>,
    leaders_done: BTreeSet<String>,
    ended: BTreeSet<String>,
    /// Sessions of the launchers that joined, with their names and whether they are connected.
    sessions: BTreeMap<u64, (String, bool)>,
    /// Sessions that know that leaders are done.
    told: BTreeSet<u64>,
    has_begun: bool,
    over: Option<String>,
}

struct Shared {
    desk: Mutex<Desk>,
    changed: Condvar,
}

impl Desk {
    fn new(expected: Expected) -> Desk {
        Desk {
            expected,
            cards: Vec::new(),
            joining: Vec::new(),
            checked: BTreeMap::new(),
            checking: Vec::new(),
            watching: Vec::new(),
            leaders_done: BTreeSet::new(),
            ended: BTreeSet::new(),
            sessions: BTreeMap::new(),
            told: BTreeSet::new(),
            has_begun: false,
            over: None,
        }
    }

    /// Machines that have not come, or that they are too few.
    fn missing(&self) -> Vec<String> {
        let here = |host: &String| self.cards.iter().any(|card| card.hosts.contains(host));
        match &self.expected {
            Expected::Hosts(hosts) => hosts.iter().filter(|h| !here(h)).cloned().collect(),
            Expected::Count(n) => {
                (self.cards.len()..*n).map(|i| format!("machine {} of {n}", i + 1)).collect()
            }
        }
    }

    /// Every machine of the job, one line each.
    fn table(&self) -> String {
        let here = self.cards.iter().map(|card| format!("\n  {:<24} here", card.name()));
        let gone = self.missing();
        let gone = gone.iter().map(|name| format!("\n  {name:<24} missing"));
        here.chain(gone).collect()
    }

    fn add(&mut self, mut card: Card) -> Result<(), String> {
        card.clock_ms -= clock_ms();
        let same = |other: &&Card| other.hosts.iter().any(|host| card.hosts.contains(host));
        let by_count = matches!(self.expected, Expected::Count(_));
        if let Some(other) = self.cards.iter().find(same).filter(|_| !by_count) {
            return Err(format!("two launchers say that they are machine {}", other.name()));
        }
        if let Expected::Hosts(hosts) = &self.expected
            && let Some(stranger) = card.hosts.iter().find(|host| !hosts.contains(host))
        {
            return Err(format!("{stranger} is not one of the machines {}", hosts.join(", ")));
        }
        self.cards.push(card);
        Ok(())
    }

    /// Puts the machines in order, as listed or by their ranks.
    fn sort(&mut self) {
        match &self.expected {
            Expected::Hosts(hosts) => self.cards.sort_by_key(|card| {
                hosts.iter().position(|host| card.hosts.contains(host)).unwrap_or(usize::MAX)
            }),
            Expected::Count(_) => {
                // Machines with a number take their place; the others fill the gaps, first come first.
                let mut free: Vec<Card> = Vec::new();
                let mut placed: BTreeMap<usize, Card> = BTreeMap::new();
                for card in std::mem::take(&mut self.cards) {
                    match card.rank {
                        Some(rank) => drop(placed.insert(rank, card)),
                        None => free.push(card),
                    }
                }
                let mut slot = 0;
                for card in free {
                    while placed.contains_key(&slot) {
                        slot += 1;
                    }
                    placed.insert(slot, card);
                }
                self.cards = placed.into_values().collect();
            }
        }
    }

    /// What does not fit together.
    fn conflicts(&self) -> Vec<String> {
        let Some(first) = self.cards.first() else { return vec![] };
        let mut problems = Vec::new();
        for card in &self.cards[1..] {
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
        let ranks: Vec<usize> = self.cards.iter().filter_map(|card| card.rank).collect();
        let mut distinct = ranks.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < ranks.len() {
            problems.push(format!("two machines have the same --rank: {ranks:?}"));
        }
        problems
    }

    fn clock_notes(&self) -> Vec<String> {
        let off = self.cards.iter().filter(|card| card.clock_ms.abs() > CLOCK_LIMIT_MS);
        off.map(|card| {
            let seconds = card.clock_ms as f64 / 1000.0;
            format!(
                "note: the clock of {} is {seconds:+.1} s off; times in logs will not match",
                card.name()
            )
        })
        .collect()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Names those that are missing until all are here or it takes too long.
    fn wait_for_all(&self, timeout: Duration) {
        let start = Instant::now();
        let mut desk = self.lock();
        while !desk.missing().is_empty() && desk.over.is_none() {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                let seconds = timeout.as_secs_f32();
                let table = desk.table();
                self.fail(desk, &format!("not all machines came within {seconds} s:{table}"));
                return;
            }
            let before = Instant::now();
            let wait = left.min(REPORT_EVERY);
            desk = match self.changed.wait_timeout(desk, wait) {
                Ok((desk, _)) => desk,
                Err(poisoned) => poisoned.into_inner().0,
            };
            if before.elapsed() >= REPORT_EVERY {
                let waited = start.elapsed().as_secs();
                eprintln!("waiting for machines ({waited} s):{}", desk.table());
            }
        }
    }

    /// Tells everybody that the job cannot start or go on.
    fn fail(&self, mut desk: MutexGuard<'_, Desk>, reason: &str) {
        let reason = desk.over.get_or_insert_with(|| reason.to_string()).clone();
        let mut waiting = std::mem::take(&mut desk.joining);
        waiting.append(&mut desk.checking);
        waiting.append(&mut desk.watching);
        drop(desk);
        waiting.into_iter().for_each(|responder| answer(responder, &Answer::Stop(reason.clone())));
        self.changed.notify_all();
    }

    fn join(&self, card: Card, responder: Responder) {
        let mut desk = self.lock();
        if let Some(reason) = desk.over.clone() {
            return answer(responder, &Answer::Stop(reason));
        }
        let (session, name) = (responder.peer().session, card.name());
        if let Err(problem) = desk.add(card) {
            return answer(responder, &Answer::Stop(problem));
        }
        desk.sessions.insert(session, (name, true));
        desk.joining.push(responder);
        if desk.missing().is_empty() {
            desk.sort();
            let conflicts = desk.conflicts();
            if !conflicts.is_empty() {
                return self.fail(desk, &conflicts.join("\n"));
            }
            desk.clock_notes().iter().for_each(|note| eprintln!("{note}"));
            desk.has_begun = true;
            let roster = Answer::Roster(desk.cards.clone());
            let waiting = std::mem::take(&mut desk.joining);
            drop(desk);
            waiting.into_iter().for_each(|responder| answer(responder, &roster));
        }
        self.changed.notify_all();
    }

    fn checked(&self, name: String, problems: Vec<String>, responder: Responder) {
        let mut desk = self.lock();
        if let Some(reason) = desk.over.clone() {
            return answer(responder, &Answer::Stop(reason));
        }
        desk.checked.insert(name, problems);
        desk.checking.push(responder);
        if desk.checked.len() < desk.cards.len() {
            return;
        }
        let problems: Vec<String> = desk.checked.values().flatten().cloned().collect();
        if !problems.is_empty() {
            return self.fail(desk, &problems.join("\n"));
        }
        let waiting = std::mem::take(&mut desk.checking);
        drop(desk);
        waiting.into_iter().for_each(|responder| answer(responder, &Answer::Go));
    }

    fn watch(&self, responder: Responder) {
        let mut desk = self.lock();
        match desk.over.clone() {
            Some(reason) => answer(responder, &Answer::Stop(reason)),
            None if desk.leaders_done.len() == desk.cards.len()
                && !desk.told.contains(&responder.peer().session) =>
            {
                desk.told.insert(responder.peer().session);
                answer(responder, &Answer::LeadersDone);
            }
            None => desk.watching.push(responder),
        }
    }

    fn leaders_done(&self, name: String, responder: Responder) {
        let mut desk = self.lock();
        desk.leaders_done.insert(name);
        let mut waiting = Vec::new();
        if desk.leaders_done.len() == desk.cards.len() {
            waiting = std::mem::take(&mut desk.watching);
            desk.told.extend(waiting.iter().map(|responder| responder.peer().session));
        }
        drop(desk);
        answer(responder, &Answer::Go);
        waiting.into_iter().for_each(|responder| answer(responder, &Answer::LeadersDone));
    }

    fn ended(&self, card: EndedCard, responder: Responder) {
        let mut desk = self.lock();
        desk.ended.insert(card.name.clone());
        answer(responder, &Answer::Go);
        if let Some(problem) = card.problem {
            self.fail(desk, &format!("on {}: {problem}", card.name));
        } else {
            self.changed.notify_all();
        }
    }

    fn connected(&self, session: u64) {
        if let Some((_, is_connected)) = self.lock().sessions.get_mut(&session) {
            *is_connected = true;
        }
    }

    fn disconnected(self: &Arc<Shared>, session: u64, how: &Disconnect) {
        let mut desk = self.lock();
        let Some((name, is_connected)) = desk.sessions.get_mut(&session) else { return };
        *is_connected = false;
        let name = name.clone();
        if desk.ended.contains(&name) || matches!(how, Disconnect::Replaced) {
            return;
        }
        if !desk.has_begun {
            // It may come again before the others are there.
            desk.sessions.remove(&session);
            desk.cards.retain(|card| card.name() != name);
            return desk.joining.retain(|responder| responder.peer().session != session);
        }
        if matches!(how, Disconnect::Goodbye) {
            return self.fail(desk, &format!("the launcher on {name} has ended"));
        }
        let shared = self.clone();
        thread::spawn(move || {
            thread::sleep(AWAY_LIMIT);
            let desk = shared.lock();
            if desk.sessions.get(&session).is_some_and(|(_, is_connected)| !is_connected) {
                shared.fail(desk, &format!("the launcher on {name} is gone"));
            }
        });
    }

    /// Until all machines have said how they ended, or are gone.
    fn wait_for_end(&self) {
        let mut desk = self.lock();
        while desk.ended.len() < desk.cards.len() && desk.over.is_none() {
            desk = self.changed.wait(desk).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

fn answer(responder: Responder, answer: &Answer) {
    // A launcher that does not hear it is noticed by its connection.
    if let Ok(bytes) = serde_json::to_vec(answer) {
        let _ = responder.reply(0, &[&bytes]);
    }
}

struct Service(Arc<Shared>);

impl Handler for Service {
    fn request(&self, request: Request, responder: Responder) {
        let bytes = &request.payload[..];
        let malformed = || Answer::Stop("a launcher of another version speaks here".into());
        match request.kind {
            JOIN => match serde_json::from_slice(bytes) {
                Ok(card) => self.0.join(card, responder),
                Err(_) => answer(responder, &malformed()),
            },
            CHECKED => match serde_json::from_slice::<(String, Vec<String>)>(bytes) {
                Ok((name, problems)) => self.0.checked(name, problems, responder),
                Err(_) => answer(responder, &malformed()),
            },
            WATCH => self.0.watch(responder),
            ENDED => match serde_json::from_slice(bytes) {
                Ok(card) => self.0.ended(card, responder),
                Err(_) => answer(responder, &malformed()),
            },
            LEADERS_DONE => match serde_json::from_slice(bytes) {
                Ok(name) => self.0.leaders_done(name, responder),
                Err(_) => answer(responder, &malformed()),
            },
            _ => answer(responder, &malformed()),
        }
    }

    fn connected(&self, peer: &Peer) {
        self.0.connected(peer.session);
    }

    fn disconnected(&self, peer: &Peer, how: &Disconnect) {
        self.0.disconnected(peer.session, how);
    }
}
