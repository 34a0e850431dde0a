"""The sequencer behind RPC: every method of the interface, errors by their types, and calls asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sequencer import client
from sequencer.api.agents import AgentInfo
from sequencer.api.commits import CommitAnswer, CommitRequest
from sequencer.api.errors import (
    IncarnationChanged,
    InvalidRequest,
    ProducerFenced,
    RequestFailed,
    SequencerOverloaded,
    SequencerUnavailable,
    StaleGroup,
    TopicExists,
    UnknownTopic,
)
from sequencer.api.groups import CommitOffsets, GroupState, LoadGroup, OffsetPosition, SaveGroup, first_turn
from sequencer.api.interface import Sequencer
from sequencer.api.objects import ObjectsRequest
from sequencer.api.producers import InitProducer, ProducerGrant
from sequencer.api.topics import CreatePartitions, CreateTopic, DeleteTopic, MetadataRequest
from sequencer.api.transactions import AddToTransaction, EndTransaction, TransactionRef
from sequencer.api.values import Empty, Value
from sequencer.client import SequencerClient
from sequencer.engine.committer import Committer
from sequencer.methods import METHODS, Method, SequencerMethods
from sequencer.rpc_handler import RpcHandler
from sequencer.store.memory import MemoryRowStore
from sequencer.store.row_store import ObjectRowMissing
from tailrace.buffers import Buffer
from tailrace.clock import SystemClock
from tailrace.rpc import ClusterIdentity, KnownCluster, RpcServer, encode_body
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.simulated_link import SimulatedLink, Weather


class World:
    """A sequencer, its service, and named ways to it; a handler in between may lose answers."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.entropy = SeededEntropy(3)
        self.local = Committer(MemoryRowStore(ManualClock()), ManualClock(), SeededEntropy(1))
        self.service = RpcHandler(self.local.call)
        self.lose_answers = 0
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """What happens between a request whose answer is lost and its repeat."""
        self.asked: list[str] = []
        self.links: dict[str, SimulatedLink] = {}
        for name in ("one:1", "two:1"):
            server = RpcServer(
                self.handle,
                clock=self.clock,
                entropy=self.entropy,
                known=KnownCluster(ClusterIdentity("memory", 1)),
            )
            weather = Weather()
            self.links[name] = SimulatedLink(
                server, clock=self.clock, entropy=self.entropy, address=name, weather=weather
            )

    async def handle(self, method: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        self.asked.append(method)
        try:
            return await self.service.handle(method, body)
        finally:
            if self.lose_answers:
                self.lose_answers -= 1
                if self.meanwhile is not None:
                    await self.meanwhile()
                for link in self.links.values():
                    link.cut()

    def remote(self, **options: Any) -> SequencerClient:
        options.setdefault("patience_s", PATIENCE_SECONDS)
        return SequencerClient(
            ["one:1", "two:1"],
            clock=self.clock,
            entropy=self.entropy,
            link=lambda address: self.links[address],
            **options,
        )


@asynccontextmanager
async def started_world() -> AsyncIterator[World]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = World()
        await world.local.start()
        yield world
        await world.local.close()


def test_every_method_of_the_interface_is_served_and_asked() -> None:
    named = {name for name in vars(Sequencer) if not name.startswith("_")} - {"close"}
    assert set(METHODS) == named
    assert named <= set(vars(SequencerMethods))
    assert METHODS["commit"].request is CommitRequest
    assert METHODS["commit"].answer is CommitAnswer


async def test_errors_keep_their_type_and_message() -> None:
    async with started_world() as world:
        remote = world.remote()
        await remote.create_topic(CreateTopic("t", 1, {}))
        with pytest.raises(TopicExists, match="'t'"):
            await remote.create_topic(CreateTopic("t", 1, {}))
        with pytest.raises(UnknownTopic):
            await remote.delete_topic(DeleteTopic(world.entropy.uuid()))
        await remote.close()
        with pytest.raises(SequencerUnavailable, match="closed"):
            await remote.metadata(MetadataRequest())


async def test_a_read_of_rows_that_contradict_each_other_fails_at_once_at_one_server() -> None:
    async with started_world() as world:

        async def contradicts(*_: object) -> Value:
            raise ObjectRowMissing("the run at 0 names an object which has no row")

        world.local._calls["objects"] = contradicts
        remote = world.remote()
        with pytest.raises(RequestFailed, match="has no row"):
            await remote.objects(ObjectsRequest("", 1))
        assert len(world.asked) == 1
        await remote.close()


async def test_an_unknown_method_and_a_malformed_request_are_named() -> None:
    async with started_world() as world:
        remote = world.remote()
        with pytest.raises(InvalidRequest, match="no method 'fly'"):
            await remote.call(Method("fly", Empty, Empty), Empty())
        with pytest.raises(InvalidRequest, match="not a CreateTopic"):
            await remote.call(METHODS["create_topic"], Empty())
        for method in METHODS:
            with pytest.raises(Exception, match="bad_request"):
                await world.service.handle(method, memoryview(encode_body("x")))
        await remote.close()


async def test_another_address_is_asked_when_one_is_away() -> None:
    async with started_world() as world:
        remote = world.remote()
        world.links["one:1"].weather.is_down = True
        await remote.create_topic(CreateTopic("t", 1, {}))
        await remote.close()


async def test_an_overloaded_sequencer_is_left_alone_for_a_while_and_no_other_is_asked_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_OVERLOAD_PAUSE_S", 0.01)

    async with started_world() as world:
        remote, left, call = world.remote(), 5, world.local.call

        async def overloaded(method: Method, request: Value) -> Value:
            nonlocal left
            left -= 1
            if left:
                raise SequencerOverloaded("10000 requests are queued")
            return await call(method, request)

        world.service = RpcHandler(overloaded)
        assert (await remote.init_producer(InitProducer())).producer_id == 1
        assert world.asked == ["init_producer"] * 5
        assert remote._current == "one:1"
        left = 1_000
        with pytest.raises(SequencerOverloaded):
            await world.remote(patience_s=0.05).init_producer(InitProducer())
        await remote.close()


async def test_without_any_server_the_call_fails_at_its_deadline() -> None:
    async with started_world() as world:
        remote = world.remote(patience_s=0.1)
        for link in world.links.values():
            link.weather.is_down = True
        with pytest.raises(SequencerUnavailable, match=r"connection refused|tried again"):
            await remote.metadata(MetadataRequest())
        await remote.close()


async def test_requests_whose_first_answer_was_lost_succeed_when_retried() -> None:
    async with started_world() as world:
        remote = world.remote()
        world.lose_answers = 1
        topic = await remote.create_topic(CreateTopic("t", 1, {"retention.ms": "5"}))
        assert topic.partitions == 1
        world.lose_answers = 1
        assert (await remote.create_partitions(CreatePartitions(topic.topic_id, 3))).partitions == 3
        world.lose_answers = 1
        assert await remote.delete_topic(DeleteTopic(topic.topic_id)) == Empty()
        assert world.asked.count("delete_topic") == 2
        await remote.close()


async def test_another_topic_of_the_same_name_is_not_taken_for_our_own() -> None:
    async with started_world() as world:
        await world.local.create_topic(CreateTopic("t", 7, {}))
        remote = world.remote()
        world.lose_answers = 1
        with pytest.raises(TopicExists):
            await remote.create_topic(CreateTopic("t", 1, {}))
        assert world.asked.count("create_topic") == 2
        await remote.close()
        world.links["one:1"].weather.is_down = True
        remote = world.remote()
        with pytest.raises(TopicExists):  # nothing was sent to `one`: no reason to think that it is ours
            await remote.create_topic(CreateTopic("t", 7, {}))
        await remote.close()


async def test_an_end_that_was_carried_out_is_unknown_when_its_repeat_is_fenced() -> None:
    async with started_world() as world:
        local, remote = world.local, world.remote()
        topic = await local.create_topic(CreateTopic("t", 1, {}))

        async def transact(producer: ProducerGrant) -> EndTransaction:
            named = TransactionRef("id", producer.producer_id, producer.producer_epoch)
            await local.add_to_transaction(AddToTransaction(named, [(topic.topic_id, 0)]))
            return EndTransaction(named, is_commit=True, bumps_epoch=True)

        async def have_another_producer_end() -> None:
            await local.end_transaction(
                await transact(
                    await local.init_producer(InitProducer(transactional_id="id", timeout_ms=60_000))
                )
            )

        end = await transact(
            await local.init_producer(InitProducer(transactional_id="id", timeout_ms=60_000))
        )
        world.lose_answers, world.meanwhile = 1, have_another_producer_end

        with pytest.raises(SequencerUnavailable, match="may have been carried out"):
            await remote.end_transaction(end)

        with pytest.raises(ProducerFenced):  # asked once, and refused: surely not carried out by this request
            await remote.end_transaction(end)
        await remote.close()


async def test_positions_that_were_committed_are_unknown_when_their_repeat_is_of_an_old_generation() -> None:
    async with started_world() as world:
        local, remote = world.local, world.remote()
        topic = await local.create_topic(CreateTopic("t", 1, {}))
        agent = await local.register_agent(
            AgentInfo("host", 9092, "host", 9093, 0, "zone", "", world.entropy.uuid())
        )
        owner = (agent.broker_id, agent.epoch)
        await local.load_group(LoadGroup("group", *owner))

        async def make_generation(number: int) -> None:
            state = GroupState("group", number, "Stable", "consumer", ["member"], b"")
            await local.save_group(SaveGroup(*owner, state))

        await make_generation(1)
        position = OffsetPosition(topic.topic_id, 0, 7, -1, "")
        commit = CommitOffsets("group", *owner, 1, "member", [position], turn=first_turn(0) + 1)
        world.lose_answers, world.meanwhile = 1, lambda: make_generation(2)

        with pytest.raises(SequencerUnavailable, match="may have been carried out"):
            await remote.commit_offsets(commit)

        with pytest.raises(StaleGroup):
            await remote.commit_offsets(commit)
        await remote.close()


async def test_a_server_of_another_incarnation_stops_the_caller() -> None:
    async with started_world() as world:
        remote = world.remote(known=KnownCluster(ClusterIdentity("memory", 2)))
        with pytest.raises(IncarnationChanged, match="incarnation"):
            await remote.metadata(MetadataRequest())
        await remote.close()


async def test_calls_survive_a_link_that_loses_frames() -> None:
    async with started_world() as world:
        for link in world.links.values():
            link.weather.loss = 0.1
        remote = world.remote(timeout_s=0.3)
        topics = [await remote.create_topic(CreateTopic(f"t{n}", 1, {})) for n in range(20)]
        metadata = await remote.metadata(MetadataRequest())
        assert metadata.topics is not None
        assert {t.topic_id for t in metadata.topics} == {t.topic_id for t in topics}
        await remote.close()
