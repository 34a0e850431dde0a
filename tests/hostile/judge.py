"""Whether hostile clients made others wait: slices of time with them and without, turn by turn, compared in one run.

Three things are judged:
- **p99**: the median hostile slice's against the median quiet one's. What the broker does to others in most slices
  shows in the median, and what strikes only some is mostly the machine's.
- **stalls**: the records of no slice may wait many times longer than in quiet, as one request in one slice may be the
  one that holds all others up.
- **the loop**: in no slice may a request hold it for long, by the CPU time that the broker itself measures. A busy
  machine is no excuse for that.

Latencies are judged by the time that the broker could run. Where something else needs the machine's processors, the
broker waits for one as soon as it has much to do, and all that it does takes longer: by that much (`Slice.stretch`) a
slice's latencies are divided.

Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_RATIO = 2.0
"""How much longer others may wait beside hostile clients, at the 99th percentile."""
STALL_RATIO = 20.0
"""A slice whose p99 is so many times the quiet one is a stall. Disks and neighbours cost a factor of ten at times."""
MAX_HELD_SECONDS = 0.1
"""The loop may be held for less than that in any slice. The CPU time of a turn is bounded lower, in tests of their own
(`tests/agent/test_turns.py`); here all that is ready at once and the garbage collector add to it."""
BUSY_STRETCH = 1.5
"""A broker that waits for a processor half as long as it runs says little of itself."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The bystanders' latencies in one slice of time, for how long the broker ran in it and waited to run, and for how
    long its loop was held in one turn, at least: CPU time."""

    latencies_s: Sequence[float]
    ran_s: float
    waited_s: float
    held_s: float = 0.0

    @property
    def stretch(self) -> float:
        """How much longer than alone on the machine the broker took for what it did."""
        return 1.0 + self.waited_s / self.ran_s if self.ran_s > 0 else 1.0

    @property
    def p99_s(self) -> float:
        """The 99th percentile, as it would be alone on the machine; infinite where nothing was answered."""
        ordered = sorted(self.latencies_s)
        return ordered[int(len(ordered) * 0.99)] / self.stretch if ordered else math.inf


def p99_ratio(quiet: Sequence[Slice], hostile: Sequence[Slice]) -> float:
    """The median hostile slice's p99 over that of the median quiet one."""
    return _median_p99_s(hostile) / _median_p99_s(quiet)


def stalls(quiet: Sequence[Slice], hostile: Sequence[Slice]) -> int:
    """How many hostile slices made others wait many times longer than they do in quiet."""
    return sum(each.p99_s >= STALL_RATIO * _median_p99_s(quiet) for each in hostile)


def longest_held_s(hostile: Sequence[Slice]) -> float:
    """The longest turn of the loop in any slice."""
    return max(each.held_s for each in hostile)


def was_busy(hostile: Sequence[Slice]) -> bool:
    """Whether the machine had so much else to do that a bad ratio proves nothing."""
    return statistics.median(each.stretch for each in hostile) > BUSY_STRETCH


def _median_p99_s(slices: Sequence[Slice]) -> float:
    return statistics.median(each.p99_s for each in slices)
