//! The first messages of a connection between two ranks: who is there, and does it know the token.
//!
//! ```text
//! dialler                                          acceptor
//!   HELLO    purpose, group, from, to, nonce  -->
//!              <--  ANSWER  rank, nonce  (or REFUSED with a reason)
//!   PROOF    keyed hash of both               -->
//!              <--  WELCOME another keyed hash of both
//!   ABOUT    size, job, transport, machine    <->   (connections for control only)
//! ```
//!
//! Connections of a meeting go on with CARD and ROSTER; see `meet`.
//!
//! The token itself is never sent. The dialler proves first, so that strangers get nothing to guess
//! tokens against. All messages together have one deadline.

use std::io;
use std::time::Instant;

use regatta_net::{JobToken, random};

use crate::config::Transport;
use crate::socket::Socket;

const MAGIC: [u8; 8] = *b"rgtcoll1";
/// Largest message: a job description may be a page of text, a list of endpoints some more.
const MAX_MESSAGE: usize = 64 << 10;
const DIALLER: &str = "collective dialler";
const ACCEPTOR: &str = "collective acceptor";

const HELLO: u8 = 1;
const ANSWER: u8 = 2;
const REFUSED: u8 = 3;
const PROOF: u8 = 4;
const WELCOME: u8 = 5;
const ABOUT: u8 = 6;
const CARD: u8 = 7;
const ROSTER: u8 = 8;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Deaths, stalls, goodbyes.
    Control,
    /// The operations of one group.
    Data(u64),
    /// Finding out where all ranks listen; see `meet`.
    Meeting,
}

/// What a dialler says first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// What ranks tell each other about themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) size: usize,
    pub(crate) job: String,
    pub(crate) transport: Transport,
    /// The machine; zero when unknown.
    pub(crate) host: [u8; 16],
    /// A Unix socket of the same rank, for those on the same machine.
    pub(crate) shortcut: String,
}

/// Why a handshake failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Trying again may help: the other end is not up yet, or went away.
    Later(String),
    /// It does not.
    Never(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Later(match error.kind() {
            io::ErrorKind::TimedOut => "no answer to the handshake".to_owned(),
            io::ErrorKind::UnexpectedEof => {
                "it closed the connection during the handshake".to_owned()
            }
            _ => error.to_string(),
        })
    }
}

