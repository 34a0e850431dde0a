"""Sequencer nodes over one store: one commits, the others pass on, and one takes over when it falls silent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any
from unittest import mock
from uuid import UUID

import pytest

from sequencer import server
from sequencer.api.agents import AgentInfo
from sequencer.api.commits import CommitRequest, ObjectDescription, ObjectKind, OpenSession
from sequencer.api.errors import IncarnationChanged, RequestFailed, SequencerUnavailable
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.producers import InitProducer
from sequencer.api.reads import FeedRequest
from sequencer.api.topics import CreateTopic, MetadataRequest
from sequencer.checkpoint.checkpointer import write_cluster_file
from sequencer.client import SequencerClient
from sequencer.engine.committer import Committer
from sequencer.http import SequencerPages
from sequencer.methods import METHODS
from sequencer.observer import SequencerObserver
from sequencer.recovery.bucket_scan import read_checkpoints
from sequencer.server import SequencerServer
from sequencer.settings import ServerSettings
from sequencer.store.row_store import LONGEST_LEASE_MS, DatabaseIdentity
from sequencer.store.rows import Row, TopicRow
from tailrace.buffers import Buffer
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import HookedRowStore
from tests.support.patience import PATIENCE_SECONDS
from tests.support.simulated_link import SimulatedLink, Weather

WRITES = ("write", "take_committer_lease", "renew_committer_lease", "release_committer_lease", "adopt")


class Cut:
    """A node's way to the store; `is_away` makes every call fail, `is_full` those that write, one that isn't open makes
    them wait; `is_refusing` refuses writes and loads."""

    def __init__(self, store: HookedRowStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()
        self.is_away = False
        self.is_full = False
        self.is_refusing = False
        self.is_without_journal = False
        self.is_open = asyncio.Event()
        self.is_open.set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            if not self.is_open.is_set():
                await self.is_open.wait()
            if self.is_away:
                raise SequencerUnavailable("the database is away")
            if self.is_without_journal and name == "journal_sizes":
                raise SequencerUnavailable("the journal can't be read")
            if self.is_full and name in WRITES:
                raise SequencerUnavailable("the disk is full")
            if self.is_refusing and name == "is_lease_free":
                return False  # PostgreSQL's answer
            if self.is_refusing and name in (*WRITES, "load"):
                raise RequestFailed("the database assigns no transaction ids")
            return await method(*arguments, **named)

        return call


class SlowLoads(HookedRowStore):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.loads = 0

    async def load(self) -> dict[type[Row], list[Row]]:
        self.loads += 1
        for _ in range(60):
            await self._clock.sleep(1.0)
        return await super().load()


class NotedCalls(SequencerObserver):
    """Keeps which calls were answered, at which end."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def call_answered(self, side: str, method: str, seconds: float) -> None:
        self.calls[side, method] += 1


class World:
    def __init__(self, *, has_bucket: bool = False) -> None:
        self.observer = NotedCalls()
        self.clock = ManualClock()
        self.entropy = SeededEntropy(9)
        self.store = HookedRowStore(self.clock)
        bucket = MemoryStore(self.clock) if has_bucket else None
        self.cuts = {name: Cut(self.store) for name in ("a:1", "b:1")}
        self.nodes = {
            name: SequencerServer(
                cut,
                self.clock,
                self.entropy,
                settings=ServerSettings(advertise=name),
                object_store=bucket,
                link=self.link,
                observer=self.observer,
            )
            for name, cut in self.cuts.items()
        }
        self.weather = {name: Weather() for name in self.nodes}

    def link(self, address: str) -> SimulatedLink:
        return SimulatedLink(
            self.nodes[address].server,
            clock=self.clock,
            entropy=self.entropy,
            address=address,
            weather=self.weather[address],
        )

    def freeze(self, name: str) -> None:
        """This node answers nothing, and its connections stay: as a process that is stopped."""
        self.cuts[name].is_away = True
        self.weather[name].loss = 1.0

    def thaw(self, name: str) -> None:
        """It goes on."""
        self.cuts[name].is_away = False
        self.weather[name].loss = 0.0

    def remote(self, *addresses: str) -> SequencerClient:
        return SequencerClient(
            addresses,
            clock=self.clock,
            entropy=self.entropy,
            link=self.link,
            patience_s=20,
            observer=self.observer,
        )

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            for _ in range(30):
                await asyncio.sleep(0)

    async def during(self, call: Awaitable[Any]) -> Any:
        """The call's outcome, while time goes on."""
        task = asyncio.ensure_future(call)
        while not task.done():
            await self.pass_time(0.1)
        return await task


