"""Aligns the partitions of a fetch in the log, so that each object is fetched once for all of them.

An object holds runs of many partitions. A consumer that reads 1 MiB of each partition per fetch gets ahead in the thin
ones, because their MiB covers more of the log. Once its positions lie farther apart than the cache can hold, each
partition fetches each object for itself. So an answer reaches only as far beyond the slowest partition's position as
the cache can hold. Partitions that are farther ahead get nothing until the slowest has come near.

    log         ----o---o---o---o---o---o---o---o---o---o---o---o---> commit numbers
    slowest     [=======]              |                     sent whole
    ahead           [==================|                     cut at the reach
    waits                              |   [====             in sight: nothing in this answer
    far ahead                          |         | [====     beyond sight: starts its own group

No partition waits for long: sight ends at twice the distance between the slowest partition and the reach, and the
slowest gets something in each answer. A partition beyond sight would gain nothing by waiting.

If an object has little of each partition, an answer takes only a few runs. `RequestSizes` remembers how many, so that
the sequencer isn't asked for thousands each time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter

from sequencer.api.reads import Run
from tailrace.ids import TopicPartition

NO_END = 1 << 63
LEAST_REQUEST_BYTES = 64 * 1024
MAX_SIZES = 10_000

_commit_number = attrgetter("commit_number")


def aligned_ends(found: Sequence[Sequence[Run]], reach_bytes: int) -> list[int]:
    """Return the offset at which each partition's answer ends: the base offset of a run, or NO_END if all its runs are
    sent.

    Args:
        found: each partition's runs from its position on, at least one. A run's commit number is its position in
            the log.
        reach_bytes: bytes of objects between the slowest position and the reach.
    """
    ends = [NO_END] * len(found)
    in_order = sorted(range(len(found)), key=lambda number: found[number][0].commit_number)
    at = 0
    while at < len(in_order) - 1:
        slowest = found[in_order[at]]
        reach = _reach(slowest, reach_bytes)
        sight = 2 * reach - slowest[0].commit_number
        upto = at + 1
        while upto < len(in_order) and found[in_order[upto]][0].commit_number <= sight:
            upto += 1
        if upto - at > 1:
            for number in in_order[at:upto]:
                ends[number] = _end(found[number], reach)
        at = upto
    return ends


def _reach(runs: Sequence[Run], reach_bytes: int) -> int:
    """Return the commit number that lies `reach_bytes` of objects behind the first run. If the runs end before that,
    estimate it from their density."""
    first, passed, key = runs[0].commit_number, 0, ""
    for run in runs:
        if run.key != key:
            passed, key = passed + run.object_size, run.key
        if passed >= reach_bytes:
            return max(first, run.commit_number)
    commits = max(1, runs[-1].commit_number - first + 1)
    return first + commits * reach_bytes // max(1, passed)


def _end(runs: Sequence[Run], reach: int) -> int:
    if runs[-1].commit_number <= reach:
        return NO_END
    given = bisect_right(runs, reach, key=_commit_number)
    if not given and runs[0].commit_number <= reach:
        given = 1
    return runs[given].base_offset if given < len(runs) else NO_END


class RequestSizes:
    """Remembers how many bytes of runs to request for partitions that were held back recently."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[TopicPartition, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sizes)

    def of(self, partition: TopicPartition, wanted_bytes: int) -> int:
        """Return how many bytes to request, of the `wanted_bytes` that the client would take."""
        return min(wanted_bytes, self._sizes.get(partition, wanted_bytes))

    def held_back(self, partition: TopicPartition, given_bytes: int) -> None:
        """Note that the partition was held back after `given_bytes`: request twice as much next time."""
        self._sizes[partition] = max(LEAST_REQUEST_BYTES, 2 * given_bytes)
        self._sizes.move_to_end(partition)
        if len(self._sizes) > MAX_SIZES:
            self._sizes.popitem(last=False)

    def given_all(self, partition: TopicPartition, wanted_bytes: int) -> None:
        """Note that the partition got all that was requested: request twice as much next time."""
        size = self._sizes.get(partition)
        if size is not None:
            if 2 * size < wanted_bytes:
                self._sizes[partition] = 2 * size
            else:
                del self._sizes[partition]
