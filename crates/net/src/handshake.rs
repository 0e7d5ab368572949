//! The first four frames of every connection of a job. In: a fresh stream. Out: who is at the far
//! end.
//!
//! ```text
//! dialler                                            acceptor
//!   HELLO      nonce, who I am, whom I want    -->
//!              <--   CHALLENGE  nonce, who I am
//!   PROOF      keyed hash of both              -->
//!              <--   WELCOME    another keyed hash of both   (or REFUSED at any point)
//! ```
//!
//! The job token is never sent: each end proves that it knows it by a keyed hash over both nonces,
//! under a different label for each direction. The dialler proves first, so that a stranger who
//! connects to the port gets nothing to guess tokens against. Bytes after the handshake are not
//! signed: the network between the machines of a job is trusted not to alter connections.
//!
//! All four frames together have one deadline, however slowly bytes trickle in.
//!
//! Clients and servers of this crate continue with frames. Other protocols of the job use [`dial`]
//! and [`accept`] on a stream of theirs and continue with bytes of their own: nothing is read
//! beyond the handshake.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::frame::{BadFrame, FrameReader, HEADER_LEN, Header, Patience, ReadError, VERSION, kind};
use crate::identity::{Identity, Role};
use crate::stream::{Stream, write_all};
use crate::sync::after;
use crate::token::{JobToken, Side, random};

/// Limit for payloads before the peer has proved that it belongs here.
const MAX_PAYLOAD: u64 = 64 << 10;
/// How long a refused peer gets to read the refusal.
const LINGER: Duration = Duration::from_millis(500);
/// Protocol of connections between [`Client`](crate::Client) and [`Server`](crate::Server). Other
/// protocols of the job have other numbers.
pub const REQUESTS: u8 = 0;

/// What each end says first. Anybody who connects, or listens at the endpoint, can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Who says it.
    pub from: Identity,
    /// To whom: if somebody else is there, there is no connection.
    pub to: Identity,
    /// What the connection is for: [`REQUESTS`], or a number of the layer above.
    pub protocol: u8,
    /// Details, in the words of the protocol.
    pub note: Vec<u8>,
}

impl Hello {
    fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut out = random::<32>()?.to_vec();
        for identity in [self.from, self.to] {
            out.push(identity.role as u8);
            out.extend_from_slice(&identity.index.to_le_bytes());
        }
        out.push(self.protocol);
        out.extend_from_slice(&self.note);
        Ok(out)
    }

    fn decode(bytes: &[u8]) -> Result<Hello, BadFrame> {
        let mut fields = Decoder::new(bytes, "hello");
        fields.take::<32>()?;
        let (from, to, [protocol]) = (fields.identity()?, fields.identity()?, fields.take()?);
        Ok(Hello { from, to, protocol, note: fields.rest.to_vec() })
    }
}

/// Why an acceptor turns a dialler away, as sent to it.
#[derive(Debug, Clone)]
pub enum Refusal {
    /// It did not prove that it knows the job token.
    Token,
    /// Not now: worth trying again.
    Busy(String),
    /// It cannot be, and why.
    Denied(String),
}

impl Refusal {
    fn encode(&self) -> Vec<u8> {
        match self {
            Refusal::Token => vec![1],
            Refusal::Busy(text) => [&[2], text.as_bytes()].concat(),
            Refusal::Denied(text) => [&[3], text.as_bytes()].concat(),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Refusal, BadFrame> {
        let mut from = Decoder::new(bytes, "refusal");
        Ok(match from.take::<1>()?[0] {
            1 => Refusal::Token,
            2 => Refusal::Busy(from.text()?),
            _ => Refusal::Denied(from.text()?),
        })
    }
}

/// Takes fields off the front of a payload; what is missing is named by `what`.
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(rest: &'a [u8], what: &'static str) -> Decoder<'a> {
        Decoder { rest, what }
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], BadFrame> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(BadFrame::Malformed(self.what))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, BadFrame> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn identity(&mut self) -> Result<Identity, BadFrame> {
        let [code] = self.take()?;
        let index = u32::from_le_bytes(self.take()?);
        let role = Role::from_wire(code).ok_or(BadFrame::Malformed(self.what))?;
        Ok(Identity { role, index })
    }

