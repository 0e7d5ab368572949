//! Streams of messages: a data pass is a range of messages of every partition.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use super::address::Address;
use super::tail::End;
use super::{PassPlan, Planner, Upcoming, Waiting};
use crate::Error;

/// Which messages, and when they end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagesOptions {
    /// The address: `redis://host:port/stream,stream` or `kafka://host:port/topic`.
    pub address: String,
    /// Most messages of a data pass.
    pub per_pass: u64,
    /// How long a data pass of fewer messages waits for more.
    pub linger: Duration,
    /// When the data end.
    pub end: End,
}

/// Messages in partitions, each in the order in which they came.
pub(crate) trait Log {
    /// The names of the partitions.
    ///
    /// # Errors
    /// If nobody answers.
    fn partitions(&mut self) -> Result<Vec<String>, Error>;

    /// How many messages have come to a partition since a position, or since the beginning.
    ///
    /// # Errors
    /// If nobody answers, or messages since the position are gone.
    fn available(&mut self, partition: &str, from: Option<&str>) -> Result<u64, Error>;

    /// The address of the next `n` messages, of those that are available, and the position after
    /// them.
    ///
    /// # Errors
    /// As [`Log::available`].
    fn take(
        &mut self,
        partition: &str,
        from: Option<&str>,
        n: u64,
    ) -> Result<(Address, String), Error>;
}

/// Plans data passes over messages.
pub struct Messages {
    log: Box<dyn Log>,
    options: MessagesOptions,
    waiting: Waiting,
    /// Since when there are messages, but not enough.
    lingers: Option<Instant>,
}

/// Positions by partition.
type Positions = BTreeMap<String, String>;

impl Messages {
    /// A planner; nobody is asked yet.
    ///
    /// # Errors
    /// If the address cannot be used, or this program was built without what it needs.
    pub fn new(options: MessagesOptions) -> Result<Messages, Error> {
        let log = open_log(&options.address)?;
        Ok(Messages { log, options, waiting: Waiting::default(), lingers: None })
    }

    /// How many messages of each partition the next data pass has: an equal number of each, and
    /// what is left from those that have more.
    fn shares(&self, available: &[u64]) -> Vec<u64> {
        let most = self.options.per_pass;
        let equal = most / available.len().max(1) as u64;
        let mut shares: Vec<u64> = available.iter().map(|n| *n.min(&equal)).collect();
        let mut left = most - shares.iter().sum::<u64>();
        for (share, n) in shares.iter_mut().zip(available) {
            let more = (n - *share).min(left);
            (*share, left) = (*share + more, left - more);
        }
        shares
    }

    fn plan(
        &mut self,
        mut positions: Positions,
        partitions: &[String],
        available: &[u64],
    ) -> Result<PassPlan, Error> {
        let shares = self.shares(available);
        let mut parts = Vec::new();
        for (partition, n) in partitions.iter().zip(&shares).filter(|(_, n)| **n > 0) {
            let from = positions.get(partition).map(String::as_str);
            let (part, position) = self.log.take(partition, from, *n)?;
            positions.insert(partition.clone(), position);
            parts.push(part.to_string());
        }
        let n: u64 = shares.iter().sum();
        let title = format!("{n} message{}", if n == 1 { "" } else { "s" });
        let next = serde_json::to_string(&positions).expect("positions are plain data");
        Ok(PassPlan { title, parts, next })
    }
}

