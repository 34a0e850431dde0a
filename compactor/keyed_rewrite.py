"""One pass over the keys of a topic's partitions: read, filtered, written again, read back and proved.

A task does the whole pass over a partition: the newest offset of a key may lie in any of its runs. It first reads the
keys of the part that is not clean, then all runs, and writes those again from which records go. The rest is as in
compactor.rewrite: each attempt writes to keys of its own, and what no swap takes is swept.

Memory: the index (`memory_bytes`), some 75 bytes for each of the records that are looked up together, and four times
`target_bytes` or the largest run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.keyed import NO_HORIZON, Pass, Rows, kept, without_horizon
from compactor.keyed_index import KeyIndex
from compactor.plan import Piece, WorkItem
from compactor.rewrite import (
    OutputLocation,
    RewriteFailed,
    RewriteFailure,
    RewriteResult,
    failure_of,
    replacement_of,
    share_length,
    store_object,
)
from sequencer.api import KeyDrops, ObjectKind, Run
from tailrace.clock import Clock, Entropy
from tailrace.ids import TopicPartition
from tailrace.object_store.api import ObjectStore, StoreError
from tailrace.parquet_object.encode import encode_records, rebuild
from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.parquet_object.read import ParquetIndex, PlainBatch, RowGroupRange, read_index, row_group_table
from tailrace.parquet_object.schema import REPLAY_COLUMNS
from tailrace.parquet_object.write import SourceRun
from tailrace.record_batch import (
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    BatchHeader,
    Compression,
    InvalidBatch,
    TimestampType,
    assemble_like,
    read_header,
)
from tailrace.records import InvalidRecords

Array = Any
KEY_COLUMNS = ("offset", "key")
LOOKED_UP_BYTES, LOOKED_UP_ROWS = 64 << 20, 1 << 20
"""Of row groups whose keys are looked up together, unpacked: an index that spilled is read once for them."""


class KeyedPiece(msgspec.Struct, frozen=True, array_like=True):
    """A partition's part in an item: the runs that the pass looks at, contiguous, of Parquet and of markers."""

    partition: int
    runs: list[Run]
    of: Pass

    @property
    def stored_bytes(self) -> int:
        """Bytes to be read; those of the part that is not clean are read twice."""
        return sum(run.length for run in self.runs)


class KeyedItem(msgspec.Struct, frozen=True, array_like=True):
    """One task's work: passes over partitions of one topic. `target_bytes`: where a written object ends."""

    topic_name: str
    pieces: list[KeyedPiece]
    memory_bytes: int
    target_bytes: int

    @property
    def as_work(self) -> WorkItem:
        """The item as one without keys, for reports."""
        return WorkItem(self.topic_name, [Piece(each.partition, each.runs, []) for each in self.pieces])

    @property
    def stored_bytes(self) -> int:
        """Bytes to be read."""
        return sum(piece.stored_bytes for piece in self.pieces)


class KeyedResult(msgspec.Struct, frozen=True, array_like=True):
    """The objects of an item, in order; none where nothing is to go. `dropped`: records that went."""

    item: KeyedItem
    objects: list[RewriteResult]
    dropped: int
    read_bytes: int
    spilled_bytes: int


@dataclass(slots=True)
class _Filtered:
    """A run after the pass. `bytes` are of its records, unpacked."""

    run: Run
    batches: list[PlainBatch] = field(default_factory=list)
    kept: int = 0
    dropped: int = 0
    has_new_horizons: bool = False

    @property
    def is_changed(self) -> bool:
        return bool(self.dropped) or self.has_new_horizons

    @property
    def bytes(self) -> int:
        return sum(len(batch.records) for batch in self.batches)


class _Group(NamedTuple):
    """The rows of one run in one row group. `table`: just these."""

    parquet: ParquetIndex
    places: range
    table: Any


class _Objects:
    """Reads runs of Parquet objects, each footer once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._indexes: dict[str, ParquetIndex] = {}
        self.read_bytes = 0

    async def index(self, run: Run) -> ParquetIndex:
        held = self._indexes.get(run.key)
        if held is None:
            tail = await self._range(run.key, run.index_start, run.object_size - run.index_start)
            held = read_index(tail, run.object_size, crc=run.index_crc)
            self._indexes = {run.key: held}  # runs of one object follow one another at most in one partition
        return held

    async def groups(self, run: Run, columns: Sequence[str]) -> AsyncIterator[_Group]:
        """The run's rows, a row group at a time."""
        index = await self.index(run)
        held = index.run_of(run.topic_id, run.partition)
        if held is None or (held.base_offset, held.end_offset) != (run.base_offset, run.end_offset):
            raise RewriteFailed(
                f"{run.key} has no run of partition {run.partition} from {run.base_offset} on"
            )
        for each in index.row_groups_for(run.topic_id, run.partition, run.base_offset):
            start, length = index.bytes_of(each.number, columns)
            data = await self._range(run.key, start, length)
            yield _rows_of(index, each, row_group_table(index, each.number, data, columns), run)

    async def _range(self, key: str, start: int, length: int) -> bytes:
        data = await self._store.get_range(key, start, length)
        if len(data) != length:
            raise RewriteFailed(f"{key}: {len(data)} bytes from {start}; {length} expected")
        self.read_bytes += length
        return data


