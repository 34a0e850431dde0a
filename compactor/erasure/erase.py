"""Erases a topic's records by key: all records of the keys that exist when the erasure begins.

It first compacts the records that are not in Parquet yet. Then it finds the objects that contain the keys, rewrites
each without these records, and swaps it as a round of compaction does. It repeats the search until nothing is found.
Offsets do not change.

Invariants:
- at each moment, a reader finds all records of other keys exactly once;
- it can be run again wherever it died: swapped objects are not found any more, and others are orphans;
- it holds the compactor's lease, so only one erasure or round of compaction runs at a time;
- the record of an erasure is in the store before its first swap.

This module does not delete the bytes of the old objects. The collector deletes retired objects after the grace period,
once no table snapshot refers to them (`bytes_left`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from compactor.blocking_calls import Blocking, run_here
from compactor.by_key.keyed_cycle import PARTITIONS_AT_ONCE, runs_within
from compactor.cycle import CompactionSettings, InProcess, SwapFollower, output_under, run_cycle, swap_in
from compactor.erasure.record import ErasureRecord, hash_key, write_record
from compactor.erasure.rewrite import RewriteContext, rewrite_without
from compactor.erasure.search import FileHits, KeySearch, SearchCost, SearchKeys
from compactor.lease import HeldLease, held_lease
from compactor.plan import MIB, PlanSettings
from compactor.rewrite import RewriteFailed
from compactor.tables.live import TopicFiles, list_live_files
from compactor.tables.query import tail_ranges
from sequencer.api.commits import ObjectKind
from sequencer.api.errors import LeaseLost
from sequencer.api.interface import Sequencer
from sequencer.api.objects import ObjectsRequest
from sequencer.api.reads import FindPartition, FindRequest, Run
from sequencer.api.topics import MetadataRequest, Topic
from tailrace.clock import Clock, Entropy
from tailrace.grouping import in_groups
from tailrace.object_store.api import ObjectStore
from tailrace.parquet_object.header import InvalidParquetObject

MAX_KEYS = 10_000
MAX_PASSES = 10
"""The most searches. Concurrent retention or DeleteRecords may make a second one necessary."""
LEASE_PATIENCE_S, LEASE_PAUSE_S = 600.0, 1.0
"""How long to wait for another compactor's round to end."""
SMALL_ITEMS = PlanSettings(least_bytes=16 * MIB, target_bytes=32 * MIB)
"""The first compaction runs in this process, so its items are small: they need 128 MiB each."""
REWRITTEN_AT_ONCE, REWRITTEN_BYTES = 4, 256 * MIB
"""The most objects that are rewritten concurrently, and their bytes together unless one has more. They need four times
as much memory."""
CLOCKS_APART_MS = 60_000
"""How far an agent's clock may be ahead of the clock that dates an erasure."""
OBJECTS_AT_ONCE = 1_000
_ALL_BYTES = 1 << 62


class EraseFailed(Exception):
    """Not all records of the keys are erased; the message says what is left and what to do."""


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """The topic and keys to erase, with the user and reason. `reads_all`: do not trust key bounds and Bloom filters."""

    topic: Topic
    keys: SearchKeys
    by: str = ""
    reason: str = ""
    reads_all: bool = False


@dataclass(frozen=True, slots=True)
class ErasureWork:
    """What an erasure works with. `tables`: brought up to date after swaps. `run`: makes calls that take seconds;
    outside of the loop, so that it renews the lease meanwhile."""

    sequencer: Sequencer
    store: ObjectStore
    clock: Clock
    entropy: Entropy
    tables: SwapFollower | None = None
    run: Blocking[Any] = run_here


@dataclass(slots=True)
class SearchResult:
    """The result of a search: the objects with records of the keys, and by partition the number of offsets that it
    could not search because they are not in Parquet objects. `corrupt`: unreadable objects with the reason."""

    hits: list[FileHits]
    cost: SearchCost
    unread: dict[int, int]
    corrupt: dict[str, str]


@dataclass(slots=True)
class Erasure:
    """The result of an erasure. `began_at`: the commit number up to which records are erased. `objects`: the keys of
    the rewritten objects. `proof`: what the last search read, which found nothing. `unread`, `corrupt`: as in
    SearchResult."""

    began_at: int
    objects: list[str] = field(default_factory=list)
    erased_records: int = 0
    proof: SearchCost = field(default_factory=SearchCost)
    unread: dict[int, int] = field(default_factory=dict)
    corrupt: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RemainingObjects:
    """Objects in the store that may contain erased bytes. `live_mixed`: live mixed objects, with records of other
    topics that are not compacted yet. `retired`: objects that wait for the collector."""

    live_mixed: int = 0
    retired: int = 0


