//! Lists of `host:port`.

use crate::Error;

/// Splits a list at commas; blanks around entries are dropped.
///
/// # Errors
/// If an entry is not `host:port` with a port from 1 to 65535, or occurs twice; `name` is the
/// variable or flag that the list came from.
pub fn parse(name: &str, text: &str) -> Result<Vec<String>, Error> {
    let mut list: Vec<String> = Vec::new();
    for entry in text.split(',').map(str::trim) {
        check(name, text, entry)?;
        if list.iter().any(|earlier| earlier == entry) {
            return Err(Error::invalid(name, text, format!("{entry} is in it twice")));
        }
        list.push(entry.to_string());
    }
    Ok(list)
}

fn check(name: &str, text: &str, entry: &str) -> Result<(), Error> {
    let wrong = |reason: String| Err(Error::invalid(name, text, reason));
    if entry.is_empty() {
        return wrong("an entry between commas is empty".into());
    }
    let Some((host, port)) = split(entry) else {
        return wrong(format!("'{entry}' has no port; write host:port"));
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return wrong(format!("'{entry}' has no host; write host:port"));
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(()),
        _ => wrong(format!("the port of '{entry}' must be a number from 1 to 65535")),
    }
}

/// Host and port of an entry; an IPv6 address is written in brackets.
pub fn split(endpoint: &str) -> Option<(&str, &str)> {
    let (host, port) = endpoint.rsplit_once(':')?;
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return None;
    }
    Some((host, port))
}

/// The host of an entry that has been checked; all of it if there is no port.
pub fn host(endpoint: &str) -> &str {
    split(endpoint).map_or(endpoint, |(host, _)| host)
}

/// A host without the brackets of an IPv6 address.
pub fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether an entry can only be reached from the machine it is on.
pub fn is_loopback(endpoint: &str) -> bool {
    let host = bare(host(endpoint));
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::{is_loopback, parse};

    #[test]
    fn blanks_names_and_ipv6_are_understood() {
        let list = parse("X", " 10.0.0.1:80 ,node-1.svc:6000,[::1]:7").unwrap();
        assert_eq!(list, ["10.0.0.1:80", "node-1.svc:6000", "[::1]:7"]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("a:1,,b:2", "is empty"),
            ("10.0.0.1", "'10.0.0.1' has no port"),
            ("::1", "has no port"),
            (":80", "has no host"),
            ("a:0", "from 1 to 65535"),
            ("a:70000", "from 1 to 65535"),
            ("a:x", "from 1 to 65535"),
            ("a:1, a:1", "a:1 is in it twice"),
        ] {
            let error = parse("LIST", text).unwrap_err().to_string();
            assert!(error.starts_with("LIST is") && error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn loopback_addresses() {
        assert!(["127.0.0.3:1", "localhost:2", "[::1]:3"].into_iter().all(is_loopback));
        assert!(!["10.0.0.1:1", "node:2"].into_iter().any(is_loopback));
    }
}
