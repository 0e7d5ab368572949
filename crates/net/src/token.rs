//! The secret of a job: proofs that both ends of a connection know it.

use std::fmt;

use crate::error::Error;

/// The secret that all processes of a job share.
///
/// It should be random: whoever can connect to a server may try tokens at the speed of the network.
#[derive(Clone)]
pub struct JobToken {
    key: [u8; 32],
}

/// Which end proves. The two proofs of a connection differ, so that neither can be sent back.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Dialler,
    Acceptor,
}

impl JobToken {
    /// A token from any bytes; the empty token is the same for everybody.
    pub fn new(secret: impl AsRef<[u8]>) -> JobToken {
        JobToken { key: blake3::derive_key("regatta net 2025 job token", secret.as_ref()) }
    }

    /// A keyed hash over the first message of each end; both contain a random nonce.
    pub(crate) fn prove(&self, side: Side, hello: &[u8], challenge: &[u8]) -> [u8; 32] {
        *self.hash(side, hello, challenge).as_bytes()
    }

    /// Whether `proof` is what the other end computes. In constant time.
    pub(crate) fn verify(&self, side: Side, hello: &[u8], challenge: &[u8], proof: &[u8]) -> bool {
        let Ok(proof) = <[u8; 32]>::try_from(proof) else { return false };
        // Comparing a `blake3::Hash` takes the same time wherever they differ.
        self.hash(side, hello, challenge) == blake3::Hash::from_bytes(proof)
    }

    fn hash(&self, side: Side, hello: &[u8], challenge: &[u8]) -> blake3::Hash {
        let label = match side {
            Side::Dialler => b"client->",
            Side::Acceptor => b"server->",
        };
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(label);
        hasher.update(&(hello.len() as u64).to_le_bytes());
        hasher.update(hello);
        hasher.update(challenge);
        hasher.finalize()
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

    #[test]
    fn a_proof_holds_for_its_token_direction_and_nonces_only() {
        let token = JobToken::new("secret");
        let proof = token.prove(Side::Dialler, b"hello", b"challenge");
        assert!(token.verify(Side::Dialler, b"hello", b"challenge", &proof));
        assert!(!token.verify(Side::Acceptor, b"hello", b"challenge", &proof));
        assert!(!token.verify(Side::Dialler, b"hell", b"ochallenge", &proof));
        assert!(!token.verify(Side::Dialler, b"hello", b"challenge", &proof[..31]));
        assert!(!JobToken::new("other").verify(Side::Dialler, b"hello", b"challenge", &proof));
    }
}
