//! A real server with a certificate, asked by a client that checks it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use regatta_serve::{
    About, Config, Error, Feature, Kind, Model, ScoreError, Scorer, Server, Source, Tls,
};
use regatta_tensor::{Tensor, Value};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Answers the first float of a row.
struct Echo(Vec<Tensor>);

impl Source for Echo {
    fn open(&self) -> Result<Arc<dyn Model>, String> {
        Ok(Arc::new(Echo(vec![])))
    }

    fn stamp(&self) -> Option<Vec<u8>> {
        None
    }
}

impl Model for Echo {
    fn about(&self) -> Arc<About> {
        let features = vec![Feature { name: "x".into(), kind: Kind::Floats(1) }];
        let (name, outputs) = ("echo".to_string(), vec!["y".to_string()]);
        let (path, serial, step, transform) = ("echo".into(), None, None, None);
        Arc::new(About { name, path, serial, step, features, transform, outputs })
    }

    fn scorer(&self) -> Result<Box<dyn Scorer>, String> {
        Ok(Box::new(Echo(vec![])))
    }
}

impl Scorer for Echo {
    fn score(&mut self, batch: &[(&str, &Value)]) -> Result<&[Tensor], ScoreError> {
        self.0 = vec![batch[0].1.as_dense().unwrap().clone()];
        Ok(&self.0)
    }

    fn missing_ids(&self) -> u64 {
        0
    }
}

/// A certificate for `localhost` in files, and as a client trusts it.
fn certificate(dir: &std::path::Path) -> (Tls, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (Tls::load(&cert, &key).unwrap(), made.cert.der().clone())
}

fn start(tls: Tls) -> Server {
    let (listen, timeout) = ("127.0.0.1:0".into(), Duration::from_secs(10));
    let config = Config { listen, timeout, tls: Some(tls), ..Config::default() };
    Server::start(config, Arc::new(Echo(vec![]))).unwrap()
}

fn ask(server: &Server, trusted: Option<CertificateDer<'static>>) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    trusted.into_iter().for_each(|cert| roots.add(cert).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(server.address())?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = StreamOwned::new(connection, socket);
    let body = r#"{"features":{"x":[2.5]}}"#;
    let head = "POST /predict HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                content-type: application/json\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_client_that_trusts_the_certificate_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (tls, certificate) = certificate(dir.path());
    let server = start(tls);
    let answer = ask(&server, Some(certificate)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with(r#"{"prediction":{"y":[2.5]}}"#), "{answer}");
    // One that does not trust it ends the handshake.
    let error = ask(&server, None).unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[test]
fn plain_http_gets_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(certificate(dir.path()).0);
    let mut socket = TcpStream::connect(server.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // A TLS alert or an end, but no answer.
    let _ = socket.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    certificate(dir.path());
    let other = dir.path().join("other");
    let load = |cert: &std::path::Path, key: &std::path::Path, named: &std::path::Path| {
        let error = Tls::load(cert, key).err().unwrap();
        assert!(matches!(error, Error::Config(_)), "{error}");
        assert!(error.to_string().starts_with(&named.display().to_string()), "{error}");
    };
    load(&other, &key, &other);
    fs::write(&other, "no certificate").unwrap();
    load(&other, &key, &other);
    load(&cert, &other, &other);
    let stranger = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    fs::write(&other, stranger.signing_key.serialize_pem()).unwrap();
    load(&cert, &other, &other);
}
