"""What is loaded by the million, and stays: Python's cyclic collector does not look at it again and again.

A full collection looks at every container that there is, in one turn of the event loop: beside ten million rows that
took four seconds of CPU, longer than a committer's lease. Rows have no cycles: reference counts free them.

The collector never looks again at anything that there is then. So what has a state of rows, and is in a cycle itself (a
committer, a follower), lets go of it when it ends. Other cycles that end later stay for good: what the process had
besides, once for each load.
"""

from __future__ import annotations

import gc

LEFT_ALONE_AT_ONCE = 100_000
"""Rows after which the collector leaves alone what there is: it takes some 20 milliseconds to look at those since."""


class Loaded:
    """Counts rows while they are loaded. Small loads are left to the collector."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = 0

    def add(self, rows: int) -> None:
        """So many more are loaded."""
        self._rows += rows
        if self._rows >= LEFT_ALONE_AT_ONCE:
            self._rows = 0
            # What is garbage would stay for good, and an earlier state with it. The first time in a load, this looks at
            # all that the process has besides, as the collector does by itself from time to time.
            gc.collect()
            gc.freeze()
