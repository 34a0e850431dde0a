"""Retention: which runs a partition may lose, by time and by bytes, and the removal of runs below the log start.

Metadata goes first: one transaction moves the log start, which readers see at once. A later transaction removes the run
rows below it. Objects without runs are collected after their grace period. A run is removed whole or not at all.

`plan_retention` searches concurrently with the committer's work. The steps then change a draft, in one bounded
transaction each. `expired_end` is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run
from sequencer.rules.garbage import release_runs
from sequencer.rules.retention_watch import PartitionWatch, removable_end
from sequencer.rules.sizes import sizes_around
from sequencer.rules.topics import move_log_start
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.row_store import RowStore
from sequencer.store.rows import AbortedRow, BrokerConfigRow, PartitionRow, TopicRow, key_of
from sequencer.store.state import HotState
from tailrace.configs.topic_config import known_value
from tailrace.turns import Turns

PARTITIONS_OF_A_PLAN = 10_000
"""Partitions that one plan examines."""
LOOKED_AT_ONCE = 200
"""Partitions whose oldest run one query reads."""
RUNS_AT_ONCE = 50_000
"""Runs that one query reads, of partitions with expired runs."""
RUNS_IN_A_TURN = 10_000
"""Runs that are decided in one turn of the event loop."""
REMOVED_FROM_AT_ONCE = 200
"""Partitions from which one step removes runs."""
_ALL_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """A topic's retention; -1 means no limit."""

    retention_ms: int
    retention_bytes: int

    @property
    def is_endless(self) -> bool:
        return self.retention_ms < 0 and self.retention_bytes < 0


NO_LIMIT = "-1"
_ENDLESS = RetentionLimits(-1, -1)


def limits_of(
    configs: Mapping[str, str], cluster: Mapping[str, str], settings: SequencerSettings
) -> RetentionLimits:
    """Return the limits of a topic with these configs, in a cluster with these defaults. A stored number that this
    version does not know counts as no limit, so that nothing is deleted by mistake."""
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
    ms, size = (int(known_value(name, value(name), NO_LIMIT)) for name in ("retention.ms", "retention.bytes"))
    return RetentionLimits(ms, size)


def expired_end(runs: Sequence[Run], total_bytes: int, limits: RetentionLimits, now_ms: int) -> int | None:
    """Return the end of the last of these oldest runs that retention removes; None if it removes none.

    By time: remove runs whose largest timestamp is too old, up to the first run that is young enough. By bytes: remove
    runs as long as the rest has at least `retention_bytes`. `total_bytes`: size of the whole partition.
    """
    end: int | None = None
    for run in runs:
        # Markers are removed together with the runs before them.
        goes_along = end is not None and run.kind is ObjectKind.MARKERS
        is_old = limits.retention_ms >= 0 and (goes_along or _newest_ms(run) < now_ms - limits.retention_ms)
        is_over = limits.retention_bytes >= 0 and total_bytes - run.length >= limits.retention_bytes
        if not is_old and not is_over:
            break
        end = run.end_offset
        total_bytes -= run.length
    return end


def _newest_ms(run: Run) -> int:
    """Return the newest timestamp of a run. Records without a timestamp (-1) age from their commit."""
    return run.max_timestamp if run.max_timestamp >= 0 else run.created_ms


@dataclass(frozen=True, slots=True)
class DueLogStart:
    """A log start to move, provided that these limits still apply to the topic."""

    topic_id: UUID
    partition: int
    offset: int
    limits: RetentionLimits


@dataclass(slots=True)
class RetentionPlan:
    """Partitions with runs to remove, and log starts to move, as of `now_ms`. `has_more`: other partitions remain to be
    examined."""

    now_ms: int
    removable: list[tuple[UUID, int]] = field(default_factory=list)
    due: list[DueLogStart] = field(default_factory=list)
    has_more: bool = False


