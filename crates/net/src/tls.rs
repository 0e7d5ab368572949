//! TLS 1.3 under the frames of connections that leave the machine. In: a connected stream. Out: one
//! whose bytes nobody between the two ends can read or change.
//!
//! Who the far end is stays the business of the [`handshake`](crate::handshake): certificates are
//! made by each process for itself and accepted from anybody, and the proof of the job token covers
//! the [channel](Session::channel). Whoever ends TLS in between has another channel on each side
//! and fails. Certificates of the user are verified in addition ([`Certificates`]).
//!
//! A [`Session`] is the state of one connection without its socket. The lock around it is held
//! while bytes are encrypted or decrypted, never during a system call, so that one thread may read
//! while another writes.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme,
};

use crate::error::Error;
use crate::frame::MAGIC;
use crate::stream::{Stream, Wait, is_timeout};
use crate::sync::lock;

/// Plaintext that is encrypted and sent at a time: few system calls, and the far end decrypts one
/// while this end encrypts the next.
const CHUNK: usize = 64 << 10;
/// Bytes read from the socket at a time: a chunk with the headers of its records.
const RAW: usize = 66 << 10;
/// The first byte of a client that speaks TLS. Frames begin with another one.
pub(crate) const FIRST_BYTE: u8 = 0x16;

/// Which connections are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    /// TCP connections whose ends are on different machines.
    #[default]
    BetweenMachines,
    /// All TCP connections.
    Always,
    /// None. A process of the job that encrypts refuses one that does not.
    Off,
}

/// Files with certificates of the user, in PEM. Both ends of a connection then show theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    /// The chain of this process, its own first.
    pub chain: PathBuf,
    /// The private key that belongs to it.
    pub key: PathBuf,
    /// Who must have signed the certificates of others.
    pub authority: PathBuf,
}

/// How the connections of a process are protected.
pub(crate) struct Protection {
    pub(crate) encryption: Encryption,
    /// Certificates of the user, or those that the process makes when it needs them.
    own: Option<Setup>,
    made: OnceLock<Result<Setup, String>>,
}

#[derive(Clone)]
struct Setup {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Protection {
    pub(crate) fn new(encryption: Encryption) -> Protection {
        Protection { encryption, own: None, made: OnceLock::new() }
    }

    pub(crate) fn with_certificates(
        encryption: Encryption,
        files: &Certificates,
    ) -> Result<Protection, Error> {
        let own = Some(read_setup(files)?);
        Ok(Protection { encryption, own, made: OnceLock::new() })
    }

    /// The same, whatever the far end is.
    pub(crate) fn always(&self) -> Protection {
        let made = self.made.clone();
        Protection { encryption: Encryption::Always, own: self.own.clone(), made }
    }

    /// Whether a connection must be encrypted.
    pub(crate) fn covers(&self, stream: &dyn Stream) -> bool {
        match self.encryption {
            Encryption::BetweenMachines => !stream.is_local(),
            Encryption::Always => stream.transport() == "tcp",
            Encryption::Off => false,
        }
    }

    fn setup(&self) -> io::Result<&Setup> {
        if let Some(own) = &self.own {
            return Ok(own);
        }
        self.made.get_or_init(make_setup).as_ref().map_err(|e| io::Error::other(e.clone()))
    }

    /// The session of a dialler; `host` is whom it wants.
    pub(crate) fn client(&self, host: &str) -> io::Result<Session> {
        let setup = self.setup()?;
        // Without certificates of the user, names mean nothing, and none is sent in clear.
        let name = match &self.own {
            Some(_) => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
            None => ServerName::from(std::net::IpAddr::from([0, 0, 0, 0])),
        };
        let client = ClientConnection::new(setup.client.clone(), name).map_err(io::Error::other)?;
        Ok(Session::new(client.into()))
    }

