//! The first four frames of every connection of a job. In: a fresh stream. Out: who is at the far
//! end.
//!
//! ```text
//! dialler                                            acceptor
//!   (TLS, if the connection leaves the machine)
//!   HELLO      nonce, who I am, whom I want    -->
//!              <--   CHALLENGE  nonce, who I am
//!   PROOF      keyed hashes of both            -->
//!              <--   WELCOME    other keyed hashes of both   (or REFUSED at any point)
//! ```
//!
//! The job token is never sent: each end proves that it knows it by a keyed hash over both nonces,
//! under a different label for each direction. The dialler proves first, so that a stranger who
//! connects to the port gets nothing to guess tokens against. Over TLS a second hash covers the
//! channel: somebody who ends TLS in between has another channel on each side, and both ends
//! notice.
//!
//! The dialler decides on TLS by where the far end is; an acceptor reads the first byte, and wants
//! TLS from other machines. It refuses a dialler that took it for a neighbour, which then dials
//! again with TLS; never the other way round.
//!
//! Before the token is proved anybody may be at the far end. What is said until then, a refusal
//! included, ends one attempt and not the dialler ([`DialError::Unproven`]). Later refusals are
//! signed.
//!
//! All frames together, with TLS, have one deadline, however slowly bytes trickle in.
//!
//! Clients and servers of this crate continue with frames. Other protocols of the job use [`dial`]
//! and [`accept`] on a stream of theirs and continue with bytes of their own: nothing is read
//! beyond the handshake.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::frame::{
    BadFrame, FrameReader, HEADER_LEN, Header, MAGIC, Patience, ReadError, VERSION, kind,
};
use crate::identity::{Identity, Role};
use crate::stream::{Stream, is_timeout, write_all};
use crate::sync::after;
use crate::tls::{self, Encrypted, Encryption, Session, TlsError};
use crate::token::{JobToken, Side, Transcript, Verdict, random};

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
    /// The connection must be encrypted.
    Encrypt,
    /// It knows the job token, but its end of TLS is not the far end of this one.
    Intercepted,
}

impl Refusal {
    fn encode(&self) -> Vec<u8> {
        match self {
            Refusal::Token => vec![1],
            Refusal::Busy(text) => [&[2], text.as_bytes()].concat(),
            Refusal::Denied(text) => [&[3], text.as_bytes()].concat(),
            Refusal::Encrypt => vec![4],
            Refusal::Intercepted => vec![5],
        }
    }

