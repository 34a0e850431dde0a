"""Runs in the form in which they are sent: small batches side by side, offsets and leader epoch written into each.

What a batch says of its place in the log (base offset, leader epoch) is outside its CRC, and is not known when its
object is uploaded. So a batch out of a chunk needs a head of its own, each time it is sent. A run of small batches is
copied once, with its heads written; from then on it is sent as one view for each piece. Large batches are not copied.

Small requests make short runs. Many that follow each other are joined when they are read again: a *stretch* costs a
reader as much as one run. It stands for exactly the runs that it was made of, so a run that compaction has replaced is
not sent out of one. The shortest runs are copied, and sent as one view; longer ones stay the views that they are. Old
runs that are ready in their chunks (`cache.in_place`) are joined if they are short: a view would keep its chunk.

Only checked bytes are kept here: who frames a piece has compared each batch with its CRC, or knows its bytes.

Pure: a data structure, owned by one event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from cache.eviction import S3Fifo
from cache.layout import PIECE_BYTES, Layout
from sequencer.api import ObjectKind, Run
from tailrace.buffers import Buffer

LEAST_JOINED = 8
"""Runs that make a stretch: readers at the end of a log, who get a few runs at a time, don't have them joined."""
LEAST_VIEW_BYTES = 8 * 1024
"""Runs that are this long on average are joined without a copy: the socket takes a view more in less time than that."""
JOINED_AT_ONCE = 16
"""Stretches that are made in one go: 4 MiB are copied within a millisecond. Reads that follow make the others."""
RUN_BYTES = 900
RUN_BATCH_BYTES = 160
"""Memory of a run that a stretch names, and of each of its batches, as an answer decodes them (measured: 890, 152)."""

_RunKey = tuple[str | int, int, int]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Runs of one partition that follow each other; `parts`, of `size` bytes, are sent under `leader_epoch`."""

    runs: Sequence[Run]
    leader_epoch: int
    parts: Sequence[memoryview]
    size: int
    batch_count: int
    record_count: int
    first_offset: int
    """Where the first batch begins."""
    client_offset: int
    """Where the last batch ends."""

    @property
    def end_offset(self) -> int:
        return self.runs[-1].end_offset

    @property
    def memory_bytes(self) -> int:
        """About what it takes, with the runs that it names."""
        return self.size + RUN_BYTES * len(self.runs) + RUN_BATCH_BYTES * self.batch_count

    def is_wanted(
        self, runs: Sequence[Run], first: int, *, leader_epoch: int, room: int, end_limit: int
    ) -> bool:
        """Whether it can be sent for the runs from `first` on, which must be its own. They are compared by identity
        first, so this costs little."""
        return (
            self.leader_epoch == leader_epoch
            and self.size <= room
            and self.end_offset <= end_limit
            and self.runs == runs[first : first + len(self.runs)]
        )


class FramedRun(Layout):
    """A run's layout, and of each piece the bytes to send, where they were made and are not those of a large batch."""

    __slots__ = ("_framed", "_leader_epoch", "stretch")

    def __init__(self, run: Run, chunk_bytes: int) -> None:
        super().__init__(run, chunk_bytes)
        self._leader_epoch = -1
        self._framed: list[memoryview | None] = [None] * (len(self.pieces) - 1)
        self.stretch: Stretch | None = None
        """What begins with this run, if it was joined with those that follow."""

    @property
    def memory_bytes(self) -> int:
        """About what it takes."""
        if self.stretch is None:
            return super().memory_bytes + self.copied_bytes
        return super().memory_bytes + self.stretch.memory_bytes

    def framed(self, piece: int, leader_epoch: int) -> memoryview | None:
        """The piece as it is sent under this epoch; None where it is not there."""
        return self._framed[piece] if leader_epoch == self._leader_epoch else None

    @property
    def is_one_piece(self) -> bool:
        """Whether all of the run is one piece."""
        return len(self._framed) == 1

    def whole(self, leader_epoch: int) -> memoryview | None:
        """All of a run that is one piece, as it is sent under this epoch; None where it is not, or not there."""
        if self.is_one_piece and leader_epoch == self._leader_epoch:
            return self._framed[0]
        return None

    def is_kept(self, leader_epoch: int) -> bool:
        """Whether all pieces are there as they are sent under this epoch."""
        return leader_epoch == self._leader_epoch and None not in self._framed

    def keep(self, piece: int, leader_epoch: int, framed: memoryview) -> None:
        """Keep a piece; those of another epoch go."""
        if leader_epoch != self._leader_epoch:
            self._leader_epoch = leader_epoch
            self._framed = [None] * len(self._framed)
        self._framed[piece] = framed