    pub(crate) fn end(&self) -> Result<(), BadFrame> {
        if self.rest.is_empty() { Ok(()) } else { Err(BadFrame::Malformed(self.what)) }
    }

    /// The rest, as text.
    pub(crate) fn text(&mut self) -> Result<String, BadFrame> {
        let text = str::from_utf8(self.rest).map_err(|_| BadFrame::Malformed(self.what))?;
        Ok(text.to_owned())
    }
}

/// One end of a handshake in flight.
pub(crate) struct Talk {
    pub(crate) stream: Arc<dyn Stream>,
    pub(crate) reader: FrameReader,
    deadline: Instant,
    limit: Duration,
    sender: u32,
}

impl Talk {
    pub(crate) fn new(
        stream: Arc<dyn Stream>,
        reader: FrameReader,
        limit: Duration,
        me: Identity,
    ) -> Talk {
        Talk { stream, reader, deadline: after(limit), limit, sender: me.index }
    }

    fn send(&self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        let payload_len = payload.len() as u64;
        let header = Header { kind, sender: self.sender, payload_len, ..Header::default() };
        let header = header.encode();
        let mut bufs = [IoSlice::new(&header), IoSlice::new(payload)];
        write_all(&*self.stream, &mut bufs, || Err(io::ErrorKind::TimedOut.into()))
    }

    /// The next frame, or `None` when the peer closed the connection instead.
    fn receive(&mut self) -> Result<Option<(u16, Vec<u8>)>, ReadError> {
        let patience = Patience::Deadline(self.deadline, self.limit);
        let Some(header) = self.reader.header(&*self.stream, MAX_PAYLOAD, patience)? else {
            return Ok(None);
        };
        let mut payload = vec![0; header.payload_len as usize];
        self.reader.payload(&*self.stream, &mut payload, patience)?;
        Ok(Some((header.kind, payload)))
    }
}

/// Why one attempt to connect failed.
#[derive(Debug)]
pub enum DialError {
    /// Trying again may help: the other end is not up yet, or went away.
    Later(String),
    /// Trying again does not help.
    Never(Error),
}

/// The dialler's half, for a protocol of its own. Returns the note of the acceptor.
///
/// # Errors
/// Whether trying again may help, and what is wrong. `endpoint` names the far end in messages.
pub fn dial(
    stream: Arc<dyn Stream>,
    hello: &Hello,
    endpoint: &str,
    token: &JobToken,
    limit: Duration,
) -> Result<Vec<u8>, DialError> {
    let talk = Talk::new(stream, FrameReader::without_staging(), limit, hello.from);
    let mut greeting = Greeting::new(talk, hello, endpoint.to_owned())?;
    let note = std::mem::take(&mut greeting.note);
    greeting.finish(token).map(|_| note)
}

/// The dialler's half, stopped after the challenge: the caller may decide not to continue.
pub(crate) struct Greeting {
    talk: Talk,
    /// What the acceptor says of itself.
    pub(crate) note: Vec<u8>,
    hello: Vec<u8>,
    challenge: Vec<u8>,
    server: Identity,
    endpoint: String,
}

impl Greeting {
    /// Says hello and reads the challenge.
    pub(crate) fn new(
        mut talk: Talk,
        hello: &Hello,
        endpoint: String,
    ) -> Result<Greeting, DialError> {
        let (server, expected) = (hello.to, hello.to);
        let hello = hello.encode().map_err(DialError::Never)?;
        // A server that is full or of another version may refuse before it has read the hello.
        let sent = talk.send(kind::HELLO, &hello);
        let challenge = expect(&mut talk, kind::CHALLENGE, server, &endpoint)?;
        sent.map_err(|e| DialError::Later(e.to_string()))?;
        let theirs = Hello::decode(&challenge).map_err(|bad| not_ours(server, &endpoint, &bad))?;
        if theirs.from != expected {
            let actual = theirs.from;
            return Err(DialError::Never(Error::WrongServer { expected, actual, endpoint }));
        }
        Ok(Greeting { talk, note: theirs.note, hello, challenge, server, endpoint })
    }