    /// The session of an acceptor.
    pub(crate) fn server(&self) -> io::Result<Session> {
        let server =
            ServerConnection::new(self.setup()?.server.clone()).map_err(io::Error::other)?;
        Ok(Session::new(server.into()))
    }
}

/// AES-128 first: it is as good as AES-256 for this, and faster.
fn provider() -> Arc<CryptoProvider> {
    use ring::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..ring::default_provider()
    })
}

/// A certificate for this process alone, and trust in everybody's.
fn make_setup() -> Result<Setup, String> {
    let made = rcgen::generate_simple_self_signed(["regatta".to_owned()]);
    let made = made.map_err(|e| format!("cannot make a certificate: {e}"))?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let chain = vec![made.cert.der().clone()];
    let text = |e: rustls::Error| e.to_string();
    let versions = &[&rustls::version::TLS13];
    let client = ClientConfig::builder_with_provider(provider());
    let mut client = client
        .with_protocol_versions(versions)
        .map_err(text)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider())))
        .with_no_client_auth();
    client.enable_sni = false;
    let server = ServerConfig::builder_with_provider(provider());
    let server = server.with_protocol_versions(versions).map_err(text)?;
    let server = server.with_no_client_auth().with_single_cert(chain, key).map_err(text)?;
    Ok(finish(client, server))
}

fn read_setup(files: &Certificates) -> Result<Setup, Error> {
    let problem =
        |path: &Path, e: String| Error::Config(format!("certificates: {}: {e}", path.display()));
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>, Error> {
        let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        match all.map_err(|e| problem(path, e.to_string()))? {
            none if Vec::is_empty(&none) => Err(problem(path, "no certificate in it".to_owned())),
            some => Ok(some),
        }
    };
    let chain = certificates(&files.chain)?;
    let mut roots = RootCertStore::empty();
    for root in certificates(&files.authority)? {
        roots.add(root).map_err(|e| problem(&files.authority, e.to_string()))?;
    }
    let roots = Arc::new(roots);
    let key =
        || PrivateKeyDer::from_pem_file(&files.key).map_err(|e| problem(&files.key, e.to_string()));
    let of_chain = |e: rustls::Error| problem(&files.chain, e.to_string());
    let of_roots = |e: String| problem(&files.authority, e);
    let versions = &[&rustls::version::TLS13];
    let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider());
    let servers = servers.build().map_err(|e| of_roots(e.to_string()))?;
    let client = ClientConfig::builder_with_provider(provider());
    let client = client
        .with_protocol_versions(versions)
        .map_err(of_chain)?
        .with_webpki_verifier(servers)
        .with_client_auth_cert(chain.clone(), key()?)
        .map_err(of_chain)?;
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider());
    let clients = clients.build().map_err(|e| of_roots(e.to_string()))?;
    let server = ServerConfig::builder_with_provider(provider());
    let server = server
        .with_protocol_versions(versions)
        .map_err(of_chain)?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key()?)
        .map_err(of_chain)?;
    Ok(finish(client, server))
}

/// Connections are few and long: nothing is resumed.
fn finish(mut client: ClientConfig, mut server: ServerConfig) -> Setup {
    client.resumption = rustls::client::Resumption::disabled();
    server.send_tls13_tickets = 0;
    Setup { client: Arc::new(client), server: Arc::new(server) }
}

/// Accepts the certificate of any process that has its key: the proof of the job token, which
/// covers the channel, says whether the process belongs to the job.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Why there is no encrypted connection.
#[derive(Debug)]
pub(crate) enum TlsError {
    Io(io::Error),
    /// The far end answered with a frame in clear, of which these are the first bytes.
    Frame(Vec<u8>),
}

impl From<io::Error> for TlsError {
    fn from(error: io::Error) -> TlsError {
        TlsError::Io(error)
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Io(error) => error.fmt(f),
            TlsError::Frame(_) => f.write_str("it does not encrypt"),
        }
    }
}

