"""Where the stored batches of a run stand, as columns: what a read takes is found by bisection, not batch by batch.

A run's batches are told apart once. From then on a read costs something for each run and for each piece of it:
neighbouring batches that are kept, and sent, as one buffer (`cache.framed`).

Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add

from sequencer.api import BatchStatus, ObjectKind, Run, RunBatch

PIECE_BYTES = 256 * 1024
"""A piece takes no further batch when it is this long."""
LARGE_BATCH_BYTES = 64 * 1024
"""A batch of this size is a piece of its own, and is not copied to be sent: its head costs little beside it."""
BATCH_COLUMNS_BYTES = 48
"""Memory of the columns for each batch."""


class Layout:
    """The stored batches of one run, numbered in the order of their offsets. All columns have an entry for each.

    `starts`: the byte of the object at which a batch begins (meaningless for a marker).
    `sizes`, `records`: bytes and producers' records of all batches before it, with one entry more for all of them.
    `pieces`: the number of each piece's first batch, with one entry more: the number of batches.
    `is_large_only`: all batches of the run were stored, and each is large.
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
        """About what the columns take."""
        return 600 + BATCH_COLUMNS_BYTES * self.count

    @property
    def copied_bytes(self) -> int:
        """Bytes of all pieces but those of one large batch."""
        large = (size for size in map(self.length_of, self.pieces[:-1]) if size >= LARGE_BATCH_BYTES)
        return self.sizes[-1] - sum(large)

    def is_large(self, batch: int) -> bool:
        """Whether the batch is a piece of its own, which is not copied."""
        return self.length_of(batch) >= LARGE_BATCH_BYTES

    def length_of(self, batch: int) -> int:
        """Bytes of one batch."""
        return self.sizes[batch + 1] - self.sizes[batch]

    def piece_of(self, batch: int) -> int:
        """The piece in which a batch is."""
        return bisect_right(self.pieces, batch) - 1

    def place_of(self, piece: int) -> tuple[int, int]:
        """The bytes of the object in which a piece stands."""
        first, last = self.pieces[piece], self.pieces[piece + 1] - 1
        return self.starts[first], self.starts[last] + self.length_of(last)

    def first_from(self, offset: int) -> int:
        """The first batch that ends after `offset`; `count` where there is none."""
        return bisect_right(self.end_offsets, offset)

    def bytes_between(self, offset: int, end: int) -> int:
        """Bytes of the batches that end after `offset` and begin before `end`."""
        first, upto = self.first_from(offset), bisect_left(self.base_offsets, end)
        return self.sizes[upto] - self.sizes[first] if upto > first else 0


def _plain_pieces(starts: Sequence[int], chunk_bytes: int) -> list[int]:
    """As `_pieces`, for small batches that stand next to each other: not batch by batch."""
    firsts: list[int] = []
    number, count = 0, len(starts)
    while number < count:
        firsts.append(number)
        start = starts[number]
        end = min(start + PIECE_BYTES, (start // chunk_bytes + 1) * chunk_bytes)
        number = bisect_left(starts, end, number + 1)
    return [*firsts, count]


def _pieces(starts: Sequence[int], lengths: Sequence[int], chunk_bytes: int) -> list[int]:
    """Cut the batches into pieces: next to each other in the object, beginning in the same chunk.

    A batch that lies across two chunks is the last of its piece, unless it is large.
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
