"""One task: reads the runs of a work item, rewrites them as one Parquet object, reads it back and verifies it.

The runs are in mixed objects, or in Parquet objects that are merged. A merge keeps all headers, batches and records.

A task may run twice (a retry, a lost executor). Each attempt writes to a new key under the session that the driver
opened. An object that no swap uses is an orphan, and the sweep of ended sessions deletes it.

The object omits what a read_committed consumer never sees: records of aborted transactions and markers. Their offsets
stay empty. If nothing is left, the object has no rows, but still replaces its offsets. All other records are kept.
Compaction by key (compactor.by_key.keyed) follows later.

This module does not depend on Spark.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa

from compactor.blocking_calls import Blocking, run_here
from compactor.parquet_input import ParquetInput, PieceBatches
from compactor.plan import Piece, WorkItem
from sequencer.api.commits import BatchStatus, ObjectDescription, ObjectKind
from sequencer.api.compaction import KeyDrops, ReplacementRun
from sequencer.api.reads import AbortedTransaction, Run
from tailrace.batches.record_batch import BatchHeader, InvalidBatch, check_crc, read_header
from tailrace.batches.records import InvalidRecords
from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy
from tailrace.ids import TopicPartition
from tailrace.object_store.api import ObjectMissing, ObjectStore, StoreError
from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.parquet_object.read import PlainBatch
from tailrace.parquet_object.verify import verify
from tailrace.parquet_object.write import SourceBatch, SourceRun, WrittenParquet, write_parquet

MAX_GAP_BYTES = 1 << 20
"""Two runs of an object with at most this many bytes between them are read with one request."""
MAX_RANGE_BYTES = 16 << 20
CONCURRENT_READS = 16

LEADER_EPOCH = 0
"""The epoch in each stored batch. Readers replace it with the partition's."""


class OutputLocation(NamedTuple):
    """Where a job's tasks write, for which cluster, and until when by the wall clock. The sweep does not look for
    objects that are put long after their session has ended."""

    prefix: str
    cluster_id: str
    until_ms: int


class TookTooLong(StoreError):
    """A task was too late to put its object; the message says by how much."""


class RewriteFailed(Exception):
    """The item was not rewritten, and its runs stay as they are. The message says what was found."""


class RewriteResult(msgspec.Struct, frozen=True, array_like=True):
    """A Parquet object that was written and verified, and the runs that it can replace."""

    object: ObjectDescription
    runs: list[ReplacementRun]
    row_count: int
    batch_count: int
    source_bytes: int
    aborted_count: int = 0
    marker_count: int = 0
    merged_objects: int = 0

    @property
    def positions(self) -> list[tuple[UUID, int, int]]:
        """(topic id, partition, base offset) of each piece."""
        return [(run.topic_id, run.partition, run.base_offset) for run in self.runs]


class RewriteFailure(msgspec.Struct, frozen=True, array_like=True):
    """An item that could not be rewritten, with the reason in one line.

    `positions`: (topic id, partition, base offset) of each piece. `is_of_input`: the input is corrupt or missing, so a
    retry would fail too.
    """

    topic_name: str
    partitions: list[int]
    reason: str
    positions: list[tuple[UUID, int, int]]
    is_of_input: bool


class ByteRange(NamedTuple):
    """Bytes [start, end) of an object."""

    key: str
    start: int
    end: int


def ranges_to_read(
    pieces: Sequence[Piece], *, max_gap: int = MAX_GAP_BYTES, max_range: int = MAX_RANGE_BYTES
) -> list[ByteRange]:
    """Return few ranges that contain all runs. Near runs share a range, no run is split, Parquet objects are whole."""
    whole = {run.key: run for piece in pieces for run in piece.runs if run.kind is ObjectKind.PARQUET}
    mixed_ranges = sorted(
        ByteRange(run.key, run.start, run.start + run.length)
        for piece in pieces
        for run in piece.runs
        if run.kind is ObjectKind.MIXED
    )
    ranges = [ByteRange(run.key, 0, run.object_size) for run in whole.values()]
    for byte_range in mixed_ranges:
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and last.key == byte_range.key
            and byte_range.start - last.end <= max_gap
            and byte_range.end - last.start <= max_range
        ):
            ranges[-1] = last._replace(end=max(last.end, byte_range.end))
        else:
            ranges.append(byte_range)
    return ranges


