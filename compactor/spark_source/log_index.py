"""Where the source looks up topics, offsets and runs: in a running sequencer, or in its database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sequencer.api.groups import FetchOffsets, OffsetPositions
from sequencer.api.interface import Sequencer
from sequencer.api.reads import FindAnswer, FindRequest, OffsetsAnswer, OffsetsRequest
from sequencer.api.topics import MetadataRequest, Topic
from sequencer.client import SequencerClient
from tailrace.clock import Clock, Entropy
from tailrace.rpc import RpcSecurity


class LogIndex(Protocol):
    """The calls of a sequencer that reading needs."""

    async def topics(self) -> list[Topic]:
        """Return all topics."""

    async def find_batches(self, request: FindRequest) -> FindAnswer: ...

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer: ...

    async def fetch_offsets(self, request: FetchOffsets) -> OffsetPositions: ...

    async def close(self) -> None: ...


class SequencerIndex:
    """The index of a running sequencer. It keeps the topics, and asks for them again only if they have changed."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._topics: list[Topic] = []
        self._version = -1
        self.find_batches = sequencer.find_batches
        self.list_offsets = sequencer.list_offsets
        self.fetch_offsets = sequencer.fetch_offsets

    async def topics(self) -> list[Topic]:
        answer = await self._sequencer.metadata(MetadataRequest(known_version=self._version))
        if answer.topics is not None:
            self._topics, self._version = answer.topics, answer.version
        return self._topics

    async def close(self) -> None:
        await self._sequencer.close()


def open_index(
    sequencers: Sequence[str], database: str, *, security: RpcSecurity, clock: Clock, entropy: Entropy
) -> LogIndex:
    """Open the index of running sequencers ('host:port') or, if none are given, of their database.

    The libraries for databases are imported only if needed: they would cost each of Spark's workers a second of CPU.
    """
    if sequencers:
        remote = SequencerClient(sequencers, clock=clock, entropy=entropy, security=security)
        return SequencerIndex(remote)
    from compactor.spark_source.database_index import DatabaseIndex

    return DatabaseIndex(database, clock, entropy)
