//! Encrypted connections: what travels, who may be in between, and ends that do not agree. TLS is
//! asked for on loopback, where connections go without it otherwise.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use regatta_net::fault::Faults;
use regatta_net::{
    Certificates, Client, ClientOptions, Encryption, Error, Event, JobToken, ServerOptions, Serving,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};

use crate::{
    PATIENCE, address, echo, next_event, observer, serve, server_options, tcp_options, token,
};

fn encrypting(encryption: Encryption) -> ClientOptions {
    ClientOptions { token: token().encrypted(encryption), ..tcp_options() }
}

fn always() -> ClientOptions {
    encrypting(Encryption::Always)
}

/// A client that gives up soon.
fn hasty(options: ClientOptions) -> ClientOptions {
    ClientOptions { connect_timeout: Duration::from_millis(300), ..options }
}

/// A server that wants TLS even here, and its events.
fn server() -> (Serving, Receiver<Event>) {
    let (observer, events) = observer();
    let token = token().encrypted(Encryption::Always);
    (serve(ServerOptions { observer, token, ..server_options() }, echo), events)
}

fn refusal(events: &Receiver<Event>) -> String {
    next_event(events, |event| match event {
        Event::Refused { problem, .. } => Some(problem.clone()),
        _ => None,
    })
}

fn ask(client: &Client, payload: &[u8]) {
    let reply = client.send(1, 7, &[payload]).unwrap().wait(PATIENCE).unwrap();
    assert_eq!((reply.status, &reply.payload[..] == payload), (7, true));
}

#[test]
fn requests_of_all_sizes_travel_encrypted() {
    let (server, _) = server();
    let client = Client::connect(server.endpoint(), always()).unwrap();
    assert_eq!(client.stats().transport, "tls");
    let large: Vec<u8> = (0..5_000_000u32).map(|n| n as u8).collect();
    let sizes = [0, 1, 63, 16 << 10, (64 << 10) - 64, 64 << 10, 100_000, 5_000_000];
    let pending: Vec<_> =
        sizes.iter().map(|n| client.send(1, 0, &[&large[..*n]]).unwrap()).collect();
    for (n, pending) in sizes.iter().zip(pending) {
        assert!(pending.wait(PATIENCE).unwrap().payload[..] == large[..*n], "{n}");
    }
}

/// The last worker at a barrier answers for others, whose sockets may be full.
#[test]
fn replies_that_do_not_fit_the_socket_follow_later() {
    let token = token().encrypted(Encryption::Always);
    let (requests, taken) = sync_channel(10);
    let options = ServerOptions { token, ..server_options() };
    let server = serve(options, move |request, responder| {
        drop(requests.try_send((request, responder)));
    });
    let client = Client::connect(server.endpoint(), always()).unwrap();
    let pending: Vec<_> = (0..3).map(|n| client.send(1, n, &[b"x"]).unwrap()).collect();
    let payload: Vec<u8> = (0..9_000_000u32).map(|n| (n / 251) as u8).collect();
    for _ in 0..3 {
        let (request, responder) = taken.recv_timeout(PATIENCE).unwrap();
        responder.reply(request.flags, &[&payload]).unwrap();
    }
    for (n, pending) in pending.into_iter().enumerate() {
        let reply = pending.wait(PATIENCE).unwrap();
        assert!(reply.status == n as u32 && reply.payload[..] == payload[..], "{n}");
    }
}

#[test]
fn cut_and_damaged_connections_are_replaced() {
    let (server, _) = server();
    let faults = Mutex::new(vec![
        Faults { flip_written_at: Some(60_000), ..Faults::default() },
        Faults { cut_after_written: Some(30_000), ..Faults::default() },
        Faults { cut_after_read: Some(50_000), chop: Some(1000), ..Faults::default() },
    ]);
    let (observer, events) = observer();
    let mut options = ClientOptions { observer, ..always() };
    options.wrap = Some(Arc::new(move |stream| match faults.lock().unwrap().pop() {
        Some(faults) => faults.on(stream),
        None => stream,
    }));
    let client = Client::connect(server.endpoint(), options).unwrap();
    (0..8u8).for_each(|n| ask(&client, &[n; 40_000]));
    assert_eq!(client.stats().reconnects, 3);
    let broken = events.try_iter().filter(|e| matches!(e, Event::Broken { .. })).count();
    assert_eq!(broken, 3);
}

/// Passes bytes on and keeps a copy of them; `change` sees each piece from the client.
fn relay(
    to: String,
    change: impl Fn(usize, &mut Vec<u8>) + Send + Sync + 'static,
) -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let (copies, seen) = sync_channel(100_000);
    let change = Arc::new(change);
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&to) else { return };
            let (copies, change) = (copies.clone(), change.clone());
            let back = (far.try_clone().unwrap(), near.try_clone().unwrap(), copies.clone());
            thread::spawn(move || pump(near, far, &copies, &*change));
            thread::spawn(move || pump(back.0, back.1, &back.2, &|_, _| {}));
        }
    });
    (endpoint, seen)
}

fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    copies: &SyncSender<Vec<u8>>,
    change: &(dyn Fn(usize, &mut Vec<u8>) + Sync),
) {
    let mut buf = vec![0; 100_000];
    for piece in 0.. {
        let Ok(n @ 1..) = from.read(&mut buf) else { break };
        let mut bytes = buf[..n].to_vec();
        change(piece, &mut bytes);
        let _ = copies.try_send(bytes.clone());
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

const SECRET: &[u8] = b"ids and values of the job";

/// What somebody on the way sees of a request and its reply.
fn overheard(server: &Serving, options: ClientOptions) -> Vec<u8> {
    let (endpoint, seen) = relay(address(server.endpoint()), |_, _| {});
    let client = Client::connect(endpoint, options).unwrap();
    ask(&client, SECRET);
    drop(client);
    seen.try_iter().flatten().collect()
}

#[test]
fn who_reads_along_sees_no_payload() {
    let (encrypted, _) = server();
    let seen = overheard(&encrypted, always());
    assert!(seen.len() > 1000 && !contains(&seen, SECRET) && !contains(&seen, b"RGTA"));
    let plain = crate::echo_server();
    assert!(contains(&overheard(&plain, tcp_options()), SECRET), "the relay sees everything");
}

#[test]
fn altered_and_spliced_records_are_noticed() {
    // Once an altered byte, once a piece in place of another.
    let earlier: Mutex<Vec<Vec<u8>>> = Mutex::default();
    let broken = Mutex::new(0);
    let change = move |piece: usize, bytes: &mut Vec<u8>| {
        let (mut broken, mut earlier) = (broken.lock().unwrap(), earlier.lock().unwrap());
        if piece < 4 {
            return earlier.push(bytes.clone());
        }
        match *broken {
            0 => *bytes.last_mut().unwrap() ^= 1,
            1 => bytes.clone_from(earlier.last().unwrap()),
            _ => return,
        }
        *broken += 1;
    };
    let (server, _) = server();
    let (endpoint, _) = relay(address(server.endpoint()), change);
    let client = Client::connect(endpoint, always()).unwrap();
    (0..200u8).for_each(|n| ask(&client, &[n; 300]));
    assert_eq!(client.stats().reconnects, 2, "each connection was given up, nothing was believed");
}

#[test]
fn a_repeated_conversation_is_refused() {
    let (server, events) = server();
    let from_client: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let copies = from_client.clone();
    let record = move |_, bytes: &mut Vec<u8>| copies.lock().unwrap().push(bytes.clone());
    let (endpoint, _) = relay(address(server.endpoint()), record);
    ask(&Client::connect(endpoint, always()).unwrap(), SECRET);
    let mut stranger = TcpStream::connect(address(server.endpoint())).unwrap();
    for piece in from_client.lock().unwrap().iter() {
        let _ = stranger.write_all(piece);
    }
    let problem = refusal(&events);
    assert!(problem.starts_with("handshake: TLS: "), "{problem}");
    assert_eq!(server.stats().accepted, 1);
}

/// Ends TLS on one side, begins it on the other, and reads along.
fn man_in_the_middle(to: String) -> String {
    let made = rcgen::generate_simple_self_signed(["regatta".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let near = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let far = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible(provider)))
        .with_no_client_auth();
    let (near, far) = (Arc::new(near), Arc::new(far));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (near, far, to) = (near.clone(), far.clone(), to.clone());
            thread::spawn(move || pass_on(stream, near, far, &to));
        }
    });
    endpoint
}

/// Half duplex is enough: the two ends take turns in their handshake.
fn pass_on(
    stream: TcpStream,
    near: Arc<rustls::ServerConfig>,
    far: Arc<rustls::ClientConfig>,
    to: &str,
) {
    let near = rustls::ServerConnection::new(near).unwrap();
    let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
    let far = rustls::ClientConnection::new(far, name).unwrap();
    let mut near = rustls::StreamOwned::new(near, stream);
    let mut far = rustls::StreamOwned::new(far, TcpStream::connect(to).unwrap());
    let mut buf = [0; 10_000];
    while let Ok(n @ 1..) = near.read(&mut buf) {
        if far.write_all(&buf[..n]).is_err() {
            return;
        }
        let Ok(n @ 1..) = far.read(&mut buf) else { return };
        if near.write_all(&buf[..n]).is_err() {
            return;
        }
    }
}

