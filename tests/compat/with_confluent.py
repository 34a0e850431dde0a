"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compat.areas import CODECS, Client, equal, eventually
from tests.compat.broker import Broker
from tests.compat.confluent_transactions import transactions
from tests.support.patience import PATIENCE_SECONDS

TIMEOUT = PATIENCE_SECONDS
BASE_MS = int(time.time() * 1000) - 3_600_000
"""An hour ago: young enough for every retention."""


def produce(broker: Broker) -> None:
    """Every codec, with and without idempotence, each acks; headers, nulls, timestamps; large; auto-created."""
    for codec in CODECS:
        topic = broker.name(f"confluent-{codec}")
        sent = _produce_samples(broker, topic, {"compression.type": codec, "enable.idempotence": True})
        _equal_to_sent(_read_all(broker, topic, 0, len(sent)), sent)
    for acks in ("0", "1", "all"):
        topic = broker.name(f"confluent-acks-{acks}")
        _create(broker, topic)
        sent = _produce_samples(broker, topic, {"acks": acks})
        _equal_to_sent(_read_all(broker, topic, 0, len(sent)), sent)
    _large_messages(broker)
    _too_large_is_refused(broker)


def consume(broker: Broker) -> None:
    """From an offset, by timestamp, the ends; past the end; many partitions."""
    topic = broker.name("confluent-consume")
    _create(broker, topic, partitions=3)
    producer = _producer(broker)
    for number in range(300):
        producer.produce(topic, str(number).encode(), partition=number % 3, timestamp=BASE_MS + number * 1000)
    equal(producer.flush(TIMEOUT), 0, "unsent")
    consumer = _consumer(broker, **{"enable.partition.eof": True, "fetch.wait.max.ms": 50})
    try:
        equal(consumer.get_watermark_offsets(TopicPartition(topic, 1), TIMEOUT), (0, 100), "watermarks")
        found = consumer.offsets_for_times(
            [TopicPartition(topic, 0, BASE_MS + 150_500), TopicPartition(topic, 1, BASE_MS + 10**9)], TIMEOUT
        )
        equal(found[0].offset, 51, "offset of the first record at or after the time")
        equal(found[1].offset, -1, "offset of a time after the last record")
        consumer.assign([TopicPartition(topic, 0, 51)])
        equal(_poll(consumer, 1)[0].value(), b"153", "first record after a seek")
        consumer.seek(TopicPartition(topic, 0, 5))
        equal(_poll(consumer, 1)[0].offset(), 5, "offset after a seek")
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
        values = sorted(int(message.value()) for message in _poll(consumer, 300))
        equal(values, list(range(300)), "records of three partitions")
        consumer.assign([TopicPartition(topic, 0, 4_000)])  # out of range: reset to the earliest
        equal(_poll(consumer, 1)[0].offset(), 0, "offset after a reset")
    finally:
        consumer.close()


def groups(broker: Broker) -> None:
    """Each assignor, of clients and of the coordinator; join and leave; static members; commits; what admins see."""
    for strategy in ("range", "roundrobin", "cooperative-sticky"):
        classic = {"heartbeat.interval.ms": 200, "session.timeout.ms": 6000}
        _group_shares(broker, strategy, {"partition.assignment.strategy": strategy, **classic})
    for assignor in ("uniform", "range"):
        _group_shares(
            broker, f"consumer-{assignor}", {"group.protocol": "consumer", "group.remote.assignor": assignor}
        )
    for strategy in ("range", "cooperative-sticky"):
        _group_changes_its_protocol(broker, strategy)
    _static_member_keeps_its_partitions(broker)
    _groups_by_admin(broker)


