"""Listings whole, page after page: for who needs all that an answer of the sequencer has no room for at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import msgspec

from sequencer.api import (
    ActiveProducer,
    FetchOffsets,
    GroupListing,
    Lag,
    LagsRequest,
    ListGroups,
    OffsetPosition,
    OffsetQuery,
    OffsetResult,
    OffsetsRequest,
    PartitionError,
    PartitionSize,
    ProducerQuery,
    Sequencer,
    SizesRequest,
    TransactionDescription,
    TransactionsRequest,
)


async def all_groups(sequencer: Sequencer) -> list[GroupListing]:
    """Every group, by id."""
    page = await sequencer.list_groups(ListGroups())
    found = list(page.groups)
    while page.next is not None:
        page = await sequencer.list_groups(ListGroups(page.next))
        found += page.groups
    return found


async def lag_pages(
    sequencer: Sequencer, owner: int = -1, *, with_orphans: bool = False
) -> AsyncIterator[list[Lag]]:
    """Every committed position, some at a time; see LagsRequest."""
    page = await sequencer.lags(LagsRequest(None, owner, with_orphans))
    yield page.lags
    while page.next is not None:
        page = await sequencer.lags(LagsRequest(page.next, owner, with_orphans))
        yield page.lags


async def all_transactions(
    sequencer: Sequencer, transactional_ids: list[str] | None
) -> list[TransactionDescription]:
    """What `transactions` says of these ids, or of all."""
    page = await sequencer.transactions(TransactionsRequest(transactional_ids))
    found = list(page.transactions)
    while page.next is not None:
        page = await sequencer.transactions(TransactionsRequest(transactional_ids, page.next))
        found += page.transactions
    return found


async def all_producers(
    sequencer: Sequencer, topic_id: UUID, partition: int
) -> tuple[PartitionError, list[ActiveProducer]]:
    """The producers of a partition, by id."""
    page = await sequencer.describe_producers(ProducerQuery(topic_id, partition))
    found = list(page.producers)
    while page.next >= 0:
        page = await sequencer.describe_producers(ProducerQuery(topic_id, partition, page.next))
        found += page.producers
    return page.error, found


async def all_positions(sequencer: Sequencer, group_id: str) -> list[OffsetPosition]:
    """A group's positions, by topic id and partition."""
    page = await sequencer.fetch_offsets(FetchOffsets(group_id, None))
    found = list(page.positions)
    while page.next is not None:
        page = await sequencer.fetch_offsets(FetchOffsets(group_id, None, page.next))
        found += page.positions
    return found


async def positions_at(
    sequencer: Sequencer, group_id: str, places: Sequence[tuple[UUID, int]]
) -> list[OffsetPosition]:
    """A group's positions at these places, in the order asked."""
    found: list[OffsetPosition] = []
    while len(found) < len(places):
        answer = await sequencer.fetch_offsets(FetchOffsets(group_id, list(places[len(found) :])))
        assert answer.positions, "an answer has one position at least"
        found += answer.positions
    return found


async def all_sizes(sequencer: Sequencer, topic_ids: list[UUID] | None) -> list[PartitionSize]:
    """The sizes of these topics' partitions, or of all."""
    page = await sequencer.sizes(SizesRequest(topic_ids))
    found = list(page.sizes)
    while page.next is not None:
        page = await sequencer.sizes(SizesRequest(topic_ids, page.next))
        found += page.sizes
    return found


async def all_offsets(sequencer: Sequencer, queries: Sequence[OffsetQuery]) -> list[OffsetResult]:
    """A result for each query, in order. A look-up that was stopped is gone on with, after all others were begun."""
    found: list[OffsetResult] = []
    while len(found) < len(queries):
        answer = await sequencer.list_offsets(OffsetsRequest(list(queries[len(found) :])))
        assert answer.results, "an answer has one result at least"
        found += answer.results
    stopped = [index for index, result in enumerate(found) if result.next_offset >= 0]
    while stopped:
        asked = [
            msgspec.structs.replace(queries[index], from_offset=found[index].next_offset) for index in stopped
        ]
        answer = await sequencer.list_offsets(OffsetsRequest(asked))
        assert answer.results, "an answer has one result at least"
        for index, result in zip(stopped, answer.results, strict=False):
            found[index] = _better(found[index], result)
        stopped = [index for index in stopped if found[index].next_offset >= 0]
    return found


def _better(before: OffsetResult, following: OffsetResult) -> OffsetResult:
    """What a look-up gives after one more part of the log: the first run of the largest timestamp."""
    if before.run is None or (
        following.run is not None and following.run.max_timestamp > before.run.max_timestamp
    ):
        return following
    return msgspec.structs.replace(following, run=before.run)
