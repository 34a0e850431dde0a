"""The budget of records on their way to consumers."""

from __future__ import annotations

import asyncio
import weakref
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent.fetch.fetch_memory import LEAST_BYTES, FetchGrant, FetchMemory
from agent.memory_budget import Grant
from tests.support.agents import settle
from tests.support.clocks import ManualClock
from tests.support.patience import PATIENCE_SECONDS

MIB = 1 << 20


@asynccontextmanager
async def fetch_memory(limit: int = 256 * MIB) -> AsyncIterator[tuple[FetchMemory, ManualClock]]:
    clock = ManualClock()
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield FetchMemory(limit, clock), clock


async def test_many_that_take_all_they_can_leave_room_for_the_tail_and_never_pass_the_limit() -> None:
    async with fetch_memory() as (memory, _):
        granted: list[Grant] = []
        while (grant := memory.try_grant(64 * MIB)) is not None:
            granted.append(grant)
            assert memory.used <= memory.limit
        assert granted[0].bytes == 64 * MIB and granted[1].bytes == 48 * MIB
        assert all(grant.bytes >= LEAST_BYTES for grant in granted)
        waiting = asyncio.create_task(memory.grant(64 * MIB, 60))
        await settle(5)
        tail = [memory.try_grant(50_000) for _ in range(600)]
        assert all(tail), "while a large one waits"
        for grant in (*granted, *tail):
            assert grant is not None
            grant.release()
            grant.release()
        await settle()
        last = waiting.result()
        assert last is not None and memory.used == last.bytes
        last.release()
        assert memory.used == 0


async def test_the_bytes_read_count_and_not_the_bytes_granted() -> None:
    async with fetch_memory() as (memory, _):
        grant = memory.try_grant(50 * MIB)
        assert grant is not None
        grant.resize(1000)
        assert memory.used == 1000
        grant.resize(2 * MIB)
        assert memory.used == 2 * MIB
        grant.release()
        assert memory.used == 0


async def test_many_slow_consumers_stay_within_the_limit_and_are_served_in_order_of_arrival() -> None:
    async with fetch_memory(limit=8 * MIB) as (memory, _):
        served: list[int] = []
        released = asyncio.Event()

        async def consume(number: int) -> None:
            grant = await memory.grant(MIB, 1e9)
            assert grant is not None and memory.used <= memory.limit
            served.append(number)
            await released.wait()
            grant.release()

        consumers = [asyncio.create_task(consume(number)) for number in range(1_000)]
        await settle(5)
        assert len(served) == 6 and memory.is_contended
        released.set()
        await asyncio.gather(*consumers)
        assert served == list(range(1_000))
        assert memory.used == 0 and not memory.is_contended


async def test_a_caller_that_waits_too_long_gets_nothing_and_blocks_no_other() -> None:
    async with fetch_memory(limit=8 * MIB) as (memory, clock):
        first = memory.try_grant(5 * MIB, 5 * MIB)
        assert first is not None
        large = asyncio.create_task(memory.grant(6 * MIB, 5, 6 * MIB))
        small = asyncio.create_task(memory.grant(MIB, 60))
        await settle(5)
        assert not small.done(), "in order of arrival"
        clock.advance(5)
        await settle()
        assert large.done() and large.result() is None
        assert small.done() and small.result() is not None
        small.result().release()  # type: ignore[union-attr]
        first.release()
        assert memory.used == 0


async def test_a_first_batch_is_granted_whole_and_one_above_the_limit_alone() -> None:
    async with fetch_memory(limit=8 * MIB) as (memory, _):
        grant = memory.try_grant(1, 3 * MIB)
        assert grant is not None and grant.bytes == 3 * MIB
        grant.release()
        other = memory.try_grant(2 * MIB)
        assert other is not None and memory.try_grant(1, 20 * MIB) is None
        other.release()
        grant = memory.try_grant(1, 20 * MIB)
        assert grant is not None and grant.bytes == 6 * MIB
        grant.resize(20 * MIB)
        grant.release()
        assert memory.used == 0


async def test_a_cancelled_wait_keeps_nothing() -> None:
    async with fetch_memory(limit=8 * MIB) as (memory, _):
        first = memory.try_grant(6 * MIB, 6 * MIB)
        assert first is not None
        waiting = asyncio.create_task(memory.grant(MIB, 60))
        await settle(5)
        first.release()  # hands over ...
        waiting.cancel()  # ... to one that is gone
        await asyncio.gather(waiting, return_exceptions=True)
        assert memory.used == 0 and not memory.is_contended


async def test_a_buffer_is_kept_once_by_however_many_answers_and_none_beyond_the_limit() -> None:
    async with fetch_memory(4 * MIB) as (memory, _):
        chunks = [bytes([number]) * MIB for number in range(5)]

        def answered(chunk: bytes, *starts: int) -> tuple[FetchGrant, list[int]]:
            grant = memory.try_grant(1_000)
            assert grant is not None
            return grant, grant.pin([memoryview(chunk)[start : start + 100] for start in starts])

        first = [answered(chunk, 0, 500) for chunk in chunks[:4]]
        again = answered(chunks[0], 7_000)
        assert memory.pinned == 4 * MIB
        late, copied = answered(chunks[4], 0, 500)
        assert memory.pinned == 4 * MIB and copied == [0, 1]
        assert [*first[0][1], *again[1]] == []
        first[0][0].release()
        assert memory.pinned == 4 * MIB, "another answer has a view of it"
        again[0].release()
        again[0].release()
        assert memory.pinned == 3 * MIB
        late.release()
        assert answered(chunks[4], 0)[1] == []


async def test_a_buffer_is_kept_until_the_answer_has_left_even_if_no_part_of_it_is_sent() -> None:
    """A buffer that goes earlier leaves its id to another, which would not be counted, or given back for it."""

    async with fetch_memory() as (memory, _):
        grant, buffer = memory.try_grant(1_000), array("b", bytes(MIB))
        assert grant is not None
        held = weakref.ref(buffer)
        grant.pin([memoryview(buffer)[:100]])
        del buffer
        assert memory.pinned == MIB and held() is not None
        grant.release()
        assert memory.pinned == 0 and held() is None


async def test_views_of_most_of_their_buffer_and_bytes_of_the_answers_own_keep_nothing_beside_it() -> None:
    async with fetch_memory() as (memory, _):
        grant, own = memory.try_grant(1_000), bytes(100)
        assert grant is not None
        whole = memoryview(bytearray(MIB))[: MIB * 3 // 4]
        assert grant.pin([whole, own]) == [] and memory.pinned == 0