impl Planner for Messages {
    fn next_pass(&mut self, after: Option<&PassPlan>) -> Result<Upcoming, Error> {
        const LOOK_EVERY: Duration = Duration::from_millis(50);
        if let Some(end) = self.options.end.asked() {
            return Ok(end);
        }
        let address = self.options.address.clone();
        let positions: Positions = match after {
            None => Positions::new(),
            Some(plan) => serde_json::from_str(&plan.next).map_err(|_| {
                let title = &plan.title;
                Error::config(format!("'{title}' is not of {address}: other data were trained"))
            })?,
        };
        let what = format!("messages of {address}");
        let begin = Instant::now();
        loop {
            let partitions = self.log.partitions()?;
            let mut available = Vec::new();
            for partition in &partitions {
                let from = positions.get(partition).map(String::as_str);
                available.push(self.log.available(partition, from)?);
            }
            let total: u64 = available.iter().sum();
            if total == 0 {
                self.lingers = None;
                return Ok(self.options.end.wait(&mut self.waiting, &what));
            }
            self.waiting.end();
            let since = self.lingers.get_or_insert_with(Instant::now);
            if total >= self.options.per_pass || since.elapsed() >= self.options.linger {
                self.lingers = None;
                return self.plan(positions, &partitions, &available).map(Upcoming::Pass);
            }
            if begin.elapsed() >= Duration::from_secs(1) {
                return Ok(Upcoming::Later(what));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn open_log(address: &str) -> Result<Box<dyn Log>, Error> {
    match address.split_once("://").map(|(scheme, _)| scheme) {
        #[cfg(feature = "redis")]
        Some("redis") => Ok(Box::new(super::redis::Streams::new(address)?)),
        #[cfg(feature = "kafka")]
        Some("kafka") => Ok(Box::new(super::kafka::Topic::new(address)?)),
        _ => Err(not_built(address)),
    }
}

/// The messages of a part as lines.
///
/// # Errors
/// If nobody answers, or messages are gone.
pub(crate) fn open_part(path: &Path) -> Result<Box<dyn Read + Send>, Error> {
    let address = path.to_string_lossy();
    match address.split_once("://").map(|(scheme, _)| scheme) {
        #[cfg(feature = "redis")]
        Some("redis") => Ok(Box::new(super::redis::Lines::open(&address)?)),
        #[cfg(feature = "kafka")]
        Some("kafka") => Ok(Box::new(super::kafka::Lines::open(&address)?)),
        _ => Err(not_built(&address)),
    }
}

fn not_built(address: &str) -> Error {
    let scheme = address.split_once("://").map_or(address, |(scheme, _)| scheme);
    Error::config(format!("{address}: this program was built without the feature '{scheme}'"))
}

/// Messages that have come and are not read as lines yet.
#[cfg(any(feature = "redis", feature = "kafka"))]
#[derive(Default)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    read: usize,
}

#[cfg(any(feature = "redis", feature = "kafka"))]
impl LineBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.read == self.bytes.len()
    }

    pub(super) fn push(&mut self, message: &[u8]) {
        if self.is_empty() {
            self.bytes.clear();
            self.read = 0;
        }
        self.bytes.extend_from_slice(message);
        if !message.ends_with(b"\n") {
            self.bytes.push(b'\n');
        }
    }

    pub(super) fn read(&mut self, out: &mut [u8]) -> usize {
        let n = out.len().min(self.bytes.len() - self.read);
        out[..n].copy_from_slice(&self.bytes[self.read..self.read + n]);
        self.read += n;
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of messages by partition; a position is how many were taken.
    struct Counts(BTreeMap<String, u64>);

    impl Log for Counts {
        fn partitions(&mut self) -> Result<Vec<String>, Error> {
            Ok(self.0.keys().cloned().collect())
        }

        fn available(&mut self, partition: &str, from: Option<&str>) -> Result<u64, Error> {
            Ok(self.0[partition] - from.map_or(0, |n| n.parse::<u64>().unwrap()))
        }

        fn take(
            &mut self,
            partition: &str,
            from: Option<&str>,
            n: u64,
        ) -> Result<(Address, String), Error> {
            let from = from.map_or(0, |n| n.parse::<u64>().unwrap());
            let address = Address::parse(&format!("kafka://h/{partition}?n={n}"), &["n"])?;
            Ok((address, (from + n).to_string()))
        }
    }

    fn messages(counts: &[(&str, u64)], per_pass: u64, linger: Duration) -> Messages {
        let counts = counts.iter().map(|(name, n)| (name.to_string(), *n)).collect();
        let end = End { idle: Some(Duration::ZERO), stop_file: None };
        let options = MessagesOptions { address: "kafka://h/t".into(), per_pass, linger, end };
        let waiting = Waiting::default();
        Messages { log: Box::new(Counts(counts)), options, waiting, lingers: None }
    }

    #[test]
    fn passes_have_every_message_once_and_a_backlog_is_shared_out() {
        let mut messages = messages(&[("a", 25), ("b", 3), ("c", 0)], 10, Duration::ZERO);
        let mut plans: Vec<PassPlan> = Vec::new();
        while let Upcoming::Pass(plan) = messages.next_pass(plans.last()).unwrap() {
            plans.push(plan);
        }
        let parts: Vec<Vec<String>> = plans.iter().map(|plan| plan.parts.clone()).collect();
        let part = |name: &str, n: u64| format!("kafka://h/{name}?n={n}");
        let expected = [vec![part("a", 7), part("b", 3)], vec![part("a", 10)], vec![part("a", 8)]];
        assert_eq!(parts, expected);
        assert_eq!(plans[2].title, "8 messages");
        let unknown = PassPlan { next: "20190720 after pass 1".into(), ..PassPlan::default() };
        let error = messages.next_pass(Some(&unknown)).unwrap_err().to_string();
        assert!(error.contains("other data were trained"), "{error}");
    }

    #[test]
    fn few_messages_wait_for_more() {
        let mut messages = messages(&[("a", 1)], 10, Duration::from_secs(3600));
        let later = Upcoming::Later("messages of kafka://h/t".into());
        assert_eq!(messages.next_pass(None).unwrap(), later);
        messages.options.linger = Duration::from_millis(1);
        assert!(matches!(messages.next_pass(None).unwrap(), Upcoming::Pass(_)));
    }

    #[test]
    fn what_was_not_built_is_said() {
        let error = open_log("mqtt://h/t").err().unwrap().to_string();
        assert_eq!(error, "mqtt://h/t: this program was built without the feature 'mqtt'");
    }
}
