"""Kafka Streams (java/WordCount.java): exactly once, through a repartition and a changelog topic, killed twice.

And from a changelog of which the compactor has kept the last value of each key: the whole table, no more.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.compat import with_java
from tests.compat.areas import Client, equal
from tests.compat.broker import Broker

LINES, WORDS_OF_A_LINE, VOCABULARY = 1500, 4, 100
KILLS = 2
OUT_PARTITIONS = 2
SECONDS = 90.0
"""How long the next outcome may take: the dead one's session and its transaction have to end first."""
COMPACT_SECONDS = 300


def client() -> Client:
    """Kafka Streams, skipped where Java's clients are."""
    name = f"Kafka Streams {with_java.VERSION}"
    checks = {"consume": restored_from_a_compacted_changelog, "transactions": word_count}
    return Client(name, checks, with_java.unavailable())


def word_count(broker: Broker) -> None:
    """Each word is counted 1, 2, 3, ... for readers of committed records, whatever was killed meanwhile."""
    name = _named_topics(broker)
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


def restored_from_a_compacted_changelog(broker: Broker) -> None:
    """An application that has lost its state has it again from a log compacted by key, and counts on from there."""
    name = _named_topics(broker)
    written = _feed(broker, f"{name}-in")
    changelog = f"{name}-counts-changelog"
    with tempfile.TemporaryDirectory(prefix="tailrace-streams-") as folder:
        _run_until_the_table_is(written, broker, name, Path(folder) / "first")
        config = ConfigResource(ResourceType.TOPIC, changelog)
        admin = AdminClient({"bootstrap.servers": broker.address})
        equal(admin.describe_configs([config])[config].result()["cleanup.policy"].value, "compact", "policy")
        equal(_records(broker, changelog), LINES * WORDS_OF_A_LINE, "records before compaction")
        _compact(broker, changelog)
        left = _records(broker, changelog)
        if not len(written) <= left < len(written) + 10:
            raise AssertionError(f"{left} records of {len(written)} keys after compaction")
        restored = _run_until_the_table_is(written, broker, name, Path(folder) / "second")
        equal(restored, left, "records that were restored")
        written += _feed(broker, f"{name}-in")
        _run_until_the_table_is(written, broker, name, Path(folder) / "third")


def _run_until_the_table_is(wanted: Counter[str], broker: Broker, name: str, folder: Path) -> int:
    """Run the application on no state of its own, and stop it; the records it restored. The first table that it shows
    in which nothing is missing has to be the wanted one."""
    folder.mkdir()
    log = folder / "log"
    with with_java.running(log, "WordCount", broker.address, name, str(folder / "state")) as jvm:

        def table() -> tuple[int, dict[str, int]]:
            shown = re.findall(r"^table (\d+) \{(.*)\}$", log.read_text(errors="replace"), re.MULTILINE)
            if not shown:
                return 0, {}
            restored, words = shown[-1]
            counts = (entry.split("=") for entry in words.split(", ") if entry)
            return int(restored), {word: int(count) for word, count in counts}

        jvm.eventually(
            lambda: sum(table()[1].values()) >= wanted.total(), f"{wanted.total()} words counted", SECONDS
        )
        restored, counts = table()
        jvm.process.terminate()  # commits
        jvm.process.wait(SECONDS)
    equal(counts, dict(wanted), "table")
    return restored


def _compact(broker: Broker, topic: str) -> None:
    """All of a topic, by the command, on a Spark of this machine."""
    words = ["compact", "--data", str(broker.log.parent / "data"), "--topic", topic, "--min-age-ms", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "tailrace_cli.app", *words],
        capture_output=True, text=True, timeout=COMPACT_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


def _records(broker: Broker, topic: str) -> int:
    """How many a reader of committed records finds."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": topic, "isolation.level": "read_committed",
         "enable.partition.eof": True, "enable.auto.commit": False}
    )  # fmt: skip
    partitions = sorted(consumer.list_topics(topic).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    count, ended = 0, set[int]()
    while len(ended) < len(partitions):
        message = consumer.poll(SECONDS)
        if message is None:
            raise AssertionError(f"{topic} has no end")
        error, partition = message.error(), message.partition()
        if error is None:
            count += 1
        elif error.code() == KafkaError._PARTITION_EOF and partition is not None:
            ended.add(partition)
    consumer.close()
    return count


def _named_topics(broker: Broker) -> str:
    name = broker.name("streams-words")
    admin = AdminClient({"bootstrap.servers": broker.address})
    made = admin.create_topics([NewTopic(f"{name}-in", 3, 1), NewTopic(f"{name}-out", OUT_PARTITIONS, 1)])
    for creation in made.values():
        creation.result()
    return name


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
