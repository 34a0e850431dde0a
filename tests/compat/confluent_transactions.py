"""confluent-kafka's transactions: commit, abort, fencing, and a transforming process that is killed in one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.areas import equal
from tests.compat.broker import Broker
from tests.support.patience import PATIENCE_SECONDS

TIMEOUT = PATIENCE_SECONDS
ROOT = Path(__file__).parents[2]


def transactions(broker: Broker) -> None:
    """Whole transactions or nothing; a fenced producer; exactly once across a kill."""
    _whole_or_nothing(broker)
    _a_second_producer_fences_the_first(broker)
    _exactly_once_across_a_kill(broker)


def _whole_or_nothing(broker: Broker) -> None:
    topic = broker.name("confluent-transactions")
    _create(broker, topic, 3)
    producer = _producer(broker, broker.name("confluent-tx"))
    reader = _reader(broker, topic, 3)
    try:
        wanted: list[bytes] = []
        for number in range(6):
            producer.begin_transaction()
            values = [b"%d-%d" % (number, record) for record in range(30)]
            for record, value in enumerate(values):
                producer.produce(topic, value, partition=record % 3)
            equal(producer.flush(TIMEOUT), 0, "unsent")
            equal(_take(reader, 0, seconds=0.4), [], "records of a transaction that is open")
            if number % 2:
                producer.abort_transaction(TIMEOUT)
            else:
                producer.commit_transaction(TIMEOUT)
                wanted += values
                equal(sorted(_take(reader, 30)), sorted(values), "records of a transaction, once committed")
        equal(_take(reader, 0, seconds=0.4), [], "records after the last")
    finally:
        reader.close()
    again = _reader(broker, topic, 3)
    try:
        equal(sorted(_take(again, len(wanted))), sorted(wanted), "committed records, read from the beginning")
    finally:
        again.close()
    raw = _reader(broker, topic, 3, isolation="read_uncommitted")
    try:
        equal(len(_take(raw, 180)), 180, "records, read uncommitted")
    finally:
        raw.close()


def _a_second_producer_fences_the_first(broker: Broker) -> None:
    topic, name = broker.name("confluent-fenced"), broker.name("confluent-tx")
    _create(broker, topic, 1)
    first = _producer(broker, name)
    first.begin_transaction()
    first.produce(topic, b"of the first")
    equal(first.flush(TIMEOUT), 0, "unsent")
    second = _producer(broker, name)
    second.begin_transaction()
    second.produce(topic, b"of the second")
    second.commit_transaction(TIMEOUT)
    try:
        first.commit_transaction(TIMEOUT)
    except KafkaException as error:
        if error.args[0].code() not in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            raise
    else:
        raise AssertionError("a fenced producer has committed")
    reader = _reader(broker, topic, 1)
    try:
        equal(_take(reader, 1), [b"of the second"], "committed records")
        equal(_take(reader, 0, seconds=0.4), [], "records of the fenced producer")
    finally:
        reader.close()


def _exactly_once_across_a_kill(broker: Broker) -> None:
    source, target = broker.name("confluent-source"), broker.name("confluent-target")
    group, name = broker.name("confluent-transformers"), broker.name("confluent-tx")
    _create(broker, source, 2)
    _create(broker, target, 2)
    records = 200
    filler = Producer({"bootstrap.servers": broker.address, "linger.ms": 2})
    for number in range(records):
        filler.produce(source, b"%d" % number, partition=number % 2)
    equal(filler.flush(TIMEOUT), 0, "unsent")

    def transform(*more: str) -> int:
        command = [sys.executable, "-m", "tests.compat.transforming", broker.address, source, target]
        done = subprocess.run(
            [*command, group, name, str(records), *more],
            timeout=200,
            check=False,
            capture_output=True,
            cwd=ROOT,
        )
        if done.returncode not in (0, -signal.SIGKILL):
            raise AssertionError(f"transforming: exit {done.returncode}: {done.stderr[-2000:]!r}")
        return done.returncode

    equal(transform("3"), -signal.SIGKILL, "the first is killed in its third transaction")
    equal(transform(), 0, "the second does the rest")
    reader = _reader(broker, target, 2)
    try:
        seen = sorted(map(int, _take(reader, records)))
        equal(seen, [2 * number for number in range(records)], "transformed records, each once")
        equal(_take(reader, 0, seconds=0.4), [], "more transformed records")
    finally:
        reader.close()
    raw = _reader(broker, target, 2, isolation="read_uncommitted")
    try:
        if len(_take(raw, records + 1)) <= records:
            raise AssertionError("the killed transaction left nothing behind: nothing was tried")
    finally:
        raw.close()


# --- details ---------------------------------------------------------------------------------------------


def _producer(broker: Broker, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": transactional_id, "linger.ms": 2}
    )
    producer.init_transactions(TIMEOUT)
    return producer


def _reader(broker: Broker, topic: str, partitions: int, isolation: str = "read_committed") -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": broker.name("confluent-readers"),
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    return consumer


def _take(consumer: Consumer, wanted: int, seconds: float = TIMEOUT) -> list[bytes]:
    """Values, until there are `wanted` of them; with 0, all that come in `seconds`."""
    deadline, found = time.monotonic() + seconds, list[bytes]()
    while (len(found) < wanted or not wanted) and time.monotonic() < deadline:
        for message in consumer.consume(wanted - len(found) or 100, 0.1):
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append(message.value())
    if wanted:
        equal(len(found), wanted, "records that came")
    return found


def _create(broker: Broker, topic: str, partitions: int) -> None:
    client = AdminClient({"bootstrap.servers": broker.address})
    client.create_topics([NewTopic(topic, partitions)])[topic].result(TIMEOUT)
