//! A topic of Kafka, by librdkafka. Positions are kept in checkpoints and never committed to Kafka:
//! whoever goes back to a checkpoint goes back in the topic, too.

use std::collections::HashMap;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::address::Address;
use super::messages::{LineBuffer, Log};
use crate::Error;

/// Where reading begins without a position, and a file with properties of librdkafka.
const PARAMETERS: [&str; 2] = ["from", "properties_file"];
/// Those of a part: a partition, its first message, and the one after the last.
const OF_PART: [&str; 4] = ["first", "partition", "properties_file", "upto"];

/// Before an answer, or the next message, must have come.
const TIMEOUT: Duration = Duration::from_secs(30);

fn error(address: &Address, why: impl ToString) -> Error {
    Error::Messages { address: address.to_string(), why: why.to_string() }
}

fn connect(address: &Address) -> Result<BaseConsumer, Error> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &address.hosts);
    // The library wants a group; nothing is ever committed to it.
    config.set("group.id", "regatta").set("enable.auto.commit", "false");
    config.set("auto.offset.reset", "error").set("enable.partition.eof", "true");
    if let Some(file) = address.get("properties_file") {
        let text = std::fs::read_to_string(file).map_err(|e| Error::io(file, e))?;
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let Some((name, value)) = line.split_once('=') else {
                return Err(Error::config(format!("{file}: expected name=value, found '{line}'")));
            };
            config.set(name.trim(), value.trim());
        }
    }
    config.create().map_err(|e| error(address, e))
}

/// The partitions of a topic.
pub(super) struct Topic {
    address: Address,
    consumer: BaseConsumer,
    from_latest: bool,
    /// First and next message, as they were when it was asked what is available.
    seen: HashMap<String, (u64, u64)>,
    /// Where partitions began that are read from their end.
    begins: HashMap<String, u64>,
}

impl Topic {
    pub(super) fn new(address: &str) -> Result<Topic, Error> {
        let address = Address::parse(address, &PARAMETERS)?;
        if address.names.len() > 1 {
            return Err(Error::config(format!("{address}: expected one topic")));
        }
        let from_latest = match address.get("from") {
            None | Some("earliest") => false,
            Some("latest") => true,
            Some(other) => {
                let expected = "expected earliest or latest";
                return Err(Error::config(format!("{address}: from is '{other}', {expected}")));
            }
        };
        let consumer = connect(&address)?;
        let (seen, begins) = (HashMap::new(), HashMap::new());
        Ok(Topic { address, consumer, from_latest, seen, begins })
    }

    /// The position of a partition, whose messages are in a range.
    fn at(&mut self, partition: &str, from: Option<&str>, range: (u64, u64)) -> Result<u64, Error> {
        let (low, high) = range;
        match from {
            Some(text) => text.parse().map_err(|_| {
                error(&self.address, format!("'{text}' is no offset of partition {partition}"))
            }),
            None if self.from_latest => {
                Ok(*self.begins.entry(partition.to_string()).or_insert(high))
            }
            None => Ok(low),
        }
    }
}

/// Messages that were removed before they were read are an error, never passed over.
fn check_kept(address: &Address, partition: &str, at: u64, range: (u64, u64)) -> Result<(), Error> {
    let (low, high) = range;
    if (low..=high).contains(&at) {
        return Ok(());
    }
    Err(error(
        address,
        format!(
            "partition {partition} has the messages {low} to {high}, and {at} is the next to \
             train: messages were removed, or the topic is another; keep messages longer than \
             checkpoints, and begin anew with --resume none"
        ),
    ))
}

/// The first message that is there, and the one that comes next.
fn range_of(consumer: &BaseConsumer, at: &Address, partition: &str) -> Result<(u64, u64), Error> {
    let number: i32 = partition.parse().map_err(|_| error(at, "a partition has a number"))?;
    let found = consumer.fetch_watermarks(&at.names[0], number, TIMEOUT);
    let (low, high) = found.map_err(|e| error(at, e))?;
    Ok((low.max(0) as u64, high.max(0) as u64))
}

impl Log for Topic {
    fn partitions(&mut self) -> Result<Vec<String>, Error> {
        let topic = &self.address.names[0];
        let found = self.consumer.fetch_metadata(Some(topic), TIMEOUT);
        let found = found.map_err(|e| error(&self.address, e))?;
        let partitions = found.topics().first().map_or(&[][..], |topic| topic.partitions());
        if partitions.is_empty() {
            return Err(error(&self.address, format!("there is no topic {topic}")));
        }
        let mut numbers: Vec<i32> = partitions.iter().map(|partition| partition.id()).collect();
        numbers.sort_unstable();
        Ok(numbers.iter().map(i32::to_string).collect())
    }

    fn available(&mut self, partition: &str, from: Option<&str>) -> Result<u64, Error> {
        let range = range_of(&self.consumer, &self.address, partition)?;
        let at = self.at(partition, from, range)?;
        check_kept(&self.address, partition, at, range)?;
        self.seen.insert(partition.to_string(), range);
        Ok(range.1 - at)
    }

    fn take(
        &mut self,
        partition: &str,
        from: Option<&str>,
        n: u64,
    ) -> Result<(Address, String), Error> {
        let Some(range) = self.seen.get(partition).copied() else {
            return Err(error(&self.address, "nobody has asked what is available"));
        };
        let first = self.at(partition, from, range)?;
        let upto = (first + n).to_string();
        let more = [
            ("first", first.to_string()),
            ("partition", partition.to_string()),
            ("upto", upto.clone()),
        ];
        Ok((self.address.part(&self.address.names[0], &more), upto))
    }
}

/// The lines of a part.
pub(super) struct Lines {
    address: Address,
    consumer: BaseConsumer,
    partition: i32,
    /// The next message.
    next: u64,
    upto: u64,
    buffer: LineBuffer,
}

impl Lines {
    pub(super) fn open(address: &str) -> Result<Lines, Error> {
        let address = Address::parse(address, &OF_PART)?;
        let (next, upto) = (address.number("first")?, address.number("upto")?);
        let partition = address.number("partition")? as i32;
        let consumer = connect(&address)?;
        let range = range_of(&consumer, &address, &partition.to_string())?;
        check_kept(&address, &partition.to_string(), next, range)?;
        let mut assigned = TopicPartitionList::new();
        let assign = assigned
            .add_partition_offset(&address.names[0], partition, Offset::Offset(next as i64))
            .and_then(|()| consumer.assign(&assigned));
        assign.map_err(|e| error(&address, e))?;
        Ok(Lines { address, consumer, partition, next, upto, buffer: LineBuffer::default() })
    }

    fn fill(&mut self) -> Result<(), Error> {
        let until = Instant::now() + TIMEOUT;
        while self.buffer.is_empty() && self.next < self.upto {
            match self.consumer.poll(Duration::from_millis(200)) {
                Some(Ok(message)) => {
                    let offset = message.offset().max(0) as u64;
                    self.next = offset + 1;
                    if offset < self.upto {
                        self.buffer.push(message.payload().unwrap_or_default());
                    }
                }
                // What is left of the range are marks of transactions.
                Some(Err(KafkaError::PartitionEOF(_))) => self.next = self.upto,
                Some(Err(e)) if Instant::now() >= until => return Err(error(&self.address, e)),
                None if Instant::now() >= until => {
                    let (partition, next, seconds) = (self.partition, self.next, TIMEOUT.as_secs());
                    let what = format!("message {next} of partition {partition}");
                    let why = format!("{what} has not come within {seconds} s");
                    return Err(error(&self.address, why));
                }
                Some(Err(_)) | None => {}
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
