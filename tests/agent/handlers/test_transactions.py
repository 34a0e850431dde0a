"""Transactions by Kafka's rules, by the requests of transaction version 2 and of the older clients."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sequencer.api.commits import ANY_TRANSACTION, BatchError
from sequencer.api.interface import Sequencer
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import DeleteTopic, Topic
from sequencer.api.transactions import AddToTransaction
from sequencer.api.values import Empty
from tailrace.batches.record_batch import split
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tailrace.kafka.messages.describe_transactions import DescribeTransactionsRequest
from tailrace.kafka.messages.fetch import PartitionData
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.kafka.messages.list_transactions import ListTransactionsRequest
from tailrace.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tailrace.kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.agent.handlers.test_fetch import fetch, request_of, rows_of
from tests.agent.handlers.test_group_admin import joined
from tests.agent.handlers.test_group_offsets import located
from tests.agent.handlers.test_produce import produce
from tests.support.agents import AgentBench, agent_bench, batch, settle
from tests.support.transactions import T0, TransactionalProducer

VERSIONS = pytest.mark.parametrize("is_newest", [True, False], ids=["version 2", "version 0"])


async def started(bench: AgentBench, is_newest: bool = True, name: str = "tx") -> TransactionalProducer:
    producer = TransactionalProducer(bench, name, is_newest)
    assert await producer.init() == 0
    return producer


async def read(bench: AgentBench, topic: Topic, offset: int = 0, *, committed: bool = True) -> PartitionData:
    await bench.advance(0.1)  # windows have what was answered before
    request = request_of(topic, (0, offset), isolation_level=int(committed))
    (row,) = rows_of(await fetch(bench, request))
    assert row.error_code == 0
    return row


def seen(row: PartitionData) -> list[tuple[int, bool]]:
    """(base offset, whether it is a marker) of each batch."""
    headers = [header for header, _ in split(memoryview(bytes(row.records or b"")))]  # type: ignore[arg-type]
    return [(header.base_offset, header.is_control) for header in headers]


def aborted(row: PartitionData) -> list[tuple[int, int]]:
    assert row.aborted_transactions is not None
    return [(each.producer_id, each.first_offset) for each in row.aborted_transactions]


async def position(bench: AgentBench, *, stable: bool, version: int = 8) -> tuple[int, int]:
    """(offset, code) of the group's position in partition 0."""
    named = OffsetFetchRequestTopics("t", partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=[named])], require_stable=stable)
    response = await bench.ask(ApiKey.OFFSET_FETCH, version, request)
    row = response.groups[0].topics[0].partitions[0]
    return row.committed_offset, row.error_code


# --- reading ---------------------------------------------------------------------------------------------


@VERSIONS
async def test_a_transaction_is_read_when_it_is_committed_and_not_before(is_newest: bool) -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        await produce(bench, (0, batch(b"before")))
        writer = await started(bench, is_newest)
        assert [await writer.send(0, b"1", b"2"), await writer.send(0, b"3")] == [1, 3]
        await produce(bench, (0, batch(b"after")))
        row = await read(bench, topic)
        assert (seen(row), row.high_watermark, row.last_stable_offset) == ([(0, False)], 5, 1)
        assert aborted(row) == []
        assert await writer.end(commit=True) == 0
        row = await read(bench, topic)
        assert seen(row) == [(0, False), (1, False), (3, False), (4, False), (5, True)]
        assert (row.high_watermark, row.last_stable_offset, aborted(row)) == (6, 6, [])


@VERSIONS
async def test_an_aborted_transaction_is_named_to_who_reads_committed(is_newest: bool) -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        writer = await started(bench, is_newest)
        other = await started(bench, is_newest, "other")
        assert [await writer.send(0, b"1"), await other.send(0, b"x"), await writer.send(0, b"2")] == [
            0,
            1,
            2,
        ]
        first = writer.producer_id
        assert await other.end(commit=False) == await writer.end(commit=False) == 0
        row = await read(bench, topic)
        assert seen(row) == [(0, False), (1, False), (2, False), (3, True), (4, True)]
        assert aborted(row) == [(first, 0), (other.producer_id, 1)]
        assert aborted(await read(bench, topic, 4)) == [(first, 0)]  # the marker alone still ends its range
        row = await read(bench, topic, 5)
        assert (seen(row), aborted(row)) == ([], [])


