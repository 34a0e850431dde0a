"""Whole listings, page by page, for callers that need more than fits into one answer of the sequencer.

Long requests are split into pages too, because a committer in the caller's process shares its event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from sequencer.api.compaction import TablePin, TablePinsRequest
from sequencer.api.groups import FetchOffsets, GroupListing, Lag, LagsRequest, ListGroups, OffsetPosition
from sequencer.api.interface import Sequencer
from sequencer.api.objects import PartitionSize, SizesRequest
from sequencer.api.reads import OffsetQuery, OffsetResult, OffsetsAnswer, OffsetsRequest
from sequencer.api.security import Security, SecurityRequest
from sequencer.api.share_groups import ShareOffset, ShareOffsetsRequest
from sequencer.api.topics import ClientConfigs, ClientConfigsRequest
from sequencer.api.transactions import TransactionDescription, TransactionsRequest
from sequencer.api.values import Value
from sequencer.bounds import MAX_PAGE
from tailrace.turns import Turns

MAX_RESTARTS = 20
"""Limit of restarts of a listing that changes while it is read."""


class Page(Protocol):
    """One answer of a listing."""

    @property
    def next(self) -> Any:
        """Where the next page begins; after the last page None, or -1 for a number."""


Q = TypeVar("Q", bound=Value)
V = TypeVar("V", Security, ClientConfigs)
P = TypeVar("P", bound=Page)


async def pages(ask: Callable[[Q], Awaitable[P]], request: Q) -> AsyncIterator[P]:
    """Yield all pages of a listing, one per turn of the event loop: first the request's own, then each page after the
    previous one."""
    turns = Turns(1)
    while True:
        page = await ask(request)
        yield page
        if page.next is None or page.next == -1:
            return
        request = msgspec.structs.replace(request, after=page.next)
        await turns.did()


async def all_groups(sequencer: Sequencer) -> list[GroupListing]:
    """Return all groups, ordered by id."""
    return [group async for page in pages(sequencer.list_groups, ListGroups()) for group in page.groups]


async def all_share_offsets(sequencer: Sequencer, group_id: str) -> list[ShareOffset]:
    """Return a share group's offsets in all partitions that it has read."""
    asked = ShareOffsetsRequest(group_id)
    return [offset async for page in pages(sequencer.share_offsets, asked) for offset in page.offsets]


async def all_pins(sequencer: Sequencer) -> list[TablePin]:
    return [pin async for page in pages(sequencer.table_pins, TablePinsRequest()) for pin in page.pins]


async def lag_pages(
    sequencer: Sequencer, owner: int = -1, *, with_orphans: bool = False
) -> AsyncIterator[list[Lag]]:
    """Yield all committed positions, some at a time; see LagsRequest."""
    async for page in pages(sequencer.lags, LagsRequest(None, owner, with_orphans)):
        yield page.lags


async def all_transactions(
    sequencer: Sequencer, transactional_ids: list[str] | None
) -> list[TransactionDescription]:
    """Return the transactions of these ids, or all."""
    asked = TransactionsRequest(transactional_ids)
    return [row async for page in pages(sequencer.transactions, asked) for row in page.transactions]


async def positions_at(
    sequencer: Sequencer, group_id: str, partitions: Sequence[tuple[UUID, int]]
) -> list[OffsetPosition]:
    """Return a group's positions in these partitions, in the same order."""
    positions: list[OffsetPosition] = []
    turns = Turns(MAX_PAGE)
    while len(positions) < len(partitions):
        asked = list(partitions[len(positions) : len(positions) + MAX_PAGE])
        answer = await sequencer.fetch_offsets(FetchOffsets(group_id, asked))
        assert answer.positions, "an answer has one position at least"
        positions += answer.positions
        await turns.did(len(asked))
    return positions


async def all_sizes(sequencer: Sequencer, topic_ids: list[UUID] | None) -> list[PartitionSize]:
    """Return the sizes of these topics' partitions, or of all."""
    return [size async for page in pages(sequencer.sizes, SizesRequest(topic_ids)) for size in page.sizes]


class OffsetsSource(Protocol):
    """The part of a sequencer that `all_offsets` uses."""

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer: ...


async def all_offsets(sequencer: OffsetsSource, queries: Sequence[OffsetQuery]) -> list[OffsetResult]:
    """Return a result for each query, in order. A look-up that was stopped is continued after all others were begun."""
    results: list[OffsetResult] = []
    turns = Turns(MAX_PAGE)
    while len(results) < len(queries):
        asked = list(queries[len(results) : len(results) + MAX_PAGE])
        answer = await sequencer.list_offsets(OffsetsRequest(asked))
        assert answer.results, "an answer has one result at least"
        results += answer.results
        await turns.did(len(asked))
    stopped = [index for index, result in enumerate(results) if result.next_offset >= 0]
    while stopped:
        rest = [
            msgspec.structs.replace(queries[index], from_offset=results[index].next_offset)
            for index in stopped
        ]
        answer = await sequencer.list_offsets(OffsetsRequest(rest))
        assert answer.results, "an answer has one result at least"
        for index, result in zip(stopped, answer.results, strict=False):
            results[index] = _better(results[index], result)
        stopped = [index for index in stopped if results[index].next_offset >= 0]
    return results


def _better(before: OffsetResult, following: OffsetResult) -> OffsetResult:
    """Return the result of a look-up after one more part of the log: the first run with the largest timestamp, or none
    if that run may not be returned."""
    if before.run is None or _largest(following) > before.run.max_timestamp:
        return following
    return msgspec.structs.replace(following, run=before.run)


def _largest(result: OffsetResult) -> int:
    return result.timestamp if result.run is None else result.run.max_timestamp


async def whole_security(sequencer: Sequencer, known_version: int = -1) -> Security | None:
    """Return all users and ACLs, or with a `known_version` maybe only the changes since it; None if the caller's are
    current, or if they keep changing."""
    request = SecurityRequest(known_version, takes_pages=True, takes_changes=known_version >= 0)
    found = await _of_one_version(pages(sequencer.security, request))
    if found and found[0].deleted is not None:
        return found[0]
    users = [user for page in found for user in page.users or ()]
    acls = [acl for page in found for acl in page.acls or ()]
    return Security(found[0].version, users, acls) if found and found[0].users is not None else None


async def whole_client_configs(sequencer: Sequencer, known_version: int = -1) -> ClientConfigs | None:
    """Return all client configs; None if the caller's are current, or if they keep changing."""
    request = ClientConfigsRequest(known_version, takes_pages=True)
    found = await _of_one_version(pages(sequencer.client_configs, request))
    configs = [config for page in found for config in page.configs or ()]
    return ClientConfigs(found[0].version, configs) if found and found[0].configs is not None else None


async def _of_one_version(listing: AsyncIterator[V]) -> list[V]:
    """Return the pages of a listing, all of one version; a listing starts again when its version changes. Return none
    if it changes each time."""
    found: list[V] = []
    restarts = 0
    async for page in listing:
        if found and page.version != found[0].version:
            found.clear()
            restarts += 1
            if restarts > MAX_RESTARTS:
                return []
        found.append(page)
    return found
