"""Expiry: ends expired leases, sessions and transactions, and removes what retention no longer keeps.

Each step is one transaction of bounded size, which the committer decides like any request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import UUID

from sequencer.api.agents import AgentRef
from sequencer.api.errors import RequestFailed
from sequencer.api.retention import RetentionSummary
from sequencer.engine.group_commit import GroupCommit
from sequencer.engine.requests import Context
from sequencer.reading.maintenance import Maintenance
from sequencer.reading.positions import pages_of, small_together
from sequencer.rules import deleted_topics, groups, leases, repeats, retention, time_to_live, transactions
from sequencer.rules.positions import forget_positions, over_ms
from sequencer.store.draft import Draft
from sequencer.store.required_rows import rows_needed
from sequencer.store.rows import (
    AgentRow,
    GroupOffsetRow,
    GroupRow,
    PositionKey,
    ProducerKey,
    ProducerRow,
    Row,
    SessionRow,
    TransactionRow,
)
from sequencer.store.state import HotState, Key
from tailrace.turns import Steps, Turns, in_parts

T = TypeVar("T")

GROUPS_PER_STEP = 500
"""Consumer groups that one expiry transaction examines."""
ROWS_IN_A_TURN = 5_000
ABORTED_AT_ONCE = 256
"""Transactions that have timed out and are aborted together."""
SURPLUS_STEPS = 100
"""Decisions of one call that delete answers beyond their limit."""
PRODUCER_PAGES = 20
PRODUCERS_OF_A_PAGE = 1_000
"""One call examines this many pages, each with this many producers."""
POSITIONS_AT_ONCE = 1_000
"""Positions that one query reads."""
MOST_POSITIONS = 20_000
"""After this many positions a call examines no further group."""
MOST_LOOKED_AT = 1_000_000
"""Limit of the rows of one kind that a call examines."""


@dataclass(slots=True)
class _Removed:
    """The counts of `apply_retention` over all its steps, and the errors of what could not be removed."""

    runs: int = 0
    objects: int = 0
    partitions: int = 0
    offsets: int = 0
    producers: int = 0
    sessions: int = 0
    agents: int = 0
    failures: list[RequestFailed] = field(default_factory=list)


class Expiry:
    """See the module. `ensure_ready` raises SequencerUnavailable if the state can't be used."""

    def __init__(
        self, context: Context, group_commit: GroupCommit, ensure_ready: Callable[[], Awaitable[None]]
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._group_commit = group_commit
        self._ensure_ready = ensure_ready

    async def end_expired(self) -> None:
        """End everything that has expired by now. Leases and each transaction are decided separately, so that one that
        can't be ended keeps no other from ending."""
        await self._ensure_ready()  # even without requests, to notice at once that the database was replaced
        now_ms = await self._context.store.now_ms()
        due = await self._aborts(now_ms)
        if self._has_expired(now_ms):
            due.append(self._group_commit.decide("expire", self._expire_leases))
        await asyncio.gather(*due)

    async def _aborts(self, now_ms: int) -> list[Awaitable[object]]:
        """Return one decision for each transaction that has timed out, of a limited number of them."""
        state, turns = self._context.state, Turns(ROWS_IN_A_TURN)
        names: list[str] = []
        for name in list(state.open_transactions):
            if transactions.has_timed_out(state.get(TransactionRow, name), now_ms):
                names.append(name)
                if len(names) == ABORTED_AT_ONCE:
                    break
            await turns.did()
        return [
            self._group_commit.decide("expire", partial(transactions.abort_timed_out, names=[name]))
            for name in names
        ]

    def _has_expired(self, now_ms: int) -> bool:
        state = self._context.state
        self._context.look_for_silent()
        return (
            repeats.are_too_large(state, self._settings)
            or any(
                0 < row.expires_ms <= now_ms and self._context.has_run_out(AgentRef(row.broker_id, row.epoch))
                for row in state.all(AgentRow)
            )
            or any(row.expires_ms <= now_ms for row in state.rows(SessionRow, state.open_sessions))
        )

    def _expire_leases(self, draft: Draft) -> Steps[tuple[int, int]]:
        """End the expired leases of agents and sessions; return how many of each."""
        if repeats.are_too_large(draft.durable, self._settings):
            yield from repeats.forget_surplus(draft, self._settings)
        self._context.look_for_silent()
        silent = leases.expire_agents(draft, self._context.has_run_out)
        self._context.log_silent(silent)
        return len(silent), leases.expire_sessions(draft)

    async def apply_retention(self) -> RetentionSummary:
        """End what has expired, and remove data that is too old or too much.

        What can't be removed keeps nothing else from being removed; the first error is raised at the end.
        """
        removed = _Removed()
        await self._maintenance.fill()
        steps: list[Callable[[_Removed], Awaitable[None]]] = [
            self._forget_leases,
            self._abort_transactions,
            self._expire_groups,
            *(partial(self._forget_unused, kind) for kind in self._maintenance.lifetimes),
            self._forget_producers,
            self._remove_expired_runs,
            self._remove_deleted_topics,
        ]
        for step in steps:
            try:
                await step(removed)
            except RequestFailed as error:
                removed.failures.append(error)
        if removed.failures:
            raise removed.failures[0]
        return RetentionSummary(
            runs_removed=removed.runs,
            objects_retired=removed.objects,
            partitions_moved=removed.partitions,
            offsets_expired=removed.offsets,
            producers_expired=removed.producers,
            sessions_closed=removed.sessions,
            agents_expired=removed.agents,
        )

    async def _in_parts(
        self,
        removed: _Removed,
        items: Sequence[T],
        remove: Callable[[Sequence[T]], Awaitable[int]],
        *,
        at_once: int | None = None,
        failed: Callable[[T], object] = lambda item: None,
    ) -> int:
        """Remove some items at a time; return the sum of what `remove` returns. If it is refused, remove the halves of
        these items one after the other, until the refused part is a single item: it is skipped, and `failed` is called
        with it."""
        total, parts = 0, deque(in_parts(items, at_once or self._settings.removal_step))
        while parts:
            part = parts.popleft()
            try:
                total += await remove(part)
            except RequestFailed as error:
                middle = len(part) // 2
                if middle:
                    parts.extendleft((part[middle:], part[:middle]))
                else:
                    removed.failures.append(error)
                    failed(part[0])
        return total

    async def _forget_leases(self, removed: _Removed) -> None:
        """End expired leases, and forget the oldest agents and answers."""

        def forget(draft: Draft) -> Steps[None]:
            agents, sessions = yield from self._expire_leases(draft)
            removed.agents += agents
            removed.sessions += sessions
            leases.forget_agents(draft)
            yield from repeats.forget_surplus(draft, self._settings)

        await self._group_commit.decide("apply_retention", forget)
        for _ in range(SURPLUS_STEPS):
            if not repeats.has_surplus(self._context.state, self._settings):
                break
            forget_more = partial(repeats.forget_surplus, settings=self._settings)
            await self._group_commit.decide("apply_retention", forget_more)

    async def _abort_transactions(self, removed: _Removed) -> None:
        await asyncio.gather(*await self._aborts(await self._context.store.now_ms()))

    async def _remove_expired_runs(self, removed: _Removed) -> None:
        """Move the log starts that are due, and remove the runs below."""
        while True:
            plan = await retention.plan_retention(
                self._context.state, self._context.reads, self._settings, self._maintenance.partitions
            )
            runs = await self._remove_runs(plan, removed)
            moved = await self._move_log_starts(plan.due, removed)
            removed.partitions += moved
            if not runs and not moved and not plan.has_more:
                break

    @property
    def _maintenance(self) -> Maintenance:
        """The maintenance of the state that is shown; a reload replaces it."""
        return self._context.view.maintenance

    async def _remove_deleted_topics(self, removed: _Removed) -> None:
        """Remove the rows of deleted topics, some at a time; remove a partition's row when it has no runs left. The
        partitions of a topic of which a row can't be removed stay."""
        maintenance, state = self._maintenance, self._context.state
        if maintenance.deleted_topics is None:
            await self._find_deleted_topics(maintenance)
        noted = maintenance.deleted_topics
        if not noted:
            return
        gone = {**noted}
        await self._remove_rows(await deleted_topics.rows_of(state, gone), gone, removed)
        for topic_id in list(gone):
            for looked_up in (deleted_topics.producers_of, deleted_topics.positions_of):
                while rows := await looked_up(self._context.reads, topic_id):
                    if not await self._remove_rows(rows, gone, removed):
                        break
        emptied = await deleted_topics.emptied_partitions(self._context.state, self._context.reads, gone)
        await self._remove_rows(emptied, gone, removed)
        for topic_id, count in gone.items():
            if not await deleted_topics.has_partitions(self._context.state, topic_id, count):
                noted.pop(topic_id, None)

    async def _find_deleted_topics(self, maintenance: Maintenance) -> None:
        """Look for deleted topics among all partitions, once per term. Later ones are noted when they are deleted."""
        maintenance.deleted_topics = {}
        try:
            found = await deleted_topics.deleted_topics(self._context.state)
        except asyncio.CancelledError:
            maintenance.deleted_topics = None
            raise
        # None again: meanwhile one was deleted of which the partitions are not known. The next call looks again.
        if maintenance.deleted_topics is not None:
            maintenance.deleted_topics.update(found)

    async def _remove_rows(
        self, rows: Sequence[deleted_topics.RowKey], gone: dict[UUID, int], removed: _Removed
    ) -> int:
        """Remove these rows, some at a time; return how many. Delete from `gone` the topics of which that fails."""

        async def remove(some: Sequence[deleted_topics.RowKey]) -> int:
            decide = partial(deleted_topics.remove, rows=some)
            await self._group_commit.decide("apply_retention", decide, needs=deleted_topics.needs(some))
            return len(some)

        return await self._in_parts(
            removed, rows, remove, failed=lambda row: gone.pop(deleted_topics.topic_of(row), None)
        )

    async def _remove_runs(self, plan: retention.RetentionPlan, removed: _Removed) -> int:
        """Remove the runs below the log start of the planned partitions, some at a time. Return how many. A partition
        of which that fails is put off."""

        async def remove(partitions: Sequence[tuple[UUID, int]]) -> int:
            before, left = removed.runs, partitions
            while left:
                step = await self._group_commit.decide_alone(
                    "apply_retention",
                    partial(
                        retention.remove_runs,
                        store=self._context.store,
                        partitions=left,
                        settings=self._settings,
                    ),
                )
                removed.runs += step.runs
                removed.objects += step.objects
                left = step.left
            return removed.runs - before

        return await self._in_parts(
            removed,
            plan.removable,
            remove,
            failed=lambda key: self._maintenance.partitions.put_off(key, plan.now_ms),
        )

    async def _move_log_starts(self, due: Sequence[retention.DueLogStart], removed: _Removed) -> int:
        """Move the planned log starts, some at a time. Return how many moved."""

        async def move(some: Sequence[retention.DueLogStart]) -> int:
            decide = partial(retention.move_log_starts, planned=some, settings=self._settings)
            return await self._group_commit.decide("apply_retention", decide)

        return await self._in_parts(removed, due, move)

    async def _forget_producers(self, removed: _Removed) -> None:
        """Examine the next producers in key order, and forget those that are no longer kept. Each call reads the same
        number from the database, so producers that expired (after a week) are found within some hours."""
        producers, store = time_to_live.producer_lifetime(self._settings), self._context.reads

        async def forget(keys: Sequence[ProducerKey]) -> int:
            decide = partial(time_to_live.forget, kind=ProducerRow, keys=keys, lifetime=producers)
            return await self._group_commit.decide(
                "apply_retention", decide, needs=rows_needed(ProducerRow, keys)
            )

        now_ms = await self._context.store.now_ms()
        for _ in range(PRODUCER_PAGES):
            page = await store.rows_after(ProducerRow, self._maintenance.last_producer, PRODUCERS_OF_A_PAGE)
            over = [row.key for row in page if producers.until_ms(row) <= now_ms]
            removed.producers += await self._in_parts(removed, over, forget)
            self._maintenance.last_producer = page[-1].key if len(page) == PRODUCERS_OF_A_PAGE else None
            if self._maintenance.last_producer is None:
                break

    async def _forget_unused(self, kind: type[Row], removed: _Removed) -> None:
        """Forget rows that are no longer kept, some at a time."""

        async def forget(keys: Sequence[Key]) -> int:
            decide = partial(time_to_live.forget, kind=kind, keys=keys, lifetime=maintenance.lifetimes[kind])
            return await self._group_commit.decide("apply_retention", decide)

        step, maintenance = self._settings.removal_step, self._maintenance
        now_ms = await self._context.store.now_ms()
        turns = Turns(ROWS_IN_A_TURN)
        looked = 0
        while looked < MOST_LOOKED_AT:
            keys, taken = maintenance.take_unused(kind, now_ms, step)
            looked += taken
            if not taken:
                break
            if keys:
                try:
                    await self._in_parts(removed, keys, forget)
                finally:
                    maintenance.put_back_unused(kind, keys, now_ms)
            await turns.did(taken)

    async def _expire_groups(self, removed: _Removed) -> None:
        """Expire groups, their positions and share partitions, some at a time."""
        state, now_ms = self._context.state, await self._context.store.now_ms()
        due = await self._maintenance.groups.take(state, now_ms)
        with_positions = [row async for row in _known(state, due) if row.positions and not row.members]
        removed.offsets += await self._forget_positions(with_positions, removed)
        left = [
            row.group_id
            async for row in _known(state, due)
            if row.members or not row.positions or row.group_id in state.shares_of
        ]
        removed.offsets += await self._in_parts(removed, left, self._expire_some, at_once=GROUPS_PER_STEP)

    async def _expire_some(self, group_ids: Sequence[str]) -> int:
        """Expire these groups; return how many share partitions were deleted."""
        deleted = 0
        while group_ids:
            expire = partial(
                groups.expire_groups,
                group_ids=group_ids,
                settings=self._settings,
                max_partitions=self._settings.removal_step,
            )
            expired = await self._group_commit.decide("apply_retention", expire)
            deleted += expired.partitions
            group_ids = group_ids[expired.groups :]
        return deleted

    async def _forget_positions(self, rows: list[GroupRow], removed: _Removed) -> int:
        """Forget the expired positions of groups without members; return how many. One call examines some of the
        groups, the next call others: an examined group is not due again until one of its positions may have expired."""
        watch, turns = self._maintenance.groups, Turns(ROWS_IN_A_TURN)
        forgotten = looked_at = 0
        for some in small_together(rows, POSITIONS_AT_ONCE):
            if looked_at >= MOST_POSITIONS:
                break
            now_ms = await self._context.store.now_ms()
            until: dict[str, int] = {}
            by_id = {row.group_id: row for row in some}
            async for page in pages_of(self._context.reads, some, POSITIONS_AT_ONCE):
                looked_at += len(page)
                over: list[PositionKey] = []
                async for position in turns.over(page):
                    at_ms = over_ms(by_id[position.group_id], position, self._settings)
                    if at_ms <= now_ms:
                        over.append(position.key)
                    else:
                        until[position.group_id] = min(at_ms, until.get(position.group_id, at_ms))
                gone = await self._in_parts(removed, over, self._forget_over)
                if gone < len(over):  # something changed meanwhile: the next call examines it again
                    until.update((key[0], now_ms) for key in over)
                forgotten += gone
            for row in some:
                watch.positions_last(row.group_id, until.get(row.group_id, now_ms))
        return forgotten

    async def _forget_over(self, keys: Sequence[PositionKey]) -> int:
        """Forget those of these positions that are expired when this is decided; return how many."""
        forget = partial(forget_positions, keys=keys, settings=self._settings)
        return await self._group_commit.decide(
            "apply_retention", forget, needs=rows_needed(GroupOffsetRow, keys)
        )


async def _known(state: HotState, group_ids: Sequence[str]) -> AsyncIterator[GroupRow]:
    """Yield the rows of those groups that exist."""
    async for group_id in Turns(ROWS_IN_A_TURN).over(group_ids):
        row = state.get(GroupRow, group_id)
        if row is not None:
            yield row
