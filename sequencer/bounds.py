"""How much one answer of the sequencer may hold, and one share request. There may always be more: the caller asks again
for what follows.

The frame limit of RPC is far above these bounds, so that no answer is refused for its size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter

from sequencer.api import Run, ShareWork

MAX_ANSWER_BYTES = 1 << 20
"""Encoded bytes after which nothing more is added to an answer; one item may pass it by its own size."""
MAX_ANSWER_RUNS = 2_048
"""Runs of one answer of `find_batches` or `feed`: as many are decoded within a few turns of the loop."""
ABORTED_BYTES = 32
"""An upper bound of an aborted range's encoded size."""
MAX_PAGE = 5_000
"""Entries of one page of a listing."""

_RUN_BYTES = 160
_ELEMENT_BYTES = 33
_length = attrgetter("length")
_key = attrgetter("key")
_batches = attrgetter("batches")
_markers = attrgetter("markers")
MAX_WORKS = 5_000
"""Partitions of one share request."""
MAX_EDGES = 20_000
"""Acknowledged and skipped stretches of one share request."""


class PageRoom:
    """What is left of a page: entries and encoded bytes. The first entry always fits."""

    def __init__(self, entries: int = MAX_PAGE) -> None:
        self._entries = max(1, min(entries, MAX_PAGE))
        self._bytes = MAX_ANSWER_BYTES
        self._is_empty = True

    def takes(self, size: int) -> bool:
        """Whether an entry of about this encoded size is still part of the page; then it is counted."""
        if not self._is_empty and (self._entries < 1 or self._bytes < size):
            return False
        self._entries -= 1
        self._bytes -= size
        self._is_empty = False
        return True


def text_bytes(*texts: str) -> int:
    """An upper bound of the texts' encoded size."""
    return sum(5 + 4 * len(text) for text in texts)


def edges_of(work: ShareWork) -> int:
    """How many stretches of offsets are named."""
    skipped = 0 if work.acquire is None else len(work.acquire.skipped)
    return skipped + len(work.written) + sum(len(each.types) for each in work.acknowledged)


def run_bytes(run: Run) -> int:
    """An upper bound of the run's encoded size: integers have at most nine bytes, UUIDs sixteen and two."""
    return _RUN_BYTES + len(run.key) + _ELEMENT_BYTES * (len(run.batches) + len(run.markers))


def _bytes_of_all(runs: Sequence[Run]) -> int:
    """The sum of `run_bytes`, in the interpreter's own loops."""
    keys = sum(map(len, map(_key, runs)))
    elements = sum(map(len, map(_batches, runs))) + sum(map(len, map(_markers, runs)))
    return _RUN_BYTES * len(runs) + keys + _ELEMENT_BYTES * elements


class AnswerRoom:
    """What is left of an answer with runs: bytes of the log, as its asker bounds them, and the answer's own bounds.

    The first run always fits, so that a caller that asks again makes progress.
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

    def take(self, runs: Sequence[Run], max_bytes: int, aborted: Sequence[int] = ()) -> list[Run]:
        """As many of the runs, in order, as there is room for; of the log until `max_bytes` are reached.

        `aborted`: the first offsets, in order, of the aborted ranges that are named beside the runs which they begin
        in or before.
        """
        if not runs or self.is_full:
            return []
        count, length, size = len(runs), sum(map(_length, runs)), _bytes_of_all(runs)
        before_last = length - runs[-1].length
        has_room = count <= self.runs and before_last < min(max_bytes, self.log_bytes) and size < self._bytes
        if aborted or not has_room:  # at an answer's end: how many fit takes longer to see than that all do
            count, length, size = self._fitting(runs, max_bytes, aborted)
        self._add(count, length, size)
        return list(runs[:count])

    def take_all(self, runs: Sequence[Run]) -> Sequence[Run]:
        """All of the runs, which must stay together, whatever room there is for them."""
        if runs:
            self._add(len(runs), sum(map(_length, runs)), _bytes_of_all(runs))
        return runs

    def _fitting(self, runs: Sequence[Run], max_bytes: int, aborted: Sequence[int]) -> tuple[int, int, int]:
        """How many of the runs there is room for, with their bytes in the log and in the answer."""
        lengths = list(accumulate(map(_length, runs), initial=0))
        sizes = list(accumulate(map(run_bytes, runs), initial=0))
        if aborted:
            for place, run in enumerate(runs, 1):
                sizes[place] += ABORTED_BYTES * bisect_left(aborted, run.end_offset)
        count = bisect_left(lengths, min(max_bytes, self.log_bytes), 1, len(runs))
        count = min(count, bisect_left(sizes, self._bytes, 1, len(runs)), max(self.runs, 1))
        return count, lengths[count], sizes[count]

    def _add(self, count: int, length: int, size: int) -> None:
        self._is_empty = False
        self.runs -= count
        self.log_bytes -= length
        self._bytes -= size
