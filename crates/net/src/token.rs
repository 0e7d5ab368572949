//! The secret of a job: proofs that both ends of a connection know it.

use std::fmt;
use std::sync::Arc;

use argon2::{Algorithm, Argon2, Block, Params, Version};

use crate::error::Error;
use crate::tls::{Certificates, Encryption, Protection};

/// How a token begins that a launcher has made: 128 random bits follow, as hexadecimal digits.
/// Nobody can guess it, so it is not hashed slowly: that took half of the time until the first step
/// of a small job (0.08 s instead of 0.035 s, 2 workers and a server, 2 cores of an AMD EPYC,
/// 2026-11-18; `bench/compare/run --only sync-2-1 --batch 512`).
pub const RANDOM: &str = "random-";

/// The secret that all processes of a job share, and how this one protects its connections.
///
/// It should be random. Making one takes some hundredths of a second, on purpose, unless a launcher
/// has made the token ([`RANDOM`]): a process that only pretends to be a server gets a proof to try
/// tokens against, and pays as much for each.
#[derive(Clone)]
pub struct JobToken {
    key: [u8; 32],
    pub(crate) protection: Arc<Protection>,
}

/// Who proves what. No two proofs of a connection are the same, so that none can be sent back.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Dialler,
    Acceptor,
    /// An acceptor that refuses.
    Refuser,
}

/// What a proof covers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transcript<'a> {
    /// The first message of each end; both contain a random nonce.
    pub(crate) hello: &'a [u8],
    pub(crate) challenge: &'a [u8],
    /// What encrypts the connection, if something does.
    pub(crate) channel: Option<[u8; 32]>,
}

/// What a proof shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    /// The far end has another token.
    OtherToken,
    /// The far end has the token, but another channel: somebody in between ends TLS.
    OtherChannel,
}

impl JobToken {
    /// A token from any bytes; the empty token is the same for everybody. Connections between
    /// machines are encrypted.
    pub fn new(secret: impl AsRef<[u8]>) -> JobToken {
        let secret = secret.as_ref();
        let key = blake3::derive_key("regatta net 2025 job token", secret);
        let key = if is_random(secret) { key } else { slow_hash(&key) };
        JobToken { key, protection: Arc::new(Protection::new(Encryption::default())) }
    }

    /// The same token for connections that are encrypted in other cases.
    pub fn encrypted(self, encryption: Encryption) -> JobToken {
        JobToken { protection: Arc::new(Protection::new(encryption)), ..self }
    }

    /// As [`encrypted`](JobToken::encrypted), with certificates that both ends verify.
    ///
    /// # Errors
    /// If a file cannot be read or does not hold what it should.
    pub fn certified(
        self,
        encryption: Encryption,
        files: &Certificates,
    ) -> Result<JobToken, Error> {
        let protection = Arc::new(Protection::with_certificates(encryption, files)?);
        Ok(JobToken { protection, ..self })
    }

    /// The same token for a far end that wants encryption although it seems to be on this machine.
    pub fn always_encrypted(&self) -> JobToken {
        JobToken { key: self.key, protection: Arc::new(self.protection.always()) }
    }

    /// Which connections are encrypted.
    pub fn encryption(&self) -> Encryption {
        self.protection.encryption
    }

    /// Two keyed hashes: one of both first messages, and one of these and the channel. So the far
    /// end can tell a wrong token from somebody in between.
    pub(crate) fn prove(&self, side: Side, transcript: &Transcript<'_>) -> [u8; 64] {
        let mut proof = [0; 64];
        let plain = Transcript { channel: None, ..*transcript };
        proof[..32].copy_from_slice(self.hash(side, &plain, &[]).as_bytes());
        proof[32..].copy_from_slice(self.hash(side, transcript, &[]).as_bytes());
        proof
    }

    /// What `proof` shows. In constant time.
    pub(crate) fn verify(&self, side: Side, transcript: &Transcript<'_>, proof: &[u8]) -> Verdict {
        let Some((token, channel)) = proof.split_first_chunk::<32>() else {
            return Verdict::OtherToken;
        };
        let Ok(channel) = <[u8; 32]>::try_from(channel) else { return Verdict::OtherToken };
        let plain = Transcript { channel: None, ..*transcript };
        // Comparing a `blake3::Hash` takes the same time wherever they differ.
        if self.hash(side, &plain, &[]) != blake3::Hash::from_bytes(*token) {
            return Verdict::OtherToken;
        }
        if self.hash(side, transcript, &[]) != blake3::Hash::from_bytes(channel) {
            return Verdict::OtherChannel;
        }
        Verdict::Good
    }

