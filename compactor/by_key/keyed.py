"""Compaction by key (`cleanup.policy=compact`): decides which records of a partition stay. Pure, works on columns.

It follows Kafka's rules (its log cleaner, KIP-58, KIP-354, KIP-534), over the runs of a partition up to an end:
- the last record of each key stays, at its offset, and older ones are removed;
- a tombstone (a record without a value) is removed `delete.retention.ms` after the pass that removed the records which
  it deletes. Its batch has this time as its delete horizon;
- a record without a key is removed. Producers can't write one to a compacted topic, so it is from before the topic was
  compacted;
- the newest record always stays: a log never loses its head;
- a batch that lost records keeps its base offset, last offset, producer and sequence.

Invariants:
- no matter which of a pass's swaps are executed, a reader finds the same last value of each key as before;
- only a tombstone below the clean end is removed, so no older record of its key is left anywhere.

Kafka keeps an empty batch for a producer's last sequence, because brokers read it after a restart. Here the sequencer's
rows have the producers, so empty batches are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import CleanPoint
from sequencer.api.reads import Run
from tailrace.configs.topic_config import TopicSettings

Array = Any

NO_HORIZON = -1


class Pass(msgspec.Struct, frozen=True, array_like=True):
    """One pass over a partition's keys.

    Attributes:
        end: the pass covers records below it, and only these replace older ones.
        clean_end: the log below it was clean when the pass began.
        now_ms: the database's time.
        delete_retention_ms: how long tombstones stay.
    """

    end: int
    clean_end: int
    now_ms: int
    delete_retention_ms: int

    @property
    def new_horizon_ms(self) -> int:
        """The delete horizon of the tombstones that this pass cleans."""
        return min(self.now_ms + self.delete_retention_ms, (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records of some batches as columns. `batches` has each record's batch.

    `newest`: the largest offset of the record's key in the dirty part of the log, -1 if it is not there.
    `horizons_ms`: the delete horizon of each batch, -1 if it has none. `base_offsets`: that of each batch.
    """

    offsets: Array
    newest: Array
    has_key: Array
    is_tombstone: Array
    batches: Array
    horizons_ms: Array
    base_offsets: Array


def kept(rows: RecordColumns, of: Pass, head: int) -> Array:
    """Return which rows stay, as booleans. `head`: the offset of the newest record that the pass covers."""
    horizons = rows.horizons_ms[rows.batches]
    is_over = (
        rows.is_tombstone & (rows.offsets < of.clean_end) & (horizons != NO_HORIZON) & (horizons <= of.now_ms)
    )
    return (rows.has_key & (rows.newest <= rows.offsets) & ~is_over) | (rows.offsets >= head)


def without_horizon(rows: RecordColumns, stays: Array, of: Pass) -> Array:
    """Return which batches need a delete horizon: those without one in which a tombstone stays.

    A batch above the clean end gets a new horizon, because the pass that set its horizon did not finish.
    """
    needs = np.zeros(len(rows.base_offsets), bool)
    needs[rows.batches[rows.is_tombstone & stays]] = True
    return needs & ((rows.horizons_ms == NO_HORIZON) | (rows.base_offsets >= of.clean_end))


def cleanable(runs: Sequence[Run], point: CleanPoint, settings: TopicSettings, now_ms: int) -> list[Run]:
    """Return the partition's first runs that a pass may cover: in Parquet, stable and old enough.

    `min.compaction.lag.ms` applies to a run as it does to a segment in Kafka: by its newest record.
    """
    eligible: list[Run] = []
    for run in runs:
        is_young = settings.min_compaction_lag_ms > 0 and (
            run.max_timestamp > now_ms - settings.min_compaction_lag_ms
        )
        is_stable = run.end_offset <= point.last_stable_offset
        if run.kind is ObjectKind.MIXED or is_young or not is_stable:
            break
        if eligible and eligible[-1].end_offset != run.base_offset:
            break
        eligible.append(run)
    while eligible and eligible[-1].kind is not ObjectKind.PARQUET:
        eligible.pop()
    return eligible


def dirty_bytes(runs: Sequence[Run], clean_end: int) -> int:
    """Return the bytes of the runs that are not clean."""
    return sum(run.length for run in runs if run.end_offset > clean_end and run.kind is ObjectKind.PARQUET)


def is_due(dirty: Sequence[Run], point: CleanPoint, settings: TopicSettings, now_ms: int) -> bool:
    """Whether a pass is due: the dirty part of the log is large or old enough.

    A run may be a merge, which has the age of its newest record. So dirty records also count as old when the last pass
    is: it covered those that were old then. (A partition without a pass is due by its dirty share.)

    Args:
        dirty: the cleanable runs that end above the clean end.
    """
    size = dirty_bytes(dirty, point.clean_end)
    if not size:
        return False
    oldest_ms = min(_age_begins_ms(run) for run in dirty if run.kind is ObjectKind.PARQUET)
    if point.cleaned_ms:
        oldest_ms = min(oldest_ms, point.cleaned_ms)
    if now_ms - oldest_ms >= settings.max_compaction_lag_ms:
        return True
    return size >= settings.min_cleanable_dirty_ratio * (size + point.clean_bytes)


def _age_begins_ms(run: Run) -> int:
    """Return the time from which a run's age counts. Without timestamps (-1), it is the commit's."""
    return run.created_ms if run.max_timestamp < 0 else min(run.created_ms, run.max_timestamp)


def fitting(runs: Sequence[Run], clean_end: int, max_dirty: int) -> list[Run]:
    """Return the first runs with at most `max_dirty` dirty offsets together, but at least one dirty run."""
    taken: list[Run] = []
    count = 0
    for run in runs:
        size = max(0, run.end_offset - max(run.base_offset, clean_end))
        if count and count + size > max_dirty:
            break
        count += size
        taken.append(run)
    return taken
