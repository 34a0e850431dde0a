"""A dead neighbour is told of; what only is slow is not."""

from __future__ import annotations

import asyncio
from uuid import UUID

from agent.errors import produce_code
from agent.neighbour import is_refused, neighbour_of, watch_neighbour
from agent.protocol.error_codes import ErrorCode
from sequencer.api import AgentInfo, AgentRef, BatchError, Member, RenewAgent, Ring
from sequencer.committer import LocalSequencer
from sequencer.memory import MemoryRowStore
from sequencer.rows import AgentRow
from tailrace.cli.demo.ports import free_port
from tailrace.clock import ManualClock, SeededEntropy
from tests.support.agents import settle


def ring_of(*broker_ids: int) -> Ring:
    return Ring(1, [Member(each, 1, info(each), False) for each in broker_ids])


def info(number: int) -> AgentInfo:
    return AgentInfo(f"host-{number}", 9092, "", 0, 0, "z", "0", UUID(int=number))


def test_the_neighbour_is_the_next_one_round() -> None:
    ring = ring_of(1, 3, 7)
    assert [neighbour_of(ring, each).broker_id for each in (1, 3, 7)] == [3, 7, 1]  # type: ignore[union-attr]
    assert neighbour_of(ring_of(3), 3) is None
    assert neighbour_of(ring_of(), 3) is None


def test_a_dead_agents_lease_is_cut_and_a_live_ones_outlives_the_suspicion() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        sequencer = LocalSequencer(MemoryRowStore(clock), clock, SeededEntropy(1))
        await sequencer.start()
        leases = [await sequencer.register_agent(info(number)) for number in (1, 2)]
        me, other = (AgentRef(lease.broker_id, lease.epoch) for lease in leases)
        asked: list[str] = []
        refuses = False

        async def refused(host: str, port: int) -> bool:
            asked.append(host)
            return refuses

        members = [Member(each.broker_id, each.epoch, info(each.broker_id), False) for each in (me, other)]
        watching = asyncio.create_task(
            watch_neighbour(lambda: Ring(1, members), lambda: me.broker_id, sequencer, clock, refused)
        )

        async def advance(seconds: float) -> None:
            for _ in range(round(seconds / 0.1)):
                clock.advance(0.1)
                await settle()

        def left_s() -> float:
            row = next(row for row in sequencer._state.all(AgentRow) if row.broker_id == other.broker_id)
            return (row.expires_ms - clock.wall_ms()) / 1000

        await advance(2.1)
        assert set(asked) == {f"host-{other.broker_id}"} and left_s() > 7
        refuses = True
        await advance(2.1)
        assert left_s() < 1, "the rest of a third of the lease, and a second"
        await sequencer.renew_agent(RenewAgent(other.broker_id, other.epoch))
        assert left_s() > 9, "it lives, and its lease is whole again"
        await advance(3)
        assert left_s() > 6, "said once"
        watching.cancel()
        await sequencer.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_only_a_refused_connection_counts() -> None:
    async def scenario() -> None:
        port = free_port()
        assert await is_refused("127.0.0.1", port)
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
        assert not await is_refused("127.0.0.1", port)
        server.close()
        assert not await is_refused("no-such-host.invalid", 9092)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_gap_that_another_agent_may_close_is_to_be_sent_again() -> None:
    for is_alone, code in (
        (True, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (False, ErrorCode.REQUEST_TIMED_OUT),
    ):
        assert produce_code(BatchError.SEQUENCE_GAP, 11, is_transactional=False, is_alone=is_alone) is code
