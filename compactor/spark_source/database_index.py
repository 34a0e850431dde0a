"""A `LogIndex` without a sequencer, which reads the database directly."""

from __future__ import annotations

from sequencer.api.groups import FetchOffsets, OffsetPositions
from sequencer.api.reads import FindAnswer, FindRequest, OffsetsAnswer, OffsetsRequest
from sequencer.api.topics import Topic
from sequencer.reading.positions import Positions
from sequencer.reading.queries import Reader
from sequencer.reading.recent_runs import RecentRuns
from sequencer.rules.topics import topic_value
from sequencer.store.rows import TopicRow
from sequencer.store.sql.store import SqlRowStore
from sequencer.store.state import HotState
from tailrace.clock import Clock, Entropy


class DatabaseIndex:
    """Reads the database itself, without a committer. Each call reads it once."""

    def __init__(self, url: str, clock: Clock, entropy: Entropy) -> None:
        self._store = SqlRowStore(url, clock=clock, entropy=entropy, auto_migrate=False)
        self._is_open = False

    async def topics(self) -> list[Topic]:
        return [topic_value(row) for row in (await self._state()).all(TopicRow)]

    async def find_batches(self, request: FindRequest) -> FindAnswer:
        return await (await self._reader()).find_batches(request)

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer:
        return await (await self._reader()).list_offsets(request)

    async def fetch_offsets(self, request: FetchOffsets) -> OffsetPositions:
        """Return a group's positions. The partitions are those from before the positions were read."""
        state = await self._state()
        return await Positions(self._store, lambda: state, _no_wait).fetch(request)

    async def _reader(self) -> Reader:
        state = await self._state()

        async def look_again() -> None:
            nonlocal state
            state = await self._state()

        return Reader(self._store, lambda: state, look_again, RecentRuns(0))

    async def _state(self) -> HotState:
        if not self._is_open:
            await self._store.open()
            self._is_open = True
        return HotState(await self._store.load())

    async def close(self) -> None:
        await self._store.close()


async def _no_wait() -> None:
    return
