"""kafka-python."""

from __future__ import annotations

import time
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, NewPartitions, NewTopic, OffsetSpec
from kafka.codec import has_lz4, has_snappy, has_zstd
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import TopicAlreadyExistsError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from tests.compat.areas import CODECS, Client, equal, eventually
from tests.compat.broker import Broker

BASE_MS = int(time.time() * 1000) - 3_600_000
"""An hour ago: young enough for every retention."""
LACKS = {"snappy": not has_snappy(), "lz4": not has_lz4(), "zstd": not has_zstd()}
"""kafka-python takes these codecs from packages of their own; the ones that are not installed are left out."""


def produce(broker: Broker) -> None:
    """Every codec that is installed, idempotent; keys, nulls, headers, timestamps; topics auto-created."""
    for codec in (each for each in CODECS if not LACKS.get(each)):
        topic = broker.name(f"kafka-python-{codec}")
        settings = {"compression_type": None if codec == "none" else codec, "enable_idempotence": True}
        producer = KafkaProducer(bootstrap_servers=broker.address, acks="all", **settings)
        sent = [
            producer.send(
                topic,
                None if number % 5 == 0 else b"v%d" % number,
                b"k%d" % number,
                headers=[("n", b"%d" % number)],
                partition=0,
                timestamp_ms=BASE_MS + number,
            )
            for number in range(100)
        ]
        equal([each.get(20).offset for each in sent], list(range(100)), "offsets")
        producer.close()
        consumer = _consumer(broker)
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        for number, record in enumerate(_poll([consumer], 100)):
            value = None if number % 5 == 0 else b"v%d" % number
            seen = (record.key, record.value, list(record.headers), record.timestamp)
            equal(seen, (b"k%d" % number, value, [("n", b"%d" % number)], BASE_MS + number), "record")
        consumer.close()


def consume(broker: Broker) -> None:
    """The ends, seeks, and offsets by timestamp."""
    topic = broker.name("kafka-python-consume")
    _fill(broker, topic, 2, 100)
    consumer, zero = _consumer(broker), TopicPartition(topic, 0)
    consumer.assign([zero])
    equal(consumer.beginning_offsets([zero])[zero], 0, "beginning")
    equal(consumer.end_offsets([zero])[zero], 50, "end")
    equal(consumer.offsets_for_times({zero: BASE_MS + 20_500})[zero].offset, 11, "offset by timestamp")
    consumer.seek(zero, 48)
    equal([record.offset for record in _poll([consumer], 2)], [48, 49], "after a seek")
    consumer.seek(zero, 9_999)
    equal(_poll([consumer], 1)[0].offset, 0, "after a reset")
    consumer.close()


def groups(broker: Broker) -> None:
    """Range and cooperative; join and leave; commits; groups described, listed, deleted."""
    for assignor in (RangePartitionAssignor, CooperativeStickyAssignor):
        topic, group = broker.name("kafka-python-groups"), broker.name("kafka-python-group")
        _fill(broker, topic, 4, 40)
        settings = {"group_id": group, "partition_assignment_strategy": (assignor,)}
        first = _consumer(broker, **settings)
        first.subscribe([topic])
        equal(len(_poll([first], 40)), 40, "records")
        first.commit()
        second = _consumer(broker, **settings)
        second.subscribe([topic])
        both = [first, second]
        _poll_until(both, lambda both=both: [len(c.assignment()) for c in both] == [2, 2], "both share")
        admin_client = KafkaAdminClient(bootstrap_servers=broker.address)
        if not admin_client.describe_groups([group]):
            raise AssertionError("the group is not described")
        second.close()
        _poll_until([first], lambda first=first: len(first.assignment()) == 4, "one has all again")
        equal(first.committed(TopicPartition(topic, 0)), 10, "committed")
        first.close()
        if group not in str(admin_client.list_groups()):
            raise AssertionError("the group is not listed")
        admin_client.delete_groups([group])
        if group in str(admin_client.list_groups()):
            raise AssertionError("the group is listed after its deletion")
        admin_client.close()


