"""Plans which runs become which Parquet files: makes work items from the sequencer's candidates.

A mixed object of a topic with many partitions has a little of each. A task for a single partition would request some
kilobytes of each object, and requests cost money. So an item is a period of time over neighbouring partitions, enough
of them that one request reads `least_get_bytes`. Neighbouring partitions are adjacent in each object.

Invariants:
- an item's runs of a partition are contiguous and end at or below its last stable offset: every transaction in them has
  ended, so aborted records and markers can be removed;
- no run is split or planned twice; a partition occurs at most once in an item, and its items are in the order of its
  offsets;
- one topic per item.

Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import CompactionCandidate
from sequencer.api.reads import AbortedTransaction, Run

MIB = 1 << 20


class PlanSettings(msgspec.Struct, frozen=True):
    """How large files become, in stored bytes of their input.

    `least_bytes`: a partition with this much gets separate files if its runs are long; other partitions share files.
    `target_bytes`: the input of a file. A task needs about four times this in memory.
    `most_runs`: the most runs that a file replaces, because commits wait during a swap.
    `least_get_bytes`: partitions share files until a request for their adjacent runs reads this much.
    """

    least_bytes: int = 64 * MIB
    target_bytes: int = 128 * MIB
    most_runs: int = 4_000
    least_get_bytes: int = MIB

    def __post_init__(self) -> None:
        if not 0 < self.least_bytes <= self.target_bytes <= 512 * MIB:
            raise ValueError(
                f"least_bytes {self.least_bytes}, target_bytes {self.target_bytes}:"
                f" 0 < least_bytes <= target_bytes <= {512 * MIB} is expected"
            )
        for name in ("most_runs", "least_get_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: at least 1 is expected")

    @property
    def runs_each(self) -> int:
        """The runs of each partition in a file, if partitions share files to make requests large enough."""
        return max(1, self.target_bytes // self.least_get_bytes)


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Contiguous runs of one partition, in order: of mixed objects and markers, or of Parquet objects.

    `aborted`: the aborted transactions that overlap them, perhaps only in part. Parquet objects have none.
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
        """The offset after the last run (exclusive)."""
        return self.runs[-1].end_offset

    @property
    def stored_bytes(self) -> int:
        """The stored bytes of all runs. Markers are in no object."""
        return sum(run.length for run in self.runs if run.kind is not ObjectKind.MARKERS)


class WorkItem(msgspec.Struct, frozen=True, array_like=True):
    """One task's work: the pieces that become one Parquet object, sorted by partition."""

    topic_name: str
    pieces: list[Piece]

    @property
    def positions(self) -> list[tuple[UUID, int, int]]:
        """(topic id, partition, base offset) of each piece."""
        return [(piece.runs[0].topic_id, piece.partition, piece.base_offset) for piece in self.pieces]

    @property
    def is_merge(self) -> bool:
        """Whether its runs are in Parquet objects. Either all are, or none."""
        return self.pieces[0].runs[0].kind is ObjectKind.PARQUET

    @property
    def object_ids(self) -> set[UUID]:
        """The ids of the objects to read."""
        return {
            run.object_id for piece in self.pieces for run in piece.runs if run.kind is not ObjectKind.MARKERS
        }

    @property
    def stored_bytes(self) -> int:
        """The bytes to read."""
        return sum(piece.stored_bytes for piece in self.pieces)


def plan(candidates: Iterable[CompactionCandidate], settings: PlanSettings) -> list[WorkItem]:
    """Split the candidates into items. A partition's items are in the order of its offsets."""
    by_topic: dict[bytes, list[CompactionCandidate]] = {}
    for candidate in candidates:
        by_topic.setdefault(candidate.topic.topic_id.bytes, []).append(candidate)
    items: list[WorkItem] = []
    for of_topic in by_topic.values():
        for band in _bands(of_topic, settings):
            items += [_item(part) for part in _stretches(band, settings)]
    return items


class _Share(NamedTuple):
    """One candidate and its runs that can be compacted."""

    candidate: CompactionCandidate
    runs: list[Run]

    @property
    def stored_bytes(self) -> int:
        return sum(run.length for run in self.runs)


class _Band:
    """Neighbouring partitions that share files."""

    def __init__(self, shares: Iterable[_Share] = ()) -> None:
        self.shares: list[_Share] = []
        self.stored_bytes = self.run_count = 0
        self._keys: set[str] = set()
        for share in shares:
            self.add(share)

    def add(self, share: _Share) -> None:
        self.shares.append(share)
        self.stored_bytes += share.stored_bytes
        self.run_count += len(share.runs)
        self._keys.update(run.key for run in share.runs if run.kind is ObjectKind.MIXED)

    @property
    def bytes_a_get(self) -> int:
        """The average size of a request for the band's part of an object."""
        return self.stored_bytes // max(1, len(self._keys))


