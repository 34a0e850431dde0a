"""The tail end to end: which fetches call the sequencer, and what wakes those that wait."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any
from uuid import UUID

import msgspec
import pytest

import agent.fetch.tail as tail_module
from agent.fetch.tail import ASK_AGAIN_S, LATE_S, Tail
from agent.fetch.windows import FRESH_S
from agent.telemetry import AgentTelemetry
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.reads import FindRequest, PartitionChange, WatchRequest
from sequencer.api.topics import Topic
from tailrace.clock import Clock
from tailrace.ids import TopicPartition
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.agent.fetch.test_windows import found_at
from tests.agent.handlers.test_fetch import fetch, offsets, request_of, rows_of
from tests.agent.handlers.test_produce import produce
from tests.support.agents import AgentBench, agent_bench, batch, settle
from tests.support.clocks import SeededEntropy


class Counted:
    """A sequencer that counts what it is asked of reading, and keeps what its subscribers are sent."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self.inner = inner
        self.clock = clock
        self.calls: Counter[str] = Counter()
        self.sent: list[PartitionChange] = []
        self.is_silent = False
        self.pause_ms = 0
        self.round_trip_s = 0.0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def find_batches(self, request: FindRequest) -> Any:
        self.calls["find_batches"] += 1
        return await self.inner.find_batches(request)

    async def watch(self, request: WatchRequest) -> Any:
        self.calls["watch"] += 1
        if self.is_silent:
            raise SequencerUnavailable("away (by the test)")
        answer = await self.inner.watch(request)
        await self.may_answer.wait()
        if self.round_trip_s:
            await self.clock.sleep(self.round_trip_s)
        self.sent += answer.changes
        return msgspec.structs.replace(answer, pause_ms=max(answer.pause_ms, self.pause_ms))


async def counted(bench: AgentBench) -> Counted:
    """From now on, calls are counted."""
    sequencer = Counted(bench.sequencer, bench.clock)
    bench.services.sequencer = sequencer  # type: ignore[assignment]
    bench.services.tail._sequencer = sequencer  # type: ignore[assignment]
    return sequencer


async def tailed(bench: AgentBench) -> tuple[Topic, Counted]:
    """A topic whose partition 0 has three records, and a window of it."""
    sequencer = await counted(bench)
    topic = await bench.topic()
    for _ in range(3):
        await produce(bench, (0, batch(b"x")))
    await fetch(bench, request_of(topic, (0, 3)))
    await bench.advance(0.2)
    return topic, sequencer


async def tail_fetch(bench: AgentBench, topic: Topic, offset: int, **more: Any) -> Any:
    asked = asyncio.ensure_future(fetch(bench, request_of(topic, (0, offset), min_bytes=1, **more)))
    (row,) = rows_of(await bench.until(asked, 30))
    return row


async def test_fetches_at_the_end_of_a_quiet_partition_make_no_call() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        sequencer.calls.clear()
        for _ in range(20):
            row = await tail_fetch(bench, topic, 3, max_wait_ms=500)
            assert (row.error_code, row.high_watermark, offsets(row)) == (0, 3, [])
        assert sequencer.calls["find_batches"] == 0


async def test_fetches_at_the_end_of_a_busy_partition_make_no_call() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        sequencer.calls.clear()
        for offset in range(3, 23):
            asked = asyncio.ensure_future(tail_fetch(bench, topic, offset, max_wait_ms=20_000))
            await produce(bench, (0, batch(b"next")))
            row = await asked
            assert (offsets(row), row.high_watermark) == ([offset], offset + 1)
        assert sequencer.calls["find_batches"] == 0
        assert bench.services.telemetry.window_hits._value >= 20


async def test_a_subscriber_of_one_partition_is_sent_no_run_of_others() -> None:
    async with agent_bench() as bench:
        _, sequencer = await tailed(bench)
        for _ in range(5):
            await produce(bench, (1, batch(b"of another partition")))
        await produce(bench, (0, batch(b"of this one")))
        await bench.advance(0.2)
        assert {change.partition for change in sequencer.sent} == {0}
        assert sum(len(change.runs) for change in sequencer.sent) == 1


