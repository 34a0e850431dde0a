"""Which batches of mixed objects, and markers among them, a read takes.

Invariants:
- only batches that were stored are taken, each once, in the order of their offsets;
- the first one taken is the one that holds the asked offset, or the next where none does; it may begin before
  the offset, as Kafka's may: a batch is never cut;
- together they are no longer than asked, but for a first one that must not be left out.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from cache.framed import FramedRun
from sequencer.api import Run


class RunSpan(msgspec.Struct, frozen=True, gc=False):
    """Batches [first, upto) of a run."""

    run: Run
    framed: FramedRun
    first: int
    upto: int

    @property
    def size(self) -> int:
        """Bytes of all its batches."""
        return self.framed.sizes[self.upto] - self.framed.sizes[self.first]

    def by_piece(self) -> Iterator[tuple[int, RunSpan]]:
        """Each piece that the span touches, by its number, and the part of the span in it."""
        cuts = self.framed.pieces
        if self.upto <= cuts[1]:
            yield 0, self
            return
        piece, first = self.framed.piece_of(self.first), self.first
        while first < self.upto:
            upto = min(self.upto, cuts[piece + 1])
            yield piece, RunSpan(self.run, self.framed, first, upto)
            piece, first = piece + 1, upto


@dataclass(frozen=True, slots=True)
class Selection:
    """The batches taken, and how far the read has got when they are delivered."""

    spans: list[RunSpan]
    end_offset: int
    is_full: bool
    """Whether batches were left for the next read."""


def select_spans(
    runs: Sequence[Run],
    framed_of: Callable[[Run], FramedRun],
    offset: int,
    max_bytes: int,
    *,
    is_first_free: bool = True,
    end_limit: int | None = None,
) -> Selection:
    """Choose from the runs of one partition, which are in order.

    Args:
        max_bytes: room that is left.
        is_first_free: take one batch even where it is longer than that.
        end_limit: nothing that begins at or after this offset is taken.
    """
    spans: list[RunSpan] = []
    room, reached = max_bytes, offset
    for run in runs:
        if run.end_offset <= reached:
            continue
        if end_limit is not None and run.base_offset >= end_limit:
            return Selection(spans, reached, True)
        framed = framed_of(run)
        first = 0 if reached <= run.base_offset else framed.first_from(reached)
        upto = framed.count
        if end_limit is not None and run.end_offset > end_limit:
            upto = bisect_left(framed.base_offsets, end_limit)
        sizes = framed.sizes
        if upto > first and sizes[upto] - sizes[first] > room:
            fitting = bisect_right(sizes, sizes[first] + room, first, upto + 1) - 1
            upto = max(fitting, first + 1 if is_first_free and not spans else first)
        if upto > first:
            spans.append(RunSpan(run, framed, first, upto))
            room -= sizes[upto] - sizes[first]
            reached = framed.end_offsets[upto - 1]
        if upto < framed.count:
            return Selection(spans, reached, True)
        reached = max(reached, run.end_offset)
    return Selection(spans, reached, False)
