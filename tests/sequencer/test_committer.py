"""The committer with bad requests, rows and stores: failures stay alone, and each term has its own epoch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

import sequencer.engine.group_commit as group_commit
from sequencer.api.agents import AgentInfo
from sequencer.api.commits import CommitRequest, OpenSession, SessionGrant
from sequencer.api.errors import RequestFailed, SequencerError, SequencerUnavailable
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.objects import ObjectsRequest
from sequencer.api.producers import InitProducer
from sequencer.api.topics import CreateTopic, MetadataRequest
from sequencer.checkpoint.checkpointer import Checkpointer
from sequencer.engine.committer import Committer
from sequencer.observer import SequencerObserver
from sequencer.store.draft import Draft
from sequencer.store.rows import Row, TransactionRow
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import HookedRowStore
from tests.support.patience import PATIENCE_SECONDS

AGENT = AgentInfo("h", 1, "h", 0, 0, "z", "1", SeededEntropy(1).uuid())


class CountedStore(HookedRowStore):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.loads = 0

    async def load(self) -> dict[type[Row], list[Row]]:
        self.loads += 1
        return await super().load()


class World:
    """`together` has requests decided in one group."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = CountedStore(self.clock)
        self.sequencer = Committer(self.store, self.clock, SeededEntropy(1))

    async def together(self, *calls: Awaitable[Any]) -> list[Any]:
        self.store.hold_writes()
        first = asyncio.ensure_future(self.sequencer.create_topic(CreateTopic("first", 1, {})))
        await settle()
        rest = [asyncio.ensure_future(call) for call in calls]
        await settle()
        self.store.release_writes()
        await first
        return await asyncio.gather(*rest, return_exceptions=True)

    async def session(self) -> SessionGrant:
        agent = await self.sequencer.register_agent(AGENT)
        return await self.sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def started_world() -> AsyncIterator[World]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = World()
        await world.sequencer.start()
        yield world
        await world.sequencer.close()


def breaks(draft: object) -> None:
    raise ZeroDivisionError("a bug")


def transactional(name: str) -> InitProducer:
    return InitProducer(transactional_id=name, timeout_ms=60_000)


def of_bad_ids(row: Row) -> bool:
    return isinstance(row, TransactionRow) and row.transactional_id.startswith("bad")


async def test_a_request_whose_decision_breaks_fails_alone_and_for_good() -> None:
    async with started_world() as world:
        with capture_logs() as logs:
            made, broken, other = await world.together(
                world.sequencer.create_topic(CreateTopic("a", 1, {})),
                world.sequencer._group_commit.decide("breaks", breaks),
                world.sequencer.create_topic(CreateTopic("b", 1, {})),
            )
        assert (made.name, other.name) == ("a", "b")
        assert isinstance(broken, RequestFailed) and "ZeroDivisionError: a bug" in str(broken)
        assert [line["cause"] for line in logs if line["log_level"] == "error"] == [
            "ZeroDivisionError: a bug"
        ]
        assert world.store.loads == 1


@pytest.mark.parametrize("bad", [{0}, {39}, {7, 20, 21}, set(range(40))])
async def test_a_request_that_the_store_refuses_fails_alone_and_nothing_is_reloaded(bad: set[int]) -> None:
    async with started_world() as world:
        world.store.refuse(of_bad_ids)
        answers = await world.together(
            *(
                world.sequencer.init_producer(transactional(f"{'bad' if number in bad else 'good'}-{number}"))
                for number in range(40)
            )
        )
        refused = {number for number, answer in enumerate(answers) if isinstance(answer, RequestFailed)}
        assert refused == bad
        assert not any(isinstance(answers[number], Exception) for number in range(40) if number not in bad)
        assert world.store.loads == 1
        world.store.refuse(lambda row: False)
        assert (await world.sequencer.init_producer(transactional("good-1"))).producer_epoch >= 0


