"""Checkpoints: what is stored reads back as it was, and a chain of heads gives the rows that the database has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import pytest

from sequencer.api.agents import AgentInfo
from sequencer.api.commits import (
    CommitAnswer,
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
)
from sequencer.api.errors import IncarnationChanged, LeaseLost, SequencerUnavailable
from sequencer.api.retention import GarbageRequest
from sequencer.api.topics import CreateTopic, DeleteTopic, Topic
from sequencer.api.values import Empty
from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.checkpointer import Checkpointer, DatabaseIsOlder, write_cluster_file
from sequencer.checkpoint.format import CheckpointedRows, HeadId, InvalidCheckpoint
from sequencer.engine.committer import Committer
from sequencer.recovery.bucket_scan import read_checkpoints
from sequencer.settings import SequencerSettings
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import (
    KEYS,
    Changes,
    CommitRow,
    CounterRow,
    GroupOffsetRow,
    ProducerRow,
    Row,
    RunRow,
    key_of,
)
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.object_store.api import StoreUnavailable
from tailrace.object_store.memory import MemoryStore
from tailrace.turns import at_once
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import HookedRowStore
from tests.support.patience import PATIENCE_SECONDS
from tests.support.row_samples import changes, one_of_each_kind

SETTINGS = SequencerSettings(session_lease_ms=10_000_000, deletion_grace_ms=1_000)
AGENT = AgentInfo("h", 1, "h", 0, 0, "z", "1", SeededEntropy(1).uuid())


class Bucket(MemoryStore):
    """A store whose next puts (but for so many that pass) can be made to fail."""

    failures = 0
    passes = 0
    before_put: Callable[[str], Awaitable[None]] | None = None

    async def put(self, key: str, parts: object, *, if_absent: bool = False) -> None:
        if self.before_put is not None:
            await self.before_put(key)
        if self.passes:
            self.passes -= 1
        elif self.failures:
            self.failures -= 1
            raise StoreUnavailable("made to fail")
        await super().put(key, parts, if_absent=if_absent)  # type: ignore[arg-type]


class World:
    """A committer over rows and a bucket, which can be ended and begun anew."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.entropy = SeededEntropy(5)
        self.rows = HookedRowStore(self.clock, cluster_id="c")
        self.bucket = Bucket(self.clock)
        self.reservation = 1_000
        self.number = 0
        self.written: dict[tuple[UUID, int], int] = {}
        """Records by partition; each has a producer of its own."""
        self.agent: OpenSession
        self.session: SessionGrant
        self.sequencer: Committer
        self.checkpointer: Checkpointer

    async def lead(self, *, is_opened: bool = True) -> None:
        self.checkpointer = Checkpointer(
            self.bucket, self.rows, self.clock, interval_ms=1_000, reservation=self.reservation
        )
        self.sequencer = Committer(
            self.rows, self.clock, self.entropy, SETTINGS, checkpointer=self.checkpointer
        )
        await self.sequencer.start()
        if is_opened:
            await self.checkpointer.export()
        self.number = 0

    async def settle(self) -> None:
        """Export until nothing is left to do."""
        for _ in range(4):
            await self.checkpointer.export()
            for _ in range(20):
                await asyncio.sleep(0)

    async def join(self) -> None:
        agent = await self.sequencer.register_agent(AGENT)
        self.agent = OpenSession(agent.broker_id, agent.epoch)
        self.session = await self.sequencer.open_session(self.agent)

    async def make_topic(self, name: str = "t", partitions: int = 2) -> Topic:
        made = asyncio.ensure_future(self.sequencer.create_topic(CreateTopic(name, partitions, {})))
        while not made.done():
            await asyncio.sleep(0)
            await self.checkpointer.export()
        return await made

    def commit_request(
        self, session: SessionGrant, number: int, topic: Topic, records: int, partition: int
    ) -> CommitRequest:
        written = self.written.get((topic.topic_id, partition), 0)
        batch = BatchCoordinates(100, records, 5, 5, partition + 1, 0, written, 0)
        described = ObjectDescription(
            self.entropy.uuid(), ObjectKind.MIXED, f"{session.prefix}{number}", 120, 1, 100, 7
        )
        proposal = RunProposal(topic.topic_id, partition, 0, 100, [batch])
        return CommitRequest(session.session_id, number, 0, described, [proposal])

    async def commit(self, topic: Topic, records: int = 3, partition: int = 0) -> int:
        answer = await self.sequencer.commit(
            self.commit_request(self.session, self.number, topic, records, partition)
        )
        self.number += 1
        self.written[topic.topic_id, partition] = self.written.get((topic.topic_id, partition), 0) + records
        return answer.runs[0].outcomes[0].base_offset

    async def stored_rows(self) -> dict[type[Row], set[str]]:
        """What the database has, as text."""
        found: dict[type[Row], set[str]] = {kind: set() for kind in KEYS if kind is not CommitRow}
        hot = [
            row for kind, rows in (await self.rows.load()).items() if kind is not CommitRow for row in rows
        ]
        for row in (
            *hot,
            *await self.rows.objects_after("", 10_000),
            *await self.rows.rows_after(ProducerRow, None, 10_000),
            *await self.rows.rows_after(GroupOffsetRow, None, 10_000),
            *await self.rows.run_rows_after(None, 10_000),
        ):
            found[type(row)].add(repr(row))
        return found

    async def exported_rows(self) -> dict[type[Row], set[str]]:
        """What the bucket has, as text."""
        found = await read_checkpoints(self.bucket, "c")
        assert found.chain is not None
        return {
            kind: set(map(repr, rows.values()))
            for kind, rows in found.rows.by_kind.items()
            if kind is not CommitRow
        }

    async def heads(self) -> list[str]:
        return [info.key async for info in self.bucket.list("c/meta/") if info.key.endswith(".head")]


