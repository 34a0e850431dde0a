"""Whether hostile clients made others wait: slices of time with them and without, turn by turn, compared in one run.

Latencies are judged by the time that the broker could run. Where something else needs the machine's processors, the
broker waits for one as soon as it has much to do, and all that it does takes longer: by that much (`Slice.stretch`) a
slice's latencies are divided. The best slice of each kind is compared: every API is sent several times in each slice,
so what the broker does to others it does in all of them; what strikes only some is mostly the machine's.

Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_RATIO = 2.0
"""How much longer others may wait beside hostile clients, at the 99th percentile."""
BUSY_STRETCH = 2.0
"""A broker that waits for a processor as long as it runs says little of itself."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The bystanders' latencies in one slice of time, and for how long the broker ran in it, and waited to run."""

    latencies_s: Sequence[float]
    ran_s: float
    waited_s: float

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
    """The best hostile slice's p99 over that of the best quiet one."""
    return min(each.p99_s for each in hostile) / min(each.p99_s for each in quiet)


def was_busy(hostile: Sequence[Slice]) -> bool:
    """Whether the machine had so much else to do that a bad ratio proves nothing."""
    return statistics.median(each.stretch for each in hostile) > BUSY_STRETCH