async def test_commits_keep_their_order_when_a_request_of_their_group_is_refused() -> None:
    async with started_world() as world:
        session = await world.session()
        world.store.refuse(of_bad_ids)
        commits = [CommitRequest(session.session_id, number, 0, None, []) for number in (2, 0, 1, 3)]
        answers = await world.together(
            world.sequencer.commit(commits[0]),
            world.sequencer.commit(commits[1]),
            world.sequencer.init_producer(transactional("bad")),
            world.sequencer.commit(commits[2]),
            world.sequencer.commit(commits[3]),
        )
        assert isinstance(answers.pop(2), RequestFailed)
        assert not any(isinstance(answer, Exception) for answer in answers)
        assert await world.sequencer.commit(CommitRequest(session.session_id, 4, 0, None, []))


@pytest.mark.parametrize("is_written", [False, True])
async def test_an_early_commit_whose_turn_comes_as_a_failing_group_ends_is_answered(
    is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "ROWS_OF_A_GROUP", 1)

    async with started_world() as world:
        session = await world.session()
        early, first = (CommitRequest(session.session_id, number, 0, None, []) for number in (1, 0))
        waiting = asyncio.ensure_future(world.sequencer.commit(early))
        await settle()
        if is_written:
            world.sequencer._view.show = breaks  # type: ignore[method-assign, assignment]
        else:
            world.store.fail_next_write("before")
        answers = await asyncio.gather(world.sequencer.commit(first), waiting, return_exceptions=True)
        assert [type(answer) for answer in answers] == [SequencerUnavailable] * 2


async def test_a_committer_whose_last_checkpoint_breaks_gives_the_lease_back() -> None:
    async def breaks_down() -> None:
        raise ZeroDivisionError("a bug")

    async with started_world() as world:
        await world.sequencer.close()
        checkpointer = Checkpointer(
            MemoryStore(world.clock), world.store, world.clock, interval_ms=1_000, reservation=100
        )
        checkpointer.finish = breaks_down  # type: ignore[method-assign]
        world.sequencer = Committer(world.store, world.clock, SeededEntropy(2), checkpointer=checkpointer)
        await world.sequencer.start()
        with capture_logs() as logs:
            await world.sequencer.close()
        assert [line["cause"] for line in logs] == ["ZeroDivisionError: a bug"]
        second = Committer(world.store, world.clock, SeededEntropy(3))
        await second.start()
        await second.close()


async def test_a_committer_that_cannot_show_what_it_wrote_ends_and_gives_the_lease_back() -> None:
    async with started_world() as world:
        world.sequencer._view.feed.publish = breaks  # type: ignore[method-assign, assignment]
        with pytest.raises(SequencerUnavailable):
            await world.sequencer.create_topic(CreateTopic("t", 1, {}))
        assert not world.sequencer.is_committer
        with pytest.raises(SequencerUnavailable):
            await asyncio.wait_for(world.sequencer.metadata(MetadataRequest()), PATIENCE_SECONDS)
        await world.sequencer.close()
        second = Committer(world.store, world.clock, SeededEntropy(2))
        await second.start()
        topics = (await second.metadata(MetadataRequest())).topics or []
        assert [topic.name for topic in topics] == ["t"]
        await second.close()


async def test_no_two_terms_share_an_epoch_whatever_they_call_themselves() -> None:
    async with started_world() as world:
        epochs = [world.sequencer.epoch]
        for _ in range(3):
            world.clock.advance(2.0)  # the one before is left as it is: it died
            await settle()
            world.sequencer._term.end("it died")
            world.sequencer = Committer(world.store, world.clock, SeededEntropy(2), holder="the same")
            world.clock.advance(2.0)
            await world.sequencer.start()
            epochs.append(world.sequencer.epoch)
        assert len(set(epochs)) == len(epochs)


async def test_closing_waits_for_the_write_in_progress_whatever_became_of_the_keepers() -> None:
    async with started_world() as world:

        async def breaks_down() -> int:
            raise ZeroDivisionError("a bug")

        world.store.hold_writes()
        writing = asyncio.ensure_future(world.sequencer.create_topic(CreateTopic("t", 1, {})))
        await settle()
        world.store.now_ms = breaks_down  # type: ignore[method-assign]
        for _ in range(5):
            world.clock.advance(0.5)
            await settle()
        closing = asyncio.ensure_future(world.sequencer.close())
        await settle()
        second = Committer(world.store, world.clock, SeededEntropy(2))
        with pytest.raises(SequencerError):
            await second.start()  # the lease is held until the write has ended
        assert not closing.done()
        world.store.release_writes()
        await closing
        assert (await writing).name == "t"