async def test_an_open_transaction_stays_unread_where_the_log_begins_within_its_batch() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic("t")
        producer = await started(bench)
        await producer.send(0, b"a", b"b", b"c")
        await bench.sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(topic.topic_id, 0, 1)]))
        assert seen(await read(bench, topic, 1)) == []
        assert seen(await read(bench, topic, 1, committed=False)) == [(0, False)]


async def test_read_uncommitted_gets_no_aborted_transactions() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        writer = await started(bench)
        await writer.send(0, b"1")
        row = await read(bench, topic, committed=False)
        assert (seen(row), row.aborted_transactions) == ([(0, False)], None)
        await writer.end(commit=False)
        row = await read(bench, topic, committed=False)
        assert (seen(row), row.aborted_transactions) == ([(0, False), (1, True)], None)


async def test_the_end_of_a_transaction_wakes_who_waits_for_it() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        writer = await started(bench)
        await writer.send(0, b"1")
        request = request_of(topic, (0, 0), isolation_level=1, min_bytes=1, max_wait_ms=20_000)
        asked = asyncio.ensure_future(fetch(bench, request))
        await settle()
        assert not asked.done()
        began = bench.clock.monotonic()
        await writer.end(commit=True)
        (row,) = rows_of(await bench.until(asked))
        assert seen(row) == [(0, False), (1, True)]
        assert bench.clock.monotonic() - began < 1


@pytest.mark.parametrize(
    ("timestamp", "committed", "uncommitted"),
    [(-1, 1, 3), (-2, 0, 0), (-3, -1, 1), (T0 - 5, 0, 0), (T0, -1, 1)],
    ids=["latest", "earliest", "max timestamp", "in stable", "in open"],
)
async def test_offsets_read_committed_end_where_what_is_stable_does(
    timestamp: int, committed: int, uncommitted: int
) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await produce(bench, (0, batch(b"stable", at=T0 - 5)))
        writer = await started(bench)
        await writer.send(0, b"1", b"2")
        for level, expected in ((1, committed), (0, uncommitted + (timestamp == -3))):
            request = ListOffsetsRequest(
                isolation_level=level,
                topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=timestamp)])],
            )
            response = await bench.ask(ApiKey.LIST_OFFSETS, 9, request)
            row = response.topics[0].partitions[0]
            if level and timestamp == -3:
                assert row.offset in (-1, 0)  # of what is stable, or none, as Kafka says
            else:
                assert (row.error_code, row.offset) == (0, expected)


# --- what is refused -------------------------------------------------------------------------------------


async def test_before_version_2_a_partition_must_be_added_before_it_is_written_to() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = await started(bench, is_newest=False)
        (row,) = await writer.produce((0, writer.batch("t", 0, b"1")))
        assert row.error_code == ErrorCode.INVALID_TXN_STATE
        (row,) = await writer.produce((0, writer.batch("t", 0, b"1")), version=11)
        assert row.error_code == ErrorCode.TRANSACTION_ABORTABLE
        writer.sequences.clear()
        assert await writer.add(0) == [0]
        good, bad = await writer.produce((0, writer.batch("t", 0, b"1")), (1, writer.batch("t", 1, b"1")))
        assert (good.error_code, bad.error_code) == (0, ErrorCode.INVALID_TXN_STATE)


async def test_a_batch_that_comes_after_its_transactions_end_is_not_taken_into_the_next() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        writer = await started(bench, is_newest=False)
        assert await writer.add(0) == [0]
        bench.sequencer.may_commit.clear()  # received, its transaction known, not yet stored
        late = asyncio.ensure_future(writer.produce((0, writer.batch("t", 0, b"late"))))
        await settle()
        await bench.advance(0.3)
        assert not late.done() and bench.sequencer.commits
        assert await writer.end(commit=False) == 0
        assert await writer.add(0) == [0]  # the next transaction, of the same epoch
        bench.sequencer.may_commit.set()
        (row,) = await bench.until(late)
        assert row.error_code == ErrorCode.INVALID_TXN_STATE
        await writer.end(commit=True)
        assert all(is_marker for _, is_marker in seen(await read(bench, topic)))


