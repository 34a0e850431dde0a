"""Retention: which runs a partition may lose, by time and by bytes, and the removal of runs below the log start.

Metadata first: one transaction moves the log start, which readers see at once. A later one removes the run rows
below it, and objects without runs are collected after their grace. A run is removed whole or not at all.

`plan_retention` searches beside the committer; the steps then change a draft, one bounded transaction each.
`expired_end` is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast
from uuid import UUID

from sequencer.api import ObjectKind, Run
from sequencer.rules.garbage import release_runs
from sequencer.rules.topics import move_log_start
from sequencer.settings import SequencerSettings
from sequencer.store.rows import (
    BrokerConfigRow,
    OpenRangeRow,
    PartitionRow,
    ProducerRow,
    Row,
    RowStore,
    SwapRow,
    TopicRow,
    key_of,
)
from sequencer.store.state import Draft, HotState, Key
from tailrace.turns import Turns

ROWS_IN_A_TURN = 5_000
"""Rows whose age is checked in one turn of the event loop."""
LOOKED_AT_ONCE = 200
"""Partitions whose oldest run is read by one query."""
RUNS_AT_ONCE = 50_000
"""Runs that one query reads of partitions that have expired ones."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """A topic's retention; -1 means without limit."""

    retention_ms: int
    retention_bytes: int

    @property
    def is_endless(self) -> bool:
        return self.retention_ms < 0 and self.retention_bytes < 0


def limits_of(
    configs: Mapping[str, str], cluster: Mapping[str, str], settings: SequencerSettings
) -> RetentionLimits:
    """The limits that hold for a topic with these configs, in a cluster with these defaults."""
    defaults = {
        "cleanup.policy": settings.default_cleanup_policy,
        "retention.ms": str(settings.default_retention_ms),
        "retention.bytes": str(settings.default_retention_bytes),
    }

    def value(name: str) -> str:
        return configs.get(name, cluster.get(f"log.{name}", defaults[name]))

    policies = value("cleanup.policy").split(",")
    if "delete" not in [policy.strip() for policy in policies]:
        return RetentionLimits(-1, -1)
    return RetentionLimits(int(value("retention.ms")), int(value("retention.bytes")))


def expired_end(runs: Sequence[Run], total_bytes: int, limits: RetentionLimits, now_ms: int) -> int | None:
    """The end of the last run of the oldest `runs` that retention removes; None for none.

    By time: runs whose largest timestamp is too old, up to the first that is not. By bytes: as long as the rest holds
    `retention_bytes` or more. `total_bytes`: of the whole partition.
    """
    end: int | None = None
    for run in runs:
        # Records without a timestamp (-1) age from their commit. Markers are removed with the runs before them.
        newest_ms = run.max_timestamp if run.max_timestamp >= 0 else run.created_ms
        goes_along = end is not None and run.kind is ObjectKind.MARKERS
        is_old = limits.retention_ms >= 0 and (goes_along or newest_ms < now_ms - limits.retention_ms)
        is_over = limits.retention_bytes >= 0 and total_bytes - run.length >= limits.retention_bytes
        if not is_old and not is_over:
            break
        end = run.end_offset
        total_bytes -= run.length
    return end


@dataclass(frozen=True, slots=True)
class DueLogStart:
    """A log start to move, as long as these limits hold for the topic."""

    topic_id: UUID
    partition: int
    offset: int
    limits: RetentionLimits


@dataclass(slots=True)
class RetentionPlan:
    """Partitions with runs to remove, and log starts to move."""

    removable: list[tuple[UUID, int]] = field(default_factory=list)
    due: list[DueLogStart] = field(default_factory=list)