def admin(broker: Broker) -> None:
    """Topics, partitions, configs, records, cluster, offsets."""
    client = AdminClient({"bootstrap.servers": broker.address})
    topic = broker.name("confluent-admin")
    _create(broker, topic, partitions=2, config={"retention.ms": "3600000"})
    _fails_with(
        KafkaError.TOPIC_ALREADY_EXISTS,
        lambda: client.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(TIMEOUT),
    )
    _fails_with(
        KafkaError.INVALID_CONFIG,
        lambda: client.create_topics([NewTopic(topic + "-bad", 1, config={"retention.ms": "soon"})])[
            topic + "-bad"
        ].result(TIMEOUT),
    )
    client.create_partitions([NewPartitions(topic, 4)])[topic].result(TIMEOUT)
    equal(len(client.list_topics(topic, TIMEOUT).topics[topic].partitions), 4, "partitions")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = client.describe_configs([resource])[resource].result(TIMEOUT)
    equal(entries["retention.ms"].value, "3600000", "retention.ms")
    equal(entries["cleanup.policy"].value, "delete", "cleanup.policy")
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.bytes", "12345", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    client.incremental_alter_configs([change])[change].result(TIMEOUT)
    entries = client.describe_configs([resource])[resource].result(TIMEOUT)
    equal(entries["retention.bytes"].value, "12345", "retention.bytes")
    equal(entries["retention.ms"].value, "604800000", "retention.ms by default")
    broker_id = next(iter(client.list_topics(timeout=TIMEOUT).brokers))
    broker_resource = ConfigResource(ResourceType.BROKER, str(broker_id))
    if not client.describe_configs([broker_resource])[broker_resource].result(TIMEOUT):
        raise AssertionError("a broker without configs")
    cluster = client.describe_cluster().result(TIMEOUT)
    if not cluster.cluster_id or len(cluster.nodes) != 1 or cluster.controller is None:
        raise AssertionError(f"cluster: {cluster.cluster_id!r} {cluster.nodes!r}")
    described = client.describe_topics(confluent_kafka.TopicCollection([topic]))[topic].result(TIMEOUT)
    equal(len(described.partitions), 4, "partitions described")
    producer = _producer(broker)
    for number in range(20):
        producer.produce(topic, b"x", partition=0, timestamp=BASE_MS + (19 - number))
        producer.flush(TIMEOUT)
    equal(_offset(client, topic, OffsetSpec.earliest()), 0, "earliest")
    equal(_offset(client, topic, OffsetSpec.latest()), 20, "latest")
    equal(_offset(client, topic, OffsetSpec.max_timestamp()), 0, "offset of the largest timestamp")
    deleted = client.delete_records([TopicPartition(topic, 0, 7)])
    equal([each.result(TIMEOUT).low_watermark for each in deleted.values()], [7], "low watermark")
    equal(_offset(client, topic, OffsetSpec.earliest()), 7, "earliest after deleting records")
    client.delete_topics([topic])[topic].result(TIMEOUT)
    eventually(lambda: topic not in client.list_topics(timeout=TIMEOUT).topics, "the topic is gone")


# --- details --------------------------------------------------------------------------------------------


def _producer(broker: Broker, settings: dict[str, Any] | None = None) -> Producer:
    return Producer({"bootstrap.servers": broker.address, "linger.ms": 2, **(settings or {})})


