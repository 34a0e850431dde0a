"""Compaction by key within a round: finds due partitions, runs their passes as items, swaps, and raises clean ends.

A pass covers only runs of Parquet objects: their transactions have ended, and aborted records are removed. So this
follows the compaction of mixed objects in a round. A partition's clean end is raised after all swaps of its pass. If
one is refused, the clean end stays, and the next round makes another pass. compactor.by_key.keyed says why that is
safe.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from compactor.by_key.keyed import Pass, cleanable, dirty_bytes, fitting, is_due
from compactor.by_key.keyed_index import most_rows
from compactor.by_key.keyed_rewrite import KeyedItem, KeyedPiece, KeyedResult
from compactor.plan import PlanSettings, WorkItem
from compactor.rewrite import OutputLocation, RewriteFailure, RewriteResult
from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import CleanPoint, CleanPointsRequest, MarkClean
from sequencer.api.errors import UnknownTopic
from sequencer.api.interface import Sequencer
from sequencer.api.reads import FindPartition, FindRequest, Run
from sequencer.api.topics import Topic
from sequencer.rules.cleaning import COMPACT
from tailrace.configs.topic_config import TopicSettings, topic_settings

PARTITIONS_AT_ONCE = 200
"""Partitions whose runs are requested together."""
KEY_MEMORY_BYTES = 256 << 20
_ALL_BYTES = 1 << 62

KeyedOutcomes = AsyncGenerator[KeyedResult | RewriteFailure, None]


class KeyedRunner(Protocol):
    """Runs items of passes, in any order, in any process."""

    def run_keyed(self, items: Sequence[KeyedItem], output: OutputLocation) -> KeyedOutcomes:
        """Yield each item's outcome once, as soon as it is known."""


@dataclass(slots=True)
class KeyedSummary:
    """What a round's passes did. `dirty_bytes`: the dirty bytes that the round found. `dirtiest`: the largest dirty
    share of a partition."""

    passes: int = 0
    dropped: int = 0
    objects: int = 0
    written_bytes: int = 0
    spilled_bytes: int = 0
    dirty_bytes: int = 0
    dirtiest: float = 0.0


class DuePartition(NamedTuple):
    """A due partition and the runs that its pass covers."""

    point: CleanPoint
    runs: list[Run]
    now_ms: int


async def due_partitions(
    sequencer: Sequencer, topic: Topic, settings: TopicSettings, max_dirty: int, summary: KeyedSummary
) -> AsyncIterator[list[DuePartition]]:
    """Yield the topic's due partitions, some at a time. Checks only partitions with new data."""
    first: int | None = 0
    while first is not None:
        try:
            page = await sequencer.clean_points(CleanPointsRequest(topic.topic_id, first))
        except UnknownTopic:
            return
        first = page.next
        points = [point for point in page.points if point.clean_end < point.last_stable_offset]
        for begin in range(0, len(points), PARTITIONS_AT_ONCE):
            part = points[begin : begin + PARTITIONS_AT_ONCE]
            yield await _due(
                sequencer=sequencer,
                topic=topic,
                settings=settings,
                points=part,
                now_ms=page.now_ms,
                max_dirty=max_dirty,
                summary=summary,
            )


async def _due(
    sequencer: Sequencer,
    topic: Topic,
    settings: TopicSettings,
    points: Sequence[CleanPoint],
    now_ms: int,
    max_dirty: int,
    summary: KeyedSummary,
) -> list[DuePartition]:
    starts = {point.partition: max(point.clean_end, point.log_start_offset) for point in points}
    ends = {point.partition: point.last_stable_offset for point in points}
    dirty_runs = await runs_within(sequencer, topic, starts, ends)
    chosen: list[CleanPoint] = []
    for point in points:
        dirty = cleanable(dirty_runs[point.partition], point, settings, now_ms)
        size = dirty_bytes(dirty, point.clean_end)
        summary.dirty_bytes += size
        summary.dirtiest = max(summary.dirtiest, size / max(1, size + point.clean_bytes))
        if is_due(dirty, point, settings, now_ms):
            chosen.append(point)
            ends[point.partition] = dirty[-1].end_offset
    logs = await runs_within(
        sequencer, topic, {point.partition: point.log_start_offset for point in chosen}, ends
    )
    due: list[DuePartition] = []
    for point in chosen:
        runs = cleanable(logs[point.partition], point, settings, now_ms)
        runs = fitting(runs, point.clean_end, max_dirty)
        if runs and runs[-1].end_offset > point.clean_end:
            due.append(DuePartition(point, runs, now_ms))
    return due


async def runs_within(
    sequencer: Sequencer, topic: Topic, starts: Mapping[int, int], ends: Mapping[int, int]
) -> dict[int, list[Run]]:
    """Return the runs of partitions from `starts` to `ends`, up to the first one of a mixed object. Makes few calls."""
    runs: dict[int, list[Run]] = {partition: [] for partition in starts}
    left = {partition: start for partition, start in starts.items() if start < ends[partition]}
    while left:
        queries = [
            FindPartition(topic.topic_id, partition, start, _ALL_BYTES) for partition, start in left.items()
        ]
        answer = await sequencer.find_batches(FindRequest(queries))
        for sought, seen in zip(queries, answer.partitions, strict=True):
            partition = sought.partition
            compacted = list(itertools.takewhile(lambda run: run.kind is not ObjectKind.MIXED, seen.runs))
            runs[partition] += [run for run in compacted if run.base_offset < ends[partition]]
            del left[partition]  # it is added again, as the last one, if it has more
            if len(compacted) < len(seen.runs):
                continue
            if seen.runs and seen.runs[-1].end_offset < ends[partition]:
                left[partition] = seen.runs[-1].end_offset
            elif (
                not seen.runs and not seen.error and sought.offset < min(ends[partition], seen.high_watermark)
            ):
                left[partition] = max(sought.offset, seen.log_start_offset)
    return runs


