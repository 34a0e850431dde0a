"""Compaction by key in the sequencer: which records a swap may drop, and how far a partition is clean.

A partition is clean below `clean_end` if no two records below it have the same key. The compactor reads the keys up to
a last stable offset, swaps the runs that lose records, in any order, and marks the partition clean after the last swap.

Invariants:
- a record is dropped only if a later record of its key is stable, that is, below a last stable offset;
- a tombstone is dropped only where the log is clean, so that no older record of its key comes back;
- the clean end rises only under the lease that covered all swaps of the pass, and only from where the pass began;
- nothing is dropped from a topic whose policy does not have `compact` (any more).
"""

from __future__ import annotations

from uuid import UUID

from sequencer.api.compaction import CleanPoint, CleanPoints, CleanPointsRequest, MarkClean, ReplacementRun
from sequencer.api.errors import InvalidRequest, SwapRefused, UnknownTopic
from sequencer.api.values import Empty
from sequencer.bounds import PageBudget
from sequencer.rules.upload_sessions import COMPACTOR_LEASE
from sequencer.store.draft import Draft
from sequencer.store.rows import BrokerConfigRow, CleanedRow, LeaseRow, PartitionRow, TopicRow
from sequencer.store.state import HotState
from tailrace.configs.topic_config import TopicSettings, topic_settings

COMPACT = "compact"
_POINT_BYTES = 64


def is_compacted(state: HotState | Draft, topic_id: UUID) -> bool:
    """Whether the topic keeps the last record of each key."""
    settings = _settings_of(state, topic_id)
    return settings is not None and COMPACT in settings.cleanup_policy


def least_merged_age_ms(state: HotState, topic_id: UUID) -> int:
    """Return how old the topic's objects must be to be merged. A merge with an object that is younger than
    `min.compaction.lag.ms` would make the older records wait again."""
    settings = _settings_of(state, topic_id)
    if settings is None or COMPACT not in settings.cleanup_policy:
        return 0
    return settings.min_compaction_lag_ms


def _settings_of(state: HotState | Draft, topic_id: UUID) -> TopicSettings | None:
    topic = state.get(TopicRow, topic_id)
    if topic is None:
        return None
    cluster = state.get(BrokerConfigRow, "")
    return topic_settings(topic.configs, {} if cluster is None else cluster.configs)


def check_lease(draft: Draft, epoch: int) -> None:
    """Raise SwapRefused unless the compactor's lease with this epoch is live."""
    lease = draft.get(LeaseRow, COMPACTOR_LEASE)
    if lease is None or lease.epoch != epoch or lease.expires_ms <= draft.now_ms:
        raise SwapRefused(f"no live lease {COMPACTOR_LEASE!r} of epoch {epoch}; take it again")


def check_drops(draft: Draft, replacement: ReplacementRun) -> None:
    """Raise SwapRefused if the replacement drops records that must be kept."""
    drops = replacement.drops
    row = draft.live_partition(replacement.topic_id, replacement.partition)
    if drops is None or row is None:
        return
    subject = f"{replacement.topic_id}-{replacement.partition}"
    if not is_compacted(draft, replacement.topic_id):
        raise SwapRefused(f"{subject}: its topic is not compacted by key any more")
    stable = draft.durable.last_stable_offset(row)
    if drops.newest_below > stable:
        raise SwapRefused(
            f"{subject}: offsets from {stable} on are not stable, so they replace no older record"
        )
    clean_end = _clean_end(draft, row)
    if drops.tombstones_below > clean_end:
        raise SwapRefused(
            f"{subject}: tombstones below {drops.tombstones_below} are left out; it is clean below {clean_end}"
        )


def mark_clean(draft: Draft, request: MarkClean) -> Empty:
    """Raise a partition's clean end. Raises SwapRefused if the pass did not begin at the current clean end."""
    check_lease(draft, request.lease_epoch)
    if request.clean_bytes < 0:
        raise InvalidRequest(f"clean_bytes {request.clean_bytes}; at least 0")
    subject = f"{request.topic_id}-{request.partition}"
    row = draft.live_partition(request.topic_id, request.partition)
    if row is None:
        return Empty()
    held = draft.get(CleanedRow, row.topic_id, row.partition)
    clean_end = 0 if held is None else held.clean_end
    if clean_end == request.clean_end != request.clean_end_before:
        return Empty()  # a retry
    if clean_end != request.clean_end_before:
        raise SwapRefused(f"{subject}: clean below {clean_end}; the pass began at {request.clean_end_before}")
    stable = draft.durable.last_stable_offset(row)
    if not clean_end <= request.clean_end <= stable:
        raise SwapRefused(f"{subject}: clean below {request.clean_end}; {clean_end} to {stable} is possible")
    if not is_compacted(draft, row.topic_id):
        raise SwapRefused(f"{subject}: its topic is not compacted by key any more")
    draft.put(
        CleanedRow(
            topic_id=row.topic_id,
            partition=row.partition,
            clean_end=request.clean_end,
            clean_bytes=request.clean_bytes,
            cleaned_ms=draft.now_ms,
        )
    )
    return Empty()


def clean_points(state: HotState, request: CleanPointsRequest, now_ms: int) -> CleanPoints:
    """Return a page of a topic's partitions. Raises UnknownTopic."""
    topic = state.get(TopicRow, request.topic_id)
    if topic is None:
        raise UnknownTopic(f"no topic has the id {request.topic_id}")
    budget = PageBudget()
    points: list[CleanPoint] = []
    for partition in range(max(0, request.first), topic.partitions):
        row = state.get(PartitionRow, topic.topic_id, partition)
        if row is None:
            continue
        if not budget.takes(_POINT_BYTES):
            return CleanPoints(points, now_ms, partition)
        points.append(_point(state, row))
    return CleanPoints(points, now_ms)


def _point(state: HotState, row: PartitionRow) -> CleanPoint:
    held = state.get(CleanedRow, row.topic_id, row.partition)
    return CleanPoint(
        partition=row.partition,
        log_start_offset=row.log_start_offset,
        last_stable_offset=state.last_stable_offset(row),
        clean_end=0 if held is None else held.clean_end,
        clean_bytes=0 if held is None else held.clean_bytes,
        cleaned_ms=0 if held is None else held.cleaned_ms,
    )


def _clean_end(draft: Draft, row: PartitionRow) -> int:
    held = draft.get(CleanedRow, row.topic_id, row.partition)
    return 0 if held is None else held.clean_end
