//! How the connections between the machines of a job are protected, as variables say it.

use std::path::PathBuf;

use crate::names::{TLS, TLS_CA, TLS_CERT, TLS_KEY};
use crate::{Env, Error};

/// Which connections are encrypted, and with whose certificates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// Which connections.
    pub mode: TlsMode,
    /// Certificates of the user; without them every process makes its own.
    pub files: Option<Box<TlsFiles>>,
}

/// Which connections are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Those between machines.
    #[default]
    On,
    /// All that are not Unix sockets.
    Always,
    /// None.
    Off,
}

/// Certificates of the user, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain of this process.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who must have signed the certificates of others.
    pub ca: PathBuf,
}

impl TlsMode {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            TlsMode::On => "on",
            TlsMode::Always => "always",
            TlsMode::Off => "off",
        }
    }
}

impl Tls {
    /// What these variables say.
    ///
    /// # Errors
    /// If a value is none of the known ones, or some files are missing beside others.
    pub fn from_env(env: &Env) -> Result<Tls, Error> {
        let mode = match env.get(TLS) {
            None => TlsMode::default(),
            Some(text) => {
                let known = [TlsMode::On, TlsMode::Always, TlsMode::Off];
                let found = known.into_iter().find(|mode| mode.name() == text);
                found.ok_or_else(|| Error::invalid(TLS, text, "it must be on, off or always"))?
            }
        };
        let file = |name: &str| env.get(name).map(PathBuf::from);
        let files = match (file(TLS_CERT), file(TLS_KEY), file(TLS_CA)) {
            (None, None, None) => None,
            (Some(cert), Some(key), Some(ca)) => Some(Box::new(TlsFiles { cert, key, ca })),
            (cert, key, _) => {
                let missing = [(cert.is_none(), TLS_CERT), (key.is_none(), TLS_KEY)];
                let missing = missing.iter().find(|(is_missing, _)| *is_missing);
                let why = "certificate, private key and authority belong together";
                return Err(Error::missing(missing.map_or(TLS_CA, |(_, name)| name), why));
            }
        };
        Ok(Tls { mode, files })
    }

    /// The variables that say this; nothing for what is so anyway.
    pub fn to_env(&self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        let mut put = |name: &str, value: String| pairs.push((name.to_string(), value));
        if self.mode != TlsMode::default() {
            put(TLS, self.mode.name().to_string());
        }
        if let Some(files) = &self.files {
            for (name, path) in
                [(TLS_CERT, &files.cert), (TLS_KEY, &files.key), (TLS_CA, &files.ca)]
            {
                put(name, path.to_string_lossy().into_owned());
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_variables_say() {
        assert_eq!(Tls::from_env(&Env::default()), Ok(Tls::default()));
        let off = Tls::from_env(&Env::from([(TLS, "off")])).unwrap();
        assert_eq!(off.mode, TlsMode::Off);
        let error = Tls::from_env(&Env::from([(TLS, "yes")])).unwrap_err().to_string();
        assert_eq!(error, "REGATTA_TLS is 'yes': it must be on, off or always");
        let error = Tls::from_env(&Env::from([(TLS_CERT, "c"), (TLS_CA, "a")])).unwrap_err();
        assert!(error.to_string().starts_with("REGATTA_TLS_KEY is not set"), "{error}");
        let all = [(TLS, "always"), (TLS_CERT, "c"), (TLS_KEY, "k"), (TLS_CA, "a")];
        let tls = Tls::from_env(&Env::from(all)).unwrap();
        assert_eq!(tls.to_env(), all.map(|(name, value)| (name.to_string(), value.to_string())));
    }
}
