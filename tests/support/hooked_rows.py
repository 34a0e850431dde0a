"""A row store that fails, waits and refuses when a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from sequencer.api.errors import RequestFailed, SequencerUnavailable
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import Changes, Row
from tailrace.clock import Clock


class HookedRowStore(MemoryRowStore):
    """`writes` counts the transactions written."""

    def __init__(self, clock: Clock, cluster_id: str = "memory") -> None:
        super().__init__(clock, cluster_id)
        self.writes = 0
        self._failures: list[Literal["before", "after"]] = []
        self._gate: asyncio.Event | None = None
        self._is_refused: Callable[[Row], bool] = lambda row: False

    def fail_next_write(self, when: Literal["before", "after"]) -> None:
        """Make the next write raise SequencerUnavailable, before or after it took effect."""
        self._failures.append(when)

    def hold_writes(self) -> None:
        """Keep writes waiting until `release_writes`."""
        self._gate = asyncio.Event()

    def release_writes(self) -> None:
        if self._gate is not None:
            self._gate.set()
            self._gate = None

    def refuse(self, is_refused: Callable[[Row], bool]) -> None:
        """From now on refuse a write with such a row, as a database refuses values that it can't store."""
        self._is_refused = is_refused

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        if self._gate is not None:
            await self._gate.wait()
        failure = self._failures.pop(0) if self._failures else None
        if failure == "before":
            raise SequencerUnavailable("the write was made to fail before it took effect")
        await super().write(changes, committer_epoch)
        self.writes += 1
        if failure == "after":
            raise SequencerUnavailable("the write was made to fail after it took effect")

    def _check(self, changes: Changes) -> None:
        for rows in changes.by_kind.values():
            for row in rows.values():
                if row is not None and self._is_refused(row):
                    raise RequestFailed(f"the database does not take {row}")
        super()._check(changes)


def counted_deletions(store: MemoryRowStore, kind: type[Row]) -> list[int]:
    """Return a list to which every write from now on adds how many rows of this kind it deletes."""
    deletions: list[int] = []
    write = store.write

    async def counted(changes: Changes, committer_epoch: int) -> None:
        deletions.append(list(changes.by_kind.get(kind, {}).values()).count(None))
        await write(changes, committer_epoch)

    store.write = counted  # type: ignore[method-assign]
    return deletions
