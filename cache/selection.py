"""Select the batches that a read returns from mixed objects and transaction markers.

Invariants:
- a selection contains stored batches only, each once, in offset order;
- the first batch contains the requested offset, or is the next one after a gap; like Kafka's it may begin before the
  requested offset, because a batch is never cut;
- the batches together are at most `max_bytes` long, except that a first batch may be longer.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from cache.framed import FramedRun
from sequencer.api.reads import Run


class RunSpan(msgspec.Struct, frozen=True, gc=False):
    """Batches [first, upto) of a run."""

    run: Run
    framed: FramedRun
    first: int
    upto: int

    @property
    def size(self) -> int:
        """Total size of the batches."""
        return self.framed.sizes[self.upto] - self.framed.sizes[self.first]

    def by_piece(self) -> Iterator[tuple[int, RunSpan]]:
        """Split the span by piece; yield each piece number with its part of the span."""
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
    """The selected batches, and the offset that the read has reached after them."""

    spans: list[RunSpan]
    end_offset: int
    is_full: bool
    """Whether batches remain for the next read."""


def select_spans(
    runs: Sequence[Run],
    framed_of: Callable[[Run], FramedRun],
    offset: int,
    max_bytes: int,
    *,
    is_first_free: bool = True,
    end_limit: int | None = None,
) -> Selection:
    """Select batches from the runs of one partition. The runs must be in offset order.

    Args:
        max_bytes: the space left in the answer.
        is_first_free: select the first batch even if it is longer than `max_bytes`.
        end_limit: select no batch that begins at or after this offset.
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
