"""Writes a log of many small runs directly into a row store before a sequencer starts."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import Run, RunBatch
from sequencer.store.batch_table import encode_table
from sequencer.store.memory import MemoryRowStore
from sequencer.store.row_store import PartitionBytes, RowStore
from sequencer.store.rows import Changes, CounterRow, LogEpoch, ObjectRow, PartitionRow, RunRow, TopicRow
from sequencer.store.state import COMMIT_NUMBER, METADATA_VERSION

TOPIC = UUID(int=0x70)
RUN_LENGTH = 1_000


async def fill(
    store: RowStore,
    *,
    partitions: int,
    runs: int,
    batches: int = 5,
    run_length: int = RUN_LENGTH,
    name: str = "old",
    markers: int = 0,
) -> None:
    """Create topic TOPIC with a given number of runs in each partition, and of batches of one record in each run.

    Run number n of every partition is in object n: one commit each. The first `markers` runs are of kind MARKERS.
    """
    await store.open()
    epoch = await store.take_committer_lease("fill", "", 1_000)
    assert epoch is not None, "nobody else uses this store yet"
    now = await store.now_ms()
    length = run_length // batches
    changes = Changes()
    changes.put(CounterRow(name=COMMIT_NUMBER, value=runs))
    changes.put(CounterRow(name=METADATA_VERSION, value=1))
    changes.put(TopicRow(topic_id=TOPIC, name=name, partitions=partitions, configs={}, created_ms=now))
    for partition in range(partitions):
        changes.put(
            PartitionRow(
                topic_id=TOPIC, partition=partition, log_start_offset=0, end_offset=runs * batches,
                running_max_timestamp=runs, epochs=[LogEpoch(0, 0)],
            )
        )  # fmt: skip
    for number in range(runs):
        object_id = UUID(int=(1 << 64) + number)
        base = number * batches
        table = encode_table(
            [RunBatch(length, 1, BatchStatus.STORED, base + index, number) for index in range(batches)]
        )
        changes.put(
            ObjectRow(
                object_id=object_id, kind=ObjectKind.MIXED, key=f"data/session/{number:020d}",
                size=partitions * run_length, crc=0, index_start=partitions * run_length, created_ms=now,
                format_version=1, live_runs=partitions, retired_ms=None,
            )
        )  # fmt: skip
        for partition in range(partitions):
            changes.put(
                RunRow(
                    topic_id=TOPIC, partition=partition, base_offset=base, end_offset=base + batches,
                    object_id=object_id, start=partition * run_length, length=run_length, max_timestamp=number,
                    running_max_timestamp=number, commit_number=number + 1, created_ms=now,
                    kind=ObjectKind.MARKERS if number < markers else ObjectKind.MIXED, batches=table,
                )
            )  # fmt: skip
    await store.write(changes, epoch)
    await store.release_committer_lease(epoch)


class CountingStore(MemoryRowStore):
    """Counts the runs read (by offset), their batches, the read steps and the statements for them, the object look-ups,
    and the sums of bytes requested."""

    runs_read = 0
    batches_read = 0
    looks = 0
    statements = 0
    object_looks = 0
    sums = 0

    async def runs_from(
        self,
        topic_id: UUID,
        partition: int,
        offset: int,
        max_bytes: int,
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[Run]:
        place = (topic_id, partition, offset)
        found = await super().runs_from(*place, max_bytes, max_runs, with_batches=with_batches)
        self.looks += 1
        self.statements += 1
        self.runs_read += len(found)
        self.batches_read += sum(len(run.batches) for run in found)
        return found

    async def runs_from_many(
        self,
        queries: Sequence[tuple[UUID, int, int, int]],
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[list[Run]]:
        before = self.statements
        found = await super().runs_from_many(queries, max_runs, with_batches=with_batches)
        self.statements = before + 1
        return found

    async def object_rows(self, object_ids: Sequence[UUID]) -> list[ObjectRow]:
        self.object_looks += 1
        return await super().object_rows(object_ids)

    async def partition_bytes(self, topic_ids: Sequence[UUID] | None) -> list[PartitionBytes]:
        self.sums += 1
        return await super().partition_bytes(topic_ids)

    async def partition_bytes_within(self, topic_id: UUID, first: int, end: int) -> list[PartitionBytes]:
        self.sums += 1
        return await super().partition_bytes_within(topic_id, first, end)
