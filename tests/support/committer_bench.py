"""A bench that gives the test access to the committer and its rows. Another committer may follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from sequencer.engine.committer import Committer
from sequencer.engine.follower import Follower
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sequencer_bench import Bench
from tests.support.sequencers import Opened

S = TypeVar("S", bound=MemoryRowStore)
B = TypeVar("B", bound="CommitterBench[MemoryRowStore]")


@dataclass
class CommitterBench(Bench, Generic[S]):
    settings: ClassVar[SequencerSettings]
    rows: S = field(init=False)
    committer: Committer = field(init=False)

    async def next_committer(self, follower: Follower | None = None) -> None:
        """End the committer, and start one that takes over the follower's copy, if there is one."""
        await self.committer.close()
        self.committer = await _started(self.rows, self.opened.clock, 2, self.settings, follower)
        self.opened = Opened(self.committer, self.opened.clock)


async def _started(
    rows: MemoryRowStore,
    clock: ManualClock,
    seed: int,
    settings: SequencerSettings,
    follower: Follower | None = None,
) -> Committer:
    made = Committer(rows, clock, SeededEntropy(seed), settings, keeps_journal=True, follower=follower)
    await made.start()
    return made


@asynccontextmanager
async def on_committer(kind: type[B], store: Callable[[ManualClock], MemoryRowStore]) -> AsyncIterator[B]:
    """Prepare a bench of this kind over such a store."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        clock = ManualClock()
        rows = store(clock)
        committer = await _started(rows, clock, 1, kind.settings)
        bench = kind(Opened(committer, clock))
        bench.rows, bench.committer = rows, committer
        await bench.prepare()
        yield bench
        await bench.committer.close()
