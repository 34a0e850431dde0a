"""Positions of idle groups are in the database alone: what is looked up, and that nothing is decided without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from sequencer.api.errors import GroupNotEmpty, SequencerOverloaded, UnknownGroup
from sequencer.api.groups import (
    SHARE_GROUP,
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    GroupRef,
    GroupState,
    LagsRequest,
    OffsetPosition,
    SaveGroup,
)
from sequencer.api.producers import InitProducer
from sequencer.api.share_groups import AlterShareOffsets, ShareOffset
from sequencer.api.topics import CreateTopic, DeleteTopic, Topic
from sequencer.api.transactions import EndTransaction, TransactionRef
from sequencer.api.values import Empty
from sequencer.engine import expiry, group_commit, group_deletion, row_lookup
from sequencer.engine.follower import Follower
from sequencer.pages import lag_pages
from sequencer.reading import positions as reading
from sequencer.rules import groups
from sequencer.rules.groups import delete_group
from sequencer.rules.leases import new_group
from sequencer.rules.positions import delete_positions
from sequencer.store import recent_rows
from sequencer.store.draft import NOTED_IN_A_STEP, Draft
from sequencer.store.ordered import Names
from sequencer.store.rows import (
    HOT,
    LOOKED_UP,
    AgentRow,
    Changes,
    GroupOffsetRow,
    GroupRow,
    PendingOffsetRow,
    Row,
    ShareRow,
)
from sequencer.store.sql.postgres import CONNECTIONS
from sequencer.store.state import HotState, replace_row
from tailrace.turns import at_once
from tests.support import sequencer_bench
from tests.support.clocks import ManualClock
from tests.support.committer_bench import CommitterBench, on_committer
from tests.support.hooked_rows import HookedRowStore, counted_deletions
from tests.support.listings import all_positions
from tests.support.sequencer_bench import info, settle

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", bound=Row)
IN_MEMORY = 2
WEEK_MS = 7 * 24 * 3_600_000
SETTINGS = sequencer_bench.SETTINGS.changed(offsets_retention_ms=WEEK_MS)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(recent_rows.MOST, GroupOffsetRow, IN_MEMORY)
    return iter([None])


class CountedStore(HookedRowStore):
    """Counts what is read of positions."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.looked_up: list[list[str]] = []
        self.groups_read: list[str] = []
        self.written: list[int] = []
        """How many positions each write has."""
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """What happens once, before the next page of a group is read."""
        self.once_read: Callable[[], Awaitable[object]] | None = None
        """The same, after it is read and before it is returned."""

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        self.written.append(len(changes.by_kind.get(GroupOffsetRow, ())))
        await super().write(changes, committer_epoch)

    async def rows_under(self, kind: type[R], keys: Sequence[tuple[object, ...]]) -> list[R]:
        if kind is GroupOffsetRow:
            self.looked_up.append([str(key[0]) for key in keys])
        return await super().rows_under(kind, keys)

    async def positions_of(
        self, group_id: str, after: tuple[UUID, int] | None, limit: int
    ) -> list[GroupOffsetRow]:
        self.groups_read.append(group_id)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        page = await super().positions_of(group_id, after, limit)
        once_read, self.once_read = self.once_read, None
        if once_read is not None:
            await once_read()
        return page

    async def positions_of_groups(self, group_ids: Sequence[str], limit: int) -> list[GroupOffsetRow]:
        self.groups_read += group_ids
        return await super().positions_of_groups(group_ids, limit)


