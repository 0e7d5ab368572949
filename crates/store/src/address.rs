//! Where a file is: a local path, or a place in a remote store.

use std::fmt;
use std::path::Path;

use crate::Error;

/// Where a file or a folder is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The store: `None` is this machine, otherwise `scheme://authority`.
    store: Option<String>,
    path: String,
}

/// The schemes of remote stores, and the names by which they are also known.
const SCHEMES: [(&str, &[&str]); 4] = [
    ("s3", &["s3a", "s3n"]),
    ("gs", &["gcs"]),
    ("az", &["azure", "abfs", "abfss", "wasb", "wasbs"]),
    ("hdfs", &["viewfs"]),
];

/// Whether a path is the address of a remote store rather than a local path.
pub fn is_remote(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme) && scheme != "file")
}

fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

impl Address {
    /// Reads an address: `scheme://authority/path`, `file:///path` or a local path.
    ///
    /// # Errors
    /// If the scheme is not known, or no bucket, container or host is named.
    pub fn parse(text: &str) -> Result<Address, Error> {
        let wrong = |why: String| Error::Address { address: text.to_string(), why };
        let Some((scheme, rest)) = text.split_once("://").filter(|(s, _)| is_scheme(s)) else {
            return Ok(Address { store: None, path: text.to_string() });
        };
        if scheme == "file" {
            return Ok(Address { store: None, path: rest.to_string() });
        }
        for (known, others) in SCHEMES {
            if others.contains(&scheme) {
                return Err(wrong(format!("write {known}:// instead of {scheme}://")));
            }
        }
        if !SCHEMES.iter().any(|(known, _)| *known == scheme) {
            let known = SCHEMES.map(|(known, _)| format!("{known}://")).join(", ");
            return Err(wrong(format!("{scheme}:// is not one of {known}")));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() {
            let what = if scheme == "hdfs" { "host" } else { "bucket" };
            return Err(wrong(format!("no {what} after {scheme}://")));
        }
        let path = path.trim_end_matches('/');
        if path.contains("//") {
            return Err(wrong("an empty name between two slashes".into()));
        }
        Ok(Address { store: Some(format!("{scheme}://{authority}")), path: path.to_string() })
    }

    /// `scheme://authority`; `None` for this machine.
    pub fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// The path within the store.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Another path of the same store.
    pub fn with_path(&self, path: &str) -> Address {
        Address { store: self.store.clone(), path: path.to_string() }
    }

    /// A file of this folder.
    pub fn join(&self, name: &str) -> Address {
        let folder = self.path.trim_end_matches('/');
        match (folder.is_empty(), &self.store) {
            (true, Some(_)) => self.with_path(name),
            _ => self.with_path(&format!("{folder}/{name}")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.store {
            Some(store) => write!(f, "{store}/{}", self.path),
            None => write!(f, "{}", self.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_address() {
        let a = Address::parse("s3://bucket/days/1/").unwrap();
        assert_eq!((a.store(), a.path()), (Some("s3://bucket"), "days/1"));
        assert_eq!(a.join("x").to_string(), "s3://bucket/days/1/x");
        let root = Address::parse("hdfs://name:9000").unwrap();
        assert_eq!(root.join("x").to_string(), "hdfs://name:9000/x");
        let local = Address::parse("a/b").unwrap();
        assert_eq!((local.store(), local.join("c").to_string()), (None, "a/b/c".to_string()));
        assert_eq!(Address::parse("file:///tmp/x").unwrap().path(), "/tmp/x");
        assert_eq!(Address::parse("/").unwrap().join("c").to_string(), "/c");
    }

    #[test]
    fn wrong_addresses_say_what_is_wrong() {
        for (text, why) in [
            ("ftp://x/y", "ftp:// is not one of s3://, gs://, az://, hdfs://"),
            ("s3a://x/y", "write s3:// instead of s3a://"),
            ("s3:///y", "no bucket after s3://"),
            ("hdfs:///y", "no host after hdfs://"),
            ("s3://b/a//c", "an empty name between two slashes"),
        ] {
            assert_eq!(Address::parse(text).unwrap_err().to_string(), format!("{text}: {why}"));
        }
    }

    #[test]
    fn what_is_remote() {
        for (text, remote) in [
            ("s3://b/k", true),
            ("ftp://b", true),
            ("a/b", false),
            ("file:///x", false),
            ("a b://", false),
        ] {
            assert_eq!(is_remote(Path::new(text)), remote, "{text}");
        }
    }
}
