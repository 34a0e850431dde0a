"""Where the source learns of topics, offsets and runs: a running sequencer, or its database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sequencer.api import (
    FetchOffsets,
    FindAnswer,
    FindRequest,
    MetadataRequest,
    OffsetPositions,
    OffsetsAnswer,
    OffsetsRequest,
    Sequencer,
    Topic,
)
from sequencer.client import SequencerClient
from sequencer.reading.queries import Reader
from sequencer.reading.recent_runs import RecentRuns
from sequencer.rules import groups
from sequencer.rules.topics import topic_value
from sequencer.store.rows import TopicRow
from sequencer.store.sql.store import SqlRowStore
from sequencer.store.state import HotState
from tailrace.clock import Clock, Entropy
from tailrace.rpc import RpcSecurity


class LogIndex(Protocol):
    """As much of a sequencer as reading needs."""

    async def topics(self) -> list[Topic]:
        """All topics."""
        ...

    async def find_batches(self, request: FindRequest) -> FindAnswer: ...

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer: ...

    async def fetch_offsets(self, request: FetchOffsets) -> OffsetPositions: ...

    async def close(self) -> None: ...


class AskedIndex:
    """A running sequencer's."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self.find_batches = sequencer.find_batches
        self.list_offsets = sequencer.list_offsets
        self.fetch_offsets = sequencer.fetch_offsets

    async def topics(self) -> list[Topic]:
        return (await self._sequencer.metadata(MetadataRequest())).topics or []

    async def close(self) -> None:
        await self._sequencer.close()


class DatabaseIndex:
    """Read from the database itself, without a committer: one look at it per question."""

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
        return groups.fetch_offsets(await self._state(), request)

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


def open_index(
    sequencers: Sequence[str], database: str, *, security: RpcSecurity, clock: Clock, entropy: Entropy
) -> LogIndex:
    """The index of running sequencers ('host:port') or, where none are given, of their database."""
    if sequencers:
        remote = SequencerClient(sequencers, clock=clock, entropy=entropy, security=security)
        return AskedIndex(remote.sequencer)
    return DatabaseIndex(database, clock, entropy)
