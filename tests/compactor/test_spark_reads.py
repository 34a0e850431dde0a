"""A stream from a real Spark, whose driver is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from sequencer.api.topics import CreatePartitions
from tests.support.compaction import Log, batch_of, change_log, compacted_here

DRIVER_SECONDS = 600
TRIES = 3
"""A Python worker has 10 s to start, whatever Spark is told; on a busy machine a driver fails for that, and is started
again, as an operator would."""


def drive(folder: Path, when: str) -> int:
    """The driver's exit status."""
    for _ in range(TRIES):
        status = drive_once(folder, when)
        if status != 1:
            break
    return status


def drive_once(folder: Path, when: str) -> int:
    command = [sys.executable, "-m", "tests.compactor.reading_driver", str(folder), when]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(DRIVER_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_first_batch_whose_driver_is_killed_is_made_again_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    async def begin(log: Log) -> None:
        await log.topic("t", 2)
        await grow(log)

    async def grow(log: Log) -> None:
        for _ in range(3):
            await log.produce(("t", 0, batch_of([b"x"] * 5)), ("t", 1, batch_of([b"y"] * 2)))

    async def widen_and_compact(log: Log) -> None:
        await log.sequencer.create_partitions(CreatePartitions(log.topics["t"].topic_id, 3))
        await log.produce(("t", 2, batch_of([b"z"])))
        await compact_and_grow(log)

    async def compact_and_grow(log: Log) -> None:
        await compacted_here(log, merges=True)
        await grow(log)

    def change(how: Callable[[Log], Awaitable[None]]) -> None:
        change_log(f"sqlite:///{tmp_path}/rows.db", f"{tmp_path}/objects", how)

    change(begin)
    assert drive(tmp_path, "reading") == -signal.SIGKILL
    assert not list((tmp_path / "out").iterdir())
    change(widen_and_compact)
    assert drive(tmp_path, "never") == 0
    made_again = json.loads((tmp_path / "out" / "0.json").read_text())
    assert made_again == [[0, offset] for offset in range(15)] + [[1, offset] for offset in range(6)]
