//! What rust-rdkafka is tried with: `rust AREA BROKER NAME` panics if something does not hold.

use std::collections::HashMap;
use std::env;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

const PARTITIONS: i32 = 3;
const WAIT: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let trial = Trial { broker: arguments[2].clone(), name: arguments[3].clone() };
    match arguments[1].as_str() {
        "produce" => trial.produce(),
        "consume" => trial.consume(),
        "groups" => trial.groups(),
        "admin" => trial.admin(),
        "transactions" => trial.transactions(),
        other => panic!("no such area: {other}"),
    }
}

struct Trial {
    broker: String,
    name: String,
}

impl Trial {
    fn config(&self, settings: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.broker);
        for (name, value) in settings {
            config.set(*name, *value);
        }
        config
    }

    fn administrator(&self) -> AdminClient<DefaultClientContext> {
        self.config(&[]).create().unwrap()
    }

    fn made(&self, topic: &str) -> String {
        let wanted = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        for made in block_on(self.administrator().create_topics(&[wanted], &AdminOptions::new())).unwrap() {
            made.unwrap();
        }
        topic.to_string()
    }

    /// Records without a group's say: all partitions from their first offsets.
    fn read(&self, topic: &str, count: usize, isolation: &str) -> Vec<OwnedMessage> {
        let settings = [("group.id", "rust-none"), ("enable.auto.commit", "false"), ("isolation.level", isolation)];
        let consumer: BaseConsumer = self.config(&settings).create().unwrap();
        let mut wanted = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            wanted.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&wanted).unwrap();
        taken(&consumer, count)
    }

    fn produce(&self) {
        for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
            for idempotent in ["true", "false"] {
                let topic = self.made(&format!("{}-{codec}-{idempotent}", self.name));
                let settings = [("compression.type", codec), ("enable.idempotence", idempotent)];
                sent(&self.config(&settings).create().unwrap(), &topic, 0..300);
                let mut seen: Vec<i64> = self.read(&topic, 300, "read_committed").iter().map(number_of).collect();
                seen.sort();
                assert_eq!(seen, (0..300).collect::<Vec<_>>(), "{codec}");
            }
        }
    }

    fn consume(&self) {
        let topic = self.made(&self.name);
        sent(&self.config(&[]).create().unwrap(), &topic, 0..90);
        for record in self.read(&topic, 90, "read_committed") {
            let number = number_of(&record);
            assert_eq!(record.payload().is_none(), number % 5 == 0, "a null value");
            assert_eq!(record.key().is_none(), number % 7 == 0, "a null key");
        }
        let consumer: BaseConsumer = self.config(&[("group.id", "rust-none")]).create().unwrap();
        let (low, high) = consumer.fetch_watermarks(&topic, 1, WAIT).unwrap();
        assert_eq!((low, high), (0, 30), "watermarks");
        let mut last = TopicPartitionList::new();
        last.add_partition_offset(&topic, 1, Offset::OffsetTail(1)).unwrap();
        consumer.assign(&last).unwrap();
        assert_eq!(taken(&consumer, 1)[0].offset(), 29, "the last one");
        consumer.seek(&topic, 1, Offset::Offset(20), WAIT).unwrap();
        assert_eq!(taken(&consumer, 1)[0].offset(), 20, "after a seek");
        last.set_partition_offset(&topic, 1, Offset::Offset(1)).unwrap();
        let by_time = consumer.offsets_for_times(last, WAIT).unwrap();
        assert_eq!(by_time.elements()[0].offset(), Offset::Offset(0), "by timestamp");
    }

    fn groups(&self) {
        for protocol in ["classic", "consumer"] {
            let topic = self.made(&format!("{}-{protocol}", self.name));
            let settings = [
                ("group.id", topic.as_str()),
                ("group.protocol", protocol),
                ("auto.offset.reset", "earliest"),
                ("enable.auto.commit", "false"),
            ];
            let producer = self.config(&[]).create().unwrap();
            for (first, last) in [(0, 90), (90, 120)] {
                sent(&producer, &topic, first..last);
                let consumer: BaseConsumer = self.config(&settings).create().unwrap();
                consumer.subscribe(&[&topic]).unwrap();
                let mut seen: Vec<i64> = taken(&consumer, (last - first) as usize).iter().map(number_of).collect();
                seen.sort();
                assert_eq!(seen, (first..last).collect::<Vec<_>>(), "{protocol}: what was not committed");
                consumer.commit_consumer_state(CommitMode::Sync).unwrap();
            }
            let consumer: BaseConsumer = self.config(&settings).create().unwrap();
            let listed = consumer.fetch_group_list(None, WAIT).unwrap();
            assert!(listed.groups().iter().any(|group| group.name() == topic), "{protocol}: not listed");
        }
    }

    fn admin(&self) {
        let (topic, admin, options) = (self.made(&self.name), self.administrator(), AdminOptions::new());
        let more = NewPartitions::new(&topic, PARTITIONS as usize + 2);
        block_on(admin.create_partitions(&[more], &options)).unwrap()[0].as_ref().unwrap();
        let known = admin.inner().fetch_metadata(Some(&topic), WAIT).unwrap();
        assert_eq!(known.topics()[0].partitions().len(), PARTITIONS as usize + 2, "partitions");
        let whose = ResourceSpecifier::Topic(&topic);
        let change = AlterConfig { specifier: whose, entries: HashMap::from([("retention.ms", "86400000")]) };
        block_on(admin.alter_configs([&change], &options)).unwrap()[0].as_ref().unwrap();
        let described = block_on(admin.describe_configs([&whose], &options)).unwrap();
        let config = described[0].as_ref().unwrap();
        assert_eq!(config.get("retention.ms").unwrap().value.as_deref(), Some("86400000"), "retention");
        block_on(admin.delete_topics(&[&topic], &options)).unwrap()[0].as_ref().unwrap();
        let left = admin.inner().fetch_metadata(None, WAIT).unwrap();
        assert!(left.topics().iter().all(|each| each.name() != topic), "listed after its deletion");
    }

    fn transactions(&self) {
        let (input, output) = (self.made(&format!("{}-in", self.name)), self.made(&format!("{}-out", self.name)));
        sent(&self.config(&[]).create().unwrap(), &input, 0..30);
        let producer: BaseProducer = self.config(&[("transactional.id", &self.name)]).create().unwrap();
        producer.init_transactions(WAIT).unwrap();
        let settings = [("group.id", self.name.as_str()), ("auto.offset.reset", "earliest")];
        let consumer: BaseConsumer = self.config(&settings).set("enable.auto.commit", "false").create().unwrap();
        consumer.subscribe(&[&input]).unwrap();
        assert_eq!(taken(&consumer, 30).len(), 30);
        for is_kept in [false, true] {
            producer.begin_transaction().unwrap();
            sent(&producer, &output, 0..30);
            let (position, group) = (consumer.position().unwrap(), consumer.group_metadata().unwrap());
            producer.send_offsets_to_transaction(&position, &group, WAIT).unwrap();
            if is_kept {
                producer.commit_transaction(WAIT).unwrap();
            } else {
                producer.abort_transaction(WAIT).unwrap();
            }
            let committed = consumer.committed(WAIT).unwrap();
            let expected = if is_kept { Offset::Offset(10) } else { Offset::Invalid };
            assert!(committed.elements().iter().all(|each| each.offset() == expected), "{committed:?}");
        }
        assert_eq!(self.read(&output, 30, "read_committed").len(), 30, "committed records");
        let all = self.read(&output, 60, "read_uncommitted");
        assert_eq!(all.len(), 60, "records with the aborted ones");
    }
}

