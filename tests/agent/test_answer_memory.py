"""The memory of large answers: requests wait for it, hold nothing meanwhile, and make nothing without it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from agent.answer_memory import ENTRY_BYTES, FREE_BYTES, PAGE_BYTES, AnswerMemory, AnswerReservation
from agent.dispatch import Dispatcher
from agent.errors import AnswerMemoryExhausted, AnswerTooLarge
from sequencer.api.groups import CommitOffsets, FetchOffsets, OffsetPosition, OffsetPositions
from sequencer.api.topics import CreateTopic
from sequencer.api.values import Value
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.support.agents import AgentBench, agent_bench, connection, made, settle
from tests.support.clocks import ManualClock
from tests.support.patience import PATIENCE_SECONDS

MIB = 1 << 20
LEAST_BUDGET = 16 * MIB
"""Of which large answers have 2 MiB together, and one of them 8 MiB at most."""


@asynccontextmanager
async def answer_memory(budget: int = 64 * MIB) -> AsyncIterator[tuple[AnswerMemory, ManualClock]]:
    clock = ManualClock()
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield AnswerMemory(budget, clock), clock


async def test_all_are_served_in_order_and_never_hold_more_than_there_is() -> None:
    async with answer_memory() as (memory, _):
        served: list[int] = []

        async def answer(number: int) -> None:
            reservation = AnswerReservation(memory)
            await reservation.needs(MIB)
            assert memory.used <= 8 * MIB
            await settle(2)
            served.append(number)
            reservation.release()

        await asyncio.gather(*map(answer, range(1_000)))
        assert served == list(range(1_000)) and memory.used == 0


async def test_a_request_that_needs_more_memory_releases_what_it_has_while_it_waits() -> None:
    async with answer_memory() as (memory, _):
        reservations = [AnswerReservation(memory) for _ in range(4)]
        for reservation in reservations:
            await reservation.needs(MIB)
        growing = [asyncio.ensure_future(reservation.needs(5 * MIB)) for reservation in reservations]
        for reservation, grown in zip(reservations, growing, strict=True):
            await grown
            assert memory.used <= 8 * MIB
            reservation.release()
        assert memory.used == 0


async def test_a_small_answer_needs_no_room_and_one_above_the_most_is_refused() -> None:
    async with answer_memory() as (memory, _):
        reservation = AnswerReservation(memory)
        await reservation.needs(FREE_BYTES)
        assert memory.used == 0
        with pytest.raises(AnswerTooLarge):
            await reservation.needs(memory.most + 1)
        await reservation.needs(memory.most)
        assert 0 < memory.used <= 8 * MIB, "it has all that large ones may have"
        assert reservation.written(100) is False and memory.used == 0


async def test_a_request_that_waits_too_long_fails_and_blocks_no_other() -> None:
    async with answer_memory() as (memory, clock):
        first, second, third = (AnswerReservation(memory) for _ in range(3))
        await first.needs(32 * MIB)
        waiting = asyncio.ensure_future(second.needs(MIB))
        await settle(5)
        assert memory.is_contended
        clock.advance(31)
        with pytest.raises(AnswerMemoryExhausted):
            await waiting
        first.release()
        await third.needs(MIB)
        second.release()
        third.release()
        assert memory.used == 0 and not memory.is_contended


class Listing(Value, frozen=True):
    """A request for a page."""

    after: int = 0


class ListingPage(Value, frozen=True):
    """A page of a thousand."""

    next: int | None
    entries: int = 1_000


async def test_a_listing_of_several_pages_waits_for_all_of_them_and_counts_what_they_really_are() -> None:
    async with answer_memory() as (memory, _):
        seen: list[int] = []

        async def ask(request: Listing) -> ListingPage:
            seen.append(memory.used)
            return ListingPage(request.after + 1 if request.after < 29 else None)

        reservation = AnswerReservation(memory)
        found = await reservation.listing(ask, Listing(), lambda page: ENTRY_BYTES * page.entries)
        assert len(found) == 30 and seen[0] == PAGE_BYTES < seen[1] <= 8 * MIB
        assert reservation.used == memory.used == 30 * 1_000 * ENTRY_BYTES
        reservation.release()
        short = await AnswerReservation(memory).listing(ask, Listing(29), lambda page: ENTRY_BYTES)
        assert short == [ListingPage(None)]


async def test_many_answers_of_several_listings_hold_no_more_pages_than_are_charged() -> None:
    async with answer_memory() as (memory, _):
        alive: dict[int, int] = {}
        done: list[int] = []

        async def answer(number: int) -> None:
            reservation = AnswerReservation(memory)

            async def ask(request: Listing) -> ListingPage:
                await asyncio.sleep(0)
                return ListingPage(None)

            async def make() -> None:
                alive[number] = 0
                try:
                    for _ in range(3):
                        await reservation.listing(ask, Listing(), lambda page: MIB)
                        alive[number] += MIB
                        assert sum(alive.values()) <= memory.used <= 8 * MIB
                finally:
                    del alive[number]

            await reservation.made(make)
            done.append(number)
            reservation.release()

        await asyncio.gather(*map(answer, range(200)))
        assert sorted(done) == list(range(200)) and memory.used == 0


async def test_only_one_answer_at_a_time_passes_what_there_is() -> None:
    async with answer_memory() as (memory, _):
        done: list[int] = []

        async def answer(number: int) -> None:
            reservation = AnswerReservation(memory)
            made = 0

            async def make() -> None:
                nonlocal made
                made = 0
                await reservation.needs(MIB)
                for _ in range(30):
                    reservation.grow(MIB)
                    made += 1
                    await asyncio.sleep(0)
                    assert memory.used <= 8 * MIB + memory.most
                    assert made <= 8 or memory.used <= made * MIB + 2 * MIB, "no other large one is made"

            await reservation.made(make)
            done.append(number)
            reservation.release()

        await asyncio.gather(*map(answer, range(6)))
        assert len(done) == 6 and memory.used == 0


async def test_what_grows_is_refused_above_the_most_even_where_it_had_waited_for_twice_what_it_had() -> None:
    async with answer_memory() as (memory, _):
        reservation = AnswerReservation(memory)
        await reservation.needs(memory.most - 1)
        await reservation.needs(memory.most)
        with pytest.raises(AnswerTooLarge):
            await reservation.needs(memory.most + 1)
        with pytest.raises(AnswerTooLarge):
            reservation.grow(memory.most + 1)
        reservation.release()


async def test_a_request_that_starts_over_waits_no_longer_in_all() -> None:
    async with answer_memory() as (memory, clock):
        first, second, third = (AnswerReservation(memory) for _ in range(3))
        await first.needs(5 * MIB)

        async def make() -> None:
            await second.needs(4 * MIB)
            second.grow(5 * MIB)

        making = asyncio.ensure_future(second.made(make))
        await settle(5)
        clock.advance(20)
        first.release()
        await third.needs(MIB)
        third.grow(4 * MIB)
        while not memory.is_contended:
            await asyncio.sleep(0)
        await settle(5)
        assert memory.used == 4 * MIB, "it waits once more"
        clock.advance(11)
        with pytest.raises(AnswerMemoryExhausted):
            await making
        third.release()
        assert memory.used == 0


# --- handlers ----------------------------------------------------------------------------------------------


class AskedSideBySide:
    """Requests that arrive together; each answer is taken as soon as it is made."""

    def __init__(self, bench: AgentBench) -> None:
        self._dispatcher = Dispatcher(bench.services)
        self.sizes: list[int] = []

    async def ask(self, api: int, version: int, request: Any) -> None:
        sent = b"".join(encode_request(7, api, version, request, None))
        reply = await self._dispatcher(memoryview(sent)[4:], connection())
        self.sizes.append(sum(map(len, await made(reply) or ())))
        if reply.on_sent is not None:
            reply.on_sent()


async def peak_of(bench: AgentBench, requests: list[tuple[int, int, Any]]) -> int:
    """The most that Python allocates while these are answered side by side."""
    asked = AskedSideBySide(bench)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await asyncio.gather(*(asked.ask(*request) for request in requests))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(asked.sizes) == len(requests) and all(asked.sizes)
    assert bench.services.answer_memory.used == 0
    return peak


async def test_metadata_of_all_topics_for_many_at_once_takes_the_memory_of_few_answers() -> None:
    async with agent_bench(memory_budget_bytes=LEAST_BUDGET) as bench:
        names = [f"t{number}" for number in range(100)]
        for name in names:
            await bench.sequencer.create_topic(CreateTopic(name, 40, {}))
        await bench.services.catalog.refresh()
        named = [MetadataRequestTopic(name=name) for name in names]  # so many that the answer is not kept
        one = await peak_of(bench, [(ApiKey.METADATA, 12, MetadataRequest(named))])
        assert one > MIB // 2
        many = await peak_of(bench, [(ApiKey.METADATA, 12, MetadataRequest(named)) for _ in range(25)])
        assert many < 5 * one


async def test_a_shared_answer_is_made_once_and_each_connections_copy_is_held_until_it_is_sent() -> None:
    async with agent_bench(memory_budget_bytes=LEAST_BUDGET) as bench:
        await bench.topic("large", 6_000)
        memory, dispatcher = bench.services.answer_memory, Dispatcher(bench.services)
        sent = memoryview(b"".join(encode_request(7, ApiKey.METADATA, 12, MetadataRequest(None), None)))[4:]
        asked = [asyncio.ensure_future(dispatcher(sent, connection())) for _ in range(100)]
        answered = 0
        while left := [each for each in asked if not each.done() or each.result().on_sent is not None]:
            ready = [each.result() for each in left if each.done()]
            assert memory.used <= 2 * MIB
            for reply in ready:
                assert memory.used >= sum(map(len, reply.parts or ()))
                assert reply.on_sent is not None
                reply.on_sent()
                reply.on_sent = None
                answered += 1
            await settle(5)
        assert answered == 100 and memory.used == 0


async def test_configs_of_names_that_need_not_exist_are_refused_before_they_fill_the_memory() -> None:
    async with agent_bench(memory_budget_bytes=LEAST_BUDGET) as bench:
        resources = [
            DescribeConfigsResource(resource_type=32, resource_name=f"g{number}", configuration_keys=None)
            for number in range(5_000)
        ]
        answer = await bench.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources))
        assert len(answer.results) == 5_000
        assert {result.error_code for result in answer.results} == {ErrorCode.POLICY_VIOLATION}
        few = await bench.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources[:5]))
        assert all(result.configs and not result.error_code for result in few.results)


async def test_all_positions_of_a_large_group_for_many_at_once_take_the_memory_of_few_answers() -> None:
    async with agent_bench(memory_budget_bytes=LEAST_BUDGET) as bench:
        topic = await bench.topic("large", 6_000)
        positions = [OffsetPosition(topic.topic_id, index, 1, 0, "") for index in range(topic.partitions)]
        commit = CommitOffsets(
            "g", broker_id=-1, lease_epoch=0, generation=-1, member_id="", offsets=positions
        )
        await bench.sequencer.commit_offsets(commit)
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
        one = await peak_of(bench, [(ApiKey.OFFSET_FETCH, 8, request)])
        many = await peak_of(bench, [(ApiKey.OFFSET_FETCH, 8, request) for _ in range(20)])
        assert many < 6 * one


async def test_positions_of_two_groups_are_dropped_and_read_again_where_there_is_no_memory_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench(memory_budget_bytes=64 * MIB) as bench:
        topic = await bench.topic("t", 10)
        positions = [OffsetPosition(topic.topic_id, index, 1, 0, "") for index in range(10)]
        commit = CommitOffsets(
            "g", broker_id=-1, lease_epoch=0, generation=-1, member_id="", offsets=positions
        )
        for group in "gh":
            await bench.sequencer.commit_offsets(msgspec.structs.replace(commit, group_id=group))
        memory, others = bench.services.answer_memory, AnswerReservation(bench.services.answer_memory)
        await others.needs(4 * MIB)
        inner, read = bench.sequencer.fetch_offsets, list[str]()

        async def watched(request: FetchOffsets) -> OffsetPositions:
            read.append(request.group_id)
            if len(read) == 1:
                others.grow(12 * MIB - memory.used)  # all that is left
            return await inner(request)

        monkeypatch.setattr(bench.services.sequencer, "fetch_offsets", watched)
        both = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(name, topics=None) for name in "gh"])
        asked = AskedSideBySide(bench)
        answer = asyncio.ensure_future(asked.ask(ApiKey.OFFSET_FETCH, 8, both))
        while not memory.is_contended:
            await asyncio.sleep(0)
        assert memory.used == others.used and read == ["g"]
        others.release()
        await answer
        assert read == ["g", "g", "h"] and memory.used == 0
