//! Addresses of messages: `scheme://host:port,host:port/name,name?parameter=value&...`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

#[cfg(any(feature = "redis", feature = "kafka", test))]
use crate::Error;

/// The schemes of messages.
const SCHEMES: [&str; 2] = ["redis", "kafka"];

/// Where messages are: those of a whole log, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) scheme: String,
    pub(crate) hosts: String,
    /// Streams of Redis, or the topic of Kafka.
    pub(crate) names: Vec<String>,
    pub(crate) parameters: BTreeMap<String, String>,
}

/// Whether a path is an address of messages.
pub fn is_messages(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    text.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

#[cfg(any(feature = "redis", feature = "kafka", test))]
impl Address {
    /// Reads an address. `known` are the parameters that it may have.
    ///
    /// # Errors
    /// If it has no host or no name, a parameter is unknown, or it holds a password.
    pub(crate) fn parse(text: &str, known: &[&str]) -> Result<Address, Error> {
        // Without what may be a password.
        let public = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
        let wrong = |why: &str| Error::config(format!("{public}: {why}"));
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(wrong("is no address of messages"));
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let Some((hosts, names)) = place.split_once('/') else {
            return Err(wrong("lacks the name of a stream or topic after the host"));
        };
        if hosts.contains('@') {
            return Err(wrong("a password does not belong into an address, which is printed"));
        }
        let names: Vec<String> = names.split(',').map(str::to_string).collect();
        if hosts.is_empty() || names.iter().any(String::is_empty) {
            return Err(wrong("expected a host and the names of streams or a topic"));
        }
        let mut parameters = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) || value.is_empty() {
                let known = known.join(", ");
                return Err(wrong(&format!("'{pair}' is no parameter with a value ({known})")));
            }
            parameters.insert(name.to_string(), value.to_string());
        }
        let (scheme, hosts) = (scheme.to_string(), hosts.to_string());
        Ok(Address { scheme, hosts, names, parameters })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// A parameter that addresses of parts have.
    pub(crate) fn number(&self, name: &str) -> Result<u64, Error> {
        let number = self.get(name).and_then(|text| text.parse().ok());
        number.ok_or_else(|| Error::config(format!("{self}: expected a number as '{name}'")))
    }

    /// The same log, of which only one name and some more parameters are meant.
    pub(crate) fn part(&self, name: &str, more: &[(&str, String)]) -> Address {
        let mut part = Address { names: vec![name.to_string()], ..self.clone() };
        part.parameters.remove("from");
        part.parameters.extend(more.iter().map(|(name, value)| (name.to_string(), value.clone())));
        part
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme, self.hosts, self.names.join(","))?;
        for (i, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let text = "redis://h:6379/a,b?field=line&from=latest";
        let address = Address::parse(text, &["field", "from"]).unwrap();
        assert_eq!((address.names.len(), address.get("from")), (2, Some("latest")));
        assert_eq!(address.to_string(), text);
        let part = address.part("b", &[("after", "1-0".into())]);
        assert_eq!(part.to_string(), "redis://h:6379/b?after=1-0&field=line");
        assert!(is_messages(Path::new(text)) && !is_messages(Path::new("s3://b/x")));
        let fails = |text: &str| Address::parse(text, &["field"]).unwrap_err().to_string();
        assert!(fails("redis://h:1").contains("lacks the name"));
        assert!(fails("redis://h:1/a,").contains("expected a host"));
        assert!(fails("redis://h:1/a?colour=red").contains("'colour=red' is no parameter"));
        let secret = fails("redis://me:secret@h:1/a");
        assert!(secret.contains("a password") && !secret.contains("secret@"), "{secret}");
        assert!(!secret.contains("me:secret"), "{secret}");
    }
}