/// One record for each number, in turn to each partition. Every fifth has no value, every seventh no key.
fn sent(producer: &BaseProducer, topic: &str, numbers: std::ops::Range<i64>) {
    for number in numbers {
        let (key, value, text) = (format!("k{number}"), format!("v{number}"), number.to_string());
        let headers = OwnedHeaders::new().insert(Header { key: "n", value: Some(&text) });
        let mut record =
            BaseRecord::<String, String>::to(topic).partition((number % PARTITIONS as i64) as i32).headers(headers);
        if number % 7 != 0 {
            record = record.key(&key);
        }
        if number % 5 != 0 {
            record = record.payload(&value);
        }
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(WAIT).unwrap();
    assert_eq!(producer.in_flight_count(), 0, "records without an answer");
}

fn taken(consumer: &BaseConsumer, count: usize) -> Vec<OwnedMessage> {
    let (mut all, deadline) = (Vec::new(), Instant::now() + WAIT);
    while all.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} records", all.len());
        if let Some(message) = consumer.poll(Duration::from_millis(200)) {
            all.push(message.unwrap().detach());
        }
    }
    all
}

fn number_of(record: &OwnedMessage) -> i64 {
    let header = record.headers().unwrap().get(0);
    assert_eq!(header.key, "n");
    std::str::from_utf8(header.value.unwrap()).unwrap().parse().unwrap()
}
