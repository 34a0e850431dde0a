"""A start, some load and an ordered end are no reason for a warning, in any process's log."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster import Cluster, Part, running_cluster
from tests.support.patience import PATIENCE_SECONDS

THE_MACHINE = "the event loop was held"
"""A warning that says how busy the machine is on which tests run."""

PATIENT = {
    "TAILRACE_SEQUENCER__COMMITTER_LEASE_MS": "30000",
    "TAILRACE_SEQUENCER__AGENT_LEASE_MS": "60000",
    "TAILRACE_SEQUENCER__SESSION_LEASE_MS": "60000",
}
"""A lease that lapses as the machine is busy is a reason for a warning; it is not what is looked for here."""
GATEWAY = {"TAILRACE_GATEWAY__LISTEN": "127.0.0.1:0"}


@contextmanager
def load(bootstrap: str, topic: str) -> Iterator[None]:
    """A producer and a group's consumer, from the first record that both have seen on."""
    seen, end = threading.Event(), threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "quiet", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])

    def produce() -> None:
        while not end.is_set():
            producer.produce(topic, b"x" * 100)
            producer.poll(0.01)

    def consume() -> None:
        while not end.is_set():
            if consumer.poll(0.1) is not None:
                seen.set()
        consumer.close()

    threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    try:
        assert seen.wait(PATIENCE_SECONDS)
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()
        producer.flush(10)


def loud_lines(part: Part) -> list[str]:
    """Lines that are not JSON, or of a level that an operator is woken by, or that don't say who writes."""
    loud = []
    for line in part.log.read_text().splitlines():
        said = json.loads(line) if line.startswith("{") else {}
        is_named = list(said)[:3] == ["timestamp", "level", "process"]
        is_loud = said.get("level") not in ("debug", "info") and said.get("event") != THE_MACHINE
        if not is_named or is_loud:
            loud.append(f"{part.name}: {line}")
    return loud


def test_a_start_some_load_and_a_drain_log_no_warning() -> None:
    with running_cluster(zones=("az-a", "az-b"), environ=PATIENT | GATEWAY) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("quiet", 4)])["quiet"].result()

        for part in (*cluster.agents, *cluster.sequencers):
            metrics = part.get("/metrics")
            assert "tailrace_build_info{" in metrics and "\nprocess_open_fds " in metrics, part.name
        for agent in cluster.agents:
            with urllib.request.urlopen(
                f"{gateway_of(agent)}/v3/clusters", timeout=PATIENCE_SECONDS
            ) as answer:
                assert answer.status == 200
        with load(cluster.bootstrap, "quiet"):
            cluster.drain(cluster.agents[0])
            drain_the_committer_and_wait_for_the_next(cluster)
        for part in (cluster.agents[1], *(each for each in cluster.sequencers if each.is_running)):
            cluster.drain(part)

        assert [line for part in (*cluster.agents, *cluster.sequencers) for line in loud_lines(part)] == []
        names = {json.loads(part.log.read_text().splitlines()[-1])["process"] for part in cluster.agents}
        assert len(names) == 2 and all(name.startswith("agent ") for name in names)


def gateway_of(agent: Part) -> str:
    lines = map(json.loads, agent.log.read_text().splitlines())
    listens: list[str] = [line["listen"] for line in lines if line["event"] == "serving topics over HTTP"]
    return f"http://{listens[0]}"


def drain_the_committer_and_wait_for_the_next(cluster: Cluster) -> None:
    first = cluster.wait_for_committer()
    cluster.drain(first)
    assert cluster.wait_for_committer() is not first