class FramedRuns:
    """The runs that were read last, within `budget_bytes`; each is counted as if all its pieces were made."""

    def __init__(self, budget_bytes: int, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._held: S3Fifo[_RunKey, FramedRun] = S3Fifo(budget_bytes)

    @property
    def bytes_held(self) -> int:
        """Bytes of pieces and layouts together."""
        return self._held.bytes_held

    def of(self, run: Run) -> FramedRun:
        """The run, made where it is not held."""
        key = _key_of(run)
        framed = self._held.get(key)
        if framed is None:
            framed = FramedRun(run, self._chunk_bytes)
            self._held.put(key, framed, framed.memory_bytes)
        return framed

    def is_kept(self, run: Run, leader_epoch: int) -> bool:
        """Whether all of the run is held as it is sent under this epoch."""
        framed = self._held.get(_key_of(run))
        return framed is not None and framed.is_kept(leader_epoch)

    def stretch_at(self, run: Run) -> Stretch | None:
        """What begins with the run, if it was joined with those that follow."""
        framed = self._held.get(_key_of(run))
        return framed.stretch if framed is not None else None

    def join(self, runs: Sequence[Run], found: Sequence[FramedRun], leader_epoch: int) -> None:
        """Join runs that follow each other, all of which are kept whole, into stretches of about PIECE_BYTES."""
        for first, upto in _stretches_of([run.sizes[-1] for run in found]):
            self._join(runs[first:upto], found[first:upto], leader_epoch)

    def join_ready(self, runs: Sequence[Run], parts: Sequence[Buffer], leader_epoch: int) -> None:
        """The same for old runs that are short, as they were sent, a part for each. All their batches were stored."""
        if len(runs) < LEAST_JOINED or sum(map(len, parts)) >= LEAST_VIEW_BYTES * len(runs):
            return
        for first, upto in _stretches_of([run.length for run in runs]):
            self._join_ready(runs[first:upto], b"".join(parts[first:upto]), leader_epoch)

    def _join(self, runs: Sequence[Run], found: Sequence[FramedRun], leader_epoch: int) -> None:
        """Make one stretch. Its runs' own bytes go: who begins within it has them made again."""
        parts = [data for run in found if (data := run.whole(leader_epoch)) is not None]
        size = sum(run.sizes[-1] for run in found)
        assert sum(map(len, parts)) == size, "whole runs are joined"
        are_short = size < LEAST_VIEW_BYTES * len(runs)
        parts = [memoryview(b"".join(parts))] if are_short else [*map(_alone, parts)]
        stretch = Stretch(
            runs,
            leader_epoch,
            parts,
            size,
            batch_count=sum(run.count for run in found),
            record_count=sum(run.records[-1] for run in found),
            first_offset=found[0].base_offsets[0],
            client_offset=found[-1].end_offsets[-1],
        )
        for run in runs[1:]:
            self._held.remove(_key_of(run))
        self._hold(found[0], stretch)

    def _join_ready(self, runs: Sequence[Run], data: bytes, leader_epoch: int) -> None:
        head = self.of(runs[0])
        if not head.is_one_piece:
            return
        stretch = Stretch(
            runs,
            leader_epoch,
            [memoryview(data)],
            len(data),
            batch_count=sum(len(run.batches) for run in runs),
            record_count=runs[-1].end_offset - runs[0].base_offset,
            first_offset=runs[0].base_offset,
            client_offset=runs[-1].end_offset,
        )
        self._hold(head, stretch)

    def _hold(self, head: FramedRun, stretch: Stretch) -> None:
        """Keep a stretch with its first run, which is one piece."""
        head.keep(0, stretch.leader_epoch, stretch.parts[0][: head.sizes[-1]])
        head.stretch = stretch
        self._held.put(_key_of(stretch.runs[0]), head, head.memory_bytes)


def _stretches_of(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of these lengths as stretches of about PIECE_BYTES, JOINED_AT_ONCE at most: [first, upto) of each."""
    if len(lengths) < LEAST_JOINED:
        return
    sizes = list(accumulate(lengths, initial=0))
    first, made = 0, 0
    while made < JOINED_AT_ONCE and (
        len(lengths) - first >= LEAST_JOINED or sizes[-1] - sizes[first] >= PIECE_BYTES
    ):
        upto = bisect_right(sizes, sizes[first] + PIECE_BYTES) - 1
        if upto - first > 1:
            yield first, upto
            made += 1
        first = max(upto, first + 1)


def _alone(view: memoryview) -> memoryview:
    """The view, or a copy if it keeps more bytes alive than it shows: it is a head's, from an earlier stretch."""
    return view if memoryview(view.obj).nbytes == len(view) else memoryview(bytes(view))


def _key_of(run: Run) -> _RunKey:
    """A run by what it can't share with another: its place in an object and in the log."""
    if run.kind is ObjectKind.MARKERS:
        return run.topic_id.int, run.partition, run.base_offset
    return run.key, run.start, run.base_offset
