//! The first four frames of a connection. In: a fresh stream. Out: who is at the far end.
//!
//! ```text
//! client                                             server
//!   HELLO      nonce, who I am, whom I want    -->
//!              <--   CHALLENGE  nonce, who I am, incarnation, shortcut
//!   PROOF      keyed hash of both              -->
//!              <--   WELCOME    another keyed hash of both   (or REFUSED at any point)
//! ```
//!
//! The job token is never sent: each end proves that it knows it by a keyed hash over both nonces,
//! under a different label for each direction. The client proves first, so that a stranger who
//! connects to the port gets nothing to guess tokens against. Frames after the handshake are not
//! signed: the network between the machines of a job is trusted not to alter connections.
//!
//! All four frames together have one deadline, however slowly bytes trickle in.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::frame::{BadFrame, FrameReader, HEADER_LEN, Header, Patience, ReadError, VERSION, kind};
use crate::identity::{Identity, Role};
use crate::stream::{Stream, write_all};
use crate::sync::after;

/// Limit for payloads before the peer has proved that it belongs here.
pub(crate) const MAX_HANDSHAKE_PAYLOAD: u64 = 64 << 10;
/// How long a refused peer gets to read the refusal.
const LINGER: Duration = Duration::from_millis(500);

/// The secret that all processes of a job share.
///
/// It should be random: whoever can connect to a server may try tokens at the speed of the network.
#[derive(Clone)]
pub struct JobToken {
    key: [u8; 32],
}

impl JobToken {
    /// A token from any bytes; the empty token is the same for everybody.
    pub fn new(secret: impl AsRef<[u8]>) -> JobToken {
        JobToken { key: blake3::derive_key("regatta net 2025 job token", secret.as_ref()) }
    }

    /// A keyed hash over `parts`, by which other protocols of the job prove that they know the
    /// token. Each use and each direction takes its own `label`, and the parts must contain what the
    /// other end chose at random.
    pub fn mac(&self, label: &str, parts: &[&[u8]]) -> [u8; 32] {
        *self.keyed_hash(label, parts).as_bytes()
    }

    /// Whether `mac` is what [`mac`](JobToken::mac) returns for the same; in constant time.
    pub fn verify_mac(&self, label: &str, parts: &[&[u8]], mac: [u8; 32]) -> bool {
        self.keyed_hash(label, parts) == blake3::Hash::from_bytes(mac)
    }

    fn keyed_hash(&self, label: &str, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for part in [label.as_bytes()].iter().chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize()
    }

    fn sign(&self, label: &[u8; 8], hello: &[u8], challenge: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(label);
        hasher.update(&(hello.len() as u64).to_le_bytes());
        hasher.update(hello);
        hasher.update(challenge);
        hasher.finalize()
    }

    /// In constant time.
    fn verify(&self, label: &[u8; 8], hello: &[u8], challenge: &[u8], proof: &[u8]) -> bool {
        let Ok(proof) = <[u8; 32]>::try_from(proof) else { return false };
        // Comparing a `blake3::Hash` takes the same time wherever they differ.
        self.sign(label, hello, challenge) == blake3::Hash::from_bytes(proof)
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobToken(secret)")
    }
}

const CLIENT_LABEL: &[u8; 8] = b"client->";
const SERVER_LABEL: &[u8; 8] = b"server->";

/// What a client says first.
#[derive(Debug, Clone)]
pub(crate) struct Hello {
    pub(crate) session: u64,
    pub(crate) me: Identity,
    pub(crate) wanted: Identity,
    pub(crate) max_payload: u64,
    pub(crate) peer_timeout: Duration,
}

impl Hello {
    fn encode(&self, nonce: [u8; 32]) -> Vec<u8> {
        let mut out = nonce.to_vec();
        out.extend_from_slice(&self.session.to_le_bytes());
        put_identity(&mut out, self.me);
        put_identity(&mut out, self.wanted);
        out.extend_from_slice(&self.max_payload.to_le_bytes());
        put_duration(&mut out, self.peer_timeout);
        out
    }

    fn decode(bytes: &[u8]) -> Result<Hello, BadFrame> {
        let mut from = Decoder { rest: bytes, what: "hello" };
        from.take::<32>()?;
        let hello = Hello {
            session: from.u64()?,
            me: from.identity()?,
            wanted: from.identity()?,
            max_payload: from.u64()?,
            peer_timeout: from.duration()?,
        };
        from.end()?;
        Ok(hello)
    }
}

