//! Streams of Redis. Positions are kept in checkpoints, not by a consumer group in Redis: whoever
//! goes back to a checkpoint goes back in the stream, too.

use std::collections::HashMap;
use std::io::{self, Read};
use std::time::Duration;

use redis::{Connection, FromRedisValue, Value};

use super::address::Address;
use super::messages::{LineBuffer, Log};
use crate::Error;

/// Where reading begins without a position, the field with the line, and a file with the password.
const PARAMETERS: [&str; 3] = ["field", "from", "password_file"];
/// Those of a part: the entries between two, how many there are, how many came before them.
const OF_PART: [&str; 6] = ["after", "before", "field", "n", "password_file", "upto"];

/// Entries in a request.
const PAGE: u64 = 1000;
/// Before an answer must have come.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts to reach a server that was there, one second apart.
const ATTEMPTS: u32 = 30;

/// A connection that is made when it is needed, and again when it breaks.
struct Server {
    address: Address,
    connection: Option<Connection>,
}

impl Server {
    fn connect(&self) -> Result<Connection, Error> {
        let fail = |e: redis::RedisError| self.error(&e.to_string());
        let client =
            redis::Client::open(format!("redis://{}", self.address.hosts)).map_err(fail)?;
        let mut connection = client.get_connection_with_timeout(TIMEOUT).map_err(fail)?;
        connection.set_read_timeout(Some(TIMEOUT)).map_err(fail)?;
        connection.set_write_timeout(Some(TIMEOUT)).map_err(fail)?;
        if let Some(file) = self.address.get("password_file") {
            let password = std::fs::read_to_string(file).map_err(|e| Error::io(file, e))?;
            let auth: Result<(), _> =
                redis::cmd("AUTH").arg(password.trim_end()).query(&mut connection);
            auth.map_err(fail)?;
        }
        Ok(connection)
    }

    /// Asks again for a while when the server is gone: it may be started anew.
    fn query<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, Error> {
        let mut attempt = 1;
        loop {
            match self.try_query(command) {
                Err(Failure::Gone(_)) if attempt < ATTEMPTS => {
                    (self.connection, attempt) = (None, attempt + 1);
                    std::thread::sleep(Duration::from_secs(1));
                }
                Err(Failure::Gone(e) | Failure::Refused(e)) => return Err(e),
                Ok(found) => return Ok(found),
            }
        }
    }

    fn try_query<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, Failure> {
        if self.connection.is_none() {
            self.connection = Some(self.connect().map_err(Failure::Gone)?);
        }
        let connection = self.connection.as_mut().expect("made above");
        command.query(connection).map_err(|e: redis::RedisError| {
            let is_gone = e.is_io_error() || e.is_connection_dropped() || e.is_timeout();
            let error = self.error(&e.to_string());
            if is_gone { Failure::Gone(error) } else { Failure::Refused(error) }
        })
    }

    fn error(&self, why: &str) -> Error {
        Error::Messages { address: self.address.to_string(), why: why.to_string() }
    }

    /// What a stream holds; nothing if there is none.
    fn info(&mut self, stream: &str) -> Result<Option<Info>, Error> {
        let exists: bool = self.query(redis::cmd("EXISTS").arg(stream))?;
        if !exists {
            return Ok(None);
        }
        let info: HashMap<String, Value> =
            self.query(redis::cmd("XINFO").arg("STREAM").arg(stream))?;
        let number = |name: &str| {
            let value = info.get(name).cloned();
            value.and_then(|value| u64::from_redis_value(value).ok())
        };
        let last = info.get("last-generated-id").cloned();
        let last = last.and_then(|value| String::from_redis_value(value).ok());
        let info = (last, number("length"), number("entries-added"));
        let (Some(last), Some(length), Some(added)) = info else {
            return Err(self.error("XINFO STREAM has no entries-added: Redis 7 or newer is needed"));
        };
        Ok(Some(Info { last, added, removed: added.saturating_sub(length) }))
    }
}

enum Failure {
    Gone(Error),
    Refused(Error),
}

/// What Redis says of a stream.
#[derive(Debug, Clone)]
struct Info {
    last: String,
    /// Entries that were ever added.
    added: u64,
    /// Entries that are not there any more: the oldest ones, where a stream is trimmed.
    removed: u64,
}

/// A position: the entry that was read last, and how many there are up to it.
struct At {
    id: String,
    count: u64,
}

impl At {
    fn parse(text: &str) -> Option<At> {
        let (id, count) = text.split_once(' ')?;
        Some(At { id: id.to_string(), count: count.parse().ok()? })
    }
}

/// The streams of an address.
pub(super) struct Streams {
    server: Server,
    from: From,
    /// As they were when it was asked what is available.
    seen: HashMap<String, Info>,
}

/// Where reading begins without a position.
enum From {
    Earliest,
    /// Behind the entries that are there when the job starts, by stream.
    Latest(HashMap<String, At>),
}

impl Streams {
    pub(super) fn new(address: &str) -> Result<Streams, Error> {
        let address = Address::parse(address, &PARAMETERS)?;
        let from = match address.get("from") {
            None | Some("earliest") => From::Earliest,
            Some("latest") => From::Latest(HashMap::new()),
            Some(other) => {
                let expected = "expected earliest or latest";
                return Err(Error::config(format!("{address}: from is '{other}', {expected}")));
            }
        };
        let server = Server { address, connection: None };
        Ok(Streams { server, from, seen: HashMap::new() })
    }

