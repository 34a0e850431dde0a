"""The contract of every sequencer about transactions, over every row store and over RPC."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from sequencer.api.commits import BatchError, ObjectDescription, ObjectKind, OpenSession
from sequencer.api.compaction import CompactionRequest, ReplacementRun, SwapRequest, TakeLease
from sequencer.api.errors import (
    InvalidProducerIdMapping,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    LimitReached,
    ProducerFenced,
    SequencerUnavailable,
    StaleGroup,
    SwapRefused,
    UnknownPartition,
)
from sequencer.api.groups import (
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    GroupRef,
    GroupState,
    LoadGroup,
    LocateGroup,
    OffsetPosition,
    SaveGroup,
)
from sequencer.api.producers import InitProducer, ProducerGrant, ProducerQuery
from sequencer.api.reads import (
    AbortedTransaction,
    FeedRequest,
    FoundPartition,
    Marker,
    OffsetQuery,
    OffsetResult,
    OffsetSpec,
    OffsetsRequest,
    PartitionError,
)
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import CreateTopic, DeleteTopic
from sequencer.api.transactions import (
    AbortProducer,
    AddToTransaction,
    CurrentTransactionQuery,
    CurrentTransactionsRequest,
    EndTransaction,
    TransactionDescription,
    TransactionRef,
    TransactionsRequest,
    TransactionState,
)
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.pages import all_offsets
from sequencer.reading import queries
from sequencer.settings import SequencerSettings
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.batches.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from tests.support.clocks import SeededEntropy
from tests.support.sequencer_bench import SETTINGS, STORED, T0, Bench, batch, opened_bench, settle
from tests.support.sequencers import Factory

CLOSED = BatchError.TRANSACTION_CLOSED
FENCED = BatchError.INVALID_PRODUCER_EPOCH
NOBODY = ProducerGrant(-1, -1)


@dataclass
class Producer:
    """A transactional producer, seen both as its client and as an agent see it."""

    bench: Bench
    name: str
    now: ProducerGrant = NOBODY
    sequence: int = 0

    async def init(self, timeout_ms: int = 60_000, named: ProducerGrant | None = None) -> ProducerGrant:
        known = named or NOBODY
        self.now = await self.bench.sequencer.init_producer(
            InitProducer(known.producer_id, known.producer_epoch, self.name, timeout_ms)
        )
        self.sequence = 0
        return self.now

    @property
    def ref(self) -> TransactionRef:
        return TransactionRef(self.name, self.now.producer_id, self.now.producer_epoch)

    def batch(self, count: int = 1, at: int = T0) -> BatchCoordinates:
        """Make the next batch. Its sequences count over all partitions, so a test writes to only one."""
        made = BatchCoordinates(
            100,
            count,
            at,
            at,
            self.now.producer_id,
            self.now.producer_epoch,
            self.sequence,
            TRANSACTIONAL_FLAG,
        )
        self.sequence += count
        return made

    async def write(self, count: int = 1, partition: int = 0, at: int = T0) -> int:
        """Store a batch in the transaction that its epoch names (version 2); returns its base offset."""
        (outcome,) = await self.bench.commit(self.batch(count, at), partition=partition)
        assert outcome[0] is STORED
        return outcome[1]

    async def add(
        self, *partitions: int, group_id: str | None = None, verify_only: bool = False, number: int = -1
    ) -> None:
        places = [(self.bench.topic.topic_id, partition) for partition in partitions]
        await self.bench.sequencer.add_to_transaction(
            AddToTransaction(self.ref, places, group_id, verify_only, number)
        )

    async def current(self, partition: int = 0) -> tuple[BatchError, int]:
        query = CurrentTransactionQuery(
            self.bench.topic.topic_id, partition, self.now.producer_id, self.now.producer_epoch
        )
        (found,) = (
            await self.bench.sequencer.current_transactions(CurrentTransactionsRequest([query]))
        ).transactions
        return found.error, found.number

    async def end(self, *, commit: bool, bump: bool = True, number: int = -1) -> ProducerGrant:
        """End the transaction, and continue with the answer's producer id and epoch."""
        answer = await self.bench.sequencer.end_transaction(EndTransaction(self.ref, commit, bump, number))
        if answer != self.now:
            self.sequence = 0
        self.now = answer
        return answer

    async def describe(self) -> TransactionDescription:
        (found,) = (await self.bench.sequencer.transactions(TransactionsRequest([self.name]))).transactions
        return found

    async def offsets(
        self,
        offset: int,
        *,
        joins: bool = True,
        group_id: str = "g",
        member: str = "",
        turn: int = 0,
        number: int = -1,
    ) -> None:
        position = OffsetPosition(self.bench.topic.topic_id, 0, offset, -1, "")
        generation = 1 if member else -1
        agent = self.bench.agent
        request = CommitOffsets(
            group_id,
            agent.broker_id,
            agent.epoch,
            generation,
            member,
            [position],
            -1,
            self.ref,
            joins,
            turn,
            number,
        )
        answer = await self.bench.sequencer.commit_offsets(request)
        assert answer.errors == [PartitionError.NONE]


async def producer(bench: Bench, name: str = "tx") -> Producer:
    made = Producer(bench, name)
    await made.init()
    return made


async def position(bench: Bench, group_id: str = "g") -> tuple[int, bool]:
    asked = FetchOffsets(group_id, [(bench.topic.topic_id, 0)])
    (found,) = (await bench.sequencer.fetch_offsets(asked)).positions
    return found.offset, found.has_pending