@asynccontextmanager
async def started_world(*, has_bucket: bool = False) -> AsyncIterator[World]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = World(has_bucket=has_bucket)
        for node in world.nodes.values():
            await node.start(listen=False)
        yield world
        for node in world.nodes.values():
            await world.during(node.close())


AGENT = AgentInfo("h", 1, "h", 0, 0, "z", "1", SeededEntropy(1).uuid())


async def test_a_follower_names_the_committer_and_passes_on() -> None:
    async with started_world() as world:
        assert [node.is_committer for node in world.nodes.values()] == [True, False]
        remote = world.remote("b:1")
        topic = await world.during(remote.create_topic(CreateTopic("t", 1, {})))
        assert remote._current == "a:1"
        metadata = await world.during(world.nodes["b:1"].sequencer.metadata(MetadataRequest()))
        assert [one.topic_id for one in metadata.topics] == [topic.topic_id]
        await remote.close()


async def test_each_call_is_reported_at_both_ends() -> None:
    async with started_world() as world:
        remote = world.remote("a:1")
        await world.during(remote.create_topic(CreateTopic("t", 1, {})))
        assert world.observer.calls == {("client", "create_topic"): 1, ("server", "create_topic"): 1}
        await remote.close()


async def test_when_the_committer_is_cut_off_another_takes_over_within_three_seconds_and_knows_all() -> None:
    async with started_world() as world:
        first, second = world.nodes.values()
        remote = world.remote("a:1", "b:1")
        agent = await world.during(remote.register_agent(AGENT))
        session = await world.during(remote.open_session(OpenSession(agent.broker_id, agent.epoch)))
        described = ObjectDescription(
            world.entropy.uuid(), ObjectKind.MIXED, session.prefix + "0", 10, 0, 5, world.clock.wall_ms()
        )
        request = CommitRequest(session.session_id, 0, 0, described, [])
        answer = await world.during(remote.commit(request))
        waiting = asyncio.ensure_future(first.sequencer.feed(FeedRequest(answer.commit_number, [], 30_000)))
        await world.pass_time(0.1)
        world.cuts["a:1"].is_away = True
        await world.pass_time(3.0)
        assert (first.is_committer, second.is_committer) == (False, True)
        with pytest.raises(SequencerUnavailable):
            await waiting
        assert await world.during(remote.commit(request)) == answer
        await remote.close()


@pytest.mark.parametrize("known", [("a:1", "b:1"), ("b:1", "a:1"), ("b:1",)])
@pytest.mark.parametrize("frozen_s", [0.0, 2.0])
async def test_when_the_committer_freezes_its_callers_are_served_by_the_next_within_three_seconds(
    known: tuple[str, ...], frozen_s: float
) -> None:
    async with started_world() as world:
        remote = world.remote(*known)
        await world.during(remote.create_topic(CreateTopic("t", 1, {})))
        world.freeze("a:1")
        await world.pass_time(frozen_s)
        creating = asyncio.ensure_future(remote.create_topic(CreateTopic("u", 1, {})))
        asking = asyncio.ensure_future(world.nodes["b:1"].sequencer.metadata(MetadataRequest()))
        await world.pass_time(3.0)
        assert world.nodes["b:1"].is_committer
        assert creating.done()
        assert asking.done()
        assert (await creating).name == "u"
        await asyncio.gather(asking, return_exceptions=True)  # passed on by a node, which asks once
        await remote.close()