impl Hello {
    fn encode(&self, nonce: [u8; 32]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&nonce);
        let (purpose, group) = match self.purpose {
            Purpose::Control => (0u8, 0),
            Purpose::Data(group) => (1, group),
            Purpose::Meeting => (2, 0),
        };
        out.push(purpose);
        out.extend_from_slice(&group.to_le_bytes());
        out.extend_from_slice(&(self.from as u32).to_le_bytes());
        out.extend_from_slice(&(self.to as u32).to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Hello> {
        let mut from = Fields(bytes);
        if from.take::<8>()? != MAGIC {
            return None;
        }
        from.take::<32>()?;
        let [purpose] = from.take::<1>()?;
        let group = u64::from_le_bytes(from.take()?);
        Some(Hello {
            purpose: match purpose {
                0 => Purpose::Control,
                1 => Purpose::Data(group),
                2 => Purpose::Meeting,
                _ => return None,
            },
            from: from.number()?,
            to: from.number()?,
        })
    }
}

impl About {
    fn encode(&self) -> Vec<u8> {
        let mut out = (self.size as u32).to_le_bytes().to_vec();
        out.push(self.transport as u8);
        out.extend_from_slice(&self.host);
        out.extend_from_slice(&(self.shortcut.len() as u32).to_le_bytes());
        out.extend_from_slice(self.shortcut.as_bytes());
        out.extend_from_slice(self.job.as_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<About> {
        let mut from = Fields(bytes);
        let size = from.number()?;
        let [transport] = from.take()?;
        let host = from.take()?;
        let shortcut_len = from.number()?;
        let (shortcut, job) = from.0.split_at_checked(shortcut_len)?;
        Some(About {
            size,
            transport: Transport::from_wire(transport)?,
            host,
            shortcut: str::from_utf8(shortcut).ok()?.to_owned(),
            job: str::from_utf8(job).ok()?.to_owned(),
        })
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn number(&mut self) -> Option<usize> {
        self.take().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }
}

/// The dialler's half.
pub(crate) fn dial(
    socket: &Socket,
    hello: Hello,
    token: &JobToken,
    deadline: Instant,
) -> Result<(), Failure> {
    let nonce = random().map_err(|e| Failure::Never(e.to_string()))?;
    let hello_bytes = hello.encode(nonce);
    send(socket, HELLO, &hello_bytes, deadline)?;
    let answer = expect(socket, ANSWER, deadline)?;
    let parts = [&hello_bytes[..], &answer[..]];
    send(socket, PROOF, &token.mac(DIALLER, &parts), deadline)?;
    let welcome = expect(socket, WELCOME, deadline)?;
    let welcome: [u8; 32] = welcome.try_into().map_err(|_| not_ours())?;
    if !token.verify_mac(ACCEPTOR, &parts, welcome) {
        return Err(Failure::Never("it does not know the job token".to_owned()));
    }
    let rank = answer.first_chunk().map(|rank| u32::from_le_bytes(*rank) as usize);
    match rank {
        Some(rank) if rank == hello.to => Ok(()),
        Some(rank) => Err(Failure::Never(format!(
            "rank {rank} answers there: check the order of the endpoint list"
        ))),
        None => Err(not_ours()),
    }
}

/// The acceptor's half, up to the proof. `admit` may refuse who proved to belong to the job.
pub(crate) fn accept(
    socket: &Socket,
    rank: usize,
    token: &JobToken,
    deadline: Instant,
    admit: impl FnOnce(&Hello) -> Result<(), String>,
) -> Result<Hello, Failure> {
    let hello_bytes = expect(socket, HELLO, deadline)?;
    let hello = Hello::decode(&hello_bytes).ok_or_else(not_ours)?;
    let nonce: [u8; 32] = random().map_err(|e| Failure::Never(e.to_string()))?;
    let answer = [&(rank as u32).to_le_bytes()[..], &nonce].concat();
    send(socket, ANSWER, &answer, deadline)?;
    let proof = expect(socket, PROOF, deadline)?;
    let parts = [&hello_bytes[..], &answer[..]];
    let known = proof.try_into().is_ok_and(|proof| token.verify_mac(DIALLER, &parts, proof));
    let refusal = if known {
        admit(&hello).err()
    } else {
        Some("the job token is another one: it belongs to another job".to_owned())
    };
    if let Some(problem) = refusal {
        // The dialler may have gone: then there is nobody to tell.
        let _ = send(socket, REFUSED, problem.as_bytes(), deadline);
        return Err(Failure::Never(format!("rank {}: {problem}", hello.from)));
    }
    send(socket, WELCOME, &token.mac(ACCEPTOR, &parts), deadline)?;
    Ok(hello)
}

/// Both tell about themselves.
pub(crate) fn introduce(
    socket: &Socket,
    about: &About,
    deadline: Instant,
) -> Result<About, Failure> {
    send(socket, ABOUT, &about.encode(), deadline)?;
    About::decode(&expect(socket, ABOUT, deadline)?).ok_or_else(not_ours)
}

/// Tells how many ranks there are, as this one was told, and where it listens.
pub(crate) fn give_card(
    socket: &Socket,
    size: usize,
    endpoint: &str,
    deadline: Instant,
) -> io::Result<()> {
    let card = [&(size as u32).to_le_bytes()[..], endpoint.as_bytes()].concat();
    send(socket, CARD, &card, deadline)
}

pub(crate) fn take_card(socket: &Socket, deadline: Instant) -> Result<(usize, String), Failure> {
    let card = expect(socket, CARD, deadline)?;
    let mut from = Fields(&card);
    let size = from.number().ok_or_else(not_ours)?;
    let endpoint = str::from_utf8(from.0).map_err(|_| not_ours())?;
    Ok((size, endpoint.to_owned()))
}

/// Tells where all ranks listen.
pub(crate) fn give_roster(
    socket: &Socket,
    endpoints: &[String],
    deadline: Instant,
) -> io::Result<()> {
    send(socket, ROSTER, endpoints.join("\n").as_bytes(), deadline)
}

pub(crate) fn take_roster(socket: &Socket, deadline: Instant) -> Result<Vec<String>, Failure> {
    let roster = String::from_utf8(expect(socket, ROSTER, deadline)?).map_err(|_| not_ours())?;
    Ok(roster.lines().map(str::to_owned).collect())
}

/// Tells that it cannot be, and why.
pub(crate) fn refuse(socket: &Socket, problem: &str, deadline: Instant) -> io::Result<()> {
    send(socket, REFUSED, problem.as_bytes(), deadline)
}

fn not_ours() -> Failure {
    Failure::Never("the answer is not this protocol".to_owned())
}

fn send(socket: &Socket, kind: u8, payload: &[u8], deadline: Instant) -> io::Result<()> {
    let mut message = (payload.len() as u32).to_le_bytes().to_vec();
    message.push(kind);
    message.extend_from_slice(payload);
    socket.write_all(&message, deadline)
}

fn expect(socket: &Socket, wanted: u8, deadline: Instant) -> Result<Vec<u8>, Failure> {
    let mut head = [0; 5];
    socket.read_exact(&mut head, deadline)?;
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if len > MAX_MESSAGE {
        return Err(not_ours());
    }
    let mut payload = vec![0; len];
    socket.read_exact(&mut payload, deadline)?;
    match head[4] {
        kind if kind == wanted => Ok(payload),
        REFUSED => Err(Failure::Never(String::from_utf8_lossy(&payload).into_owned())),
        _ => Err(not_ours()),
    }
}
