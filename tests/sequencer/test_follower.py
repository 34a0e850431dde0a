"""A server's copy of the rows: it follows the committer by the journal, and is what the next committer begins with."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from sequencer.api.compaction import CompactionRequest
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.groups import FetchOffsets
from sequencer.api.objects import LiveFilesRequest, ObjectRef, ObjectsRequest, SizesAnswer, SizesRequest
from sequencer.api.producers import InitProducer, ProducerQuery
from sequencer.api.reads import (
    EpochQuery,
    EpochRequest,
    FindPartition,
    FindRequest,
    OffsetQuery,
    OffsetsRequest,
)
from sequencer.api.security import CreateAcls, Security, SecurityRequest
from sequencer.api.share_groups import ShareOffsetsRequest
from sequencer.api.topics import (
    AlterConfig,
    BrokerConfigsRequest,
    ConfigChange,
    ConfigOperation,
    ConfigScope,
    CreateTopic,
    DeleteTopic,
    Metadata,
    MetadataRequest,
)
from sequencer.api.transactions import (
    AddToTransaction,
    TransactionDescriptions,
    TransactionRef,
    TransactionsRequest,
)
from sequencer.api.values import Value
from sequencer.engine.committer import Committer
from sequencer.engine.follower import Follower, FollowerBehind
from sequencer.engine.requests import QUERIES
from sequencer.methods import AS_NEWEST, AS_SEEN, METHODS
from sequencer.reading.journal import CHAIN, Journal, JournalGap
from sequencer.store.draft import Draft
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import HOT, Changes, CounterRow, JournalRow, Row, TopicRow
from sequencer.store.state import JOURNAL_NUMBER, HotState
from tailrace.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tailrace.turns import at_once
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS


class CountedStore(MemoryRowStore):
    loads = 0
    reads = 0

    async def load(self) -> dict[type[Row], list[Row]]:
        self.loads += 1
        return await super().load()

    async def journal_from(self, number: int, limit: int) -> list[JournalRow]:
        self.reads += 1
        await asyncio.sleep(0)
        return await super().journal_from(number, limit)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = CountedStore(self.clock)
        self.committer = self.another(1)

    def another(self, seed: int, follower: Follower | None = None) -> Committer:
        return Committer(self.store, self.clock, SeededEntropy(seed), keeps_journal=True, follower=follower)

    async def following(self, state: HotState | None = None) -> Follower:
        follower = Follower(self.store, self.clock, pause_s=0.2, state=state)
        await follower.load()
        return follower

    async def create(self, *names: str) -> None:
        for name in names:
            await self.committer.create_topic(CreateTopic(name, 3, {}))


@asynccontextmanager
async def started_world() -> AsyncIterator[World]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = World()
        await world.committer.start()
        yield world
        await world.committer.close()


def differences(copy: HotState, of: HotState) -> list[str]:
    return [kind.__name__ for kind in HOT if set(map(repr, copy.all(kind))) != set(map(repr, of.all(kind)))]


async def test_a_copy_follows_what_is_created_changed_and_deleted() -> None:
    async with started_world() as world:
        await world.create("a")
        follower = await world.following()
        await world.create("b", "c")
        change = ConfigChange("retention.ms", ConfigOperation.SET, "5")
        await world.committer.alter_config(AlterConfig(ConfigScope.TOPIC, "b", [change]))
        gone = world.committer._view.state.topic_named("c")
        assert gone is not None
        await world.committer.delete_topic(DeleteTopic(gone.topic_id))
        assert follower.state is not None and follower.state.topic_named("b") is None
        await follower.catch_up()
        assert differences(follower.state, world.committer._view.state) == []
        assert world.store.loads == 2


async def test_taking_over_looks_at_the_end_of_the_journal_and_loads_nothing() -> None:
    async with started_world() as world:
        await world.create(*(f"t{number}" for number in range(20)))
        follower = await world.following()
        await world.create("last")
        await world.committer.close()
        loads = world.store.loads
        before = follower.number
        world.committer = world.another(2, follower)
        await world.committer.start()
        assert world.store.loads == loads and before < world.committer._view.state.counter(JOURNAL_NUMBER)
        assert world.committer._view.state.topic_named("last") is not None
        await world.create("later")
        loaded = await HotState.built(await world.store.load(), world.clock)
        assert differences(world.committer._view.state, loaded) == []
        assert follower.state is None, "it is the committer's now"


async def test_a_copy_that_the_journal_no_longer_reaches_is_reloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.reading.journal.MAX_ROWS", 4)

    async with started_world() as world:
        await world.create("a")
        follower = await world.following()
        await world.create(*"bcdefgh")
        assert len(await world.store.journal_from(0, 100)) == 4
        with pytest.raises(JournalGap):
            await follower.catch_up()
        assert follower.state is None
        await follower.load()
        await follower.catch_up()
        assert follower.state is not None and differences(follower.state, world.committer._view.state) == []


async def test_a_copy_of_another_history_of_the_same_length_is_not_continued() -> None:
    async with started_world() as world:
        await world.create("a", "b")
        follower = await world.following()
        other = World()
        await other.committer.start()
        await other.create("a", "x", "y")
        follower._store = other.store
        with pytest.raises(JournalGap):
            await follower.catch_up()
        await other.committer.close()


async def test_a_copy_that_took_half_of_a_transaction_is_never_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(state: HotState, changes: Changes) -> None:
        raise MemoryError

    async with started_world() as world:
        await world.create("a")
        follower = await world.following()
        await world.create("b")
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(HotState, "apply", fail)
            await follower.catch_up()
        assert follower.state is None
        with monkeypatch.context() as patch, pytest.raises(SequencerUnavailable):
            patch.setattr(HotState, "apply", fail)
            await world.create("c")
        assert world.committer.give_back() is None


async def test_callers_that_come_together_share_two_looks() -> None:
    async with started_world() as world:
        await world.create("a")
        follower = await world.following()
        await follower.catch_up()
        reads = world.store.reads
        await asyncio.gather(*(follower.catch_up() for _ in range(100)))
        assert world.store.reads - reads <= 2


async def test_an_up_to_date_copy_has_everything_written_before_the_call() -> None:
    async with started_world() as world:
        await world.create("a")
        follower = await world.following()
        early = asyncio.create_task(follower.catch_up())
        await asyncio.sleep(0)  # it has asked the store already
        await world.create("b")
        await follower.catch_up()
        assert follower.state is not None and follower.state.topic_named("b") is not None
        await early


async def test_the_journal_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.reading.journal.MAX_BYTES", 2_000)

    async with started_world() as world:
        await world.create(*(f"t{number}" for number in range(30)))
        kept = await world.store.journal_from(0, 100)
        assert 0 < sum(len(row.changes) for row in kept) <= 3_000
        assert kept[-1].number == world.committer._view.state.counter(JOURNAL_NUMBER)


async def test_the_journal_is_bounded_over_terms_of_which_each_writes_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sequencer.reading.journal.MAX_BYTES", 2_000)

    async with started_world() as world:
        for term in range(2, 12):
            await world.create(*(f"t{term}.{number}" for number in range(3)))
            await world.committer.close()
            world.committer = world.another(term)
            await world.committer.start()
        await world.create("last")
        kept = await world.store.journal_from(0, 100)
        assert 0 < sum(len(row.changes) for row in kept) <= 3_000


def test_a_number_whose_transaction_failed_is_used_again() -> None:
    state, journal = HotState({}), Journal({}, 1)
    chains = []
    for name in ("a", "b"):
        draft = Draft(state, 0)
        draft.put(CounterRow(name=name, value=1))
        at_once(journal.add(draft))
        assert list(draft.changes.by_kind[JournalRow]) == [(1,)]
        chains.append(draft.changes.by_kind[CounterRow][CHAIN,])
    assert chains[0] != chains[1]
    state.apply(_written(draft))
    after = Draft(state, 0)
    at_once(journal.add(after))
    assert list(after.changes.by_kind[JournalRow]) == [(2,)]


def _written(draft: Draft) -> Changes:
    assert TopicRow not in draft.changes.by_kind
    return draft.changes


async def test_a_released_state_is_kept_by_nobody() -> None:
    async with started_world() as world:
        await world.create("a")
        follower = await world.following()
        assert follower.state is not None
        copy = weakref.ref(follower.state)
        follower.drop()
        gc.collect()
        assert copy() is None, "the follower may be in a cycle that the collector leaves alone"

        await world.committer.close()
        state = world.committer.give_back()
        assert state is not None and state.topic_named("a") is not None
        given = weakref.ref(state)
        del state
        assert given() is None, "the committer is in such a cycle"


async def test_a_committer_that_reloads_keeps_nothing_of_its_earlier_state() -> None:
    async with started_world() as world:
        await world.create("a")
        view = world.committer._view
        earlier = weakref.ref(view.state)
        view.is_stale = True
        await world.create("b")
        assert earlier() is None


# --- what it answers


async def test_a_question_is_answered_as_of_what_the_asker_has_seen() -> None:
    async with started_world() as world:
        await world.create("a")
        follower = await world.following()
        loaded = follower.number
        await world.create("b")
        seen = world.committer.journal_number

        async def names(as_of: int) -> list[str]:
            answer = await follower.answer(METHODS["sizes"], SizesRequest(None), as_of)
            assert isinstance(answer, SizesAnswer)
            topics = {topic.topic_id: topic.name for topic in world.committer._view.state.all(TopicRow)}
            return sorted({topics[size.topic_id] for size in answer.sizes})

        assert await names(loaded) == ["a"], "as of then: nobody who asks has seen more"
        reads = world.store.reads
        assert await names(seen) == ["a", "b"]
        assert await names(seen) == ["a", "b"] and world.store.reads == reads + 1
        with pytest.raises(FollowerBehind):
            await names(seen + 1)


async def test_a_new_caller_gets_at_least_what_another_was_answered_before() -> None:
    """A client whose transaction began at one agent ends it at another: that one must see the open transaction."""

    async with started_world() as world:
        granted = await world.committer.init_producer(InitProducer(transactional_id="t", timeout_ms=60_000))
        transaction = TransactionRef("t", granted.producer_id, granted.producer_epoch)
        await world.create("a")
        follower = await world.following()
        topic = world.committer._view.state.topic_ids["a"]
        await world.committer.add_to_transaction(AddToTransaction(transaction, [(topic, 0)]))
        await world.create("b")

        described = await follower.answer(METHODS["transactions"], TransactionsRequest(["t"]), 0)
        known = await follower.answer(METHODS["metadata"], MetadataRequest(), 0)

        assert isinstance(described, TransactionDescriptions) and isinstance(known, Metadata)
        assert [one.number for one in described.transactions] == [1]
        assert [one.name for one in known.topics or ()] == ["a", "b"]


async def test_a_followers_answer_has_only_the_acls_that_changed() -> None:
    def of(name: str) -> Acl:
        literal, user = PatternType.LITERAL, "User:u"
        return Acl(ResourceType.TOPIC, name, literal, user, "*", Operation.READ, Permission.ALLOW)

    async with started_world() as world:
        await world.committer.create_acls(CreateAcls([of("a")]))
        follower = await world.following()
        await world.committer.create_acls(CreateAcls([of("b")]))

        changed = await follower.answer(
            METHODS["security"], SecurityRequest(known_version=1, takes_changes=True), 0
        )
        assert isinstance(changed, Security) and changed.deleted is not None
        assert (changed.version, changed.acls) == (2, [of("b")])


async def test_the_committer_and_a_follower_answer_alike() -> None:
    async with started_world() as world:
        await world.create("a", "b")
        follower = await world.following()
        for name in sorted(AS_SEEN | AS_NEWEST):
            method, topic = METHODS[name], world.committer._view.state.topic_ids["a"]
            request = (
                LiveFilesRequest(topic) if name == "live_files" else REQUESTS.get(name) or method.request()
            )
            theirs = await world.committer.call(method, request)
            assert await follower.answer(method, request, world.committer.journal_number) == theirs, name


def test_any_server_answers_every_question_but_the_committers_own() -> None:
    answered = AS_SEEN | AS_NEWEST
    assert not AS_SEEN & AS_NEWEST
    assert QUERIES.keys() - answered == ASKED_OF_THE_COMMITTER and answered <= QUERIES.keys()


ASKED_OF_THE_COMMITTER = {
    *("watch", "feed"),  # it alone queues changes for subscribers
    "locate_group",  # it alone knows which agents it has heard of
    "current_transactions",  # part of a produce request, which would wait for a look at the journal
    *("garbage", "known_keys"),  # asked in its own process, before something is deleted
    *("clean_points", "table_pins"),  # a few calls a minute, of the compactor
}
NOWHERE = UUID(int=99)
REQUESTS: dict[str, Value] = {
    "broker_configs": BrokerConfigsRequest(""),
    "sizes": SizesRequest(None),
    "transactions": TransactionsRequest(None),
    "compaction_candidates": CompactionRequest(1, 0, 10),
    "objects": ObjectsRequest("", 10),
    "describe_producers": ProducerQuery(NOWHERE, 0),
    "fetch_offsets": FetchOffsets("g", None),
    "find_batches": FindRequest([FindPartition(NOWHERE, 0, 0, 1)], 1),
    "list_offsets": OffsetsRequest([OffsetQuery(NOWHERE, 0, -1)]),
    "object_runs": ObjectRef(NOWHERE),
    "share_offsets": ShareOffsetsRequest("g"),
    "offsets_for_epochs": EpochRequest([EpochQuery(NOWHERE, 0, 0)]),
}
"""Those that have no defaults."""