async def rewrite(
    item: WorkItem, store: ObjectStore, output: OutputLocation, *, clock: Clock, entropy: Entropy
) -> RewriteResult:
    """Write the item's records as one Parquet object, and verify it.

    Raises RewriteFailed if the input is corrupt or the object does not read back equal, StoreError if the store fails.
    Decoding blocks the loop: run it on a separate loop (a Spark task) or with a small item.
    """
    data = await _read(item.pieces, store)
    try:
        kept = _keep_all(item, data) if item.is_merge else [keep(piece, data) for piece in item.pieces]
    except InvalidBatch as error:
        raise RewriteFailed(f"{item.topic_name}: {error}") from error
    runs = [_source_run(item, piece, held) for piece, held in zip(item.pieces, kept, strict=True)]
    described, written = await store_object(runs, store, output, clock=clock, entropy=entropy)
    replacements = [
        replacement_of(piece.runs, written, of_piece.record_count)
        for piece, of_piece in zip(item.pieces, kept, strict=True)
    ]
    return msgspec.structs.replace(
        result_of(described, written, replacements, source_bytes=item.stored_bytes),
        aborted_count=sum(of_piece.aborted_count for of_piece in kept),
        marker_count=sum(of_piece.marker_count for of_piece in kept),
        merged_objects=len(item.object_ids) if item.is_merge else 0,
    )


async def store_object(
    runs: Sequence[SourceRun],
    store: ObjectStore,
    output: OutputLocation,
    *,
    clock: Clock,
    entropy: Entropy,
    run: Blocking[Any] = run_here,
) -> tuple[ObjectDescription, WrittenParquet]:
    """Write runs of one topic as an object, read it back and compare it. No PUT starts or continues after the deadline
    of `output`.

    Args:
        run: makes the two calls that encode and compare the object. They take seconds for 100 MiB.

    Raises RewriteFailed, StoreError.
    """
    object_id = entropy.uuid()
    created_ms = clock.wall_ms()
    name = runs[0].topic_name
    key = f"{output.prefix}{name}/{object_id}.parquet"
    try:
        written: WrittenParquet = await run(
            lambda: write_parquet(
                runs, object_id=object_id, cluster_id=output.cluster_id, created_ms=created_ms
            )
        )
    except (InvalidBatch, InvalidRecords, ValueError) as error:
        raise RewriteFailed(f"{name}: {error}") from error
    assert written.data is not None, "without a path the file is in memory"
    await _put(key, written.data, store, until_ms=output.until_ms, clock=clock)
    # Only the stored bytes count, so the sent ones need not stay in memory.
    written = dataclasses.replace(written, data=None)
    pa.default_memory_pool().release_unused()
    data = await store.get(key)
    problems: list[str] = await run(lambda: verify(data, runs, size=written.size, crc=written.crc))
    if problems:
        raise RewriteFailed(f"{name}: {key} differs from what was written: {'; '.join(problems[:5])}")
    described = ObjectDescription(
        object_id=object_id,
        kind=ObjectKind.PARQUET,
        key=key,
        size=written.size,
        crc=written.crc,
        index_start=written.index_start,
        created_ms=created_ms,
        index_crc=written.index_crc,
    )
    return described, written


async def _put(key: str, data: Buffer, store: ObjectStore, *, until_ms: int, clock: Clock) -> None:
    left_s = (until_ms - clock.wall_ms()) / 1000
    if left_s <= 0:
        raise TookTooLong(f"{key} was not put: it came {-left_s:.0f} s too late; its session may have ended")
    try:
        async with asyncio.timeout(left_s):
            await store.put(key, [data], if_absent=True)
    except TimeoutError:
        raise TookTooLong(f"{key} was not put in time; its session may have ended") from None


async def try_rewrite(
    item: WorkItem, store: ObjectStore, output: OutputLocation, *, clock: Clock, entropy: Entropy
) -> RewriteResult | RewriteFailure:
    """Run `rewrite`, and return an error of this item as a failure: one corrupt input must not end the job."""
    try:
        return await rewrite(item, store, output, clock=clock, entropy=entropy)
    except (RewriteFailed, StoreError, InvalidParquetObject, MemoryError) as error:
        return failure_of(item, error)