/// What a server says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Challenge {
    pub(crate) server: Identity,
    /// Random per server object: another one means another memory.
    pub(crate) incarnation: u64,
    pub(crate) max_payload: u64,
    /// Silence after which it gives a client up.
    pub(crate) peer_timeout: Duration,
    /// The machine; zero when unknown.
    pub(crate) host: [u8; 16],
    /// Name of an abstract Unix socket of the same server, for clients on the same machine.
    pub(crate) shortcut: Option<String>,
}

impl Challenge {
    fn encode(&self, nonce: [u8; 32]) -> Vec<u8> {
        let mut out = nonce.to_vec();
        put_identity(&mut out, self.server);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.max_payload.to_le_bytes());
        put_duration(&mut out, self.peer_timeout);
        out.extend_from_slice(&self.host);
        out.extend_from_slice(self.shortcut.as_deref().unwrap_or_default().as_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Challenge, BadFrame> {
        let mut from = Decoder { rest: bytes, what: "challenge" };
        from.take::<32>()?;
        let server = from.identity()?;
        let incarnation = from.u64()?;
        let max_payload = from.u64()?;
        let peer_timeout = from.duration()?;
        let host = from.take()?;
        let shortcut = Some(from.text()?).filter(|name| !name.is_empty());
        Ok(Challenge { server, incarnation, max_payload, peer_timeout, host, shortcut })
    }
}

/// Why a server turns a client away, as sent to it.
#[derive(Debug, Clone)]
enum Refusal {
    Token,
    WrongServer {
        actual: Identity,
    },
    Malformed(String),
    /// Worth trying again later.
    Busy(String),
}

impl Refusal {
    fn encode(&self) -> Vec<u8> {
        match self {
            Refusal::Token => vec![1],
            Refusal::WrongServer { actual } => {
                let mut out = vec![2];
                put_identity(&mut out, *actual);
                out
            }
            Refusal::Malformed(text) => [&[3], text.as_bytes()].concat(),
            Refusal::Busy(text) => [&[4], text.as_bytes()].concat(),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Refusal, BadFrame> {
        let mut from = Decoder { rest: bytes, what: "refusal" };
        Ok(match from.take::<1>()?[0] {
            1 => Refusal::Token,
            2 => Refusal::WrongServer { actual: from.identity()? },
            3 => Refusal::Malformed(from.text()?),
            _ => Refusal::Busy(from.text()?),
        })
    }
}

fn put_identity(out: &mut Vec<u8>, identity: Identity) {
    out.push(identity.role as u8);
    out.extend_from_slice(&identity.index.to_le_bytes());
}

fn put_duration(out: &mut Vec<u8>, duration: Duration) {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    out.extend_from_slice(&millis.to_le_bytes());
}

/// How often to be heard by a peer, so that neither end counts the other as gone.
pub(crate) fn beat_every(ours: Duration, theirs: Duration) -> Duration {
    (ours.min(theirs) / 4).max(Duration::from_millis(5))
}

struct Decoder<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl Decoder<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadFrame> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(BadFrame::Malformed(self.what))?;
        self.rest = rest;
        Ok(*head)
    }

    fn u64(&mut self) -> Result<u64, BadFrame> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn duration(&mut self) -> Result<Duration, BadFrame> {
        self.u64().map(Duration::from_millis)
    }

    fn identity(&mut self) -> Result<Identity, BadFrame> {
        let [code] = self.take()?;
        let index = u32::from_le_bytes(self.take()?);
        let role = Role::from_wire(code).ok_or(BadFrame::Malformed(self.what))?;
        Ok(Identity { role, index })
    }

    /// The rest, as text.
    fn text(&mut self) -> Result<String, BadFrame> {
        let text = str::from_utf8(self.rest).map_err(|_| BadFrame::Malformed(self.what))?;
        Ok(text.to_owned())
    }

    fn end(&self) -> Result<(), BadFrame> {
        if self.rest.is_empty() { Ok(()) } else { Err(BadFrame::Malformed(self.what)) }
    }
}

/// One end of a handshake under way.
struct Talk<'a> {
    stream: &'a dyn Stream,
    reader: &'a mut FrameReader,
    deadline: Instant,
    limit: Duration,
    sender: u32,
}