def _consumer(broker: Broker, group: str = "", **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group or f"unused-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )


def _create(broker: Broker, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    client = AdminClient({"bootstrap.servers": broker.address})
    client.create_topics([NewTopic(topic, partitions, config=config or {})])[topic].result(TIMEOUT)


Sample = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


def _samples() -> list[Sample]:
    return [
        (b"key", b"value", [], BASE_MS),
        (None, b"no key", [("h", b"1"), ("h", b"2"), ("none", None)], BASE_MS + 1),
        (b"tombstone", None, [], BASE_MS + 2),
        (b"", b"", [("", b"")], BASE_MS + 3),
        *((str(n).encode(), b"abc" * n, [("n", str(n).encode())], BASE_MS + 10 + n) for n in range(200)),
    ]


def _produce_samples(broker: Broker, topic: str, settings: dict[str, Any]) -> list[Sample]:
    failures: list[KafkaError] = []
    producer = _producer(broker, settings)
    samples = _samples()
    for key, value, headers, timestamp in samples:
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            timestamp=timestamp,
            headers=headers,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
    equal(producer.flush(TIMEOUT), 0, "unsent")
    equal(failures, [], "failed deliveries")
    return samples


def _poll(consumer: Consumer, wanted: int, seconds: float = TIMEOUT) -> list[Message]:
    deadline, found = time.monotonic() + seconds, []
    while len(found) < wanted and time.monotonic() < deadline:
        for message in consumer.consume(wanted - len(found), 0.2):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
    equal(len(found), wanted, "messages that came")
    return found


def _read_all(broker: Broker, topic: str, partition: int, wanted: int) -> list[Message]:
    consumer = _consumer(broker)
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        return _poll(consumer, wanted)
    finally:
        consumer.close()


def _equal_to_sent(messages: Iterable[Message], sent: list[Sample]) -> None:
    for offset, (message, sample) in enumerate(zip(messages, sent, strict=True)):
        seen = (message.key(), message.value(), message.headers() or [], message.timestamp()[1])
        equal(message.offset(), offset, "offset")
        equal(seen, sample, f"record {offset}")


def _large_messages(broker: Broker) -> None:
    topic = broker.name("confluent-large")
    _create(broker, topic, config={"max.message.bytes": "12000000"})
    producer = _producer(broker, {"message.max.bytes": 12_000_000})
    values = [bytes([65 + number]) * 8_000_000 for number in range(3)]
    for value in values:
        producer.produce(topic, value, partition=0)
    equal(producer.flush(60), 0, "unsent")
    for message, value in zip(_read_all(broker, topic, 0, 3), values, strict=True):
        if message.value() != value:
            raise AssertionError("a large message came back changed")


def _too_large_is_refused(broker: Broker) -> None:
    topic = broker.name("confluent-too-large")
    _create(broker, topic, config={"max.message.bytes": "10000"})
    errors: list[KafkaError] = []
    producer = _producer(broker, {"compression.type": "none"})
    producer.produce(topic, b"x" * 20_000, on_delivery=lambda error, _message: errors.append(error))
    producer.flush(TIMEOUT)
    equal([error and error.code() for error in errors], [KafkaError.MSG_SIZE_TOO_LARGE], "delivery errors")


def _group_shares(broker: Broker, name: str, settings: dict[str, Any]) -> None:
    topic, group = broker.name(f"confluent-{name}"), broker.name("confluent-group")
    _create(broker, topic, partitions=4)
    first, second = _consumer(broker, group, **settings), _consumer(broker, group, **settings)
    try:
        first.subscribe([topic])
        _poll_until([first], lambda: len(first.assignment()) == 4, "one member has all partitions")
        second.subscribe([topic])
        both = [first, second]
        _poll_until(both, lambda: [len(c.assignment()) for c in both] == [2, 2], "two members share")
        second.close()
        _poll_until([first], lambda: len(first.assignment()) == 4, "the one that is left has all again")
        producer = _producer(broker)
        for number in range(40):
            producer.produce(topic, str(number).encode(), partition=number % 4)
        producer.flush(TIMEOUT)
        equal(len(_poll(first, 40)), 40, "messages")
        first.commit(asynchronous=False)
    finally:
        first.close()
    third = _consumer(broker, group, **settings)
    try:
        committed = third.committed([TopicPartition(topic, partition) for partition in range(4)], TIMEOUT)
        equal([each.offset for each in committed], [10] * 4, "committed offsets")
        third.subscribe([topic])
        producer.produce(topic, b"after", partition=2)
        producer.flush(TIMEOUT)
        equal(_poll(third, 1)[0].value(), b"after", "the first message after the committed ones")
    finally:
        third.close()


def _group_changes_its_protocol(broker: Broker, strategy: str) -> None:
    """Clients are restarted one by one with the new protocol, and back, while the others read on."""
    topic, group = broker.name(f"confluent-change-{strategy}"), broker.name("confluent-change-group")
    _create(broker, topic, partitions=4)
    classic = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 200}
    settings = (
        classic,
        classic,
        {"group.protocol": "consumer"},
        {"group.protocol": "consumer"},
        classic,
        classic,
    )
    members: list[Consumer] = []
    try:
        for step, protocol in enumerate(settings):
            if len(members) == 2:
                members.pop(0).close()
            members.append(_consumer(broker, group, **protocol))
            members[-1].subscribe([topic])

            _poll_until(members, lambda: _shares_four(members), f"{strategy}: one reader each, step {step}")
            _each_record_is_read_once(broker, topic, members)
    finally:
        for member in members:
            member.close()


def _shares_four(members: list[Consumer]) -> bool:
    read = [each.partition for member in members for each in member.assignment()]
    return sorted(read) == [0, 1, 2, 3] and all(member.assignment() for member in members)


def _each_record_is_read_once(broker: Broker, topic: str, members: list[Consumer]) -> None:
    producer = _producer(broker)
    sent = [str(number).encode() for number in range(8)]
    for number, value in enumerate(sent):
        producer.produce(topic, value, partition=number % 4)
    producer.flush(TIMEOUT)
    got: list[bytes] = []

    def has_all() -> bool:
        for member in members:
            message = member.poll(0.02)
            if message is not None and message.error() is None:
                got.append(message.value())
        return len(got) >= len(sent)

    eventually(has_all, "every record is read")
    for member in members:
        member.commit(asynchronous=False)
    equal(sorted(got), sent, "records")


def _poll_until(consumers: list[Consumer], fact: Callable[[], bool], what: str) -> None:
    def polled() -> bool:
        for consumer in consumers:
            consumer.poll(0.02)
        return fact()

    eventually(polled, what)


def _static_member_keeps_its_partitions(broker: Broker) -> None:
    topic, group = broker.name("confluent-static"), broker.name("confluent-static-group")
    _create(broker, topic, partitions=4)
    members = [_consumer(broker, group, **_static(number)) for number in (1, 2)]
    try:
        for member in members:
            member.subscribe([topic])
        _poll_until(members, lambda: [len(m.assignment()) for m in members] == [2, 2], "static members share")
        before = {each.partition for each in members[1].assignment()}
        generation = _member_ids(broker, group)
        members[1].close()  # a static member leaves nothing behind but time
        members[1] = _consumer(broker, group, **_static(2))
        members[1].subscribe([topic])
        _poll_until(members, lambda: len(members[1].assignment()) == 2, "the static member is back")
        equal({each.partition for each in members[1].assignment()}, before, "its partitions")
        equal(len(_member_ids(broker, group) & generation), 1, "members that kept their id")
        _fenced_by_a_twin(broker, group, topic)
    finally:
        for member in members:
            member.close()


def _static(number: int) -> dict[str, Any]:
    return {
        "group.instance.id": f"static-{number}",
        "session.timeout.ms": 30_000,
        "heartbeat.interval.ms": 200,
        "partition.assignment.strategy": "range",
    }


def _fenced_by_a_twin(broker: Broker, group: str, topic: str) -> None:
    """A second process with the same instance id takes over; nothing of the first is counted twice."""
    twin = _consumer(broker, group, **_static(2))
    try:
        twin.subscribe([topic])
        _poll_until([twin], lambda: len(twin.assignment()) == 2, "the twin took over")
        equal(len(_member_ids(broker, group)), 2, "members")
    finally:
        twin.close()


def _member_ids(broker: Broker, group: str) -> set[str]:
    client = AdminClient({"bootstrap.servers": broker.address})
    described = client.describe_consumer_groups([group])[group].result(TIMEOUT)
    return {member.member_id for member in described.members}


def _groups_by_admin(broker: Broker) -> None:
    client = AdminClient({"bootstrap.servers": broker.address})
    topic, group = broker.name("confluent-group-admin"), broker.name("confluent-described")
    _create(broker, topic, partitions=2)
    producer = _producer(broker)
    for number in range(20):
        producer.produce(topic, b"x", partition=number % 2)
    producer.flush(TIMEOUT)
    consumer = _consumer(broker, group, **{"client.id": "described"})
    try:
        consumer.subscribe([topic])
        _poll(consumer, 20)
        consumer.commit(asynchronous=False)
        described = client.describe_consumer_groups([group])[group].result(TIMEOUT)
        equal(described.state, confluent_kafka.ConsumerGroupState.STABLE, "state")
        equal([len(member.assignment.topic_partitions) for member in described.members], [2], "assignments")
        equal([member.client_id for member in described.members], ["described"], "client ids")
        listed = client.list_consumer_groups().result(TIMEOUT)
        if group not in {each.group_id for each in listed.valid}:
            raise AssertionError("the group is not listed")
        _fails_with(
            KafkaError.NON_EMPTY_GROUP, lambda: client.delete_consumer_groups([group])[group].result(TIMEOUT)
        )
    finally:
        consumer.close()
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    eventually(lambda: _alters(client, moved), "offsets of an empty group are altered")
    found = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(TIMEOUT)
    offsets = {each.partition: each.offset for each in found.topic_partitions}
    equal(offsets, {0: 3, 1: 10}, "offsets")
    client.delete_consumer_groups([group])[group].result(TIMEOUT)
    _fails_with(
        KafkaError.GROUP_ID_NOT_FOUND, lambda: client.delete_consumer_groups([group])[group].result(TIMEOUT)
    )


def _alters(client: AdminClient, moved: ConsumerGroupTopicPartitions) -> bool:
    try:
        client.alter_consumer_group_offsets([moved])[moved.group_id].result(TIMEOUT)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID:  # the member has not quite left
            return False
        raise
    return True


def _offset(client: AdminClient, topic: str, spec: OffsetSpec) -> int:
    partition = TopicPartition(topic, 0)
    asked = client.list_offsets({partition: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return int(asked[partition].result(TIMEOUT).offset)


def _fails_with(code: int, call: Callable[[], object]) -> None:
    try:
        call()
    except KafkaException as error:
        equal(error.args[0].code(), code, str(error))
        return
    raise AssertionError(f"did not fail with {code}")


CLIENT = Client(
    f"confluent-kafka {confluent_kafka.__version__}",
    {
        "produce": produce,
        "consume": consume,
        "groups": groups,
        "admin": admin,
        "transactions": transactions,
    },
)