    /// Proves that this end knows the token and checks that the other one does.
    pub(crate) fn finish(mut self, token: &JobToken) -> Result<Talk, DialError> {
        let proof = token.prove(Side::Dialler, &self.hello, &self.challenge);
        let sent = self.talk.send(kind::PROOF, &proof);
        let welcome = expect(&mut self.talk, kind::WELCOME, self.server, &self.endpoint)?;
        sent.map_err(|e| DialError::Later(e.to_string()))?;
        if !token.verify(Side::Acceptor, &self.hello, &self.challenge, &welcome) {
            let (server, endpoint) = (self.server, self.endpoint);
            return Err(DialError::Never(Error::ImposterServer { server, endpoint }));
        }
        Ok(self.talk)
    }

    /// The note makes no sense to the protocol.
    pub(crate) fn not_ours(&self, bad: &BadFrame) -> DialError {
        not_ours(self.server, &self.endpoint, bad)
    }

    /// Says that this connection will not be used after all.
    pub(crate) fn leave(mut self) {
        self.talk.deadline = after(LINGER);
        // The acceptor notices the closed connection too.
        let _ = self.talk.send(kind::GOODBYE, &[]);
    }
}

fn expect(
    talk: &mut Talk,
    expected: u16,
    server: Identity,
    endpoint: &str,
) -> Result<Vec<u8>, DialError> {
    match talk.receive() {
        Ok(Some((kind, payload))) if kind == expected => Ok(payload),
        Ok(Some((kind::REFUSED, payload))) => Err(match Refusal::decode(&payload) {
            Ok(refusal) => refused(refusal, server, endpoint),
            Err(bad) => not_ours(server, endpoint, &bad),
        }),
        Ok(Some((kind, _))) => Err(not_ours(server, endpoint, &BadFrame::Unexpected { kind })),
        Ok(None) => {
            Err(DialError::Later("it closed the connection during the handshake".to_owned()))
        }
        Err(ReadError::Bad(BadFrame::Version(theirs))) => {
            let endpoint = endpoint.to_owned();
            Err(DialError::Never(Error::WrongVersion { endpoint, ours: VERSION, theirs }))
        }
        Err(ReadError::Bad(bad)) => Err(not_ours(server, endpoint, &bad)),
        Err(ReadError::Silence(limit)) => Err(DialError::Later(format!(
            "connected, but no answer to the handshake within {} s",
            limit.as_secs_f32()
        ))),
        Err(error) => Err(DialError::Later(error.to_string())),
    }
}

fn refused(refusal: Refusal, server: Identity, endpoint: &str) -> DialError {
    let endpoint = endpoint.to_owned();
    DialError::Never(match refusal {
        Refusal::Token => Error::WrongToken { server, endpoint },
        Refusal::Denied(problem) => Error::Refused { server, endpoint, problem },
        Refusal::Busy(problem) => return DialError::Later(problem),
    })
}

fn not_ours(server: Identity, endpoint: &str, bad: &BadFrame) -> DialError {
    let endpoint = endpoint.to_owned();
    DialError::Never(Error::NotOurProtocol { server, endpoint, problem: bad.to_string() })
}

/// Why an acceptor does not take a connection.
#[derive(Debug)]
pub enum Rejection {
    /// The dialler left by itself and there is nothing to report: a probe, or it took the shortcut.
    Left,
    /// Something to log. The dialler has been notified.
    Refused(String),
}