async def turns() -> None:
    """Let all that can go on without an export go on."""
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def started_world(*, leads: bool = True) -> AsyncIterator[World]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = World()
        if leads:
            await world.lead()
        yield world
        if hasattr(world, "sequencer"):
            await world.sequencer.close()


def test_rows_of_every_kind_come_back_as_they_were() -> None:
    rows = one_of_each_kind()
    found = CheckpointedRows()

    found.apply(at_once(checkpoint.encode_changes(changes(*rows))))

    expected = [row for row in rows if type(row) not in checkpoint.LEFT_OUT]
    assert [found.by_kind[type(row)][key_of(row)] for row in expected] == expected
    assert not found.all(CommitRow)
    assert set(checkpoint.KINDS.values()) == set(KEYS)


def test_a_flipped_bit_anywhere_is_found() -> None:
    data = at_once(checkpoint.seal(b"some body"))
    assert checkpoint.unseal(data) == b"some body"
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 4
        with pytest.raises(InvalidCheckpoint):
            checkpoint.unseal(broken)
    with pytest.raises(InvalidCheckpoint):
        checkpoint.unseal(data[:-1])


def test_keys_sort_by_age_and_name_their_place() -> None:
    places = [HeadId(1, 2, 3), HeadId(1, 2, 10), HeadId(1, 11, 0), HeadId(2, 1, 0)]
    keys = [checkpoint.head_key("c", place) for place in places]
    assert keys == sorted(keys)
    assert [checkpoint.head_id_of("c", key) for key in keys] == places
    assert checkpoint.head_id_of("c", checkpoint.part_key("c", places[1], 7)) == places[1]
    assert checkpoint.head_id_of("c", "c/meta/x") is None


async def test_a_snapshot_and_what_follows_it_give_the_rows_of_the_database() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        for _ in range(5):
            await world.commit(topic)
        await world.settle()
        assert await world.exported_rows() == await world.stored_rows()
        await world.commit(topic, partition=1)
        other = await world.make_topic("other", 1)
        await world.commit(other)
        await world.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        await world.sequencer.apply_retention(Empty())
        await world.settle()
        assert await world.exported_rows() == await world.stored_rows()


async def test_a_caller_that_asks_during_the_export_is_answered_once_it_is_done() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.settle()
        asked: list[asyncio.Task[None]] = []

        async def ask(key: str) -> None:
            asked.append(asyncio.create_task(world.checkpointer.saved()))
            await turns()

        await world.commit(topic)
        world.bucket.before_put = ask
        await world.checkpointer.export()
        await turns()
        assert [task.done() for task in asked] == [True]


