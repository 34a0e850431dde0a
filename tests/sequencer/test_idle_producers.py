"""Idle producers are in the database alone: what is looked up, when, and that nothing is decided without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, cast
from uuid import UUID

import pytest

from sequencer.api.commits import BatchError
from sequencer.api.producers import ProducerQuery
from sequencer.api.topics import DeleteTopic
from sequencer.api.values import Empty
from sequencer.engine import expiry
from sequencer.engine.follower import Follower
from sequencer.rules.time_to_live import forget, producer_lifetime
from sequencer.store import recent_rows
from sequencer.store.draft import Draft
from sequencer.store.memory import MemoryRowStore
from sequencer.store.recent_rows import RecentRows
from sequencer.store.rows import ObjectRow, ProducerKey, ProducerRow, Row, key_of
from sequencer.store.state import HotState, replace_row
from tests.support import sequencer_bench
from tests.support.clocks import ManualClock
from tests.support.committer_bench import CommitterBench, on_committer
from tests.support.sequencer_bench import batch, info

R = TypeVar("R", bound=Row)
DUPLICATE, NONE = BatchError.DUPLICATE, BatchError.NONE
IN_MEMORY = 2
SETTINGS = sequencer_bench.SETTINGS.changed(producer_expiry_ms=60_000)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(recent_rows.MOST, ProducerRow, IN_MEMORY)
    return iter([None])


class CountedStore(MemoryRowStore):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.looked_up: list[list[int]] = []
        self.pages = 0
        self.meeting: asyncio.Barrier | None = None

    async def _meet(self) -> None:
        if self.meeting is not None:
            await self.meeting.wait()

    async def now_ms(self) -> int:
        await self._meet()
        return await super().now_ms()

    async def object_rows(self, object_ids: Sequence[UUID]) -> list[ObjectRow]:
        await self._meet()
        return await super().object_rows(object_ids)

    async def rows_under(self, kind: type[R], keys: Sequence[tuple[object, ...]]) -> list[R]:
        await self._meet()
        self.looked_up.append([cast("ProducerKey", key)[2] for key in keys])
        return await super().rows_under(kind, keys)

    async def rows_after(self, kind: type[R], key: tuple[object, ...] | None, limit: int) -> list[R]:
        self.pages += 1
        return await super().rows_after(kind, key, limit)


class World(CommitterBench[CountedStore]):
    settings = SETTINGS

    async def write(self, producer: int, sequence: int) -> tuple[BatchError, int]:
        """A batch of one record."""
        (outcome,) = await self.commit(batch(1, producer=producer, sequence=sequence))
        return outcome

    async def producers(self) -> list[int]:
        return [
            row.producer_id for row in await MemoryRowStore.rows_after(self.rows, ProducerRow, None, 1_000)
        ]

    async def return_later(self) -> None:
        """Register again: all leases have run out."""
        self.agent = await self.sequencer.register_agent(info("a"))
        self.session = await self.open()


@asynccontextmanager
async def started_world() -> AsyncIterator[World]:
    async with on_committer(World, CountedStore) as world:
        yield world


async def test_an_active_producer_is_looked_up_once_and_an_idle_one_when_it_writes_again() -> None:
    async with started_world() as world:
        for sequence in range(5):
            assert await world.write(7, sequence) == (NONE, sequence)
        assert world.rows.looked_up == [[7]], "it was not known to be new"
        await world.write(8, 0)
        await world.write(9, 0)
        world.rows.looked_up.clear()
        assert await world.write(7, 4) == (DUPLICATE, 4), "seven is idle: two others wrote after it"
        assert await world.write(7, 5) == (NONE, 7)
        assert await world.write(7, 6) == (NONE, 8)
        assert world.rows.looked_up == [[7], [7]], (
            "a duplicate changes nothing, so it brings nothing into memory"
        )
        assert len(world.committer._view.state.recent[ProducerRow]) == IN_MEMORY


async def test_one_statement_looks_up_all_producers_of_a_group() -> None:
    async with started_world() as world:
        batches = [batch(1, producer=producer, sequence=0) for producer in range(20)]
        assert [error for error, _ in await world.commit(*batches)] == [NONE] * 20
        assert world.rows.looked_up == [list(range(20))]
        assert (await world.sequencer.statistics(Empty())).producers == 20
        repeated = await world.commit(*batches)
        assert repeated == [(DUPLICATE, offset) for offset in range(20)]


async def test_all_rows_that_a_group_needs_are_read_at_once() -> None:
    async with started_world() as world:
        earlier = world.stored(world.session)
        world.rows.meeting = asyncio.Barrier(3)  # whoever comes alone waits for ever
        assert await world.commit(batch(1, producer=7, sequence=0), stored=earlier) == [(NONE, 0)]
        world.rows.meeting = None


async def test_batches_of_no_producer_look_nothing_up() -> None:
    async with started_world() as world:
        await world.commit(batch(3), batch(2))
        assert world.rows.looked_up == []


async def test_a_follower_that_takes_over_knows_what_each_producer_wrote_last() -> None:
    async with started_world() as world:
        for producer in (1, 2, 3, 4):
            await world.write(producer, 0)
        follower = Follower(world.rows, world.opened.clock, pause_s=0.2)
        await follower.load()
        assert follower.state is not None and len(follower.state.recent[ProducerRow]) == 0
        assert await world.write(4, 1) == (NONE, 4)
        await follower.catch_up()
        assert [key_of(row)[2] for row in follower.state.recent[ProducerRow]] == [4]
        assert await world.write(4, 2) == (NONE, 5)
        pages = world.rows.pages
        await world.next_committer(follower)
        assert world.rows.pages == pages, "taking over reads no producer"
        assert await world.write(4, 2) == (DUPLICATE, 5)
        assert await world.write(4, 3) == (NONE, 6)
        assert await world.write(1, 0) == (DUPLICATE, 0)


def test_a_producer_that_was_not_named_beforehand_is_no_new_one() -> None:
    draft = Draft(HotState({}), 0)
    with pytest.raises(AssertionError, match="not looked up"):
        draft.get(ProducerRow, UUID(int=1), 0, 7)


def test_the_producers_on_a_partition_are_what_each_of_them_is() -> None:
    topic_id, again = UUID(int=1), UUID(int=1)
    rows = [ProducerRow(topic_id, 3, number, 0, [], 0, 0) for number in range(5)]
    state = HotState({})
    state.recent[ProducerRow].apply(
        {row.key: row for row in (*rows[:3], ProducerRow(topic_id, 4, 4, 9, [], 0, 0))}
    )
    draft = Draft(state, 0)
    draft.looked_up[ProducerRow].update({rows[3].key: rows[3], rows[4].key: None})
    draft.put(replace_row(rows[0], producer_epoch=1))
    draft.put(rows[4])
    savepoint = draft.savepoint()
    savepoint.put(replace_row(rows[0], producer_epoch=2))
    savepoint.delete(ProducerRow, *rows[1].key)
    row_of = savepoint.producers_on(again, 3)
    found = {number: row_of(number) for number in range(5)}
    assert found == {number: savepoint.get(ProducerRow, again, 3, number) for number in range(5)}
    assert {number: row and row.producer_epoch for number, row in found.items()} == {
        0: 2,
        1: None,
        2: 0,
        3: 0,
        4: 0,
    }
    with pytest.raises(AssertionError, match="not looked up"):
        row_of(5)


def test_a_row_that_is_dropped_from_memory_is_the_one_that_was_written_longest_ago() -> None:
    recent = RecentRows(ProducerRow)
    rows = {number: ProducerRow(UUID(int=1), 0, number, 0, [], 0, 0) for number in range(4)}
    for number in (0, 1, 0, 2):
        recent.apply({rows[number].key: rows[number]})
    assert [key_of(row)[2] for row in recent] == [0, 2]
    recent.apply({rows[2].key: None})
    assert rows[2].key not in recent and recent.get(rows[0].key) is rows[0]


async def test_producers_are_forgotten_page_by_page_and_one_that_wrote_meanwhile_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "PRODUCERS_OF_A_PAGE", 2)
    monkeypatch.setattr(expiry, "PRODUCER_PAGES", 2)

    async with started_world() as world:
        for producer in range(10):
            await world.write(producer, 0)
        world.opened.clock.advance(SETTINGS.producer_expiry_ms / 1000 + 1)
        await world.return_later()
        assert await world.write(3, 1) == (NONE, 10)
        left, passes = 10, 0
        while left > 1 and passes < 5:
            pages = world.rows.pages
            done = await world.committer.apply_retention(Empty())
            assert world.rows.pages - pages <= 2, "a pass looks at so many"
            left -= done.producers_expired
            passes += 1
        assert await world.producers() == [3] and passes == 3
        assert (await world.sequencer.statistics(Empty())).producers == 1
        assert await world.write(5, 0) == (NONE, 11), "it is new again"


def test_one_that_writes_between_the_look_and_the_decision_is_not_forgotten() -> None:
    kept = producer_lifetime(SETTINGS)
    row = ProducerRow(UUID(int=1), 0, 7, 0, [], 0, updated_ms=kept.ms)
    draft = Draft(HotState({}), now_ms=kept.ms + 10)
    draft.looked_up[ProducerRow][row.key] = row
    assert forget(draft, ProducerRow, [row.key], kept) == 0 and not draft.changes


async def test_the_producers_of_a_deleted_topic_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.rules.deleted_topics.LOOKED_UP_AT_ONCE", 3)

    async with started_world() as world:
        for producer in range(8):
            await world.write(producer, 0)
        await world.committer.delete_topic(DeleteTopic(world.topic.topic_id))
        await world.committer.apply_retention(Empty())
        await world.committer.apply_retention(Empty())
        assert await world.producers() == []
        assert (await world.sequencer.statistics(Empty())).producers == 0


async def test_all_producers_of_a_partition_are_described_idle_or_not() -> None:
    async with started_world() as world:
        for producer in (3, 1, 2):
            await world.write(producer, 0)
        await world.commit(batch(1, producer=9, sequence=0), partition=1)
        answer = await world.sequencer.describe_producers(ProducerQuery(world.topic.topic_id, 0))
        assert [each.producer_id for each in answer.producers] == [1, 2, 3] and answer.next == -1
        after = await world.sequencer.describe_producers(ProducerQuery(world.topic.topic_id, 0, 1))
        assert [each.producer_id for each in after.producers] == [2, 3]
