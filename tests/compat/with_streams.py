"""Kafka Streams (java/WordCount.java): exactly once, through a repartition and a changelog topic, killed twice."""

from __future__ import annotations

import random
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat import with_java
from tests.compat.areas import Client, equal
from tests.compat.broker import Broker

LINES, WORDS_OF_A_LINE, VOCABULARY = 1500, 4, 100
KILLS = 2
OUT_PARTITIONS = 2
SECONDS = 90.0
"""How long the next outcome may take: the dead one's session and its transaction have to end first."""


def client() -> Client:
    """Kafka Streams, skipped where Java's clients are."""
    name = f"Kafka Streams {with_java.VERSION}"
    return Client(name, {"transactions": word_count}, with_java.unavailable())


def word_count(broker: Broker) -> None:
    """Each word is counted 1, 2, 3, ... for readers of committed records, whatever was killed meanwhile."""
    name = broker.name("streams-words")
    admin = AdminClient({"bootstrap.servers": broker.address})
    made = admin.create_topics([NewTopic(f"{name}-in", 3, 1), NewTopic(f"{name}-out", OUT_PARTITIONS, 1)])
    for creation in made.values():
        creation.result()
    written = _feed(broker, f"{name}-in")
    total = LINES * WORDS_OF_A_LINE
    counts: defaultdict[str, list[int]] = defaultdict(list)
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": name, "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(f"{name}-out", partition, 0) for partition in range(OUT_PARTITIONS)])
    with tempfile.TemporaryDirectory(prefix="tailrace-streams-") as folder:
        for run in range(KILLS + 1):
            log = Path(folder) / f"log-{run}"
            words = ("WordCount", broker.address, name, f"{folder}/state")
            with with_java.running(log, *words) as jvm:
                _take(consumer, counts, total * (run + 1) // (KILLS + 1), jvm)
    more = consumer.consume(1, 1.0)
    consumer.close()
    equal(len(more), 0, "counts after the last")
    wrong = {word: counts[word] for word in written if counts[word] != [*range(1, written[word] + 1)]}
    equal(wrong, {}, "words that are not counted exactly once")


def _feed(broker: Broker, topic: str) -> Counter[str]:
    chosen, written = random.Random(1), Counter[str]()
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for number in range(LINES):
        words = [f"word-{chosen.randrange(VOCABULARY)}" for _ in range(WORDS_OF_A_LINE)]
        written.update(words)
        producer.produce(topic, " ".join(words), key=str(number))
    equal(producer.flush(SECONDS), 0, "lines that were not taken")
    return written


def _take(
    consumer: Consumer,
    counts: defaultdict[str, list[int]],
    wanted: int,
    jvm: with_java.Jvm,
) -> None:
    def take() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                counts[(message.key() or b"").decode()].append(int(message.value() or b"0"))
        return sum(map(len, counts.values())) >= wanted

    jvm.eventually(take, f"{wanted} counts", SECONDS)