async def find_keys(work: ErasureWork, request: EraseRequest, *, before: int | None = None) -> SearchResult:
    """Search for the keys without changing anything.

    Args:
        before: records up to this commit number count as unread; None means all current records.
    """
    files = await list_live_files(work.sequencer, request.topic.topic_id)
    search = KeySearch(work.store, request.keys, reads_all=request.reads_all)
    hits = [hit async for hit in search.find(files.files)]
    number = files.commit_number if before is None else before
    unread = await _unread(work.sequencer, request.topic, files, number)
    return SearchResult(hits, search.cost, unread, search.corrupt)


async def erase_keys(work: ErasureWork, request: EraseRequest) -> Erasure:
    """Erase all current records of the keys.

    Raises EraseFailed, SequencerError, StoreError. Earlier swaps remain in effect; run it again.
    """
    sequencer, topic = work.sequencer, request.topic
    cluster_id = (await sequencer.metadata(MetadataRequest())).cluster_id
    erasure = Erasure((await list_live_files(sequencer, topic.topic_id)).commit_number)
    record = ErasureRecord(
        erasure_id=work.entropy.uuid(),
        topic=topic.name,
        topic_id=topic.topic_id,
        key_hashes=[hash_key(topic.topic_id, key) for key in request.keys.keys],
        by=request.by,
        reason=request.reason,
        begun_ms=work.clock.wall_ms(),
    )
    await write_record(work.store, cluster_id, record)
    await _when_free(work.clock, lambda: _compact(work, topic))
    await _when_free(work.clock, lambda: _erase(work, request, erasure, cluster_id))
    if erasure.corrupt:
        raise EraseFailed(corrupt_explained(topic.name, erasure.corrupt))
    if erasure.unread:
        raise EraseFailed(unread_explained(topic.name, erasure.unread))
    ended = msgspec.structs.replace(
        record,
        ended_ms=work.clock.wall_ms(),
        erased_records=erasure.erased_records,
        rewritten_objects=len(erasure.objects),
    )
    await write_record(work.store, cluster_id, ended)
    return erasure


async def bytes_left(
    sequencer: Sequencer, topic_name: str, began_ms: Sequence[int]
) -> list[RemainingObjects]:
    """Return for each erasure, given by its start, which objects may still contain bytes that it erased."""
    left = [RemainingObjects() for _ in began_ms]
    after = ""
    while True:
        page = (await sequencer.objects(ObjectsRequest(after, OBJECTS_AT_ONCE))).objects
        for listed in page:
            is_mixed = listed.description.kind is ObjectKind.MIXED
            if listed.live_runs and not is_mixed:
                continue  # the erasure searched this object
            if not is_mixed and f"/{topic_name}/" not in listed.description.key:
                continue
            for of, at_ms in zip(left, began_ms, strict=True):
                if listed.description.created_ms <= at_ms + CLOCKS_APART_MS:
                    of.live_mixed += bool(listed.live_runs)
                    of.retired += not listed.live_runs
        if not page:
            return left
        after = page[-1].description.key


def unread_explained(topic: str, unread: dict[int, int]) -> str:
    """Say what to do about offsets that are not in Parquet objects."""
    parts = ", ".join(f"{partition}: {count}" for partition, count in sorted(unread.items())[:5])
    return (
        f"{sum(unread.values())} offsets of {topic!r} are in no Parquet object (partition: offsets; {parts}): a"
        " transaction is open, or a run is unreadable. Check with `tailrace transaction list` and `tailrace compact`,"
        " then run this again"
    )


def corrupt_explained(topic: str, corrupt: dict[str, str]) -> str:
    """Say what to do about unreadable objects."""
    first = "; ".join(f"{key}: {why}" for key, why in islice(corrupt.items(), 3))
    return (
        f"{len(corrupt)} objects of {topic!r} are corrupt and may contain the keys ({first}). The keys are erased from"
        " all others. Restore an earlier version of the object, or let retention delete it, then run this again"
    )


async def _compact(work: ErasureWork, topic: Topic) -> None:
    """Compact all stable records of the topic to Parquet objects."""
    await run_cycle(
        work.sequencer,
        InProcess(work.store, work.clock, work.entropy),
        clock=work.clock,
        entropy=work.entropy,
        settings=CompactionSettings(
            min_bytes=1, min_age_ms=0, topics=frozenset([topic.name]), merges=False, plan=SMALL_ITEMS
        ),
        tables=work.tables,
    )


