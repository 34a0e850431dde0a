"""Reading with Spark's source: CPU of planning and of its tasks, without Spark, compared with plain Parquet.

    python -m bench.spark_source [--mib 96] [--only NAME] [--json FILE]

It reads a log on SQLite and a folder through the source like a Spark worker, from mixed objects and then from Parquet.
Spark's own work (its JVM, starting a task, receiving rows) is not counted. For plain Parquet, Arrow reads the columns
of the same files.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bench.support.by_case import run_cases
from compactor.cycle import CompactionSettings, InProcess, run_cycle
from compactor.spark_source.columns import KAFKA_COLUMNS
from compactor.spark_source.source import DefaultSource
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.clock import SystemClock
from tests.support.compaction import Log, change_log

MIB = 1 << 20
RECORDS, VALUE_BYTES = 16, 900
OBJECT_BYTES = 8 * MIB
READS = 3
STORED = [name for name in KAFKA_COLUMNS if name != "timestampType"]


class Case(NamedTuple):
    name: str
    partitions: int


CASES = (Case("thick, 8 partitions", 8), Case("thin, 200 partitions", 200))


def batch_of_records() -> bytes:
    """Return a new batch each time. Half of each value does not compress."""
    half = VALUE_BYTES // 2
    records = [
        NewRecord(b"key-%d" % n, os.urandom(half) + b"v" * half, [("trace", b"%d" % n)])
        for n in range(RECORDS)
    ]
    return encode_batch(records, timestamps=[int(time.time() * 1000)] * RECORDS)


async def filled(log: Log, partitions: int, mib: int) -> None:
    """Fill the log with about `mib` MiB of records, evenly from all partitions, in mixed objects of 8 MiB."""
    await log.topic("t", partitions)
    size = len(batch_of_records())
    each = max(1, OBJECT_BYTES // size // partitions)
    for _ in range(max(1, mib * MIB // (size * each * partitions))):
        batches = [("t", number, batch_of_records()) for number in range(partitions) for _ in range(each)]
        await log.produce(*batches)


async def compact(log: Log) -> None:
    settings = CompactionSettings(min_bytes=1, min_age_ms=0)
    here = InProcess(log.store, log.clock, log.entropy)
    await run_cycle(log.sequencer, here, clock=SystemClock(), entropy=log.entropy, settings=settings)


def cost(read: Callable[[], int]) -> tuple[float, int]:
    """Return the least CPU seconds of several reads, and the result of the last one."""
    found, least = 0, float("inf")
    for _ in range(READS):
        began = time.process_time()
        found = read()
        least = min(least, time.process_time() - began)
    return least, found


def rows_of(options: dict[str, str]) -> int:
    """Plan and read everything. Return the number of rows."""
    reader = DefaultSource(options).reader(None)
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def plain(folder: Path) -> int:
    files = list(folder.rglob("*.parquet"))
    return sum(
        file.read_row_group(
            number, columns=["topic", "partition", "offset", "timestamp", "key", "value"]
        ).num_rows
        for file in map(pq.ParquetFile, files)
        for number in range(file.num_row_groups)
    )


def offsets_of_one(partitions: int, count: int) -> dict[str, str]:
    """Return options that read only the first `count` offsets of partition 0."""
    starts = {str(number): -1 if number else 0 for number in range(partitions)}
    ends = {**starts, "0": count}
    return {"startingOffsets": json.dumps({"t": starts}), "endingOffsets": json.dumps({"t": ends})}


def measured(case: Case, mib: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return measured_in(Path(folder), case, mib)


def measured_in(folder: Path, case: Case, mib: int) -> dict[str, Any]:
    database, store = f"sqlite:///{folder}/rows.db", f"{folder}/objects"
    options = {"store": store, "database": database, "subscribe": "t"}
    found: dict[str, Any] = {}
    change_log(database, store, lambda log: filled(log, case.partitions, mib))
    found["mixed"], rows = cost(lambda: rows_of(options))
    few = options | offsets_of_one(case.partitions, min(1_000, rows // case.partitions))
    found["1,000 offsets, mixed"], _ = cost(lambda: rows_of(few))
    change_log(database, store, _compacted)
    found["parquet"], again = cost(lambda: rows_of(options))
    assert again == rows, (again, rows)
    found["1,000 offsets, parquet"], some = cost(lambda: rows_of(few))
    found["plain parquet"], same = cost(lambda: plain(Path(store)))
    assert same == rows
    return {"rows": rows, "rows of 1,000 offsets": some} | found


async def _compacted(log: Log) -> None:
    await compact(log)


def main() -> None:
    pa.set_cpu_count(1)
    run_cases(CASES, measured, about=__doc__, mib=96)


if __name__ == "__main__":
    main()
