"""One pass over the keys of a topic's partitions: reads, filters, rewrites, reads back and verifies.

One task does the whole pass over a partition, because the newest offset of a key may be in any of its runs. It first
reads the keys of the dirty part, then all runs, and rewrites those that lose records. As in compactor.rewrite, each
attempt writes to new keys, and objects that no swap uses are swept.

Memory: the index (`memory_bytes`), `LOOKED_UP_BYTES`, and ten times the item, as stored. The remaining records of a run
are kept compressed. A test measures the memory (`compactor.on_spark.session.keyed_task_memory_bytes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc

from compactor.by_key.keyed import NO_HORIZON, Pass, RecordColumns, kept, without_horizon
from compactor.by_key.keyed_index import KeyIndex
from compactor.plan import Piece, WorkItem
from compactor.rewrite import (
    OutputLocation,
    RewriteFailed,
    RewriteFailure,
    RewriteResult,
    failure_of,
    replacement_of,
    result_of,
    store_object,
)
from compactor.run_groups import PackedBatches, PackedGroup, ParquetRuns, RunGroup, numbers
from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import KeyDrops
from sequencer.api.reads import Run
from tailrace.batches.record_batch import DELETE_HORIZON_FLAG, BatchHeader, InvalidBatch
from tailrace.batches.records import InvalidRecords
from tailrace.clock import Clock, Entropy
from tailrace.ids import TopicPartition
from tailrace.object_store.api import ObjectStore, StoreError
from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.parquet_object.schema import REPLAY_COLUMNS
from tailrace.parquet_object.write import SourceRun

Array = Any
KEY_COLUMNS = ("offset", "key")
LOOKED_UP_BYTES, LOOKED_UP_ROWS = 64 << 20, 1 << 20
"""The most decompressed bytes and rows whose keys are looked up together. A spilled index is read once for them."""


class KeyedPiece(msgspec.Struct, frozen=True, array_like=True):
    """A partition's part of an item: the contiguous runs of Parquet objects and markers that the pass covers."""

    partition: int
    runs: list[Run]
    of: Pass

    @property
    def stored_bytes(self) -> int:
        """The bytes of the runs. Keys of the dirty part are read twice."""
        return sum(run.length for run in self.runs)


class KeyedItem(msgspec.Struct, frozen=True, array_like=True):
    """One task's work: passes over partitions of one topic. `target_bytes`: the size of a written object."""

    topic_name: str
    pieces: list[KeyedPiece]
    memory_bytes: int
    target_bytes: int

    @property
    def as_work(self) -> WorkItem:
        """The item as a WorkItem, for reports."""
        return WorkItem(self.topic_name, [Piece(piece.partition, piece.runs, []) for piece in self.pieces])

    @property
    def stored_bytes(self) -> int:
        """The bytes of all runs."""
        return sum(piece.stored_bytes for piece in self.pieces)


class KeyedResult(msgspec.Struct, frozen=True, array_like=True):
    """The written objects of an item in order; none if no record is removed. `dropped`: the removed records."""

    item: KeyedItem
    objects: list[RewriteResult]
    dropped: int
    read_bytes: int
    spilled_bytes: int


@dataclass(slots=True)
class _FilteredRun:
    """A run after the pass."""

    run: Run
    packed: list[PackedGroup] = field(default_factory=list)
    kept: int = 0
    dropped: int = 0
    has_new_horizons: bool = False

    @property
    def is_changed(self) -> bool:
        return bool(self.dropped) or self.has_new_horizons

    @property
    def stored_bytes(self) -> int:
        """An estimate of the bytes that its records will have in an object."""
        return self.run.length * self.kept // max(1, self.kept + self.dropped)


class _ObjectWriter:
    """Combines the changed runs of an item into objects of about `target_bytes`.

    An object has at most one sequence of contiguous runs per partition.
    """

    def __init__(
        self, item: KeyedItem, store: ObjectStore, output: OutputLocation, clock: Clock, entropy: Entropy
    ) -> None:
        self._item = item
        self._store = store
        self._output = output
        self._clock = clock
        self._entropy = entropy
        self._stretches: list[tuple[KeyedPiece, list[_FilteredRun]]] = []
        self._bytes = 0
        self.results: list[RewriteResult] = []

    async def add(self, piece: KeyedPiece, filtered: _FilteredRun) -> None:
        """Add a run if it lost records; otherwise it stays in its object."""
        if not filtered.is_changed:
            return
        if self._bytes + filtered.stored_bytes > self._item.target_bytes:
            await self.end_object()
        last = self._stretches[-1] if self._stretches else None
        if last is None or last[0] is not piece:
            self._stretches.append((piece, [filtered]))
        elif last[1][-1].run.end_offset == filtered.run.base_offset:
            last[1].append(filtered)
        else:
            await self.end_object()
            self._stretches.append((piece, [filtered]))
        self._bytes += filtered.stored_bytes

    async def end_object(self) -> None:
        """Write the added runs as one object."""
        if not self._stretches:
            return
        runs = [self._source_run(stretch) for _, stretch in self._stretches]
        described, written = await store_object(
            runs, self._store, self._output, clock=self._clock, entropy=self._entropy
        )
        replacements = [
            replacement_of(
                [filtered.run for filtered in stretch],
                written,
                sum(filtered.kept for filtered in stretch),
                KeyDrops(piece.of.end, piece.of.clean_end),
            )
            for piece, stretch in self._stretches
        ]
        source_bytes = sum(filtered.run.length for _, stretch in self._stretches for filtered in stretch)
        self.results.append(result_of(described, written, replacements, source_bytes=source_bytes))
        self._stretches, self._bytes = [], 0

    def _source_run(self, stretch: Sequence[_FilteredRun]) -> SourceRun:
        first, last = stretch[0].run, stretch[-1].run
        return SourceRun(
            partition=TopicPartition(first.topic_id, first.partition),
            topic_name=self._item.topic_name,
            batches=PackedBatches([group for filtered in stretch for group in filtered.packed]),
            base_offset=first.base_offset,
            end_offset=last.end_offset,
        )


