//! A server that speaks Kafka, for tests: the mock cluster of librdkafka, in this process.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};

/// Before messages must have arrived.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster of one broker on a port of this machine. It ends when it is dropped.
pub struct KafkaServer {
    cluster: MockCluster<'static, DefaultProducerContext>,
    producer: BaseProducer,
}

impl KafkaServer {
    /// Starts it with topics of so many partitions.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(topics: &[(&str, i32)]) -> KafkaServer {
        let cluster = MockCluster::new(1).expect("a mock cluster starts");
        for (topic, partitions) in topics {
            cluster.create_topic(topic, *partitions, 1).expect("a topic is made");
        }
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        let producer = config.create().expect("a producer starts");
        KafkaServer { cluster, producer }
    }

    /// The address of a topic.
    pub fn address(&self, topic: &str) -> String {
        format!("kafka://{}/{topic}", self.cluster.bootstrap_servers())
    }

    /// Adds messages to a partition, and waits until they have arrived.
    ///
    /// # Panics
    /// If they do not arrive.
    pub fn send<'a>(&self, topic: &str, partition: i32, lines: impl Iterator<Item = &'a str>) {
        for line in lines {
            let record = BaseRecord::<(), str>::to(topic).partition(partition).payload(line);
            self.producer.send(record).map_err(|(e, _)| e).expect("there is room in the queue");
        }
        self.producer.flush(TIMEOUT).expect("messages arrive");
    }
}
