"""An agent's own lease: kept, taken again when it lapsed, and given up to the agent that was started in its place."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from agent.options import AgentOptions
from agent.produce.active_buffer import BufferedBatch
from agent.server import DRAIN_MARGIN_SECONDS, Agent
from agent.settings import AgentSettings
from sequencer.api.agents import AgentRef
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.interface import Sequencer
from sequencer.api.topics import CreateTopic, MetadataRequest
from sequencer.api.values import Value
from sequencer.engine.committer import Committer
from sequencer.methods import Method
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.mixed_object import coordinates
from tailrace.batches.record_batch import read_header
from tailrace.ids import TopicPartition
from tailrace.object_store.memory import MemoryStore
from tests.support.agents import AwaitedSubmission, batch, settle
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS


class Hosts:
    """One sequencer, and agents that all say they are at the same address."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rows = MemoryRowStore(self.clock)
        self.sequencer = Committer(self.rows, self.clock, SeededEntropy(1))
        self.lost: list[str] = []
        self._agents: list[Agent] = []

    async def start(self, seed: int) -> Agent:
        agent = Agent(
            AgentOptions(listen_port=0, advertise_host="one-host", advertise_port=9092),
            AgentSettings.model_validate({"drain_ms": 0}),
            sequencer=self.sequencer,
            store=MemoryStore(self.clock),
            clock=self.clock,
            entropy=SeededEntropy(seed),
            on_lost=self.lost.append,
        )
        await agent.start()
        self._agents.append(agent)
        return agent

    async def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            await settle()

    async def epochs(self) -> list[int]:
        ring = (await self.sequencer.metadata(MetadataRequest())).ring
        assert ring is not None
        return [member.epoch for member in ring.members]

    async def end(self) -> None:
        ending = asyncio.gather(*(agent.drain() for agent in self._agents))
        while not ending.done():
            self.clock.advance(0.1)
            await settle()
        await ending
        await self.sequencer.close()


@asynccontextmanager
async def opened_hosts() -> AsyncIterator[Hosts]:
    hosts = Hosts()
    await hosts.sequencer.start()
    try:
        yield hosts
    finally:
        await hosts.end()


async def test_an_agent_whose_address_another_one_took_ends_and_takes_nothing_back() -> None:
    async with opened_hosts() as hosts:
        first = await hosts.start(2)
        await hosts.advance(5)
        second = await hosts.start(3)
        await hosts.advance(10)

        (reason,) = hosts.lost
        assert "one-host:9092" in reason and "--advertise" in reason
        assert not first.is_ready and second.is_ready
        await hosts.advance(30)
        assert len(hosts.lost) == 1 and second.is_ready, "nobody takes it back"


async def test_a_lease_that_lapsed_while_nobody_had_a_turn_is_renewed() -> None:
    async with opened_hosts() as hosts:
        agent = await hosts.start(2)
        hosts.clock.advance(30)
        assert not agent.is_ready
        await hosts.advance(10)
        assert agent.is_ready and not hosts.lost
        assert await hosts.epochs() == [1]


async def test_a_lease_that_was_ended_is_taken_again() -> None:
    async with opened_hosts() as hosts:
        agent = await hosts.start(2)
        await hosts.sequencer.release_agent(AgentRef(1, 1))
        await hosts.advance(10)
        assert agent.is_ready and not hosts.lost
        assert await hosts.epochs() == [2]


class SilentSequencer:
    """A sequencer that can fall silent: what is asked then fails after 10 s, as SequencerClient's calls do."""

    def __init__(self, inner: Committer, clock: ManualClock) -> None:
        self.inner = inner
        self.is_away = False
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        async def asked(request: Any) -> Any:
            if self.is_away:
                await self._clock.sleep(10)
                raise SequencerUnavailable("away (by the test)")
            return await getattr(self.inner, name)(request)

        return asked


