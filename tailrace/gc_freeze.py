"""Freezes the garbage collector's view of rows that are loaded by the million, so that it never scans them.

A full collection scans every container in one turn of the event loop. With ten million rows that took four seconds of
CPU, longer than a committer's lease. Rows have no cycles, so reference counts free them.

The collector never again scans an object that exists at a freeze. So an object that has a state of rows and is part of
a cycle (a committer, a follower) drops the state when it ends. Other cycles that existed at a freeze are never freed:
at most the rest of the process's objects, once per load.
"""

from __future__ import annotations

import gc

LEFT_ALONE_AT_ONCE = 100_000
"""Rows between two freezes. Scanning this many takes the collector some 20 milliseconds."""


class GcFreezer:
    """Counts rows while they are loaded, and freezes them in steps. Small loads are left to the collector."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = 0

    def add(self, rows: int) -> None:
        """Count `rows` more loaded rows."""
        self._rows += rows
        if self._rows >= LEFT_ALONE_AT_ONCE:
            self._rows = 0
            # Collect first: frozen garbage, such as an earlier state, would never be freed. The first time in a load,
            # this scans all other objects of the process, as the collector does from time to time anyway.
            gc.collect()
            gc.freeze()