async def test_a_batchs_transaction_goes_with_it_also_when_a_gap_is_retried() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        for is_newest in (True, False):
            writer = await started(bench, is_newest, f"tx-{is_newest}")
            if not is_newest:
                assert await writer.add(0) == [0]
            first, second = writer.batch("t", 0, b"1"), writer.batch("t", 0, b"2")
            bench.sequencer.commits.clear()
            early = asyncio.ensure_future(writer.produce((0, second)))
            await bench.advance(0.3)
            assert not early.done()
            (row,) = await writer.produce((0, first))
            (later,) = await bench.until(early)
            assert (row.error_code, later.error_code) == (0, 0) and later.base_offset == row.base_offset + 1
            numbers = {
                number
                for commit in bench.sequencer.commits
                for proposal in commit.runs
                for number in proposal.transactions
            }
            assert len(bench.sequencer.commits) > 2
            assert numbers == ({ANY_TRANSACTION} if is_newest else {1})
            await writer.end(commit=True)


async def test_batches_outside_of_transactions_have_no_number_of_one() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = await started(bench)
        plain, ours = await writer.produce((0, batch(b"plain")), (1, writer.batch("t", 1, b"1")))
        assert (plain.error_code, ours.error_code) == (0, 0)
        (commit,) = bench.sequencer.commits
        assert sorted(each.transactions for each in commit.runs) == [[], [ANY_TRANSACTION]]


async def test_a_transactional_producer_may_not_write_outside_of_a_transaction() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = await started(bench)
        (row,) = await writer.produce((0, writer.batch("t", 0, b"1", is_transactional=False)))
        assert row.error_code == ErrorCode.INVALID_TXN_STATE


async def test_a_request_has_the_batches_of_one_transactional_producer() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        one, other = await started(bench), await started(bench, name="other")
        rows = await one.produce((0, one.batch("t", 0, b"1")), (1, other.batch("t", 1, b"1")))
        assert {row.error_code for row in rows} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        assert not bench.sequencer.commits


@VERSIONS
async def test_records_are_not_taken_into_another_producers_transaction(is_newest: bool) -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        victim = await started(bench, is_newest, "victim")
        intruder = await started(bench, is_newest, "intruder")
        await victim.send(0, b"1")
        intruder.producer_id, intruder.epoch = victim.producer_id, victim.epoch
        for producer_id in (victim.producer_id, 1_000_000):
            intruder.producer_id = producer_id
            (row,) = await intruder.produce((1, intruder.batch("t", 1, b"x")))
            assert row.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await victim.end(commit=True) == 0
        assert seen(await read(bench, topic)) == [(0, False), (1, True)]
        assert len(bench.sequencer.commits) == 1


async def test_a_transaction_that_cannot_be_asked_for_is_a_retriable_error() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = await started(bench, is_newest=False)
        await writer.add(0)
        bench.sequencer.is_away = True
        (row,) = await writer.produce((0, writer.batch("t", 0, b"1")))
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await writer.add(0) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert await writer.add_offsets() == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await writer.end(commit=True) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_request_of_a_transaction_that_comes_after_its_end_begins_none() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = await started(bench, is_newest=False)
        held = Held(bench.services.sequencer)
        bench.services.sequencer = cast(Sequencer, held)
        late = [asyncio.ensure_future(writer.add(0)), asyncio.ensure_future(writer.add_offsets())]
        await settle()
        assert held.requests == 2
        bench.services.sequencer = held.inner
        await writer.send(0, b"1")
        assert await writer.end(commit=True) == 0
        held.may_go.set()
        assert await asyncio.gather(*late) == [[ErrorCode.INVALID_TXN_STATE], ErrorCode.INVALID_TXN_STATE]
        (described,) = await describe(bench, "tx")
        assert described.transaction_state == "CompleteCommit"