async def test_an_offset_below_the_window_is_asked_for() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        sequencer.calls.clear()
        assert offsets(await tail_fetch(bench, topic, 1)) == [1, 2]
        assert sequencer.calls["find_batches"] == 1


async def test_an_offset_above_a_window_that_is_behind_is_asked_for() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        sequencer.calls.clear()
        sequencer.may_answer.clear()
        await produce(bench, (0, batch(b"not in the window yet")))
        row = await tail_fetch(bench, topic, 4)
        assert (row.error_code, row.high_watermark) == (0, 4)
        assert sequencer.calls["find_batches"] == 1
        row = await tail_fetch(bench, topic, 3)
        assert row.high_watermark == 4, "what was told does not go back"
        row = await tail_fetch(bench, topic, 5)
        assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_bounds_sent_with_an_error_do_not_go_back() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        sequencer.may_answer.clear()
        await produce(bench, (0, batch(b"not in the window yet")))
        row = await tail_fetch(bench, topic, 9)
        assert (row.error_code, row.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, 4)
        row = await tail_fetch(bench, topic, 3)
        assert row.high_watermark == 4


async def test_while_the_subscription_is_away_fetches_ask_the_sequencer() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        sequencer.is_silent = True
        await bench.advance(FRESH_S)
        sequencer.calls.clear()
        asked = asyncio.ensure_future(tail_fetch(bench, topic, 3, max_wait_ms=20_000))
        await bench.advance(2 * ASK_AGAIN_S)
        await produce(bench, (0, batch(b"found by asking")))
        await bench.advance(2 * ASK_AGAIN_S)
        assert offsets(await asked) == [3]
        assert sequencer.calls["find_batches"] > 1
        assert bench.services.telemetry.window_resets._value > 0
        sequencer.is_silent = False
        await bench.advance(1.5)
        sequencer.calls.clear()
        await tail_fetch(bench, topic, 4, max_wait_ms=500)
        assert sequencer.calls["find_batches"] == 0, "there are windows again"


async def test_an_answer_that_comes_late_drops_no_window_and_nothing_is_subscribed_again() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        resets = bench.services.telemetry.window_resets._value
        sequencer.may_answer.clear()
        await produce(bench, (0, batch(b"meanwhile")))
        await bench.advance(FRESH_S + 1.0)
        sequencer.calls.clear()
        row = await tail_fetch(bench, topic, 3, max_wait_ms=500)
        assert offsets(row) == [3] and sequencer.calls["find_batches"] > 0, "the window is out of date"
        sequencer.may_answer.set()
        await bench.advance(1.0)
        assert not any(change.is_start for change in sequencer.sent[1:])
        assert bench.services.telemetry.window_resets._value == resets
        sequencer.calls.clear()
        row = await tail_fetch(bench, topic, 4, max_wait_ms=100)
        assert row.high_watermark == 4 and sequencer.calls["find_batches"] == 0


async def test_agents_with_more_partitions_than_are_added_before_they_give_up_get_all_their_windows() -> None:
    """As after a fail-over at scale: each call waits for those of all other agents."""
    agents, partitions, seconds_each = 20, 1_000, 0.0004
    assert agents * partitions * seconds_each > LATE_S

    async with agent_bench() as bench:
        topic = await bench.topic(partitions=partitions)
        is_free_at = 0.0

        class Busy(Counted):
            async def watch(self, request: WatchRequest) -> Any:
                nonlocal is_free_at
                now = bench.clock.monotonic()
                is_free_at = max(is_free_at, now) + len(request.added) * seconds_each
                if request.added:
                    await bench.clock.sleep(is_free_at - now)
                return await self.inner.watch(request)

        telemetry = AgentTelemetry()
        tails = [
            Tail(Busy(bench.sequencer, bench.clock), bench.clock, SeededEntropy(number), telemetry)  # type: ignore[arg-type]
            for number in range(agents)
        ]
        for tail in tails:
            for number in range(partitions):
                place = TopicPartition(topic.topic_id, number)
                tail.note_found(place, 0, found_at(0, 0, 0), number=0, asked_at=0.0, is_at_end=True)
            tail.start()
        for _ in range(300):
            await bench.advance(0.05)
        assert [len(tail.live()[1]) for tail in tails] == agents * [partitions]
        assert telemetry.registry.get_sample_value("tailrace_window_resets_total") == 0
        for tail in tails:
            await tail.close()