/// The state of one encrypted connection. Its socket is the caller's, who passes in how to read and
/// write it; one thread may read while another one writes.
pub struct Session {
    connection: Mutex<Connection>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
    /// What both ends of the channel know, and nobody else; zero during the handshake.
    channel: OnceLock<[u8; 32]>,
}

/// Bytes of the socket that have not been decrypted.
struct Incoming {
    raw: Box<[u8]>,
    start: usize,
    end: usize,
    /// Decrypted bytes may be left.
    more: bool,
}

/// Records that the socket has not taken.
#[derive(Default)]
struct Outgoing {
    records: Vec<u8>,
    sent: usize,
    /// Bytes of the caller that are in them, who has not been told that they were taken.
    plain: usize,
}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.sent == self.records.len()
    }
}

impl Session {
    fn new(mut connection: Connection) -> Session {
        // Bounded by `CHUNK` instead.
        connection.set_buffer_limit(None);
        let raw = vec![0; RAW].into_boxed_slice();
        Session {
            connection: Mutex::new(connection),
            incoming: Mutex::new(Incoming { raw, start: 0, end: 0, more: false }),
            outgoing: Mutex::default(),
            channel: OnceLock::new(),
        }
    }

    /// A secret that both ends of this channel have, and no other channel (RFC 8446, 7.5).
    pub fn channel(&self) -> Option<[u8; 32]> {
        self.channel.get().copied()
    }

    /// Reads decrypted bytes. `read` reads the socket; it is called when nothing is left to
    /// decrypt, and what it returns without bytes is passed on.
    ///
    /// # Errors
    /// Those of `read`; `InvalidData` for bytes that were changed on the way.
    pub fn read(
        &self,
        buf: &mut [u8],
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        loop {
            let n = self.decrypt(&mut incoming, buf)?;
            if n > 0 || buf.is_empty() {
                return Ok(n);
            }
            let n = read(&mut incoming.raw)?;
            (incoming.start, incoming.end) = (0, n);
            if n == 0 {
                return Ok(0);
            }
        }
    }

    /// Whether a read would return bytes without the socket, as far as is known.
    pub fn has_more(&self) -> bool {
        lock(&self.incoming).more
    }

    /// Decrypts as much of what came as fits.
    fn decrypt(&self, incoming: &mut Incoming, buf: &mut [u8]) -> io::Result<usize> {
        let mut connection = lock(&self.connection);
        let mut done = 0;
        loop {
            match connection.reader().read(&mut buf[done..]) {
                Ok(n) => done += n,
                Err(e) if is_timeout(&e) => {}
                Err(e) => return Err(e),
            }
            incoming.more = done == buf.len();
            if incoming.more || incoming.start == incoming.end {
                return Ok(done);
            }
            let mut raw = &incoming.raw[incoming.start..incoming.end];
            incoming.start += connection.read_tls(&mut raw)?;
            connection.process_new_packets().map_err(invalid)?;
        }
    }

    /// Encrypts and writes some of `bufs`. `write` writes to the socket. What it did not take is
    /// kept, and the caller must pass the same bytes again, until they count as written.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write(
        &self,
        bufs: &[IoSlice<'_>],
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut outgoing = lock(&self.outgoing);
        loop {
            if outgoing.is_empty() {
                let plain = std::mem::take(&mut outgoing.plain);
                if plain > 0 || bufs.iter().all(|buf| buf.is_empty()) {
                    return Ok(plain);
                }
                self.encrypt(bufs, &mut outgoing)?;
            }
            match write(&[IoSlice::new(&outgoing.records[outgoing.sent..])])? {
                0 => return Ok(0),
                n => outgoing.sent += n,
            }
        }
    }