def items_of(
    topic: Topic, due: Iterable[DuePartition], settings: TopicSettings, plan: PlanSettings, memory_bytes: int
) -> list[KeyedItem]:
    """Pack passes into items. Partitions share an item, and so its files, up to `target_bytes`."""
    items: list[KeyedItem] = []
    pieces: list[KeyedPiece] = []
    size = 0
    for part in due:
        of = Pass(part.runs[-1].end_offset, part.point.clean_end, part.now_ms, settings.delete_retention_ms)
        piece = KeyedPiece(part.point.partition, part.runs, of)
        if pieces and size + piece.stored_bytes > plan.target_bytes:
            items.append(KeyedItem(topic.name, pieces, memory_bytes, plan.target_bytes))
            pieces, size = [], 0
        pieces.append(piece)
        size += piece.stored_bytes
    if pieces:
        items.append(KeyedItem(topic.name, pieces, memory_bytes, plan.target_bytes))
    return items


def clean_bytes(piece: KeyedPiece, objects: Sequence[RewriteResult]) -> int:
    """Return the bytes of the piece's runs after the pass."""
    replaced = {
        (base_offset, object_id)
        for written in objects
        for run in written.runs
        if run.partition == piece.partition
        for base_offset, object_id in run.replaced
    }
    left = [run.length for run in piece.runs if (run.base_offset, run.object_id) not in replaced]
    new = [run.length for written in objects for run in written.runs if run.partition == piece.partition]
    return sum(left) + sum(new)


@dataclass(frozen=True, slots=True)
class KeyedWork:
    """What the passes need from their round.

    `output`: returns where passes that start now may write, and until when. A pass that takes longer fails, and the
    next round starts it again. `swap`: executes a swap, and returns whether readers see it. `mark`: raises a clean end.
    `fail`: records a failure. `is_outdated`: whether some of an item's input was deleted since the plan. `is_over`:
    whether the lease is lost.
    """

    sequencer: Sequencer
    runner: KeyedRunner
    output: Callable[[], OutputLocation]
    lease_epoch: int
    swap: Callable[[RewriteResult], Awaitable[bool]]
    mark: Callable[[MarkClean], Awaitable[bool]]
    fail: Callable[[RewriteFailure], None]
    is_outdated: Callable[[WorkItem], Awaitable[bool]]
    is_over: Callable[[], bool]


async def compact_keys(
    work: KeyedWork,
    topics: Iterable[Topic],
    cluster: Mapping[str, str],
    plan: PlanSettings,
    summary: KeyedSummary,
    *,
    memory_bytes: int = KEY_MEMORY_BYTES,
) -> None:
    """Make one pass over each due partition. Raises SequencerError."""
    for topic in topics:
        settings = topic_settings(topic.configs, cluster)
        if COMPACT not in settings.cleanup_policy:
            continue
        async for due in due_partitions(
            sequencer=work.sequencer,
            topic=topic,
            settings=settings,
            max_dirty=most_rows(memory_bytes),
            summary=summary,
        ):
            items = items_of(topic=topic, due=due, settings=settings, plan=plan, memory_bytes=memory_bytes)
            if items and not work.is_over():
                await _run_passes(work, items, summary)


async def _run_passes(work: KeyedWork, items: Sequence[KeyedItem], summary: KeyedSummary) -> None:
    """Run passes. If an item has corrupt input, retry each of its partitions once alone."""
    by_name = {item.as_work.positions[0]: item for item in items}
    alone: list[KeyedItem] = []
    async with aclosing(work.runner.run_keyed(items, work.output())) as outcomes:
        async for outcome in outcomes:
            if isinstance(outcome, KeyedResult):
                summary.spilled_bytes += outcome.spilled_bytes
                await _carry_out(work, outcome, summary)
                continue
            item = by_name[outcome.positions[0]]
            if outcome.is_of_input and len(item.pieces) > 1:
                alone += [msgspec.structs.replace(item, pieces=[piece]) for piece in item.pieces]
            elif not outcome.is_of_input or not await work.is_outdated(item.as_work):
                work.fail(outcome)
            if work.is_over():
                return
    if alone:
        await _run_passes(work, alone, summary)


async def _carry_out(work: KeyedWork, result: KeyedResult, summary: KeyedSummary) -> None:
    for written in result.objects:
        if not await work.swap(written):
            return
    summary.dropped += result.dropped
    for piece in result.item.pieces:
        mark = MarkClean(
            lease_epoch=work.lease_epoch,
            topic_id=piece.runs[0].topic_id,
            partition=piece.partition,
            clean_end_before=piece.of.clean_end,
            clean_end=piece.of.end,
            clean_bytes=clean_bytes(piece, result.objects),
        )
        summary.passes += await work.mark(mark)