class World(CommitterBench[CountedStore]):
    settings = SETTINGS

    async def commit_position(self, group_id: str, offset: int, partition: int = 0, **more: int) -> None:
        position = OffsetPosition(self.topic.topic_id, partition, offset, 0, "")
        await self.sequencer.commit_offsets(CommitOffsets(group_id, -1, -1, -1, "", [position], **more))

    async def commit_wide(self, group_id: str, topic: Topic) -> None:
        """Commit a position in each partition of a topic."""
        places = [(topic.topic_id, partition) for partition in range(topic.partitions)]
        positions = [OffsetPosition(*place, 3, 0, "") for place in places]
        await self.sequencer.commit_offsets(CommitOffsets(group_id, -1, -1, -1, "", positions))

    async def join(self, group_id: str) -> None:
        """Save the group with a member."""
        state = GroupState(group_id, 1, "Stable", "consumer", ["member"], b"")
        await self.sequencer.save_group(SaveGroup(self.agent.broker_id, self.agent.epoch, state))

    async def position(self, group_id: str, partition: int = 0) -> int:
        asked = FetchOffsets(group_id, [(self.topic.topic_id, partition)])
        return (await self.sequencer.fetch_offsets(asked)).positions[0].offset

    async def kept(self) -> dict[str, int]:
        """How many positions there are of each group; the groups' rows must say so."""
        rows = await HookedRowStore.rows_after(self.rows, GroupOffsetRow, None, 1_000)
        counts: dict[str, int] = {}
        for row in rows:
            counts[row.group_id] = counts.get(row.group_id, 0) + 1
        groups = {row.group_id: row.positions for row in self.committer._view.state.all(GroupRow)}
        assert {group_id: count for group_id, count in groups.items() if count} == counts
        return counts

    async def send_pending(self, group_id: str, offset: int, *partitions: int) -> TransactionRef:
        granted = await self.sequencer.init_producer(InitProducer(-1, -1, "tx", 60_000))
        ref = TransactionRef("tx", granted.producer_id, granted.producer_epoch)
        positions = [
            OffsetPosition(self.topic.topic_id, partition, offset, 0, "") for partition in partitions
        ]
        await self.sequencer.commit_offsets(
            CommitOffsets(group_id, -1, -1, -1, "", positions, transaction=ref, joins=True)
        )
        return ref

    async def later(self, ms: int) -> None:
        self.opened.clock.advance(ms / 1000)
        await self.committer.apply_retention(Empty())


@asynccontextmanager
async def started_world() -> AsyncIterator[World]:
    async with on_committer(World, CountedStore) as world:
        yield world
        await world.kept()


# --- commits


async def test_a_position_is_looked_up_once_and_an_idle_one_when_it_is_committed_again() -> None:
    async with started_world() as world:
        for offset in range(5):
            await world.commit_position("g", offset)
        assert world.rows.looked_up == [["g"]], "it was not known to be new"
        await world.commit_position("h", 1)
        await world.commit_position("i", 1)
        world.rows.looked_up.clear()
        await world.commit_position("g", 7)
        await world.commit_position("g", 8)
        assert world.rows.looked_up == [["g"]], "two others were committed after it"
        assert len(world.committer._view.state.recent[GroupOffsetRow]) == IN_MEMORY
        assert await world.position("g") == 8 and await world.position("h") == 1


async def test_one_statement_looks_up_all_positions_of_a_group_of_requests() -> None:
    async with started_world() as world:
        names = [f"g{number:02}" for number in range(20)]
        await asyncio.gather(*(world.commit_position(name, 3) for name in names))
        assert world.rows.looked_up == [names]
        assert await world.kept() == dict.fromkeys(names, 1)


async def test_no_more_is_looked_up_than_is_decided_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "ROWS_OF_A_GROUP", 5)

    async with started_world() as world:
        topic = await world.sequencer.create_topic(CreateTopic("wide", 3, {}))
        positions = [OffsetPosition(topic.topic_id, partition, 7, 0, "") for partition in range(3)]
        names = [f"g{number}" for number in range(5)]
        commits = [CommitOffsets(name, -1, -1, -1, "", positions) for name in names]
        await asyncio.gather(*(world.sequencer.commit_offsets(commit) for commit in commits))
        assert world.rows.looked_up == [[name] * 3 for name in names]
        assert await world.kept() == dict.fromkeys(names, 3)


def test_looked_up_rows_are_noted_in_steps() -> None:
    keys = [("g", UUID(int=1), partition) for partition in range(1_000)]
    rows = [GroupOffsetRow(*key, 5, 0, "", 0, None) for key in keys]
    steps = list(Draft(HotState({}), 0).note_rows({GroupOffsetRow: keys}, [rows]))
    assert len(steps) == sum(steps) == 2 * 1_000 / NOTED_IN_A_STEP


