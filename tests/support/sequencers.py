"""Sequencers for the contract suite: each factory gives an opened one over its own empty database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from sequencer.api import Sequencer
from sequencer.committer import LocalSequencer
from sequencer.memory import MemoryRowStore
from sequencer.settings import SequencerSettings
from tailrace.clock import ManualClock, SeededEntropy


@dataclass(slots=True)
class Opened:
    """A running sequencer; `clock` moves its database's clock too. `store` only where writes can be made to fail."""

    sequencer: Sequencer
    clock: ManualClock
    store: MemoryRowStore | None = None


Factory = Callable[[SequencerSettings], AbstractAsyncContextManager[Opened]]


@asynccontextmanager
async def memory(settings: SequencerSettings) -> AsyncIterator[Opened]:
    clock = ManualClock()
    store = MemoryRowStore(clock)
    sequencer = LocalSequencer(store, clock, SeededEntropy(1), settings)
    await sequencer.start()
    try:
        yield Opened(sequencer, clock, store)
    finally:
        await sequencer.close()


FACTORIES: dict[str, Factory] = {"memory": memory}
"""Add an implementation here, and the whole contract runs over it."""
