"""MirrorMaker 2 between Kafka's own broker and ours, either way: records, configs, groups' offsets, heartbeats."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tailrace_cli.demo.ports import free_port
from tests.compat import with_java
from tests.compat.areas import Client, equal
from tests.compat.broker import Broker
from tests.compat.with_java import Jvm

RECORDS, PARTITIONS = 600, 3
RETENTION_MS = "987654321000"
"""Some thirty years: the records have timestamps of 2023, and none may expire while they are copied."""

Seen = dict[int, list[tuple[object, ...]]]
"""Key, value, headers and timestamp of a topic's records, by partition."""


def client() -> Client:
    """MirrorMaker 2, skipped where Java's clients are."""
    name = f"MirrorMaker {with_java.VERSION}"
    return Client(name, {"produce": into, "consume": out_of}, with_java.unavailable())


def into(broker: Broker) -> None:
    """From Kafka, exactly once."""
    with tempfile.TemporaryDirectory(prefix="tailrace-mirror-") as folder, _kafka(Path(folder)) as kafka:
        name = broker.name("mirrored-in")
        exactly_once = "tailrace.exactly.once.source.support=enabled\n"
        _mirror(Path(folder), _End("kafka", kafka), _End("tailrace", broker.address), name, exactly_once)


def out_of(broker: Broker) -> None:
    """To Kafka."""
    with tempfile.TemporaryDirectory(prefix="tailrace-mirror-") as folder, _kafka(Path(folder)) as kafka:
        name = broker.name("mirrored-out")
        _mirror(Path(folder), _End("tailrace", broker.address), _End("kafka", kafka), name)


