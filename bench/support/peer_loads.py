"""Runs the loads of `bench.peers` on one server. Each gives rows of figures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.broker import PROFILES
from bench.support.librdkafka import BATCH, BatchProducer
from bench.support.peer_cases import LARGE, NULL, Case
from bench.support.process_figures import cpu_seconds
from bench.support.raw_fetch import RawFetcher
from bench.support.raw_load import MIB, PARTITIONS, Bench, Server
from tests.compat import with_java

COLD_MIB = 512
WARM_UP_SECONDS = 1.0
HOT_UP_TO_CONNECTIONS = 100
JAVA_SUMMARY = re.compile(
    r"([\d.]+) records/sec \(([\d.]+) MB/sec\).* ([\d.]+) ms 50th, .* ([\d.]+) ms 99th, ([\d.]+) ms 99.9th"
)


class Loads:
    """The loads on one server."""

    def __init__(
        self, server: Server, driver: Path, folder: Path, seconds: float, *, sums: bool = False
    ) -> None:
        self._server = server
        self._bench = Bench(server, driver, folder, seconds, sums=sums, warm_up=WARM_UP_SECONDS)
        self._admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        self._seconds = seconds
        self._kinds: dict[str, Callable[[Case, str], list[dict[str, Any]]]] = {
            "warm-up": self._warm_up,
            "produce": self._produce,
            "paced": self._paced,
            "cold": self._cold,
            "groups": self._groups,
            "librdkafka": self._librdkafka,
            "java": self._java,
        }

    def run(self, case: Case, topic: str) -> list[dict[str, Any]]:
        """Run the case on new topics. Return its rows."""
        names = [topic] if case.load is None else case.load.names(topic)
        for created in self._admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
            created.result(30)
        try:
            rows = self._kinds[case.kind](case, topic)
        finally:
            for deleted in self._admin.delete_topics(names).values():
                deleted.result(30)
        return rows

    def _produce(self, case: Case, topic: str) -> list[dict[str, Any]]:
        assert case.load is not None
        rows = [self._bench.produced(case.load, topic)]
        is_fetched = case.load.connections <= HOT_UP_TO_CONNECTIONS and case.load.topics == 1
        if self._server.name != NULL and is_fetched:
            rows.append(self._bench.fetched(case.load, topic, "hot"))
        return rows

    def _warm_up(self, case: Case, topic: str) -> list[dict[str, Any]]:
        assert case.load is not None
        self._bench.produced(case.load, topic)
        return []

    def _paced(self, case: Case, topic: str) -> list[dict[str, Any]]:
        assert case.load is not None
        return [self._bench.produced(case.load, topic, "paced", rate=case.rate, seconds=2 * self._seconds)]

    def _cold(self, case: Case, topic: str) -> list[dict[str, Any]]:
        assert case.load is not None
        self._bench.fill(case.load, topic, COLD_MIB)
        return [self._bench.fetched(case.load, topic, "cold", whole=True)]

    def _groups(self, case: Case, topic: str) -> list[dict[str, Any]]:
        words = (self._server.bootstrap, topic, str(case.rate), str(3 * self._seconds))
        with self._measured(case) as row:
            done = subprocess.run(
                [sys.executable, "-m", "bench.end_to_end", *words],
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"{self._server.name}, {case.name}: {done.stderr[-2000:]}")
        row |= json.loads(done.stdout.splitlines()[-1])
        return [row]

    def _librdkafka(self, case: Case, topic: str) -> list[dict[str, Any]]:
        settings = {"bootstrap.servers": self._server.bootstrap, "acks": "all", **PROFILES[case.settings]}
        producer = BatchProducer(settings, topic, os.urandom(1024))
        sent, ends = 0, time.monotonic() + 2 * self._seconds
        with self._measured(case) as row:
            while time.monotonic() < ends:
                taken = producer.produce(BATCH)
                sent += taken
                producer.wait(0 if taken == BATCH else 2)
            left = producer.flush(60_000)
        producer.close()
        fetcher = RawFetcher(self._server.bootstrap, topic, max_bytes=MIB, partition_max_bytes=MIB)
        stored = sum(fetcher.ends(PARTITIONS).values())
        fetcher.close()
        if left or stored < sent:
            raise RuntimeError(f"{sent} records were sent, {stored} stored, {left} not answered within 60 s")
        row["mib"] = sent / 1024
        return [row]

    def _java(self, case: Case, topic: str) -> list[dict[str, Any]]:
        if with_java.unavailable() is not None:
            return []
        large = ("batch.size=1000000", "linger.ms=50") if case.settings == LARGE else ()
        count = int(self._seconds * 50_000)
        words = (
            "--topic", topic, "--num-records", str(count), "--record-size", "1024", "--throughput", "-1",
            "--producer-props", f"bootstrap.servers={self._server.bootstrap}", *large,
        )  # fmt: skip
        with self._measured(case) as row:
            told = subprocess.run(
                with_java.command(with_java.TOOLS["kafka-producer-perf-test"], *words),
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        summary = JAVA_SUMMARY.search(told)
        if summary is None:
            raise RuntimeError(f"kafka-producer-perf-test said: {told[-2000:]}")
        rate, mib, p50, p99, p999 = map(float, summary.groups())
        row |= {"mib": count / 1024, "p50_ms": p50, "p99_ms": p99, "p999_ms": p999}
        row |= {"records_per_second": rate, "mib_per_second": mib}
        return [row]

    @contextmanager
    def _measured(self, case: Case) -> Iterator[dict[str, Any]]:
        """Yield a row. At the end of the block it gets the seconds and the server's CPU."""
        row: dict[str, Any] = {"server": self._server.name, "load": case.kind, "batch": case.name}
        used, began = cpu_seconds(self._server.pid), time.monotonic()
        yield row
        row["seconds"] = time.monotonic() - began
        row["server_cpu_seconds"] = cpu_seconds(self._server.pid) - used
