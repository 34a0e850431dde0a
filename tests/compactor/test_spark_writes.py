"""Writing from a real Spark: drivers that are killed, and what Kafka's clients read of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.partitioner.default import murmur2

from tailrace_cli.demo.ports import free_port

FILES, LINES, PARTITIONS = 4, 50, 3
START_SECONDS, DRIVER_SECONDS = 240, 900


@dataclass(frozen=True)
class Served:
    """One `tailrace serve`."""

    kafka: str
    sequencer: str
    data: str


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    kafka, rpc, http = (f"127.0.0.1:{free_port()}" for _ in range(3))
    command = [sys.executable, "-m", "tailrace_cli.app", "serve", "--data", str(tmp_path / "data")]
    command += ["--listen", kafka, "--rpc", rpc, "--http", http]
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up:
            try:
                urllib.request.urlopen(f"http://{http}/readyz", timeout=10)
                break
            except (OSError, urllib.error.HTTPError):
                assert process.poll() is None, (tmp_path / "serve.log").read_text()
                time.sleep(0.1)
        yield Served(kafka, rpc, str(tmp_path / "data"))
    finally:
        process.kill()
        process.wait()


def records(served: Served, topic: str) -> dict[int, list[Message]]:
    """All records of the topic by partition, as librdkafka reads them."""
    consumer = Consumer(
        {"bootstrap.servers": served.kafka, "group.id": "check", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: dict[int, list[Message]] = defaultdict(list)
    at_end: set[int] = set()
    give_up = time.monotonic() + START_SECONDS
    while len(at_end) < PARTITIONS and time.monotonic() < give_up:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            at_end.add(message.partition())
        else:
            found[message.partition()].append(message)
    consumer.close()
    assert len(at_end) == PARTITIONS
    return found


def drive(folder: Path, served: Served, when: str) -> int:
    command = [sys.executable, "-m", "tests.compactor.writing_driver", str(folder)]
    process = subprocess.Popen([*command, served.data, served.sequencer, when], start_new_session=True)
    try:
        return process.wait(DRIVER_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_killed_driver_loses_and_doubles_nothing_and_kafkas_clients_read_what_was_written(
    served: Served, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": served.kafka})
    for created in admin.create_topics([NewTopic(name, PARTITIONS) for name in ("t", "batch")]).values():
        created.result(START_SECONDS)
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        lines = [{"key": f"k{line % 7}", "value": f"{number}-{line}"} for line in range(LINES)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, lines)))

    assert drive(tmp_path, served, "before") == -signal.SIGKILL
    assert sum(map(len, records(served, "t").values())) == LINES, "the first epoch, and nothing of the second"
    assert drive(tmp_path, served, "after") == -signal.SIGKILL
    assert sum(map(len, records(served, "t").values())) == 2 * LINES
    assert drive(tmp_path, served, "never") == 0

    streamed = records(served, "t")
    values = sorted(message.value().decode() for messages in streamed.values() for message in messages)
    assert values == sorted(f"{number}-{line}" for number in range(FILES) for line in range(LINES))
    for partition, messages in streamed.items():
        assert {(murmur2(message.key()) & 0x7FFFFFFF) % PARTITIONS for message in messages} == {partition}

    read = {(row[0], row[1]): tuple(row[2:]) for row in json.loads((tmp_path / "read.json").read_text())}
    assert len(read) == 1_000
    for partition, messages in records(served, "batch").items():
        for message in messages:
            key, value = message.key().decode(), message.value().decode()
            assert read[partition, message.offset()] == (key, value, [["h", value]])
            assert message.headers() == [("h", value.encode())]
            if int(value[1:]) < 10:
                assert partition == 2, "the column names the partition"