async def plan_retention(state: HotState, store: RowStore, settings: SequencerSettings) -> RetentionPlan:
    """Search for retention's work; nobody waits for it. Called again after the work is done, it finds the rest.

    It reads only the oldest run of a partition without work.
    """
    plan = RetentionPlan()
    now_ms = await store.now_ms()
    limits = _limits_of_topics(state, state.all(TopicRow), settings)
    firsts: list[tuple[PartitionRow, list[Run]]] = []
    rows = await _rows_to_look_at(state, limits)
    for at in range(0, len(rows), LOOKED_AT_ONCE):
        part = rows[at : at + LOOKED_AT_ONCE]
        first_runs = await store.runs_from_many([(row.topic_id, row.partition, 0, 1) for row in part], 1)
        for row, runs in zip(part, first_runs, strict=True):
            if runs and runs[0].end_offset <= _removable_end(state, row):
                plan.removable.append((row.topic_id, row.partition))
            elif runs and row.topic_id in limits:
                firsts.append((row, runs))
    due = [row for row, _ in await _ends(store, firsts, limits, now_ms)]
    step = max(1, RUNS_AT_ONCE // settings.removal_step)
    for at in range(0, len(due), step):
        part = due[at : at + step]
        queries = [(row.topic_id, row.partition, row.log_start_offset, 1 << 62) for row in part]
        runs_of = await store.runs_from_many(queries, settings.removal_step)
        for row, end in await _ends(store, list(zip(part, runs_of, strict=True)), limits, now_ms):
            plan.due.append(DueLogStart(row.topic_id, row.partition, end, limits[row.topic_id]))
    return plan


def _limits_of_topics(
    state: HotState | Draft, topics: Iterable[TopicRow], settings: SequencerSettings
) -> dict[UUID, RetentionLimits]:
    """The limits of topics that have some, by topic id."""
    cluster = state.get(BrokerConfigRow, "")
    defaults = {} if cluster is None else cluster.configs
    limits_by_topic = {topic.topic_id: limits_of(topic.configs, defaults, settings) for topic in topics}
    return {topic_id: limits for topic_id, limits in limits_by_topic.items() if not limits.is_endless}


async def _rows_to_look_at(state: HotState, limits: Mapping[UUID, RetentionLimits]) -> list[PartitionRow]:
    """Partitions that may have runs to remove."""
    turns = Turns(ROWS_IN_A_TURN)
    rows: list[PartitionRow] = []
    for row in list(state.all(PartitionRow)):
        if row.end_offset > 0 and (row.topic_id in limits or _removable_end(state, row) > 0):
            rows.append(row)
        await turns.did()
    return rows


def _removable_end(state: HotState | Draft, row: PartitionRow) -> int:
    """Below this offset nobody reads: of a deleted topic, nothing is read."""
    return row.log_start_offset if state.get(TopicRow, row.topic_id) is not None else row.end_offset


async def _ends(
    store: RowStore,
    oldest: Sequence[tuple[PartitionRow, list[Run]]],
    limits: Mapping[UUID, RetentionLimits],
    now_ms: int,
) -> list[tuple[PartitionRow, int]]:
    """The partitions with expired runs among their oldest, each with the end of these.

    Bytes are summed after the runs are read: a swap in between lowers the sum, so that less is removed, never more.
    """
    counted = dict.fromkeys(row.topic_id for row, _ in oldest if limits[row.topic_id].retention_bytes >= 0)
    sizes = await store.partition_bytes(list(counted)) if counted else []
    bytes_of = {(size.topic_id, size.partition): size.bytes for size in sizes}
    ends = [
        (row, expired_end(runs, bytes_of.get((row.topic_id, row.partition), 0), limits[row.topic_id], now_ms))
        for row, runs in oldest
    ]
    return [(row, end) for row, end in ends if end is not None and end > row.log_start_offset]


def move_log_starts(draft: Draft, planned: Sequence[DueLogStart], settings: SequencerSettings) -> int:
    """Move the planned log starts; how many. A topic whose limits have changed keeps its log starts."""
    topics = (draft.get(TopicRow, topic_id) for topic_id in {due.topic_id: None for due in planned})
    limits = _limits_of_topics(draft, [topic for topic in topics if topic is not None], settings)
    moved = 0
    for due in planned:
        row = draft.live_partition(due.topic_id, due.partition)
        if row is not None and limits.get(due.topic_id) == due.limits and due.offset > row.log_start_offset:
            move_log_start(draft, row, due.offset)
            moved += 1
    return moved


@dataclass(slots=True)
class Removed:
    """What one step removed, and the partitions that it did not finish."""

    runs: int = 0
    objects: int = 0
    left: list[tuple[UUID, int]] = field(default_factory=list)


async def remove_runs(
    draft: Draft, store: RowStore, partitions: Sequence[tuple[UUID, int]], settings: SequencerSettings
) -> Removed:
    """Remove a bounded number of runs that lie below the log start or belong to deleted topics."""
    removed = Removed()
    for number, key in enumerate(partitions):
        room = settings.removal_step - removed.runs
        if room == 0:
            removed.left = list(partitions[number:])
            break
        row = draft.get(PartitionRow, *key)
        runs = [] if row is None else await store.runs_below(*key, _removable_end(draft, row), room)
        removed.objects += await release_runs(draft, store, runs)
        removed.runs += len(runs)
        if len(runs) == room:
            removed.left = list(partitions[number:])
            break
    return removed


def expire_producers(draft: Draft, keys: Iterable[Key], expiry_ms: int) -> int:
    """Delete those of these producers that are idle for `expiry_ms` and have nothing open; how many."""
    expired = 0
    for key in keys:
        row = draft.get(ProducerRow, *key)
        is_over = row is not None and row.updated_ms <= draft.now_ms - expiry_ms
        if is_over and draft.get(OpenRangeRow, *key) is None:
            draft.delete(ProducerRow, *key)
            expired += 1
    return expired


async def keys_not_used_since(state: HotState, kind: type[Row], since_ms: int) -> list[Key]:
    """Keys of the rows of a kind with `updated_ms` of at most `since_ms`; searched in turns."""
    turns = Turns(ROWS_IN_A_TURN)
    keys: list[Key] = []
    for row in list(state.all(kind)):
        if cast("_Updated", row).updated_ms <= since_ms:
            keys.append(key_of(row))
        await turns.did()
    return keys


class _Updated(Protocol):
    @property
    def updated_ms(self) -> int: ...


def expire_swaps(draft: Draft, kept_ms: int) -> None:
    """Delete answers to swaps that are too old to be retried."""
    for row in draft.all(SwapRow):
        if row.created_ms <= draft.now_ms - kept_ms:
            draft.delete(SwapRow, row.swap_id)
