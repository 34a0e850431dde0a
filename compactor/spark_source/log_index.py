"""Where the source learns of topics, offsets and runs: a running sequencer, or its database."""

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


def open_index(
    sequencers: Sequence[str], database: str, *, security: RpcSecurity, clock: Clock, entropy: Entropy
) -> LogIndex:
    """The index of running sequencers ('host:port') or, where none are given, of their database.

    What reads databases is imported for the latter only: it would cost each of Spark's workers a second of CPU.
    """
    if sequencers:
        remote = SequencerClient(sequencers, clock=clock, entropy=entropy, security=security)
        return AskedIndex(remote)
    from compactor.spark_source.database_index import DatabaseIndex

    return DatabaseIndex(database, clock, entropy)
