"""Plans merges of small Parquet objects: makes work items from the sequencer's candidates.

Invariants:
- an item has consecutive objects in time, each with all its live runs, so that all of them are retired together: one
  object replaces all objects of an item;
- its runs of a partition are contiguous;
- it has at most `target_bytes`, its swap replaces at most `most_runs`, and its footer has at most about
  `MOST_FOOTER_BYTES`: tiny batches take more footer than records.

An object that qualifies has less than 64 MiB (sequencer.rules.levels), so a full item has at least half of 128 MiB.

Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from compactor.plan import Piece, PlanSettings, WorkItem
from sequencer.api.compaction import MergeCandidate
from sequencer.api.reads import Run

MOST_FOOTER_BYTES = 8 << 20
"""Readers keep footers in memory, where they take about ten times as much."""


def plan_merges(candidates: Iterable[MergeCandidate], settings: PlanSettings) -> list[WorkItem]:
    """Split the candidates into items. Objects that can't be merged with another are left out."""
    return [
        _item(candidate.topic.name, objects)
        for candidate in candidates
        for objects in _together(candidate.runs, settings)
        if len(objects) > 1
    ]


def halves(item: WorkItem) -> list[WorkItem]:
    """Split a merge for a retry: each half of its objects becomes a merge if it has several objects."""
    objects: dict[UUID, list[Run]] = {}
    for run in itertools.chain.from_iterable(piece.runs for piece in item.pieces):
        objects.setdefault(run.object_id, []).append(run)
    in_time = sorted(objects.values(), key=lambda runs: max(run.created_ms for run in runs))
    middle = len(in_time) // 2
    items = [_item(item.topic_name, half) for half in (in_time[:middle], in_time[middle:]) if len(half) > 1]
    return [merge for merge in items if all(map(_is_contiguous, merge.pieces))]


def _is_contiguous(piece: Piece) -> bool:
    return all(run.end_offset == after.base_offset for run, after in itertools.pairwise(piece.runs))


def _together(runs: Sequence[Run], settings: PlanSettings) -> Iterator[list[list[Run]]]:
    """Group the objects so that each group fits into an item. A group ends where a partition's runs have a gap."""
    group: list[list[Run]] = []
    ends: dict[int, int] = {}
    size = footers = count = 0
    for _, of_object in itertools.groupby(runs, key=_object_id):
        object_runs = list(of_object)
        is_contiguous = all(
            ends.get(run.partition, run.base_offset) == run.base_offset for run in object_runs
        )
        footer = object_runs[0].object_size - object_runs[0].index_start
        has_room = (
            size + object_runs[0].object_size <= settings.target_bytes
            and footers + footer <= MOST_FOOTER_BYTES
            and count + len(object_runs) <= settings.most_runs
        )
        if group and not (is_contiguous and has_room):
            yield group
            group, ends, size, footers, count = [], {}, 0, 0, 0
        group.append(object_runs)
        footers += footer
        ends.update((run.partition, run.end_offset) for run in object_runs)
        size += object_runs[0].object_size
        count += len(object_runs)
    yield group


def _object_id(run: Run) -> UUID:
    return run.object_id


def _item(topic_name: str, objects: Iterable[Iterable[Run]]) -> WorkItem:
    of_partitions: dict[int, list[Run]] = {}
    for run in itertools.chain.from_iterable(objects):
        of_partitions.setdefault(run.partition, []).append(run)
    return WorkItem(
        topic_name, [Piece(number, of_partitions[number], []) for number in sorted(of_partitions)]
    )