async def test_a_group_that_is_deleted_after_large_commits_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commit, "ROWS_OF_A_GROUP", 2)

    async with started_world() as world:
        for partition in (0, 1):
            await world.commit_position("old", 3, partition)
        await asyncio.gather(
            *(world.commit_position(f"g{number}", 3) for number in range(4)),
            world.sequencer.delete_group(GroupRef("old")),
        )
        assert world.rows.groups_read == ["old"]
        assert await world.kept() == {f"g{number}": 1 for number in range(4)}


def test_the_look_ups_of_a_group_are_one_round_trip_to_postgresql() -> None:
    time_and_objects = 2
    assert CONNECTIONS["commits"] >= time_and_objects + len(LOOKED_UP)


async def test_an_earlier_turn_of_an_idle_position_replaces_no_later_one() -> None:
    async with started_world() as world:
        await world.commit_position("g", 9, turn=5)
        await world.commit_position("h", 1)
        await world.commit_position("i", 1)
        await world.commit_position("g", 4, turn=3)
        assert await world.position("g") == 9


async def test_the_end_of_a_transaction_looks_its_idle_positions_up() -> None:
    async with started_world() as world:
        await world.commit_position("g", 1)
        ref = await world.send_pending("g", 7, 0, 1)
        await world.commit_position("h", 1)
        await world.commit_position("i", 1)
        world.rows.looked_up.clear()
        await world.sequencer.end_transaction(EndTransaction(ref, True, False))
        assert world.rows.looked_up == [["g", "g"]]
        assert [await world.position("g", partition) for partition in (0, 1)] == [7, 7]
        assert (await world.kept())["g"] == 2


async def test_positions_committed_and_deleted_in_one_transaction_are_gone() -> None:
    async with started_world() as world:
        for partition in (0, 1):
            await world.commit_position("g", 3, partition)
        await world.commit_position("h", 1)
        await world.commit_position("i", 1)
        await asyncio.gather(
            world.sequencer.delete_offsets(DeleteOffsets("h", [(world.topic.topic_id, 0)])),
            world.commit_position("g", 4),
            world.sequencer.delete_group(GroupRef("g")),
            world.commit_position("g", 1, 1),
        )
        assert await world.kept() == {"g": 1, "i": 1}
        assert [await world.position("g", partition) for partition in (0, 1)] == [-1, 1]


def test_a_position_that_was_not_named_beforehand_is_no_new_one() -> None:
    draft = Draft(HotState({GroupRow: [GroupRow("g", -1, -1, 0, "", "", [], b"", 0)]}), 0)
    with pytest.raises(AssertionError, match="not looked up"):
        draft.get(GroupOffsetRow, "g", UUID(int=1), 0)
    with pytest.raises(AssertionError, match="not looked up"):
        at_once(delete_group(draft, GroupRef("g")))


# --- what is in memory


async def test_no_cold_start_or_follower_loads_positions_and_a_new_committer_knows_the_recent_ones() -> None:
    async with started_world() as world:
        for number in range(4):
            await world.commit_position(f"g{number}", 3)
        follower = Follower(world.rows, world.opened.clock, pause_s=0.2)
        await follower.load()
        assert follower.state is not None and not len(follower.state.recent[GroupOffsetRow])
        await world.commit_position("g3", 4)
        await follower.catch_up()
        await world.next_committer(follower)
        world.rows.looked_up.clear()
        await world.commit_position("g3", 5)
        assert world.rows.looked_up == []
        await world.next_committer()
        assert not len(world.committer._view.state.recent[GroupOffsetRow])
        assert [await world.position(f"g{number}") for number in range(4)] == [3, 3, 3, 5]


# --- questions


async def test_a_groups_positions_are_reported_in_pages_without_those_of_deleted_topics() -> None:
    async with started_world() as world:
        gone = await world.sequencer.create_topic(CreateTopic("gone", 2, {}))
        places = [(topic.topic_id, partition) for topic in (world.topic, gone) for partition in (0, 1)]
        positions = [OffsetPosition(*place, 3, 0, "") for place in places]
        await world.sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", positions))
        await world.sequencer.delete_topic(DeleteTopic(gone.topic_id))
        found = await all_positions(world.sequencer, "g")
        assert [(each.topic_id, each.partition) for each in found] == places[:2]
        one = await world.sequencer.fetch_offsets(FetchOffsets("g", None, limit=1))
        assert [each.partition for each in one.positions] == [0] and one.next == places[0]
        named = await world.sequencer.fetch_offsets(FetchOffsets("g", places))
        assert [each.is_unknown for each in named.positions] == [False, False, True, True]