/// The acceptor's half, for a protocol of its own. `note` is what it says of itself. `admit` may
/// refuse who has proved to belong to the job and wants this process.
///
/// # Errors
/// Why the connection is of no use.
pub fn accept(
    stream: Arc<dyn Stream>,
    (me, note): (Identity, &[u8]),
    token: &JobToken,
    limit: Duration,
    admit: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<Hello, Rejection> {
    let mut talk = Talk::new(stream, FrameReader::without_staging(), limit, me);
    talk.accept((me, note), token, admit)
}

impl Talk {
    pub(crate) fn accept(
        &mut self,
        me: (Identity, &[u8]),
        token: &JobToken,
        admit: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Result<Hello, Rejection> {
        self.accept_or_refuse(me, token, admit).map_err(|(rejection, refusal)| {
            if let Some(refusal) = refusal {
                self.refuse(&refusal);
            }
            rejection
        })
    }

    fn accept_or_refuse(
        &mut self,
        (me, note): (Identity, &[u8]),
        token: &JobToken,
        admit: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Result<Hello, (Rejection, Option<Refusal>)> {
        let Some((first, hello_bytes)) = self.receive().map_err(unreadable)? else {
            return Err((Rejection::Left, None));
        };
        if first != kind::HELLO {
            return Err(unreadable(BadFrame::Unexpected { kind: first }.into()));
        }
        let hello = Hello::decode(&hello_bytes).map_err(|bad| unreadable(bad.into()))?;
        let dialler = hello.from;
        let reject = |problem: String, refusal| (Rejection::Refused(problem), refusal);
        let gone = |e: io::Error| reject(format!("{dialler} left the handshake: {e}"), None);

        let (protocol, note) = (hello.protocol, note.to_vec());
        let challenge = Hello { from: me, to: dialler, protocol, note };
        let challenge = challenge.encode().map_err(|e| reject(e.to_string(), None))?;
        self.send(kind::CHALLENGE, &challenge).map_err(gone)?;
        if hello.to != me {
            // The challenge says who is here.
            return Err(reject(format!("{dialler} wanted {}, this is {me}", hello.to), None));
        }
        let proof = match self.receive().map_err(unreadable)? {
            Some((kind::PROOF, proof)) => proof,
            Some((kind::GOODBYE, _)) => return Err((Rejection::Left, None)),
            Some((kind, _)) => return Err(unreadable(BadFrame::Unexpected { kind }.into())),
            None => return Err(reject(format!("{dialler} left the handshake"), None)),
        };
        if !token.verify(Side::Dialler, &hello_bytes, &challenge, &proof) {
            let problem = format!("{dialler} presented a wrong job token");
            return Err(reject(problem, Some(Refusal::Token)));
        }
        admit(&hello).map_err(|refusal| {
            let (Refusal::Denied(why) | Refusal::Busy(why)) = &refusal else {
                return reject(format!("{dialler} is refused"), Some(refusal));
            };
            reject(format!("{dialler}: {why}"), Some(refusal))
        })?;
        let welcome = token.prove(Side::Acceptor, &hello_bytes, &challenge);
        self.send(kind::WELCOME, &welcome).map_err(gone)?;
        Ok(hello)
    }

    /// Sends the refusal and gives the peer a moment to read it: closing a socket that holds unread
    /// bytes resets the connection, which may overtake the refusal.
    fn refuse(&mut self, refusal: &Refusal) {
        self.deadline = self.deadline.min(Instant::now() + LINGER);
        if self.send(kind::REFUSED, &refusal.encode()).is_err() {
            return;
        }
        self.stream.shutdown(Shutdown::Write);
        let mut sink = [0; HEADER_LEN * 64];
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stream.set_read_timeout(Some(left)).is_err() {
                return;
            }
            if !matches!(self.stream.read(&mut sink), Ok(n) if n > 0) {
                return;
            }
        }
    }
}

/// Turns a connection away before its handshake.
pub(crate) fn turn_away(stream: Arc<dyn Stream>, me: Identity, why: &str) {
    let mut talk = Talk::new(stream, FrameReader::without_staging(), LINGER, me);
    talk.refuse(&Refusal::Busy(why.to_owned()));
}

/// What an acceptor does about bytes that are no handshake.
fn unreadable(error: ReadError) -> (Rejection, Option<Refusal>) {
    let refusal = match &error {
        // A client of another version reads no further than the version in our header.
        ReadError::Bad(bad) => Some(Refusal::Denied(bad.to_string())),
        _ => None,
    };
    (Rejection::Refused(format!("handshake: {error}")), refusal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pair;

    const LIMIT: Duration = Duration::from_secs(10);
    const SERVER: Identity = Identity { role: Role::Server, index: 1 };

    fn hello() -> Hello {
        Hello { from: Identity::worker(3), to: SERVER, protocol: 9, note: b"note".to_vec() }
    }

    /// An acceptor that knows the token, and what the dialler hears of it.
    fn meet(
        admit: impl FnOnce(&Hello) -> Result<(), Refusal> + Send + 'static,
    ) -> (Result<Vec<u8>, DialError>, Result<Hello, Rejection>) {
        let (near, far) = pair("here");
        let token = JobToken::new("secret");
        let theirs = token.clone();
        let acceptor = std::thread::spawn(move || {
            let far: Arc<dyn Stream> = Arc::new(far);
            let hello = accept(far.clone(), (SERVER, b"of the server"), &theirs, LIMIT, admit)?;
            far.write(&[IoSlice::new(b"at once")], crate::Wait::Yes).unwrap();
            Ok(hello)
        });
        let near: Arc<dyn Stream> = Arc::new(near);
        let note = dial(near.clone(), &hello(), "there", &token, LIMIT);
        if note.is_ok() {
            let mut bytes = [0; 7];
            assert_eq!(near.read(&mut bytes).unwrap(), 7);
            assert_eq!(&bytes, b"at once");
        }
        drop(near);
        (note, acceptor.join().unwrap())
    }

    #[test]
    fn own_frames_round_trip_and_short_ones_are_refused() {
        let bytes = hello().encode().unwrap();
        assert_eq!(Hello::decode(&bytes), Ok(hello()));
        for len in 0..bytes.len() - hello().note.len() {
            assert!(Hello::decode(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn both_ends_hear_the_notes_and_nothing_is_read_beyond_the_handshake() {
        let (note, theirs) = meet(|_| Ok(()));
        assert_eq!(note.unwrap(), b"of the server");
        assert_eq!(theirs.unwrap(), hello());
    }

    #[test]
    fn who_is_not_admitted_hears_why() {
        let (note, theirs) = meet(|_| Err(Refusal::Denied("not today".to_owned())));
        let Err(DialError::Never(error)) = note else { panic!("{note:?}") };
        assert_eq!(error.to_string(), "server 1 at there refused this process: not today");
        let Err(Rejection::Refused(problem)) = theirs else { panic!("{theirs:?}") };
        assert_eq!(problem, "worker 3: not today");
        let (note, _) = meet(|_| Err(Refusal::Busy("later".to_owned())));
        assert!(matches!(note, Err(DialError::Later(why)) if why == "later"));
    }

    #[test]
    fn a_server_that_does_not_know_the_token_is_not_believed() {
        let (near, far) = pair("imposter");
        let imposter = std::thread::spawn(move || {
            let mut talk = Talk::new(Arc::new(far), FrameReader::new(), LIMIT, SERVER);
            talk.receive().unwrap().unwrap();
            let challenge = Hello { from: SERVER, to: hello().from, ..hello() };
            talk.send(kind::CHALLENGE, &challenge.encode().unwrap()).unwrap();
            let (_, proof) = talk.receive().unwrap().unwrap();
            // All it can do is to send the client's own proof back.
            talk.send(kind::WELCOME, &proof).unwrap();
        });
        let outcome = dial(Arc::new(near), &hello(), "there", &JobToken::new("secret"), LIMIT);
        assert!(matches!(outcome, Err(DialError::Never(Error::ImposterServer { .. }))));
        imposter.join().unwrap();
    }
}