async def _erase(work: ErasureWork, request: EraseRequest, erasure: Erasure, cluster_id: str) -> None:
    """Rewrite and swap the objects with the keys, and search again, until only corrupt objects may have them."""
    async with held_lease(work.sequencer, work.clock, holder=str(work.entropy.uuid())) as lease:
        for _ in range(MAX_PASSES):
            search = await find_keys(work, request, before=erasure.began_at)
            erasure.proof, erasure.unread = search.cost, search.unread
            erasure.corrupt |= search.corrupt
            hits_left = [hits for hits in search.hits if hits.file.object.key not in erasure.corrupt]
            if not hits_left:
                return
            for part in together(hits_left):
                output = output_under(lease, cluster_id)
                rewriting = RewriteContext(work.store, output, work.clock, work.entropy, run=work.run)
                erasing = [
                    _erase_from(work, request, hits, erasure=erasure, lease=lease, rewriting=rewriting)
                    for hits in part
                ]
                # If one object fails, the keys are still erased from the others.
                for error in await asyncio.gather(*erasing, return_exceptions=True):
                    if error is not None:
                        raise error
            if work.tables is not None:
                await work.tables.swapped([request.topic.topic_id])
                await work.tables.end_round()
    raise EraseFailed(f"keys were found in each of {MAX_PASSES} searches; run this again")


def together(
    hits: Sequence[FileHits], *, most: int = REWRITTEN_AT_ONCE, max_bytes: int = REWRITTEN_BYTES
) -> Iterator[list[FileHits]]:
    """Group the objects, in order, for concurrent rewriting. Pure."""
    return in_groups(hits, lambda hit: hit.file.object.size, max_bytes, most)


async def _erase_from(
    work: ErasureWork,
    request: EraseRequest,
    hits: FileHits,
    *,
    erasure: Erasure,
    lease: HeldLease,
    rewriting: RewriteContext,
) -> None:
    topic = request.topic
    starts = {live.partition: live.start for live in hits.file.ranges}
    ends = {live.partition: live.end for live in hits.file.ranges}
    of_partitions = await runs_within(work.sequencer, topic, starts, ends)
    object_id = hits.file.object.object_id
    runs = [
        run
        for partition_runs in of_partitions.values()
        for run in partition_runs
        if run.object_id == object_id
    ]
    if not runs:
        return  # retention has deleted them
    try:
        result, erased = await rewrite_without(request.keys, topic.name, runs, rewriting)
    except (RewriteFailed, InvalidParquetObject) as error:
        erasure.corrupt[hits.file.object.key] = str(error)
        return
    refusal = await swap_in(work.sequencer, result, lease, clock=work.clock)
    if refusal is None:
        erasure.objects.append(result.object.key)
        erasure.erased_records += erased


async def _when_free(clock: Clock, action: Callable[[], Awaitable[None]]) -> None:
    """Run an action that needs the compactor's lease as soon as no other compactor holds it."""
    give_up_at = clock.monotonic() + LEASE_PATIENCE_S
    while True:
        try:
            await action()
            return
        except LeaseLost as error:
            if clock.monotonic() >= give_up_at:
                raise EraseFailed(
                    f"a compactor has been at work for {LEASE_PATIENCE_S:.0f} s: {error}"
                ) from error
            await clock.sleep(LEASE_PAUSE_S)


async def _unread(sequencer: Sequencer, topic: Topic, files: TopicFiles, before: int) -> dict[int, int]:
    """Return the number of offsets in mixed objects that were committed up to `before`, by partition."""
    starts = {bounds.partition: bounds.last_stable_offset for bounds in files.partitions}
    for gap in tail_ranges(topic.name, files):
        starts[gap.partition.number] = min(starts[gap.partition.number], gap.start)
    unread: dict[int, int] = {}
    while starts:
        queries = [
            FindPartition(topic.topic_id, partition, starts.pop(partition), _ALL_BYTES)
            for partition in sorted(starts)[:PARTITIONS_AT_ONCE]
        ]
        answer = await sequencer.find_batches(FindRequest(queries))
        for sought, partition_batches in zip(queries, answer.partitions, strict=True):
            partition = sought.partition
            count = sum(
                run.end_offset - run.base_offset for run in partition_batches.runs if _is_unread(run, before)
            )
            if count:
                unread[partition] = unread.get(partition, 0) + count
            last = partition_batches.runs[-1] if partition_batches.runs else None
            if last is not None and (last.kind is not ObjectKind.MIXED or _is_unread(last, before)):
                starts[partition] = last.end_offset
            elif not partition_batches.runs and sought.offset < partition_batches.high_watermark:
                # The response had no room for it, or retention has deleted it.
                starts[partition] = max(sought.offset, partition_batches.log_start_offset)
    return unread


def _is_unread(run: Run, before: int) -> bool:
    return run.kind is ObjectKind.MIXED and run.commit_number <= before