    fn encrypt(&self, bufs: &[IoSlice<'_>], outgoing: &mut Outgoing) -> io::Result<()> {
        let mut room = CHUNK;
        let mut part = Vec::with_capacity(bufs.len().min(16));
        for buf in bufs {
            let n = buf.len().min(room);
            part.push(IoSlice::new(&buf[..n]));
            room -= n;
            if room == 0 {
                break;
            }
        }
        let mut connection = lock(&self.connection);
        outgoing.plain = connection.writer().write_vectored(&part)?;
        take_records(&mut connection, outgoing)
    }

    /// Goes through the handshake of TLS on `stream`, until `deadline`. `first` are bytes that were
    /// read from it already.
    fn shake_hands(
        &self,
        stream: &dyn Stream,
        first: &[u8],
        deadline: Instant,
    ) -> Result<(), TlsError> {
        let mut raw = [0; 16 << 10];
        let mut came = first.to_vec();
        loop {
            let mut outgoing = Outgoing::default();
            let mut connection = lock(&self.connection);
            let mut rest = &came[..];
            let mut outcome = Ok(());
            while !rest.is_empty() && outcome.is_ok() {
                connection.read_tls(&mut rest)?;
                outcome = connection.process_new_packets().map(drop);
            }
            take_records(&mut connection, &mut outgoing)?;
            let is_done = !connection.is_handshaking();
            drop(connection);
            // What is wrong is said to the far end, too.
            self.flush(stream, &outgoing.records, deadline)?;
            outcome.map_err(invalid)?;
            if is_done {
                return Ok(self.bind_channel()?);
            }
            came = match read_until(stream, &mut raw, deadline)? {
                0 => return Err(TlsError::Io(io::ErrorKind::UnexpectedEof.into())),
                n => raw[..n].to_vec(),
            };
            if came[0] == MAGIC[0] {
                return Err(TlsError::Frame(came));
            }
        }
    }

    fn flush(&self, stream: &dyn Stream, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        crate::stream::write_all(stream, &mut [IoSlice::new(bytes)], || {
            Err(io::ErrorKind::TimedOut.into())
        })
    }

    fn bind_channel(&self) -> io::Result<()> {
        let connection = lock(&self.connection);
        let channel = connection.export_keying_material([0; 32], b"EXPORTER-regatta-job", None);
        let _ = self.channel.set(channel.map_err(invalid)?);
        Ok(())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

fn take_records(connection: &mut Connection, outgoing: &mut Outgoing) -> io::Result<()> {
    outgoing.records.clear();
    outgoing.sent = 0;
    while connection.wants_write() {
        connection.write_tls(&mut outgoing.records)?;
    }
    Ok(())
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}"))
}

/// Reads some bytes of a stream, until `deadline`.
pub(crate) fn read_until(
    stream: &dyn Stream,
    buf: &mut [u8],
    deadline: Instant,
) -> io::Result<usize> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(buf) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted || is_timeout(&e) => {}
            other => return other,
        }
    }
}

/// A stream whose bytes are encrypted on another one.
#[derive(Debug)]
pub(crate) struct Encrypted {
    session: Arc<Session>,
    inner: Arc<dyn Stream>,
}

impl Encrypted {
    /// Completes the handshake of TLS. `first` are bytes of it that were read already.
    pub(crate) fn over(
        inner: Arc<dyn Stream>,
        session: Session,
        first: &[u8],
        deadline: Instant,
    ) -> Result<Encrypted, TlsError> {
        session.shake_hands(&*inner, first, deadline)?;
        Ok(Encrypted { session: Arc::new(session), inner })
    }
}

impl Stream for Encrypted {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.session.read(buf, |raw| self.inner.read(raw))
    }

    fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        self.session.write(bufs, |records| self.inner.write(records, wait))
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.inner.set_read_timeout(limit)
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.inner.set_write_timeout(limit)
    }

    fn shutdown(&self, how: Shutdown) {
        self.inner.shutdown(how);
    }

    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn transport(&self) -> &'static str {
        "tls"
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn session(&self) -> Option<Arc<Session>> {
        Some(self.session.clone())
    }
}
