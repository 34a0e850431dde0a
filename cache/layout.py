"""The layout of a run: its stored batches as columns, so that a read finds its batches by bisection.

The batches of a run are parsed once. After that the cost of a read grows with the number of runs and pieces, not with
the number of batches. A piece is a range of neighbouring batches that are kept and sent as one buffer (`cache.framed`).

Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add

from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import Run, RunBatch

PIECE_BYTES = 256 * 1024
"""A piece that has reached this length takes no further batch."""
LARGE_BATCH_BYTES = 64 * 1024
"""A batch of this size or more is a piece by itself. It is sent without a copy; a separate header costs little next to
it."""
BATCH_COLUMNS_BYTES = 48
"""Memory of the columns per batch."""


class Layout:
    """The stored batches of one run, numbered in offset order. Each column has one entry per batch.

    `starts`: the byte of the object at which the batch begins (meaningless for a marker).
    `sizes`, `records`: total bytes and total producer records of the batches before it; one extra entry holds the
    total.
    `pieces`: the number of each piece's first batch; one extra entry holds the number of batches.
    `is_large_only`: all batches of the run were stored, and all are large.
    """

    __slots__ = (
        "base_offsets", "count", "end_offsets", "is_large_only", "pieces", "records", "sizes", "starts"
    )  # fmt: skip

    def __init__(self, run: Run, chunk_bytes: int) -> None:
        lengths = [batch.length for batch in run.batches]
        starts = list(accumulate(lengths, initial=run.start))
        assert starts[-1] == run.start + run.length, (
            f"batches of {starts[-1] - run.start} bytes in a run of {run.length} ({run.key})"
        )
        starts.pop()
        stored: Sequence[RunBatch] = run.batches
        if [batch.status for batch in stored].count(BatchStatus.STORED) < len(stored):
            numbers = [n for n, batch in enumerate(run.batches) if batch.status is BatchStatus.STORED]
            stored = [run.batches[n] for n in numbers]
            lengths, starts = [lengths[n] for n in numbers], [starts[n] for n in numbers]
        counts = [batch.record_count for batch in stored]
        bases = [batch.base_offset for batch in stored]
        is_of_markers = run.kind is ObjectKind.MARKERS
        self.count = len(bases)
        self.base_offsets = array("q", bases)
        self.end_offsets = array("q", map(add, bases, counts))
        self.starts = array("q", starts)
        self.sizes = array("q", accumulate(lengths, initial=0))
        self.records = array("q", accumulate([0] * len(counts) if is_of_markers else counts, initial=0))
        is_all_stored = len(stored) == len(run.batches)
        is_plain = is_all_stored and max(lengths, default=0) < LARGE_BATCH_BYTES
        self.is_large_only = is_all_stored and min(lengths, default=0) >= LARGE_BATCH_BYTES
        self.pieces = (
            _plain_pieces(starts, chunk_bytes) if is_plain else _pieces(starts, lengths, chunk_bytes)
        )

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of the columns."""
        return 600 + BATCH_COLUMNS_BYTES * self.count

    @property
    def copied_bytes(self) -> int:
        """Total size of the pieces that are copied: all except large batches."""
        large = (size for size in map(self.length_of, self.pieces[:-1]) if size >= LARGE_BATCH_BYTES)
        return self.sizes[-1] - sum(large)

    def is_large(self, batch: int) -> bool:
        """Whether the batch is a piece by itself, which is not copied."""
        return self.length_of(batch) >= LARGE_BATCH_BYTES

    def length_of(self, batch: int) -> int:
        """Size of one batch in bytes."""
        return self.sizes[batch + 1] - self.sizes[batch]

    def piece_of(self, batch: int) -> int:
        """Return the number of the piece that contains the batch."""
        return bisect_right(self.pieces, batch) - 1

    def place_of(self, piece: int) -> tuple[int, int]:
        """Return the first byte and the end of the piece in its object."""
        first, last = self.pieces[piece], self.pieces[piece + 1] - 1
        return self.starts[first], self.starts[last] + self.length_of(last)

    def first_from(self, offset: int) -> int:
        """Return the number of the first batch that ends after `offset`; `count` if there is none."""
        return bisect_right(self.end_offsets, offset)

    def bytes_between(self, offset: int, end: int) -> int:
        """Return the total size of the batches that end after `offset` and begin before `end`."""
        first, upto = self.first_from(offset), bisect_left(self.base_offsets, end)
        return self.sizes[upto] - self.sizes[first] if upto > first else 0


def _plain_pieces(starts: Sequence[int], chunk_bytes: int) -> list[int]:
    """Like `_pieces`, but faster: for small batches without gaps between them."""
    firsts: list[int] = []
    number, count = 0, len(starts)
    while number < count:
        firsts.append(number)
        start = starts[number]
        end = min(start + PIECE_BYTES, (start // chunk_bytes + 1) * chunk_bytes)
        number = bisect_left(starts, end, number + 1)
    return [*firsts, count]


def _pieces(starts: Sequence[int], lengths: Sequence[int], chunk_bytes: int) -> list[int]:
    """Cut the batches into pieces. The batches of a piece are adjacent in the object and begin in the same chunk.

    A small batch that crosses a chunk boundary is the last of its piece.
    """
    firsts: list[int] = []
    piece_end, chunk_end, next_start = 0, 0, -1
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        is_large = length >= LARGE_BATCH_BYTES
        if is_large or start != next_start or start >= chunk_end or start >= piece_end:
            firsts.append(number)
            chunk_end = (start // chunk_bytes + 1) * chunk_bytes
            piece_end = start if is_large else start + PIECE_BYTES
        next_start = start + length
    return [*firsts, len(lengths)]
