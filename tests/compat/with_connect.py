"""Kafka Connect: a distributed worker, a file in and a file out, killed and started again."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tailrace_cli.demo.ports import free_port
from tests.compat import with_java
from tests.compat.areas import Client, equal
from tests.compat.broker import Broker
from tests.compat.with_java import Jvm

LINES, PARTITIONS = 2000, 3
WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
INTERNAL_TOPICS = {"config": 1, "offset": 25, "status": 5}
"""Partitions of the topics in which the workers of a group keep what they know."""


def client() -> Client:
    """Kafka Connect, skipped where Java's clients are."""
    name = f"Kafka Connect {with_java.VERSION}"
    return Client(name, {"transactions": file_to_file}, with_java.unavailable())


def file_to_file(broker: Broker) -> None:
    """Each line is in the topic once, though the worker was killed; the sink writes each line once."""
    name = broker.name("connect")
    with tempfile.TemporaryDirectory(prefix="tailrace-connect-") as folder:
        home, rest = Path(folder), _Rest(free_port())
        (home / "worker").write_text(_worker(broker, name, rest))
        source = {"connector.class": "FileStreamSource", "file": f"{home}/in", "topic": name,
                  "exactly.once.support": "required", "topic.creation.default.replication.factor": "1",
                  "topic.creation.default.partitions": str(PARTITIONS)}  # fmt: skip
        _append(home / "in", range(LINES // 2))
        with with_java.running(home / "log-1", WORKER, f"{home}/worker") as worker:
            worker.eventually(rest.is_ready, "the worker answers")
            rest.call("PUT", f"/connectors/{name}-source/config", source)
            worker.eventually(lambda: _end(broker, name) > 0, "the first transaction")
            _append(home / "in", range(LINES // 2, LINES))
        with with_java.running(home / "log-2", WORKER, f"{home}/worker") as worker:
            worker.eventually(rest.is_ready, "the worker answers again")
            _lines_once(broker, name, worker)
            _sink(rest, worker, name, home / "out")
            _reset(rest, worker, f"{name}-source")
    _are_compacted(broker, name)


def _worker(broker: Broker, name: str, rest: _Rest) -> str:
    stores = "".join(
        f"{kind}.storage.topic={name}-{kind}\n{kind}.storage.replication.factor=3\n"
        for kind in INTERNAL_TOPICS
    )
    return f"""
bootstrap.servers={broker.address}
group.id={name}
{stores}key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
exactly.once.source.support=enabled
offset.flush.interval.ms=1000
plugin.discovery=service_load
listeners=http://127.0.0.1:{rest.port}
"""


def _append(path: Path, numbers: range) -> None:
    with open(path, "a") as lines:
        lines.writelines(f"line-{number}\n" for number in numbers)


def _lines_once(broker: Broker, topic: str, worker: Jvm) -> None:
    seen: list[str] = []
    settings = {"bootstrap.servers": broker.address, "group.id": topic, "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])

    def take() -> bool:
        seen.extend((message.value() or b"").decode() for message in consumer.consume(500, 0.2))
        return len(set(seen)) == LINES

    worker.eventually(take, f"{LINES} lines in the topic")
    equal(len(seen) + len(consumer.consume(1, 1.0)), LINES, "lines in the topic")
    consumer.close()


def _sink(rest: _Rest, worker: Jvm, name: str, path: Path) -> None:
    config = {"connector.class": "FileStreamSink", "file": str(path), "topics": name,
              "consumer.override.isolation.level": "read_committed"}  # fmt: skip
    rest.call("PUT", f"/connectors/{name}-sink/config", config)
    worker.eventually(lambda: path.exists() and path.read_text().count("\n") >= LINES, "lines of the sink")
    equal(sorted(path.read_text().split()), sorted(f"line-{number}" for number in range(LINES)), "sunk lines")


def _reset(rest: _Rest, worker: Jvm, connector: str) -> None:
    """A stopped connector's offsets are forgotten: a tombstone in a transaction that fences its task."""
    equal(len(rest.call("GET", f"/connectors/{connector}/offsets")["offsets"]), 1, "files with an offset")
    rest.call("PUT", f"/connectors/{connector}/stop")
    worker.eventually(lambda: _state(rest, connector) == ("STOPPED", 0), "the connector has stopped")
    rest.call("DELETE", f"/connectors/{connector}/offsets")
    equal(rest.call("GET", f"/connectors/{connector}/offsets"), {"offsets": []}, "offsets")


def _state(rest: _Rest, connector: str) -> tuple[str, int]:
    status = rest.call("GET", f"/connectors/{connector}/status")
    return status["connector"]["state"], len(status["tasks"])


def _are_compacted(broker: Broker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    known = admin.list_topics(timeout=30).topics
    for kind, partitions in INTERNAL_TOPICS.items():
        topic = f"{name}-{kind}"
        equal(len(known[topic].partitions), partitions, f"partitions of {topic}")
        described = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
        for configs in described.values():
            equal(configs.result()["cleanup.policy"].value, "compact", f"cleanup.policy of {topic}")


def _end(broker: Broker, topic: str) -> int:
    """The sum of the ends of the topic's partitions; 0 if there is no such topic."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    if topic not in admin.list_topics(timeout=30).topics:
        return 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": topic})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)[1]
        for partition in range(PARTITIONS)
    ]
    consumer.close()
    return sum(ends)


class _Rest:
    """The worker's own API."""

    def __init__(self, port: int) -> None:
        self.port = port

    def is_ready(self) -> bool:
        try:
            self.call("GET", "/connectors")
        except OSError:
            return False
        return True

    def call(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")