impl<'a> Talk<'a> {
    fn new(
        stream: &'a dyn Stream,
        reader: &'a mut FrameReader,
        limit: Duration,
        sender: u32,
    ) -> Talk<'a> {
        Talk { stream, reader, deadline: after(limit), limit, sender }
    }

    fn send(&self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        let header = Header {
            kind,
            sender: self.sender,
            payload_len: payload.len() as u64,
            ..Header::default()
        };
        let header = header.encode();
        let mut bufs = [IoSlice::new(&header), IoSlice::new(payload)];
        write_all(self.stream, &mut bufs, || Err(io::ErrorKind::TimedOut.into()))
    }

    /// The next frame, or `None` when the peer closed the connection instead.
    fn receive(&mut self) -> Result<Option<(u16, Vec<u8>)>, ReadError> {
        let patience = Patience::Deadline(self.deadline, self.limit);
        let Some(header) = self.reader.header(self.stream, MAX_HANDSHAKE_PAYLOAD, patience)? else {
            return Ok(None);
        };
        let mut payload = vec![0; header.payload_len as usize];
        self.reader.payload(self.stream, &mut payload, patience)?;
        Ok(Some((header.kind, payload)))
    }
}

/// Why one attempt to connect failed.
#[derive(Debug)]
pub(crate) enum DialError {
    /// Trying again may help.
    Later(String),
    /// Trying again does not help.
    Never(Error),
}

/// The client's half, stopped after the challenge: the caller may take the shortcut instead.
pub(crate) struct Greeted {
    stream: Box<dyn Stream>,
    reader: FrameReader,
    pub(crate) challenge: Challenge,
    hello: Vec<u8>,
    challenge_bytes: Vec<u8>,
    wanted: Identity,
    me: Identity,
    endpoint: String,
    deadline: Instant,
    limit: Duration,
}

/// A connection whose two ends know each other.
pub(crate) struct Established {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) reader: FrameReader,
    pub(crate) incarnation: u64,
    pub(crate) max_payload: u64,
    pub(crate) peer_timeout: Duration,
}

/// Says hello and reads the challenge.
pub(crate) fn greet(
    stream: Box<dyn Stream>,
    hello: &Hello,
    endpoint: String,
    limit: Duration,
) -> Result<Greeted, DialError> {
    let mut reader = FrameReader::new();
    let mut talk = Talk::new(&*stream, &mut reader, limit, hello.me.index);
    let deadline = talk.deadline;
    let hello_bytes = hello.encode(random().map_err(DialError::Never)?);
    // A server that is full or of another version may refuse before it has read the hello.
    let sent = talk.send(kind::HELLO, &hello_bytes);
    let challenge_bytes = expect(&mut talk, kind::CHALLENGE, hello.wanted, &endpoint)?;
    sent.map_err(|e| DialError::Later(e.to_string()))?;
    let challenge = Challenge::decode(&challenge_bytes)
        .map_err(|bad| not_ours(hello.wanted, &endpoint, &bad))?;
    Ok(Greeted {
        stream,
        reader,
        challenge,
        hello: hello_bytes,
        challenge_bytes,
        wanted: hello.wanted,
        me: hello.me,
        endpoint,
        deadline,
        limit,
    })
}

impl Greeted {
    /// Proves that this end knows the token and checks that the other one does.
    pub(crate) fn finish(mut self, token: &JobToken) -> Result<Established, DialError> {
        let proof = token.sign(CLIENT_LABEL, &self.hello, &self.challenge_bytes);
        let mut talk = Talk::new(&*self.stream, &mut self.reader, self.limit, self.me.index);
        talk.deadline = self.deadline;
        let sent = talk.send(kind::PROOF, proof.as_bytes());
        let welcome = expect(&mut talk, kind::WELCOME, self.wanted, &self.endpoint)?;
        sent.map_err(|e| DialError::Later(e.to_string()))?;
        let actual = self.challenge.server;
        let endpoint = self.endpoint;
        if !token.verify(SERVER_LABEL, &self.hello, &self.challenge_bytes, &welcome) {
            return Err(DialError::Never(Error::ImposterServer { server: actual, endpoint }));
        }
        if actual != self.wanted {
            let expected = self.wanted;
            return Err(DialError::Never(Error::WrongServer { expected, actual, endpoint }));
        }
        Ok(Established {
            stream: self.stream,
            reader: self.reader,
            incarnation: self.challenge.incarnation,
            max_payload: self.challenge.max_payload,
            peer_timeout: self.challenge.peer_timeout,
        })
    }

    /// Tells the server that this connection will not be used after all.
    pub(crate) fn leave(mut self) {
        let talk = Talk::new(&*self.stream, &mut self.reader, LINGER, self.me.index);
        // The server notices the closed connection too.
        let _ = talk.send(kind::GOODBYE, &[]);
    }
}

