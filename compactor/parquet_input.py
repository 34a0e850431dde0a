"""Parquet objects as a task's input: kept in memory as stored, and decoded one row group at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compactor.lru_cache import LruCache
from sequencer.api.reads import Run
from tailrace.parquet_object.header import InvalidParquetObject, ParquetRun
from tailrace.parquet_object.read import (
    ParquetIndex,
    PlainBatch,
    plain_batches,
    read_index,
    row_group_records,
)

MAX_DECODED_BYTES = 32 << 20
"""The most bytes of decoded row groups to keep. A row group that several partitions share is needed by each."""


class ParquetInput:
    """The complete objects of one item. Raises InvalidParquetObject if they are corrupt."""

    def __init__(self, objects: Mapping[str, memoryview]) -> None:
        self._objects = objects
        self._indexes: dict[str, ParquetIndex] = {}
        self._decoded = LruCache[tuple[str, int], list[memoryview]](MAX_DECODED_BYTES)

    def batches(self, run: Run) -> Iterator[PlainBatch]:
        """Yield the run's batches in order."""
        index = self._index(run)
        held = self._held(run)
        for group in index.row_groups_for(run.topic_id, run.partition, held.base_offset):
            yield from plain_batches(index, group.number, self._records(run.key, group.number), held)

    def row_count(self, run: Run) -> int:
        """Return the number of records in the run."""
        return self._held(run).row_count

    def _held(self, run: Run) -> ParquetRun:
        held = self._index(run).run_of(run.topic_id, run.partition)
        if held is None or (held.base_offset, held.end_offset) != (run.base_offset, run.end_offset):
            held_text = "nothing" if held is None else f"offsets {held.base_offset} to {held.end_offset}"
            raise InvalidParquetObject(
                f"{run.key} has {held_text} of partition {run.partition};"
                f" {run.base_offset} to {run.end_offset} are expected"
            )
        return held

    def _index(self, run: Run) -> ParquetIndex:
        index = self._indexes.get(run.key)
        if index is None:
            tail = self._objects[run.key][run.index_start :]
            index = self._indexes[run.key] = read_index(tail, run.object_size, crc=run.index_crc)
        return index

    def _records(self, key: str, number: int) -> list[memoryview]:
        records = self._decoded.get((key, number))
        if records is None:
            index = self._indexes[key]
            group = index.row_groups[number]
            data = self._objects[key][group.start : group.start + group.length]
            records = row_group_records(index, number, data)
            self._decoded.keep((key, number), records, sum(map(len, records)))
        return records


class PieceBatches:
    """All batches of a partition's runs. Can be iterated any number of times."""

    def __init__(self, data: ParquetInput, runs: Sequence[Run]) -> None:
        self._data = data
        self._runs = runs

    def __iter__(self) -> Iterator[PlainBatch]:
        for run in self._runs:
            yield from self._data.batches(run)
