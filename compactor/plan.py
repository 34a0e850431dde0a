"""Which runs become which Parquet files: work items out of the sequencer's candidates.

An object of a topic with many partitions holds a little of each. A task that took a single partition would ask each
object for some kilobytes, and requests cost money. So an item is a stretch of time over neighbouring partitions, as
many as make one request worth `least_get_bytes`; they lie side by side in each object.

Invariants:
- an item's runs of a partition are contiguous and end at or below its last stable offset: every transaction in
  them has ended, its aborted records may go, and so may markers;
- no run is split or planned twice; a partition comes at most once in an item, and its items come in the order of
  its offsets;
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
    """How large files get, in stored bytes of their input.

    `least_bytes`: a partition with as much gets files of its own if its runs are long; other ones of a topic share.
    `target_bytes`: a file is closed when it holds as much. A task needs about four times this in memory.
    `most_runs`: a file replaces no more runs: commits wait while a swap is carried out.
    `least_get_bytes`: partitions share files until a request for their neighbouring runs brings as much.
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
        """Runs of a partition that make a file, where partitions share files so that a request is worth it."""
        return max(1, self.target_bytes // self.least_get_bytes)


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Contiguous runs of one partition, in order: of mixed objects and of markers, or of Parquet objects.

    `aborted`: the aborted transactions that overlap them, each perhaps only in part; in Parquet objects there are none.
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
        """Whether its runs are of Parquet objects: all are, or none."""
        return self.pieces[0].runs[0].kind is ObjectKind.PARQUET

    @property
    def object_ids(self) -> set[UUID]:
        """The objects to be read."""
        return {
            run.object_id for piece in self.pieces for run in piece.runs if run.kind is not ObjectKind.MARKERS
        }

    @property
    def stored_bytes(self) -> int:
        """Bytes to be read."""
        return sum(piece.stored_bytes for piece in self.pieces)


def plan(candidates: Iterable[CompactionCandidate], settings: PlanSettings) -> list[WorkItem]:
    """Cut the candidates into items; those of a partition in the order of its offsets."""
    by_topic: dict[bytes, list[CompactionCandidate]] = {}
    for candidate in candidates:
        by_topic.setdefault(candidate.topic.topic_id.bytes, []).append(candidate)
    items: list[WorkItem] = []
    for of_topic in by_topic.values():
        for band in _bands(of_topic, settings):
            items += [_item(part) for part in _stretches(band, settings)]
    return items


class _Share(NamedTuple):
    """What one candidate brings: its runs that may be compacted."""

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
        """What a request for the band's part of an object brings, on average."""
        return self.stored_bytes // max(1, len(self._keys))


def _bands(candidates: Sequence[CompactionCandidate], settings: PlanSettings) -> list[_Band]:
    """The partitions of a topic in groups: each large enough for a file, and its requests too."""
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
    """The items in groups of at most `max_bytes` of input each; one item may pass it by its own size.

    The first items of all partitions come first, then the second ones: a result need not wait for a later wave to be
    swapped. Otherwise the largest come first.
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
    """The item as smaller ones: a piece each, or the halves of its only piece; nothing for a single run, or a merge."""
    if item.is_merge:
        return []
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


def _part(partition: int, runs: list[Run], aborted: Sequence[AbortedTransaction]) -> Piece:
    base_offset, end_offset = runs[0].base_offset, runs[-1].end_offset
    overlapping = [
        range for range in aborted if range.first_offset < end_offset and range.last_offset >= base_offset
    ]
    return Piece(partition, runs, overlapping)


class _Placed(NamedTuple):
    """A run, and (created ms, key) of the newest object so far in its partition, which rises with the offsets."""

    newest_object: tuple[int, str]
    share: _Share
    run: Run


def _stretches(band: _Band, settings: PlanSettings) -> Iterator[list[_Placed]]:
    """Stretches of time of about the same size, as few as keep each near `target_bytes`, and none above `most_runs`.

    An object is not cut where that can be helped: it would be read by two tasks.
    """
    placed = sorted(
        itertools.chain.from_iterable(map(_placed, band.shares)), key=lambda run: run.newest_object
    )
    count = max(1, -(-band.stored_bytes // settings.target_bytes))
    part: list[_Placed] = []
    number = done = 0
    for piece in _of_objects(placed, settings.most_runs):
        is_done = number + 1 < count and done >= band.stored_bytes * (number + 1) // count
        if part and (is_done or len(part) + len(piece) > settings.most_runs):
            yield part
            part, number = [], number + is_done
        part += piece
        done += sum(placed_run.run.length for placed_run in piece)
    yield part


def _of_objects(placed: Iterable[_Placed], most_runs: int) -> Iterator[list[_Placed]]:
    """The runs of one object after another, in groups of at most `most_runs`."""
    for _, of_object in itertools.groupby(placed, key=lambda run: (run.newest_object, run.run.key)):
        runs = list(of_object)
        for begin in range(0, len(runs), most_runs):
            yield runs[begin : begin + most_runs]


def _placed(share: _Share) -> Iterator[_Placed]:
    newest_object = (0, "")
    for run in share.runs:
        newest_object = max(newest_object, (run.created_ms, run.key))
        yield _Placed(newest_object, share, run)


def _item(part: Sequence[_Placed]) -> WorkItem:
    runs: dict[int, list[Run]] = {}
    candidates: dict[int, CompactionCandidate] = {}
    for placed in part:
        candidate = candidates[placed.run.partition] = placed.share.candidate
        runs.setdefault(candidate.partition, []).append(placed.run)
    pieces = [_part(number, runs[number], candidates[number].aborted) for number in sorted(runs)]
    return WorkItem(part[0].share.candidate.topic.name, pieces)
