"""Retention: which runs a partition may lose, by time and by bytes, and removing what lies below log start.

Metadata first: a transaction moves the log start, which readers see at once; only a later one removes the run
rows below it, and objects without rows are collected after the grace. A run goes whole or not at all.

`expired_end` is pure; the steps decide on a draft, one bounded transaction each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from sequencer.api import ObjectKind, Run
from sequencer.rows import (
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
from sequencer.settings import SequencerSettings
from sequencer.state import Draft, HotState, Key
from sequencer.topics import move_log_start
from tailrace.turns import Turns

ROWS_IN_A_TURN = 5_000
"""Rows that are looked at for their age in one turn of the loop."""


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

    By time: runs whose largest timestamp is too old, up to the first that isn't. By bytes: as long as what is
    left holds `retention_bytes` or more. `total_bytes`: of the whole partition.
    """
    end: int | None = None
    for run in runs:
        # Records without a timestamp (-1) age from when they were committed. Markers go with what they ended.
        newest_ms = run.max_timestamp if run.max_timestamp >= 0 else run.created_ms
        goes_along = end is not None and run.kind is ObjectKind.MARKERS
        is_old = limits.retention_ms >= 0 and (goes_along or newest_ms < now_ms - limits.retention_ms)
        is_over = limits.retention_bytes >= 0 and total_bytes - run.length >= limits.retention_bytes
        if not is_old and not is_over:
            break
        end = run.end_offset
        total_bytes -= run.length
    return end


async def move_log_starts(draft: Draft, store: RowStore, settings: SequencerSettings) -> int:
    """Move the log starts that retention moves now; how many. Asked again, it goes on until none moves."""
    cluster = draft.get(BrokerConfigRow, "")
    defaults = {} if cluster is None else cluster.configs
    limits = {
        topic.topic_id: found
        for topic in draft.all(TopicRow)
        if not (found := limits_of(topic.configs, defaults, settings)).is_endless
    }
    if not limits:
        return 0
    moved = 0
    for size in await store.partition_bytes(list(limits)):
        row = draft.live_partition(size.topic_id, size.partition)
        if row is None:
            continue
        runs = await store.runs_from(
            row.topic_id, row.partition, row.log_start_offset, 1 << 62, settings.removal_step
        )
        end = expired_end(runs, size.bytes, limits[row.topic_id], draft.now_ms)
        if end is not None and end > row.log_start_offset:
            move_log_start(draft, row, end)
            moved += 1
    return moved


@dataclass(slots=True)
class Removed:
    """What one step removed; `is_finished` when nothing is left to remove."""

    runs: int = 0
    objects: int = 0
    is_finished: bool = True


async def remove_runs(draft: Draft, store: RowStore, settings: SequencerSettings) -> Removed:
    """Remove a bounded number of runs below log start or of deleted topics."""
    removed = Removed()
    left = settings.removal_step
    for size in await store.partition_bytes(None):
        row = draft.get(PartitionRow, size.topic_id, size.partition)
        assert row is not None, f"runs of {size.topic_id}-{size.partition} without a partition"
        is_deleted = draft.get(TopicRow, size.topic_id) is None
        end = row.end_offset if is_deleted else row.log_start_offset
        if end == 0:
            continue
        if left == 0:
            removed.is_finished = False
            return removed
        runs = await store.runs_below(size.topic_id, size.partition, end, left)
        if not runs:
            continue
        ids = {run.object_id: None for run in runs if run.kind is not ObjectKind.MARKERS}
        for stored in await store.object_rows(list(ids)):
            draft.objects[stored.object_id] = stored
        removed.objects += draft.remove_runs(runs)
        removed.runs += len(runs)
        left -= len(runs)
        if is_deleted and len(runs) == size.runs:
            draft.delete(PartitionRow, size.topic_id, size.partition)
    return removed


async def forget_emptied_partitions(draft: Draft, store: RowStore) -> None:
    """Delete the partition rows of deleted topics that have no runs any more."""
    orphans = [row for row in draft.all(PartitionRow) if draft.get(TopicRow, row.topic_id) is None]
    if not orphans:
        return
    ids = {row.topic_id: None for row in orphans}
    held = {(size.topic_id, size.partition) for size in await store.partition_bytes(list(ids)) if size.runs}
    for row in orphans:
        if (row.topic_id, row.partition) not in held:
            draft.delete(PartitionRow, row.topic_id, row.partition)


def expire_producers(draft: Draft, keys: Iterable[Key], expiry_ms: int) -> int:
    """Forget those of these producers that wrote nothing for so long and have nothing open; how many."""
    expired = 0
    for key in keys:
        row = draft.get(ProducerRow, *key)
        is_over = row is not None and row.updated_ms <= draft.now_ms - expiry_ms
        if is_over and draft.get(OpenRangeRow, *key) is None:
            draft.delete(ProducerRow, *key)
            expired += 1
    return expired


async def keys_not_used_since(state: HotState, kind: type[Row], since_ms: int) -> list[Key]:
    """Keys of a kind whose rows have an `updated_ms` of at most this, as things are now; looked for in turns."""
    turns = Turns(ROWS_IN_A_TURN)
    found: list[Key] = []
    for row in list(state.all(kind)):
        if cast("_Updated", row).updated_ms <= since_ms:
            found.append(key_of(row))
        await turns.did()
    return found


class _Updated(Protocol):
    @property
    def updated_ms(self) -> int: ...


def expire_swaps(draft: Draft, kept_ms: int) -> None:
    """Forget answers to swaps that nobody asks for again."""
    for row in draft.all(SwapRow):
        if row.created_ms <= draft.now_ms - kept_ms:
            draft.delete(SwapRow, row.swap_id)