def _bands(candidates: Sequence[CompactionCandidate], settings: PlanSettings) -> list[_Band]:
    """Group the partitions of a topic so that each group is large enough for a file, and its requests are too."""
    bands: list[_Band] = []
    band = _Band()
    for candidate in sorted(candidates, key=lambda candidate: candidate.partition):
        share = _Share(candidate, compactable(candidate))
        if not share.runs:
            continue
        alone = _Band([share])
        if _is_worth_a_file(alone, settings):
            bands.append(alone)
            continue
        is_full = (
            band.stored_bytes + share.stored_bytes > settings.target_bytes
            or band.run_count + len(share.runs) > settings.most_runs
        )
        is_wide = band.bytes_a_get >= settings.least_get_bytes or len(band.shares) >= settings.most_runs
        if band.shares and is_full and is_wide:
            bands.append(band)
            band = _Band()
        band.add(share)
    if band.shares:
        bands.append(band)
    return bands


def _is_worth_a_file(band: _Band, settings: PlanSettings) -> bool:
    return band.stored_bytes >= settings.least_bytes and band.bytes_a_get >= settings.least_get_bytes


def waves(items: Iterable[WorkItem], max_bytes: int) -> list[list[WorkItem]]:
    """Group the items into waves of at most `max_bytes` of input; a single larger item is a wave alone.

    The first items of all partitions come first, then the second ones, so that no result waits for a later wave. Within
    that order, the largest items come first.
    """
    numbered: list[tuple[int, WorkItem]] = []
    counts: dict[tuple[UUID, int], int] = {}
    for item in items:
        partitions = [(topic_id, partition) for topic_id, partition, _ in item.positions]
        number = max(counts.get(partition, 0) for partition in partitions)
        counts.update(dict.fromkeys(partitions, number + 1))
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
    """Split an item into one per piece, or its only piece into halves. Empty for a single run or a merge."""
    if item.is_merge:
        return []
    if len(item.pieces) > 1:
        return [WorkItem(item.topic_name, [piece]) for piece in item.pieces]
    (piece,) = item.pieces
    middle = len(piece.runs) // 2
    halves = [piece.runs[:middle], piece.runs[middle:]] if middle else []
    return [WorkItem(item.topic_name, [_part(piece.partition, half, piece.aborted)]) for half in halves]


def compactable(candidate: CompactionCandidate) -> list[Run]:
    """Return the candidate's first contiguous runs of mixed objects and markers below its last stable offset."""
    runs: list[Run] = []
    for run in candidate.runs:
        if run.kind is ObjectKind.PARQUET or run.end_offset > candidate.last_stable_offset:
            break
        if runs and run.base_offset != runs[-1].end_offset:
            break
        runs.append(run)
    return runs


def _part(partition: int, runs: list[Run], aborted: Sequence[AbortedTransaction]) -> Piece:
    base_offset, end_offset = runs[0].base_offset, runs[-1].end_offset
    overlapping = [
        range for range in aborted if range.first_offset < end_offset and range.last_offset >= base_offset
    ]
    return Piece(partition, runs, overlapping)


class _DatedRun(NamedTuple):
    """A run, with (created ms, key) of the newest object up to it in its partition, which ascends with the offsets."""

    newest_object: tuple[int, str]
    share: _Share
    run: Run


def _stretches(band: _Band, settings: PlanSettings) -> Iterator[list[_DatedRun]]:
    """Split a band by time into parts of about equal size near `target_bytes`, with at most `most_runs` runs.

    It avoids splitting an object, which two tasks would then read.
    """
    placed = sorted(
        itertools.chain.from_iterable(map(_placed, band.shares)), key=lambda run: run.newest_object
    )
    count = max(1, -(-band.stored_bytes // settings.target_bytes))
    part: list[_DatedRun] = []
    number = done = 0
    for piece in _of_objects(placed, settings.most_runs):
        is_done = number + 1 < count and done >= band.stored_bytes * (number + 1) // count
        if part and (is_done or len(part) + len(piece) > settings.most_runs):
            yield part
            part, number = [], number + is_done
        part += piece
        done += sum(placed_run.run.length for placed_run in piece)
    yield part


def _of_objects(placed: Iterable[_DatedRun], most_runs: int) -> Iterator[list[_DatedRun]]:
    """Yield the runs of one object after another, in groups of at most `most_runs`."""
    for _, of_object in itertools.groupby(placed, key=lambda run: (run.newest_object, run.run.key)):
        runs = list(of_object)
        for begin in range(0, len(runs), most_runs):
            yield runs[begin : begin + most_runs]


def _placed(share: _Share) -> Iterator[_DatedRun]:
    newest_object = (0, "")
    for run in share.runs:
        newest_object = max(newest_object, (run.created_ms, run.key))
        yield _DatedRun(newest_object, share, run)


def _item(part: Sequence[_DatedRun]) -> WorkItem:
    runs: dict[int, list[Run]] = {}
    candidates: dict[int, CompactionCandidate] = {}
    for placed in part:
        candidate = candidates[placed.run.partition] = placed.share.candidate
        runs.setdefault(candidate.partition, []).append(placed.run)
    pieces = [_part(number, runs[number], candidates[number].aborted) for number in sorted(runs)]
    return WorkItem(part[0].share.candidate.topic.name, pieces)