async def test_a_position_is_returned_though_many_before_it_are_of_a_deleted_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "LEAST_AT_ONCE", 1)

    async with started_world() as world:
        topics = [await world.sequencer.create_topic(CreateTopic(f"t{number}", 2, {})) for number in range(3)]
        *gone, kept = sorted(topics, key=lambda topic: topic.topic_id)
        positions = [
            OffsetPosition(each.topic_id, partition, 3, 0, "") for each in topics for partition in (0, 1)
        ]
        await world.sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", positions))
        for topic in gone:
            await world.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        one = await world.sequencer.fetch_offsets(FetchOffsets("g", None, limit=1))
        assert [(each.topic_id, each.partition) for each in one.positions] == [(kept.topic_id, 0)]


async def test_a_group_without_positions_is_answered_without_the_database() -> None:
    async with started_world() as world:
        world.rows.looked_up.clear()
        assert await world.position("unknown") == -1
        assert not (await world.sequencer.fetch_offsets(FetchOffsets("unknown", None))).positions
        assert (world.rows.looked_up, world.rows.groups_read) == ([], [])


async def test_lags_come_in_pages_over_large_and_small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LAGS", 3)

    async with started_world() as world:
        topic = await world.sequencer.create_topic(CreateTopic("wide", 8, {}))
        sizes = {"a": 1, "b": 8, "c": 1, "d": 1, "e": 1, "f": 3, "g": 2}
        for name, count in sizes.items():
            positions = [
                OffsetPosition(topic.topic_id, partition, partition, 0, "") for partition in range(count)
            ]
            await world.sequencer.commit_offsets(CommitOffsets(name, -1, -1, -1, "", positions))
        found = [lag async for page in lag_pages(world.sequencer) for lag in page]
        expected = [(name, partition) for name, count in sizes.items() for partition in range(count)]
        assert [(lag.group_id, lag.partition) for lag in found] == expected
        page = await world.sequencer.lags(LagsRequest(None))
        assert len(page.lags) <= 3 and page.next is not None


async def test_a_look_at_lags_stops_after_so_many_groups_without_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "MAX_GROUPS", 4)

    async with started_world() as world:
        for number in range(9):
            await world.commit_position(f"g{number}", 3)
            if number < 8:
                asked = DeleteOffsets(f"g{number}", [(world.topic.topic_id, 0)])
                await world.sequencer.delete_offsets(asked)
        page = await world.sequencer.lags(LagsRequest(None))
        assert not page.lags and page.next is not None
        found = [lag.group_id async for lags in lag_pages(world.sequencer) for lag in lags]
        assert found == ["g8"]


async def test_groups_that_have_grown_since_they_were_counted_are_read_page_by_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "MAX_LAGS", 3)

    async with started_world() as world:
        wide = await world.sequencer.create_topic(CreateTopic("wide", 5, {}))
        for group_id in "abc":
            await world.commit_wide(group_id, wide)
        now = world.committer._view.state
        counted = [replace_row(row, positions=1) for row in now.all(GroupRow)]
        before = HotState({**{kind: now.all(kind) for kind in HOT}, GroupRow: counted})
        pages = [len(page) async for page in reading.pages_of(world.rows, counted, 4)]
        assert pages == [4, 1] * 3
        positions = reading.Positions(world.rows, lambda: before, settle)
        page = await positions.lags(LagsRequest(None))
        found = page.lags
        while page.next is not None:
            page = await positions.lags(LagsRequest(page.next))
            assert len(page.lags) <= 3
            found += page.lags
        assert [(lag.group_id, lag.partition) for lag in found] == [(g, p) for g in "abc" for p in range(5)]


async def test_a_written_change_is_answered_once_it_is_visible() -> None:
    async with started_world() as world:
        await world.commit_position("g", 3)
        world.rows.fail_next_write("after")
        with pytest.raises(Exception, match="not committed"):
            await world.commit_position("g", 9)
        assert world.committer._view.is_stale
        assert await world.position("g") == 9
        assert not world.committer._view.is_stale, "what the database has is shown"