def failure_of(item: WorkItem, error: BaseException, reason: str = "") -> RewriteFailure:
    """Return the item's failure for `error`, in one line. `reason` replaces the error's message."""
    line = " ".join((reason or f"{type(error).__name__}: {error}").split()).rstrip(":")
    return RewriteFailure(
        topic_name=item.topic_name,
        partitions=[piece.partition for piece in item.pieces],
        reason=line,
        positions=item.positions,
        is_of_input=isinstance(error, RewriteFailed | InvalidParquetObject | ObjectMissing),
    )


class _Held(NamedTuple):
    start: int
    data: Buffer


class _Input:
    """The bytes that were read, by object and position."""

    def __init__(self, ranges: Sequence[ByteRange], data: Sequence[bytes | bytearray]) -> None:
        self._held: dict[str, list[_Held]] = {}
        for byte_range, read in zip(ranges, data, strict=True):
            self._held.setdefault(byte_range.key, []).append(_Held(byte_range.start, read))

    def view(self, key: str, start: int, length: int) -> memoryview:
        for held in self._held[key]:
            if held.start <= start and start + length <= held.start + len(held.data):
                return memoryview(held.data)[start - held.start : start - held.start + length]
        raise AssertionError(f"bytes {start} to {start + length} of {key} were not read")


async def _read(pieces: Sequence[Piece], store: ObjectStore) -> _Input:
    ranges = ranges_to_read(pieces)
    gate = asyncio.Semaphore(CONCURRENT_READS)

    async def read(byte_range: ByteRange) -> bytes | bytearray:
        async with gate:
            data = await store.get_range(byte_range.key, byte_range.start, byte_range.end - byte_range.start)
        expected = byte_range.end - byte_range.start
        if len(data) != expected:
            raise RewriteFailed(
                f"{byte_range.key}: {len(data)} bytes from {byte_range.start}; {expected} expected"
            )
        return data

    return _Input(ranges, await asyncio.gather(*(read(byte_range) for byte_range in ranges)))


def _source_run(item: WorkItem, piece: Piece, kept: RemainingBatches) -> SourceRun:
    partition = TopicPartition(piece.runs[0].topic_id, piece.partition)
    return SourceRun(
        partition=partition,
        topic_name=item.topic_name,
        batches=kept.batches,
        base_offset=piece.base_offset,
        end_offset=piece.end_offset,
    )


class RemainingBatches(NamedTuple):
    """The batches that are left of a piece, and the counts of its records, aborted records and markers."""

    batches: Iterable[SourceBatch | PlainBatch]
    record_count: int
    aborted_count: int
    marker_count: int


def _keep_all(item: WorkItem, data: _Input) -> list[RemainingBatches]:
    """Return the batches of Parquet objects, which are decoded during iteration. Raises InvalidParquetObject."""
    runs = [run for piece in item.pieces for run in piece.runs]
    objects = ParquetInput({run.key: data.view(run.key, 0, run.object_size) for run in runs})
    return [
        RemainingBatches(PieceBatches(objects, piece.runs), sum(map(objects.row_count, piece.runs)), 0, 0)
        for piece in item.pieces
    ]


def keep(piece: Piece, data: _Input) -> RemainingBatches:
    """Return the batches that a read_committed consumer sees, and the counts of all others.

    Raises InvalidBatch if the bytes are not what was committed, or if an offset is not accounted for.
    """
    aborted = AbortedRanges(piece.aborted)
    batches: list[SourceBatch] = []
    records = dropped = markers = 0
    for run in piece.runs:
        if run.kind is ObjectKind.MARKERS:
            markers += (
                len(run.markers) or run.end_offset - run.base_offset
            )  # no markers: a hole left by a recovery
            continue
        position = run.start
        for batch in run.batches:
            start, position = position, position + batch.length
            if batch.status is not BatchStatus.STORED:
                continue
            view = data.view(run.key, start, batch.length)
            header = read_header(view)
            if header.length != batch.length or header.record_count != batch.record_count:
                raise InvalidBatch(
                    f"{run.key} at byte {start}: a batch of {header.length} bytes and {header.record_count}"
                    f" records; committed were {batch.length} and {batch.record_count}"
                )
            if header.is_control:
                raise InvalidBatch(f"{run.key} at byte {start}: a control batch; markers are in no object")
            if aborted.holds(header, batch.base_offset):
                # Check its CRC too: a flipped bit in its flags or producer id must not drop a committed record.
                check_crc(view)
                dropped += batch.record_count
            else:
                batches.append(SourceBatch(view, batch.base_offset, LEADER_EPOCH))
                records += batch.record_count
    offsets = piece.end_offset - piece.base_offset
    if records + dropped + markers != offsets:
        raise InvalidBatch(
            f"partition {piece.partition}, offsets {piece.base_offset} to {piece.end_offset}: {records} records,"
            f" {dropped} aborted and {markers} markers; {offsets} are expected"
        )
    _check_markers(piece)
    return RemainingBatches(batches, records, dropped, markers)