async def test_a_topic_whose_answer_was_lost_between_follower_and_committer_is_answered_by_the_next() -> None:
    async with started_world() as world:
        first, second = world.nodes.values()
        asked = CreateTopic("t", 1, {}, request_id=UUID(int=1))
        world.store.hold_writes()
        lost = asyncio.ensure_future(second.sequencer.create_topic(asked))  # passed on to the first
        await world.pass_time(0.5)
        world.weather["a:1"].loss = 1.0  # what it answers is lost
        world.store.release_writes()
        await world.pass_time(0.1)
        world.freeze("a:1")
        with pytest.raises(SequencerUnavailable):
            await world.during(lost)
        await world.pass_time(3.0)
        assert second.is_committer and not first.is_committer
        (stored,) = (await world.store.load())[TopicRow]
        repeated = await world.during(second.sequencer.create_topic(asked))
        assert isinstance(stored, TopicRow) and repeated.topic_id == stored.topic_id


async def test_a_node_that_closes_gives_the_lease_to_the_next_at_once() -> None:
    async with started_world() as world:
        first, second = world.nodes.values()
        await world.during(first.close())
        await world.pass_time(0.6)
        assert second.is_committer


async def test_a_server_whose_term_fails_to_begin_after_its_copy_was_handed_over_follows_the_next() -> None:
    async with started_world() as world:
        node, cut = world.nodes["b:1"], world.cuts["b:1"]
        await world.during(world.nodes["a:1"].sequencer.create_topic(CreateTopic("first", 1, {})))
        await world.pass_time(1)
        assert node._follower is not None and node._follower.number > 0
        cut.is_without_journal = True
        await world.during(world.nodes["a:1"].close())
        await world.pass_time(1)
        assert cut.calls["release_committer_lease"] > 0, "it tried to begin a term"
        third = Committer(world.store, world.clock, SeededEntropy(3), address="c:1", keeps_journal=True)
        await world.during(third.start())
        cut.is_without_journal = False
        await world.during(third.create_topic(CreateTopic("t", 1, {})))
        await world.pass_time(1)
        assert node._follower.state is not None and node._follower.state.topic_named("t") is not None
        await third.close()


async def test_a_server_says_as_of_which_number_it_has_the_rows_and_that_it_has_none_yet() -> None:
    async with started_world() as world:
        committer, standby = world.nodes["a:1"], world.nodes["b:1"]
        assert standby.copy_number == -1, "there is no journal to follow yet"
        await world.during(committer.sequencer.create_topic(CreateTopic("first", 1, {})))
        await world.pass_time(1)
        assert standby.copy_number == committer.copy_number == 1
        await world.during(committer.close())
        await world.pass_time(1)
        assert (standby.is_committer, standby.copy_number, committer.copy_number) == (True, 1, -1)


async def test_a_server_that_loads_lets_a_late_committer_continue_and_loads_once_to_take_over() -> None:
    async with started_world() as world:
        load, loads = world.store.load, 0

        async def slow_load() -> dict[type[Row], list[Row]]:
            nonlocal loads
            loads += 1
            for _ in range(20):
                await world.clock.sleep(1.0)
            return await load()

        committer, standby = world.nodes["a:1"], world.nodes["b:1"]
        local = committer._local
        with mock.patch.object(world.store, "load", slow_load):
            await world.during(committer.sequencer.create_topic(CreateTopic("first", 1, {})))
            await world.pass_time(5)
            world.cuts["a:1"].is_open.clear()
            await world.pass_time(5)
            assert not standby.is_committer, "its copy is being loaded"
            assert standby.committer_address == ""
            world.cuts["a:1"].is_open.set()
            await world.during(committer.sequencer.create_topic(CreateTopic("second", 1, {})))
            assert committer._local is local, "nobody has taken its lease"
            world.freeze("a:1")
            await world.pass_time(20)
        assert standby.is_committer and loads == 1
        known = await world.during(standby.sequencer.metadata(MetadataRequest()))
        assert {topic.name for topic in known.topics} == {"first", "second"}


async def test_a_server_that_knows_no_committer_says_why() -> None:
    async def reasons(node: SequencerServer) -> Sequence[str]:
        pages = SequencerPages()
        pages.server = node
        return (await pages.readiness()).reasons

    async with started_world() as world:
        committer, standby = world.nodes.values()
        assert await reasons(committer) == await reasons(standby) == []
        world.cuts["a:1"].is_open.clear()
        world.cuts["b:1"].is_away = True
        await world.pass_time(5)
        assert await reasons(committer) == [
            "no committer is known: the database does not confirm this server's lease as the committer"
        ]
        assert await reasons(standby) == ["no committer is known: the database is away"]
        world.cuts["b:1"].is_away, world.cuts["b:1"].is_full = False, True
        await world.pass_time(5)
        assert await reasons(standby) == ["no committer is known: the disk is full"]
        world.cuts["a:1"].is_open.set()
        await world.pass_time(30)
        assert await reasons(committer) == await reasons(standby) == []


