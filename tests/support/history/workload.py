"""Puts a load of all kinds of clients on a cluster, and records its history.

Idempotent and plain producers write an input topic; loops make one output of each input in transactions; readers of
both isolation levels follow both topics; a group reads the input and commits its positions; a watcher asks for the
bounds. At the end readers of both isolation levels read everything once more, and all positions are fetched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.history.clients import (
    BoundsWatcher,
    Client,
    GroupMember,
    Reader,
    Recorder,
    SteadyProducer,
    TransactionLoop,
    fetch_positions,
    look,
)
from tests.support.history.events import AnyEvent, Isolation, TopicMade
from tests.support.history.files import HistoryLog

STOP_SECONDS = 90.0
SETTLE_SECONDS = 60.0


class WorkloadFailed(Exception):
    """The load could not start or finish because the cluster does not serve."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How many clients of each kind there are, and how fast they are."""

    partitions: int = 4
    idempotent_producers: int = 2
    plain_producers: int = 1
    loops: int = 1
    """Transactional consume-transform-produce loops; 0 for a cluster without transactions."""
    members: int = 2
    """Members of the reading group."""
    records_per_second: float = 100.0
    """The rate of each producer."""
    replication: int = 1
    topic: str = "history"

    @property
    def inputs(self) -> str:
        return f"{self.topic}-input"

    @property
    def outputs(self) -> str:
        return f"{self.topic}-output"

    @property
    def topics(self) -> dict[str, int]:
        named = [self.inputs, self.outputs] if self.loops else [self.inputs]
        return dict.fromkeys(named, self.partitions)

    @property
    def loop_group(self) -> str:
        return f"{self.topic}-loop"

    @property
    def read_group(self) -> str:
        return f"{self.topic}-readers"


@dataclass
class Run:
    """A running load. `finish` ends it and reads everything."""

    workload: Workload
    recorder: Recorder
    clients: list[Client] = field(default_factory=list)

    @property
    def events(self) -> list[AnyEvent]:
        """The history so far."""
        return self.recorder.log.events

    @property
    def remarks(self) -> list[str]:
        return self.recorder.remarks

    def now(self) -> float:
        return self.recorder.now()

    def finish(self) -> list[AnyEvent]:
        """Stop the load, wait until no transaction is open, read everything and fetch all positions; returns the whole
        history."""
        self.recorder.stopping.set()
        deadline = time.monotonic() + STOP_SECONDS
        for client in self.clients:
            client.thread.join(max(0.1, deadline - time.monotonic()))
        hung = [client.name for client in self.clients if client.thread.is_alive()]
        if hung:
            raise WorkloadFailed(
                f"clients did not end within {STOP_SECONDS:.0f} s: {hung}; {self.remarks[-5:]}"
            )
        _read_everything(self.workload, self.recorder)
        self.recorder.log.close()
        return self.events