def admin(broker: Broker) -> None:
    """Topics, partitions, configs, records, offsets, the cluster, log dirs."""
    client, topic = KafkaAdminClient(bootstrap_servers=broker.address), broker.name("kafka-python-admin")
    client.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "1000000"})])
    try:
        client.create_topics([NewTopic(topic, 2, 1)])
    except TopicAlreadyExistsError:
        pass
    else:
        raise AssertionError("a topic was made twice")
    client.create_partitions({topic: NewPartitions(3)})
    equal(len(client.describe_topics([topic])[0]["partitions"]), 3, "partitions")
    client.alter_configs([ConfigResource("TOPIC", topic, {"retention.bytes": "777"})])
    said = str(client.describe_configs([ConfigResource("TOPIC", topic)]))
    if "777" not in said:
        raise AssertionError(said)
    _fill(broker, topic, 1, 20)
    zero = TopicPartition(topic, 0)
    for spec, offset in ((OffsetSpec.EARLIEST, 0), (OffsetSpec.LATEST, 20), (OffsetSpec.MAX_TIMESTAMP, 19)):
        equal(client.list_partition_offsets({zero: spec})[zero].offset, offset, spec.name)
    client.delete_records({zero: 6})
    equal(client.list_partition_offsets({zero: OffsetSpec.EARLIEST})[zero].offset, 6, "after deletion")
    equal(len(client.describe_cluster()["brokers"]), 1, "brokers")
    if topic not in str(client.describe_log_dirs()):
        raise AssertionError("log dirs without the topic")
    client.delete_topics([topic])
    if topic in client.list_topics():
        raise AssertionError("the topic is listed after its deletion")
    client.close()


def transactions(broker: Broker) -> None:
    """Commit and abort, with a group's position in the transaction."""
    topic, group = broker.name("kafka-python-transactions"), broker.name("kafka-python-positions")
    _fill(broker, topic, 1, 1)
    zero = TopicPartition(topic, 0)
    producer = KafkaProducer(
        bootstrap_servers=broker.address, transactional_id=broker.name("kafka-python-tx"), acks="all"
    )
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        for record in range(10):
            producer.send(topic, b"%d-%d" % (number, record), partition=0)
        producer.flush(20)
        producer.send_offsets_to_transaction(
            {zero: OffsetAndMetadata(number, "", -1)}, ConsumerGroupMetadata(group, -1, "", None)
        )
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    consumer = _consumer(broker, isolation_level="read_committed", group_id=group)
    consumer.assign([zero])
    equal(consumer.committed(zero), 2, "the position of the last transaction that was committed")
    consumer.seek_to_beginning()
    wanted = [b"0"] + [b"%d-%d" % (number, record) for number in (0, 2) for record in range(10)]
    equal([each.value for each in _poll([consumer], 21)], wanted, "committed records")
    equal(consumer.poll(400), {}, "more records")
    consumer.close()


# --- details -----------------------------------------------------------------------------------------------


def _consumer(broker: Broker, **settings: Any) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=broker.address,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        **settings,
    )


def _fill(broker: Broker, topic: str, partitions: int, records: int) -> None:
    client = KafkaAdminClient(bootstrap_servers=broker.address)
    if topic not in client.list_topics():
        client.create_topics([NewTopic(topic, partitions, 1)])
    client.close()
    producer = KafkaProducer(bootstrap_servers=broker.address)
    for number in range(records):
        producer.send(
            topic, b"%d" % number, partition=number % partitions, timestamp_ms=BASE_MS + number * 1000
        )
    producer.flush(20)
    producer.close()


def _poll(consumers: list[KafkaConsumer], wanted: int) -> list[Any]:
    found: list[Any] = []

    def polled() -> bool:
        for consumer in consumers:
            for records in consumer.poll(100, max_records=wanted - len(found)).values():
                found.extend(records)
        return len(found) >= wanted

    eventually(polled, f"{wanted} records")
    return found


def _poll_until(consumers: list[KafkaConsumer], fact: Any, what: str) -> None:
    def polled() -> bool:
        for consumer in consumers:
            consumer.poll(500)  # shorter than a join, it would cut the join short and ask again, for ever
        return bool(fact())

    eventually(polled, what)


CLIENT = Client(
    f"kafka-python {kafka.__version__}",
    {
        "produce": produce,
        "consume": consume,
        "groups": groups,
        "admin": admin,
        "transactions": transactions,
    },
)
