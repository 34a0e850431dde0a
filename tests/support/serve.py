"""Runs `tailrace serve` and single commands for tests, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Served:
    """A `tailrace serve`, its addresses for Kafka clients and for metrics, and what it logged until it was ready."""

    kafka: str
    http: str
    events: Sequence[str]


@contextmanager
def serve(data: Path, *, open_files: int | None = None, **environ: str) -> Iterator[Served]:
    """Serve this folder. The block begins when the process is ready; at the end it drains.

    `open_files`: the process's hard limit of open files.
    """
    command = [sys.executable, "-m", "tailrace", "serve", "--data", str(data), "--log-format", "json"]
    limited = [] if open_files is None else ["prlimit", f"--nofile={open_files}:{open_files}"]
    process = subprocess.Popen(
        [*limited, *command, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **environ},
    )
    assert process.stderr is not None
    try:
        events: list[str] = []
        for said in map(json.loads, process.stderr):
            events.append(said["event"])
            if said["event"] == "ready":
                break
        yield Served(f"127.0.0.1:{said['kafka_port']}", f"127.0.0.1:{said['http_port']}", events)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


def tailrace(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tailrace", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        input=stdin,
    )
