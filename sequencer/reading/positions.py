"""Committed positions of groups, and lags. They are read from the database, because a server has only some in memory.

Invariants:
- an answer has each position as it was in the database at some moment after the request arrived, so it includes
  everything that the caller has seen;
- whether an open transaction will change a position is read before the position itself. So a position that is not
  reported as pending is never older than the end of a transaction that was open when the request arrived;
- partitions are read after the positions, when everything that the database had then is shown. So a position of a
  deleted topic is not reported as missing, and no position is beyond the end of the log that is returned with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeAlias
from uuid import UUID

from sequencer.api.groups import FetchOffsets, Lag, Lags, LagsRequest, OffsetPosition, OffsetPositions
from sequencer.bounds import MAX_PAGE, PageBudget, text_bytes
from sequencer.rules.groups import groups_asked
from sequencer.store.row_store import RowStore
from sequencer.store.rows import GroupOffsetRow, GroupRow, PartitionRow, PositionKey, TopicRow
from sequencer.store.state import HotState
from tailrace.grouping import in_groups
from tailrace.turns import Turns

MAX_LAGS = 2_000
"""Positions that one page of lags reads."""
MAX_GROUPS = 10_000
"""Groups that one page of lags examines."""
LEAST_AT_ONCE = 100
"""Least number of positions that one statement reads, because some may belong to deleted topics."""
ANSWERED_IN_A_TURN = 2_000
Partition: TypeAlias = tuple[UUID, int]
"""A topic's id and the partition's number."""
_LAST_PARTITION: Partition = (UUID(int=(1 << 128) - 1), (1 << 31) - 1)


class Positions:
    """Answers from the store and from the state that `current` returns (another one after a reload).

    `settle` returns when `current` shows everything that was in the store when it was called.
    """

    def __init__(
        self, store: RowStore, current: Callable[[], HotState], settle: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._current = current
        self._settle = settle

    async def fetch(self, request: FetchOffsets) -> OffsetPositions:
        """Return a group's positions, the requested ones or all; as many as fit in an answer."""
        if request.partitions is None:
            return await self._all(request)
        return await self._named(request.group_id, request.partitions[:MAX_PAGE])

    async def _named(self, group_id: str, partitions: Sequence[Partition]) -> OffsetPositions:
        state, turns = self._current(), Turns(ANSWERED_IN_A_TURN)
        keys: list[PositionKey] = []
        pending: set[Partition] = set()
        for partition in partitions:
            key = (group_id, *partition)
            if state.live_partition(*partition) is not None:
                keys.append(key)
                if key in state.pending_at:
                    pending.add(partition)
            await turns.did()
        rows = await self._looked_up(state, group_id, keys)
        rows_of, known = {row.key[1:]: row for row in rows}, {key[1:] for key in keys}
        budget, positions = PageBudget(MAX_PAGE), list[OffsetPosition]()
        for partition in partitions:
            is_live = partition in known and self._current().live_partition(*partition) is not None
            position = _position(
                partition, rows_of.get(partition), has_pending=partition in pending, is_unknown=not is_live
            )
            if not budget.takes(64 + text_bytes(position.metadata)):
                break
            positions.append(position)
            await turns.did()
        return OffsetPositions(positions)

    async def _looked_up(
        self, state: HotState, group_id: str, keys: Sequence[PositionKey]
    ) -> list[GroupOffsetRow]:
        group = state.get(GroupRow, group_id)
        if group is None or not group.positions:
            return []
        rows = await self._store.rows_under(GroupOffsetRow, keys)
        await self._settle()
        return rows

    async def _all(self, request: FetchOffsets) -> OffsetPositions:
        state, limit = self._current(), max(1, min(request.limit, MAX_PAGE))
        group = state.get(GroupRow, request.group_id)
        if group is None or not group.positions:
            return OffsetPositions([])
        budget, positions = PageBudget(limit), list[OffsetPosition]()
        last, at_once = request.after, max(limit, LEAST_AT_ONCE)
        while True:
            has_pending = request.group_id in self._current().pending_of
            page = await self._store.positions_of(request.group_id, last, at_once)
            rows, pending = await self._read_again(page) if has_pending else (page, {})
            await self._settle()
            async for row in Turns(ANSWERED_IN_A_TURN).over(rows):
                partition = row.key[1:]
                if self._current().live_partition(*partition) is not None:
                    if not budget.takes(64 + text_bytes(row.metadata)):
                        return OffsetPositions(positions, last)
                    positions.append(_position(partition, row, has_pending=row.key in pending))
                last = partition
            if len(page) < at_once:
                return OffsetPositions(positions)
            last = page[-1].key[1:]
            if positions:
                return OffsetPositions(positions, last)

    async def _read_again(
        self, page: Sequence[GroupOffsetRow]
    ) -> tuple[list[GroupOffsetRow], dict[PositionKey, None]]:
        """Read the rows of a page again, after noting which of them open transactions will change; return the rows and
        the keys of these."""
        keys, pending_at = [row.key for row in page], self._current().pending_at
        pending = dict.fromkeys(key for key in keys if key in pending_at)
        found = {row.key: row for row in await self._store.rows_under(GroupOffsetRow, keys)}
        return [found[key] for key in keys if key in found], pending

    async def lags(self, request: LagsRequest) -> Lags:
        """Return a page of committed positions with the ends of their partitions, for some groups."""
        groups, last_looked = _together(_following(self._current(), request))
        following = None if last_looked is None else (last_looked, *_LAST_PARTITION)
        if not groups:
            return Lags([], following)
        rows, following = await self._page_of(groups, request.after, following)
        await self._settle()
        budget, entries, last = PageBudget(MAX_LAGS), list[Lag](), request.after
        async for row in Turns(ANSWERED_IN_A_TURN).over(rows):
            lag = _lag(self._current(), row)
            if lag is not None:
                if not budget.takes(40 + text_bytes(lag.group_id, lag.topic)):
                    return Lags(entries, last)
                entries.append(lag)
            last = row.key
        return Lags(entries, following)

    async def _page_of(
        self, groups: Sequence[GroupRow], after: PositionKey | None, following: PositionKey | None
    ) -> tuple[list[GroupOffsetRow], PositionKey | None]:
        """Return at most MAX_LAGS of their positions in order, after this one; and the position after which the next
        page begins (`following` if these are all)."""
        if len(groups) > 1:
            group_ids = [group.group_id for group in groups]
            rows = await self._store.positions_of_groups(group_ids, MAX_LAGS + 1)
            if len(rows) <= MAX_LAGS:
                later = (row for row in rows if after is None or row.key > after)
                return sorted(later, key=attrgetter("key")), following
            following = (group_ids[0], *_LAST_PARTITION)  # the groups have grown since they were counted
        group_id = groups[0].group_id
        within = after[1:] if after is not None and after[0] == group_id else None
        rows = await self._store.positions_of(group_id, within, MAX_LAGS)
        return rows, rows[-1].key if len(rows) == MAX_LAGS else following


