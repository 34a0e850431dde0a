"""Reads new records of a topic in parts as they become stable, for queries with `--follow`.

A whole part is in memory, so its size is limited. Records that arrive while a part is used wait in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from compactor.spark_source.columns import COLUMNS
from compactor.spark_source.log_index import LogIndex
from compactor.spark_source.log_reader import BatchCoalescer, LogPartition, LogReader, OffsetRange
from compactor.tables.live import TopicFiles
from compactor.tables.query import STORED, TailTooLarge
from sequencer.api.topics import Topic
from tailrace.object_store.api import ObjectStore

PART_BYTES = 32 << 20


class TopicGone(Exception):
    """The followed topic was deleted."""


class TailReader:
    """Reads a topic from its positions on. New partitions are read from their start.

    `positions`: the next offset of each known partition.
    """

    def __init__(
        self, index: LogIndex, store: ObjectStore, topic: Topic, positions: Mapping[LogPartition, int]
    ) -> None:
        self._index = index
        self._reader = LogReader(index, store, list(COLUMNS), passes_over_unreadable=True)
        self._topic = topic
        self._positions = dict(positions)

    async def part(self, max_bytes: int = PART_BYTES) -> pa.Table | None:
        """Return the new stable records, up to about `max_bytes`; None if there are none.

        Raises DataLost if retention deleted records before they were read, TopicGone.
        """
        joined = BatchCoalescer()
        batches: list[Any] = []
        size = 0
        for offset_range in await self._new_ranges():
            async for batch in self._reader.read(offset_range):
                batches += joined.add(batch)
                size += batch.nbytes
                self._positions[offset_range.partition] = batch.column("offset")[-1].as_py() + 1
                if size >= max_bytes:
                    return _as_stored([*batches, *joined.rest()])
            self._positions[offset_range.partition] = offset_range.end
        batches += joined.rest()
        return _as_stored(batches) if batches else None

    async def _new_ranges(self) -> list[OffsetRange]:
        """Return what can be read after the positions, the shortest range first, so that a backlog delays only its own
        partition."""
        topics = [topic for topic in await self._index.topics() if topic.topic_id == self._topic.topic_id]
        if not topics:
            raise TopicGone(f"topic {self._topic.name!r} was deleted")
        ranges = [
            OffsetRange(partition, self._positions.get(partition, start), end)
            for partition, (start, end) in (await self._reader.bounds(topics)).items()
        ]
        return sorted(
            (part for part in ranges if part.start < part.end), key=lambda part: part.end - part.start
        )


def after_files(topic: Topic, files: TopicFiles) -> dict[LogPartition, int]:
    """Return the positions after the records that a query over files and tail has read."""
    return {
        LogPartition(topic.name, topic.topic_id, bounds.partition): bounds.last_stable_offset
        for bounds in files.partitions
    }


async def before_last(
    index: LogIndex, store: ObjectStore, topic: Topic, count: int
) -> dict[LogPartition, int]:
    """Return the positions before the newest `count` offsets of each partition."""
    bounds = await LogReader(index, store, list(COLUMNS)).bounds([topic])
    return {partition: max(start, end - count) for partition, (start, end) in bounds.items()}


async def last_records(records: TailReader, max_bytes: int) -> pa.Table:
    """Return all records after the positions as one table. Raises TailTooLarge."""
    part = await records.part(max_bytes)
    if part is not None and part.nbytes >= max_bytes:
        raise TailTooLarge(f"the newest records have more than {max_bytes >> 20} MiB; use a smaller --last")
    return _as_stored([]) if part is None else part


def _as_stored(batches: list[Any]) -> pa.Table:
    schema = pa.schema([(name, column.arrow) for name, column in COLUMNS.items()])
    return pa.Table.from_batches(batches, schema=schema).rename_columns(STORED)