async def test_a_server_waits_for_no_copy_that_the_journal_will_not_continue() -> None:
    async with started_world() as world:
        load, loads = world.store.load, 0

        async def slow_load() -> dict[type[Row], list[Row]]:
            nonlocal loads
            loads += 1
            for _ in range(60):
                await world.clock.sleep(1.0)
            return await load()

        committer = world.nodes["a:1"]
        with (
            mock.patch.object(world.store, "load", slow_load),
            mock.patch("sequencer.reading.journal.MAX_ROWS", 4),
        ):
            await world.during(committer.sequencer.create_topic(CreateTopic("first", 1, {})))
            await world.pass_time(5)
            assert loads == 1, "the standby's copy"
            for number in range(10):
                await world.during(committer.sequencer.create_topic(CreateTopic(f"t{number}", 1, {})))
            world.freeze("a:1")
            await world.pass_time(20)
            assert loads == 2, "the next term's"


async def test_a_server_that_follows_looks_for_the_committer_with_two_reads_and_no_write() -> None:
    async with started_world() as world:
        cut = world.cuts["b:1"]
        cut.calls.clear()
        await world.pass_time(10.0)
        assert {*cut.calls} <= {"committer_address", "identity", "journal_from"}
        assert 15 <= cut.calls["committer_address"] <= 21, "one look each half second"


async def test_a_lease_of_an_hour_after_the_databases_clock_went_back_keeps_nobody_from_leading() -> None:
    async with started_world() as world:
        first, second = world.nodes.values()
        assert first.is_committer
        world.freeze("a:1")
        world.store._expires_ms += 3_600_000
        await world.pass_time(5.0)
        assert not second.is_committer, "the first may have got a long lease from a slow database"
        await world.pass_time(LONGEST_LEASE_MS / 1000)
        assert second.is_committer and not first.is_committer


async def test_a_clock_that_goes_back_under_a_committer_that_lives_changes_nothing() -> None:
    async with started_world() as world:
        first, second = world.nodes.values()
        epoch = world.store._epoch
        world.store._expires_ms += 3_600_000
        await world.pass_time(1.5 * LONGEST_LEASE_MS / 1000)
        assert first.is_committer and not second.is_committer
        assert world.store._epoch == epoch


async def test_a_paused_committer_that_was_replaced_answers_nothing() -> None:
    async with started_world() as world:
        first, second = world.nodes.values()
        assert first._local is not None
        world.cuts["a:1"].is_open.clear()
        world.clock.advance(10)  # the first has not run meanwhile; the second has
        await second._try_to_lead()
        assert second.is_committer
        world.cuts["a:1"].is_open.set()
        with pytest.raises(SequencerUnavailable):
            await world.during(first.sequencer.metadata(MetadataRequest()))
        assert not first.is_committer


@pytest.mark.parametrize("way", ["read", "call"])
async def test_a_caller_that_saw_a_change_gets_nothing_older_from_a_replaced_committer(way: str) -> None:
    async with started_world() as world:
        first, second = world.nodes.values()
        assert first._local is not None
        remote = world.remote("a:1", "b:1")
        remote._reads_from = 0
        world.cuts["a:1"].is_away = True
        await world.store.release_committer_lease(first._local.epoch)  # as when the database's clock jumps
        await second._try_to_lead()
        remote._current = "b:1"
        await world.during(remote.create_topic(CreateTopic("t", 1, {})))
        remote._current = "a:1"
        remote._reads_at_committer_until = 0.0 if way == "read" else float("inf")
        assert first.is_committer, "as far as it can know"
        metadata = await world.during(remote.metadata(MetadataRequest()))
        assert [topic.name for topic in metadata.topics or []] == ["t"]
        await remote.close()