async def pages_of(
    store: RowStore, groups: Iterable[GroupRow], at_once: int
) -> AsyncIterator[list[GroupOffsetRow]]:
    """Yield all positions of these groups, at most `at_once` per statement: those of several small groups together,
    those of a large group page by page."""
    for some in small_together(groups, at_once):
        if len(some) > 1:
            rows = await store.positions_of_groups([group.group_id for group in some], at_once + 1)
            if len(rows) <= at_once:
                yield rows
                continue
        for group in some:  # a single group, or groups that have grown since they were counted
            async for page in _pages_of_one(store, group.group_id, at_once):
                yield page


def small_together(groups: Iterable[GroupRow], at_once: int) -> Iterator[list[GroupRow]]:
    """Yield the groups that have positions: several with at most `at_once` positions in total, or a single one."""
    used = (group for group in groups if group.positions)
    return in_groups(used, lambda group: group.positions, at_once)


async def _pages_of_one(store: RowStore, group_id: str, at_once: int) -> AsyncIterator[list[GroupOffsetRow]]:
    last: Partition | None = None
    while page := await store.positions_of(group_id, last, at_once):
        yield page
        last = page[-1].key[1:]
        if len(page) < at_once:
            return


def _following(state: HotState, request: LagsRequest) -> Iterator[GroupRow]:
    """Return the requested groups, without the one that the previous page finished."""
    after = request.after
    done = after[0] if after is not None and after[1:] == _LAST_PARTITION else None
    return (group for group in groups_asked(state, request) if group.group_id != done)


def _together(groups: Iterable[GroupRow]) -> tuple[list[GroupRow], str | None]:
    """Return the first groups whose positions fit together into a page, or the first group alone; and the id of the
    last group that was examined, None if there are no more."""
    some: list[GroupRow] = []
    count, last = 0, None
    for looked, group in enumerate(groups):
        if looked == MAX_GROUPS or (some and count + group.positions > MAX_LAGS):
            return some, last
        if group.positions:
            some.append(group)
            count += group.positions
        last = group.group_id
    return some, None


def _position(
    partition: Partition, row: GroupOffsetRow | None, *, has_pending: bool = False, is_unknown: bool = False
) -> OffsetPosition:
    """Return a position as it is answered: -1 if it has no row or its partition is unknown."""
    if row is None or is_unknown:
        return OffsetPosition(
            *partition, -1, -1, "", commit_ms=-1, has_pending=has_pending, is_unknown=is_unknown
        )
    return OffsetPosition(
        *partition,
        row.offset,
        row.leader_epoch,
        row.metadata,
        commit_ms=row.commit_ms,
        has_pending=has_pending,
    )


def _lag(state: HotState, row: GroupOffsetRow) -> Lag | None:
    """Return a position with its partition's end; None if the topic is being deleted."""
    topic, partition = state.get(TopicRow, row.topic_id), state.get(PartitionRow, row.topic_id, row.partition)
    if topic is None or partition is None:
        return None
    return Lag(
        group_id=row.group_id,
        topic=topic.name,
        partition=row.partition,
        committed=row.offset,
        high_watermark=partition.end_offset,
    )
