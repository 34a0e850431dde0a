"""The bytes of all groups together are bounded; groups that do not grow continue."""

from __future__ import annotations

import asyncio
from uuid import UUID

from sequencer.api.agents import AgentInfo, AgentLease
from sequencer.api.errors import LimitReached
from sequencer.api.groups import GroupRef, GroupState, SaveGroup
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tests.support.clocks import ManualClock, SeededEntropy

MIB = 1 << 20


def saved(agent: AgentLease, name: str, size: int, turn: int = -1) -> SaveGroup:
    state = GroupState(
        group_id=name,
        generation=1,
        state="Stable" if size else "Empty",
        protocol_type="consumer",
        members=["m"] if size else [],
        blob=bytes(size),
    )
    return SaveGroup(agent.broker_id, agent.epoch, state, may_create=True, turn=turn)


async def test_groups_that_grow_above_the_bytes_of_all_are_refused_and_the_others_continue() -> None:
    clock = ManualClock()
    settings = SequencerSettings(max_group_bytes=4 * MIB)
    sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1), settings)
    await sequencer.start()
    agent = await sequencer.register_agent(AgentInfo("a", 1, "a", 0, 0, "z", "0", UUID(int=1)))

    async def save(name: str, size: int) -> bool:
        try:
            return await sequencer.save_group(saved(agent, name, size)) == Empty()
        except LimitReached as error:
            assert "max_group_bytes" in str(error)
            return False

    together = await asyncio.gather(*[save(f"g{each}", MIB) for each in range(8)])
    assert together == [True] * 4 + [False] * 4, "those of one transaction count together"
    assert (await sequencer.statistics(Empty())).group_bytes == 4 * MIB
    assert await save("g0", MIB), "it does not grow"
    assert await save("g1", MIB - 100)
    assert not await save("g2", MIB + 101)
    assert await save("g3", MIB + 100)
    assert await save("g0", 0)
    await sequencer.delete_group(GroupRef("g0"))
    assert await save("late", MIB)
    assert (await sequencer.statistics(Empty())).group_bytes == 4 * MIB
    await sequencer.close()
