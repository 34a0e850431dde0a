"""The budget of records on their way to consumers."""

from __future__ import annotations

from agent.fetch.memory import LEAST_BYTES, FetchMemory

MIB = 1 << 20


def test_many_that_take_all_they_can_leave_room_for_the_next() -> None:
    memory = FetchMemory(256 * MIB)
    grants = [memory.grant(64 * MIB) for _ in range(40)]
    assert grants[0].bytes == 64 * MIB
    assert all(grant.bytes >= LEAST_BYTES for grant in grants)
    assert memory.used <= memory.limit + len(grants) * LEAST_BYTES
    for grant in grants:
        grant.release()
        grant.release()
    assert memory.used == 0


def test_what_was_read_counts_not_what_was_granted() -> None:
    memory = FetchMemory(256 * MIB)
    grant = memory.grant(50 * MIB)
    grant.resize(1000)
    assert memory.used == 1000
    grant.resize(2 * MIB)
    assert memory.used == 2 * MIB
    grant.release()
    assert memory.used == 0