async def test_clients_whose_server_was_away_for_a_moment_come_back_to_it() -> None:
    async with started_world() as world:
        remotes = [world.remote("a:1", "b:1") for _ in range(8)]
        for remote in remotes:
            await world.during(remote.metadata(MetadataRequest()))
        assert {remote._reads_from for remote in remotes} == {0, 1}
        world.freeze("b:1")
        for remote in remotes:
            await world.during(remote.metadata(MetadataRequest()))
        assert {remote._reads_from for remote in remotes} == {0}, "nobody else answers"
        world.thaw("b:1")
        await world.pass_time(70.0)
        for remote in remotes:
            await world.during(remote.metadata(MetadataRequest()))
            await remote.close()
        assert {remote._reads_from for remote in remotes} == {0, 1}


async def test_while_the_databases_disk_is_full_reads_continue_and_writes_are_put_off() -> None:
    async with started_world() as world:
        first = world.nodes["a:1"]
        local = first._local
        await world.during(first.sequencer.create_topic(CreateTopic("t", 1, {})))
        for cut in world.cuts.values():
            cut.is_full = True
        for _ in range(6):
            await world.pass_time(5.0)
            metadata = await world.during(first.sequencer.metadata(MetadataRequest()))
            assert [topic.name for topic in metadata.topics or []] == ["t"]
            with pytest.raises(SequencerUnavailable):
                await world.during(first.sequencer.create_topic(CreateTopic("u", 1, {})))
        for cut in world.cuts.values():
            cut.is_full = False
        await world.pass_time(2.0)
        assert (await world.during(first.sequencer.create_topic(CreateTopic("u", 1, {})))).name == "u"
        assert first._local is local and first.is_committer


async def test_a_database_that_refuses_the_lease_is_unavailable_to_every_request() -> None:
    """No request has caused it: a refusal would tell clients, producers with transactions for good, not to retry."""
    async with started_world() as world:
        first, second = world.nodes.values()
        await world.during(first.sequencer.create_topic(CreateTopic("t", 1, {})))
        for cut in world.cuts.values():
            cut.is_refusing = True
        await world.pass_time(5.0)
        for node in (first, second):
            for call in (
                lambda node=node: node.sequencer.metadata(MetadataRequest()),
                lambda node=node: node.sequencer.create_topic(CreateTopic("u", 1, {})),
            ):
                with pytest.raises(SequencerUnavailable):
                    await world.during(call())
        assert {"no transaction ids" in node.no_committer for node in (first, second)} == {True}
        for cut in world.cuts.values():
            cut.is_refusing = False
        await world.pass_time(2.0)
        assert (await world.during(first.sequencer.create_topic(CreateTopic("u", 1, {})))).name == "u"


async def test_while_only_its_disk_is_full_a_committer_answers_nothing_once_another_has_the_lease() -> None:
    async with started_world() as world:
        first, second = world.nodes.values()
        await world.during(first.sequencer.create_topic(CreateTopic("t", 1, {})))
        world.cuts["a:1"].is_full = True
        await world.pass_time(4.0)
        assert second.is_committer and first._local is None
        with pytest.raises(SequencerUnavailable):
            await world.during(first._call_here(METHODS["metadata"], MetadataRequest()))


async def test_a_paused_committer_that_nobody_replaced_answers_what_waits_for_it() -> None:
    async with started_world() as world:
        first = world.nodes["a:1"]
        local = first._local
        waiting = asyncio.ensure_future(first.sequencer.create_topic(CreateTopic("t", 1, {})))
        world.clock.advance(10)
        assert (await world.during(waiting)).name == "t"
        assert first._local is local