@dataclass(frozen=True, slots=True)
class _End:
    """One of the two clusters."""

    alias: str
    address: str

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address})

    def consumer(self, group: str) -> Consumer:
        settings = {"bootstrap.servers": self.address, "group.id": group, "enable.auto.commit": False,
                    "isolation.level": "read_committed", "enable.partition.eof": True}  # fmt: skip
        return Consumer(settings)

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=30).topics)

    def config(self, topic: str, name: str) -> str | None:
        admin = self.admin  # an answer needs its client
        (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        value: str | None = found.result()[name].value
        return value

    def committed(self, group: str, topic: str) -> list[int]:
        consumer = self.consumer(group)
        found = consumer.committed([TopicPartition(topic, partition) for partition in range(PARTITIONS)], 30)
        consumer.close()
        return [each.offset for each in found]


def _mirror(folder: Path, source: _End, target: _End, name: str, more: str = "") -> None:
    """A topic, and a group that has read all of it, arrive at the target under the source's name."""
    admin = source.admin
    admin.create_topics([NewTopic(name, PARTITIONS, 1, config={"retention.ms": RETENTION_MS})])[name].result()
    _fill(source, name)
    (folder / "mm2").write_text(_settings(source, target, name) + more)
    copy = f"{source.alias}.{name}"
    with with_java.running(
        folder / "log", "org.apache.kafka.connect.mirror.MirrorMaker", f"{folder}/mm2"
    ) as mirror:
        mirror.eventually(lambda: copy in target.topics(), "the topic's copy")
        mirror.eventually(lambda: _count(_read(target, copy)[0]) >= RECORDS, "the records' copies")
        (sent, ends), (copied, copied_ends) = _read(source, name), _read(target, copy)
        equal(copied, sent, "copies")
        _commit(source, name, ends)
        mirror.eventually(lambda: target.committed(name, copy) == copied_ends, "the group's offsets")
        mirror.eventually(lambda: target.config(copy, "retention.ms") == RETENTION_MS, "the topic's config")
        _has_internal_topics(mirror, source, target)


def _settings(source: _End, target: _End, name: str) -> str:
    flow = f"{source.alias}->{target.alias}"
    factors = ("", "checkpoints.topic.", "heartbeats.topic.", "offset-syncs.topic.", "offset.storage.",
               "status.storage.", "config.storage.")  # fmt: skip
    single = "".join(f"{prefix}replication.factor=1\n" for prefix in factors)
    return f"""
clusters={source.alias},{target.alias}
{source.alias}.bootstrap.servers={source.address}
{target.alias}.bootstrap.servers={target.address}
{flow}.enabled=true
{flow}.topics={name}
{flow}.groups={name}
{single}sync.topic.acls.enabled=false
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
emit.checkpoints.interval.seconds=1
emit.heartbeats.interval.seconds=1
refresh.topics.interval.seconds=2
refresh.groups.interval.seconds=2
sync.topic.configs.interval.seconds=2
offset.lag.max=0
offset.flush.interval.ms=1000
dedicated.mode.enable.internal.rest=true
listeners=http://127.0.0.1:{free_port()}
"""


def _fill(source: _End, topic: str) -> None:
    producer = Producer({"bootstrap.servers": source.address, "compression.type": "lz4"})
    first_ms = 1_700_000_000_000
    for number in range(RECORDS):
        value = None if number % 9 == 0 else f"value-{number}"
        headers: list[tuple[str, str | bytes | None]] = [("number", str(number)), ("none", None)]
        producer.produce(
            topic, value, f"key-{number}", number % PARTITIONS, timestamp=first_ms + number, headers=headers
        )
    equal(producer.flush(60), 0, "records that were not taken")


def _read(end: _End, topic: str) -> tuple[Seen, list[int]]:
    """What readers of committed records see, and where each partition's last record ends."""
    seen: Seen = {partition: [] for partition in range(PARTITIONS)}
    ends, at_end = [0] * PARTITIONS, set[int]()
    consumer = end.consumer("reader")
    consumer.assign([TopicPartition(topic, partition, 0) for partition in seen])
    while len(at_end) < PARTITIONS:
        for message in consumer.consume(500, 1.0):
            partition = message.partition()
            assert partition is not None
            if message.error() is not None:
                at_end.add(partition)
                continue
            seen[partition].append((message.key(), message.value(), message.headers(), message.timestamp()))
            ends[partition] = (message.offset() or 0) + 1
    consumer.close()
    return seen, ends


def _count(seen: Seen) -> int:
    return sum(map(len, seen.values()))


def _commit(source: _End, name: str, ends: list[int]) -> None:
    consumer = source.consumer(name)
    consumer.commit(
        offsets=[TopicPartition(name, partition, end) for partition, end in enumerate(ends)],
        asynchronous=False,
    )
    consumer.close()


def _has_internal_topics(mirror: Jvm, source: _End, target: _End) -> None:
    """Heartbeats go through; checkpoints are at the target; offset syncs at the source. All are compacted."""
    beats, checkpoints = f"{source.alias}.heartbeats", f"{source.alias}.checkpoints.internal"
    mirror.eventually(lambda: {beats, checkpoints} <= target.topics(), "heartbeats and checkpoints")
    for end, topic in (
        (target, beats),
        (target, checkpoints),
        (source, f"mm2-offset-syncs.{target.alias}.internal"),
    ):
        equal(end.config(topic, "cleanup.policy"), "compact", f"cleanup.policy of {topic}")


@contextmanager
def _kafka(folder: Path) -> Iterator[str]:
    """The address of a broker of Kafka's own, which is its controller too."""
    port, controller = free_port(), free_port()
    (folder / "kafka").write_text(f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/kafka-data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
""")
    tool = ("kafka.tools.StorageTool", "format", "-t", "dGFpbHJhY2UtY29tcGF0MQ", "-c", f"{folder}/kafka")
    with with_java.running(folder / "format-log", *tool) as formatting:
        equal(formatting.process.wait(with_java.TOOL_SECONDS), 0, formatting.log.read_text())
    with with_java.running(folder / "kafka-log", "kafka.Kafka", f"{folder}/kafka") as kafka:
        kafka.eventually(lambda: _answers(f"127.0.0.1:{port}"), "Kafka answers")
        yield f"127.0.0.1:{port}"


def _answers(address: str) -> bool:
    try:
        AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=2)
    except KafkaException:
        return False
    return True
