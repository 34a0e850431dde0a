"""Which runs become which Parquet files: work items out of the sequencer's candidates.

Invariants:
- an item's runs of a partition are contiguous and end at or below its last stable offset: every transaction in
  them has ended, its aborted records may go, and so may markers;
- no run is split or planned twice; a partition comes at most once in an item, and a partition that comes in
  several items is alone in each;
- one topic per item.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from sequencer.api import AbortedTransaction, CompactionCandidate, ObjectKind, Run

MIB = 1 << 20


class PlanSettings(msgspec.Struct, frozen=True):
    """How large files get, in stored bytes of their input.

    `least_bytes`: a partition with as much gets files of its own; smaller ones of a topic share.
    `target_bytes`: a file is closed when it holds as much. A task needs about three times this in memory.
    `most_runs`: a file replaces no more runs: commits wait while a swap is carried out.
    """

    least_bytes: int = 64 * MIB
    target_bytes: int = 128 * MIB
    most_runs: int = 4_000

    def __post_init__(self) -> None:
        if not 0 < self.least_bytes <= self.target_bytes <= 512 * MIB:
            raise ValueError(
                f"least_bytes {self.least_bytes}, target_bytes {self.target_bytes}:"
                f" 0 < least_bytes <= target_bytes <= {512 * MIB} is expected"
            )
        if self.most_runs < 1:
            raise ValueError(f"most_runs {self.most_runs}: at least 1 is expected")


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Contiguous runs of one partition, in order, of mixed objects and of markers.

    `aborted`: the aborted transactions that overlap them, each perhaps only in part.
    """

    partition: int
    runs: list[Run]
    aborted: list[AbortedTransaction]

    @property
    def base_offset(self) -> int:
        """The first offset of all runs."""
        return self.runs[0].base_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last run's last."""
        return self.runs[-1].end_offset

    @property
    def stored_bytes(self) -> int:
        """Bytes of all runs, as they are stored; markers are in no object."""
        return sum(run.length for run in self.runs if run.kind is ObjectKind.MIXED)


class WorkItem(msgspec.Struct, frozen=True, array_like=True):
    """One task's work: the pieces that become one Parquet object, sorted by partition."""

    topic_name: str
    pieces: list[Piece]

    @property
    def places(self) -> list[tuple[UUID, int, int]]:
        """(topic id, partition, base offset) of each piece."""
        return [(piece.runs[0].topic_id, piece.partition, piece.base_offset) for piece in self.pieces]

    @property
    def stored_bytes(self) -> int:
        """Bytes to be read."""
        return sum(piece.stored_bytes for piece in self.pieces)


def plan(candidates: Iterable[CompactionCandidate], settings: PlanSettings) -> list[WorkItem]:
    """Cut the candidates into items, largest first (so that the last task of a job is a short one)."""
    by_topic: dict[bytes, list[CompactionCandidate]] = {}
    for candidate in candidates:
        by_topic.setdefault(candidate.topic.topic_id.bytes, []).append(candidate)
    items: list[WorkItem] = []
    for of_topic in by_topic.values():
        items += _plan_topic(of_topic, settings)
    return sorted(items, key=lambda item: -item.stored_bytes)


def _plan_topic(candidates: Sequence[CompactionCandidate], settings: PlanSettings) -> list[WorkItem]:
    name = candidates[0].topic.name
    items: list[WorkItem] = []
    shared: list[Piece] = []
    shared_bytes = shared_runs = 0
    for candidate in sorted(candidates, key=lambda candidate: candidate.partition):
        runs = compactable(candidate)
        size = sum(run.length for run in runs)
        if not runs:
            continue
        if size >= settings.least_bytes or len(runs) > settings.most_runs:
            items += [WorkItem(name, [_piece(candidate, part)]) for part in _cut(runs, settings)]
            continue
        is_full = shared_bytes + size > settings.target_bytes or shared_runs + len(runs) > settings.most_runs
        if shared and is_full:
            items.append(WorkItem(name, shared))
            shared, shared_bytes, shared_runs = [], 0, 0
        shared.append(_piece(candidate, runs))
        shared_bytes += size
        shared_runs += len(runs)
    if shared:
        items.append(WorkItem(name, shared))
    return items


def waves(items: Iterable[WorkItem], max_bytes: int) -> list[list[WorkItem]]:
    """The items in groups of at most `max_bytes` of input each; one item may pass it by its own size.

    The first items of all partitions come first, then the second ones: a result need not wait for a later wave to be
    swapped. Otherwise the largest come first.
    """
    numbered: list[tuple[int, WorkItem]] = []
    counts: dict[tuple[UUID, int], int] = {}
    for item in sorted(items, key=lambda item: item.pieces[0].base_offset):
        topic_id, partition, _ = item.places[0]
        number = counts.get((topic_id, partition), 0)
        counts[topic_id, partition] = number + 1
        numbered.append((number, item))
    numbered.sort(key=lambda pair: (pair[0], -pair[1].stored_bytes))
    groups: list[list[WorkItem]] = []
    group_bytes = 0
    for _, item in numbered:
        if not groups or group_bytes + item.stored_bytes > max_bytes:
            groups.append([])
            group_bytes = 0
        groups[-1].append(item)
        group_bytes += item.stored_bytes
    return groups


def parts(item: WorkItem) -> list[WorkItem]:
    """The item as smaller ones: a piece each, or the halves of its only piece; nothing for a single run."""
    if len(item.pieces) > 1:
        return [WorkItem(item.topic_name, [piece]) for piece in item.pieces]
    (piece,) = item.pieces
    middle = len(piece.runs) // 2
    halves = [piece.runs[:middle], piece.runs[middle:]] if middle else []
    return [WorkItem(item.topic_name, [_part(piece.partition, half, piece.aborted)]) for half in halves]


def compactable(candidate: CompactionCandidate) -> list[Run]:
    """The candidate's first contiguous runs of mixed objects and markers below its last stable offset."""
    runs: list[Run] = []
    for run in candidate.runs:
        if run.kind is ObjectKind.PARQUET or run.end_offset > candidate.last_stable_offset:
            break
        if runs and run.base_offset != runs[-1].end_offset:
            break
        runs.append(run)
    return runs


def _piece(candidate: CompactionCandidate, runs: list[Run]) -> Piece:
    return _part(candidate.partition, runs, candidate.aborted)


def _part(partition: int, runs: list[Run], aborted: Sequence[AbortedTransaction]) -> Piece:
    base_offset, end_offset = runs[0].base_offset, runs[-1].end_offset
    overlapping = [
        range for range in aborted if range.first_offset < end_offset and range.last_offset >= base_offset
    ]
    return Piece(partition, runs, overlapping)


def _cut(runs: Sequence[Run], settings: PlanSettings) -> list[list[Run]]:
    """Parts of about the same size, as few as keep each near `target_bytes`, and none above `most_runs`."""
    total = sum(run.length for run in runs)
    count = max(1, -(-total // settings.target_bytes))
    parts: list[list[Run]] = [[]]
    done = 0
    for run in runs:
        if parts[-1] and (done >= total * len(parts) // count or len(parts[-1]) == settings.most_runs):
            parts.append([])
        parts[-1].append(run)
        done += run.length
    return parts
