"""Which batches of mixed objects, and markers among them, a read takes, and where their bytes stand.

Invariants:
- only batches that were stored are taken, each once, in the order of their offsets;
- the first one taken is the one that holds the asked offset, or the next where none does; it may begin before
  the offset, as Kafka's may: a batch is never cut;
- together they are no longer than asked, but for a first one that must not be left out.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sequencer.api import Run, RunBatch, Verdict


class Placed(NamedTuple):
    """A batch of a run, and the byte of the object at which it begins (meaningless for a marker)."""

    run: Run
    batch: RunBatch
    start: int

    @property
    def end_offset(self) -> int:
        """The offset after the batch's last."""
        return self.batch.base_offset + self.batch.record_count


@dataclass(frozen=True, slots=True)
class Selection:
    """The batches taken, their bytes together, and how far the read has got when they are delivered."""

    batches: list[Placed]
    bytes: int
    end_offset: int
    is_full: bool
    """Whether something that was there was left for the next read."""


def select_batches(
    runs: Sequence[Run],
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
    taken: list[Placed] = []
    room = max_bytes
    reached = offset
    for run in runs:
        if run.end_offset <= reached:
            continue
        if end_limit is not None and run.base_offset >= end_limit:
            return Selection(taken, max_bytes - room, reached, True)
        start = run.start
        for batch in run.batches:
            if batch.verdict == Verdict.STORED:
                placed = Placed(run, batch, start)
                if placed.end_offset > reached:
                    if end_limit is not None and batch.base_offset >= end_limit:
                        return Selection(taken, max_bytes - room, reached, True)
                    if batch.length > room and (taken or not is_first_free):
                        return Selection(taken, max_bytes - room, reached, True)
                    taken.append(placed)
                    room -= batch.length
                    reached = placed.end_offset
            start += batch.length
        assert start == run.start + run.length, (
            f"batches of {start - run.start} bytes in a run of {run.length} ({run.key})"
        )
        reached = max(reached, run.end_offset)
    return Selection(taken, max_bytes - room, reached, False)
