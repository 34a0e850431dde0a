"""The database is dropped under load on S3 and PostgreSQL: nothing acknowledged is lost, no offset means two records.

Agents and sequencer are processes; the clients are librdkafka's.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import environ
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sequencer.recovery.bucket_scan import read_checkpoints
from sequencer.store.sql.store import SqlRowStore
from sequencer.store.state import COMMIT_NUMBER, HotState
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.open import open_store
from tests.support.cluster import Cluster, Part, running_cluster
from tests.support.patience import PATIENCE_SECONDS

TOPIC = "flights"
PARTITIONS = 3
INTERVAL_MS = 6_000
RESERVATION = 16_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {"TAILRACE_SEQUENCER__CHECKPOINT_INTERVAL_MS": str(INTERVAL_MS)}
    with running_cluster(zones=("a",), sequencers=2, environ=settings) as started:
        yield started


@dataclass
class Load:
    """An idempotent producer, and where each of its records was said to be."""

    bootstrap: str
    told: dict[int, tuple[int, int]] = field(default_factory=dict)
    sent: int = 0
    failures: int = 0

    def __post_init__(self) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": 240_000,
                "queue.buffering.max.messages": 2_000,
            }
        )

    def send(self, seconds: float) -> None:
        """As much as goes, for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                self.producer.produce(TOPIC, str(self.sent), on_delivery=self._on_delivery)
                self.sent += 1
            except BufferError:
                self.producer.poll(0.01)
            if self.sent % 50 == 0:
                self.producer.poll(0.01)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures += 1
        else:
            self.told[int(message.value())] = (message.partition(), message.offset())


def read_all(bootstrap: str) -> dict[tuple[int, int], int]:
    """Every record that there is, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: dict[tuple[int, int], int] = {}
    ended: set[int] = set()
    until = time.monotonic() + PATIENCE_SECONDS
    while len(ended) < PARTITIONS:
        assert time.monotonic() < until, f"read {len(found)}, ended {ended}"
        for message in consumer.consume(1_000, 1.0):
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None and offset is not None
            if message.error() is not None:
                ended.add(partition)
                continue
            assert value is not None and (partition, offset) not in found, f"{partition}-{offset} came twice"
            found[partition, offset] = int(value)
    consumer.close()
    return found


def committed(bootstrap: str, group: str) -> dict[int, int]:
    """A group's positions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    asked = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    found = {one.partition: one.offset for one in consumer.committed(asked, timeout=PATIENCE_SECONDS)}
    consumer.close()
    return found


def commit(bootstrap: str, group: str, positions: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    asked = [TopicPartition(TOPIC, number, offset) for number, offset in positions.items()]
    consumer.commit(offsets=asked, asynchronous=False)
    consumer.close()


def command(cluster: Cluster, *words: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace_cli.app", *words, "--json"],
        env={**environ, **cluster.s3.environ, **cluster.environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == code, f"{done.returncode}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return json.loads(done.stdout) if done.stdout else done.stderr


async def wait_until_checkpointed(cluster: Cluster) -> None:
    """Until the bucket has all that the database has now."""
    clock = SystemClock()
    rows = SqlRowStore(cluster.database, clock=clock, entropy=SystemEntropy(), auto_migrate=False)
    store = open_store(cluster.store_url, clock=clock, environ=cluster.s3.environ)
    await rows.open()
    number = HotState(await rows.load()).counter(COMMIT_NUMBER)
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = await read_checkpoints(store, (await rows.identity()).cluster_id)
        if found.chain is not None and found.chain.last.commit_number >= number:
            break
        assert time.monotonic() < until, found
        await asyncio.sleep(0.2)
    await store.close()
    await rows.close()


def wait_until_ended(parts: list[Part]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while any(part.is_running for part in parts):
        assert time.monotonic() < until, [part.name for part in parts if part.is_running]
        time.sleep(0.1)


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def test_the_database_is_dropped_under_load_and_recovered(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_SECONDS)
    load = Load(bootstrap)
    load.send(2.0)
    load.producer.flush(PATIENCE_SECONDS)
    certain = dict(load.told)
    say(f"{len(certain)} records acknowledged")
    assert len(certain) == load.sent > 0
    positions = {number: 1 + number for number in range(PARTITIONS)}
    commit(bootstrap, "g", positions)
    places = ("--store", cluster.store_url, "--database", cluster.database)
    asyncio.run(wait_until_checkpointed(cluster))
    load.send(1.5)
    while len(load.told) == len(certain):
        load.send(0.1)

    say(f"{len(load.told)} acknowledged; the database is dropped")
    # With its committer: one that lives on exports what it had committed, and then nothing is left to be re-sequenced.
    committer = cluster.committer
    cluster.kill(committer)
    cluster.postgres.drop_database(cluster.database)

    load.send(1.0)
    load.producer.poll(1.0)
    command(cluster, "recover", *places, code=1)  # there is no such database
    name = cluster.database.rpartition("/")[2]
    cluster.postgres.execute(f'CREATE DATABASE "{name}"')
    say(f"{len(load.told)} acknowledged; recovery")
    dry = command(cluster, "recover", *places, "--dry-run")
    told = command(cluster, "recover", *places)
    assert told["incarnation"] == 2 and dry["certain"] == told["certain"]
    say(f"recovered: {told['resequenced']}")
    # The old sequencer finds another database in the place of its own, and ends; the agent, when it meets a new one.
    wait_until_ended(cluster.sequencers)
    [follower] = [one for one in cluster.sequencers if one is not committer]
    new = cluster.launch_sequencer(committer.port)
    cluster.wait_until_ready([new])
    wait_until_ended(cluster.agents)
    assert [part.process.returncode for part in (follower, *cluster.agents)] == [1, 1]
    load.producer.purge()
    load.producer.poll(0)

    say("the old processes have ended")
    cluster.wait_until_ready([cluster.launch_agent("a")])
    bootstrap = cluster.bootstrap
    say("the new ones are ready")
    found = read_all(bootstrap)
    ends = {one["partition"]: (one["certain_end"], one["resumed_at"]) for one in told["partitions"]}

    for value, place in certain.items():
        assert found.get(place) == value, f"record {value}, acknowledged at {place} before the checkpoint"
    where: dict[int, list[tuple[int, int]]] = {}
    for place, value in found.items():
        where.setdefault(value, []).append(place)
    later = {value: place for value, place in load.told.items() if value not in certain}
    moved = 0
    for value, place in load.told.items():
        assert len(where.get(value, [])) == 1, (
            f"record {value}, acknowledged at {place}, is at {where.get(value)}"
        )
        moved += where[value] != [place]
    for (partition, offset), value in found.items():
        certain_end, resumed_at = ends[partition]
        assert offset < certain_end or offset >= resumed_at, f"{partition}-{offset} lies in the hole"
        if offset >= resumed_at and value in load.told:
            assert load.told[value][1] < resumed_at, "nobody was ever told of such an offset"
    assert later and moved, f"{len(later)} acknowledged after the audit, {moved} moved"
    assert all(resumed - end >= RESERVATION for end, resumed in ends.values())
    assert committed(bootstrap, "g") == positions

    again = Load(bootstrap)
    again.send(1.0)
    again.producer.flush(PATIENCE_SECONDS)
    assert len(again.told) == again.sent and not again.failures
    assert not set(again.told.values()) & (set(found) | set(load.told.values()))
    report = command(cluster, "audit", *places, "--full")
    assert report["clean"], report["findings"]
