//! HTTPS: a certificate and its key come in as PEM files, connections are TLS 1.2 or 1.3.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::Error;

/// What a server proves its name with.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

impl Tls {
    /// Reads a chain of certificates, that of the server first, and the key of the first.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else, or the key does not fit the certificate.
    pub fn load(certificates: &Path, key: &Path) -> Result<Tls, Error> {
        let wrong =
            |path: &Path, reason: String| Error::Config(format!("{}: {reason}", path.display()));
        let chain = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| wrong(certificates, format!("no certificates in PEM: {e}")))?;
        if chain.is_empty() {
            return Err(wrong(certificates, "it holds no certificate in PEM".into()));
        }
        let secret = PrivateKeyDer::from_pem_file(key)
            .map_err(|e| wrong(key, format!("no private key in PEM: {e}")))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::Config(format!("TLS: {e}")))?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(|e| wrong(key, format!("with {}: {e}", certificates.display())))?;
        Ok(Tls { config: Arc::new(config) })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.clone())
    }
}