async def test_fetches_at_the_end_of_a_partition_without_a_window_seldom_ask() -> None:
    async with agent_bench() as bench:
        sequencer = await counted(bench)
        sequencer.is_silent = True
        topic = await bench.topic()
        await produce(bench, (0, batch(b"x")))
        began = bench.clock.monotonic()
        for _ in range(16):
            row = await tail_fetch(bench, topic, 1, max_wait_ms=500)
            assert (row.error_code, row.high_watermark, offsets(row)) == (0, 1, [])
        asked_for_s = bench.clock.monotonic() - began
        assert sequencer.calls["find_batches"] <= asked_for_s / FRESH_S + 1

        await produce(bench, (0, batch(b"while there is no window")))
        found = await tail_fetch(bench, topic, 1, max_wait_ms=int(1000 * (FRESH_S + 2 * ASK_AGAIN_S)))
        assert offsets(found) == [1]


async def test_a_fetch_that_waits_is_woken_when_its_window_is_out_of_date() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        sequencer.may_answer.clear()
        await bench.advance(0.1)
        asked = asyncio.ensure_future(tail_fetch(bench, topic, 3, max_wait_ms=20_000))
        await bench.advance(0.1)
        await produce(bench, (0, batch(b"meanwhile")))
        await bench.advance(FRESH_S + ASK_AGAIN_S + 0.2)
        assert asked.done() and offsets(await asked) == [3], "it asked the sequencer, long before LATE_S"


@pytest.mark.parametrize("max_wait_ms", [0, 1, 100])
async def test_what_this_agent_has_acknowledged_is_found_at_once_also_by_a_fetch_that_does_not_wait(
    max_wait_ms: int,
) -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        assert (await tail_fetch(bench, topic, 3, max_wait_ms=0)).high_watermark == 3
        sequencer.may_answer.clear()  # from now on the windows learn nothing
        sequencer.calls.clear()
        await produce(bench, (0, batch(b"x")))
        assert (await tail_fetch(bench, topic, 3, max_wait_ms=max_wait_ms)).high_watermark == 4
        assert sequencer.calls["find_batches"] == 1
        sequencer.may_answer.set()


async def test_what_was_deleted_through_this_agent_is_gone_at_once() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        assert (await tail_fetch(bench, topic, 3, max_wait_ms=0)).log_start_offset == 0
        sequencer.may_answer.clear()  # from now on the windows learn nothing
        asked = DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 2)])])
        await bench.ask(ApiKey.DELETE_RECORDS, 2, asked)
        assert (await tail_fetch(bench, topic, 3, max_wait_ms=0)).log_start_offset == 2
        sequencer.may_answer.set()


@pytest.mark.parametrize(("pause_ms", "calls"), [(0, 4 / 0.05), (400, 10), (3_600_000, 4)])
async def test_a_subscriber_pauses_for_as_long_as_it_is_asked_and_stays_fresh(
    pause_ms: int, calls: float
) -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        sequencer.pause_ms = pause_ms
        await bench.advance(2.0)  # the call that waits, and a pause
        sequencer.calls.clear()
        for _ in range(80):
            await produce(bench, (0, batch(b"x")))
            await bench.advance(0.05)
        assert calls / 2 <= sequencer.calls["watch"] <= calls * 1.5
        sequencer.calls.clear()
        await bench.advance(2.0)
        assert (await tail_fetch(bench, topic, 83, max_wait_ms=0)).high_watermark == 83
        assert not sequencer.calls["find_batches"], "the window is fresh"


async def test_the_windows_of_a_subscriber_that_pauses_for_long_stay_fresh_while_nothing_changes() -> None:
    async with agent_bench() as bench:
        topic, sequencer = await tailed(bench)
        sequencer.pause_ms, sequencer.round_trip_s = 3_600_000, 0.1
        await bench.advance(2.0)
        sequencer.calls.clear()
        for _ in range(80):
            assert (await tail_fetch(bench, topic, 3, max_wait_ms=0)).high_watermark == 3
            await bench.advance(0.05)
        assert not sequencer.calls["find_batches"]
        for number in range(10):
            await fetch(bench, request_of(await bench.topic(f"other-{number}"), (0, 0)))
            for _ in range(30 + number):
                assert (await tail_fetch(bench, topic, 3, max_wait_ms=0)).high_watermark == 3
                await bench.advance(0.05)
        assert sequencer.calls["find_batches"] == 10, "also while others are added"