    fn decode(bytes: &[u8]) -> Result<Refusal, BadFrame> {
        let mut from = Decoder::new(bytes, "refusal");
        Ok(match from.take::<1>()?[0] {
            1 => Refusal::Token,
            2 => Refusal::Busy(from.text()?),
            4 => Refusal::Encrypt,
            5 => Refusal::Intercepted,
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
    fn new(stream: Arc<dyn Stream>, reader: FrameReader, limit: Duration, me: Identity) -> Talk {
        Talk { stream, reader, deadline: after(limit), limit, sender: me.index }
    }

    fn channel(&self) -> Option<[u8; 32]> {
        self.stream.session().and_then(|session| session.channel())
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
    /// What somebody there said who has not proved to belong to the job. Until the deadline it is
    /// one more failed attempt.
    Unproven(Error),
    /// The far end wants TLS: dial again with [`JobToken::always_encrypted`].
    Encrypt,
    /// Trying again does not help.
    Never(Error),
}

/// The dialler's half, for a protocol of its own. Returns the note of the acceptor, and what
/// encrypts the connection from now on.
///
/// # Errors
/// Whether trying again may help, and what is wrong. `endpoint` names the far end in messages.
pub fn dial(
    stream: Arc<dyn Stream>,
    hello: &Hello,
    endpoint: &str,
    token: &JobToken,
    limit: Duration,
) -> Result<(Vec<u8>, Option<Arc<Session>>), DialError> {
    let reader = FrameReader::without_staging();
    let mut greeting = Greeting::new(stream, reader, hello, endpoint, token, limit)?;
    let note = std::mem::take(&mut greeting.note);
    greeting.finish(token).map(|talk| (note, talk.stream.session()))
}

/// The dialler's half, stopped after the challenge: the caller may decide not to continue.
pub(crate) struct Greeting {
    talk: Talk,
    /// What the acceptor says of itself.
    pub(crate) note: Vec<u8>,
    hello: Vec<u8>,
    challenge: Vec<u8>,
    far_end: FarEnd,
}

/// Whom a dialler wants, and where.
#[derive(Clone)]
struct FarEnd {
    server: Identity,
    endpoint: String,
    encryption: Encryption,
}

impl Greeting {
    /// Says hello and reads the challenge.
    pub(crate) fn new(
        stream: Arc<dyn Stream>,
        reader: FrameReader,
        hello: &Hello,
        endpoint: &str,
        token: &JobToken,
        limit: Duration,
    ) -> Result<Greeting, DialError> {
        let (server, endpoint) = (hello.to, endpoint.to_owned());
        let far_end = FarEnd { server, endpoint, encryption: token.encryption() };
        let mut talk = Talk::new(stream, reader, limit, hello.from);
        if token.protection.covers(&*talk.stream) {
            talk.encrypt(token, &far_end)?;
        }
        let hello = hello.encode().map_err(DialError::Never)?;
        // A server that is full or of another version may refuse before it has read the hello.
        let sent = talk.send(kind::HELLO, &hello);
        let challenge = far_end.expect(&mut talk, kind::CHALLENGE, |_, _| false)?;
        sent.map_err(|e| DialError::Later(e.to_string()))?;
        let theirs = Hello::decode(&challenge).map_err(|bad| far_end.not_ours(&bad))?;
        let greeting = Greeting { talk, note: theirs.note, hello, challenge, far_end };
        match theirs.from == server {
            true => Ok(greeting),
            false => Err(greeting.meet_other(token, theirs.from)),
        }
    }

    fn transcript(&self) -> Transcript<'_> {
        let channel = self.talk.channel();
        Transcript { hello: &self.hello, challenge: &self.challenge, channel }
    }

    /// Somebody else is there; if it belongs to the job, it signs that it is not the one.
    fn meet_other(self, token: &JobToken, actual: Identity) -> DialError {
        let FarEnd { server: expected, endpoint, .. } = self.far_end.clone();
        let error = Error::WrongServer { expected, actual, endpoint };
        match self.finish(token) {
            Err(DialError::Never(_)) => DialError::Never(error),
            _ => DialError::Unproven(error),
        }
    }

    /// Proves that this end knows the token and checks that the other one does.
    pub(crate) fn finish(mut self, token: &JobToken) -> Result<Talk, DialError> {
        let proof = token.prove(Side::Dialler, &self.transcript());
        let sent = self.talk.send(kind::PROOF, &proof);
        let (hello, challenge) = (&self.hello, &self.challenge);
        let signed = |refusal: &[u8], signature: &[u8; 32]| {
            // Whoever refuses because of the channel has another one.
            let transcript = Transcript { hello, challenge, channel: None };
            token.has_signed(&transcript, refusal, signature)
        };
        let welcome = self.far_end.expect(&mut self.talk, kind::WELCOME, signed)?;
        sent.map_err(|e| DialError::Later(e.to_string()))?;
        let verdict = token.verify(Side::Acceptor, &self.transcript(), &welcome);
        let FarEnd { server, endpoint, .. } = self.far_end;
        match verdict {
            Verdict::Good => Ok(self.talk),
            Verdict::OtherToken => {
                Err(DialError::Unproven(Error::ImposterServer { server, endpoint }))
            }
            Verdict::OtherChannel => {
                Err(DialError::Unproven(Error::Intercepted { server, endpoint }))
            }
        }
    }

    /// The note makes no sense to the protocol.
    pub(crate) fn not_ours(&self, bad: &BadFrame) -> DialError {
        self.far_end.not_ours(bad)
    }

    /// Says that this connection will not be used after all.
    pub(crate) fn leave(mut self) {
        self.talk.deadline = after(LINGER);
        // The acceptor notices the closed connection too.
        let _ = self.talk.send(kind::GOODBYE, &[]);
    }
}

impl Talk {
    /// The dialler begins TLS.
    fn encrypt(&mut self, token: &JobToken, far_end: &FarEnd) -> Result<(), DialError> {
        let later = |e: io::Error| DialError::Later(e.to_string());
        let host = far_end.endpoint.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let session = token.protection.client(host).map_err(later)?;
        match Encrypted::over(self.stream.clone(), session, &[], self.deadline) {
            Ok(encrypted) => self.stream = Arc::new(encrypted),
            Err(TlsError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                return Err(far_end.encryption(&e.to_string()));
            }
            Err(TlsError::Io(e)) => {
                return Err(DialError::Later(format!("during the TLS handshake: {e}")));
            }
            // One that does not encrypt, or is full, refuses in clear.
            Err(TlsError::Frame(bytes)) => {
                self.reader.give_back(&bytes);
                far_end.expect(self, kind::CHALLENGE, |_, _| false)?;
                return Err(far_end.encryption("the answer is not encrypted"));
            }
        }
        Ok(())
    }
}

impl FarEnd {
    /// The payload of the frame that must come next. `signed` says whether a refusal is one of a
    /// process of the job.
    fn expect(
        &self,
        talk: &mut Talk,
        expected: u16,
        signed: impl FnOnce(&[u8], &[u8; 32]) -> bool,
    ) -> Result<Vec<u8>, DialError> {
        match talk.receive() {
            Ok(Some((kind, payload))) if kind == expected => Ok(payload),
            Ok(Some((kind::REFUSED, payload))) => Err(match payload.split_first_chunk() {
                Some((signature, refusal)) => self.refused(refusal, signed(refusal, signature)),
                None => self.not_ours(&BadFrame::Malformed("refusal")),
            }),
            Ok(Some((kind, _))) => Err(self.not_ours(&BadFrame::Unexpected { kind })),
            Ok(None) => {
                Err(DialError::Later("it closed the connection during the handshake".to_owned()))
            }
            Err(ReadError::Bad(BadFrame::Version(theirs))) => {
                let endpoint = self.endpoint.clone();
                Err(DialError::Unproven(Error::WrongVersion { endpoint, ours: VERSION, theirs }))
            }
            Err(ReadError::Bad(bad)) => Err(self.not_ours(&bad)),
            Err(ReadError::Silence(limit)) => Err(DialError::Later(format!(
                "connected, but no answer to the handshake within {} s",
                limit.as_secs_f32()
            ))),
            Err(error) => Err(DialError::Later(error.to_string())),
        }
    }

    fn refused(&self, refusal: &[u8], signed: bool) -> DialError {
        let (server, endpoint) = (self.server, self.endpoint.clone());
        DialError::Unproven(match Refusal::decode(refusal) {
            Ok(Refusal::Token) => Error::WrongToken { server, endpoint },
            Ok(Refusal::Intercepted) => Error::Intercepted { server, endpoint },
            Ok(Refusal::Busy(problem)) => return DialError::Later(problem),
            Ok(Refusal::Encrypt) if self.encryption != Encryption::Off => {
                return DialError::Encrypt;
            }
            Ok(Refusal::Encrypt) => {
                return self.encryption("it wants encryption, which is off in this process");
            }
            Ok(Refusal::Denied(problem)) => {
                let error = Error::Refused { server, endpoint, problem };
                if signed {
                    return DialError::Never(error);
                }
                error
            }
            Err(bad) => return self.not_ours(&bad),
        })
    }

    fn encryption(&self, problem: &str) -> DialError {
        let (server, endpoint) = (self.server, self.endpoint.clone());
        DialError::Unproven(Error::Encryption { server, endpoint, problem: problem.to_owned() })
    }

    fn not_ours(&self, bad: &BadFrame) -> DialError {
        let (server, endpoint) = (self.server, self.endpoint.clone());
        let problem = bad.to_string();
        DialError::Unproven(Error::NotOurProtocol { server, endpoint, problem })
    }
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
/// refuse who has proved to belong to the job and wants this process. Returns what the dialler
/// said, and what encrypts the connection from now on.
///
/// # Errors
/// Why the connection is of no use.
pub fn accept(
    stream: Arc<dyn Stream>,
    (me, note): (Identity, &[u8]),
    token: &JobToken,
    limit: Duration,
    admit: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<(Hello, Option<Arc<Session>>), Rejection> {
    let mut talk = Talk::begin(stream, FrameReader::without_staging(), token, limit, me)?;
    let hello = talk.accept((me, note), token, admit)?;
    Ok((hello, talk.stream.session()))
}

/// A refusal to send, signed for the process that has proved to belong to the job.
type Answer = (Refusal, Option<[u8; 32]>);

impl Talk {
    /// The acceptor's end of a new connection, encrypted if the dialler asks for that. It has to if
    /// it is on another machine.
    pub(crate) fn begin(
        stream: Arc<dyn Stream>,
        reader: FrameReader,
        token: &JobToken,
        limit: Duration,
        me: Identity,
    ) -> Result<Talk, Rejection> {
        let mut talk = Talk::new(stream, reader, limit, me);
        let mut first = [0];
        match tls::read_until(&*talk.stream, &mut first, talk.deadline) {
            Ok(0) => return Err(Rejection::Left),
            Ok(_) => {}
            Err(e) if is_timeout(&e) => return Err(unreadable(ReadError::Silence(limit)).0),
            Err(e) => return Err(unreadable(ReadError::Io(e)).0),
        }
        let refuse = |mut talk: Talk, refusal: Refusal, why: &str| {
            talk.refuse(&(refusal, None));
            Err(Rejection::Refused(why.to_owned()))
        };
        if first[0] == tls::FIRST_BYTE {
            if token.encryption() == Encryption::Off {
                let refusal = Refusal::Denied("encryption is on here and off there".to_owned());
                return refuse(talk, refusal, "it wants encryption, which is off in this process");
            }
            let failed = |e: TlsError| Rejection::Refused(format!("handshake: {e}"));
            let session = token.protection.server().map_err(|e| failed(TlsError::Io(e)))?;
            let encrypted = Encrypted::over(talk.stream.clone(), session, &first, talk.deadline);
            talk.stream = Arc::new(encrypted.map_err(failed)?);
            return Ok(talk);
        }
        if first[0] != MAGIC[0] {
            let (rejection, answer) = unreadable(BadFrame::NotAFrame([first[0], 0, 0, 0]).into());
            answer.into_iter().for_each(|answer| talk.refuse(&answer));
            return Err(rejection);
        }
        talk.reader.give_back(&first);
        if token.protection.covers(&*talk.stream) {
            let why = "it is on another machine and does not encrypt";
            return refuse(talk, Refusal::Encrypt, why);
        }
        Ok(talk)
    }

    pub(crate) fn accept(
        &mut self,
        me: (Identity, &[u8]),
        token: &JobToken,
        admit: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Result<Hello, Rejection> {
        self.accept_or_refuse(me, token, admit).map_err(|(rejection, answer)| {
            if let Some(answer) = answer {
                self.refuse(&answer);
            }
            rejection
        })
    }

    fn accept_or_refuse(
        &mut self,
        (me, note): (Identity, &[u8]),
        token: &JobToken,
        admit: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Result<Hello, (Rejection, Option<Answer>)> {
        let Some((first, hello_bytes)) = self.receive().map_err(unreadable)? else {
            return Err((Rejection::Left, None));
        };
        if first != kind::HELLO {
            return Err(unreadable(BadFrame::Unexpected { kind: first }.into()));
        }
        let hello = Hello::decode(&hello_bytes).map_err(|bad| unreadable(bad.into()))?;
        let dialler = hello.from;
        let reject = |problem: String, answer| (Rejection::Refused(problem), answer);
        let gone = |e: io::Error| reject(format!("{dialler} left the handshake: {e}"), None);

        let (protocol, note) = (hello.protocol, note.to_vec());
        let challenge = Hello { from: me, to: dialler, protocol, note };
        let challenge = challenge.encode().map_err(|e| reject(e.to_string(), None))?;
        self.send(kind::CHALLENGE, &challenge).map_err(gone)?;
        let proof = match self.receive().map_err(unreadable)? {
            Some((kind::PROOF, proof)) => proof,
            Some((kind::GOODBYE, _)) => return Err((Rejection::Left, None)),
            Some((kind, _)) => return Err(unreadable(BadFrame::Unexpected { kind }.into())),
            None => return Err(reject(format!("{dialler} left the handshake"), None)),
        };
        let (channel, plain) = (self.channel(), None);
        let transcript = Transcript { hello: &hello_bytes, challenge: &challenge, channel };
        let signed = |refusal: Refusal| {
            let transcript = Transcript { channel: plain, ..transcript };
            let signature = token.sign(&transcript, &refusal.encode());
            Some((refusal, Some(signature)))
        };
        match token.verify(Side::Dialler, &transcript, &proof) {
            Verdict::Good => {}
            Verdict::OtherToken => {
                let problem = format!("{dialler} presented a wrong job token");
                return Err(reject(problem, Some((Refusal::Token, None))));
            }
            Verdict::OtherChannel => {
                let problem = format!(
                    "{dialler} knows the job token, but somebody between it and this process ends \
                     TLS and reads along"
                );
                return Err(reject(problem, signed(Refusal::Intercepted)));
            }
        }
        if hello.to != me {
            let problem = format!("{dialler} wanted {}, this is {me}", hello.to);
            return Err(reject(problem.clone(), signed(Refusal::Denied(problem))));
        }
        admit(&hello).map_err(|refusal| {
            let problem = match &refusal {
                Refusal::Denied(why) | Refusal::Busy(why) => format!("{dialler}: {why}"),
                _ => format!("{dialler} is refused"),
            };
            reject(problem, signed(refusal))
        })?;
        let welcome = token.prove(Side::Acceptor, &transcript);
        self.send(kind::WELCOME, &welcome).map_err(gone)?;
        Ok(hello)
    }

    /// Sends the refusal and gives the peer a moment to read it: closing a socket that holds unread
    /// bytes resets the connection, which may overtake the refusal.
    fn refuse(&mut self, (refusal, signature): &Answer) {
        self.deadline = self.deadline.min(Instant::now() + LINGER);
        let payload = [&signature.unwrap_or_default()[..], &refusal.encode()].concat();
        if self.send(kind::REFUSED, &payload).is_err() {
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
    talk.refuse(&(Refusal::Busy(why.to_owned()), None));
}

/// What an acceptor does about bytes that are no handshake.
fn unreadable(error: ReadError) -> (Rejection, Option<Answer>) {
    let refusal = match &error {
        // A client of another version reads no further than the version in our header.
        ReadError::Bad(bad) => Some((Refusal::Denied(bad.to_string()), None)),
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
            let me = (SERVER, &b"of the server"[..]);
            let (hello, _) = accept(far.clone(), me, &theirs, LIMIT, admit)?;
            far.write(&[IoSlice::new(b"at once")], crate::Wait::Yes).unwrap();
            Ok(hello)
        });
        let near: Arc<dyn Stream> = Arc::new(near);
        let note = dial(near.clone(), &hello(), "there", &token, LIMIT).map(|(note, _)| note);
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
        assert!(matches!(outcome, Err(DialError::Unproven(Error::ImposterServer { .. }))));
        imposter.join().unwrap();
    }
}
