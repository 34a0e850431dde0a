"""One task: the runs of a work item read, rewritten as one Parquet object, read back and proved.

A task may run twice (a retry, a lost executor). Each attempt writes to a key of its own under the session that
the driver opened; what no swap takes is an orphan there, and the sweep of ended sessions deletes it.

Nothing here knows of Spark. Log compaction (`cleanup.policy=compact`) is not done: all records are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from compactor.plan import Piece, WorkItem
from sequencer.api import AbortedTransaction, ObjectDescription, ObjectKind, ReplacementRun, Verdict
from tailrace.clock import Clock, Entropy
from tailrace.ids import TopicPartition
from tailrace.object_store.api import Buffer, ObjectStore, StoreError
from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.parquet_object.verify import verify
from tailrace.parquet_object.write import SourceBatch, SourceRun, write_parquet
from tailrace.record_batch import BatchHeader, InvalidBatch, read_header
from tailrace.records import InvalidRecords

MAX_GAP_BYTES = 1 << 20
"""Bytes between two runs of an object that are read along rather than asked around."""
MAX_RANGE_BYTES = 16 << 20
CONCURRENT_READS = 16

LEADER_EPOCH = 0
"""Stored in each batch; readers write the partition's own over it."""


class RewriteFailed(Exception):
    """The item was not rewritten; its runs stay as they are. The message says what was found."""


class RewriteResult(msgspec.Struct, frozen=True, array_like=True):
    """A Parquet object that was written, read back and found equal, and what it may replace."""

    object: ObjectDescription
    runs: list[ReplacementRun]
    row_count: int
    batch_count: int
    source_bytes: int


class RewriteFailure(msgspec.Struct, frozen=True, array_like=True):
    """An item that could not be rewritten, as told to the driver."""

    topic_name: str
    partitions: list[int]
    reason: str


class ByteRange(NamedTuple):
    """Bytes [start, end) of an object."""

    key: str
    start: int
    end: int


def ranges_to_read(
    pieces: Sequence[Piece], *, max_gap: int = MAX_GAP_BYTES, max_range: int = MAX_RANGE_BYTES
) -> list[ByteRange]:
    """Few ranges that hold all runs: neighbours are read together. A run is never cut."""
    wanted = sorted(
        ByteRange(run.key, run.start, run.start + run.length) for piece in pieces for run in piece.runs
    )
    ranges: list[ByteRange] = []
    for each in wanted:
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and last.key == each.key
            and each.start - last.end <= max_gap
            and each.end - last.start <= max_range
        ):
            ranges[-1] = last._replace(end=max(last.end, each.end))
        else:
            ranges.append(each)
    return ranges


async def rewrite(
    item: WorkItem,
    store: ObjectStore,
    *,
    prefix: str,
    cluster_id: str,
    clock: Clock,
    entropy: Entropy,
) -> RewriteResult:
    """Write the item's records as one Parquet object under `prefix`, and prove it.

    Raises RewriteFailed where the input is not sound or what was written does not read back equal, StoreError
    where the store fails. Decoding blocks: give it a loop of its own (a Spark task) or a small item.
    """
    data = await _read(item.pieces, store)
    object_id = entropy.uuid()
    created_ms = clock.wall_ms()
    key = f"{prefix}{item.topic_name}/{object_id}.parquet"
    try:
        written = write_parquet(
            _source_runs(item, data), object_id=object_id, cluster_id=cluster_id, created_ms=created_ms
        )
    except (InvalidBatch, InvalidRecords, ValueError) as error:
        raise RewriteFailed(f"{item.topic_name}: {error}") from error
    assert written.data is not None, "without a path the file is in memory"
    await store.put(key, [written.data], if_absent=True)
    # What is in the store counts, not what was sent.
    problems = verify(await store.get(key), _source_runs(item, data), size=written.size, crc=written.crc)
    if problems:
        raise RewriteFailed(f"{item.topic_name}: {key} is not what was written: {'; '.join(problems[:5])}")
    held = {(run.topic_id, run.partition): run for run in written.runs}
    replacements: list[ReplacementRun] = []
    for piece in item.pieces:
        run = held.get((piece.runs[0].topic_id, piece.partition))
        assert run is not None, "a run with a range is always written"
        assert (run.base_offset, run.end_offset) == (piece.base_offset, piece.end_offset)
        replacements.append(_replacement(piece, run.max_timestamp))
    _share_length(
        replacements, [held[run.topic_id, run.partition].row_count for run in replacements], written.size
    )
    return RewriteResult(
        ObjectDescription(
            object_id, ObjectKind.PARQUET, key, written.size, written.crc, written.index_start, created_ms
        ),
        replacements,
        written.row_count,
        sum(run.batch_count for run in written.runs),
        item.stored_bytes,
    )


