"""Decides whether hostile clients made others wait. It compares slices of time with them and without, in turns, in one
run.

Three criteria:
- **p99**: the median hostile slice's against the median quiet one's. What the broker does to others in most slices
  shows in the median; what affects only some is mostly the machine's.
- **stalls**: the records of no slice may wait many times longer than in quiet slices, because a single request in a
  single slice may stall all others.
- **the loop**: in no slice may a request hold it for long, by the CPU time that the broker itself measures. A busy
  machine is no excuse for that.

Latencies count only the time in which the broker could run. If other processes need the machine's processors, the
broker waits for one as soon as it has much to do, and everything that it does takes longer. A slice's latencies are
divided by that factor (`Slice.stretch`).

Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_RATIO = 2.0
"""How many times longer others may wait beside hostile clients, at the 99th percentile."""
STALL_RATIO = 20.0
"""A slice whose p99 is this many times the quiet one is a stall. Disks and other load cost a factor of ten at times."""
MAX_HELD_SECONDS = 0.1
"""In any slice the loop must be held for less than this. Separate tests bound the CPU time of a turn lower
(`tests/agent/test_turns.py`); here everything that is ready at once and the garbage collector add to it."""
BUSY_STRETCH = 1.5
"""If a broker waits for a processor half as long as it runs, its latencies say little about it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice of time: the bystanders' latencies, how long the broker ran and waited to run, and a lower bound of the
    CPU time for which one turn held its loop."""

    latencies_s: Sequence[float]
    ran_s: float
    waited_s: float
    held_s: float = 0.0

    @property
    def stretch(self) -> float:
        """How many times longer the broker took than alone on the machine."""
        return 1.0 + self.waited_s / self.ran_s if self.ran_s > 0 else 1.0

    @property
    def p99_s(self) -> float:
        """The 99th percentile, as if the broker were alone on the machine; infinite if nothing was answered."""
        ordered = sorted(self.latencies_s)
        return ordered[int(len(ordered) * 0.99)] / self.stretch if ordered else math.inf


def p99_ratio(quiet: Sequence[Slice], hostile: Sequence[Slice]) -> float:
    """Return the median hostile slice's p99 over that of the median quiet one."""
    return _median_p99_s(hostile) / _median_p99_s(quiet)


def stalls(quiet: Sequence[Slice], hostile: Sequence[Slice]) -> int:
    """Return in how many hostile slices others waited many times longer than in quiet ones."""
    return sum(each.p99_s >= STALL_RATIO * _median_p99_s(quiet) for each in hostile)


def longest_held_s(hostile: Sequence[Slice]) -> float:
    """Return the longest turn of the loop in any slice."""
    return max(each.held_s for each in hostile)


def was_busy(hostile: Sequence[Slice]) -> bool:
    """Return whether the machine was so busy with other work that a bad ratio proves nothing."""
    return statistics.median(each.stretch for each in hostile) > BUSY_STRETCH


def _median_p99_s(slices: Sequence[Slice]) -> float:
    return statistics.median(each.p99_s for each in slices)
