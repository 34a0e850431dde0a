"""Limits of an answer of the sequencer, and of a share request. An answer may be cut short: the caller then requests
the rest.

RPC's frame limit is far above these limits, so that no answer is refused for its size.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from operator import add, attrgetter

import msgspec

from sequencer.api.reads import Run
from sequencer.api.share_groups import ShareWork

MAX_ANSWER_BYTES = 1 << 20
"""Encoded bytes after which nothing more is added to an answer; the last item may exceed it."""
MAX_ANSWER_RUNS = 2_048
"""Limit of runs in an answer of `find_batches` or `feed`, so that they are decoded within a few turns of the event
loop."""
ABORTED_BYTES = 32
"""An upper bound of an aborted range's encoded size."""
MAX_PAGE = 5_000
"""Limit of entries in a page of a listing."""

BYTES_OF_A_RUN = 1_000
"""Encoded bytes of a run of some 25 batches. A limit of runs that are kept in memory also limits their encoded bytes to
this many for each of them; they take four times as much memory."""
_RUN_BYTES = 160
_ELEMENT_BYTES = 33
_length = attrgetter("length")
MAX_WORKS = 5_000
"""Limit of partitions in a share request."""
MAX_EDGES = 20_000
"""Limit of acknowledged and skipped ranges in a share request."""


class PageBudget:
    """The space left in a page, in entries and encoded bytes. The first entry always fits."""

    def __init__(self, entries: int = MAX_PAGE) -> None:
        self._entries = max(1, min(entries, MAX_PAGE))
        self._bytes = MAX_ANSWER_BYTES
        self._is_empty = True

    def takes(self, size: int) -> bool:
        """Whether an entry of about this encoded size still fits; if so, it is counted."""
        if not self._is_empty and (self._entries < 1 or self._bytes < size):
            return False
        self._entries -= 1
        self._bytes -= size
        self._is_empty = False
        return True


def text_bytes(*texts: str) -> int:
    """Return an upper bound of the texts' encoded size."""
    return sum(5 + 4 * len(text) for text in texts)


def edges_of(work: ShareWork) -> int:
    """Return the number of offset ranges in the request."""
    skipped = 0 if work.acquire is None else len(work.acquire.skipped)
    return skipped + len(work.written) + sum(len(acknowledged.types) for acknowledged in work.acknowledged)


def run_bytes(run: Run) -> int:
    """Return an upper bound of the run's encoded size: an integer takes at most nine bytes, a UUID 18."""
    return _RUN_BYTES + len(run.key) + _ELEMENT_BYTES * (len(run.batches) + len(run.markers))


class SummedRuns(msgspec.Struct, frozen=True, gc=False):
    """Runs of a partition, in order, with running sums: bytes of the log (`lengths`) and of an answer (`sizes`).

    The sums have one entry more than there are runs, and may start at any value: only differences count.
    """

    runs: list[Run]
    lengths: array[int]
    sizes: array[int]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> SummedRuns:
        """Sum up these runs."""
        return cls([*runs], sums_of(map(_length, runs)), sums_of(map(run_bytes, runs)))

    @property
    def end_offset(self) -> int:
        """End offset of the last run; 0 if there is none."""
        return self.runs[-1].end_offset if self.runs else 0


def sums_of(numbers: Iterable[int], first: int = 0) -> array[int]:
    """Return running sums that begin with `first`."""
    return array("q", accumulate(numbers, initial=first))


class AnswerBudget:
    """The space left in an answer with runs: bytes of the log, limited by the caller, and the answer's own limits.

    The first run always fits, so that a caller that repeats its request makes progress.
    """

    def __init__(self, log_bytes: int = 1 << 62) -> None:
        self.log_bytes = log_bytes
        self.runs = MAX_ANSWER_RUNS
        self._bytes = MAX_ANSWER_BYTES
        self._is_empty = True

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be added."""
        return not self._is_empty and min(self.log_bytes, self.runs, self._bytes) <= 0

    def take(self, found: SummedRuns, max_bytes: int, aborted: Sequence[int] = ()) -> list[Run]:
        """Return as many of the runs, in order, as there is room for; stop when `max_bytes` of the log are reached.

        `aborted`: the first offsets, in order, of the aborted ranges. A range is sent with a run that it begins in or
        before.
        """
        runs, lengths, sizes = found.runs, found.lengths, found.sizes
        if not runs or self.is_full:
            return []
        if aborted:
            named = (bisect_left(aborted, run.end_offset) for run in runs)
            sizes = array("q", map(add, sizes, chain((0,), (ABORTED_BYTES * count for count in named))))
        count = min(
            bisect_left(lengths, lengths[0] + min(max_bytes, self.log_bytes), 1, len(runs)),
            bisect_left(sizes, sizes[0] + self._bytes, 1, len(runs)),
            max(self.runs, 1),
        )
        self._add(count, lengths[count] - lengths[0], sizes[count] - sizes[0])
        return runs if count == len(runs) else runs[:count]

    def take_all(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Count all of the runs, which must stay together, whatever room there is."""
        if runs:
            self._add(len(runs), sum(map(_length, runs)), sum(map(run_bytes, runs)))
        return runs

    def _add(self, count: int, length: int, size: int) -> None:
        self._is_empty = False
        self.runs -= count
        self.log_bytes -= length
        self._bytes -= size