async def plan_retention(
    state: HotState, store: RowStore, settings: SequencerSettings, watch: PartitionWatch
) -> RetentionPlan:
    """Search for retention's work, while nothing waits for it. After that work is done, another call finds the rest.

    It examines only the partitions that the watch returns, and reads only the oldest run of a partition without work.
    """
    now_ms = await store.now_ms()
    limits = TopicLimits(state, settings)
    rows, has_more = await watch.take(state, limits.counts_bytes, now_ms, PARTITIONS_OF_A_PLAN)
    plan = RetentionPlan(now_ms, has_more=has_more)
    firsts: list[tuple[PartitionRow, list[Run]]] = []
    for at in range(0, len(rows), LOOKED_AT_ONCE):
        part = rows[at : at + LOOKED_AT_ONCE]
        oldest = [(row.topic_id, row.partition, 0, 1) for row in part]
        first_runs = await store.runs_from_many(oldest, 1, with_batches=False)
        for row, runs in zip(part, first_runs, strict=True):
            if not runs:
                watch.emptied(row)
            elif runs[0].end_offset <= removable_end(state, row):
                plan.removable.append((row.topic_id, row.partition))
            elif limits.of(row.topic_id).is_endless:
                watch.looked(row, removable_end(state, row), None, now_ms)
            else:
                firsts.append((row, runs))
    due = await _due_of(store=store, firsts=firsts, limits=limits, now_ms=now_ms, watch=watch)
    step = max(1, RUNS_AT_ONCE // settings.removal_step)
    for at in range(0, len(due), step):
        part = due[at : at + step]
        queries = [(row.topic_id, row.partition, row.log_start_offset, _ALL_BYTES) for row in part]
        runs_of = await store.runs_from_many(queries, settings.removal_step, with_batches=False)
        for row, end in await _ends(store, list(zip(part, runs_of, strict=True)), limits, now_ms):
            plan.due.append(DueLogStart(row.topic_id, row.partition, end, limits.of(row.topic_id)))
    return plan


async def _due_of(
    store: RowStore,
    firsts: Sequence[tuple[PartitionRow, list[Run]]],
    limits: TopicLimits,
    now_ms: int,
    watch: PartitionWatch,
) -> list[PartitionRow]:
    """Return the partitions whose oldest run must be removed, ordered by topic and number, so that sizes of neighbours
    are summed together.

    The others are examined again when their oldest run is old enough.
    """
    due = [row for row, _ in await _ends(store, firsts, limits, now_ms)]
    due.sort(key=lambda row: (row.topic_id.int, row.partition))
    is_due = {key_of(row) for row in due}
    for row, runs in firsts:
        if key_of(row) not in is_due:
            kept_ms = limits.of(row.topic_id).retention_ms
            due_ms = None if kept_ms < 0 else _newest_ms(runs[0]) + kept_ms
            watch.looked(row, row.log_start_offset, due_ms, now_ms)
    return due


class TopicLimits:
    """The limits of topics; each is computed on first use."""

    def __init__(self, state: HotState | Draft, settings: SequencerSettings) -> None:
        self._state = state
        self._settings = settings
        cluster = state.get(BrokerConfigRow, "")
        self._defaults: Mapping[str, str] = {} if cluster is None else cluster.configs
        self._limits: dict[UUID, RetentionLimits] = {}

    def of(self, topic_id: UUID) -> RetentionLimits:
        """Return a topic's limits; no limits for a deleted topic, whose rows are removed in another way."""
        limits = self._limits.get(topic_id)
        if limits is None:
            topic = self._state.get(TopicRow, topic_id)
            limits = _ENDLESS if topic is None else limits_of(topic.configs, self._defaults, self._settings)
            self._limits[topic_id] = limits
        return limits

    def limited_by_bytes(self, topic_ids: Iterable[UUID]) -> list[TopicRow]:
        """Return those of these topics whose bytes are limited."""
        limited = (topic_id for topic_id in dict.fromkeys(topic_ids) if self.counts_bytes(topic_id))
        topics = (self._state.get(TopicRow, topic_id) for topic_id in limited)
        return [topic for topic in topics if topic is not None]

    def counts_bytes(self, topic_id: UUID) -> bool | None:
        """Whether the topic's bytes are limited; None if the topic has no limits."""
        limits = self.of(topic_id)
        return None if limits.is_endless else limits.retention_bytes >= 0


async def _ends(
    store: RowStore,
    oldest: Sequence[tuple[PartitionRow, list[Run]]],
    limits: TopicLimits,
    now_ms: int,
) -> list[tuple[PartitionRow, int]]:
    """Return the partitions that have expired runs among these oldest ones, each with the end of its expired runs.

    Bytes are summed after the runs are read: a swap in between lowers the sum, so that less is removed, never more.
    """
    topics = limits.limited_by_bytes(row.topic_id for row, _ in oldest)
    sizes = sizes_around(store, topics, ((row.topic_id, row.partition) for row, _ in oldest))
    bytes_of = {(size.topic_id, size.partition): size.bytes async for size in sizes}
    turns = Turns(RUNS_IN_A_TURN)
    ends: list[tuple[PartitionRow, int]] = []
    for row, runs in oldest:
        end = expired_end(
            runs, bytes_of.get((row.topic_id, row.partition), 0), limits.of(row.topic_id), now_ms
        )
        if end is not None and end > row.log_start_offset:
            ends.append((row, end))
        await turns.did(1 + len(runs))
    return ends


def move_log_starts(draft: Draft, planned: Sequence[DueLogStart], settings: SequencerSettings) -> int:
    """Move the planned log starts; return how many. A topic whose limits have changed keeps its log starts."""
    limits = TopicLimits(draft, settings)
    moved = 0
    for due in planned:
        row = draft.live_partition(due.topic_id, due.partition)
        if row is not None and limits.of(due.topic_id) == due.limits and due.offset > row.log_start_offset:
            move_log_start(draft, row, due.offset)
            moved += 1
    return moved


@dataclass(slots=True)
class RemovedRuns:
    """What one step removed, and the partitions that it did not finish."""

    runs: int = 0
    objects: int = 0
    left: list[tuple[UUID, int]] = field(default_factory=list)


async def remove_runs(
    draft: Draft, store: RowStore, partitions: Sequence[tuple[UUID, int]], settings: SequencerSettings
) -> RemovedRuns:
    """Remove a bounded number of runs that lie below the log start or belong to deleted topics, and as many of the
    aborted ranges there.

    Commits wait meanwhile. So a step takes two queries, for the runs and for their objects, however many partitions it
    has.
    """
    count = min(REMOVED_FROM_AT_ONCE, settings.removal_step)
    some, removed = partitions[:count], RemovedRuns()
    rows = [row for key in some if (row := draft.get(PartitionRow, *key)) is not None]
    if rows:
        each = settings.removal_step // len(rows)
        queries = [(row.topic_id, row.partition, 0, _ALL_BYTES) for row in rows]
        oldest = await store.runs_from_many(queries, each, with_batches=False)
        runs: list[Run] = []
        for row, oldest_runs in zip(rows, oldest, strict=True):
            end = removable_end(draft, row)
            below = [run for run in oldest_runs if run.end_offset <= end]
            runs += below
            ranges = _remove_aborted(draft, row, each)
            if each in (len(below), ranges):
                removed.left.append((row.topic_id, row.partition))
        removed.runs = len(runs)
        removed.objects = await release_runs(draft, store, runs)
    removed.left += partitions[count:]
    return removed


def _remove_aborted(draft: Draft, row: PartitionRow, most: int) -> int:
    """Remove at most `most` aborted ranges that end below the log start; return how many."""
    ranges = draft.durable.aborted_from(row.topic_id, row.partition, 0)[:most]
    below = [aborted for aborted in ranges if aborted.last_offset < row.log_start_offset]
    for aborted in below:
        draft.delete(AbortedRow, *key_of(aborted))
    return len(below)
