"""A `LogIndex` without a sequencer: its database is read directly."""

from __future__ import annotations

from dataclasses import dataclass

from sequencer.api import (
    FetchOffsets,
    FindAnswer,
    FindRequest,
    OffsetPositions,
    OffsetsAnswer,
    OffsetsRequest,
    Topic,
)
from sequencer.reading.positions import Positions
from sequencer.reading.queries import Reader
from sequencer.reading.recent_runs import RecentRuns
from sequencer.rules.topics import topic_value
from sequencer.store.rows import TopicRow
from sequencer.store.sql.store import SqlRowStore
from sequencer.store.state import HotState
from tailrace.clock import Clock, Entropy


@dataclass(frozen=True, slots=True)
class _Rows:
    """Answers from one look at the database, and from a second where the first does not suffice."""

    reader: Reader
    positions: Positions


class DatabaseIndex:
    """Read from the database itself, without a committer: one look at it per question."""

    def __init__(self, url: str, clock: Clock, entropy: Entropy) -> None:
        self._store = SqlRowStore(url, clock=clock, entropy=entropy, auto_migrate=False)
        self._is_open = False

    async def topics(self) -> list[Topic]:
        return [topic_value(row) for row in (await self._state()).all(TopicRow)]

    async def find_batches(self, request: FindRequest) -> FindAnswer:
        return await (await self._rows()).reader.find_batches(request)

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer:
        return await (await self._rows()).reader.list_offsets(request)

    async def fetch_offsets(self, request: FetchOffsets) -> OffsetPositions:
        return await (await self._rows()).positions.fetch(request)

    async def _rows(self) -> _Rows:
        state = await self._state()

        async def look_again() -> None:
            nonlocal state
            state = await self._state()

        return _Rows(
            Reader(self._store, lambda: state, look_again, RecentRuns(0)),
            Positions(self._store, lambda: state, look_again),
        )

    async def _state(self) -> HotState:
        if not self._is_open:
            await self._store.open()
            self._is_open = True
        return HotState(await self._store.load())

    async def close(self) -> None:
        await self._store.close()
