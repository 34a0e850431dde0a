"""A dead neighbour is reported; a slow one is not."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from agent.errors import produce_code
from agent.neighbour import NeighbourWatch, neighbour_of
from sequencer.api.agents import AgentInfo, AgentRef, Member, RenewAgent, Ring
from sequencer.api.commits import BatchError
from sequencer.api.errors import LeaseLost
from sequencer.api.topics import MetadataRequest
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.kafka.error_codes import ErrorCode
from tailrace.rpc import CallFailed, CallTimedOut, NotConnected
from tests.support.agents import settle
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS, opened


def ring_of(*broker_ids: int) -> Ring:
    return Ring(1, [Member(each, 1, info(each), False) for each in broker_ids])


def info(number: int) -> AgentInfo:
    return AgentInfo(f"host-{number}", 9092, f"host-{number}", 9093, 0, "z", "0", UUID(int=number))


def test_the_neighbour_is_the_next_one_round() -> None:
    ring = ring_of(1, 3, 7)
    assert [neighbour_of(ring, each).broker_id for each in (1, 3, 7)] == [3, 7, 1]  # type: ignore[union-attr]
    assert neighbour_of(ring_of(3), 3) is None
    assert neighbour_of(ring_of(), 3) is None


def test_an_agent_that_drains_is_not_watched() -> None:
    draining = Member(2, 1, info(2), True)
    ring = Ring(1, [*ring_of(1, 3).members, draining])
    assert neighbour_of(ring, 1).broker_id == 3  # type: ignore[union-attr]


def test_an_agent_without_a_peer_address_cannot_be_watched() -> None:
    alone = AgentInfo("h", 9092, "", 0, 0, "z", "0", UUID(int=9))
    ring = Ring(1, [*ring_of(1, 3).members, Member(2, 1, alone, False)])
    assert neighbour_of(ring, 1).broker_id == 3  # type: ignore[union-attr]


class Link:
    """A way to the neighbour that answers, refuses, or is silent."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked = 0

    async def call(self, method: str, request: Any, response_type: Any, timeout_s: float) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return response_type(), memoryview(b"")

    async def close(self) -> None:
        """Nothing is open."""


class Pair:
    """Two registered agents of one sequencer, of which the first watches the second. Time is stepped."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sequencer = Committer(MemoryRowStore(self.clock), self.clock, SeededEntropy(1))
        self.link = Link()

    async def open(self) -> None:
        await self.sequencer.start()
        leases = [await self.sequencer.register_agent(info(number)) for number in (1, 2)]
        self.me, self.other = (AgentRef(lease.broker_id, lease.epoch) for lease in leases)
        await self.refresh()
        watch = NeighbourWatch(
            lambda: self.ring,
            lambda: self.me.broker_id,
            lambda member: self.link,
            self.sequencer,
            self.refresh,
            self.clock,
        )
        self.watching = asyncio.create_task(watch.run())

    async def close(self) -> None:
        self.watching.cancel()
        await self.sequencer.close()

    async def refresh(self) -> None:
        ring = (await self.sequencer.metadata(MetadataRequest())).ring
        assert ring is not None
        self.ring = ring

    async def advance(self, seconds: float, *renewing: AgentRef) -> None:
        for step in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            await settle()
            if step % 10 == 9:
                for agent in renewing:
                    await self.sequencer.renew_agent(RenewAgent(agent.broker_id, agent.epoch))

    @property
    def members(self) -> list[int]:
        return [member.broker_id for member in self.ring.members]


async def test_an_agent_that_falls_silent_is_out_of_the_ring_after_four_seconds() -> None:
    async with opened(Pair()) as pair:
        both = [pair.me.broker_id, pair.other.broker_id]
        await pair.advance(12, pair.me, pair.other)
        assert pair.members == both and pair.link.asked > 12
        pair.link.error = NotConnected("refused")
        await pair.advance(2.5, pair.me)
        assert pair.members == both, "the sequencer heard of it not long ago"
        await pair.advance(1.5, pair.me)
        assert pair.members == [pair.me.broker_id]
        asked = pair.link.asked
        await pair.advance(3, pair.me)
        assert pair.link.asked == asked, "nobody is left to be watched"


async def test_an_agent_that_the_sequencer_hears_stays_and_is_asked_less_often() -> None:
    async with opened(Pair()) as pair:
        pair.link.error = CallTimedOut("silent")
        await pair.advance(20, pair.me, pair.other)
        asked = pair.link.asked
        await pair.advance(20, pair.me, pair.other)
        assert pair.members == [pair.me.broker_id, pair.other.broker_id]
        assert 1 <= pair.link.asked - asked <= 5


async def test_an_agent_that_has_drained_is_no_reason_for_a_warning_and_one_that_fell_silent_is() -> None:
    async def drained(pair: Pair) -> None:
        await pair.sequencer.release_agent(pair.other)
        pair.link.error = NotConnected("refused")
        await pair.advance(2, pair.me)
        assert pair.members == [pair.me.broker_id]

    async def silent(pair: Pair) -> None:
        pair.link.error = NotConnected("refused")
        await pair.advance(2, pair.me)

    for scenario, levels in ((drained, []), (silent, ["warning"])):
        with capture_logs() as said:
            async with opened(Pair()) as pair:
                await scenario(pair)
        assert [line["log_level"] for line in said] == levels


async def test_an_agent_that_does_not_know_the_question_is_alive() -> None:
    async with opened(Pair()) as pair:
        pair.link.error = CallFailed("bad_request", "ping")
        await pair.advance(6, pair.me)
        assert pair.members == [pair.me.broker_id, pair.other.broker_id]


async def test_agents_have_time_to_renew_after_the_sequencer_was_away() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        clock = ManualClock()
        store = MemoryRowStore(clock)
        before = Committer(store, clock, SeededEntropy(1))
        await before.start()
        agent = await before.register_agent(info(1))
        await before.close()
        clock.advance(60)

        after = Committer(store, clock, SeededEntropy(2))
        await after.start()
        for _ in range(25):
            clock.advance(0.1)
            await settle()
        await after.renew_agent(RenewAgent(agent.broker_id, agent.epoch))
        for _ in range(30):
            clock.advance(0.1)
            await settle()
        await after.renew_agent(RenewAgent(agent.broker_id, agent.epoch))

        silent = await after.register_agent(info(2))
        for _ in range(140):
            clock.advance(0.1)
            await settle()
        with pytest.raises(LeaseLost):
            await after.renew_agent(RenewAgent(silent.broker_id, silent.epoch))
        await after.close()


def test_a_gap_that_another_agent_may_close_is_to_be_sent_again() -> None:
    for is_alone, code in (
        (True, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (False, ErrorCode.REQUEST_TIMED_OUT),
    ):
        assert produce_code(BatchError.SEQUENCE_GAP, 11, is_transactional=False, is_alone=is_alone) is code
