"""The demo's Kafka clients, written with confluent-kafka as any user would write them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tailrace_cli.connections.librdkafka import hand_over
from tailrace_cli.demo.source import CODECS, RETAINED_FOR_EVER, TOPICS, SourceRecord

GROUP = "demo-readers"
BATCH = 2_000
COMMIT_SECONDS = 30.0
_BETWEEN_GENERATIONS = (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
"""The errors of a commit that a rebalance overtakes. The member keeps its partitions until it polls again (cooperative
rebalancing revokes them in `consume`), so retrying the commit under the new generation is correct."""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    offset: int
    timestamp: tuple[int, int]
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


Log = dict[tuple[str, int], list[ReadRecord]]
"""Records by (topic, partition), in the order in which they were read."""


def create_topics(bootstrap: str) -> None:
    """Create the demo's topics without a retention limit."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics(
        [NewTopic(plan.name, plan.partitions, 1, config=dict(RETAINED_FOR_EVER)) for plan in TOPICS]
    )
    for future in made.values():
        future.result(30)


def set_retention(bootstrap: str, topic: str, retention_ms: int) -> None:
    """Change a topic's retention.ms."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def produce(bootstrap: str, records: Iterable[SourceRecord], progress: Callable[[int], None]) -> Counter[str]:
    """Send every record with an idempotent producer for its codec. Return the acknowledged records by topic.

    Raises RuntimeError if any record was not acknowledged.
    """
    acknowledged: Counter[str] = Counter()
    failures: list[str] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(str(error))
            return
        acknowledged[message.topic()] += 1

    producers = {
        codec: Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": codec,
                "linger.ms": 20,
                "partitioner": "murmur2_random",
            }
        )
        for codec in CODECS
    }
    for sent, record in enumerate(records, 1):
        hand_over(
            producers[record.codec],
            record.topic,
            record.value,
            key=record.key,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=on_delivery,
        )
        if sent % BATCH == 0:
            for producer in producers.values():
                producer.poll(0)
            progress(sent)
    for producer in producers.values():
        producer.flush(60)
    if failures:
        raise RuntimeError(f"{len(failures)} records were not acknowledged, the first: {failures[0]}")
    return acknowledged


@dataclass
class GroupReading:
    """The records that the members of a group processed together. `lock` guards it: each member is a thread."""

    records: Log = field(default_factory=dict)
    processed: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def total(self) -> int:
        return sum(self.processed.values())

    def take(self, messages: list[Message]) -> None:
        """Count and keep the records that a member is about to commit."""
        with self.lock:
            for message in messages:
                topic_partition = (message.topic(), message.partition())
                self.processed[(*topic_partition, message.offset())] += 1
                self.records.setdefault(topic_partition, []).append(_read(message))


class DemoConsumer(threading.Thread):
    """One consumer of the group: it polls, processes and commits until `stop`, then gives its partitions back."""

    def __init__(self, name: str, bootstrap: str, reading: GroupReading) -> None:
        super().__init__(name=name, daemon=True)
        self._reading = reading
        self._is_stopping = threading.Event()
        self.failure: BaseException | None = None
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 10_000,
            }
        )
        self._consumer.subscribe([plan.name for plan in TOPICS])

    def run(self) -> None:
        try:
            while not self._is_stopping.is_set():
                messages = [message for message in self._consumer.consume(BATCH, 0.2) if _is_record(message)]
                if messages:
                    self._reading.take(messages)
                    self._commit(messages)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that joins
            self.failure = error
        finally:
            self._consumer.close()

    def _commit(self, messages: list[Message]) -> None:
        ends: dict[tuple[str, int], int] = {}
        for message in messages:
            ends[message.topic(), message.partition()] = message.offset() + 1
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
        deadline = time.monotonic() + COMMIT_SECONDS
        while True:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=False)
                return
            except KafkaException as error:
                if error.args[0].code() not in _BETWEEN_GENERATIONS or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """Finish the current batch and leave the group. Raises the error that ended the thread, if any."""
        self._is_stopping.set()
        self.join(60)
        if self.failure is not None:
            raise self.failure


def replay(bootstrap: str, topic: str, partitions: int) -> Log:
    """Read a whole topic from offset 0, without a group."""
    consumer = _assigned(bootstrap, [TopicPartition(topic, index, 0) for index in range(partitions)])
    ends = {
        index: consumer.get_watermark_offsets(TopicPartition(topic, index), 30)[1]
        for index in range(partitions)
    }
    log: Log = {(topic, index): [] for index in range(partitions)}
    open_partitions = {index for index, end in ends.items() if end > 0}
    polls_without = 0
    while open_partitions:
        messages = consumer.consume(BATCH, 0.5)  # returns after BATCH records or the time-out
        polls_without = 0 if messages else polls_without + 1
        if polls_without > 60:
            raise RuntimeError(
                f"nothing came for 30 s; partitions {sorted(open_partitions)} of {topic} are unfinished"
            )
        for message in messages:
            if not _is_record(message):
                continue
            log[topic, message.partition()].append(_read(message))
            if message.offset() + 1 >= ends[message.partition()]:
                open_partitions.discard(message.partition())
    consumer.close()
    return log


def offset_at_time(bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int:
    """Return the offset that a seek to this time reaches (-1: past the end)."""
    consumer = _assigned(bootstrap, [])
    positions = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=30)
    consumer.close()
    return int(positions[0].offset)


def watermarks(bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
    """Return (log start offset, high watermark)."""
    consumer = _assigned(bootstrap, [])
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
    consumer.close()
    return low, high


def _assigned(bootstrap: str, partitions: list[TopicPartition]) -> Any:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo-replay",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
        }
    )
    if partitions:
        consumer.assign(partitions)
    return consumer


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    if error.retriable() or error.code() in (
        KafkaError._PARTITION_EOF,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
    ):
        return False
    raise KafkaException(error)


def _read(message: Message) -> ReadRecord:
    headers = tuple((name, value) for name, value in message.headers() or ())
    return ReadRecord(
        offset=message.offset(),
        timestamp=message.timestamp(),
        key=message.key(),
        value=message.value(),
        headers=headers,
    )