def _check_markers(piece: Piece) -> None:
    """Check that each aborted range that ends in the piece ends with its abort marker. If not, they don't match."""
    aborts = {
        (marker.offset, marker.producer_id)
        for run in piece.runs
        for marker in run.markers
        if not marker.is_commit
    }
    for aborted in piece.aborted:
        if (
            aborted.last_offset < piece.end_offset
            and (aborted.last_offset, aborted.producer_id) not in aborts
        ):
            raise InvalidBatch(
                f"partition {piece.partition}: producer {aborted.producer_id} aborted offsets {aborted.first_offset} to"
                f" {aborted.last_offset}, but it has no marker there"
            )


class AbortedRanges:
    """The aborted transactions of one partition, by producer. Those of one producer never overlap."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._of: dict[int, list[AbortedTransaction]] = {}
        for transaction in sorted(aborted, key=lambda transaction: transaction.first_offset):
            self._of.setdefault(transaction.producer_id, []).append(transaction)

    def holds(self, header: BatchHeader, base_offset: int) -> bool:
        """Whether the batch belongs to an aborted transaction. A batch belongs to one completely or not at all."""
        if not header.is_transactional or header.is_control:
            return False
        mine = self._of.get(header.producer_id, [])
        index = bisect.bisect_right(mine, base_offset, key=lambda transaction: transaction.first_offset) - 1
        return index >= 0 and base_offset <= mine[index].last_offset


def replacement_of(
    runs: Sequence[Run], written: WrittenParquet, row_count: int, drops: KeyDrops | None = None
) -> ReplacementRun:
    """Describe what an object replaces in one partition: contiguous runs, of which it has `row_count` records."""
    topic_id, partition = runs[0].topic_id, runs[0].partition
    held = next(run for run in written.runs if (run.topic_id, run.partition) == (topic_id, partition))
    assert held.row_count == row_count, f"{held.row_count} rows of {row_count} records"
    assert (held.base_offset, held.end_offset) == (runs[0].base_offset, runs[-1].end_offset)
    return ReplacementRun(
        topic_id=topic_id,
        partition=partition,
        base_offset=held.base_offset,
        end_offset=held.end_offset,
        max_timestamp=held.max_timestamp,
        length=0,
        replaced=[(run.base_offset, run.object_id) for run in runs],
        drops=drops,
    )


def result_of(
    described: ObjectDescription,
    written: WrittenParquet,
    replacements: Sequence[ReplacementRun],
    *,
    source_bytes: int,
) -> RewriteResult:
    """Return the written object with the runs that it can replace."""
    return RewriteResult(
        object=described,
        runs=_share_length(replacements, written),
        row_count=written.row_count,
        batch_count=sum(run.batch_count for run in written.runs),
        source_bytes=source_bytes,
    )


def _share_length(replacements: Sequence[ReplacementRun], written: WrittenParquet) -> list[ReplacementRun]:
    """Give each run its share of the file's bytes by rows. retention.bytes and listings count this length."""
    rows = {(run.topic_id, run.partition): run.row_count for run in written.runs}
    total = max(1, written.row_count)
    done = 0
    shared: list[ReplacementRun] = []
    for replacement in replacements:
        is_last = len(shared) == len(replacements) - 1
        count = rows[replacement.topic_id, replacement.partition]
        share = written.size - done if is_last else written.size * count // total
        shared.append(msgspec.structs.replace(replacement, length=max(1, share)))
        done += share
    return shared