async def test_a_last_write_that_never_ends_keeps_no_next_term_from_beginning() -> None:
    async with started_world() as world:
        world.store.hold_writes()
        writing = asyncio.ensure_future(world.sequencer.create_topic(CreateTopic("t", 1, {})))
        await settle()
        closing = asyncio.ensure_future(world.sequencer.close())
        for _ in range(80):
            world.clock.advance(0.5)
            await settle()
        assert closing.done()
        writing.cancel()
        second = Committer(world.store, world.clock, SeededEntropy(2))
        await second.start()
        assert second.epoch > world.sequencer.epoch
        await second.close()


async def test_a_stalled_committer_that_nobody_replaced_continues_without_reloading() -> None:
    async with started_world() as world:
        world.clock.advance(60.0)  # nothing ran meanwhile, its lease is over
        assert not world.sequencer.is_committer
        assert (await world.sequencer.metadata(MetadataRequest())).topics == []
        assert (await world.sequencer.create_topic(CreateTopic("t", 1, {}))).name == "t"
        assert world.store.loads == 1


async def test_a_stalled_committer_that_was_replaced_does_not_show_all_that_its_successor_wrote() -> None:
    async with started_world() as world:
        world.clock.advance(60.0)
        second = Committer(world.store, world.clock, SeededEntropy(2))
        await second.start()
        await second.create_topic(CreateTopic("t", 1, {}))
        with pytest.raises(SequencerUnavailable):
            await world.sequencer._catch_up()  # as a snapshot does after its last page
        await second.close()


async def test_a_stalled_committer_that_was_replaced_answers_nothing_more() -> None:
    async with started_world() as world:
        world.clock.advance(60.0)
        second = Committer(world.store, world.clock, SeededEntropy(2))
        await second.start()
        with pytest.raises(SequencerUnavailable):
            await world.sequencer.metadata(MetadataRequest())
        with pytest.raises(SequencerUnavailable):
            await world.sequencer.create_topic(CreateTopic("t", 1, {}))
        await second.close()


class Noted(SequencerObserver):
    def __init__(self) -> None:
        self.groups: list[int] = []
        self.queued: list[int] = []
        self.failed: list[str] = []
        self.database: list[str] = []
        self.terms = 0

    def queue_changed(self, requests: int) -> None:
        self.queued.append(requests)

    def group_performed(self, requests: int, seconds: float) -> None:
        self.groups.append(requests)

    def database_answered(self, work: str, seconds: float) -> None:
        self.database.append(work)

    def request_failed_alone(self, request: str) -> None:
        self.failed.append(request)

    def term_began(self) -> None:
        self.terms += 1


async def test_five_thousand_commits_of_offsets_that_wait_take_twenty_writes() -> None:
    async with started_world() as world:
        topic = await world.sequencer.create_topic(CreateTopic("t", 1, {}))
        before = world.store.writes
        position = OffsetPosition(topic.topic_id, 0, 1, 0, "")
        await asyncio.gather(
            *(
                world.sequencer.commit_offsets(CommitOffsets(f"g{number}", -1, -1, -1, "", [position]))
                for number in range(5_000)
            )
        )
        assert world.store.writes - before == 20, "256 requests in each"


async def test_a_thousand_agents_that_come_back_together_take_eight_writes() -> None:
    async with started_world() as world:
        before = world.store.writes

        async def come_back(number: int) -> None:
            info = AgentInfo(f"host-{number}", 9092, "p", 0, 0, "z", "0", UUID(int=number))
            agent = await world.sequencer.register_agent(info)
            await world.sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))

        await asyncio.gather(*(come_back(number) for number in range(1_000)))
        assert world.store.writes - before <= 9, "256 requests in each"
        ring = (await world.sequencer.metadata(MetadataRequest())).ring
        assert ring is not None and len(ring.members) == 1_000
        assert ring.generation <= 5, "a generation for each write in which agents joined, not for each agent"