async def look_up(bench: Bench, timestamp: int) -> OffsetResult:
    query = OffsetQuery(bench.topic.topic_id, 0, timestamp, True)
    return (await bench.sequencer.list_offsets(OffsetsRequest([query]))).results[0]


def shape(found: FoundPartition) -> list[tuple[int, int, ObjectKind]]:
    return [(one.base_offset, one.end_offset, one.kind) for one in found.runs]


MIXED, PARQUET, MARKERS = ObjectKind.MIXED, ObjectKind.PARQUET, ObjectKind.MARKERS


# --- ids and epochs -----------------------------------------------------------------------------------


async def test_a_transactional_id_keeps_its_producer_id_and_the_earlier_producer_is_fenced(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        old = await producer(bench)
        other = await producer(bench, "another")
        assert old.now.producer_epoch == 0 and other.now.producer_id != old.now.producer_id
        new = await producer(bench)
        assert new.now == ProducerGrant(old.now.producer_id, 1)
        for asked in (old.add(0), old.end(commit=True), old.offsets(1)):
            with pytest.raises(ProducerFenced):
                await asked
        assert await bench.commit(old.batch()) == [(FENCED, -1)]
        assert await old.current() == (FENCED, -1)
        await new.write()


async def test_taking_a_transactional_id_aborts_what_is_open_under_it(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        old = await producer(bench)
        await old.write(3)
        await producer(bench)
        found = await bench.find()
        assert (found.high_watermark, found.last_stable_offset) == (4, 4)
        assert found.aborted == [AbortedTransaction(old.now.producer_id, 0, 3)]


async def test_a_producer_that_names_its_epoch_gets_the_next_one_and_the_same_on_a_retry(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        first = mine.now
        second = await mine.init(named=first)
        assert second == ProducerGrant(first.producer_id, 1) == await mine.init(named=first)
        third = await mine.init(named=second)
        with pytest.raises(ProducerFenced):
            await mine.init(named=first)
        await mine.write()
        with pytest.raises(ProducerFenced):
            await mine.init(named=second)  # the epoch that it led to is in use
        fourth = await mine.init(named=third)
        await mine.init()  # another instance of the client
        for lost in (third, fourth):
            with pytest.raises(ProducerFenced):
                await mine.init(named=lost)


async def test_only_the_current_id_and_epoch_may_do_anything(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        for name, producer_id, error in (
            ("unknown", mine.now.producer_id, InvalidProducerIdMapping),
            ("tx", mine.now.producer_id + 5, InvalidProducerIdMapping),
        ):
            wrong = Producer(bench, name, ProducerGrant(producer_id, 0))
            for asked in (wrong.add(0), wrong.end(commit=False), wrong.offsets(1)):
                with pytest.raises(error):
                    await asked
        ahead = Producer(bench, "tx", ProducerGrant(mine.now.producer_id, 7))
        for asked in (ahead.add(0), ahead.end(commit=False), ahead.offsets(1)):
            with pytest.raises(ProducerFenced):
                await asked
        assert await bench.commit(ahead.batch()) == [(FENCED, -1)]
        nobody = Producer(bench, "?", ProducerGrant(99, 0))
        assert await bench.commit(nobody.batch()) == [(CLOSED, -1)]


async def test_time_outs_are_bounded(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        for timeout_ms in (0, -1, SETTINGS.transaction_max_timeout_ms + 1):
            with pytest.raises(InvalidTransactionTimeout, match="transaction_max_timeout_ms"):
                await Producer(bench, "tx").init(timeout_ms)


async def test_limits_of_transactions_are_named_when_they_are_reached(factory: Factory) -> None:
    async with opened_bench(
        factory, SequencerSettings(max_transactional_ids=2, max_open_transactions=1)
    ) as bench:
        first, second = await producer(bench, "a"), await producer(bench, "b")
        with pytest.raises(LimitReached, match="max_transactional_ids"):
            await producer(bench, "c")
        await first.add(0)
        with pytest.raises(LimitReached, match="max_open_transactions"):
            await second.add(0)
        assert await bench.commit(second.batch()) == [(CLOSED, -1)]
        await first.end(commit=True)
        second.sequence = 0
        await second.write()


async def test_transactional_ids_that_are_not_used_are_forgotten_unless_something_is_open(
    factory: Factory,
) -> None:
    async with opened_bench(factory, SequencerSettings(transactional_id_expiration_ms=1_000)) as bench:
        idle, busy = await producer(bench, "idle"), await producer(bench, "busy")
        await busy.add(0)
        await bench.advance(2_000)
        await bench.sequencer.apply_retention(Empty())
        found = (await bench.sequencer.transactions(TransactionsRequest(None))).transactions
        assert [one.transactional_id for one in found] == ["busy"]
        with pytest.raises(InvalidProducerIdMapping):
            await idle.add(0)


# --- what a transaction holds -------------------------------------------------------------------------


async def test_an_open_transaction_is_not_stable_and_its_end_is_one_marker(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        await bench.commit(batch(2))
        assert await mine.write(3) == 2
        await bench.commit(batch(1))
        found = await bench.find()
        assert (found.high_watermark, found.last_stable_offset) == (6, 2)
        granted = mine.now
        assert await mine.end(commit=True) == ProducerGrant(granted.producer_id, 1)
        found = await bench.find()
        assert (found.high_watermark, found.last_stable_offset, found.aborted) == (7, 7, [])
        assert shape(found) == [(0, 2, MIXED), (2, 5, MIXED), (5, 6, MIXED), (6, 7, MARKERS)]
        marked = found.runs[-1]
        assert (marked.key, marked.length, marked.max_timestamp, marked.running_max_timestamp) == (
            "",
            78,
            -1,
            T0,
        )
        assert marked.markers == [Marker(6, *(granted.producer_id, 0), True, marked.created_ms)]
        assert [(one.base_offset, one.record_count, one.length) for one in marked.batches] == [(6, 1, 78)]


async def test_a_partition_without_records_gets_no_marker(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        await mine.add(0, 1)
        await mine.write(partition=1)
        await mine.end(commit=False)
        assert ((await bench.find()).high_watermark, (await bench.find(partition=1)).high_watermark) == (0, 2)


async def test_a_batch_with_a_number_is_stored_in_that_transaction_only(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        assert await mine.current() == (CLOSED, -1)
        await mine.add(0)
        error, first = await mine.current()
        assert error is STORED and await mine.current(1) == (CLOSED, -1)
        assert await bench.commit(mine.batch(2), transactions=[first]) == [(STORED, 0)]
        late = mine.batch()
        await mine.end(commit=True, bump=False)
        assert mine.now.producer_epoch == 0
        assert await bench.commit(late, transactions=[first]) == [(CLOSED, -1)]
        await mine.add(0)
        _, second = await mine.current()
        assert second == first + 1
        assert await bench.commit(late, transactions=[first]) == [(CLOSED, -1)]
        mine.sequence = 2
        assert await bench.commit(mine.batch(), transactions=[second]) == [(STORED, 3)]
        assert await bench.commit(mine.batch(), transactions=[second], partition=1) == [(CLOSED, -1)]
        assert (await bench.find()).last_stable_offset == 3


async def test_a_batch_sent_twice_is_stored_once_and_neither_it_nor_a_gap_begins_anything(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        first, second = mine.batch(), mine.batch()
        assert await bench.commit(second) == [(BatchError.UNKNOWN_PRODUCER_ID, -1)]
        assert (await mine.describe()).state is TransactionState.EMPTY
        assert await bench.commit(first, first, second) == [
            (STORED, 0),
            (BatchError.DUPLICATE, 0),
            (STORED, 1),
        ]
        described = await mine.describe()
        assert (described.state, described.number) == (TransactionState.ONGOING, 1)
        assert described.partitions == [(bench.topic.topic_id, 0)]


async def test_a_batch_outside_of_its_transaction_is_refused(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        plain = batch(producer=mine.now.producer_id, sequence=0)
        control = BatchCoordinates(
            78, 1, T0, T0, mine.now.producer_id, 0, 0, TRANSACTIONAL_FLAG | CONTROL_FLAG
        )
        unnamed = BatchCoordinates(100, 1, T0, T0, -1, -1, -1, TRANSACTIONAL_FLAG)
        assert await bench.commit(plain, control, unnamed) == [(CLOSED, -1)] * 3
        assert (await bench.find()).high_watermark == 0


async def test_a_verified_partition_must_be_in_the_open_transaction(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        for _ in range(2):
            with pytest.raises(InvalidTransactionState):
                await mine.add(0, verify_only=True)
            await mine.add(0, group_id="g")
            await mine.add(0, group_id="g")
            await mine.add(0, verify_only=True)
            await mine.add(group_id="g", verify_only=True)
            for partitions, group_id in (((0, 1), None), ((), "h")):
                with pytest.raises(InvalidTransactionState):
                    await mine.add(*partitions, group_id=group_id, verify_only=True)
            with pytest.raises(UnknownPartition):
                await mine.add(1, 9)
            assert (await mine.describe()).partitions == [(bench.topic.topic_id, 0)]
            await mine.end(commit=True, bump=False)


# --- ends ---------------------------------------------------------------------------------------------


async def test_an_end_sent_twice_gets_its_first_answer(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        for commit in (True, False):
            mine = await producer(bench, f"bumping {commit}")
            await mine.write()
            request = EndTransaction(mine.ref, commit, True)
            first = await mine.end(commit=commit)
            end = (await bench.find()).high_watermark
            assert await bench.sequencer.end_transaction(request) == first
            await mine.write()  # the next one is open
            assert await bench.sequencer.end_transaction(request) == first
            with pytest.raises(InvalidTransactionState):
                await bench.sequencer.end_transaction(EndTransaction(request.transaction, not commit, True))
            assert (await mine.describe()).state is TransactionState.ONGOING
            assert (await bench.find()).high_watermark == end + 1
            await mine.end(commit=True)


async def test_an_end_without_a_bump_sent_twice_gets_its_first_answer(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        with pytest.raises(InvalidTransactionState):
            await mine.end(commit=True, bump=False)
        with pytest.raises(InvalidTransactionState):
            await mine.end(commit=True, bump=False, number=7)
        for commit in (True, False):
            await mine.add(0)
            number = (await mine.describe()).number
            assert await mine.end(commit=commit, bump=False, number=number) == mine.now
            assert await mine.end(commit=commit, bump=False, number=number) == mine.now
            assert await mine.end(commit=commit, bump=False) == mine.now
            with pytest.raises(InvalidTransactionState):
                await mine.end(commit=not commit, bump=False)
            await mine.add(0)  # the next transaction: a late end doesn't end it
            assert await mine.end(commit=commit, bump=False, number=number) == mine.now
            for late in (number, number - 1):
                with pytest.raises(InvalidTransactionState):
                    await mine.end(commit=not commit, bump=False, number=late)
            with pytest.raises(InvalidTransactionState):
                await mine.end(commit=commit, bump=False, number=number - 1)
            assert (await mine.describe()).state is TransactionState.ONGOING
            await mine.end(commit=False, bump=False)


async def test_an_end_without_bump_and_number_is_not_answered_by_the_end_of_the_transaction_before_it(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        for begins_another in (False, True):
            mine = await producer(bench, f"begins another: {begins_another}")
            await mine.add(0)
            granted = await mine.end(commit=True, bump=False)
            if begins_another:
                await mine.add(0)
            await Producer(bench, mine.name).init()  # which aborts it
            if begins_another:
                with pytest.raises(ProducerFenced):
                    await mine.end(commit=True, bump=False)
            else:
                assert await mine.end(commit=True, bump=False) == granted


async def test_with_bumps_an_empty_transaction_may_be_aborted_but_not_committed(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        with pytest.raises(InvalidTransactionState):
            await mine.end(commit=True)
        request = EndTransaction(mine.ref, False, True)
        first = await mine.end(commit=False)
        assert first.producer_epoch == 1
        assert await bench.sequencer.end_transaction(request) == first
        with pytest.raises(InvalidTransactionState):
            await mine.end(commit=True)
        await mine.write()


async def test_a_producer_that_missed_the_answer_to_its_end_continues_with_its_epoch(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        before = mine.now
        await mine.write()
        after = await mine.end(commit=True)
        assert await mine.init(named=before) == after
        await mine.write()


async def test_an_end_whose_write_fails_is_retried(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        store = bench.store
        for when in ("before", "after"):
            mine = await producer(bench, when)
            await mine.write()
            before = mine.now
            store.fail_next_write("before" if when == "before" else "after")
            with pytest.raises(SequencerUnavailable):
                await mine.end(commit=False)
            assert await mine.end(commit=False) == ProducerGrant(before.producer_id, 1)
        found = await bench.find()
        assert shape(found) == [(0, 1, MIXED), (1, 2, MARKERS), (2, 3, MIXED), (3, 4, MARKERS)]
        assert [(one.first_offset, one.last_offset) for one in found.aborted] == [(0, 1), (2, 3)]


async def test_another_committer_continues_with_what_is_open(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        store = bench.store
        aborted, mine = await producer(bench, "aborted"), await producer(bench)
        await aborted.write()
        await aborted.end(commit=False)
        await mine.write()
        await mine.offsets(7)
        await bench.sequencer.close()
        second = Committer(store, bench.opened.clock, SeededEntropy(2), SETTINGS)
        await second.start()
        bench.opened.sequencer = second
        found = await bench.find()
        assert (found.last_stable_offset, found.high_watermark, len(found.aborted)) == (2, 3, 1)
        assert await position(bench) == (-1, True)
        await mine.end(commit=True)
        assert ((await bench.find()).last_stable_offset, await position(bench)) == (4, (7, False))
        await second.close()


async def test_the_markers_of_one_group_of_requests_share_one_row(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        store = bench.store
        producers = [await producer(bench, f"tx{number}") for number in range(5)]
        for one in producers:
            await one.write()
        start = await bench.find_number()
        store.hold_writes()
        first = asyncio.create_task(bench.commit(batch()))
        await settle()
        ends = [asyncio.create_task(one.end(commit=index % 2 == 0)) for index, one in enumerate(producers)]
        await settle()
        store.release_writes()
        await asyncio.gather(first, *ends)
        found = await bench.find(6)
        assert shape(found) == [(6, 11, MARKERS)]
        assert [one.offset for one in found.runs[0].markers] == [6, 7, 8, 9, 10]
        assert [one.base_offset for one in found.runs[0].batches] == [6, 7, 8, 9, 10]
        assert found.runs[0].length == 5 * 78
        assert [(one.first_offset, one.last_offset) for one in (await bench.find()).aborted] == [
            (1, 7),
            (3, 9),
        ]
        assert await bench.find_number() == start + 2
        news = (await bench.sequencer.feed(FeedRequest(start, [], 0))).updates[0]
        assert [(one.base_offset, one.end_offset) for one in news.runs] == [(5, 6), (6, 11)]


async def test_the_feed_tells_of_an_end_with_the_last_stable_offset(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        start = await bench.find_number()
        await mine.write(2)
        place = (bench.topic.topic_id, 0)
        (told,) = (await bench.sequencer.feed(FeedRequest(start, [place], 0))).updates
        assert (told.high_watermark, told.last_stable_offset) == (2, 0)
        following = asyncio.create_task(bench.sequencer.feed(FeedRequest(start + 1, [place], 5_000)))
        await settle()
        await mine.end(commit=True)
        answer = await following
        assert answer.commit_number == start + 2
        assert [(one.last_stable_offset, one.runs[0].kind) for one in answer.updates] == [(3, MARKERS)]


async def test_a_transaction_whose_time_is_over_is_aborted_and_its_producer_fenced(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine, patient = Producer(bench, "tx"), await producer(bench, "patient")
        await mine.init(timeout_ms=400)
        await patient.write()
        await mine.write(2)
        await mine.offsets(5)
        for _ in range(500):  # a store with threads needs real time
            if (await mine.describe()).state is not TransactionState.ONGOING:
                break
            await bench.advance(200)
            await asyncio.sleep(0.01)
        described = await mine.describe()
        assert (described.state, described.producer_epoch) == (TransactionState.COMPLETE_ABORT, 1)
        found = await bench.find()
        assert (found.last_stable_offset, found.high_watermark) == (0, 4)
        assert found.aborted == [AbortedTransaction(mine.now.producer_id, 1, 3)]
        assert await position(bench) == (-1, False)
        for commit in (True, False):
            with pytest.raises(ProducerFenced):
                await mine.end(commit=commit, bump=False, number=1)
        with pytest.raises(InvalidTransactionState):
            await mine.end(commit=True)
        assert await mine.current() == (FENCED, -1)
        other = Producer(bench, "tx")
        assert (await other.init(named=mine.now)).producer_epoch == 1, "KIP-588"
        assert (await mine.end(commit=False)).producer_epoch == 1, "as in Kafka, an abort lets it continue"
        await mine.write()
        assert (await mine.end(commit=True)).producer_epoch == 2
        await other.init()
        with pytest.raises(ProducerFenced):
            await other.init(named=ProducerGrant(mine.now.producer_id, 0))


async def test_an_operator_aborts_what_a_producer_has_open(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        await mine.write()
        topic_id = bench.topic.topic_id
        unknown = PartitionError.UNKNOWN_TOPIC_OR_PARTITION
        for epoch, end in ((3, 1), (0, 2), (0, 2)):
            request = AbortProducer(
                mine.now.producer_id, epoch, [(topic_id, 0), (topic_id, 1), (UUID(int=5), 0)]
            )
            answer = await bench.sequencer.abort_producer(request)
            assert answer.errors == [PartitionError.NONE, PartitionError.NONE, unknown]
            assert (await bench.find()).high_watermark == end
        with pytest.raises(ProducerFenced):
            await mine.end(commit=True, bump=False)
        with pytest.raises(InvalidTransactionState):
            await mine.end(commit=True)


# --- group offsets ------------------------------------------------------------------------------------


async def test_offsets_of_a_transaction_are_pending_until_it_ends(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        for commit, after in ((False, -1), (True, 6)):
            await mine.offsets(5)
            await mine.offsets(6)
            assert await position(bench) == (-1, True)
            assert (await mine.describe()).groups == ["g"]
            await mine.end(commit=commit)
            assert await position(bench) == (after, False)
        await mine.offsets(9)
        assert (await bench.sequencer.fetch_offsets(FetchOffsets("g", None))).positions[0].has_pending
        await mine.end(commit=False)
        assert await position(bench) == (6, False)


async def test_a_group_must_have_been_added_unless_it_joins(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        with pytest.raises(InvalidTransactionState):
            await mine.offsets(1, joins=False)
        await mine.add(0)
        with pytest.raises(InvalidTransactionState):
            await mine.offsets(1, joins=False)
        await mine.add(group_id="g")
        await mine.offsets(1, joins=False)
        await mine.end(commit=True)
        assert await position(bench) == (1, False)


async def test_requests_of_a_transaction_add_nothing_to_a_later_one(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        for number, commit in ((1, True), (2, False)):
            await mine.add(0, number=number)
            await mine.add(group_id="g", number=number)
            await mine.offsets(10 * number, joins=False, number=number)
            await mine.add(0, number=number)
            await mine.end(commit=commit, bump=False, number=number)
            with pytest.raises(InvalidTransactionState):
                await mine.add(0, number=number)
            assert (await mine.describe()).state is not TransactionState.ONGOING
        await mine.add(group_id="g", number=3)
        for late in (1, 2):
            with pytest.raises(InvalidTransactionState):
                await mine.offsets(late, joins=False, number=late)
            with pytest.raises(InvalidTransactionState):
                await mine.add(1, number=late)
        assert (await mine.describe()).partitions == []
        await mine.end(commit=True, bump=False, number=3)
        assert await position(bench) == (10, False)


async def stable_group(bench: Bench) -> None:
    """Create a group with one member, "m", at its first generation."""
    sequencer, agent = bench.sequencer, bench.agent
    await sequencer.locate_group(LocateGroup("g", [agent.broker_id]))
    await sequencer.load_group(LoadGroup("g", agent.broker_id, agent.epoch))
    state = GroupState("g", 1, "Stable", "consumer", ["m"], b"")
    await sequencer.save_group(SaveGroup(agent.broker_id, agent.epoch, state))


@pytest.mark.parametrize("commit", [True, False])
async def test_a_position_of_a_transaction_is_not_replaced_by_one_that_was_sent_earlier(
    factory: Factory, commit: bool
) -> None:
    async with opened_bench(factory) as bench:
        await stable_group(bench)
        mine = await producer(bench)
        for offset, turn in ((5, 2), (9, 4), (7, 3), (9, 4)):
            await mine.offsets(offset, member="m", turn=turn)
        await mine.end(commit=commit)
        assert await position(bench) == (9 if commit else -1, False)
        await mine.offsets(6, member="m", turn=1)
        await mine.end(commit=True)
        assert await position(bench) == (9 if commit else 6, False)


async def commit_plainly(bench: Bench, offset: int, *, member: str = "", turn: int = 0) -> None:
    agent, at = bench.agent, OffsetPosition(bench.topic.topic_id, 0, offset, -1, "")
    request = CommitOffsets(
        "g", agent.broker_id, agent.epoch, 1 if member else -1, member, [at], -1, None, False, turn
    )
    assert (await bench.sequencer.commit_offsets(request)).errors == [PartitionError.NONE]


@pytest.mark.parametrize("pending_turn", [0, 1])
@pytest.mark.parametrize("commit", [True, False])
async def test_the_end_of_a_transaction_does_not_replace_a_position_that_was_committed_after_its_own(
    factory: Factory, commit: bool, pending_turn: int
) -> None:
    async with opened_bench(factory) as bench:
        await stable_group(bench)
        mine = await producer(bench)
        await mine.offsets(5, member="m", turn=pending_turn)
        await commit_plainly(bench, 20, member="m", turn=2)
        await mine.end(commit=commit)
        assert await position(bench) == (20, False)
        await mine.offsets(30, member="m", turn=pending_turn and 4)
        await commit_plainly(bench, 25, member="m", turn=3)
        await mine.end(commit=commit)
        later = 30 if commit and pending_turn else 25
        assert await position(bench) == (later, False)


async def test_the_later_sent_position_of_two_transactions_stays(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        await stable_group(bench)
        first, second = await producer(bench), await producer(bench, "other")
        await first.offsets(5, member="m", turn=1)
        await second.offsets(9, member="m", turn=2)
        await second.end(commit=True)
        await first.end(commit=True)
        assert await position(bench) == (9, False)


async def test_the_end_of_a_transaction_does_not_bring_a_deleted_position_back(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        delete = DeleteOffsets("g", [(bench.topic.topic_id, 0)])
        mine = await producer(bench)
        for known in (-1, 3):
            if known >= 0:
                await commit_plainly(bench, known)
            await mine.offsets(5)
            assert (await bench.sequencer.delete_offsets(delete)).errors == [PartitionError.NONE]
            assert await position(bench) == (-1, False)
            await mine.end(commit=True)
            assert await position(bench) == (-1, False)
        await mine.offsets(7)
        await mine.end(commit=True)
        assert await position(bench) == (7, False)


async def test_a_late_copy_of_an_abort_that_found_nothing_ends_no_later_transaction(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        place = (bench.topic.topic_id, 0)
        abort = AbortProducer(mine.now.producer_id, mine.now.producer_epoch, [place], UUID(int=1))
        await bench.sequencer.abort_producer(abort)
        await mine.write()
        await bench.sequencer.abort_producer(abort)
        assert (await mine.describe()).state is TransactionState.ONGOING


async def test_the_end_of_a_transaction_does_not_undo_a_reset(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        await mine.offsets(5)
        await commit_plainly(bench, 2)
        await mine.end(commit=True)
        assert await position(bench) == (2, False)
        await commit_plainly(bench, 3)
        await mine.offsets(7)
        await mine.end(commit=True)
        assert await position(bench) == (7, False)


async def test_offsets_of_a_transaction_are_fenced_by_member_and_generation_where_they_are_reported(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        await stable_group(bench)
        mine = await producer(bench)
        with pytest.raises(StaleGroup):
            await mine.offsets(1, member="n")
        assert (await mine.describe()).state is TransactionState.EMPTY
        await mine.offsets(2, member="m")
        await mine.offsets(3)  # a client that names no member
        await mine.end(commit=True)
        assert await position(bench) == (3, False)


# --- what is deleted ----------------------------------------------------------------------------------


async def test_a_topic_or_group_that_was_deleted_meanwhile_fails_no_end(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine, other = await producer(bench), await producer(bench, "other")
        await mine.write()
        await mine.offsets(4)
        await mine.offsets(4, group_id="stays")
        await other.write()
        await other.end(commit=False)
        await bench.sequencer.delete_group(GroupRef("g"))
        assert await position(bench) == (-1, False)
        gone, bench.topic = bench.topic, await bench.sequencer.create_topic(CreateTopic("u", 1, {}))
        mine.sequence = 0
        await mine.write(2)
        await bench.sequencer.delete_topic(DeleteTopic(gone.topic_id))
        assert (await mine.describe()).partitions == [(bench.topic.topic_id, 0)]
        await mine.end(commit=True)
        assert (await bench.find()).last_stable_offset == 3
        assert (await bench.sequencer.fetch_offsets(FetchOffsets("g", None))).positions == []
        assert (await bench.sequencer.fetch_offsets(FetchOffsets("stays", None))).positions == []
        await bench.sequencer.apply_retention(Empty())
        assert (await bench.sequencer.statistics(Empty())).runs == 2


async def test_an_aborted_range_goes_when_the_log_start_passes_its_marker(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        await mine.write(2)
        await mine.end(commit=False)
        await bench.commit(batch())

        async def delete_before(offset: int) -> int:
            asked = DeleteRecordsPartition(bench.topic.topic_id, 0, offset)
            await bench.sequencer.delete_records(DeleteRecords([asked]))
            await bench.sequencer.apply_retention(Empty())
            return len((await bench.find(offset)).aborted)

        assert [await delete_before(offset) for offset in (1, 2, 3)] == [1, 1, 0]
        statistics = await bench.sequencer.statistics(Empty())
        assert (statistics.runs, statistics.retired_objects) == (1, 1)


async def test_retention_takes_markers_with_what_they_ended(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        bench.topic = await bench.sequencer.create_topic(CreateTopic("short", 1, {"retention.ms": "1000"}))
        mine = await producer(bench)
        for at in (T0, T0 + 1, T0 + 20_000):
            await mine.write(at=at)
            await mine.end(commit=at == T0)
        await bench.advance(5_000)
        with capture_logs() as logs:
            summary = await bench.sequencer.apply_retention(Empty())
        assert (summary.runs_removed, summary.objects_retired) == (4, 2)
        assert not [log for log in logs if log["log_level"] == "error"], "markers have no object to miss"
        found = await bench.find(4)
        assert (found.log_start_offset, shape(found)) == (4, [(4, 5, MIXED), (5, 6, MARKERS)])
        assert [one.first_offset for one in found.aborted] == [4]


# --- reading ------------------------------------------------------------------------------------------


async def test_exactly_the_aborted_ranges_that_overlap_are_reported_in_order_of_their_first_offsets(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        a, b, c = [await producer(bench, name) for name in "abc"]
        await a.write()  # 0
        await b.write()  # 1
        await b.end(commit=False)  # 2
        await a.end(commit=False)  # 3
        await c.write()  # 4
        await c.end(commit=False)  # 5
        ids = (a.now.producer_id, b.now.producer_id, c.now.producer_id)
        ranges = [AbortedTransaction(*one) for one in zip(ids, (0, 1, 4), (3, 2, 5), strict=True)]
        for offset, max_bytes, told in (
            (0, 1 << 30, ranges), (0, 1, ranges[:1]), (1, 1, ranges[:2]), (3, 1, ranges[:1]),
            (3, 1 << 30, [ranges[0], ranges[2]]), (4, 1 << 30, ranges[2:]), (6, 1 << 30, []),
        ):  # fmt: skip
            assert (await bench.find(offset, max_bytes=max_bytes)).aborted == told, (offset, max_bytes)


async def test_read_committed_look_ups_stop_at_the_last_stable_offset(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        await bench.commit(batch(2, at=T0))
        await mine.write(at=T0 + 10)
        await bench.commit(batch(1, at=T0 + 20))
        assert (await look_up(bench, OffsetSpec.LATEST)).offset == 2
        assert (await bench.look_up(OffsetSpec.LATEST)).offset == 4
        assert (await look_up(bench, OffsetSpec.EARLIEST)).offset == 0
        first = await look_up(bench, T0)
        assert first.run is not None and (first.run.base_offset, first.last_stable_offset) == (0, 2)
        for timestamp in (T0 + 5, T0 + 20, OffsetSpec.MAX_TIMESTAMP):
            assert (await look_up(bench, timestamp)).run is None
            assert (await bench.look_up(timestamp)).run is not None
        await mine.end(commit=False)
        assert (await look_up(bench, OffsetSpec.LATEST)).offset == 5
        newest = await look_up(bench, OffsetSpec.MAX_TIMESTAMP)
        assert newest.run is not None and newest.run.base_offset == 3
        assert (await bench.look_up(T0 + 21)).run is None  # markers have no timestamp to be found by


async def test_the_latest_of_many_parts_is_not_returned_while_it_is_uncommitted(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the same as if one part held everything: the latest record of the earlier parts is not the
    latest."""
    monkeypatch.setattr(queries, "MAX_SCANNED", 2)

    async with opened_bench(factory) as bench:

        async def latest(*, read_committed: bool) -> OffsetResult:
            query = OffsetQuery(bench.topic.topic_id, 0, OffsetSpec.MAX_TIMESTAMP, read_committed)
            (found,) = await all_offsets(bench.sequencer, [query])
            return found

        for at in (T0, T0 + 1, T0 + 2):
            await bench.commit(batch(1, at=at))
        mine = await producer(bench)
        await mine.write(at=T0 + 3)
        everything, committed = await latest(read_committed=False), await latest(read_committed=True)
        assert everything.run is not None and everything.run.base_offset == 3
        assert committed.run is None and committed.last_stable_offset == 3
        await mine.end(commit=True)
        committed = await latest(read_committed=True)
        assert committed.run is not None and committed.run.base_offset == 3


async def test_open_transactions_are_described_and_counted(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine, _ = await producer(bench), await producer(bench, "idle")
        await bench.commit(batch(2))
        await mine.write()
        await bench.advance(300)
        described = await mine.describe()
        assert (described.number, described.timeout_ms, described.started_ms > 0) == (1, 60_000, True)
        query = ProducerQuery(bench.topic.topic_id, 0)
        (active,) = (await bench.sequencer.describe_producers(query)).producers
        assert (active.producer_id, active.transaction_start_offset) == (mine.now.producer_id, 2)
        statistics = await bench.sequencer.statistics(Empty())
        assert (statistics.open_transactions, statistics.oldest_transaction_ms) == (1, 300)
        await mine.end(commit=True)
        (active,) = (await bench.sequencer.describe_producers(query)).producers
        assert active.transaction_start_offset == -1
        found = (await bench.sequencer.transactions(TransactionsRequest(None))).transactions
        assert [(one.transactional_id, one.started_ms) for one in found] == [("idle", -1), ("tx", -1)]
        assert (await bench.sequencer.transactions(TransactionsRequest(["?"]))).transactions == []
        assert (await bench.sequencer.statistics(Empty())).open_transactions == 0


# --- compaction ---------------------------------------------------------------------------------------


class Compactor:
    """Swaps spans of partition 0 on request."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.made = 0

    async def start(self) -> None:
        self.lease = await self.bench.sequencer.take_lease(TakeLease("compactor", "me", 0, 60_000))
        self.session = await self.bench.sequencer.open_session(OpenSession(-1, self.lease.epoch))

    async def swap(self, base_offset: int, end_offset: int, *more: tuple[int, int]) -> None:
        self.made += 1
        stored = ObjectDescription(
            UUID(int=900 + self.made), PARQUET, f"{self.session.prefix}{self.made}", 500, 0, 400, T0
        )
        runs = [await self.replacement(*span) for span in ((base_offset, end_offset), *more)]
        await self.bench.sequencer.swap(
            SwapRequest(UUID(int=70 + self.made), self.lease.epoch, self.session.session_id, stored, runs)
        )

    async def replacement(self, base_offset: int, end_offset: int) -> ReplacementRun:
        replaced = [
            (one.base_offset, one.object_id)
            for one in (await self.bench.find(base_offset)).runs
            if one.base_offset < end_offset
        ]
        return ReplacementRun(self.bench.topic.topic_id, 0, base_offset, end_offset, -1, 0, replaced)

    async def aborted(self) -> list[tuple[int, int]]:
        return [(one.first_offset, one.last_offset) for one in (await self.bench.find()).aborted]


async def compactor(bench: Bench) -> Compactor:
    made = Compactor(bench)
    await made.start()
    return made


async def test_candidates_are_stable_and_hold_markers_and_aborted_ranges(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine, other = await producer(bench), await producer(bench, "other")
        await mine.write()  # 0
        await mine.end(commit=False)  # 1
        await bench.commit(batch())  # 2
        await other.write()  # 3
        await bench.commit(batch())  # 4
        await mine.write()  # 5
        await mine.end(commit=False)  # 6

        async def candidate(max_runs: int = 100) -> tuple[int, list[int], list[tuple[int, int]]]:
            request = CompactionRequest(1, 0, max_runs)
            (found,) = (await bench.sequencer.compaction_candidates(request)).candidates
            return (
                found.last_stable_offset,
                [one.base_offset for one in found.runs],
                [(one.first_offset, one.last_offset) for one in found.aborted],
            )

        assert await candidate() == (3, [0, 1, 2], [(0, 1)])
        assert await candidate(1) == (3, [0], [(0, 1)])
        await other.end(commit=True)  # 7
        assert await candidate() == (8, [0, 1, 2, 3, 4, 5, 6, 7], [(0, 1), (5, 6)])
        swaps = await compactor(bench)
        await swaps.swap(0, 1)
        assert await candidate(1) == (8, [2], [])  # markers alone need no compaction
        assert await candidate(2) == (8, [1, 2], [(1, 1)])
        await swaps.swap(1, 8)
        assert (await bench.sequencer.compaction_candidates(CompactionRequest(0, 0, 9))).candidates == []


async def test_markers_alone_are_not_compacted(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        await mine.write()
        await mine.end(commit=False)
        swaps = await compactor(bench)
        await swaps.swap(0, 1)
        assert (await bench.sequencer.compaction_candidates(CompactionRequest(0, 0, 9))).candidates == []
        statistics = await bench.sequencer.statistics(Empty())
        assert (statistics.runs, statistics.uncompacted_bytes) == (2, 0)


async def test_a_swap_takes_out_of_aborted_ranges_what_it_replaces(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        a, b = await producer(bench, "a"), await producer(bench, "b")
        for _ in range(3):
            await a.write()  # 0, 1, 2
        await b.write()  # 3
        await b.end(commit=False)  # 4
        await a.end(commit=False)  # 5
        await bench.commit(batch())  # 6
        swaps = await compactor(bench)
        with pytest.raises(SwapRefused, match="older runs first"):
            await swaps.swap(2, 6)
        assert await swaps.aborted() == [(0, 5), (3, 4)]
        await swaps.swap(0, 1)
        assert await swaps.aborted() == [(1, 5), (3, 4)]
        await swaps.swap(1, 5)
        assert await swaps.aborted() == [(5, 5)]
        await swaps.swap(5, 7)
        assert await swaps.aborted() == []
        assert shape(await bench.find()) == [(0, 1, PARQUET), (1, 5, PARQUET), (5, 7, PARQUET)]
        statistics = await bench.sequencer.statistics(Empty())
        assert (statistics.objects - statistics.retired_objects, statistics.retired_objects) == (3, 5)


async def test_a_marker_is_swapped_once_no_aborted_record_stands_before_it_though_others_do(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        for _ in range(3):
            await mine.write()  # 0, 1, 2
        await mine.end(commit=False)  # 3
        swaps = await compactor(bench)
        await swaps.swap(1, 2)
        assert await swaps.aborted() == [(0, 3)]
        with pytest.raises(SwapRefused, match="older runs first"):
            await swaps.swap(2, 4)
        await swaps.swap(0, 1)
        assert await swaps.aborted() == [(1, 3)], "from 1 to 2 there is no record left"
        await swaps.swap(2, 4)
        assert await swaps.aborted() == []


async def test_a_swap_of_several_spans_of_a_partition_leaves_the_aborted_ranges_between_them(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        for _ in range(2):
            await bench.commit(batch())  # 0, 1
        for _ in range(2):
            await mine.write()  # 2, 3
        await mine.end(commit=False)  # 4
        await bench.commit(batch())  # 5
        swaps = await compactor(bench)
        await swaps.swap(2, 3, (0, 1), (5, 6))
        assert await swaps.aborted() == [(3, 4)]


async def test_a_swap_of_what_is_not_stable_is_refused(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        await bench.commit(batch())
        await mine.write()
        swaps = await compactor(bench)
        with pytest.raises(SwapRefused, match="stable"):
            await swaps.swap(0, 2)
        await swaps.swap(0, 1)


async def test_an_aborted_range_whose_beginning_was_deleted_is_swapped_like_any_other(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        mine = await producer(bench)
        for _ in range(3):
            await mine.write()  # 0, 1, 2
        await mine.end(commit=False)  # 3
        asked = DeleteRecordsPartition(bench.topic.topic_id, 0, 1)
        await bench.sequencer.delete_records(DeleteRecords([asked]))
        await bench.sequencer.apply_retention(Empty())
        swaps = await compactor(bench)
        await swaps.swap(1, 4)
        assert (await bench.find(1)).aborted == []