async def test_a_state_that_takes_a_minute_to_load_is_served_at_the_end() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        clock, entropy = ManualClock(), SeededEntropy(9)
        rows = SlowLoads(clock)
        nodes = [
            SequencerServer(rows, clock, entropy, settings=ServerSettings(advertise=name))
            for name in ("a:1", "b:1")
        ]
        starting = [asyncio.ensure_future(node.start(listen=False)) for node in nodes]
        for _ in range(140):
            clock.advance(0.5)
            for _ in range(20):
                await asyncio.sleep(0)
        assert all(task.done() for task in starting)
        assert [node.is_committer for node in nodes] == [True, False]
        assert rows.loads == 1
        rows.fail_next_write("after")
        with pytest.raises(SequencerUnavailable):
            await nodes[0].sequencer.create_topic(CreateTopic("t", 1, {}))
        reading = asyncio.ensure_future(nodes[0].sequencer.metadata(MetadataRequest()))
        for _ in range(140):
            clock.advance(0.5)
            for _ in range(20):
                await asyncio.sleep(0)
        topics = (await reading).topics or []
        assert [topic.name for topic in topics] == ["t"]
        assert [node.is_committer for node in nodes] == [True, False]
        assert rows.loads == 3, "the committer's second, and one by the server that follows it"
        for node in reversed(nodes):
            await node.close()


async def test_the_committer_writes_checkpoints_and_the_next_one_continues_from_them() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        clock, entropy = ManualClock(), SeededEntropy(9)
        rows, bucket = HookedRowStore(clock, cluster_id="c"), MemoryStore(clock)

        async def lead(name: str) -> SequencerServer:
            node = SequencerServer(
                rows, clock, entropy, settings=ServerSettings(advertise=name), object_store=bucket
            )
            await node.start(listen=False)
            return node

        first = await lead("a:1")
        assert first.checkpoint_age_s == 0
        made = asyncio.ensure_future(first.sequencer.create_topic(CreateTopic("t", 1, {})))
        while not made.done():
            clock.advance(0.1)
            await asyncio.sleep(0)
        await made
        await first.close()
        heads = [info.key async for info in bucket.list("c/meta/") if info.key.endswith(".head")]
        assert len(heads) > 1
        found = await read_checkpoints(bucket, "c")
        assert found.chain is None or found.chain.last.reservation == 0
        second = await lead("b:1")
        assert second.is_committer and second.lost is None
        await second.close()


async def test_while_the_first_head_takes_long_a_new_committer_answers_and_only_commits_wait() -> None:
    class HeldBucket(MemoryStore):
        def __init__(self, clock: ManualClock) -> None:
            super().__init__(clock)
            self.is_open = asyncio.Event()

        async def put(self, key: str, parts: Sequence[Buffer], **more: Any) -> Any:
            if key.endswith(".head"):
                await self.is_open.wait()
            return await super().put(key, parts, **more)

    async with asyncio.timeout(PATIENCE_SECONDS):
        clock, entropy = ManualClock(), SeededEntropy(9)
        rows, bucket = HookedRowStore(clock, cluster_id="c"), HeldBucket(clock)
        node = SequencerServer(
            rows, clock, entropy, settings=ServerSettings(advertise="a:1"), object_store=bucket
        )

        async def during(call: Awaitable[Any]) -> Any:
            task = asyncio.ensure_future(call)
            while not task.done():
                clock.advance(0.1)
                for _ in range(10):
                    await asyncio.sleep(0)
            return await task

        began = clock.monotonic()
        await during(node.start(listen=False))
        assert node.is_committer and clock.monotonic() - began < 2.0
        await during(node.sequencer.register_agent(AGENT))
        with pytest.raises(SequencerUnavailable):
            await during(node.sequencer.create_topic(CreateTopic("t", 1, {})))
        bucket.is_open.set()
        assert (await during(node.sequencer.create_topic(CreateTopic("u", 1, {})))).name == "u"
        heads = [info.key async for info in bucket.list("c/meta/") if info.key.endswith(".head")]
        assert len(heads) >= 2, "the first head was written once, and then the one with the topics"
        await during(node.close())


async def test_a_node_whose_database_is_older_than_the_bucket_is_lost_and_says_why() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        clock, entropy = ManualClock(), SeededEntropy(9)
        rows, bucket = HookedRowStore(clock, cluster_id="c"), MemoryStore(clock)
        await write_cluster_file(bucket, DatabaseIdentity("c", 2))
        reasons: list[str] = []
        node = SequencerServer(
            rows, clock, entropy, object_store=bucket, on_lost=reasons.append,
            settings=ServerSettings(advertise="a:1"),
        )  # fmt: skip
        await node.start(listen=False)
        assert node.lost is not None and not node.is_committer
        assert len(reasons) == 1 and "incarnation 2" in reasons[0]
        with pytest.raises(IncarnationChanged):
            await node.sequencer.metadata(MetadataRequest())
        await node.close()