#[derive(Debug)]
struct Gullible(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[test]
fn who_ends_tls_in_between_is_named_by_both_ends() {
    let (server, events) = server();
    let endpoint = man_in_the_middle(address(server.endpoint()));
    // Two handshakes take place one inside the other, on a machine that may be busy. The last
    // attempts have no time for that and do not hide what the first one heard.
    let patient = ClientOptions { connect_timeout: Duration::from_secs(3), ..always() };
    let error = Client::connect(endpoint.as_str(), patient).unwrap_err();
    assert!(matches!(error, Error::Intercepted { .. }), "{error}");
    assert!(error.to_string().contains(&endpoint), "{error}");
    let problem = refusal(&events);
    assert!(problem.contains("worker 0 knows the job token, but somebody between"), "{problem}");
    assert_eq!(server.stats().accepted, 0);
}

#[test]
fn ends_that_do_not_agree_on_encryption_say_so() {
    let (encrypted, events) = server();
    let error = Client::connect(encrypted.endpoint(), hasty(encrypting(Encryption::Off)));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("it wants encryption, which is off in this process"), "{error}");
    assert_eq!(refusal(&events), "it is on another machine and does not encrypt");

    let (observer, events) = observer();
    let token = token().encrypted(Encryption::Off);
    let plain = serve(ServerOptions { observer, token, ..server_options() }, echo);
    let error = Client::connect(plain.endpoint(), hasty(always())).unwrap_err().to_string();
    assert!(error.contains("encryption is on here and off there"), "{error}");
    assert_eq!(refusal(&events), "it wants encryption, which is off in this process");
    let client = Client::connect(plain.endpoint(), encrypting(Encryption::Off)).unwrap();
    assert_eq!(client.stats().transport, "tcp");
}

/// As behind a proxy on the client's machine.
#[test]
fn a_client_that_took_the_server_for_a_neighbour_dials_again_with_tls() {
    let (server, _) = server();
    let client = Client::connect(server.endpoint(), encrypting(Encryption::default())).unwrap();
    assert_eq!(client.stats().transport, "tls");
    ask(&client, SECRET);
}

#[test]
fn within_a_machine_nothing_is_encrypted() {
    let server = crate::echo_server();
    let client = Client::connect(server.endpoint(), tcp_options()).unwrap();
    assert_eq!(client.stats().transport, "tcp");
}

/// Files of an authority and of a process that it vouches for, for `127.0.0.1`.
fn certificates(dir: &Path) -> Certificates {
    let pem = |kind: &str, der: &[u8]| {
        let mut text = format!("-----BEGIN {kind}-----\n");
        for line in base64(der).as_bytes().chunks(64) {
            text.push_str(str::from_utf8(line).unwrap());
            text.push('\n');
        }
        format!("{text}-----END {kind}-----\n")
    };
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
    let own = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&own, &authority).unwrap();
    std::fs::create_dir(dir).unwrap();
    let write = |name: &str, text: String| {
        std::fs::write(dir.join(name), text).unwrap();
        dir.join(name)
    };
    Certificates {
        chain: write("cert.pem", pem("CERTIFICATE", certificate.der())),
        key: write("key.pem", pem("PRIVATE KEY", &own.serialize_der())),
        authority: write("ca.pem", pem("CERTIFICATE", authority.der())),
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - three.len()));
        let letter = |n: u32| char::from(LETTERS[(bits >> (18 - 6 * n)) as usize & 63]);
        (0..=three.len() as u32).for_each(|n| text.push(letter(n)));
        (three.len()..3).for_each(|_| text.push('='));
    }
    text
}

#[test]
fn certificates_of_the_user_are_verified_on_both_sides() {
    let dir = std::env::temp_dir().join(format!("regatta-certificates-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let ours = certificates(&dir.join("ours"));
    let others = certificates(&dir.join("others"));
    let certified = |files: &Certificates| -> JobToken {
        token().certified(Encryption::Always, files).unwrap()
    };
    let (observer, events) = observer();
    let token = certified(&ours);
    let server = serve(ServerOptions { observer, token, ..server_options() }, echo);
    let with = |files| ClientOptions { token: certified(files), ..tcp_options() };
    ask(&Client::connect(server.endpoint(), with(&ours)).unwrap(), SECRET);

    // A server of another authority; a client of another one; a client without any.
    let error = Client::connect(server.endpoint(), hasty(with(&others))).unwrap_err();
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    assert!(refusal(&events).contains("TLS"));
    let mixed = Certificates { authority: ours.authority.clone(), ..others.clone() };
    assert!(Client::connect(server.endpoint(), hasty(with(&mixed))).is_err());
    assert!(Client::connect(server.endpoint(), hasty(always())).is_err());
    assert_eq!(server.stats().accepted, 1);

    let missing = Certificates { key: dir.join("none.pem"), ..ours.clone() };
    let error = crate::token().certified(Encryption::Always, &missing).unwrap_err().to_string();
    assert!(error.contains("none.pem"), "{error}");
    let swapped = Certificates { chain: ours.key.clone(), ..ours };
    let error = crate::token().certified(Encryption::Always, &swapped).unwrap_err().to_string();
    assert!(error.contains("no certificate in it"), "{error}");
    std::fs::remove_dir_all(&dir).unwrap();
}
