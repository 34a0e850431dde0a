"""Lanes: which result a producer gets, and when, under failures of store and sequencer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from functools import partial

import pytest

from agent.produce import lane
from agent.produce.active_buffer import BatchResult, BufferedBatch
from agent.produce.sealing import Share
from agent.settings import AgentSettings
from sequencer.api.commits import BatchError, CommitAnswer, CommitRequest, SessionGrant, SessionRef
from sequencer.api.errors import LimitReached
from sequencer.api.producers import InitProducer
from sequencer.api.reads import FindPartition, FindRequest
from sequencer.api.topics import Topic
from sequencer.settings import SequencerSettings
from tailrace.batches.mixed_object import coordinates
from tailrace.batches.record_batch import read_header
from tailrace.buffers import Buffer
from tailrace.ids import TopicPartition
from tailrace.kafka import ApiKey
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.object_store.api import StoreUnavailable
from tests.support.agents import AgentBench, AwaitedSubmission, agent_bench, batch, settle
from tests.support.faulty_store import FaultPlan, Faults, Latency, Operation

LINGERING = {"quiet_ms": 60_000, "linger_ms": 250, "max_puts_per_second": 0.001}
"""Nothing seals early: only linger and size do."""
A_PUT_TAKES_A_SECOND = FaultPlan(put=Faults(latency=Latency(1_000, 1_000)))


def submit(bench: AgentBench, topic: Topic, *batches: bytes, partition: int = 0) -> AwaitedSubmission:
    submission = AwaitedSubmission(len(batches))
    bench.services.lanes.submit(
        [
            (
                TopicPartition(topic.topic_id, partition),
                topic.name,
                BufferedBatch(coordinates(read_header(data)), data, submission, index),
            )
            for index, data in enumerate(batches)
        ]
    )
    return submission


def spend_early_puts(bench: AgentBench) -> None:
    early_puts = bench.lane._budgets.early_puts
    assert early_puts is not None
    early_puts.spend(1, bench.clock.monotonic())


async def result_of(bench: AgentBench, submission: AwaitedSubmission) -> BatchResult:
    await bench.until(submission.done)
    (result,) = submission.results
    assert result is not None
    return result


async def high_watermark(bench: AgentBench, topic: Topic, partition: int = 0) -> int:
    found = await bench.sequencer.inner.find_batches(
        FindRequest([FindPartition(topic.topic_id, partition, 0, 1 << 30)])
    )
    return found.partitions[0].high_watermark


def flushes(bench: AgentBench) -> dict[str, float]:
    registry = bench.services.telemetry.registry
    found = {
        reason: registry.get_sample_value("tailrace_flushes_total", {"reason": reason})
        for reason in ("idle", "quiet", "fast", "linger", "size", "drain")
    }
    return {reason: value for reason, value in found.items() if value}


def numbers(bench: AgentBench) -> list[tuple[int, bool]]:
    """(number, whether an object was named) of each commit."""
    return [(commit.number, commit.object is not None) for commit in bench.sequencer.commits]


# --- acknowledgements ------------------------------------------------------------------------------------


async def test_nothing_is_acknowledged_before_its_commit_is_answered() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.sequencer.may_commit.clear()
        submission = submit(bench, topic, batch(b"1"), batch(b"2", b"3"))
        await bench.advance(2)
        assert len(bench.sequencer.commits) == 1, "uploaded, and the sequencer was asked"
        assert not submission.done.done()
        bench.sequencer.may_commit.set()
        await bench.until(submission.done)
        assert [each and each.base_offset for each in submission.results] == [0, 1]


async def test_batches_of_more_partitions_than_a_commit_may_have_go_into_several_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "MAX_BUFFERED_PARTITIONS", 10)

    async with agent_bench(SequencerSettings(max_runs_per_commit=10)) as bench:
        topic = await bench.topic(partitions=36)
        submissions = [submit(bench, topic, batch(b"x"), partition=each) for each in range(36)]
        results = [await result_of(bench, each) for each in submissions]
        assert [each.failure for each in results] == [None] * 36
        assert [len(commit.runs) for commit in bench.sequencer.commits] == [10, 10, 10, 6]


async def test_batches_of_more_records_than_a_checkpoint_reserves_offsets_go_into_several_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "MAX_BUFFERED_RECORDS", 3)

    async with agent_bench(SequencerSettings(checkpoint_reservation=4)) as bench:
        topic = await bench.topic()
        submissions = [submit(bench, topic, batch(b"1", b"2")) for _ in range(5)]
        results = [await result_of(bench, each) for each in submissions]
        assert [each.base_offset for each in results] == [0, 2, 4, 6, 8]
        assert [len(commit.runs[0].batches) for commit in bench.sequencer.commits] == [2, 2, 1]


async def test_nothing_is_committed_before_its_upload_is_done() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.store.outage.begin(Operation.PUT)
        submission = submit(bench, topic, batch(b"1"))
        await bench.advance(1)
        assert not bench.sequencer.commits and not submission.done.done()


async def test_a_store_that_fails_to_the_end_is_a_storage_failure_and_its_number_is_committed_empty() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.store.outage.begin(Operation.PUT)
        failed = await result_of(bench, submit(bench, topic, batch(b"lost")))
        assert failed.failure is not None and failed.failure.kind == "storage"
        await settle()
        assert numbers(bench) == [(0, False)]
        bench.store.outage.end()
        stored = await result_of(bench, submit(bench, topic, batch(b"kept")))
        assert stored.failure is None and stored.base_offset == 0
        assert numbers(bench) == [(0, False), (1, True)]


async def test_an_upload_that_its_deadline_ends_names_the_failure_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [TimeoutError(), StoreUnavailable("the store answered 500 InternalError")]

    async def put(key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        raise failures.pop()

    async with agent_bench(upload_deadline_ms=1_000) as bench:
        topic = await bench.topic()
        monkeypatch.setattr(bench.store, "put", put)
        failed = await result_of(bench, submit(bench, topic, batch(b"lost")))
        assert failed.failure is not None and "longer than 1000 ms" in failed.failure.message
        assert "500 InternalError" in failed.failure.message
        monkeypatch.undo()


async def test_a_lane_continues_sealing_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*arguments: object, **named: object) -> None:
        raise ZeroDivisionError("a bug")

    async with agent_bench() as bench:
        topic = await bench.topic()
        with monkeypatch.context() as patched:
            patched.setattr(lane, "next_seal", breaks)
            failed = await result_of(bench, submit(bench, topic, batch(b"lost")))
        assert failed.failure is not None and failed.failure.kind == "storage"
        stored = await result_of(bench, submit(bench, topic, batch(b"kept")))
        assert stored.failure is None and stored.base_offset == 0


async def test_a_full_store_fails_at_once() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.store.outage.is_full = True
        failed = await result_of(bench, submit(bench, topic, batch(b"1")))
        assert failed.failure is not None and failed.failure.kind == "storage"
        assert numbers(bench) == [(0, False)]


async def test_a_store_that_recovers_within_the_deadline_is_not_noticed() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.store.outage.begin(Operation.PUT)
        submission = submit(bench, topic, batch(b"1"))
        await bench.advance(1)
        bench.store.outage.end()
        result = await result_of(bench, submission)
        assert result.failure is None and result.base_offset == 0
        assert numbers(bench) == [(0, True)]


async def test_a_lost_answer_is_asked_for_again_with_the_same_number() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.sequencer.lose_answers = 3
        result = await result_of(bench, submit(bench, topic, batch(b"1")))
        assert (result.error, result.base_offset) == (BatchError.NONE, 0)
        assert numbers(bench) == [(0, True)] * 4
        assert len({commit.object for commit in bench.sequencer.commits}) == 1
        assert await high_watermark(bench, topic) == 1


async def test_past_the_commit_deadline_producers_retry_and_the_lane_continues_asking() -> None:
    async with agent_bench(commit_deadline_ms=1_000) as bench:
        topic = await bench.topic()
        bench.sequencer.lose_answers = 1_000
        first = submit(bench, topic, batch(b"1"))
        await bench.advance(0.5)
        late = await result_of(bench, first)
        assert late.failure is not None and late.failure.kind == "timeout"
        bench.sequencer.lose_answers = 0
        later = await result_of(bench, submit(bench, topic, batch(b"2")))
        assert later.failure is None and later.base_offset == 1, "the first was stored all the same"
        assert {number for number, _ in numbers(bench)} == {0, 1}


async def test_producers_are_told_to_retry_at_the_commit_deadline_if_the_sequencer_says_nothing() -> None:
    async with agent_bench(commit_deadline_ms=1_000) as bench:
        topic = await bench.topic()
        bench.sequencer.may_commit.clear()
        submission = submit(bench, topic, batch(b"1"))
        await bench.advance(0.9)
        assert not submission.done.done()
        await bench.advance(0.2)
        assert submission.done.done()
        late = submission.results[0]
        assert late is not None and late.failure is not None and late.failure.kind == "timeout"


async def test_a_number_whose_empty_commit_fails_in_an_unforeseen_way_does_not_block_the_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        really_commit, failures = bench.sequencer.commit, 3

        async def commit(request: CommitRequest) -> CommitAnswer:
            nonlocal failures
            if failures:
                failures -= 1
                raise ZeroDivisionError("nobody foresaw this (by the test)")
            return await really_commit(request)

        monkeypatch.setattr(bench.sequencer, "commit", commit)
        failed = await result_of(bench, submit(bench, topic, batch(b"1")))
        assert failed.failure is not None
        await bench.advance(1)
        assert failures == 0
        stored = await result_of(bench, submit(bench, topic, batch(b"2")))
        assert stored.failure is None and stored.base_offset == 0
        assert numbers(bench) == [(0, False), (1, True)]


async def test_answered_numbers_are_sent_so_that_they_may_be_forgotten() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        for value in (b"1", b"2", b"3"):
            await result_of(bench, submit(bench, topic, batch(value)))
        assert [commit.answered_below for commit in bench.sequencer.commits] == [0, 1, 2]


# --- what is held while nobody answers -----------------------------------------------------------------


class Watched:
    """Batches whose bytes are counted as long as anybody holds them."""

    def __init__(self, bench: AgentBench, topic: Topic) -> None:
        self._bench = bench
        self._topic = topic
        self._alive: weakref.WeakSet[memoryview] = weakref.WeakSet()
        self.submissions: list[AwaitedSubmission] = []

    def submit(self, size: int = 100_000) -> None:
        data = memoryview(batch(b"x" * size))
        self._alive.add(data)
        submission = AwaitedSubmission(1)
        added = BufferedBatch(coordinates(read_header(data)), data, submission, 0)
        self._bench.services.lanes.submit([(TopicPartition(self._topic.topic_id, 0), "t", added)])
        self.submissions.append(submission)

    @property
    def held_bytes(self) -> int:
        gc.collect()
        return sum(data.nbytes for data in self._alive)

    @property
    def waiting(self) -> int:
        return sum(not submission.done.done() for submission in self.submissions)


async def test_two_minutes_without_a_sequencer_keep_no_bytes_but_of_producers_that_wait() -> None:
    async with agent_bench(max_unanswered_commits=16) as bench:
        watched = Watched(bench, await bench.topic())
        bench.sequencer.is_away = True
        cached = bench.cache.settings.memory_bytes
        for number in range(480):
            watched.submit()
            await bench.advance(0.25, 0.25)
            assert bench.lane.unanswered_commits <= 16
            if number % 40 == 39:
                assert watched.held_bytes <= watched.waiting * 101_000 + cached
        assert watched.waiting * 0.25 <= 22, "answered after 20 s at the latest"
        assert len(bench.lane._inflight) <= 16

        bench.sequencer.is_away = False
        bench.identity.lease_epoch = (await bench.join("az-a", 1)).lease_epoch
        await bench.advance(6)
        watched.submit()
        await bench.until(watched.submissions[-1].done)
        stored = watched.submissions[-1].results[0]
        assert stored is not None and stored.failure is None
        assert bench.lane.unanswered_commits == 0


async def test_the_cache_keeps_many_small_batches_as_one_copy() -> None:
    def is_viewed(frame: bytearray) -> bool:
        gc.collect()
        try:
            frame.append(0)
        except BufferError:
            return True
        return False

    async def stored(bench: AgentBench, topic: Topic, frames: list[bytearray]) -> None:
        submission = AwaitedSubmission(len(frames))
        bench.services.lanes.submit(
            [
                (
                    TopicPartition(topic.topic_id, 0),
                    topic.name,
                    BufferedBatch(coordinates(read_header(frame)), memoryview(frame), submission, index),
                )
                for index, frame in enumerate(frames)
            ]
        )
        assert await bench.lane.flush(5) and submission.done.done()

    async with agent_bench(**LINGERING) as bench:
        topic = await bench.topic()
        spend_early_puts(bench)
        small = [bytearray(batch(b"1")) for _ in range(50)]
        await stored(bench, topic, small)
        assert not any(map(is_viewed, small))
        large = [bytearray(batch(b"x" * 100_000))]
        await stored(bench, topic, large)
        assert is_viewed(large[0]), "large ones stay as they came"


async def test_an_upload_that_fails_lets_its_bytes_go_while_its_number_is_not_committed() -> None:
    async with agent_bench() as bench:
        watched = Watched(bench, await bench.topic())
        bench.sequencer.may_commit.clear()
        bench.store.outage.is_full = True
        watched.submit()
        await settle()
        assert watched.waiting == 0 and watched.held_bytes == 0
        assert bench.lane.unanswered_commits == 1


async def test_past_the_bound_of_unanswered_commits_nothing_is_sealed_and_producers_must_retry() -> None:
    async with agent_bench(flush_bytes=64 * 1024, max_unanswered_commits=4, **LINGERING) as bench:
        topic = await bench.topic()
        bench.sequencer.may_commit.clear()
        for _ in range(4):  # each is one buffer
            submit(bench, topic, batch(b"x" * 70_000))
        assert bench.lane.unanswered_commits == 4
        last = submit(bench, topic, batch(b"x" * 70_000))
        refused = await result_of(bench, submit(bench, topic, batch(b"1")))
        assert refused.failure is not None and refused.failure.kind == "timeout"
        assert bench.lane.unanswered_commits == 4 and not last.done.done()
        given_up = await result_of(bench, last)
        assert given_up.failure is not None and given_up.failure.kind == "timeout"
        bench.sequencer.may_commit.set()
        await bench.advance(1)
        assert bench.lane.unanswered_commits == 0
        stored = await result_of(bench, submit(bench, topic, batch(b"2")))
        assert stored.failure is None and stored.base_offset == 4


async def test_a_full_buffer_is_sealed_the_moment_that_there_is_a_number_for_it() -> None:
    async with agent_bench(flush_bytes=64 * 1024, max_unanswered_commits=2, **LINGERING) as bench:
        topic = await bench.topic()
        bench.sequencer.may_commit.clear()
        for _ in range(3):  # each is one buffer
            submit(bench, topic, batch(b"x" * 70_000))
        await settle()
        assert flushes(bench) == {"size": 2.0} and bench.lane.buffered_bytes > 0
        bench.sequencer.may_commit.set()
        await settle()  # no time passes
        assert flushes(bench) == {"size": 3.0} and not bench.lane.buffered_bytes


async def test_past_half_of_the_bound_buffers_linger() -> None:
    async with agent_bench(max_unanswered_commits=4, linger_ms=500) as bench:
        topic = await bench.topic()
        bench.store.plan = A_PUT_TAKES_A_SECOND
        for _ in range(8):
            submit(bench, topic, batch(b"1"))
            await bench.advance(0.05, 0.01)
        assert flushes(bench) == {"idle": 1.0, "quiet": 1.0}
        await bench.advance(0.4, 0.01)
        assert flushes(bench) == {"idle": 1.0, "quiet": 1.0, "linger": 1.0}


# --- order -------------------------------------------------------------------------------------------------


async def test_a_partition_keeps_the_order_of_arrival_even_where_later_uploads_are_faster() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.store.outage.begin(Operation.PUT, prefix=bench.lane._session.prefix + "0" * 12)  # type: ignore[union-attr]
        first = submit(bench, topic, batch(b"1"))
        await settle()
        second = submit(bench, topic, batch(b"2"))
        await settle()
        assert [number for number, _ in numbers(bench)] == [1], "the second was uploaded and waits"
        assert not second.done.done()
        bench.store.outage.end()
        assert (await result_of(bench, first)).base_offset == 0
        assert (await result_of(bench, second)).base_offset == 1


# --- sealing -----------------------------------------------------------------------------------------------


async def test_a_buffer_is_sealed_at_its_linger_and_no_earlier() -> None:
    async with agent_bench(**LINGERING) as bench:
        topic = await bench.topic()
        spend_early_puts(bench)
        first = submit(bench, topic, batch(b"1"))
        await bench.advance(0.2)
        second = submit(bench, topic, batch(b"2"))
        assert flushes(bench) == {} and bench.lane.buffered_bytes > 0
        await bench.advance(0.051, 0.051)
        assert flushes(bench) == {"linger": 1.0}
        assert (await result_of(bench, first)).base_offset == 0
        assert (await result_of(bench, second)).base_offset == 1


async def test_a_full_buffer_is_sealed_at_once() -> None:
    async with agent_bench(flush_bytes=64 * 1024, **LINGERING) as bench:
        topic = await bench.topic()
        spend_early_puts(bench)
        submission = submit(bench, topic, batch(b"x" * 40_000), batch(b"y" * 40_000))
        assert flushes(bench) == {"size": 1.0} and bench.lane.buffered_bytes == 0
        await settle()
        assert submission.done.done()


async def test_an_idle_lane_seals_at_once_and_a_busy_one_when_it_is_quiet() -> None:
    async with agent_bench(quiet_ms=20, linger_ms=1_000) as bench:
        topic = await bench.topic()
        bench.store.plan = A_PUT_TAKES_A_SECOND
        submit(bench, topic, batch(b"1"))
        await settle()
        assert flushes(bench) == {"idle": 1.0}
        submit(bench, topic, batch(b"2"))
        await bench.advance(0.015, 0.005)
        submit(bench, topic, batch(b"3"))
        await bench.advance(0.015, 0.005)
        assert flushes(bench) == {"idle": 1.0}, "something came within quiet_ms"
        await bench.advance(0.01, 0.005)
        assert flushes(bench) == {"idle": 1.0, "quiet": 1.0}


async def test_batches_received_during_a_put_and_its_commit_are_the_next_object() -> None:
    async with agent_bench(quiet_ms=60_000, linger_ms=60_000, max_puts_per_second=None) as bench:
        topic = await bench.topic()
        bench.store.plan = A_PUT_TAKES_A_SECOND
        bench.sequencer.may_commit.clear()
        submit(bench, topic, batch(b"1"))
        await settle()
        for _ in range(15):
            submit(bench, topic, batch(b"2"))
            await bench.advance(0.1)
        assert flushes(bench) == {"idle": 1.0} and len(bench.sequencer.commits) == 1
        bench.sequencer.may_commit.set()
        await settle()
        assert flushes(bench) == {"idle": 2.0} and not bench.lane.buffered_bytes


async def test_a_commit_that_takes_long_holds_nothing_up_past_its_linger() -> None:
    async with agent_bench(linger_ms=250, max_puts_per_second=None) as bench:
        topic = await bench.topic()
        bench.sequencer.may_commit.clear()
        submit(bench, topic, batch(b"1"))
        await settle()
        submit(bench, topic, batch(b"2"))
        await bench.advance(0.24, 0.01)
        assert flushes(bench) == {"idle": 1.0}
        await bench.advance(0.02, 0.01)
        assert flushes(bench) == {"idle": 1.0, "linger": 1.0}


async def puts_in_ten_seconds(url: str) -> float:
    """Objects made of a batch every 20 ms, on the default budget of this store."""
    settings = AgentSettings().on_store(url, 0.005)
    budget = settings.max_puts_per_second
    async with agent_bench(quiet_ms=settings.quiet_ms, max_puts_per_second=budget) as bench:
        topic = await bench.topic()
        for _ in range(500):
            submit(bench, topic, batch(b"1"))
            await bench.advance(0.02, 0.01)
        return sum(flushes(bench).values())


async def test_on_s3_five_puts_a_second_are_made_by_default_and_on_a_folder_as_many_as_it_takes() -> None:
    assert 48 <= await puts_in_ten_seconds("s3://bucket/prefix") <= 52
    assert await puts_in_ten_seconds("/var/lib/tailrace/objects") == 500


async def test_topics_share_objects_and_the_strictest_batch_that_waits_decides_when_one_is_sealed() -> None:
    async with agent_bench(linger_ms=250, quiet_ms=10, put_dollars_per_1000=0.005) as bench:
        for name in ("cost", "fast"):
            await bench.topic(name, tailrace_latency=name)
        bench.store.plan = A_PUT_TAKES_A_SECOND
        first = asyncio.ensure_future(produce(bench, "fast"))
        await bench.advance(0.01, 0.01)
        patient = asyncio.ensure_future(produce(bench, "cost"))
        await bench.advance(0.1, 0.01)
        assert flushes(bench) == {"fast": 1.0}, "the topic of policy cost waits"
        hasty = asyncio.ensure_future(produce(bench, "fast"))
        await bench.advance(0.01, 0.01)
        assert flushes(bench) == {"fast": 2.0}, "both went into one object, with a PUT under way"
        for each in (first, patient, hasty):
            await bench.until(each)
        assert sum(flushes(bench).values()) == 2


async def produce(bench: AgentBench, topic: str) -> None:
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, memoryview(batch(b"x")))])]
    await bench.ask(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data))


async def test_an_agent_that_lost_its_share_seals_early_at_a_tenth_of_it() -> None:
    async with agent_bench(max_puts_per_second=None) as bench:
        lanes, budgets = bench.services.lanes, bench.lane._budgets
        lanes.take_share(Share(early_puts=4.0))
        spend_early_puts(bench)
        assert budgets.early_puts is not None
        assert budgets.early_puts.wait(1, bench.clock.monotonic()) == 0.25
        for _ in range(3):  # a share is lost once
            lanes.lose_share()
        assert budgets.early_puts.wait(1, bench.clock.monotonic()) == 2.5


def test_a_budget_of_puts_that_was_set_holds_on_every_store() -> None:
    settings = AgentSettings(max_puts_per_second=7)
    assert settings.on_store("s3://bucket", 0.005).max_puts_per_second == 7
    assert settings.on_store("/data", 0.005).max_puts_per_second == 7


async def test_early_sealing_stays_within_its_budget_of_puts() -> None:
    async with agent_bench(quiet_ms=0, linger_ms=5_000, max_puts_per_second=2) as bench:
        topic = await bench.topic()
        for _ in range(100):
            submit(bench, topic, batch(b"1"))
            await bench.advance(0.05)
        sealed = flushes(bench)
        assert sealed.get("linger", 0) == 0
        assert 8 <= sealed["idle"] + sealed.get("quiet", 0) <= 12, "two a second, in five seconds"


async def test_many_small_partitions_linger_longer_when_their_rows_are_over_the_budget() -> None:
    async with agent_bench(quiet_ms=0, linger_ms=200, max_rows_per_second=16) as bench:
        topic = await bench.topic(partitions=8)
        for _ in range(80):
            for partition in range(8):
                submit(bench, topic, batch(b"1"), partition=partition)
            await bench.advance(0.05)
        sealed = flushes(bench)
        rows = sum(len(commit.runs) for commit in bench.sequencer.commits)
        assert rows <= 16 * 4 + 2 * 16, "sixteen a second, in four seconds, after as many at once"
        assert sum(sealed.values()) >= 4, "and none waits for ever"


# --- sessions -------------------------------------------------------------------------------------------------


async def test_a_closed_session_fails_what_it_held_and_another_is_opened_at_once() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        before = bench.lane._session
        assert before is not None
        await bench.sequencer.inner.close_session(SessionRef(before.session_id))
        failed = await result_of(bench, submit(bench, topic, batch(b"1")))
        assert failed.failure is not None
        stored = await result_of(bench, submit(bench, topic, batch(b"2")))
        assert stored.failure is None and stored.base_offset == 0
        after = bench.lane._session
        assert after is not None and after.session_id != before.session_id and after.prefix != before.prefix


async def test_no_object_is_put_when_the_lease_is_about_to_expire() -> None:
    async with agent_bench(SequencerSettings(session_lease_ms=4_000), upload_deadline_ms=1_000) as bench:
        topic = await bench.topic()
        await bench.advance(1.1)
        bench.sequencer.is_away = True
        await bench.advance(3)
        submission = submit(bench, topic, batch(b"1"))
        failed = await result_of(bench, submission)
        assert failed.failure is not None and "lease" in failed.failure.message
        assert not [info async for info in bench.objects.list("")]


async def test_a_session_is_kept_also_after_an_unexpected_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:

        async def refuse(request: SessionRef) -> SessionGrant:
            monkeypatch.undo()  # the next one is answered
            raise LimitReached("no more of it (by the test)")

        monkeypatch.setattr(bench.sequencer, "renew_session", refuse, raising=False)
        session = bench.lane._session
        assert session is not None
        before = session.no_put_after
        await bench.advance(7)
        assert bench.lane._session is session and session.no_put_after > before


async def test_an_old_session_is_rotated_with_nothing_lost() -> None:
    async with agent_bench(session_rotation_seconds=2) as bench:
        topic = await bench.topic()
        first = bench.lane._session
        for number in range(12):
            stored = await result_of(bench, submit(bench, topic, batch(b"1")))
            assert stored.base_offset == number
            await bench.advance(0.5)
        assert first is not None and bench.lane._session is not first
        with pytest.raises(Exception, match="session"):
            await bench.sequencer.inner.renew_session(SessionRef(first.session_id))


async def test_closing_ends_in_time_whatever_the_sequencer_does() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.sequencer.may_commit.clear()
        bench.sequencer.is_away = True
        submission = submit(bench, topic, batch(b"1"))
        await settle()
        closing = asyncio.ensure_future(bench.lane.close(2))
        await bench.advance(1.9)
        assert not closing.done() and not submission.done.done()
        await bench.advance(1.2)
        assert closing.done() and submission.done.done()
        told = submission.results[0]
        assert told is not None and told.failure is not None


async def test_a_close_that_was_given_up_can_be_done_again() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.sequencer.may_commit.clear()
        submission = submit(bench, topic, batch(b"1"))
        given_up = asyncio.ensure_future(bench.lane.close(2))
        await settle()
        given_up.cancel()
        await settle()
        bench.sequencer.may_commit.set()
        await bench.lane.close(2)
        assert submission.done.done() and bench.lane.unanswered_commits == 0


async def test_closing_flushes_and_refuses_what_comes_after() -> None:
    async with agent_bench(**LINGERING) as bench:
        topic = await bench.topic()
        spend_early_puts(bench)
        submission = submit(bench, topic, batch(b"1"))
        await bench.lane.close(1)
        assert submission.done.done() and flushes(bench) == {"drain": 1.0}
        refused = await result_of(bench, submit(bench, topic, batch(b"2")))
        assert refused.failure is not None and refused.failure.kind == "timeout"


# --- gaps ------------------------------------------------------------------------------------------------------


async def producer_of(bench: AgentBench) -> int:
    return int((await bench.sequencer.init_producer(InitProducer())).producer_id)


def objects_of(bench: AgentBench) -> Sequence[object]:
    return [commit.object and commit.object.object_id for commit in bench.sequencer.commits]


async def test_a_gap_is_retried_by_reference_until_the_missing_sequence_comes() -> None:
    async with agent_bench() as bench:
        topic, producer = await bench.topic(), await producer_of(bench)
        early = submit(bench, topic, batch(b"2", producer=producer, sequence=1))
        await bench.advance(1)
        assert not early.done.done()
        assert len(bench.sequencer.commits) > 3 and len(set(objects_of(bench))) == 1, "no second upload"
        first = submit(bench, topic, batch(b"1", producer=producer, sequence=0))
        assert (await result_of(bench, first)).base_offset == 0
        closed = await result_of(bench, early)
        assert (closed.error, closed.base_offset) == (BatchError.NONE, 1)
        assert len([info async for info in bench.objects.list("")]) == 2


async def test_gaps_behind_a_gap_close_in_order() -> None:
    async with agent_bench() as bench:
        topic, producer = await bench.topic(), await producer_of(bench)
        waiting = [
            submit(bench, topic, batch(b"v", producer=producer, sequence=sequence)) for sequence in (1, 2, 3)
        ]
        await bench.advance(0.5)
        submit(bench, topic, batch(b"v", producer=producer, sequence=0))
        assert [(await result_of(bench, each)).base_offset for each in waiting] == [1, 2, 3]


async def test_a_gap_that_never_closes_is_answered_after_its_deadline() -> None:
    async with agent_bench(gap_deadline_ms=1_000) as bench:
        topic, producer = await bench.topic(), await producer_of(bench)
        early = submit(bench, topic, batch(b"2", producer=producer, sequence=7))
        await bench.advance(0.9)
        assert not early.done.done()
        refused = await result_of(bench, early)
        assert refused.error in (BatchError.SEQUENCE_GAP, BatchError.UNKNOWN_PRODUCER_ID)
        assert await high_watermark(bench, topic) == 0


async def test_a_gap_that_never_closes_gets_its_own_error_also_when_commits_take_long() -> None:
    for deadline_ms in range(900, 1_300, 50):
        async with agent_bench(gap_deadline_ms=deadline_ms) as bench:
            topic, producer = await bench.topic(), await producer_of(bench)
            early = submit(bench, topic, batch(b"2", producer=producer, sequence=7))
            await bench.advance(0.1)
            bench.sequencer.before_commit = partial(bench.clock.sleep, 0.1)
            refused = await result_of(bench, early)
            assert refused.error is BatchError.UNKNOWN_PRODUCER_ID


async def test_a_gap_gets_the_error_of_its_last_attempt() -> None:
    async with agent_bench(gap_deadline_ms=2_000) as bench:
        topic, producer = await bench.topic(), await producer_of(bench)
        early = submit(bench, topic, batch(b"8", producer=producer, sequence=7))
        await bench.advance(0.2)
        first = submit(bench, topic, batch(b"1", producer=producer, sequence=0))
        assert (await result_of(bench, first)).error is BatchError.NONE
        assert (await result_of(bench, early)).error is BatchError.SEQUENCE_GAP


async def test_a_gap_gets_a_retriable_error_when_its_lane_closes_before_its_deadline() -> None:
    async with agent_bench(gap_deadline_ms=60_000) as bench:
        topic, producer = await bench.topic(), await producer_of(bench)
        early = submit(bench, topic, batch(b"2", producer=producer, sequence=7))
        await bench.advance(0.5)
        closing = asyncio.ensure_future(bench.lane.close(1))
        await bench.advance(2)
        assert closing.done() and early.done.done()
        told = early.results[0]
        assert told is not None and told.failure is not None and told.failure.kind == "timeout"


async def test_a_gap_gets_a_retriable_error_at_its_deadline_also_when_the_sequencer_is_away() -> None:
    async with agent_bench(gap_deadline_ms=1_000) as bench:
        topic, producer = await bench.topic(), await producer_of(bench)
        early = submit(bench, topic, batch(b"2", producer=producer, sequence=7))
        await bench.advance(0.1)
        bench.sequencer.may_commit.clear()
        await bench.advance(1.2)
        assert early.done.done()
        told = early.results[0]
        assert told is not None and told.failure is not None and told.failure.kind == "timeout"


async def test_a_gap_gets_a_retriable_error_when_its_object_is_gone() -> None:
    async with agent_bench(SequencerSettings(deletion_grace_ms=1_000), gap_deadline_ms=60_000) as bench:
        topic, producer = await bench.topic(), await producer_of(bench)
        early = batch(b"2", producer=producer, sequence=1)
        waiting = submit(bench, topic, early)
        refused = await result_of(bench, waiting)
        assert refused.failure is not None and refused.failure.kind == "timeout"
        submit(bench, topic, batch(b"1", producer=producer, sequence=0))
        assert (await result_of(bench, submit(bench, topic, early))).base_offset == 1


async def test_a_batch_sent_twice_is_stored_once_and_both_answers_have_its_offset() -> None:
    async with agent_bench() as bench:
        topic, producer = await bench.topic(), await producer_of(bench)
        data = batch(b"1", b"2", producer=producer, sequence=0)
        assert (await result_of(bench, submit(bench, topic, data))).base_offset == 0
        again = await result_of(bench, submit(bench, topic, data))
        assert (again.error, again.base_offset) == (BatchError.DUPLICATE, 0)
        assert await high_watermark(bench, topic) == 2


async def test_a_failed_waiter_does_not_stop_the_lane() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        gone = submit(bench, topic, batch(b"1"))
        waiting = asyncio.ensure_future(asyncio.shield(gone.done))
        waiting.cancel()
        await settle()
        assert (await result_of(bench, submit(bench, topic, batch(b"2")))).base_offset == 1
