"""Framed runs: small batches next to each other, with offset and leader epoch written into each, ready to send.

The fields that place a batch in the log (base offset, leader epoch) are outside its CRC, and are unknown when its
object is uploaded. So a batch from a chunk needs a new header each time it is sent. A run of small batches is copied
once, with the headers written; after that each of its pieces is sent as one view. Large batches are not copied.

Small produce requests make short runs. When many consecutive runs are read again, they become one *joined run*, which
costs a reader as much as one run. A joined run is used only for exactly the runs that it was made from, so it is never
sent for a run that compaction has replaced. Short runs are copied and sent as one view; longer runs stay separate
views. Old runs that are ready in their chunks (`cache.in_place`) are joined only if they are short: a view would keep
the chunk alive.

This cache holds checked bytes only: the code that frames a piece checks each batch's CRC first, unless this agent made
the bytes itself.

Pure: a data structure, owned by one event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from cache.eviction import S3Fifo
from cache.layout import PIECE_BYTES, Layout
from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run
from tailrace.buffers import Buffer

LEAST_JOINED = 8
"""Least number of runs that are joined. Readers at the end of a log get a few runs at a time, which are not joined."""
LEAST_VIEW_BYTES = 8 * 1024
"""Runs of this average length or more are joined without a copy: the copy would take longer than one more view for the
socket."""
JOINED_AT_ONCE = 16
"""Stretches made by one read: copying their 4 MiB takes less than a millisecond. Later reads make the others."""
RUN_BYTES = 900
RUN_BATCH_BYTES = 160
"""Memory of a decoded run that a joined run refers to, and of each of its batches (measured: 890, 152)."""

_RunKey = tuple[str | int, int, int]


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """Consecutive runs of one partition. `parts`, of `size` bytes, are what is sent under `leader_epoch`."""

    runs: Sequence[Run]
    leader_epoch: int
    parts: Sequence[memoryview]
    size: int
    batch_count: int
    record_count: int
    first_offset: int
    """Base offset of the first batch."""
    client_offset: int
    """End offset of the last batch."""

    @property
    def end_offset(self) -> int:
        return self.runs[-1].end_offset

    @property
    def memory_bytes(self) -> int:
        """Estimated memory, with the runs that it refers to."""
        return self.size + RUN_BYTES * len(self.runs) + RUN_BATCH_BYTES * self.batch_count

    def is_wanted(
        self, runs: Sequence[Run], first: int, *, leader_epoch: int, room: int, end_limit: int
    ) -> bool:
        """Whether it can be sent for the runs from `first` on. These must equal its own runs; the comparison is cheap
        because they are usually the same objects."""
        return (
            self.leader_epoch == leader_epoch
            and self.size <= room
            and self.end_offset <= end_limit
            and self.runs == runs[first : first + len(self.runs)]
        )


class FramedRun(Layout):
    """A run's layout, and for each piece the bytes to send, if they were made; a large batch has none."""

    __slots__ = ("_framed", "_leader_epoch", "joined")

    def __init__(self, run: Run, chunk_bytes: int) -> None:
        super().__init__(run, chunk_bytes)
        self._leader_epoch = -1
        self._framed: list[memoryview | None] = [None] * (len(self.pieces) - 1)
        self.joined: JoinedRun | None = None
        """The joined run that begins with this run, if one was made."""

    @property
    def memory_bytes(self) -> int:
        """Estimated memory."""
        if self.joined is None:
            return super().memory_bytes + self.copied_bytes
        return super().memory_bytes + self.joined.memory_bytes

    def framed(self, piece: int, leader_epoch: int) -> memoryview | None:
        """Return the piece as it is sent under this epoch; None if it is not kept."""
        return self._framed[piece] if leader_epoch == self._leader_epoch else None

    @property
    def is_one_piece(self) -> bool:
        """Whether the run is a single piece."""
        return len(self._framed) == 1

    def whole(self, leader_epoch: int) -> memoryview | None:
        """Return the whole run as it is sent under this epoch; None if it has several pieces or is not kept."""
        if self.is_one_piece and leader_epoch == self._leader_epoch:
            return self._framed[0]
        return None

    def is_kept(self, leader_epoch: int) -> bool:
        """Whether all pieces are kept as they are sent under this epoch."""
        return leader_epoch == self._leader_epoch and None not in self._framed

    def keep(self, piece: int, leader_epoch: int, framed: memoryview) -> None:
        """Keep a piece; drop the pieces of another epoch."""
        if leader_epoch != self._leader_epoch:
            self._leader_epoch = leader_epoch
            self._framed = [None] * len(self._framed)
        self._framed[piece] = framed