fn expect(
    talk: &mut Talk<'_>,
    wanted_kind: u16,
    server: Identity,
    endpoint: &str,
) -> Result<Vec<u8>, DialError> {
    match talk.receive() {
        Ok(Some((kind, payload))) if kind == wanted_kind => Ok(payload),
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
        Refusal::WrongServer { actual } => {
            Error::WrongServer { expected: server, actual, endpoint }
        }
        Refusal::Malformed(problem) => Error::NotOurProtocol { server, endpoint, problem },
        Refusal::Busy(problem) => return DialError::Later(problem),
    })
}

fn not_ours(server: Identity, endpoint: &str, bad: &BadFrame) -> DialError {
    let endpoint = endpoint.to_owned();
    DialError::Never(Error::NotOurProtocol { server, endpoint, problem: bad.to_string() })
}

/// What a server knows of a client after the handshake.
pub(crate) struct Accepted {
    pub(crate) identity: Identity,
    pub(crate) session: u64,
    pub(crate) max_payload: u64,
    pub(crate) peer_timeout: Duration,
}

/// Why a server does not take a connection.
pub(crate) enum Turned {
    /// It left by itself and there is nothing to report: a probe, or it took the shortcut.
    Away,
    /// Something to log.
    Down(String),
}

/// The server's half.
pub(crate) fn accept(
    stream: &dyn Stream,
    reader: &mut FrameReader,
    me: &Challenge,
    token: &JobToken,
    limit: Duration,
) -> Result<Accepted, Turned> {
    let mut talk = Talk::new(stream, reader, limit, me.server.index);
    let outcome = accept_or_refuse(&mut talk, me, token);
    match outcome {
        Ok(accepted) => Ok(accepted),
        Err((turned, refusal)) => {
            if let Some(refusal) = refusal {
                refuse(&mut talk, &refusal);
            }
            Err(turned)
        }
    }
}

/// Turns a connection away before its handshake.
pub(crate) fn turn_away(stream: &dyn Stream, me: &Challenge, why: &str) {
    let mut reader = FrameReader::new();
    let mut talk = Talk::new(stream, &mut reader, LINGER, me.server.index);
    refuse(&mut talk, &Refusal::Busy(why.to_owned()));
}

fn accept_or_refuse(
    talk: &mut Talk<'_>,
    me: &Challenge,
    token: &JobToken,
) -> Result<Accepted, (Turned, Option<Refusal>)> {
    let Some((first, hello_bytes)) = talk.receive().map_err(unreadable)? else {
        return Err((Turned::Away, None));
    };
    if first != kind::HELLO {
        return Err(unreadable(BadFrame::Unexpected { kind: first }.into()));
    }
    let hello = Hello::decode(&hello_bytes).map_err(|bad| unreadable(bad.into()))?;

    let challenge = me.encode(random().map_err(|e| (Turned::Down(e.to_string()), None))?);
    let gone = |e: io::Error| (Turned::Down(format!("{} left the handshake: {e}", hello.me)), None);
    talk.send(kind::CHALLENGE, &challenge).map_err(gone)?;
    let proof = match talk.receive().map_err(unreadable)? {
        Some((kind::PROOF, proof)) => proof,
        Some((kind::GOODBYE, _)) => return Err((Turned::Away, None)),
        Some((kind, _)) => return Err(unreadable(BadFrame::Unexpected { kind }.into())),
        None => return Err((Turned::Down(format!("{} left the handshake", hello.me)), None)),
    };
    if !token.verify(CLIENT_LABEL, &hello_bytes, &challenge, &proof) {
        let problem = format!("{} presented a wrong job token", hello.me);
        return Err((Turned::Down(problem), Some(Refusal::Token)));
    }
    if hello.wanted != me.server {
        let problem = format!("{} wanted {}, this is {}", hello.me, hello.wanted, me.server);
        return Err((Turned::Down(problem), Some(Refusal::WrongServer { actual: me.server })));
    }
    let welcome = token.sign(SERVER_LABEL, &hello_bytes, &challenge);
    talk.send(kind::WELCOME, welcome.as_bytes()).map_err(gone)?;
    Ok(Accepted {
        identity: hello.me,
        session: hello.session,
        max_payload: hello.max_payload,
        peer_timeout: hello.peer_timeout,
    })
}

/// What a server does about bytes that are no handshake.
fn unreadable(error: ReadError) -> (Turned, Option<Refusal>) {
    let refusal = match &error {
        // A client of another version reads no further than the version in our header.
        ReadError::Bad(bad) => Some(Refusal::Malformed(bad.to_string())),
        _ => None,
    };
    (Turned::Down(format!("handshake: {error}")), refusal)
}