    /// The position of a stream.
    fn at(&mut self, stream: &str, from: Option<&str>, info: &Info) -> Result<At, Error> {
        if let Some(text) = from {
            let wrong = || self.server.error(&format!("'{text}' is no position of {stream}"));
            return At::parse(text).ok_or_else(wrong);
        }
        Ok(match &mut self.from {
            From::Earliest => At { id: "0-0".into(), count: info.removed },
            From::Latest(begins) => {
                let now = || At { id: info.last.clone(), count: info.added };
                let At { id, count } = begins.entry(stream.to_string()).or_insert_with(now);
                At { id: id.clone(), count: *count }
            }
        })
    }
}

fn field_of(address: &Address) -> String {
    address.get("field").unwrap_or("line").to_string()
}

impl Log for Streams {
    fn partitions(&mut self) -> Result<Vec<String>, Error> {
        Ok(self.server.address.names.clone())
    }

    fn available(&mut self, stream: &str, from: Option<&str>) -> Result<u64, Error> {
        let Some(info) = self.server.info(stream)? else {
            if from.is_some() {
                return Err(self.server.error(&format!("there is no stream {stream} any more")));
            }
            // What comes later is new.
            if let From::Latest(begins) = &mut self.from {
                begins.entry(stream.into()).or_insert(At { id: "0-0".into(), count: 0 });
            }
            return Ok(0);
        };
        let at = self.at(stream, from, &info)?;
        check_kept(&self.server, stream, &at, &info)?;
        self.seen.insert(stream.to_string(), info.clone());
        Ok(info.added - at.count)
    }

    fn take(
        &mut self,
        stream: &str,
        from: Option<&str>,
        n: u64,
    ) -> Result<(Address, String), Error> {
        let Some(info) = self.seen.get(stream).cloned() else {
            return Err(self.server.error("nobody has asked what is available"));
        };
        let at = self.at(stream, from, &info)?;
        let upto = match at.count + n == info.added {
            true => info.last,
            false => self.nth(stream, &at.id, n)?,
        };
        let part = [
            ("after", at.id),
            ("before", at.count.to_string()),
            ("n", n.to_string()),
            ("upto", upto.clone()),
        ];
        let address = self.server.address.part(stream, &part);
        Ok((address, format!("{upto} {}", at.count + n)))
    }
}

impl Streams {
    /// The id of the n-th entry after one.
    fn nth(&mut self, stream: &str, after: &str, n: u64) -> Result<String, Error> {
        let (mut after, mut left) = (after.to_string(), n);
        while left > 0 {
            let page = page(&mut self.server, stream, &after, "+", left.min(PAGE))?;
            let Some((last, _)) = page.last() else {
                let why = format!("{stream} has fewer entries than it had: they were removed");
                return Err(self.server.error(&why));
            };
            (after, left) = (last.clone(), left - page.len() as u64);
        }
        Ok(after)
    }
}

/// Entries that were removed before they were read are an error, never passed over.
fn check_kept(server: &Server, stream: &str, at: &At, info: &Info) -> Result<(), Error> {
    if info.added < at.count {
        let (added, count) = (info.added, at.count);
        let why = format!("{stream} has had {added} entries, but {count} were read: it is another");
        return Err(server.error(&why));
    }
    match info.removed.saturating_sub(at.count) {
        0 => Ok(()),
        n => Err(server.error(&format!(
            "{n} entries of {stream} after {} were removed before they were trained; keep entries \
             longer than checkpoints, and begin anew with --resume none",
            at.id
        ))),
    }
}

type Entry = (String, HashMap<String, Vec<u8>>);

fn page(
    server: &mut Server,
    stream: &str,
    after: &str,
    upto: &str,
    n: u64,
) -> Result<Vec<Entry>, Error> {
    let mut range = redis::cmd("XRANGE");
    range.arg(stream).arg(format!("({after}")).arg(upto).arg("COUNT").arg(n);
    server.query(&range)
}

/// The lines of a part.
pub(super) struct Lines {
    server: Server,
    stream: String,
    field: String,
    /// The last entry that was read.
    after: String,
    upto: String,
    /// Entries that are still to come.
    left: u64,
    buffer: LineBuffer,
}

impl Lines {
    pub(super) fn open(address: &str) -> Result<Lines, Error> {
        let address = Address::parse(address, &OF_PART)?;
        let id = |name: &str| address.get(name).unwrap_or_default().to_string();
        let (after, upto, field) = (id("after"), id("upto"), field_of(&address));
        let (left, count) = (address.number("n")?, address.number("before")?);
        let stream = address.names[0].clone();
        let mut server = Server { address, connection: None };
        let Some(info) = server.info(&stream)? else {
            return Err(server.error(&format!("there is no stream {stream} any more")));
        };
        check_kept(&server, &stream, &At { id: after.clone(), count }, &info)?;
        Ok(Lines { server, stream, field, after, upto, left, buffer: LineBuffer::default() })
    }

    fn fill(&mut self) -> Result<(), Error> {
        while self.buffer.is_empty() && self.left > 0 {
            let n = self.left.min(PAGE);
            let page = page(&mut self.server, &self.stream, &self.after, &self.upto, n)?;
            if page.is_empty() {
                let (left, stream, after) = (self.left, &self.stream, &self.after);
                let why = format!("{left} entries of {stream} after {after} were removed");
                return Err(self.server.error(&why));
            }
            self.left -= page.len() as u64;
            for (id, fields) in page {
                let Some(line) = fields.get(&self.field) else {
                    let (stream, field) = (&self.stream, &self.field);
                    let why = format!("entry {id} of {stream} has no field '{field}'");
                    return Err(self.server.error(&why));
                };
                self.buffer.push(line);
                self.after = id;
            }
        }
        Ok(())
    }
}

impl Read for Lines {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.fill().map_err(io::Error::other)?;
        Ok(self.buffer.read(out))
    }
}