class _Writing:
    """The changed runs of an item, put together into objects of about `target_bytes`.

    An object has one stretch of contiguous runs of a partition at most.
    """

    def __init__(
        self, item: KeyedItem, store: ObjectStore, output: OutputLocation, clock: Clock, entropy: Entropy
    ) -> None:
        self._item = item
        self._store = store
        self._output = output
        self._clock = clock
        self._entropy = entropy
        self._stretches: list[tuple[KeyedPiece, list[_Filtered]]] = []
        self._bytes = 0
        self.results: list[RewriteResult] = []

    async def add(self, piece: KeyedPiece, filtered: _Filtered) -> None:
        """Take a run in; one that lost nothing stays where it is."""
        if not filtered.is_changed:
            return
        if self._bytes + filtered.bytes > self._item.target_bytes:
            await self.end_object()
        last = self._stretches[-1] if self._stretches else None
        if last is None or last[0] is not piece:
            self._stretches.append((piece, [filtered]))
        elif last[1][-1].run.end_offset == filtered.run.base_offset:
            last[1].append(filtered)
        else:
            await self.end_object()
            self._stretches.append((piece, [filtered]))
        self._bytes += filtered.bytes

    async def end_object(self) -> None:
        """Write what was taken in."""
        if not self._stretches:
            return
        runs = [self._source_run(stretch) for _, stretch in self._stretches]
        described, written = await store_object(
            runs, self._store, self._output, clock=self._clock, entropy=self._entropy
        )
        replacements = [
            replacement_of(
                [each.run for each in stretch],
                written,
                sum(each.kept for each in stretch),
                KeyDrops(piece.of.end, piece.of.clean_end),
            )
            for piece, stretch in self._stretches
        ]
        self.results.append(
            RewriteResult(
                object=described,
                runs=share_length(replacements, written),
                row_count=written.row_count,
                batch_count=sum(run.batch_count for run in written.runs),
                source_bytes=sum(each.run.length for _, stretch in self._stretches for each in stretch),
            )
        )
        self._stretches, self._bytes = [], 0

    def _source_run(self, stretch: Sequence[_Filtered]) -> SourceRun:
        first, last = stretch[0].run, stretch[-1].run
        return SourceRun(
            partition=TopicPartition(first.topic_id, first.partition),
            topic_name=self._item.topic_name,
            batches=[batch for each in stretch for batch in each.batches],
            base_offset=first.base_offset,
            end_offset=last.end_offset,
        )


def _rows_of(index: ParquetIndex, each: RowGroupRange, table: Any, run: Run) -> _Group:
    held = index.run_of(run.topic_id, run.partition)
    assert held is not None, "looked up by the caller"
    group = index.header.row_groups[each.number]
    first = max(group.first_batch, held.first_batch)
    end = min(group.first_batch + group.batch_count, held.first_batch + held.batch_count)
    counts = index.header.record_counts
    skipped = sum(counts[group.first_batch : first])
    rows = sum(counts[first:end])
    return _Group(index, range(first, end), table.slice(skipped, rows))


async def rewrite_keyed(
    item: KeyedItem, store: ObjectStore, output: OutputLocation, *, clock: Clock, entropy: Entropy
) -> KeyedResult:
    """Carry out the item's passes up to their swaps, and prove what was written.

    Raises RewriteFailed where what was read is not sound, StoreError, InvalidParquetObject.
    """
    objects = _Objects(store)
    writing = _Writing(item=item, store=store, output=output, clock=clock, entropy=entropy)
    dropped = spilled = 0
    try:
        for piece in item.pieces:
            dirty = [run for run in piece.runs if _is_dirty(run, piece.of)]
            rows = sum(run.end_offset - run.base_offset for run in dirty)
            with KeyIndex(rows, memory_bytes=item.memory_bytes, secret=entropy.uuid().bytes) as newest:
                for run in dirty:
                    async for group in objects.groups(run, KEY_COLUMNS):
                        newest.add(_column(group.table, "key"), _numbers(_column(group.table, "offset")))
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
    """`rewrite_keyed`, with what is wrong with this item as a value."""
    try:
        return await rewrite_keyed(item, store, output, clock=clock, entropy=entropy)
    except (RewriteFailed, StoreError, InvalidParquetObject, MemoryError, OSError) as error:
        return failure_of(item.as_work, error)


def _is_dirty(run: Run, of: Pass) -> bool:
    return run.kind is ObjectKind.PARQUET and run.end_offset > of.clean_end