/// Sends the refusal and gives the peer a moment to read it: closing a socket that holds unread
/// bytes resets the connection, which may overtake the refusal.
fn refuse(talk: &mut Talk<'_>, refusal: &Refusal) {
    talk.deadline = talk.deadline.min(Instant::now() + LINGER);
    if talk.send(kind::REFUSED, &refusal.encode()).is_err() {
        return;
    }
    talk.stream.shutdown(Shutdown::Write);
    let mut sink = [0; HEADER_LEN * 64];
    loop {
        let left = talk.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || talk.stream.set_read_timeout(Some(left)).is_err() {
            return;
        }
        if !matches!(talk.stream.read(&mut sink), Ok(n) if n > 0) {
            return;
        }
    }
}

/// Bytes that nobody can guess.
///
/// # Errors
/// [`Error::Internal`] when the system has none.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::Internal(format!("no random bytes: {e}"))),
        }
    }
    Ok(bytes)
}

/// The machine this process runs on, since its last boot; zero when the system does not say.
pub fn host() -> [u8; 16] {
    let mut host = [0; 16];
    if let Ok(text) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        host.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..16]);
    }
    host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_frames_round_trip_and_short_ones_are_refused() {
        let hello = Hello {
            session: 9,
            me: Identity::worker(3),
            wanted: Identity::server(1),
            max_payload: 5,
            peer_timeout: Duration::from_millis(77),
        };
        let bytes = hello.encode([1; 32]);
        let back = Hello::decode(&bytes).unwrap();
        assert_eq!(
            (back.session, back.me, back.wanted, back.max_payload),
            (9, hello.me, hello.wanted, 5)
        );
        assert_eq!(back.peer_timeout, Duration::from_millis(77));
        for len in 0..bytes.len() {
            assert!(Hello::decode(&bytes[..len]).is_err(), "{len}");
        }
        let challenge = Challenge {
            server: Identity::server(2),
            incarnation: 7,
            max_payload: 8,
            peer_timeout: Duration::from_secs(3),
            host: [3; 16],
            shortcut: Some("name".to_owned()),
        };
        let bytes = challenge.encode([2; 32]);
        let back = Challenge::decode(&bytes).unwrap();
        assert_eq!(back.shortcut.as_deref(), Some("name"));
        assert_eq!((back.server, back.incarnation, back.host), (challenge.server, 7, [3; 16]));
    }

    #[test]
    fn a_proof_holds_for_its_token_direction_and_nonces_only() {
        let token = JobToken::new("secret");
        let proof = token.sign(CLIENT_LABEL, b"hello", b"challenge");
        let proof = proof.as_bytes();
        assert!(token.verify(CLIENT_LABEL, b"hello", b"challenge", proof));
        assert!(!token.verify(SERVER_LABEL, b"hello", b"challenge", proof));
        assert!(!token.verify(CLIENT_LABEL, b"hell", b"ochallenge", proof));
        assert!(!token.verify(CLIENT_LABEL, b"hello", b"challenge", &proof[..31]));
        assert!(!JobToken::new("other").verify(CLIENT_LABEL, b"hello", b"challenge", proof));
    }

    #[test]
    fn a_server_that_does_not_know_the_token_is_not_believed() {
        let (near, far) = crate::memory::pair("imposter");
        let limit = Duration::from_secs(10);
        let imposter = std::thread::spawn(move || {
            let mut reader = FrameReader::new();
            let mut talk = Talk::new(&far, &mut reader, limit, 1);
            talk.receive().unwrap().unwrap();
            let challenge = Challenge {
                server: Identity::server(1),
                incarnation: 1,
                max_payload: 1,
                peer_timeout: limit,
                host: [0; 16],
                shortcut: None,
            };
            talk.send(kind::CHALLENGE, &challenge.encode([5; 32])).unwrap();
            let (_, proof) = talk.receive().unwrap().unwrap();
            // All it can do is to send the client's own proof back.
            talk.send(kind::WELCOME, &proof).unwrap();
        });
        let hello = Hello {
            session: 1,
            me: Identity::worker(0),
            wanted: Identity::server(1),
            max_payload: 1,
            peer_timeout: limit,
        };
        let greeted = greet(Box::new(near), &hello, "there".to_owned(), limit).ok().unwrap();
        let outcome = greeted.finish(&JobToken::new("secret"));
        assert!(matches!(outcome, Err(DialError::Never(Error::ImposterServer { .. }))));
        imposter.join().unwrap();
    }
}