@contextmanager
def running_workload(
    bootstrap: str,
    workload: Workload | None = None,
    *,
    path: Path | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[Run]:
    """Create the topics and start the clients.

    Args:
        path: the file for the history, written as it happens.
        settings: further librdkafka settings of every client.
    """
    chosen = workload or Workload()
    recorder = Recorder(bootstrap, HistoryLog(path), dict(settings or {}))
    _create_topics(recorder, chosen)
    run = Run(chosen, recorder, _clients(recorder, chosen))
    for client in run.clients:
        client.start()
    try:
        yield run
    finally:
        recorder.stopping.set()


def _create_topics(recorder: Recorder, workload: Workload) -> None:
    admin = AdminClient(recorder.config("history-admin"))
    asked = [
        NewTopic(topic, partitions, workload.replication) for topic, partitions in workload.topics.items()
    ]
    for topic, made in admin.create_topics(asked, request_timeout=30).items():
        try:
            made.result(60)
        except KafkaException as error:
            raise WorkloadFailed(
                f"{topic} can't be created (each run wants topics of its own): {error}"
            ) from error
        recorder.add(TopicMade(at=recorder.now(), topic=topic))
    deadline = time.monotonic() + 30  # until every broker knows the topic
    while any(_partition_count(admin, topic) < count for topic, count in workload.topics.items()):
        if time.monotonic() > deadline:
            raise WorkloadFailed("the topics did not appear in the metadata within 30 s")
        time.sleep(0.05)


def _partition_count(admin: Any, topic: str) -> int:
    try:
        return len(admin.list_topics(timeout=10).topics[topic].partitions)
    except (KafkaException, KeyError):
        return 0


def _clients(recorder: Recorder, workload: Workload) -> list[Client]:
    clients: list[Client] = [
        SteadyProducer(
            recorder, f"idempotent-{index}", workload.inputs, workload.partitions, workload.records_per_second
        )
        for index in range(workload.idempotent_producers)
    ]
    clients += [
        SteadyProducer(
            recorder,
            f"plain-{index}",
            workload.inputs,
            workload.partitions,
            workload.records_per_second / 2,
            is_idempotent=False,
        )
        for index in range(workload.plain_producers)
    ]
    clients += [
        TransactionLoop(
            recorder,
            f"loop-{index}",
            inputs=workload.inputs,
            outputs=workload.outputs,
            partitions=workload.partitions,
            group=workload.loop_group,
        )
        for index in range(workload.loops)
    ]
    isolations: tuple[Isolation, ...] = ("uncommitted", "committed")
    clients += [
        Reader(recorder, f"reader-{isolation}", workload.topics, isolation) for isolation in isolations
    ]
    clients += [
        GroupMember(recorder, f"member-{index}", workload.inputs, workload.read_group)
        for index in range(workload.members)
    ]
    clients.append(BoundsWatcher(recorder, "watcher", workload.topics))
    return clients


def _read_everything(workload: Workload, recorder: Recorder) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    _wait_until_stable(workload, recorder, deadline)
    isolations: tuple[Isolation, ...] = ("uncommitted", "committed")
    for isolation in isolations:
        reader = Reader(recorder, f"final-{isolation}", workload.topics, isolation, ends_at_eof=True)
        while len(reader.ends) < sum(workload.topics.values()):
            try:
                reader.work()
            except KafkaException as error:
                recorder.remark(f"{reader.name}: {error}")
                if time.monotonic() > deadline:
                    raise WorkloadFailed(f"all can't be read: {error}") from error
                time.sleep(0.2)
    places = [TopicPartition(workload.inputs, partition) for partition in range(workload.partitions)]
    for group in (workload.read_group, workload.loop_group)[: 2 if workload.loops else 1]:
        consumer = Consumer(
            recorder.config(
                "final", group_id=group, isolation_level="read_committed", enable_auto_commit=False
            )
        )
        try:
            fetch_positions(recorder, "final", consumer, group, places)
        finally:
            consumer.close()


def _wait_until_stable(workload: Workload, recorder: Recorder, deadline: float) -> None:
    """Wait until the last stable offset is at the end everywhere, once transactions that clients left open are
    aborted."""
    consumers = {
        isolation: Consumer(
            recorder.config("final", group_id="unused-bounds", isolation_level=f"read_{isolation}")
        )
        for isolation in ("uncommitted", "committed")
    }
    try:
        for topic, partitions in workload.topics.items():
            for partition in range(partitions):
                while True:
                    place = TopicPartition(topic, partition)
                    end, stable = (
                        look(recorder, "final", consumers[isolation], place, isolation)
                        for isolation in ("uncommitted", "committed")
                    )
                    if end is not None and end == stable:
                        break
                    if time.monotonic() > deadline:
                        raise WorkloadFailed(
                            f"{topic}-{partition} ends at {end} but is stable up to {stable} only: a hung transaction"
                        )
                    time.sleep(0.1)
    finally:
        for consumer in consumers.values():
            consumer.close()