async def rewrite_or_say_why(
    item: WorkItem,
    store: ObjectStore,
    *,
    prefix: str,
    cluster_id: str,
    clock: Clock,
    entropy: Entropy,
) -> RewriteResult | RewriteFailure:
    """`rewrite`, with what is wrong with this item as a value: one rotten input must not end the job."""
    try:
        return await rewrite(item, store, prefix=prefix, cluster_id=cluster_id, clock=clock, entropy=entropy)
    except (RewriteFailed, StoreError, InvalidParquetObject) as error:
        partitions = [piece.partition for piece in item.pieces]
        return RewriteFailure(item.topic_name, partitions, f"{type(error).__name__}: {error}")


class _Held(NamedTuple):
    start: int
    data: Buffer


class _Input:
    """The bytes that were read, by place."""

    def __init__(self, ranges: Sequence[ByteRange], data: Sequence[bytes]) -> None:
        self._held: dict[str, list[_Held]] = {}
        for each, read in zip(ranges, data, strict=True):
            self._held.setdefault(each.key, []).append(_Held(each.start, read))

    def view(self, key: str, start: int, length: int) -> memoryview:
        for held in self._held[key]:
            if held.start <= start and start + length <= held.start + len(held.data):
                return memoryview(held.data)[start - held.start : start - held.start + length]
        raise AssertionError(f"bytes {start} to {start + length} of {key} were not read")


async def _read(pieces: Sequence[Piece], store: ObjectStore) -> _Input:
    ranges = ranges_to_read(pieces)
    gate = asyncio.Semaphore(CONCURRENT_READS)

    async def read(each: ByteRange) -> bytes:
        async with gate:
            data = await store.get_range(each.key, each.start, each.end - each.start)
        if len(data) != each.end - each.start:
            raise RewriteFailed(
                f"{each.key}: {len(data)} bytes from {each.start}; {each.end - each.start} expected"
            )
        return data

    return _Input(ranges, await asyncio.gather(*(read(each) for each in ranges)))


def _source_runs(item: WorkItem, data: _Input) -> list[SourceRun]:
    return [
        SourceRun(
            TopicPartition(piece.runs[0].topic_id, piece.partition),
            item.topic_name,
            stored_batches(piece, data),
            piece.base_offset,
            piece.end_offset,
        )
        for piece in item.pieces
    ]


def stored_batches(piece: Piece, data: _Input) -> Iterator[SourceBatch]:
    """The batches that consumers see: stored ones, without those of aborted transactions."""
    for run in piece.runs:
        position = run.start
        for batch in run.batches:
            start, position = position, position + batch.length
            if batch.verdict is not Verdict.STORED:
                continue
            view = data.view(run.key, start, batch.length)
            header = read_header(view)
            if header.length != batch.length or header.record_count != batch.record_count:
                raise InvalidBatch(
                    f"{run.key} at byte {start}: a batch of {header.length} bytes and {header.record_count}"
                    f" records; committed were {batch.length} and {batch.record_count}"
                )
            if not is_aborted(header, batch.base_offset, piece.aborted):
                yield SourceBatch(view, batch.base_offset, LEADER_EPOCH)


def is_aborted(header: BatchHeader, base_offset: int, aborted: Sequence[AbortedTransaction]) -> bool:
    """Whether the batch's records belong to a transaction that was aborted. Markers stay."""
    return (
        header.is_transactional
        and not header.is_control
        and any(
            each.producer_id == header.producer_id and each.first_offset <= base_offset <= each.last_offset
            for each in aborted
        )
    )


def _replacement(piece: Piece, max_timestamp: int) -> ReplacementRun:
    return ReplacementRun(
        piece.runs[0].topic_id,
        piece.partition,
        piece.base_offset,
        piece.end_offset,
        max_timestamp,
        0,
        [(run.base_offset, run.object_id) for run in piece.runs],
    )


def _share_length(replacements: list[ReplacementRun], rows: Sequence[int], size: int) -> None:
    """Give each run its share of the file's bytes, by rows: what retention.bytes and listings count."""
    total = max(1, sum(rows))
    done = 0
    for index, (replacement, count) in enumerate(zip(replacements, rows, strict=True)):
        share = size - done if index == len(rows) - 1 else size * count // total
        replacements[index] = msgspec.structs.replace(replacement, length=max(1, share))
        done += share
