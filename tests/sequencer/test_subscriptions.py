"""Subscriptions: which changes each subscriber gets, when, and how it learns that it must start over."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

import sequencer.bounds as bounds
import sequencer.reading.subscriptions as subscriptions
import sequencer.reading.view as view
from agent.fetch.window import begin, follow
from sequencer.api.errors import InvalidRequest, SequencerOverloaded
from sequencer.api.producers import InitProducer
from sequencer.api.reads import PartitionChange, WatchAnswer, WatchRequest
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import CreateTopic, DeleteTopic
from sequencer.api.transactions import EndTransaction, TransactionRef
from sequencer.settings import SequencerSettings
from sequencer.store.rows import TopicRow
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.batches.record_batch import TRANSACTIONAL_FLAG
from tests.support.sequencer_bench import T0, Bench, batch, opened_bench, prepare_swap, settle
from tests.support.sequencers import memory


class Watcher:
    """A subscriber that takes all it is sent."""

    def __init__(self, bench: Bench, number: int = 1) -> None:
        self.bench = bench
        self.subscriber = UUID(int=number)
        self.turn = self.taken = 0

    async def call(
        self, *added: int, removed: tuple[int, ...] = (), wait_ms: int = 0, turns: int | None = None
    ) -> WatchAnswer:
        topic_id = self.bench.topic.topic_id
        if turns is None:
            turns = int(bool(added or removed))
        self.turn += turns
        request = WatchRequest(
            self.subscriber,
            self.turn,
            self.taken,
            [(topic_id, each) for each in added],
            [(topic_id, each) for each in removed],
            wait_ms,
        )
        answer = await self.bench.sequencer.watch(request)
        self.taken += len(answer.changes)
        return answer


def spans(change: PartitionChange) -> tuple[int, int, list[tuple[int, int]]]:
    """Partition, high watermark, and what was added."""
    added = [(each.base_offset, each.end_offset) for each in change.runs]
    return change.partition, change.high_watermark, added


async def test_a_subscription_begins_with_the_bounds_and_continues_with_each_change() -> None:
    async with opened_bench(memory) as bench:
        await bench.commit(batch(2))
        watcher = Watcher(bench)
        first = await watcher.call(0)
        assert [spans(each) for each in first.changes] == [(0, 2, [])]
        assert first.changes[0].is_start and first.commit_number == await bench.find_number()
        view = bench.sequencer._view  # type: ignore[attr-defined]
        ((watched,),) = (each.partitions for each in view.subscriptions._subscribers.values())
        (topic,) = view.state.all(TopicRow)
        assert watched.topic_id is topic.topic_id, "each watched partition would have an id object of its own"
        await bench.commit(batch(1))
        await bench.commit(batch(3))
        after = await watcher.call()
        assert [spans(each) for each in after.changes] == [(0, 3, [(2, 3)]), (0, 6, [(3, 6)])]
        assert [each.commit_number for each in after.changes] == [
            first.commit_number + 1,
            first.commit_number + 2,
        ]
        assert (await watcher.call()).changes == []


async def test_nothing_of_other_partitions_is_sent_and_nobody_is_woken_by_them() -> None:
    async with opened_bench(memory) as bench:
        watcher = Watcher(bench)
        await watcher.call(0)
        waiting = asyncio.ensure_future(watcher.call(wait_ms=400))
        await settle()
        await bench.commit(batch(1), partition=1)
        await settle()
        assert not waiting.done()
        await bench.advance(400)
        beat = await waiting
        assert (beat.changes, beat.commit_number) == ([], await bench.find_number())
        waiting = asyncio.ensure_future(watcher.call(wait_ms=400))
        await settle()
        await bench.commit(batch(1))
        assert [spans(each) for each in (await waiting).changes] == [(0, 1, [(0, 1)])]


async def test_a_commit_costs_as_much_as_its_partitions_have_subscribers() -> None:
    async with opened_bench(memory) as bench:
        queued: list[int] = []
        view = bench.sequencer._view.subscriptions  # type: ignore[attr-defined]
        original = view._queue

        def counted(subscriber: object, change: PartitionChange, size: int) -> None:
            queued.append(change.partition)
            original(subscriber, change, size)

        for number in range(1, 21):
            await Watcher(bench, number).call(int(number > 3))
        view._queue = counted
        await bench.commit(batch(1))
        assert queued == [0, 0, 0]
        assert view.count == 20


async def test_changes_that_were_not_taken_are_sent_again() -> None:
    async with opened_bench(memory) as bench:
        watcher = Watcher(bench)
        await watcher.call(0)
        await bench.commit(batch(1))
        lost = await watcher.call()
        watcher.taken -= 1
        await bench.commit(batch(1))
        again = await watcher.call()
        assert again.changes[:1] == lost.changes and len(again.changes) == 2
        watcher.taken -= 1
        assert (await watcher.call()).changes == again.changes[1:]
        watcher.taken = 0
        assert (await watcher.call()).is_reset, "that was forgotten"


async def test_a_change_of_the_subscription_that_comes_twice_or_late_counts_once() -> None:
    async with opened_bench(memory) as bench:
        watcher = Watcher(bench)
        await watcher.call(0)
        taken = watcher.taken
        assert (await watcher.call(0, turns=0)).changes == []
        await watcher.call(1)
        late = WatchRequest(watcher.subscriber, 1, taken, [(bench.topic.topic_id, 0)], [], 0)
        assert (await bench.sequencer.watch(late)).is_reset
        await watcher.call(removed=(0,))
        await bench.commit(batch(1), partition=0)
        await bench.commit(batch(1), partition=1)
        assert [each.partition for each in (await watcher.call()).changes] == [1]
        assert (await watcher.call(0, turns=2)).is_reset, "a turn is missing"


async def test_a_partition_removed_and_added_by_one_call_starts_over() -> None:
    async with opened_bench(memory) as bench:
        watcher = Watcher(bench)
        await watcher.call(0)
        await bench.commit(batch(1))
        changes = (await watcher.call(0, removed=(0,))).changes
        assert [each.is_start for each in changes] == [False, True]


async def test_an_unknown_subscriber_is_told_to_start_over() -> None:
    async with opened_bench(memory) as bench:
        stranger = Watcher(bench)
        stranger.turn = 4
        answer = await stranger.call()
        assert (answer.is_reset, answer.changes) == (True, [])


async def test_a_subscriber_that_is_too_slow_starts_over() -> None:
    async with opened_bench(memory, SequencerSettings(max_subscriber_bytes=2_000)) as bench:
        slow, prompt = Watcher(bench, 1), Watcher(bench, 2)
        await slow.call(0)
        await prompt.call(0)
        for _ in range(20):
            await bench.commit(batch(1))
            await prompt.call()
        assert (await slow.call()).is_reset
        assert not (await prompt.call()).is_reset
        assert bench.sequencer._view.subscriptions.count == 1  # type: ignore[attr-defined]


async def test_a_subscriber_that_becomes_too_slow_in_the_middle_of_a_commit_ends_for_itself_alone() -> None:
    async with opened_bench(memory, SequencerSettings(max_subscriber_bytes=2_000)) as bench:
        slow = Watcher(bench)
        await slow.call(0, 1)
        for _ in range(10):
            request = bench.request(batch(1))
            (first,) = request.runs
            runs = [first, msgspec.structs.replace(first, partition=1, start=first.start + first.length)]
            await bench.sequencer.commit(msgspec.structs.replace(request, runs=runs))
        assert (await slow.call()).is_reset
        assert bench.sequencer._view.subscriptions.count == 0  # type: ignore[attr-defined]


async def test_a_subscriber_that_is_silent_is_forgotten() -> None:
    async with opened_bench(memory) as bench:
        watcher = Watcher(bench)
        await watcher.call(0)
        await bench.advance(int(1000 * subscriptions.SILENCE_S) + 1)
        await bench.sequencer.watch(WatchRequest(UUID(int=9), 1, 0, [], [], 0))
        assert bench.sequencer._view.subscriptions.count == 0  # type: ignore[attr-defined]
        assert (await watcher.call()).is_reset


async def test_a_late_copy_of_a_first_call_begins_no_dropped_subscription() -> None:
    """Its subscriber has the answer to the first, and would go on without what was committed between."""

    async with opened_bench(memory) as bench:
        watcher = Watcher(bench)
        await watcher.call(0)
        first_call = WatchRequest(watcher.subscriber, 1, 0, [(bench.topic.topic_id, 0)], [], 0)
        await bench.commit(batch(1))
        await bench.advance(int(1000 * subscriptions.SILENCE_S) + 1)
        assert (await bench.sequencer.watch(WatchRequest(UUID(int=9), 1, 0, [], [], 0))).changes == []
        for _ in range(2):
            assert (await bench.sequencer.watch(first_call)).is_reset
        assert (await watcher.call(1)).is_reset
        await bench.advance(int(1000 * subscriptions.OVER_S) + 1)
        assert not (await bench.sequencer.watch(first_call)).is_reset
        assert len(bench.sequencer._view.subscriptions._over) == 1  # type: ignore[attr-defined]


async def test_partitions_of_a_silent_subscriber_are_freed_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "UNWATCHED_AT_ONCE", 2)

    async with opened_bench(memory) as bench:
        bench.topic = await bench.sequencer.create_topic(CreateTopic("wide", 3, {}))
        watcher, other = Watcher(bench), Watcher(bench, 2)
        await watcher.call(0, 1, 2)
        watched = bench.sequencer._view.subscriptions._watching  # type: ignore[attr-defined]
        await bench.advance(int(1000 * subscriptions.SILENCE_S) + 1)
        await other.call()
        assert bench.sequencer._view.subscriptions.count == 0  # type: ignore[attr-defined]
        assert len(watched) == 1, "two of three"
        await bench.commit(batch(1))
        assert not watched
        assert (await watcher.call()).is_reset


async def test_a_subscription_whose_beginning_is_too_much_leaves_nothing_behind() -> None:
    async with opened_bench(memory, SequencerSettings(max_subscriber_bytes=1024)) as bench:
        bench.topic = await bench.sequencer.create_topic(CreateTopic("wide", 20, {}))
        assert (await Watcher(bench).call(*range(20))).is_reset
        await Watcher(bench, 2).call()
        assert bench.sequencer._view.subscriptions.count == 0  # type: ignore[attr-defined]
        assert not bench.sequencer._view.subscriptions._watching  # type: ignore[attr-defined]


async def test_an_answer_is_bounded_and_does_not_claim_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "MAX_ANSWER_RUNS", 2)

    async with opened_bench(memory) as bench:
        watcher = Watcher(bench)
        start = (await watcher.call(0, 1)).commit_number
        for partition in (0, 1, 0):
            await bench.commit(batch(1), partition=partition)
        first = await watcher.call()
        assert ([each.partition for each in first.changes], first.commit_number) == ([0, 1], start + 2)
        second = await watcher.call()
        assert ([each.partition for each in second.changes], second.commit_number) == ([0], start + 3)


async def test_a_commit_is_queued_in_turns_once_for_each_also_for_who_begins_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view, "QUEUED_IN_A_TURN", 1)

    async with opened_bench(memory) as bench:
        bench.topic = await bench.sequencer.create_topic(CreateTopic("wide", 10, {}))
        early, late = Watcher(bench), Watcher(bench, 2)
        begun = (await early.call(*range(10))).commit_number
        request = bench.request(batch(1))
        runs = [
            msgspec.structs.replace(each, partition=number, start=8 + number * each.length)
            for each in request.runs
            for number in range(10)
        ]
        committing = asyncio.ensure_future(
            bench.sequencer.commit(msgspec.structs.replace(request, runs=runs))
        )
        partly: list[int] = []
        windows = {change.partition: begin(change) for change in (await late.call(9)).changes}
        for turn in range(60):
            await asyncio.sleep(0)
            answer = await early.call()
            partly += [change.partition for change in answer.changes]
            assert answer.commit_number == begun or len(partly) == 10, "that is not all of the commit"
            begins = () if turn % 3 or turn > 24 else (8 - turn // 3,)
            for change in (await late.call(*begins)).changes:
                before = windows.get(change.partition)
                windows[change.partition] = begin(change) if before is None else follow(before, change)
        await committing
        assert (partly, answer.commit_number) == (list(range(10)), begun + 1)
        assert {each.high_watermark for each in windows.values()} == {1}
        assert [len(windows[each].runs) for each in (9, 0)] == [1, 0], (
            "what began before the commit, and after it"
        )


async def test_a_refused_swap_reports_the_offset_below_which_runs_have_changed() -> None:
    async with opened_bench(memory) as bench:
        swap = await prepare_swap(bench)
        watcher = Watcher(bench)
        await watcher.call(0)
        await bench.sequencer.swap(swap)
        (change,) = (await watcher.call()).changes
        assert (change.replaced_below, change.runs, change.high_watermark) == (6, [], 6)


async def test_deleted_records_and_deleted_topics_are_reported() -> None:
    async with opened_bench(memory) as bench:
        await bench.commit(batch(5))
        watcher = Watcher(bench)
        await watcher.call(0)
        await bench.sequencer.delete_records(
            DeleteRecords([DeleteRecordsPartition(bench.topic.topic_id, 0, 3)])
        )
        (moved,) = (await watcher.call()).changes
        assert (moved.log_start_offset, moved.high_watermark) == (3, 5)
        await bench.sequencer.delete_topic(DeleteTopic(bench.topic.topic_id))
        (gone,) = (await watcher.call()).changes
        assert (gone.is_gone, bench.sequencer._view.subscriptions.count) == (True, 0)  # type: ignore[attr-defined]
        (unknown,) = (await watcher.call(1)).changes
        assert unknown.is_gone


async def test_an_aborted_transaction_is_reported_with_its_marker() -> None:
    async with opened_bench(memory) as bench:
        granted = await bench.sequencer.init_producer(InitProducer(-1, -1, "tx", 60_000))
        watcher = Watcher(bench)
        await watcher.call(0)
        producer = (granted.producer_id, granted.producer_epoch)
        records = BatchCoordinates(100, 2, T0, T0, *producer, 0, TRANSACTIONAL_FLAG)
        await bench.commit(records, transactions=[-1])
        (opened,) = (await watcher.call()).changes
        assert (opened.high_watermark, opened.last_stable_offset, opened.aborted) == (2, 0, [])
        late = await Watcher(bench, 2).call(0)
        assert [spans(each) for each in late.changes] == [(0, 2, [(0, 2)])], "from the last stable offset on"
        end = EndTransaction(TransactionRef("tx", *producer), is_commit=False, bumps_epoch=True)
        await bench.sequencer.end_transaction(end)
        (aborted,) = (await watcher.call()).changes
        assert (aborted.high_watermark, aborted.last_stable_offset) == (3, 3)
        assert [(each.first_offset, each.last_offset) for each in aborted.aborted] == [(0, 2)]


async def test_partitions_with_open_transactions_do_not_exceed_the_limit_of_a_subscriber_that_begins() -> (
    None
):
    """It would begin again, with the same partitions, and never get their windows."""

    async with opened_bench(memory, SequencerSettings(max_subscriber_bytes=16_000)) as bench:
        bench.topic = await bench.sequencer.create_topic(CreateTopic("wide", 8, {}))
        granted = await bench.sequencer.init_producer(InitProducer(-1, -1, "tx", 60_000))
        producer = (granted.producer_id, granted.producer_epoch)
        for partition in range(8):
            for number in range(10):
                records = BatchCoordinates(100, 1, T0, T0, *producer, number, TRANSACTIONAL_FLAG)
                await bench.commit(records, partition=partition, transactions=[-1])
        watcher = Watcher(bench)
        first = await watcher.call(*range(8))
        assert not first.is_reset
        starts = [(change.is_start, len(change.runs)) for change in first.changes]
        assert starts == [(True, 10)] * 2 + [(True, 0)] * 6
        await bench.commit(
            BatchCoordinates(100, 1, T0, T0, *producer, 10, TRANSACTIONAL_FLAG),
            partition=7,
            transactions=[-1],
        )
        assert [spans(each) for each in (await watcher.call()).changes] == [(7, 11, [(10, 11)])]


async def test_limits_are_kept() -> None:
    async with opened_bench(memory, SequencerSettings(max_watched_partitions=1, max_feed_waiters=1)) as bench:
        watcher = Watcher(bench)
        changes = (await watcher.call(0, 1)).changes
        assert [(each.partition, each.is_gone) for each in changes] == [(0, False), (1, True)]
        with pytest.raises(SequencerOverloaded):
            await Watcher(bench, 2).call(0)
        with pytest.raises(InvalidRequest):
            await watcher.call(*range(bounds.MAX_PAGE + 1))
        assert (await watcher.call(0)).is_reset


async def test_the_more_subscribers_there_are_the_longer_each_is_asked_to_pause() -> None:
    async with opened_bench(memory, SequencerSettings(max_watch_calls_per_second=10)) as bench:
        watchers = [Watcher(bench, number) for number in range(1, 5)]
        assert [(await each.call(0)).pause_ms for each in watchers] == [100, 200, 300, 400]
        assert (await watchers[0].call()).pause_ms == 400


async def test_a_newer_call_ends_the_wait_of_an_older_one() -> None:
    async with opened_bench(memory) as bench:
        watcher = Watcher(bench)
        await watcher.call(0)
        older = asyncio.ensure_future(watcher.call(wait_ms=4_000))
        await settle()
        newer = asyncio.ensure_future(watcher.call(wait_ms=4_000))
        await settle()
        assert older.done() and not newer.done()
        await bench.commit(batch(1))
        assert len((await newer).changes) == 1