async def test_a_question_waits_for_the_write_in_progress_and_takes_no_place_in_the_queue() -> None:
    async with started_world() as world:
        await world.commit_position("g", 3)
        world.rows.hold_writes()
        written = asyncio.create_task(world.commit_position("g", 4))
        await settle()
        queued = asyncio.create_task(world.commit_position("g", 5))
        asked = [asyncio.create_task(world.position("g")) for _ in range(3)]
        await settle()
        assert len(world.committer._group_commit._queue) == 1
        assert not any(each.done() for each in asked)
        world.rows.release_writes()
        world.rows.hold_writes()
        await written
        await settle()
        assert [each.done() for each in asked] == [True] * 3 and not queued.done()
        world.rows.release_writes()
        await queued


class NeverRead(dict[K, V]):
    """Looked up by key, and never looked through."""

    def __iter__(self) -> Iterator[K]:
        raise AssertionError("it was looked through")

    keys = values = items = __iter__  # type: ignore[assignment]


async def test_pending_positions_of_other_groups_are_not_scanned() -> None:
    async with started_world() as world:
        for partition in (0, 1):
            await world.commit_position("g", 3, partition)
        await world.send_pending("g", 7, 1)
        state = world.committer._view.state
        state.pending_of, before = NeverRead(state.pending_of), state.pending_of
        found = await all_positions(world.sequencer, "g")
        assert [(each.offset, each.has_pending) for each in found] == [(3, False), (3, True)]
        state.pending_of = before


async def test_a_commit_does_not_scan_the_pending_positions_of_others_in_its_transaction() -> None:
    async with started_world() as world:
        await world.send_pending("g", 7, 0)
        draft = Draft(world.committer._view.state, 0)
        for number in range(3):
            draft.put(PendingOffsetRow(f"h{number}", world.topic.topic_id, 0, 1, 5, 0, "", 0, None))
        pending = draft.changes.by_kind[PendingOffsetRow]
        draft.changes.by_kind[PendingOffsetRow] = NeverRead(pending)
        position = OffsetPosition(world.topic.topic_id, 0, 8, 0, "")
        commit = CommitOffsets("g", -1, -1, -1, "", [position])
        draft.looked_up[GroupOffsetRow].update(dict.fromkeys(groups.positions_committed(commit)))
        savepoint = draft.savepoint()
        at_once(groups.commit_offsets(savepoint, commit, SETTINGS))
        deleted = [key[0] for key, row in savepoint.changes.by_kind[PendingOffsetRow].items() if row is None]
        assert deleted == ["g"], "the later commit wins over the pending one"


@pytest.mark.parametrize("are_named", [True, False])
async def test_a_position_is_reported_as_its_transaction_left_it_or_said_to_be_pending(
    are_named: bool,
) -> None:
    async with started_world() as world:
        await world.commit_position("g", 3)
        ref = await world.send_pending("g", 7, 0)
        looked_up = "rows_under" if are_named else "positions_of"
        read = getattr(world.rows, looked_up)

        async def read_and_end(*asked: Any) -> list[GroupOffsetRow]:
            rows: list[GroupOffsetRow] = await read(*asked)
            setattr(world.rows, looked_up, read)
            await world.sequencer.end_transaction(EndTransaction(ref, True, False))
            return rows

        setattr(world.rows, looked_up, read_and_end)
        places = [(world.topic.topic_id, 0)] if are_named else None
        (found,) = (await world.sequencer.fetch_offsets(FetchOffsets("g", places))).positions
        assert found.has_pending or found.offset == 7
        assert await world.position("g") == 7, "the transaction ended in between"


# --- expiry


