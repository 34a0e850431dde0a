"""Replays raw requests with a small C program (replay.c), so that the limit is the server and not the client.

The program is in C because gcc is on every machine that builds Python packages, and one file needs no separate project.
The bench compiles it at its start. It uses a tenth of an agent's CPU per request.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".c")


class RequestsFailed(Exception):
    """The server answered with errors, or did not answer."""


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One frame with its size. `error_at`: the position of an error code in the response (with its size); 0 if it has
    none. `batch_at`: the position of an idempotent producer's batch of `records` in the frame; -1 if there is none."""

    frame: bytes
    error_at: int = 0
    batch_at: int = -1
    records: int = 0


def compiled(folder: Path) -> Path:
    """Compile the driver into `folder` and return its path."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("no C compiler (gcc or cc) is on PATH; the bench compiles its driver with it")
    made = folder / "replay"
    subprocess.run([compiler, "-O2", "-o", str(made), str(SOURCE)], check=True)
    return made


def write_script(path: Path, connections: Sequence[Sequence[RawRequest]]) -> None:
    """Write the requests that each connection sends in turn, repeatedly."""
    with path.open("wb") as file:
        file.write(struct.pack("<I", len(connections)))
        for requests in connections:
            file.write(struct.pack("<I", len(requests)))
            for request in requests:
                head = (len(request.frame), request.error_at, request.batch_at, request.records)
                file.write(struct.pack("<IIii", *head) + request.frame)


def replayed(
    driver: Path,
    script: Path,
    bootstrap: str,
    *,
    seconds: float,
    in_flight: int,
    rate: float = 0,
    sums: bool = False,
) -> dict[str, Any]:
    """Run the driver and return its counts. Raises RequestsFailed.

    `rate`: requests per second on all connections together. Each is sent when it is due, and its latency counts from
    then. 0 means as fast as they are answered. `sums`: add up the received bytes.
    """
    port = bootstrap.rpartition(":")[2]
    done = subprocess.run(
        [str(driver), str(script), port, str(seconds), str(in_flight), str(rate), str(int(sums))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the driver failed: {done.stderr}")
    counted: dict[str, Any] = json.loads(done.stdout)
    if counted["errors"] or counted["unanswered"]:
        raise RequestsFailed(done.stdout)
    return counted