async def test_a_change_that_must_be_recoverable_waits_for_a_chain_with_its_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.settle()
        monkeypatch.setattr(world.checkpointer, "_begin_scan", lambda: None)  # it takes long
        world.checkpointer.begin(world.sequencer.identity, 1, world.sequencer._view.state)  # loaded anew
        await world.checkpointer.export()
        await world.commit(topic)
        asked = [
            asyncio.create_task(ask()) for ask in (world.checkpointer.saved, world.checkpointer.recoverable)
        ]
        await turns()
        await world.checkpointer.export()
        await turns()
        assert [task.done() for task in asked] == [True, False]
        monkeypatch.undo()
        await world.settle()
        assert [task.done() for task in asked] == [True, True]
        found = await read_checkpoints(world.bucket, "c")
        assert found.chain is not None and found.chain.last.commit_number == 2


async def test_rows_written_while_a_snapshot_is_read_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.checkpoint.snapshot.PAGE_ROWS", 2)
    monkeypatch.setattr("sequencer.checkpoint.snapshot.PART_ROWS", 3)

    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        for index in range(40):
            await world.commit(topic, partition=index % 2)
            if index == 20:
                world.checkpointer._begin_scan()
            await world.checkpointer.export()
        await world.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        await world.sequencer.apply_retention(Empty())
        await world.settle()
        assert await world.exported_rows() == await world.stored_rows()
        found = await read_checkpoints(world.bucket, "c")
        assert found.chain is not None and len(found.chain.snapshot.parts) > 3


class Stumbling(HookedRowStore):
    """Fails every second read of a page of runs while it stumbles, and notes where the pages begin that were read."""

    stumbles = False

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, cluster_id="c")
        self.begins: list[object] = []
        self.is_failing = False

    async def run_rows_after(self, key: tuple[UUID, int, int] | None, limit: int) -> list[RunRow]:
        self.is_failing = self.stumbles and not self.is_failing
        if self.is_failing:
            raise SequencerUnavailable("made to fail")
        self.begins.append(key)
        return await super().run_rows_after(key, limit)


async def test_a_snapshot_goes_on_where_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.checkpoint.snapshot.PAGE_ROWS", 2)
    monkeypatch.setattr("sequencer.checkpoint.snapshot.PART_ROWS", 3)

    async with started_world(leads=False) as world:
        rows = world.rows = Stumbling(world.clock)
        await world.lead()
        await world.join()
        topic = await world.make_topic()
        for index in range(20):
            await world.commit(topic, partition=index % 2)
        await world.settle()
        rows.begins.clear()
        rows.stumbles = True
        world.checkpointer._begin_scan()
        parts: list[str] = []

        async def fail_every_second(key: str) -> None:
            if key.endswith(".part"):
                parts.append(key)
                if len(parts) % 2:
                    raise StoreUnavailable("made to fail")

        world.bucket.before_put = fail_every_second
        snapshot = world.checkpointer._chain.snapshot
        for _ in range(200):
            with suppress(StoreUnavailable):
                await world.checkpointer.export()
            if world.checkpointer._chain.snapshot is not snapshot:
                break
            await turns()
            world.clock.advance(0.1)
        assert len(parts) == len(set(parts)), "a failed attempt may still arrive"
        assert len(rows.begins) == len(set(rows.begins)) > 5, "no page was read twice"
        rows.stumbles = False
        assert await world.exported_rows() == await world.stored_rows()
        assert not (await read_checkpoints(world.bucket, "c")).problems


async def test_a_snapshot_whose_head_is_stored_at_the_second_attempt_is_not_read_again() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.commit(topic)
        await world.settle()
        snapshot = world.checkpointer._chain.snapshot
        world.checkpointer._begin_scan()
        await turns()
        world.bucket.passes, world.bucket.failures = 0, 1
        with pytest.raises(StoreUnavailable):
            await world.checkpointer.export()
        await world.checkpointer.export()
        assert world.checkpointer._chain.snapshot is not snapshot
        assert await world.exported_rows() == await world.stored_rows()


