"""`tailrace serve` and librdkafka on bad days: a disk that is really full, and SIGTERM in the middle of a load."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace_cli.demo.ports import free_port
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers import end_with_parent

PARTITIONS = 3
DISK_MIB = 24


@dataclass
class Server:
    """A `tailrace serve` on ports that stay its own when it is started again."""

    data: Path
    log: Path
    kafka: int = field(default_factory=free_port)
    http: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailrace_cli.app", "serve", "--data", str(self.data), "--listen",
                 self.bootstrap, "--http", f"127.0.0.1:{self.http}"],
                stderr=log, preexec_fn=end_with_parent(signal.SIGKILL, os.getpid()),
                env={name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")},
            )  # fmt: skip
        until(self.is_ready, lambda: f"the server is ready: {self.said()}")

    def is_ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.said()
        try:
            self.get("/readyz")
        except OSError:
            return False
        return True

    def get(self, path: str) -> str:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.http}{path}", timeout=PATIENCE_SECONDS
        ) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """A sample by its name and labels as they are written; 0 where there is none yet."""
        lines = self.get("/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"tailrace_{name} "))

    def terminate(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextmanager
def server_in(data: Path, log: Path) -> Iterator[Server]:
    server = Server(data, log)
    server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@dataclass
class Load:
    """An idempotent producer in a thread; what it was promised."""

    bootstrap: str
    value_bytes: int
    acknowledged: dict[str, tuple[int, int]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 500,
                "delivery.timeout.ms": 240_000,
                "reconnect.backoff.max.ms": 200,
            }
        )
        padding = os.urandom(self.value_bytes)
        while not self._ended.is_set():
            name = f"{self.sent:08d}"
            try:
                producer.produce("t", name.encode() + padding, on_delivery=self._on_delivery)
                self.sent += 1
            except BufferError:
                producer.poll(0.01)
            producer.poll(0)
        assert not producer.flush(PATIENCE_SECONDS)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed[error.name()] += 1
        else:
            self.acknowledged[message.value()[:8].decode()] = (message.partition(), message.offset())


def read_all(bootstrap: str) -> Counter[tuple[str, tuple[int, int]]]:
    """(name, (partition, offset)) of every record below the ends as they are now."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        places = [TopicPartition("t", partition, 0) for partition in range(PARTITIONS)]
        ends = {each.partition: consumer.get_watermark_offsets(each, PATIENCE_SECONDS)[1] for each in places}
        consumer.assign(places)
        read: Counter[tuple[str, tuple[int, int]]] = Counter()
        give_up = time.monotonic() + PATIENCE_SECONDS
        while read.total() < sum(ends.values()):
            assert time.monotonic() < give_up, f"{read.total()} of {sum(ends.values())} records were read"
            for message in consumer.consume(500, 0.5):
                if message.error() is None:
                    value = message.value()
                    assert value is not None
                    read[value[:8].decode(), (message.partition(), message.offset())] += 1
        return read
    finally:
        consumer.close()


def read_all_patiently(bootstrap: str) -> Counter[tuple[str, tuple[int, int]]]:
    """The same, asked for again while the database finds no room for its lease: uploads that fail make some again."""
    for _ in range(5):
        with suppress(KafkaException):
            return read_all(bootstrap)
    return read_all(bootstrap)


def nothing_is_lost_or_doubled(load: Load, bootstrap: str) -> None:
    assert not load.failed and len(load.acknowledged) == load.sent
    assert read_all(bootstrap) == Counter(load.acknowledged.items())


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < give_up, f"waited {PATIENCE_SECONDS} s until {what()}"
        time.sleep(0.05)


def create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(PATIENCE_SECONDS)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of DISK_MIB; where it can't be mounted, the test is skipped."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here: no small disk to fill")
    if mounted.returncode:
        pytest.skip(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_stops_producers_and_nothing_else_and_all_continues_with_room(
    small_disk: Path, tmp_path: Path
) -> None:
    """Database and objects share the disk, as `serve` has it by default."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((DISK_MIB - 8) << 20))
    with server_in(small_disk / "data", tmp_path / "log") as server:
        create(server.bootstrap)
        with Load(server.bootstrap, value_bytes=1_000) as load:
            full = 'flush_failures_total{reason="storage"}'
            until(lambda: server.metric(full) > 3, lambda: f"the disk is full: {server.said()}")
            so_far = len(load.acknowledged)
            seen = read_all_patiently(server.bootstrap)
            assert so_far and seen.total() >= so_far, "what is there is read from a full disk"
            assert "No space left on device but" in server.said(), "the last room is left to checkpoints"
            ballast.unlink()
            until(lambda: len(load.acknowledged) > so_far + 200, lambda: f"all goes on: {server.said()}")
        nothing_is_lost_or_doubled(load, server.bootstrap)
        assert server.terminate() == 0


def test_sigterm_under_load_loses_nothing_and_gives_all_leases_back(tmp_path: Path) -> None:
    with server_in(tmp_path / "data", tmp_path / "log") as server:
        create(server.bootstrap)
        with Load(server.bootstrap, value_bytes=500) as load:
            until(lambda: len(load.acknowledged) > 2_000, lambda: "the load is under way")
            assert server.terminate() == 0, server.said()
            said = server.said()
            assert "drained" in said and "drain took too long" not in said, said
            server.start()
            assert "waiting for another process" not in server.said(), "the lease was given back"
            so_far = len(load.acknowledged)
            until(lambda: len(load.acknowledged) > so_far + 500, lambda: "the load goes on")
        nothing_is_lost_or_doubled(load, server.bootstrap)