async def test_a_drain_ends_in_time_if_each_of_its_parts_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_hosts() as hosts:
        agent = await hosts.start(2)
        part = Agent._part

        def hanging(agent: Agent, name: str, work: Any, *seconds: float) -> Any:
            work.close()
            return part(agent, name, hosts.clock.sleep(1_000), *seconds)

        monkeypatch.setattr(Agent, "_part", hanging)
        draining = asyncio.ensure_future(agent.drain())
        took = 0
        while not draining.done():
            await hosts.advance(1)
            took += 1
        assert took <= DRAIN_MARGIN_SECONDS
        monkeypatch.undo()
        await agent._stop()


@pytest.mark.parametrize("drain_ms", [0, 30_000])
async def test_a_drain_ends_in_time_while_the_sequencer_is_away(drain_ms: int) -> None:
    clock = ManualClock()
    local = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
    await local.start()
    sequencer = SilentSequencer(local, clock)
    agent = Agent(
        AgentOptions(listen_port=0),
        AgentSettings.model_validate({"drain_ms": drain_ms, "quiet_ms": 0}),
        sequencer=cast(Sequencer, sequencer),
        store=MemoryStore(clock),
        clock=clock,
        entropy=SeededEntropy(2),
    )
    await agent.start()
    topic = await local.create_topic(CreateTopic("t", 1, {}))
    sequencer.is_away = True
    data = batch(b"never committed")
    submission = AwaitedSubmission(1)
    agent.services.lanes.submit(
        [
            (
                TopicPartition(topic.topic_id, 0),
                "t",
                BufferedBatch(coordinates(read_header(data)), data, submission, 0),
            )
        ]
    )
    await settle()
    began = clock.monotonic()
    draining = asyncio.ensure_future(agent.drain())
    while not draining.done() and clock.monotonic() < began + 1_000:
        clock.advance(0.1)
        await settle()
    assert draining.done() and draining.exception() is None
    assert clock.monotonic() - began <= drain_ms / 1000 + DRAIN_MARGIN_SECONDS
    assert submission.done.done(), "its producer was told to retry"
    closing = asyncio.ensure_future(local.close())
    while not closing.done():
        clock.advance(0.1)
        await settle()


async def test_idle_connections_are_closed_also_after_an_error_that_was_not_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened_hosts() as hosts:
        agent = await hosts.start(2)
        broken = asyncio.Event()

        def breaks(now: float) -> None:
            broken.set()
            raise ZeroDivisionError("a bug")

        _, writer = await asyncio.open_connection("127.0.0.1", agent.kafka_port)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not agent._connections:
                await asyncio.sleep(0.01)
            with monkeypatch.context() as patched:
                patched.setattr(agent.telemetry.client_metrics, "forget_silent", breaks)
                while not broken.is_set():
                    await hosts.advance(1)
            hosts.clock.advance(agent._settings.idle_connection_ms / 1000)
            while agent._connections:
                await hosts.advance(1)
        writer.close()


async def test_a_lease_is_kept_also_after_an_unexpected_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_hosts() as hosts:
        agent = await hosts.start(2)

        async def breaks(request: object) -> None:
            raise ZeroDivisionError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(hosts.sequencer, "renew_agent", breaks)
            await hosts.advance(5)
        await hosts.advance(10)
        assert agent.is_ready and not hosts.lost


async def test_an_agent_asks_for_metadata_where_a_renewal_says_that_there_is_something_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened_hosts() as hosts:
        agent = await hosts.start(2)
        await hosts.advance(5)
        calls: Counter[str] = Counter()
        call = hosts.sequencer.call

        async def counted(method: Method, request: Value) -> Value:
            calls[method.name] += 1
            return await call(method, request)

        monkeypatch.setattr(hosts.sequencer, "call", counted)
        await hosts.advance(12)
        assert 11 <= calls["renew_agent"] <= 12 and calls["renew_session"] == 4
        assert calls.keys() == {"renew_agent", "renew_session"}, "nothing has changed"
        await hosts.sequencer.create_topic(CreateTopic("t", 1, {}))
        await hosts.advance(2)
        assert calls["metadata"] == 1 and "t" in agent.catalog.snapshot.by_name
