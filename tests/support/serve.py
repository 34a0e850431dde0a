"""Runs `tailrace serve` and single commands for tests, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Served:
    """A `tailrace serve` and its addresses for Kafka clients and for metrics."""

    kafka: str
    http: str


@contextmanager
def serve(data: Path, **environ: str) -> Iterator[Served]:
    """Serve this folder. The block begins when the process is ready; at the end it drains."""
    command = [sys.executable, "-m", "tailrace", "serve", "--data", str(data), "--log-format", "json"]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **environ},
    )
    assert process.stderr is not None
    try:
        ready = next(said for said in map(json.loads, process.stderr) if said["event"] == "ready")
        yield Served(f"127.0.0.1:{ready['kafka_port']}", f"127.0.0.1:{ready['http_port']}")
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
