"""Creates a log of many small runs without a broker: objects in a folder and rows in the database, in bulk."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import RunBatch
from sequencer.store.batch_table import encode_table
from sequencer.store.row_store import RowStore
from sequencer.store.rows import Changes, CounterRow, LogEpoch, ObjectRow, PartitionRow, RunRow, TopicRow
from sequencer.store.sql.store import SqlRowStore
from sequencer.store.state import COMMIT_NUMBER, METADATA_VERSION
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.clock import SystemClock, SystemEntropy

TOPIC = "backlog"
_TOPIC_ID = UUID(int=0xB)
_ROWS_AT_ONCE = 20_000
_LEASE_MS = 600_000
_AGE_MS = 7_200_000
"""Old enough for a compactor with its default settings."""


async def make_backlog(data: Path, database: str, *, partitions: int, runs: int) -> int:
    """Create topic TOPIC in the folder and database of a `tailrace serve` that has not started.

    Each partition has `runs` runs. A run has one batch of one record. Run n of every partition is in object n. Returns
    the bytes of one run.
    """
    data.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    store = SqlRowStore(database, clock=clock, entropy=SystemEntropy())
    batch = encode_batch([NewRecord(None, b"x" * 100)], timestamps=[clock.wall_ms() - _AGE_MS])
    body = batch * partitions
    try:
        cluster_id = (await store.open()).cluster_id
        epoch = await store.take_committer_lease("backlog", "", _LEASE_MS)
        assert epoch is not None, "nobody else uses this folder yet"
        await _write_topic(store, epoch, partitions, runs)
        per_write = max(1, _ROWS_AT_ONCE // partitions)
        for first in range(0, runs, per_write):
            numbers = range(first, min(first + per_write, runs))
            changes = Changes()
            for number in numbers:
                key = f"{cluster_id}/backlog/{number:08d}"
                path = data / "objects" / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)
                _add_object(changes, key, number, partitions, len(batch), await store.now_ms() - _AGE_MS)
            await store.write(changes, epoch)
        await store.release_committer_lease(epoch)
    finally:
        await store.close()
    return len(batch)


async def _write_topic(store: RowStore, epoch: int, partitions: int, runs: int) -> None:
    now = await store.now_ms()
    changes = Changes()
    changes.put(CounterRow(name=COMMIT_NUMBER, value=runs))
    changes.put(CounterRow(name=METADATA_VERSION, value=1))
    changes.put(TopicRow(topic_id=_TOPIC_ID, name=TOPIC, partitions=partitions, configs={}, created_ms=now))
    for partition in range(partitions):
        changes.put(
            PartitionRow(
                topic_id=_TOPIC_ID, partition=partition, log_start_offset=0, end_offset=runs,
                running_max_timestamp=now, epochs=[LogEpoch(0, 0)],
            )
        )  # fmt: skip
    await store.write(changes, epoch)


def _add_object(changes: Changes, key: str, number: int, partitions: int, length: int, at_ms: int) -> None:
    object_id = UUID(int=(1 << 64) + number)
    changes.put(
        ObjectRow(
            object_id=object_id, kind=ObjectKind.MIXED, key=key, size=partitions * length, crc=0,
            index_start=partitions * length, created_ms=at_ms, format_version=1, live_runs=partitions, retired_ms=None,
        )
    )  # fmt: skip
    table = encode_table([RunBatch(length, 1, BatchStatus.STORED, number, at_ms)])
    for partition in range(partitions):
        changes.put(
            RunRow(
                topic_id=_TOPIC_ID, partition=partition, base_offset=number, end_offset=number + 1,
                object_id=object_id, start=partition * length, length=length, max_timestamp=at_ms,
                running_max_timestamp=at_ms, commit_number=number + 1, created_ms=at_ms, kind=ObjectKind.MIXED,
                batches=table,
            )
        )  # fmt: skip
