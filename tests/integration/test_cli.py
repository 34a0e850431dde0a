"""`tailrace serve` as a process, used by the other commands, watched over HTTP, and drained."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tailrace.cli.demo.ports import free_port
from tests.support.servers import PostgresServer

COMMAND = [sys.executable, "-m", "tailrace.cli.app"]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


class Server:
    def __init__(self, folder: Path) -> None:
        self.kafka = f"127.0.0.1:{free_port()}"
        self.http = f"http://127.0.0.1:{(http := free_port())}"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", "--data", str(folder / "data"), "--listen", self.kafka, "--http",
                 f"127.0.0.1:{http}"],
                stderr=log, env=environment(),
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up and self.process.poll() is None:
            try:
                assert json.loads(get(f"{self.http}/readyz"))["ready"] is True
                return
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def run(self, *arguments: str) -> str:
        command = [*COMMAND, *arguments, "--bootstrap", self.kafka]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
        assert done.returncode == 0, done.stderr + self.log.read_text()
        return done.stdout


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.wait()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://nobody@127.0.0.1:{port}/postgres", 'role "nobody" does not exist'),
        ("postgresql://postgres@127.0.0.1:{port}/nothing", 'database "nothing" does not exist'),
        ("postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=require", "rejected SSL upgrade"),
        ("postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert=/no.pem", "/no.pem"),
        ("postgresql://postgres@127.0.0.1:{port}/postgres?sslmod=require", "did you mean sslmode?"),
        ("postgresql://postgres@127.0.0.1:port/postgres", "a port that is no number"),
    ],
)  # fmt: skip
def test_a_database_that_cannot_be_used_is_one_line(postgres: PostgresServer, url: str, said: str) -> None:
    command = [*COMMAND, "sequencer", "--http", "127.0.0.1:0", "--rpc", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, "--database", url.format(port=postgres.port)],
        capture_output=True, text=True, timeout=60, env=environment(),
    )  # fmt: skip
    assert done.returncode == 1
    # Lines in JSON are the log's: on a busy machine, that the event loop was held.
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("{"))
    assert line.startswith("tailrace: ")
    assert said in line


def test_serve_is_used_by_commands_watched_and_drained(server: Server) -> None:
    server.wait_until_ready()

    assert json.loads(server.run("topic", "create", "flights", "-p", "3", "--json"))["partitions"] == 3
    assert [topic["name"] for topic in json.loads(server.run("topic", "list", "--json"))] == ["flights"]

    server.run("config", "set", "retention.ms=99000", "--topic", "flights")
    assert server.run("config", "get", "retention.ms", "--topic", "flights").strip() == "99000"
    (described,) = json.loads(server.run("topic", "describe", "flights", "--json"))
    assert described["configs"] == {"retention.ms": "99000"}
    assert [each["end_offset"] for each in described["partition_list"]] == [0, 0, 0]

    metrics = get(f"{server.http}/metrics")
    assert "tailrace_connections " in metrics
    assert re.search(r'^tailrace_build_info\{kind="serve",version="[^"]+"\} 1.0$', metrics, flags=re.M)
    assert re.search(r"^process_resident_memory_bytes \d", metrics, flags=re.M)
    assert "_created" not in metrics
    assert 'tailrace_request_seconds_count{api="CREATE_TOPICS"} 1.0' in metrics
    assert "flights" in get(f"{server.http}/")

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=30) == 0, server.log.read_text()
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert "drained" in {line["event"] for line in lines}
    of_the_machine = "the event loop was held"
    loud = [line for line in lines if line["level"] not in ("debug", "info")]
    assert [line for line in loud if line["event"] != of_the_machine] == []
    assert lines[-1]["process"].startswith("serve ")


def test_a_second_serve_on_a_folder_is_told_at_once_who_uses_it(server: Server, tmp_path: Path) -> None:
    server.wait_until_ready()
    command = [*COMMAND, "serve", "--data", str(tmp_path / "data"), "--http", "127.0.0.1:0"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == 1
    assert f"is in use by process {server.process.pid}; stop that one" in done.stderr.splitlines()[-1]
    assert time.monotonic() - began < 15, "it does not wait for the first one's lease"

    server.process.kill()
    server.process.wait()
    again = Server(tmp_path)
    try:
        again.wait_until_ready()  # what the killed one left behind holds up nobody
    finally:
        again.process.kill()
        again.process.wait()


def test_compact_works_on_the_folder_of_a_running_serve_and_of_a_stopped_one(
    server: Server, tmp_path: Path
) -> None:
    server.wait_until_ready()
    producer = Producer({"bootstrap.servers": server.kafka})
    for number in range(100):
        producer.produce("readings", b"%d" % number)
    assert producer.flush(30) == 0
    compact = [
        *COMMAND,
        "compact",
        "--data",
        str(tmp_path / "data"),
        "--master",
        "local[1]",
        "--min-bytes",
        "1",
    ]
    compact += ["--min-age-ms", "0", "--json"]

    beside = subprocess.run(compact, capture_output=True, text=True, timeout=400, env=environment())
    assert beside.returncode == 0, beside.stderr
    assert json.loads(beside.stdout)["records"] == 100

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=30) == 0
    alone = subprocess.run(compact, capture_output=True, text=True, timeout=400, env=environment())
    assert alone.returncode == 0, alone.stderr
    assert json.loads(alone.stdout)["records"] == 0