class Unshown(HookedRowStore):
    """Answers a write late: the database has it, and the committer does not know yet."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, cluster_id="c")
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        await super().write(changes, committer_epoch)
        await self.may_answer.wait()


async def test_a_snapshot_has_no_producer_of_a_transaction_that_no_head_has() -> None:
    async with started_world(leads=False) as world:
        rows = world.rows = Unshown(world.clock)
        await world.lead()
        await world.join()
        topic = await world.make_topic()
        await world.commit(topic)
        await world.settle()
        snapshots = (await read_checkpoints(world.bucket, "c")).heads
        rows.may_answer.clear()
        committed = asyncio.create_task(world.commit(topic))
        await turns()
        world.checkpointer._begin_scan()
        for _ in range(3):
            await turns()
            await world.checkpointer.export()
        heads = (await read_checkpoints(world.bucket, "c")).heads
        assert not [heads[place] for place in heads.keys() - snapshots.keys() if heads[place].is_snapshot]
        rows.may_answer.set()
        await committed
        await world.settle()
        assert await world.exported_rows() == await world.stored_rows()


PRODUCERS = [ProducerRow(UUID(int=1), 0, number, 0, [], 0, 0) for number in (1, 2)]
POSITIONS = [GroupOffsetRow("g", UUID(int=1), number, 0, 0, "", 0, None) for number in (1, 2)]


@pytest.mark.parametrize("written", [PRODUCERS, POSITIONS])
def test_producers_and_positions_among_the_hot_rows_of_an_older_snapshot_are_read(written: list[Row]) -> None:
    kind = type(written[0])
    rows = CheckpointedRows()
    rows.apply([checkpoint.encode_rows(kind, written[:1])])
    rows.forget_hot()
    rows.apply([checkpoint.encode_rows(kind, written)])
    assert rows.all(kind) == written


async def test_a_state_that_was_reloaded_begins_a_chain_of_its_own() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.commit(topic)
        await world.settle()
        world.rows.fail_next_write("after")
        with pytest.raises(SequencerUnavailable):
            await world.commit(topic)
        assert await world.commit(topic) == 3  # asked again
        with pytest.raises(SequencerUnavailable):
            await world.commit(topic)  # nothing is reserved: the new chain has no head yet
        await world.checkpointer.export()
        await world.commit(topic)
        await world.commit(topic)
        await world.settle()
        assert await world.exported_rows() == await world.stored_rows()


async def test_the_next_committer_begins_a_chain_and_the_old_one_goes_when_it_has_two_snapshots() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.commit(topic)
        await world.settle()
        await world.sequencer.close()
        world.clock.advance(10)
        before = await world.heads()
        await world.lead()
        await world.join()
        await world.commit(topic)
        assert set(before) < set(await world.heads())
        await world.settle()
        assert set(before) < set(await world.heads())
        assert await world.exported_rows() == await world.stored_rows()
        world.checkpointer._begin_scan()
        await world.settle()
        assert not set(before) & set(await world.heads())
        assert await world.exported_rows() == await world.stored_rows()


async def test_a_topic_is_acknowledged_when_a_checkpoint_has_it() -> None:
    async with started_world() as world:
        made = asyncio.ensure_future(world.sequencer.create_topic(CreateTopic("t", 1, {})))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not made.done()
        world.bucket.failures = 1
        with pytest.raises(StoreUnavailable):
            await world.checkpointer.export()
        for _ in range(50):
            await asyncio.sleep(0)
        assert not made.done()
        await world.checkpointer.export()
        assert (await made).name == "t"


async def test_no_offset_is_assigned_beyond_what_the_last_checkpoint_reserves() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        assert await world.commit(topic, 900) == 0
        with pytest.raises(SequencerUnavailable):
            await world.commit(topic, 200)
        await world.checkpointer.export()
        assert await world.commit(topic, 200) == 900


async def test_a_commit_beyond_what_is_reserved_costs_the_others_of_its_group_nothing() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        greedy = await world.sequencer.open_session(world.agent)
        done = await asyncio.gather(
            world.sequencer.commit(world.commit_request(greedy, 0, topic, 1_001, 0)),
            world.sequencer.commit(world.commit_request(world.session, 0, topic, 3, 1)),
            return_exceptions=True,
        )
        assert isinstance(done[0], SequencerUnavailable), done
        assert isinstance(done[1], CommitAnswer), done
        assert done[1].runs[0].outcomes[0].base_offset == 0


async def test_nothing_is_assigned_before_the_first_checkpoint_of_a_term() -> None:
    async with started_world(leads=False) as world:
        await world.lead()
        await world.join()
        topic = await world.make_topic()
        await world.sequencer.close()
        world.clock.advance(10)
        await world.lead(is_opened=False)
        await world.join()
        with pytest.raises(SequencerUnavailable):
            await world.commit(topic)
        await world.checkpointer.export()
        assert await world.commit(topic) == 0


async def test_an_object_is_deleted_only_when_a_checkpoint_without_it_is_durable() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.commit(topic)
        await world.settle()
        await world.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        await world.sequencer.apply_retention(Empty())
        world.clock.advance(5)
        assert not (await world.sequencer.garbage(GarbageRequest(10))).objects
        await world.checkpointer.export()
        assert len((await world.sequencer.garbage(GarbageRequest(10))).objects) == 1


async def test_a_failed_export_is_made_good_with_all_that_came_since() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.settle()
        await world.commit(topic)
        for _ in range(3):
            world.bucket.failures = 1
            with pytest.raises(StoreUnavailable):
                await world.checkpointer.export()
            await world.commit(topic)
        await world.settle()
        assert await world.exported_rows() == await world.stored_rows()


async def test_the_last_head_of_a_committer_that_ended_reserves_nothing() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.commit(topic)
        await world.settle()
        await world.sequencer.close()
        found = await read_checkpoints(world.bucket, "c")
        assert found.chain is not None and found.chain.last.reservation == 0
        assert await world.exported_rows() == await world.stored_rows()


async def test_a_database_older_than_the_bucket_is_refused() -> None:
    async with started_world(leads=False) as world:
        await world.lead()
        await world.join()
        await world.commit(await world.make_topic())
        await world.settle()
        await world.sequencer.close()
        world.rows = HookedRowStore(world.clock, cluster_id="c")
        epoch = await world.rows.take_committer_lease("x", "", 1_000)
        assert epoch is not None
        await world.rows.write(changes(CounterRow("commit_number", 1)), epoch)
        await world.rows.release_committer_lease(epoch)
        await world.lead(is_opened=False)
        with pytest.raises(DatabaseIsOlder):
            await world.checkpointer.export()
        with pytest.raises(IncarnationChanged):
            await world.join()
            await world.make_topic()


async def test_a_committer_overtaken_before_it_looked_at_the_bucket_has_lost_its_lease_only() -> None:
    async with started_world(leads=False) as world:
        await world.lead(is_opened=False)
        slow, overtaken = world.checkpointer, world.sequencer
        world.clock.advance(60)
        await world.lead()
        await world.join()
        await world.commit(await world.make_topic())
        await world.settle()
        with pytest.raises(LeaseLost):
            await slow.export()
        assert slow.refusal is None
        await overtaken.close()


async def test_a_database_of_an_older_incarnation_than_the_bucket_is_refused_also_in_the_middle() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.settle()
        await write_cluster_file(world.bucket, DatabaseIdentity("c", 2))
        await world.commit(topic)
        with pytest.raises(IncarnationChanged):
            await world.checkpointer.export()
        with pytest.raises(IncarnationChanged):
            await world.commit(topic)


async def test_a_committer_whose_database_was_replaced_reports_it_and_changes_nothing() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.rows.adopt("c", 2, 1)
        world.rows.fail_next_write("before")
        with pytest.raises(SequencerUnavailable):
            await world.commit(topic)
        with pytest.raises(IncarnationChanged):
            await world.commit(topic)
        assert isinstance(world.sequencer.lost, IncarnationChanged)


async def test_a_database_that_went_back_while_its_committer_lives_is_left_at_once() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.commit(topic)
        await world.rows.write(changes(CounterRow("commit_number", 1)), 1)
        world.rows.fail_next_write("before")
        with pytest.raises(SequencerUnavailable):
            await world.commit(topic)
        with pytest.raises(IncarnationChanged, match="lost the commits in between"):
            await world.commit(topic)
        assert world.sequencer.lost is not None


@pytest.mark.parametrize("part_rows", [2, 10_000])
async def test_a_snapshot_that_rots_costs_nothing(monkeypatch: pytest.MonkeyPatch, part_rows: int) -> None:
    """With hot rows in the head (many rows a part), and in parts of their own (few)."""
    monkeypatch.setattr("sequencer.checkpoint.snapshot.PART_ROWS", part_rows)

    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.commit(topic)
        gone = await world.make_topic("gone")
        await world.settle()
        await world.commit(topic)
        await world.settle()
        await world.sequencer.delete_topic(DeleteTopic(gone.topic_id))
        world.checkpointer._begin_scan()
        await world.settle()
        await world.commit(topic)
        await world.settle()
        parts = [info.key async for info in world.bucket.list("c/meta/") if info.key.endswith(".part")]
        newest = max(checkpoint.head_id_of("c", key) for key in parts)  # type: ignore[type-var]
        corrupt = [key for key in parts if checkpoint.head_id_of("c", key) == newest]
        assert corrupt
        await world.bucket.delete(corrupt)
        assert await world.exported_rows() == await world.stored_rows()
        assert (await read_checkpoints(world.bucket, "c")).problems


async def test_rows_written_after_a_head_are_not_acknowledged_by_its_second_attempt() -> None:
    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.settle()
        await world.commit(topic)
        world.bucket.failures = 1
        with pytest.raises(StoreUnavailable):
            await world.checkpointer.export()  # a head without the topic that follows
        made = asyncio.ensure_future(world.sequencer.create_topic(CreateTopic("later", 1, {})))
        await turns()
        world.bucket.passes, world.bucket.failures = 1, 1
        with pytest.raises(StoreUnavailable):
            await world.checkpointer.export()  # that head is stored now, the next one is not
        await turns()
        assert not made.done()
        await world.checkpointer.export()
        assert (await made).name == "later"


async def test_no_change_counts_as_saved_while_hot_rows_go_into_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sequencer.checkpoint.snapshot.PART_ROWS", 1)

    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.commit(topic)
        await world.settle()
        world.checkpointer._begin_scan()
        await turns()
        await world.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        await world.sequencer.apply_retention(Empty())
        world.clock.advance(5)
        handed_out: list[int] = []

        async def look(key: str) -> None:
            if key.endswith(".part"):
                handed_out.append(len((await world.sequencer.garbage(GarbageRequest(10))).objects))

        world.bucket.before_put = look
        await world.checkpointer.export()
        assert handed_out and not any(handed_out), "no head that says it is retired is durable yet"
        assert len((await world.sequencer.garbage(GarbageRequest(10))).objects) == 1


async def test_exports_continue_after_an_error_that_was_not_expected() -> None:
    async with started_world() as world:

        async def fail_once(key: str) -> None:
            world.bucket.before_put = None
            raise RuntimeError("not expected_errors")

        world.bucket.before_put = fail_once
        running = asyncio.create_task(world.checkpointer.run())
        made = asyncio.ensure_future(world.sequencer.create_topic(CreateTopic("t", 1, {})))
        for _ in range(20):
            await turns()
            world.clock.advance(0.3)
        assert (await made).name == "t"
        running.cancel()


async def test_a_head_that_a_life_before_may_still_write_keeps_its_number() -> None:
    """The same holder takes up the same epoch again when its release failed."""

    async with started_world() as world:
        await world.join()
        topic = await world.make_topic()
        await world.settle()
        before = world.checkpointer
        await world.commit(topic)
        world.bucket.failures = 1
        with pytest.raises(StoreUnavailable):
            await before.export()  # it comes later than was waited for
        late = before._chain.exporting
        assert late is not None
        world.checkpointer = again = Checkpointer(
            world.bucket, world.rows, world.clock, interval_ms=1_000, reservation=world.reservation
        )
        again.begin(before._chain.identity, before._chain.epoch, before._chain.state)
        await again.export()
        assert again.last_head is not None and again.last_head.number > late.head.number