async def _filter(objects: _Objects, run: Run, newest: KeyIndex, of: Pass) -> _Filtered:
    """The run's batches as they are after the pass."""
    filtered = _Filtered(run)
    waiting: list[_Group] = []
    async for group in objects.groups(run, REPLAY_COLUMNS):
        waiting.append(group)
        size = sum(each.table.nbytes for each in waiting)
        if size >= LOOKED_UP_BYTES or sum(each.table.num_rows for each in waiting) >= LOOKED_UP_ROWS:
            _filter_groups(waiting, newest, of, filtered)
            waiting.clear()
    _filter_groups(waiting, newest, of, filtered)
    return filtered


def _filter_groups(groups: Sequence[_Group], newest: KeyIndex, of: Pass, into: _Filtered) -> None:
    if not groups:
        return
    hashes = [newest.hashes(_column(group.table, "key")) for group in groups]
    found = newest.find(np.concatenate(hashes))
    begin = 0
    for group in groups:
        end = begin + group.table.num_rows
        _filter_group(group=group, newest=found[begin:end], head=newest.newest, of=of, into=into)
        begin = end


def _filter_group(group: _Group, newest: Array, head: int, of: Pass, into: _Filtered) -> None:
    headers = group.parquet.batches[group.places.start : group.places.stop]
    counts = np.array(group.parquet.header.record_counts[group.places.start : group.places.stop])
    rows = Rows(
        offsets=_numbers(_column(group.table, "offset")),
        newest=newest,
        has_key=_is_valid(_column(group.table, "key")),
        is_tombstone=~_is_valid(_column(group.table, "value")),
        batches=np.repeat(np.arange(len(headers)), counts),
        horizons_ms=np.array([_horizon_ms(header) for header in headers], np.int64),
        base_offsets=np.array([header.base_offset for header in headers], np.int64),
    )
    stays = kept(rows, of, head)
    new_horizons = without_horizon(rows, stays, of)
    left = np.bincount(rows.batches[stays], minlength=len(headers))
    into.kept += int(left.sum())
    into.dropped += int(len(stays) - left.sum())
    into.has_new_horizons |= bool(new_horizons.any())
    table = group.table.filter(pa.array(stays))
    newest_ms = _newest_ms(table, rows.batches[stays], len(headers))
    is_changed = (left != counts) | new_horizons
    changed = {
        place: _changed(headers[place], of if new_horizons[place] else None, int(newest_ms[place]))
        for place in np.flatnonzero(is_changed & (left > 0)).tolist()
    }
    places = np.flatnonzero(left).tolist()
    records = encode_records(
        table, [changed.get(place, headers[place]) for place in places], left[places].tolist()
    )
    for place, encoded in zip(places, records, strict=True):
        if place in changed:
            batch = _rewritten(changed[place], encoded, int(left[place]))
        else:
            batch = _unchanged(group, group.places.start + place, encoded)
        into.batches.append(batch)


def _horizon_ms(header: BatchHeader) -> int:
    return header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else NO_HORIZON


def _changed(header: BatchHeader, horizon: Pass | None, newest_ms: int) -> BatchHeader:
    """The header of a batch with fewer records, or with a delete horizon, in the place of its base timestamp.

    Its greatest time never rises: a producer may have said less than its records have.
    """
    if header.timestamp_type is TimestampType.CREATE_TIME:
        header = msgspec.structs.replace(header, max_timestamp=min(header.max_timestamp, newest_ms))
    if horizon is not None:
        header = msgspec.structs.replace(
            header,
            attributes=header.attributes | DELETE_HORIZON_FLAG,
            base_timestamp=horizon.new_horizon_ms,
        )
    return header


def _rewritten(header: BatchHeader, records: memoryview, record_count: int) -> PlainBatch:
    """A changed batch. Its length and its CRC are those of the unpacked records; a reader packs them anew."""
    data = assemble_like(header, records, record_count)
    head = data[:HEADER_BYTES]
    return PlainBatch(read_header(head), head, records, True)


def _unchanged(group: _Group, place: int, records: memoryview) -> PlainBatch:
    """Raises InvalidParquetObject where an uncompressed batch does not have its CRC."""
    parquet = group.parquet
    head = parquet.header.batch_headers[place * HEADER_BYTES : (place + 1) * HEADER_BYTES]
    batch = PlainBatch(parquet.batches[place], head, records, bool(parquet.header.exact[place]))
    if batch.header.compression is Compression.NONE and batch.is_exact:
        rebuild(batch.header, head, records, batch.header.record_count, is_exact=True)
    return batch


def _newest_ms(table: Any, batches: Array, count: int) -> Array:
    """The largest timestamp that stays in each batch."""
    newest = np.full(count, -1, np.int64)
    np.maximum.at(newest, batches, _numbers(_column(table, "timestamp")))
    return newest


def _column(table: Any, name: str) -> Any:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _numbers(array: Any) -> Array:
    return array.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _is_valid(array: Any) -> Array:
    return pc.is_valid(array).to_numpy(zero_copy_only=False)
