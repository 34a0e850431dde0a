"""A cluster of processes under load: agents killed and added, the committer killed. Nothing lost, nothing doubled."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster import Cluster, Part, running_cluster
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers import NO_MINIO, find_minio

PARTITIONS = 24
"""Of two agents in a zone each leads some, but for one time in eight million."""
KEYS = 50
RECORDS = 20_000


@pytest.fixture(scope="module", params=["moto", "minio"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "minio" and find_minio() is None:
        pytest.skip(NO_MINIO)
    with running_cluster(is_minio_wanted=request.param == "minio") as started:
        yield started


def test_leaders_are_in_the_zone_that_a_client_names(cluster: Cluster) -> None:
    _create(cluster, "zoned", 12)
    ports = {
        zone: {agent.port for agent in cluster.live_agents if agent.zone == zone} for zone in ("az-a", "az-b")
    }

    for zone in ("az-a", "az-b"):
        for asked in cluster.live_agents:
            leaders = _leader_ports(asked.address, "zoned", f"app,tailrace_az={zone}")
            assert set(leaders.values()) <= ports[zone], (zone, asked.name)
    seen = set(_leader_ports(cluster.live_agents[0].address, "zoned", "app").values())
    assert any(seen <= of_zone for of_zone in ports.values()), (
        "one zone's, that of whichever agent it asked last"
    )


def test_nothing_is_lost_or_doubled_when_an_agent_is_killed_and_one_added(cluster: Cluster) -> None:
    _create(cluster, "agents", PARTITIONS)
    victim = _leader(cluster, "agents", "az-b")
    load = _Load(cluster.bootstrap, "agents", zone="az-b")

    load.run(
        RECORDS,
        {
            RECORDS // 3: lambda: cluster.kill(victim),
            RECORDS * 2 // 3: lambda: _ignore(cluster.launch_agent("az-b")),
        },
    )
    cluster.wait_until_ready(cluster.live_agents)

    _check(cluster, "agents", load)
    _until(
        lambda: (
            cluster.agents[-1].port
            in _leader_ports(cluster.bootstrap, "agents", "x,tailrace_az=az-b").values()
        ),
        "the new agent leads something",
    )
    assert victim.port not in _leader_ports(cluster.bootstrap, "agents", "x,tailrace_az=az-b").values()


def test_all_continues_within_seconds_when_the_committer_is_killed(cluster: Cluster) -> None:
    _create(cluster, "committers", PARTITIONS)
    committer = cluster.wait_for_committer()
    load = _Load(cluster.bootstrap, "committers", zone="az-a")

    load.run(RECORDS, {RECORDS // 2: lambda: cluster.kill(committer)})
    _check(cluster, "committers", load)

    assert cluster.wait_for_committer() is not committer
    print(f"longest pause between acknowledgements: {load.longest_pause_seconds:.1f} s", file=sys.stderr)
    assert load.longest_pause_seconds < 20


def test_an_agent_drains_on_a_signal_and_its_clients_notice_nothing(cluster: Cluster) -> None:
    _create(cluster, "drained", PARTITIONS)
    leaving = _leader(cluster, "drained", "az-a")
    load = _Load(cluster.bootstrap, "drained", zone="az-a")

    load.run(RECORDS // 2, {RECORDS // 4: lambda: cluster.drain(leaving)})

    _check(cluster, "drained", load)


def test_a_transforming_loop_is_exactly_once_when_it_and_then_an_agent_are_killed(cluster: Cluster) -> None:
    records = 1_500
    for topic in ("plain", "doubled"):
        _create(cluster, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for number in range(records):
        producer.produce("plain", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_SECONDS) == 0
    command = [sys.executable, "-m", "tests.compat.transforming", cluster.bootstrap, "plain", "doubled"]
    command += ["transformers", "transformer", str(records)]

    killed = subprocess.run(
        [*command, "4"], timeout=PATIENCE_SECONDS, check=False
    )  # in its fourth transaction
    assert killed.returncode == -signal.SIGKILL
    second = subprocess.Popen(command)
    try:
        _until(lambda: sum(_ends(cluster, "doubled").values()) > records // 3, "a third is done")
        victim = _leader(cluster, "doubled", cluster.live_agents[0].zone)
        cluster.launch_agent(victim.zone)
        cluster.kill(victim)
        assert second.wait(PATIENCE_SECONDS) == 0
    finally:
        second.kill()
        second.wait()

    values = sorted(int(value) for value in _read_committed(cluster, "doubled", records))
    assert values == [2 * number for number in range(records)]
    assert sum(_ends(cluster, "doubled").values()) > records, "what the killed one had sent is there, aborted"


# -- below: load and what is checked of it -------------------------------------------------------------


@dataclass
class _Load:
    """An idempotent producer of keyed records; what it was promised."""

    bootstrap: str
    topic: str
    zone: str
    sent: list[tuple[str, str]] = field(default_factory=list)
    acknowledged: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: Counter[tuple[int, int]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    longest_pause_seconds: float = 0.0
    _last: float = 0.0

    def run(self, count: int, events: dict[int, Callable[[], None]]) -> None:
        """Send `count` records; each event happens when that many have been acknowledged."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "client.id": f"load,tailrace_az={self.zone}",
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": "zstd",
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000,
                "batch.num.messages": 100,
                "topic.metadata.refresh.interval.ms": 5_000,
                "delivery.timeout.ms": 240_000,
            }
        )
        waiting = dict(sorted(events.items()))
        self._last = time.monotonic()
        for index in range(count):
            key, value = f"key-{index % KEYS}", f"{index:08d}"
            self.sent.append((key, value))
            while True:
                try:
                    producer.produce(
                        self.topic, value.encode() + b"." * 90, key.encode(), on_delivery=self._on_delivery
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
            while waiting and self.acknowledged.total() >= min(waiting):
                waiting.pop(min(waiting))()
        left = producer.flush(PATIENCE_SECONDS)
        assert not waiting, "each event happened under load"
        assert not self.failures and not left, (left, self.failures[:3])

    def _on_delivery(self, error: Any, message: Any) -> None:
        now = time.monotonic()
        self.longest_pause_seconds = max(self.longest_pause_seconds, now - self._last)
        self._last = now
        if error is not None:
            self.failures.append(str(error))
            return
        self.acknowledged[message.key().decode(), message.value()[:8].decode()] += 1
        self.places[message.partition(), message.offset()] += 1


def _check(cluster: Cluster, topic: str, load: _Load) -> None:
    """Read all from every zone: what was sent, once each, per key in order, where the acknowledgement said."""
    assert load.acknowledged == Counter(load.sent)
    for zone in ("az-a", "az-b"):
        read = _read_all(cluster, topic, zone)
        contents = Counter((key, value) for _, _, key, value in read)
        missing, extra = Counter(load.sent) - contents, contents - Counter(load.sent)
        assert not missing and not extra, (
            zone,
            missing.total(),
            extra.total(),
            list(missing)[:3],
            list(extra)[:3],
        )
        assert {(partition, offset) for partition, offset, _, _ in read} == set(load.places)
        by_key: dict[str, list[str]] = defaultdict(list)
        for _, _, key, value in read:
            by_key[key].append(value)
        assert all(values == sorted(values) for values in by_key.values()), "records of a key are in order"


def _read_all(cluster: Cluster, topic: str, zone: str) -> list[tuple[int, int, str, str]]:
    """(partition, offset, key, value) of every record below the ends as they are now."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": f"reader,tailrace_az={zone}",
            "group.id": "unused",
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions)
        ends = {
            each: consumer.get_watermark_offsets(TopicPartition(topic, each), PATIENCE_SECONDS)[1]
            for each in partitions
        }
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        read: list[tuple[int, int, str, str]] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(read) < sum(ends.values()):
            assert time.monotonic() < deadline, f"{len(read)} of {sum(ends.values())} records were read"
            for message in consumer.consume(1_000, 0.5):
                if message.error() is None:
                    key, value = message.key(), message.value()
                    assert key is not None and value is not None
                    place = message.partition(), message.offset()
                    read.append((*place, key.decode(), value[:8].decode()))
        return read
    finally:
        consumer.close()


def _ends(cluster: Cluster, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused"})
    try:
        return {
            each: consumer.get_watermark_offsets(TopicPartition(topic, each), PATIENCE_SECONDS)[1]
            for each in range(PARTITIONS)
        }
    finally:
        consumer.close()


def _read_committed(cluster: Cluster, topic: str, wanted: int) -> list[str]:
    """All committed values: at least `wanted`, and what comes in two seconds more."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
        read: list[str] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if len(read) >= wanted:
                deadline = min(deadline, time.monotonic() + 2)
            for message in consumer.consume(1_000, 0.5):
                if message.error() is None:
                    read.append((message.value() or b"").decode())
        return read
    finally:
        consumer.close()


def _create(cluster: Cluster, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(PATIENCE_SECONDS)


def _leader_ports(bootstrap: str, topic: str, client_id: str) -> dict[int, int]:
    """The port of each partition's leader, as told to this client."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": client_id})
    told = admin.list_topics(topic, timeout=PATIENCE_SECONDS)
    return {
        index: told.brokers[partition.leader].port
        for index, partition in told.topics[topic].partitions.items()
    }


def _leader(cluster: Cluster, topic: str, zone: str) -> Part:
    """The agent of `zone` that leads most partitions of the topic."""
    ports = Counter(_leader_ports(cluster.bootstrap, topic, f"x,tailrace_az={zone}").values())
    [(port, _)] = ports.most_common(1)
    [agent] = [agent for agent in cluster.agents if agent.port == port]
    return agent


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s until {what}"
        time.sleep(0.1)


def _ignore(part: Part) -> None:
    """An event has no answer."""