async def test_an_observer_gets_events_of_groups_queue_database_and_failures() -> None:
    async with started_world() as world:
        noted = Noted()
        await world.sequencer.close()
        world.sequencer = Committer(world.store, world.clock, SeededEntropy(2), observer=noted)
        await world.sequencer.start()
        world.store.refuse(of_bad_ids)
        await world.together(
            world.sequencer.init_producer(transactional("bad")),
            world.sequencer.create_topic(CreateTopic("t", 1, {})),
            world.sequencer.objects(ObjectsRequest("", 10)),
        )
        assert noted.terms == 1
        assert noted.groups == [1, 2]
        assert max(noted.queued) == 2 and noted.queued[-1] == 0
        assert noted.failed == ["init_producer"]
        assert noted.database == ["load", "read", "write", "write", "write", "write"]


async def test_nothing_is_queued_at_a_committer_that_has_closed() -> None:
    async with started_world() as world:
        noted = Noted()
        await world.sequencer.close()
        world.sequencer = Committer(world.store, world.clock, SeededEntropy(2), observer=noted)
        await world.sequencer.start()
        waiting = asyncio.create_task(world.sequencer.create_topic(CreateTopic("t", 1, {})))
        await asyncio.sleep(0)
        assert noted.queued[-1] == 1
        await world.sequencer.close()
        with pytest.raises(SequencerUnavailable):
            await waiting
        assert noted.queued[-1] == 0


async def test_a_request_that_its_caller_abandoned_is_not_decided_and_reads_nothing() -> None:
    async with started_world() as world:
        world.store.hold_writes()
        first = asyncio.ensure_future(world.sequencer.create_topic(CreateTopic("first", 1, {})))
        await settle()
        late = [
            asyncio.ensure_future(world.sequencer.create_topic(CreateTopic(f"late-{number}", 1, {})))
            for number in range(3)
        ]
        await settle()
        for each in late:
            each.cancel()
        asked, now_ms = 0, world.store.now_ms

        async def counted() -> int:
            nonlocal asked
            asked += 1
            return await now_ms()

        world.store.now_ms = counted  # type: ignore[method-assign]
        world.store.release_writes()
        await first
        await settle()
        assert asked == 0
        known = await world.sequencer.metadata(MetadataRequest(-1))
        assert [topic.name for topic in known.topics] == ["first"]


async def test_a_committer_that_breaks_down_gives_its_lease_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started_world() as world:
        monkeypatch.setattr(world.sequencer._group_commit, "_perform_together", breaks)
        with pytest.raises(SequencerUnavailable):
            await world.sequencer.create_topic(CreateTopic("t", 1, {}))
        assert not world.sequencer.is_committer
        with pytest.raises(SequencerUnavailable):
            await asyncio.wait_for(world.sequencer.create_topic(CreateTopic("t", 1, {})), PATIENCE_SECONDS)


@pytest.mark.parametrize(("stopped_s", "error"), [(60.0, SequencerUnavailable), (0.0, RequestFailed)])
async def test_an_error_while_the_lease_expires_is_no_bug(
    stopped_s: float, error: type[SequencerError]
) -> None:
    """What was read of the database before and after may be of two committers."""

    async with started_world() as world:
        noted = Noted()
        await world.sequencer.close()
        world.sequencer = Committer(world.store, world.clock, SeededEntropy(2), observer=noted)
        await world.sequencer.start()

        async def contradicted(draft: Draft) -> None:
            world.clock.advance(stopped_s)
            raise AssertionError("the rows contradict each other")

        with pytest.raises(SequencerError, match="contradict") as told:
            await world.sequencer._group_commit.decide_alone("apply_retention", contradicted)
        assert type(told.value) is error
        assert noted.failed == (["apply_retention"] if error is RequestFailed else [])


async def test_a_stop_while_something_runs_out_warns_nobody() -> None:
    clock = ManualClock()
    store = HookedRowStore(clock)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    is_asked, may_answer, now_ms = asyncio.Event(), asyncio.Event(), store.now_ms

    async def held() -> int:
        is_asked.set()
        await may_answer.wait()
        return await now_ms()

    store.now_ms = held  # type: ignore[method-assign]
    sequencer._expiry._has_expired = lambda now: True  # type: ignore[method-assign]
    for _ in range(5):
        await asyncio.sleep(0)
    clock.advance(1)
    await is_asked.wait()
    with capture_logs() as logged:
        closing = asyncio.create_task(sequencer.close())
        await asyncio.sleep(0)
        may_answer.set()
        await closing
    assert [each for each in logged if each["log_level"] != "info"] == []