async def test_a_standby_that_finds_another_database_in_the_place_of_its_own_leaves_its_lease_alone() -> None:
    async with started_world() as world:
        committer, standby = world.nodes.values()
        world.freeze("a:1")
        another = world.cuts["b:1"]
        another._store = HookedRowStore(world.clock, cluster_id="another")
        before = another.calls["take_committer_lease"]
        await world.pass_time(30)
        assert standby.lost is not None and "'another'" in str(standby.lost)
        assert another.calls["take_committer_lease"] == before
        assert not committer.is_committer


@pytest.mark.parametrize("lost", ["positions of a group", "a producer id"])
async def test_a_standby_leads_no_database_that_has_lost_what_its_copy_had(lost: str) -> None:
    """Without the producer id, which no reader sees, the next producer would be granted it too."""
    async with started_world() as world:
        committer, standby = world.nodes.values()
        topic = await world.during(committer.sequencer.create_topic(CreateTopic("t", 1, {})))
        parts = ("_hot", "_journal")
        before = {
            part: {kind: copy(rows) for kind, rows in getattr(world.store, part).items()} for part in parts
        }
        if lost == "a producer id":
            await world.during(committer.sequencer.init_producer(InitProducer()))
        else:
            commit = CommitOffsets("g", -1, -1, -1, "", [OffsetPosition(topic.topic_id, 0, 0, 0, "")])
            await world.during(committer.sequencer.commit_offsets(commit))
        await world.pass_time(1.0)
        world.freeze("a:1")
        for part, rows in before.items():
            setattr(world.store, part, rows)
        await world.pass_time(30)
        assert "lost the commits in between" in str(standby.lost) and not standby.is_committer


async def test_a_topic_whose_first_checkpoint_takes_long_is_created_and_not_said_to_exist() -> None:
    class SlowBucket(MemoryStore):
        seconds = 0.0

        async def put(self, key: str, parts: Sequence[Buffer], **more: Any) -> Any:
            await clock.sleep(self.seconds)
            return await super().put(key, parts, **more)

    clock, entropy = ManualClock(), SeededEntropy(9)

    async with asyncio.timeout(PATIENCE_SECONDS):
        rows, bucket = HookedRowStore(clock, cluster_id="c"), SlowBucket(clock)
        nodes: dict[str, SequencerServer] = {}

        def link(address: str) -> SimulatedLink:
            return SimulatedLink(nodes[address].server, clock=clock, entropy=entropy, address=address)

        for name in ("a:1", "b:1"):
            nodes[name] = SequencerServer(
                rows, clock, entropy, settings=ServerSettings(advertise=name), object_store=bucket, link=link
            )
            await nodes[name].start(listen=False)
        bucket.seconds = 7.0
        remote = SequencerClient(["b:1"], clock=clock, entropy=entropy, link=link, patience_s=20)
        made = asyncio.ensure_future(remote.create_topic(CreateTopic("t", 3, {"retention.ms": "5"})))
        while not made.done():
            clock.advance(0.1)
            for _ in range(20):
                await asyncio.sleep(0)
        assert (await made).partitions == 3
        bucket.seconds = 0.0
        await remote.close()
        for node in reversed(nodes.values()):
            closing = asyncio.ensure_future(node.close())
            while not closing.done():
                clock.advance(0.1)
                await asyncio.sleep(0)


async def test_housekeeping_continues_after_an_error_that_was_not_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started_world(has_bucket=True) as world:
        local = world.nodes["a:1"]._local
        assert local is not None
        asked: list[str] = []

        def breaking(name: str) -> Callable[[object], Awaitable[None]]:
            async def breaks(*_: object) -> None:
                asked.append(name)
                raise ZeroDivisionError("a bug")

            return breaks

        local.apply_retention = breaking("retention")  # type: ignore[method-assign, assignment]
        monkeypatch.setattr(server, "collect", breaking("collection"))
        await world.pass_time(100)
        assert Counter(asked) == {"retention": 3, "collection": 3}
        assert world.nodes["a:1"]._local is local
