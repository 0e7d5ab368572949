//! The token of a job and how its connections are protected, as the place of a process says it.

use regatta_cluster::{JobIdentity, TlsMode, endpoints, names};
use regatta_ps::{Certificates, Encryption, JobToken};

use crate::{Error, notify};

/// What the processes of a job authenticate with, who are at these endpoints. A job whose
/// connections between machines are not encrypted says so on standard error.
///
/// # Errors
/// If there is no good token, or a certificate cannot be read.
pub fn job_token(job: &JobIdentity, endpoints: &[String]) -> Result<JobToken, Error> {
    let token = JobToken::new(job.secret(endpoints)?);
    let encryption = match job.tls.mode {
        TlsMode::On => Encryption::BetweenMachines,
        TlsMode::Always => Encryption::Always,
        TlsMode::Off => Encryption::Off,
    };
    if encryption == Encryption::Off && !endpoints.iter().all(|e| endpoints::is_loopback(e)) {
        let off = names::TLS;
        notify(&format!("note: connections between machines are not encrypted ({off}=off)"));
    }
    match &job.tls.files {
        None => Ok(token.encrypted(encryption)),
        Some(files) => {
            let (chain, key, authority) = (files.cert.clone(), files.key.clone(), files.ca.clone());
            let files = Certificates { chain, key, authority };
            token.certified(encryption, &files).map_err(|e| Error::Config(e.to_string()))
        }
    }
}