async def test_positions_are_read_when_one_may_be_over_and_not_again_before_one_is() -> None:
    async with started_world() as world:
        for name in ("idle", "used"):
            await world.commit_position(name, 3)
        await world.later(WEEK_MS // 2)
        await world.commit_position("used", 4)
        assert world.rows.groups_read == []
        await world.later(WEEK_MS // 2 + 60_000)
        assert sorted(world.rows.groups_read) == ["idle", "used"]
        assert await world.kept() == {"used": 1}
        world.rows.groups_read.clear()
        await world.later(60_000)
        assert world.rows.groups_read == [], "it was read: its position was committed half a week ago"
        await world.later(WEEK_MS // 2)
        assert await world.kept() == {}


async def test_a_position_with_an_expiry_of_its_own_goes_before_the_others_of_its_group() -> None:
    async with started_world() as world:
        await world.commit_position("g", 3)
        await world.commit_position("g", 3, 1, retention_ms=60_000)
        await world.later(30_000)
        assert await world.kept() == {"g": 2}
        await world.commit_position("g", 4, 1, retention_ms=60_000)
        await world.later(40_000)
        assert await world.kept() == {"g": 2}, "it was committed anew"
        await world.later(60_000)
        assert await world.kept() == {"g": 1}
        assert await world.position("g") == 3


async def test_one_that_is_committed_between_the_look_and_the_decision_is_kept() -> None:
    async with started_world() as world:
        for name in ("g", "h"):
            await world.commit_position(name, 3)
        world.opened.clock.advance(WEEK_MS / 1000 + 60)
        read = world.rows.positions_of_groups

        async def read_and_commit(group_ids: Sequence[str], limit: int) -> list[GroupOffsetRow]:
            rows = await read(group_ids, limit)
            await world.commit_position("g", 9)
            return rows

        world.rows.positions_of_groups = read_and_commit  # type: ignore[method-assign]
        await world.committer.apply_retention(Empty())
        assert await world.kept() == {"g": 1} and await world.position("g") == 9


async def test_a_pass_reads_so_many_positions_and_the_next_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "POSITIONS_AT_ONCE", 2)
    monkeypatch.setattr(expiry, "MOST_POSITIONS", 4)

    async with started_world() as world:
        for number in range(9):
            await world.commit_position(f"g{number}", 3)
            await world.commit_position(f"g{number}", 3, 1)
        await world.later(WEEK_MS + 60_000)
        left = [len(await world.kept())]
        for _ in range(4):
            await world.later(1_000)
            left.append(len(await world.kept()))
        assert left == [7, 5, 3, 1, 0]


async def test_positions_of_a_large_group_are_forgotten_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "POSITIONS_AT_ONCE", 2)

    async with started_world() as world:
        await world.commit_wide("g", await world.sequencer.create_topic(CreateTopic("wide", 6, {})))
        read, left = world.rows.positions_of, []

        async def read_and_count(*asked: Any) -> list[GroupOffsetRow]:
            left.append((await world.kept()).get("g", 0))
            return await read(*asked)

        world.rows.positions_of = read_and_count  # type: ignore[method-assign]
        await world.later(WEEK_MS + 60_000)
        assert left == [6, 4, 2, 0]


async def test_a_group_that_was_read_is_not_read_again_when_it_has_another_position() -> None:
    async with started_world() as world:
        await world.commit_position("g", 3)
        await world.later(WEEK_MS // 2)
        await world.commit_position("g", 3, 1)
        await world.later(WEEK_MS // 2 + 60_000)
        assert world.rows.groups_read == ["g"] and await world.kept() == {"g": 1}
        await world.later(60_000)
        await world.commit_position("g", 3)
        world.rows.groups_read.clear()
        for _ in range(3):
            await world.later(60_000)
        assert world.rows.groups_read == []
        await world.later(WEEK_MS // 2)
        assert await world.kept() == {"g": 1}


# --- deletion


async def test_a_group_is_deleted_with_all_its_positions_which_are_read_page_by_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_lookup, "POSITIONS_AT_ONCE", 2)

    async with started_world() as world:
        await world.commit_wide("g", await world.sequencer.create_topic(CreateTopic("wide", 5, {})))
        await world.commit_position("h", 3)
        await world.sequencer.delete_group(GroupRef("g"))
        assert world.rows.groups_read == ["g", "g", "g"]
        assert await world.kept() == {"h": 1}


@pytest.fixture
def deleted_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_deletion, "POSITIONS_AT_ONCE", 2)


@pytest.mark.usefixtures("deleted_in_pages")
async def test_no_transaction_of_a_deletion_has_more_positions_than_a_page() -> None:
    async with started_world() as world:
        await world.commit_wide("g", await world.sequencer.create_topic(CreateTopic("wide", 5, {})))
        await world.commit_position("h", 3)
        world.rows.written.clear()
        await world.sequencer.delete_group(GroupRef("g"))
        assert [count for count in world.rows.written if count] == [2, 2, 1]
        assert await world.kept() == {"h": 1}
        with pytest.raises(UnknownGroup):
            await world.sequencer.delete_group(GroupRef("g"))


@pytest.mark.usefixtures("deleted_in_pages")
async def test_no_transaction_of_a_deletion_has_more_share_partitions_than_a_page() -> None:
    async with started_world() as world:
        topic = await world.sequencer.create_topic(CreateTopic("wide", 5, {}))
        state = GroupState("g", 1, "Empty", SHARE_GROUP, [], b"", type=SHARE_GROUP)
        await world.sequencer.save_group(SaveGroup(world.agent.broker_id, world.agent.epoch, state))
        offsets = [ShareOffset(topic.topic_id, partition, 0) for partition in range(5)]
        await world.sequencer.alter_share_offsets(AlterShareOffsets("g", offsets))
        deletions = counted_deletions(world.rows, ShareRow)
        await world.sequencer.delete_group(GroupRef("g"))
        assert [count for count in deletions if count] == [2, 2, 1]
        assert not world.committer._view.state.shares_of


@pytest.mark.usefixtures("deleted_in_pages")
async def test_a_group_that_gets_a_member_while_it_is_deleted_stays_with_the_positions_left() -> None:
    async with started_world() as world:
        await world.commit_wide("g", await world.sequencer.create_topic(CreateTopic("wide", 5, {})))

        async def join_after_the_first_page() -> None:
            world.rows.meanwhile = lambda: world.join("g")

        world.rows.meanwhile = join_after_the_first_page
        with pytest.raises(GroupNotEmpty):
            await world.sequencer.delete_group(GroupRef("g"))
        assert await world.kept() == {"g": 3}


@pytest.mark.usefixtures("deleted_in_pages")
async def test_a_retry_of_a_deletion_takes_nothing_from_the_group_that_was_made_since() -> None:
    async with started_world() as world:
        wide, request = (
            await world.sequencer.create_topic(CreateTopic("wide", 5, {})),
            GroupRef("g", UUID(int=7)),
        )
        for _ in range(2):
            await world.commit_wide("g", wide)
            await world.sequencer.delete_group(request)
        assert await world.kept() == {"g": 5}


@pytest.mark.usefixtures("deleted_in_pages")
@pytest.mark.parametrize("is_retry", [True, False])
async def test_a_second_deletion_of_a_group_waits_for_the_first(is_retry: bool) -> None:
    ids = UUID(int=7), UUID(int=7 if is_retry else 8)

    async with started_world() as world:
        await world.commit_wide("g", await world.sequencer.create_topic(CreateTopic("wide", 5, {})))
        world.rows.written.clear()
        deletions = (world.sequencer.delete_group(GroupRef("g", each)) for each in ids)
        first, second = await asyncio.gather(*deletions, return_exceptions=True)
        assert [count for count in world.rows.written if count] == [2, 2, 1]
        assert first == Empty()
        assert second == first if is_retry else isinstance(second, UnknownGroup)


@pytest.mark.usefixtures("deleted_in_pages")
async def test_a_deletion_continues_after_a_page_that_others_have_deleted() -> None:
    async with started_world() as world:
        wide = await world.sequencer.create_topic(CreateTopic("wide", 5, {}))
        await world.commit_wide("g", wide)

        places = [(wide.topic_id, partition) for partition in range(2)]
        world.rows.once_read = lambda: world.sequencer.delete_offsets(DeleteOffsets("g", places))
        world.rows.written.clear()
        await world.sequencer.delete_group(GroupRef("g"))
        assert [count for count in world.rows.written if count] == [2, 2, 1]


@pytest.mark.usefixtures("deleted_in_pages")
async def test_a_deletion_takes_nothing_from_the_group_that_was_made_after_another_deletion() -> None:
    async with started_world() as world:
        wide = await world.sequencer.create_topic(CreateTopic("wide", 5, {}))
        await world.commit_wide("g", wide)

        async def delete_and_commit() -> None:
            await world.sequencer.delete_group(GroupRef("g"))
            await world.commit_wide("g", wide)

        others = list[asyncio.Task[None]]()

        async def begin_another() -> None:
            others.append(asyncio.create_task(delete_and_commit()))
            await settle()

        world.rows.once_read = begin_another
        await world.sequencer.delete_group(GroupRef("g"))
        with pytest.raises(UnknownGroup):
            await others[0]
        assert await world.kept() == {}


@pytest.mark.usefixtures("deleted_in_pages")
async def test_few_deletions_of_a_group_wait_and_a_cancelled_one_blocks_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_deletion, "DELETIONS_OF_A_GROUP", 2)

    async with started_world() as world:
        wide = await world.sequencer.create_topic(CreateTopic("wide", 5, {}))
        await world.commit_wide("g", wide)
        await world.commit_position("h", 3)
        stuck = asyncio.Event()

        async def hang() -> None:
            await stuck.wait()

        world.rows.meanwhile = hang
        first, second = (asyncio.create_task(world.sequencer.delete_group(GroupRef("g"))) for _ in range(2))
        await settle()
        with pytest.raises(SequencerOverloaded):
            await world.sequencer.delete_group(GroupRef("g"))
        await world.sequencer.delete_group(GroupRef("h"))
        first.cancel()
        assert await second == Empty()
        assert await world.kept() == {} and not world.committer._deletions._lines


async def test_the_positions_on_a_deleted_topic_go_with_it_and_the_groups_count_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sequencer.rules.deleted_topics.LOOKED_UP_AT_ONCE", 3)

    async with started_world() as world:
        other = await world.sequencer.create_topic(CreateTopic("other", 1, {}))
        for number in range(8):
            await world.commit_position(f"g{number}", 3)
        kept = [OffsetPosition(other.topic_id, 0, 3, 0, "")]
        await world.sequencer.commit_offsets(CommitOffsets("g0", -1, -1, -1, "", kept))
        await world.committer.delete_topic(DeleteTopic(world.topic.topic_id))
        await world.committer.apply_retention(Empty())
        assert await world.kept() == {"g0": 1}


def test_positions_that_their_group_does_not_count_are_deleted_and_logged() -> None:
    keys = [("g", UUID(int=1), partition) for partition in (0, 1)]
    draft = Draft(HotState({GroupRow: [GroupRow("g", -1, -1, 0, "", "", [], b"", 0, positions=1)]}), 0)
    found = [GroupOffsetRow(*key, 5, 0, "", 0, None) for key in keys]
    at_once(draft.note_rows({GroupOffsetRow: keys}, [found]))
    with capture_logs() as logs:
        assert at_once(delete_positions(draft, keys)) == 2
    group = draft.get(GroupRow, "g")
    assert group is not None and group.positions == 0
    assert [(line["group"], line["counted"], line["deleted"]) for line in logs] == [("g", 1, 2)]


def test_a_page_of_lags_reads_no_group_of_another_page_or_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SETTINGS.changed(max_groups=10_000)
    row = new_group(Draft(HotState({}), 0), "g", settings)
    rows = [replace_row(row, group_id=f"{number:04}", owner=number % 5 - 1) for number in range(5_000)]
    agents = [AgentRow(broker_id, 1, msgspec.msgpack.encode(info("a")), 1, False) for broker_id in (1, 2)]
    state = HotState({GroupRow: rows, AgentRow: agents})
    read: list[str] = []
    starting_at = Names.starting_at

    def noted(names: Names, least: object) -> Iterator[str]:
        for name in starting_at(names, least):
            read.append(name)
            yield name

    monkeypatch.setattr(Names, "starting_at", noted)
    asked = LagsRequest(after=("2500", UUID(int=0), 0), owner=1, with_orphans=True)
    page = [group.group_id for group in islice(groups.groups_asked(state, asked), 8)]
    assert page == ["2500", "2501", "2502", "2504", "2505", "2506", "2507", "2509"], (
        "all but those of agent 2"
    )
    assert 8 <= len(read) <= 8 + 4, "and one more of each coordinator"