async def rewrite_keyed(
    item: KeyedItem, store: ObjectStore, output: OutputLocation, *, clock: Clock, entropy: Entropy
) -> KeyedResult:
    """Run the item's passes up to their swaps, and verify the written objects.

    Raises RewriteFailed for corrupt input, StoreError, InvalidParquetObject.
    """
    objects = ParquetRuns(store)
    writing = _ObjectWriter(item=item, store=store, output=output, clock=clock, entropy=entropy)
    dropped = spilled = 0
    try:
        for piece in item.pieces:
            dirty = [run for run in piece.runs if _is_dirty(run, piece.of)]
            rows = sum(run.end_offset - run.base_offset for run in dirty)
            with KeyIndex(rows, memory_bytes=item.memory_bytes, secret=entropy.uuid().bytes) as newest:
                for run in dirty:
                    async for group in objects.groups(run, KEY_COLUMNS):
                        newest.add(group.column("key"), numbers(group.column("offset")))
                for run in piece.runs:
                    if run.kind is not ObjectKind.PARQUET:
                        continue
                    filtered = await _filter(objects, run, newest, piece.of)
                    dropped += filtered.dropped
                    await writing.add(piece, filtered)
                spilled += newest.spilled_bytes
        await writing.end_object()
    except (InvalidBatch, InvalidRecords, ValueError) as error:
        raise RewriteFailed(f"{item.topic_name}: {error}") from error
    return KeyedResult(
        item=item,
        objects=writing.results,
        dropped=dropped,
        read_bytes=objects.read_bytes,
        spilled_bytes=spilled,
    )


async def try_rewrite_keyed(
    item: KeyedItem, store: ObjectStore, output: OutputLocation, *, clock: Clock, entropy: Entropy
) -> KeyedResult | RewriteFailure:
    """Run `rewrite_keyed`, and return an error of this item as a failure."""
    try:
        return await rewrite_keyed(item, store, output, clock=clock, entropy=entropy)
    except (RewriteFailed, StoreError, InvalidParquetObject, MemoryError, OSError) as error:
        return failure_of(item.as_work, error)


def _is_dirty(run: Run, of: Pass) -> bool:
    return run.kind is ObjectKind.PARQUET and run.end_offset > of.clean_end


async def _filter(objects: ParquetRuns, run: Run, newest: KeyIndex, of: Pass) -> _FilteredRun:
    """Return the run's batches as they are after the pass."""
    filtered = _FilteredRun(run)
    waiting: list[RunGroup] = []
    async for group in objects.groups(run, REPLAY_COLUMNS):
        waiting.append(group)
        size = sum(group.table.nbytes for group in waiting)
        if size >= LOOKED_UP_BYTES or sum(group.table.num_rows for group in waiting) >= LOOKED_UP_ROWS:
            _filter_groups(waiting, newest, of, filtered)
            waiting.clear()
    _filter_groups(waiting, newest, of, filtered)
    return filtered


def _filter_groups(groups: Sequence[RunGroup], newest: KeyIndex, of: Pass, into: _FilteredRun) -> None:
    if not groups:
        return
    hashes = [newest.hashes(group.column("key")) for group in groups]
    offsets = newest.find(np.concatenate(hashes))
    begin = 0
    for group in groups:
        end = begin + group.table.num_rows
        _filter_group(group=group, newest=offsets[begin:end], head=newest.newest, of=of, into=into)
        begin = end


def _filter_group(group: RunGroup, newest: Array, head: int, of: Pass, into: _FilteredRun) -> None:
    rows = RecordColumns(
        offsets=numbers(group.column("offset")),
        newest=newest,
        has_key=_is_valid(group.column("key")),
        is_tombstone=~_is_valid(group.column("value")),
        batches=group.batches,
        horizons_ms=np.array([_horizon_ms(header) for header in group.headers], np.int64),
        base_offsets=np.array([header.base_offset for header in group.headers], np.int64),
    )
    stays = kept(rows, of, head)
    new_horizons = np.flatnonzero(without_horizon(rows, stays, of)).tolist()
    into.kept += int(stays.sum())
    into.dropped += int(len(stays) - stays.sum())
    into.has_new_horizons |= bool(new_horizons)
    if stays.any():
        left = group.without(~stays, dict.fromkeys(new_horizons, of.new_horizon_ms))
        into.packed.append(PackedGroup.of(left))


def _horizon_ms(header: BatchHeader) -> int:
    return header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else NO_HORIZON


def _is_valid(array: Any) -> Array:
    return pc.is_valid(array).to_numpy(zero_copy_only=False)