class FramedRuns:
    """The recently read runs, within `budget_bytes`; each counts as if all its pieces were made."""

    def __init__(self, budget_bytes: int, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._held: S3Fifo[_RunKey, FramedRun] = S3Fifo(budget_bytes)

    @property
    def bytes_held(self) -> int:
        """Total bytes of the pieces and layouts."""
        return self._held.bytes_held

    def of(self, run: Run) -> FramedRun:
        """Return the framed run; make it if it is not held."""
        key = _key_of(run)
        framed = self._held.get(key)
        if framed is None:
            framed = FramedRun(run, self._chunk_bytes)
            self._held.put(key, framed, framed.memory_bytes)
        return framed

    def is_kept(self, run: Run, leader_epoch: int) -> bool:
        """Whether the whole run is held as it is sent under this epoch."""
        framed = self._held.get(_key_of(run))
        return framed is not None and framed.is_kept(leader_epoch)

    def joined_at(self, run: Run) -> JoinedRun | None:
        """Return the joined run that begins with the run, if one was made."""
        framed = self._held.get(_key_of(run))
        return framed.joined if framed is not None else None

    def join(self, runs: Sequence[Run], found: Sequence[FramedRun], leader_epoch: int) -> None:
        """Join consecutive runs, about PIECE_BYTES at a time. All of the runs must be kept whole."""
        for first, upto in _stretches_of([run.sizes[-1] for run in found]):
            self._join(runs[first:upto], found[first:upto], leader_epoch)

    def join_ready(self, runs: Sequence[Run], parts: Sequence[Buffer], leader_epoch: int) -> None:
        """Join short old runs, given as one sent part per run. All their batches must be stored ones."""
        if len(runs) < LEAST_JOINED or sum(map(len, parts)) >= LEAST_VIEW_BYTES * len(runs):
            return
        for first, upto in _stretches_of([run.length for run in runs]):
            self._join_ready(runs[first:upto], b"".join(parts[first:upto]), leader_epoch)

    def _join(self, runs: Sequence[Run], found: Sequence[FramedRun], leader_epoch: int) -> None:
        """Make a joined run. It replaces the bytes of its runs; a read that begins within it frames these again."""
        parts = [data for run in found if (data := run.whole(leader_epoch)) is not None]
        size = sum(run.sizes[-1] for run in found)
        assert sum(map(len, parts)) == size, "whole runs are joined"
        are_short = size < LEAST_VIEW_BYTES * len(runs)
        parts = [memoryview(b"".join(parts))] if are_short else [*map(_alone, parts)]
        joined = JoinedRun(
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
        self._hold(found[0], joined)

    def _join_ready(self, runs: Sequence[Run], data: bytes, leader_epoch: int) -> None:
        head = self.of(runs[0])
        if not head.is_one_piece:
            return
        joined = JoinedRun(
            runs,
            leader_epoch,
            [memoryview(data)],
            len(data),
            batch_count=sum(len(run.batches) for run in runs),
            record_count=runs[-1].end_offset - runs[0].base_offset,
            first_offset=runs[0].base_offset,
            client_offset=runs[-1].end_offset,
        )
        self._hold(head, joined)

    def _hold(self, head: FramedRun, joined: JoinedRun) -> None:
        """Keep a joined run with its first run, which must be a single piece."""
        head.keep(0, joined.leader_epoch, joined.parts[0][: head.sizes[-1]])
        head.joined = joined
        self._held.put(_key_of(joined.runs[0]), head, head.memory_bytes)


def _stretches_of(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield [first, upto) for each joined run of about PIECE_BYTES; at most JOINED_AT_ONCE."""
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
    """Return the view, or a copy if it keeps more bytes alive than it shows (the first run of an earlier joined run
    does)."""
    return view if memoryview(view.obj).nbytes == len(view) else memoryview(bytes(view))


def _key_of(run: Run) -> _RunKey:
    """Return a key that no other run has: its place in an object and in the log."""
    if run.kind is ObjectKind.MARKERS:
        return run.topic_id.int, run.partition, run.base_offset
    return run.key, run.start, run.base_offset