class Held:
    """A sequencer that additions to transactions reach late."""

    def __init__(self, inner: Sequencer) -> None:
        self.inner = inner
        self.requests = 0
        self.may_go = asyncio.Event()

    async def add_to_transaction(self, request: AddToTransaction) -> Empty:
        self.requests += 1
        await self.may_go.wait()
        return await self.inner.add_to_transaction(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


# --- AddPartitionsToTxn -----------------------------------------------------------------------------------


async def test_one_unknown_partition_keeps_the_others_out() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = await started(bench, is_newest=False)
        assert await writer.add(0, 7) == [
            ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]  # fmt: skip
        assert await writer.add(0, topic="nowhere") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await writer.add(0, 1) == [0, 0]


async def test_the_error_of_a_fenced_producer_depends_on_the_version() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        zombie, writer = TransactionalProducer(bench), TransactionalProducer(bench)
        await zombie.init()
        await writer.init()
        old, new = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
        assert [await zombie.add(0, version=version) for version in (1, 2)] == [[old], [new]]
        assert [await zombie.add_offsets(version=version) for version in (1, 2)] == [old, new]
        assert [await zombie.end(commit=True, version=version) for version in (1, 2, 5)] == [old, new, new]
        ahead = TransactionalProducer(bench)
        ahead.producer_id, ahead.epoch = writer.producer_id, writer.epoch + 1
        assert [await ahead.add(0, version=version) for version in (1, 2)] == [[old], [new]]
        assert [await ahead.add_offsets(version=version) for version in (1, 2)] == [old, new]
        assert [await ahead.end(commit=True, version=version) for version in (1, 2, 5)] == [old, new, new]
        writer.producer_id += 1_000
        assert await writer.add(0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        writer.transactional_id = "unheard of"
        assert await writer.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        writer.transactional_id = ""
        assert await writer.add(0) == [ErrorCode.INVALID_REQUEST]
        assert await writer.end(commit=True) == await writer.add_offsets() == ErrorCode.INVALID_REQUEST


async def test_brokers_ask_for_several_transactions_and_whether_partitions_are_in_them() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        one, other = await started(bench), await started(bench, name="other")

        async def asked(version: int, verify_only: bool, *partitions: int) -> list[list[int]]:
            request = AddPartitionsToTxnRequest(
                [
                    AddPartitionsToTxnTransaction(
                        each.transactional_id,
                        each.producer_id,
                        each.epoch,
                        verify_only,
                        [AddPartitionsToTxnTopic("t", list(partitions))],
                    )
                    for each in (one, other)
                ]
            )
            response = await bench.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
            assert [each.transactional_id for each in response.results_by_transaction] == ["tx", "other"]
            return [
                [row.partition_error_code for row in topic.results_by_partition]
                for each in response.results_by_transaction
                for topic in each.topic_results
            ]

        assert await asked(4, False, 0) == [[0], [0]]
        assert await asked(5, True, 0, 1) == [[0, ErrorCode.TRANSACTION_ABORTABLE]] * 2
        assert await asked(4, True, 0, 1) == [[0, ErrorCode.INVALID_TXN_STATE]] * 2


# --- EndTxn -------------------------------------------------------------------------------------------------


async def test_every_end_of_version_2_gives_the_next_epoch_and_retried_the_same() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = await started(bench)
        await writer.send(0, b"1")
        producer_id, epoch = writer.producer_id, writer.epoch
        assert await writer.end(commit=True) == 0
        assert (writer.producer_id, writer.epoch) == (producer_id, epoch + 1)
        writer.epoch = epoch  # the answer was lost
        assert await writer.end(commit=True) == 0
        assert writer.epoch == epoch + 1
        assert await writer.end(commit=True) == ErrorCode.INVALID_TXN_STATE  # nothing is open
        assert await writer.end(commit=False) == 0
        assert writer.epoch == epoch + 2


async def test_before_version_2_the_epoch_stays_and_only_the_same_end_may_be_retried() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = await started(bench, is_newest=False)
        await writer.send(0, b"1")
        epoch = writer.epoch
        assert [await writer.end(commit=True), await writer.end(commit=True)] == [0, 0]
        assert await writer.end(commit=False) == ErrorCode.INVALID_TXN_STATE
        assert writer.epoch == epoch
        assert await writer.send(0, b"2") == 2


# --- a group's positions --------------------------------------------------------------------------------


@VERSIONS
async def test_positions_become_the_groups_when_the_transaction_commits(is_newest: bool) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await located(bench)
        writer = await started(bench, is_newest)
        for commit, before, after in ((True, -1, 5), (False, 5, 5)):
            if not is_newest:
                assert await writer.add_offsets() == 0
            assert await writer.commit_offset(5 if commit else 9) == 0
            assert await position(bench, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert await position(bench, stable=False) == (before, 0)
            assert await writer.end(commit=commit) == 0
            assert await position(bench, stable=True) == (after, 0)


async def test_a_group_must_be_in_the_transaction_or_join_it() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await located(bench)
        writer = await started(bench, is_newest=False)
        assert await writer.commit_offset(5, version=3) == ErrorCode.INVALID_TXN_STATE
        assert await writer.commit_offset(5, version=4) == ErrorCode.TRANSACTION_ABORTABLE
        assert await writer.commit_offset(5, version=5) == 0
        assert await writer.commit_offset(5, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await writer.commit_offset(5, group="") == ErrorCode.INVALID_GROUP_ID


async def test_members_of_another_generation_and_zombies_commit_no_positions() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        member = await joined(bench)
        zombie, writer = await started(bench), await started(bench)
        assert await writer.commit_offset(5, member=member, generation=1) == 0
        assert await writer.commit_offset(5, member=member, generation=2) == ErrorCode.ILLEGAL_GENERATION
        assert await writer.commit_offset(5, member="who", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID
        beyond = await writer.commit_offset(5, partition=9, member="who", generation=1)
        assert beyond == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "whatever the group says of others"
        assert await writer.commit_offset(5) == 0  # a client that doesn't tell (before KIP-447)
        fenced = await zombie.commit_offset(5, member=member, generation=1)
        assert fenced == ErrorCode.INVALID_PRODUCER_EPOCH


# --- tools --------------------------------------------------------------------------------------------------


async def describe(bench: AgentBench, *names: str) -> list[Any]:
    response = await bench.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(list(names)))
    return list(response.transaction_states)


async def listed(bench: AgentBench, version: int = 2, **filters: Any) -> list[str]:
    response = await bench.ask(ApiKey.LIST_TRANSACTIONS, version, ListTransactionsRequest(**filters))
    assert response.error_code == 0
    return sorted(each.transactional_id for each in response.transaction_states)


async def test_a_transaction_is_described_with_its_partitions_while_it_is_open() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = await started(bench)
        (idle,) = await describe(bench, "tx")
        assert (idle.transaction_state, idle.transaction_start_time_ms, idle.topics) == ("Empty", -1, [])
        await writer.send(1, b"1")
        found, missing, invalid = await describe(bench, "tx", "none", "")
        assert (found.transaction_state, found.producer_id, found.producer_epoch, found.transaction_timeout_ms) == (
            "Ongoing", writer.producer_id, writer.epoch, 60_000
        )  # fmt: skip
        assert found.transaction_start_time_ms > 0
        assert [(each.topic, each.partitions) for each in found.topics] == [("t", [1])]
        assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert invalid.error_code == ErrorCode.INVALID_REQUEST
        await writer.end(commit=False)
        assert [each.transaction_state for each in await describe(bench, "tx")] == ["CompleteAbort"]


async def test_transactions_are_listed_by_state_producer_duration_and_pattern() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        one, two = await started(bench, name="app-1"), await started(bench, name="app-2")
        await one.send(0, b"1")
        assert await listed(bench, 0) == ["app-1", "app-2"]
        assert await listed(bench, state_filters=["Ongoing"]) == ["app-1"]
        assert await listed(bench, producer_id_filters=[two.producer_id]) == ["app-2"]
        await bench.advance(2)
        assert await listed(bench, duration_filter=1_000) == ["app-1"]
        assert await listed(bench, duration_filter=30_000) == []
        assert await listed(bench, transactional_id_pattern="app-[2-9]") == ["app-2"]
        assert await listed(bench, transactional_id_pattern="app") == []
        response = await bench.ask(
            ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(["Dancing"], transactional_id_pattern="a(")
        )
        assert response.unknown_state_filters == ["Dancing"]
        response = await bench.ask(
            ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(transactional_id_pattern="a(")
        )
        assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        await bench.join("az-a", 2)
        mine = await listed(bench)
        assert len(mine) <= 2  # what the ring places on the other is listed there


async def test_an_operator_aborts_what_hangs_and_commits_nothing() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        writer = await started(bench)
        await writer.send(0, b"1")

        async def marked(commit: bool, partition: int = 0, epoch: int = 0) -> int:
            marker = WritableTxnMarker(
                writer.producer_id, writer.epoch + epoch, commit, [WritableTxnMarkerTopic("t", [partition])]
            )
            response = await bench.ask(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest([marker]))
            return int(response.markers[0].topics[0].partitions[0].error_code)

        assert await marked(True) == ErrorCode.INVALID_REQUEST
        assert await marked(False, 9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await read(bench, topic)).last_stable_offset == 0
        assert await marked(False) == 0
        row = await read(bench, topic)
        assert (seen(row), aborted(row)) == ([(0, False), (1, True)], [(writer.producer_id, 0)])


async def test_the_coordinator_of_a_transactional_id_is_an_agent_of_the_clients_zone() -> None:
    async with agent_bench() as bench:
        await bench.join("az-b", 2)
        await bench.join("az-b", 3)
        for zone, hosts in (("az-a", {"host-1"}), ("az-b", {"host-2", "host-3"})):
            names = [f"tx-{number}" for number in range(20)]
            asked = FindCoordinatorRequest(key_type=1, coordinator_keys=names)
            response = await bench.ask(ApiKey.FIND_COORDINATOR, 4, asked, f"c,tailrace_az={zone}")
            assert {each.host for each in response.coordinators} == hosts


async def test_an_agent_of_the_clients_zone_coordinates_itself_as_another_may_be_dead() -> None:
    async with agent_bench() as bench:
        await bench.join("az-a", 2)  # it lives as long as its lease says, whatever became of it
        names = [f"tx-{number}" for number in range(20)]
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=names)
        response = await bench.ask(ApiKey.FIND_COORDINATOR, 4, asked, "c,tailrace_az=az-a")
        assert {each.host for each in response.coordinators} == {"host-1"}


async def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_learns_it() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        writer = TransactionalProducer(bench)
        await writer.init(timeout_ms=2_000)
        await writer.send(0, b"1")
        await bench.advance(20, step=0.5)
        row = await read(bench, topic)
        assert (seen(row), aborted(row)) == ([(0, False), (1, True)], [(writer.producer_id, 0)])
        assert await writer.end(commit=True) == ErrorCode.INVALID_TXN_STATE, "as in Kafka"
        assert await writer.end(commit=False) == ErrorCode.NONE, "with the next epoch"


async def test_a_topic_that_was_deleted_meanwhile_does_not_hinder_the_end() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        gone = await bench.topic("gone")
        writer = await started(bench)
        await writer.send(0, b"1")
        await writer.send(0, b"1", topic="gone")
        await bench.sequencer.delete_topic(DeleteTopic(gone.topic_id))
        assert await writer.end(commit=True) == 0
        assert seen(await read(bench, topic)) == [(0, False), (1, True)]


def test_every_outcome_of_a_batch_has_a_code() -> None:
    from agent.errors import produce_code

    for error in BatchError:
        for version in (3, 11, 13):
            assert isinstance(produce_code(error, version, is_transactional=True), ErrorCode)


def test_a_gap_that_did_not_close_is_no_reason_to_raise_the_producers_epoch() -> None:
    from agent.errors import produce_code

    for is_transactional in (False, True):
        code = produce_code(BatchError.SEQUENCE_GAP, 12, is_transactional=is_transactional)
        assert code is ErrorCode.REQUEST_TIMED_OUT
        behind = produce_code(BatchError.OUT_OF_ORDER_SEQUENCE, 12, is_transactional=is_transactional)
        assert behind is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_sequences_that_an_aborted_transaction_stored_are_refused_at_once() -> None:
    """librdkafka gives the sequences of what it purged at an abort to the next transaction (see `assign_offsets`). No
    batch that is still on its way changes that, so it is not waited for like a gap."""

    async with agent_bench(gap_deadline_ms=5_000) as bench:
        await bench.topic()
        producer = TransactionalProducer(bench, is_newest=False)
        await producer.init()
        await producer.send(0, b"stored, and purged by the client")
        assert await producer.end(commit=False) == 0
        producer.sequences.clear()
        assert await producer.add(0) == [0]
        began = bench.clock.monotonic()
        (row,) = await producer.produce((0, producer.batch("t", 0, b"of the next transaction")))
        assert (row.error_code, row.base_offset) == (ErrorCode.UNKNOWN_PRODUCER_ID, -1)
        assert bench.clock.monotonic() - began < 1