async def test_a_fetch_that_is_behind_does_not_subscribe() -> None:
    async with agent_bench() as bench:
        sequencer = await counted(bench)
        topic = await bench.topic()
        for _ in range(3):
            await produce(bench, (0, batch(b"x" * 1_000)))
        await fetch(bench, request_of(topic, (0, 0), partition_max_bytes=1_100))
        await settle()
        assert sequencer.calls["watch"] == 0


async def test_fetches_that_one_change_wakes_are_woken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with agent_bench() as bench:
        topic, _ = await tailed(bench)
        monkeypatch.setattr(tail_module, "WOKEN_IN_A_TURN", 2)
        asked = [
            asyncio.ensure_future(fetch(bench, request_of(topic, (0, 3), min_bytes=1, max_wait_ms=20_000)))
            for _ in range(6)
        ]
        await settle()
        producing = asyncio.ensure_future(produce(bench, (0, batch(b"y"))))
        answered = list[int]()
        while answered[-1:] != [6]:
            bench.clock.advance(0.001)
            await asyncio.sleep(0)
            answered.append(sum(each.done() for each in asked))
        await producing
        assert {2, 4, 6} <= set(answered)


async def waiting_for_two(
    bench: AgentBench, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> asyncio.Task[None]:
    """A wait for two partitions with windows that nobody keeps current any more, in the turn between the two."""
    topic, _ = await tailed(bench)
    await fetch(bench, request_of(topic, (1, 0)))
    await bench.advance(0.2)
    tail = bench.services.tail
    await tail.close()
    number, windows = tail.live()
    assert len(windows) == 2
    monkeypatch.setattr(tail_module, "PARTITIONS_IN_A_TURN", 1)
    waiting = asyncio.create_task(tail.wait(dict.fromkeys(windows, number), seconds))
    await settle(1)
    assert len(tail._waiting) == 1
    return waiting


async def test_a_wait_ends_in_time_however_long_the_turns_of_others_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:
        waiting = await waiting_for_two(bench, monkeypatch, seconds=1.0)
        bench.clock.advance(0.9)
        await settle()
        assert not waiting.done()
        bench.clock.advance(0.2)
        await settle()
        assert waiting.done()


async def test_a_wait_sees_what_goes_out_of_date_in_the_turns_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:
        waiting = await waiting_for_two(bench, monkeypatch, seconds=20.0)
        bench.clock.advance(FRESH_S + 0.1)
        await settle()
        assert not waiting.done()
        bench.clock.advance(ASK_AGAIN_S)
        await settle()
        assert waiting.done(), "the sequencer is asked"


@pytest.mark.parametrize("cancels", [0, 1, 2])
async def test_a_fetch_of_very_many_partitions_ends_its_wait_in_turns_and_waits_for_none_afterwards(
    cancels: int,
) -> None:
    every = [TopicPartition(UUID(int=1), number) for number in range(3 * tail_module.PARTITIONS_IN_A_TURN)]

    async with agent_bench() as bench:
        tail = bench.services.tail
        waiting = asyncio.create_task(tail.wait(dict.fromkeys(every, 0), 60.0))
        await settle()
        assert len(tail._waiting) == len(every)
        left = [len(every)]
        for cancel in (True, True)[:cancels] or (False,):
            if cancel:
                waiting.cancel()
            else:
                bench.clock.advance(60.0)
            await asyncio.sleep(0)
            left.append(len(tail._waiting))
        while not waiting.done():
            await asyncio.sleep(0)
            left.append(len(tail._waiting))
        assert left[-1] == 0
        if cancels < 2:
            most = max(before - after for before, after in itertools.pairwise(left))
            assert most <= tail_module.PARTITIONS_IN_A_TURN
