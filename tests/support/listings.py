"""Listings of a sequencer, read page by page to their end."""

from __future__ import annotations

from uuid import UUID

from sequencer.api.groups import FetchOffsets, OffsetPosition
from sequencer.api.interface import Sequencer
from sequencer.api.producers import ActiveProducer, ProducerQuery
from sequencer.api.reads import PartitionError
from sequencer.api.security import DelegationToken, TokensRequest
from sequencer.pages import pages


async def all_tokens(sequencer: Sequencer, principal: str | None) -> list[DelegationToken]:
    """Return the delegation tokens that this principal owns, requested or may renew; None: all tokens."""
    asked = TokensRequest(principal=principal)
    return [each async for page in pages(sequencer.tokens, asked) for each in page.tokens]


async def all_producers(
    sequencer: Sequencer, topic_id: UUID, partition: int
) -> tuple[PartitionError, list[ActiveProducer]]:
    """Return the producers of a partition, by id."""
    error, producers = PartitionError.NONE, []
    async for page in pages(sequencer.describe_producers, ProducerQuery(topic_id, partition)):
        error = page.error
        producers += page.producers
    return error, producers


async def all_positions(sequencer: Sequencer, group_id: str) -> list[OffsetPosition]:
    """Return a group's positions, by topic id and partition."""
    asked = FetchOffsets(group_id, None)
    return [each async for page in pages(sequencer.fetch_offsets, asked) for each in page.positions]