    /// A keyed hash of a refusal, so that a stranger cannot refuse for an acceptor.
    pub(crate) fn sign(&self, transcript: &Transcript<'_>, refusal: &[u8]) -> [u8; 32] {
        *self.hash(Side::Refuser, transcript, refusal).as_bytes()
    }

    /// Whether a refusal is one of a process with this token.
    pub(crate) fn has_signed(
        &self,
        transcript: &Transcript<'_>,
        refusal: &[u8],
        signature: &[u8; 32],
    ) -> bool {
        self.hash(Side::Refuser, transcript, refusal) == blake3::Hash::from_bytes(*signature)
    }

    fn hash(&self, side: Side, transcript: &Transcript<'_>, more: &[u8]) -> blake3::Hash {
        let label = match side {
            Side::Dialler => b"client->",
            Side::Acceptor => b"server->",
            Side::Refuser => b"refuse->",
        };
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(label);
        let channel = transcript.channel.as_ref().map_or(&[][..], |channel| &channel[..]);
        for part in [transcript.hello, transcript.challenge, channel] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(more);
        hasher.finalize()
    }
}

/// Whether a launcher has made this token.
fn is_random(secret: &[u8]) -> bool {
    let digits = secret.strip_prefix(RANDOM.as_bytes());
    digits.is_some_and(|digits| digits.len() == 32 && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Argon2id, 19 MiB, two passes. Two jobs with the same token have the same key, so the salt is a
/// constant.
fn slow_hash(secret: &[u8; 32]) -> [u8; 32] {
    let mut key = [0; 32];
    let mut memory = vec![Block::default(); Params::DEFAULT.block_count()];
    let hash = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::DEFAULT);
    let done =
        hash.hash_password_into_with_memory(secret, b"regatta job token", &mut key, &mut memory);
    match done {
        Ok(()) => key,
        Err(e) => unreachable!("all lengths are constants: {e}"),
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobToken(secret)")
    }
}

/// Bytes that nobody can guess.
///
/// # Errors
/// [`Error::System`] when the system has none.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::System(format!("no random bytes: {e}"))),
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

    fn over(channel: Option<[u8; 32]>) -> Transcript<'static> {
        Transcript { hello: b"hello", challenge: b"challenge", channel }
    }

    #[test]
    fn a_proof_holds_for_its_token_direction_nonces_and_channel_only() {
        let token = JobToken::new("secret");
        let proof = token.prove(Side::Dialler, &over(None));
        assert_eq!(token.verify(Side::Dialler, &over(None), &proof), Verdict::Good);
        let others = [
            token.verify(Side::Acceptor, &over(None), &proof),
            token.verify(Side::Dialler, &over(None), &proof[..63]),
            token.verify(Side::Dialler, &over(None), &proof[..31]),
            JobToken::new("other").verify(Side::Dialler, &over(None), &proof),
        ];
        assert_eq!(others, [Verdict::OtherToken; 4]);
        let moved = Transcript { hello: b"hell", challenge: b"ochallenge", channel: None };
        assert_eq!(token.verify(Side::Dialler, &moved, &proof), Verdict::OtherToken);
        let elsewhere = token.verify(Side::Dialler, &over(Some([1; 32])), &proof);
        assert_eq!(elsewhere, Verdict::OtherChannel);
        let proof = token.prove(Side::Dialler, &over(Some([1; 32])));
        assert_eq!(token.verify(Side::Dialler, &over(Some([1; 32])), &proof), Verdict::Good);
        for channel in [None, Some([2; 32])] {
            let verdict = token.verify(Side::Dialler, &over(channel), &proof);
            assert_eq!(verdict, Verdict::OtherChannel);
        }
    }

    #[test]
    fn a_refusal_is_signed_with_its_text() {
        let token = JobToken::new("secret");
        let signature = token.sign(&over(None), b"no");
        assert!(token.has_signed(&over(None), b"no", &signature));
        assert!(!token.has_signed(&over(None), b"yes", &signature));
        assert!(!token.has_signed(&over(Some([1; 32])), b"no", &signature));
        assert!(!JobToken::new("other").has_signed(&over(None), b"no", &signature));
    }
}
