"""Copies of groups and transactional ids in Kafka's internal topics, and what clients may do with these."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.groups.group import Group, GroupMember, GroupPhase
from agent.internal_topics.records import (
    GROUP_METADATA,
    MEMBER_WORK,
    OFFSET_COMMIT,
    STATUS,
    group_records,
)
from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope
from sequencer.api.transactions import TransactionState
from sequencer.settings import SequencerSettings
from tailrace.batches.record_batch import split
from tailrace.batches.records import NewRecord, Record, decode_records
from tailrace.configs.internal_topics import GROUPS, KEPT, TRANSACTIONS, partition_of
from tailrace.kafka import ApiKey
from tailrace.kafka.compiler import codec
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tailrace.kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tailrace.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tailrace.tenants import local_name
from tailrace.turns import at_once
from tests.agent.handlers.test_fetch import fetch, request_of, rows_of
from tests.agent.handlers.test_group_admin import joined
from tests.agent.handlers.test_group_offsets import commit, located
from tests.agent.handlers.test_produce import produce
from tests.agent.handlers.test_transactions import started
from tests.agent.tenants.neighbours import ACME, OTHER, Client
from tests.support.agents import AgentBench, agent_bench, batch
from tests.support.transactions import TransactionalProducer

LONG_LEASE = SequencerSettings(agent_lease_ms=86_400_000, agent_silence_ms=86_400_000)
"""The bench renews none."""
ROUND = 3.0
"""Seconds in which what has changed is copied, and the copy stored."""
KEYS: dict[str, dict[int, type]] = {
    GROUPS: {OFFSET_COMMIT: OffsetCommitKey, GROUP_METADATA: GroupMetadataKey},
    TRANSACTIONS: {0: TransactionLogKey},
}
VALUES: dict[type, tuple[type, int, bool]] = {
    OffsetCommitKey: (OffsetCommitValue, 4, True),
    GroupMetadataKey: (GroupMetadataValue, 3, False),
    TransactionLogKey: (TransactionLogValue, 1, True),
}


async def keep(bench: AgentBench, topics: str = f"{GROUPS},{TRANSACTIONS}") -> None:
    change = ConfigChange(KEPT.name, ConfigOperation.SET, topics)
    await bench.sequencer.alter_config(AlterConfig(ConfigScope.BROKER, "", [change]))
    await bench.services.catalog.refresh()


async def records(bench: AgentBench, topic: str, name: str, *, seconds: float = ROUND) -> list[Record]:
    """The records of the partition where this group or transactional id is."""
    await bench.advance(seconds)
    await bench.services.catalog.refresh()
    known = bench.services.catalog.snapshot.by_name.get(topic)
    if known is None:
        return []
    partition = partition_of(name, known.topic.partitions)
    fetching = fetch(bench, request_of(known.topic, (partition, 0)))
    (row,) = rows_of(await bench.until(asyncio.ensure_future(fetching)))
    data = memoryview(bytes(row.records or b""))
    return [record for _, each in split(data) for record in decode_records(each)]


def read(topic: str, record: Record | NewRecord) -> tuple[Any, Any]:
    """Key and value, by Kafka's schemas; the value of a tombstone is None."""
    assert record.key is not None
    kind = KEYS[local_name(topic)][int.from_bytes(record.key[:2], "big")]
    key, end = codec(kind, 0, False).decode(memoryview(record.key), 2)
    assert end == len(record.key)
    if record.value is None:
        return key, None
    declared, version, flexible = VALUES[kind]
    assert int.from_bytes(record.value[:2], "big") == version
    value, end = codec(declared, version, flexible).decode(memoryview(record.value), 2)
    assert end == len(record.value)
    return key, value


async def copies(bench: AgentBench, topic: str, name: str, **more: float) -> list[tuple[Any, Any]]:
    return [read(topic, record) for record in await records(bench, topic, name, **more)]


async def offsets(bench: AgentBench, group: str = "g", **more: float) -> list[tuple[int, int | None]]:
    """(partition, offset) of each copy of a position."""
    return [
        (key.partition, None if value is None else value.offset)
        for key, value in await copies(bench, GROUPS, group, **more)
        if isinstance(key, OffsetCommitKey)
    ]


# --- positions and groups -----------------------------------------------------------------------------------


async def test_a_committed_position_is_copied_as_kafka_writes_it() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        topic = await bench.topic()
        await keep(bench)
        await commit(bench, 9, (1, 5, "note"))
        now = bench.clock.wall_ms()
        ((key, value),) = await copies(bench, GROUPS, "g")
        assert (key.group, key.topic, key.partition) == ("g", "t", 1)
        assert (value.offset, value.leader_epoch, value.metadata) == (5, -1, "note")
        assert (value.commit_timestamp, value.topic_id) == (now, topic.topic_id)
        made = bench.services.catalog.snapshot.by_name[GROUPS].topic
        assert (made.partitions, made.configs["cleanup.policy"]) == (50, "compact,delete")


async def test_nothing_is_copied_unless_the_cluster_asks_for_it() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench, TRANSACTIONS)
        await commit(bench, 9, (1, 5, ""))
        assert await copies(bench, GROUPS, "g") == []
        await keep(bench, GROUPS)
        await started(bench)
        assert await copies(bench, TRANSACTIONS, "tx") == []
        assert set(bench.services.catalog.snapshot.by_name) == {"t"}


async def test_positions_that_are_deleted_have_tombstones() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        await commit(bench, 9, (0, 5, ""), (1, 6, ""))
        assert await offsets(bench) == [(0, 5), (1, 6)]
        named = [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(1)])]
        await bench.ask(ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest("g", named))
        assert (await offsets(bench))[2:] == [(1, None)]
        (deleted,) = (await bench.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(["g"]))).results
        assert deleted.error_code == 0
        assert (await offsets(bench))[3:] == [(0, None)]
        group = [
            value for key, value in await copies(bench, GROUPS, "g") if isinstance(key, GroupMetadataKey)
        ]
        assert group == [None]


async def test_a_classic_group_is_copied_between_rebalances() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        member_id = await joined(bench)
        ((key, value),) = await copies(bench, GROUPS, "g")
        assert (key.group, value.protocol_type, value.generation, value.protocol) == (
            "g",
            "consumer",
            1,
            "range",
        )
        assert value.leader == member_id
        (member,) = value.members
        assert (member.member_id, member.client_id, member.client_host) == (member_id, "tool", "/client-host")
        assert (member.session_timeout, member.rebalance_timeout, member.assignment) == (
            10_000,
            10_000,
            b"mine",
        )
        await bench.advance(11)  # it sends no heartbeat
        _, value = (await copies(bench, GROUPS, "g"))[-1]
        assert (value.generation, value.protocol, value.leader, value.members) == (2, None, None, [])


def test_a_group_of_many_members_is_copied_in_steps() -> None:
    group = Group("g", phase=GroupPhase.STABLE, generation=1, protocol_type="consumer", protocol="range")
    for number in range(250):
        group.add(GroupMember(str(number), None, "c", "/h", 30.0, 30.0, [("range", b"")]))
    steps = list(group_records(group, 0))
    assert [work // MEMBER_WORK for work in steps] == [100, 100, 50]
    (record,) = at_once(group_records(group, 0))
    _, value = read(GROUPS, record)
    assert [member.member_id for member in value.members] == list(group.members)


async def test_a_group_that_is_taken_up_is_copied_whole() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await commit(bench, 9, (0, 5, ""), (1, 6, ""))
        await joined(bench)
        await keep(bench)
        groups = bench.services.groups
        groups._forget(groups._held["g"])
        await located(bench)
        await groups.look("g", lambda group: None)
        found = await copies(bench, GROUPS, "g")
        assert [type(key) for key, _ in found] == [GroupMetadataKey, OffsetCommitKey, OffsetCommitKey]
        assert await offsets(bench) == [(0, 5), (1, 6)]


async def test_groups_with_members_are_copied_again_before_retention_takes_their_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.internal_topics.copy_queue.REFRESH_SECONDS", 6.0)

    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        await commit(bench, 9, (0, 5, ""))
        assert await offsets(bench) == [(0, 5)]
        await joined(bench)
        assert await offsets(bench, seconds=5) == [(0, 5), (0, 5)]
        await bench.advance(9)  # its session is over
        assert await offsets(bench, seconds=9) == [(0, 5), (0, 5), (0, 5)]


async def test_a_position_of_a_transaction_is_copied_when_it_is_the_groups() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        await commit(bench, 9, (0, 5, ""))
        assert await offsets(bench) == [(0, 5)]
        writer = await started(bench)
        assert await writer.commit_offset(7) == 0
        assert await offsets(bench, seconds=5) == [(0, 5)]
        assert await writer.end(commit=True) == 0
        assert await offsets(bench) == [(0, 5), (0, 7)]
        assert await writer.commit_offset(9) == 0
        assert await writer.end(commit=False) == 0
        assert await offsets(bench) == [(0, 5), (0, 7), (0, 7)]


async def test_several_commits_within_a_second_are_one_record() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        for offset in range(10):
            await commit(bench, 9, (0, offset, ""))
        assert await offsets(bench) == [(0, 9)]


async def test_a_tenants_groups_are_copied_to_the_tenants_topic_under_the_names_of_its_clients() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic(ACME.stored("t"))
        await keep(bench)
        client = Client(bench)
        await client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest("g"))
        subscription = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"
        join = JoinGroupRequest(
            "g",
            10_000,
            10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", subscription)],
        )
        answer = await client.ask(ApiKey.JOIN_GROUP, 3, join)
        assigned = [SyncGroupRequestAssignment(answer.member_id, b"mine")]
        await client.ask(
            ApiKey.SYNC_GROUP, 3, SyncGroupRequest("g", 1, answer.member_id, assignments=assigned)
        )
        position = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 5)])
        request = OffsetCommitRequest("g", 1, answer.member_id, topics=[position])
        (topic,) = (await client.ask(ApiKey.OFFSET_COMMIT, 5, request)).topics
        assert topic.partitions[0].error_code == 0

        (_, group), (key, value) = await copies(bench, ACME.stored(GROUPS), "g")
        assert group.members[0].subscription == subscription
        assert (key.group, key.topic, value.offset) == ("g", "t", 5)
        assert GROUPS not in bench.services.catalog.snapshot.by_name
        shown = (await client.ask(ApiKey.METADATA, 12, MetadataRequest(None))).topics
        assert {topic.name: topic.is_internal for topic in shown} == {"t": False, GROUPS: True}
        assert (await Client(bench, OTHER).ask(ApiKey.METADATA, 12, MetadataRequest(None))).topics == []


# --- transactional ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_newest", [True, False], ids=["version 2", "version 0"])
async def test_a_transactional_id_is_copied_at_each_step(is_newest: bool) -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        writer = await started(bench, is_newest)
        await bench.advance(ROUND)
        await writer.send(1, b"x")
        await bench.advance(ROUND)
        before = writer.epoch
        assert await writer.end(commit=True) == 0
        found = await copies(bench, TRANSACTIONS, "tx")
        assert {key.transactional_id for key, _ in found} == {"tx"}
        empty, open_, ended = [value for _, value in found]
        assert (empty.transaction_status, empty.transaction_partitions) == (0, None)
        assert (empty.producer_id, empty.transaction_timeout_ms) == (writer.producer_id, 60_000)
        assert (open_.transaction_status, open_.producer_epoch) == (1, before)
        assert [(each.topic, each.partition_ids) for each in open_.transaction_partitions] == [("t", [1])]
        assert open_.transaction_start_timestamp_ms > 0
        assert (ended.transaction_status, ended.transaction_partitions) == (4, [])


async def test_a_transaction_that_nobody_ends_is_copied_when_it_is_aborted() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        writer = TransactionalProducer(bench)
        assert await writer.init(timeout_ms=10_000) == 0
        await writer.commit_offset(7)
        (_, open_) = (await copies(bench, TRANSACTIONS, "tx"))[-1]
        assert [(each.topic, each.partition_ids) for each in open_.transaction_partitions] == [
            (GROUPS, [partition_of("g", 50)])
        ]
        (_, last) = (await copies(bench, TRANSACTIONS, "tx", seconds=15))[-1]
        assert last.transaction_status == STATUS[TransactionState.COMPLETE_ABORT]


# --- failures -----------------------------------------------------------------------------------------------


async def test_a_copy_that_fails_blocks_nobody_and_is_made_later() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        bench.sequencer.failures = {"create_topic": 2, "fetch_offsets": 1, "transactions": 1}
        (row,) = await commit(bench, 9, (0, 5, ""))
        assert row.error_code == 0
        await started(bench)
        assert await offsets(bench, seconds=8) == [(0, 5)]
        assert len(await copies(bench, TRANSACTIONS, "tx")) == 1
        assert _counted(bench, "failed") == 4
        assert _counted(bench, "written") == 2


async def test_copies_that_are_not_stored_are_made_again() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        await commit(bench, 9, (0, 5, ""))
        assert await offsets(bench) == [(0, 5)]
        bench.store.outage.begin()
        await commit(bench, 9, (0, 6, ""))
        await bench.advance(8)
        assert _counted(bench, "failed") > 0
        bench.store.outage.end()
        assert (await offsets(bench, seconds=10))[-1] == (0, 6)


async def test_copies_that_fail_are_given_up_once_the_cluster_asks_for_none() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        bench.sequencer.failures = {"create_topic": 1_000}
        await commit(bench, 9, (0, 5, ""))
        await started(bench)
        await bench.advance(3)
        await keep(bench, "")
        await bench.advance(2)
        failed = _counted(bench, "failed")
        await bench.advance(8)
        assert _counted(bench, "failed") == failed > 0


async def test_changes_for_which_there_is_no_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.internal_topics.copy_queue.MAX_CHANGES", 2)

    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        for _ in range(3):
            bench.services.copy_queue.transaction("a")
        bench.services.copy_queue.transaction("b")
        bench.services.copy_queue.transaction("c")
        bench.services.copy_queue.whole_group("g")
        assert _counted(bench, "dropped") == 2


async def test_an_agent_that_drains_copies_what_is_left() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await keep(bench)
        await commit(bench, 9, (0, 5, ""))
        await bench.until(asyncio.ensure_future(bench.services.copy_queue.close()))
        assert await offsets(bench, seconds=0.1) == [(0, 5)]


def _counted(bench: AgentBench, outcome: str) -> float:
    return float(bench.services.telemetry.internal_topic_copies.labels(outcome)._value.get())


# --- what clients may do ------------------------------------------------------------------------------------


async def test_clients_cant_write_to_an_internal_topic() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        for name in (GROUPS, "acme~" + TRANSACTIONS):
            topic = await bench.topic(name, 1)
            for _ in range(3):  # also when it is as usual
                (row,) = await produce(bench, (0, batch(b"x")), name=name)
                assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            writer = await started(bench)
            assert await writer.add(0, topic=name) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
            wanted = [DeleteRecordsTopic(name, [DeleteRecordsPartition(0, -1)])]
            answer = await bench.ask(ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest(wanted, 1_000))
            (deleted,) = answer.topics[0].partitions
            assert deleted.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            (fetched,) = rows_of(await fetch(bench, request_of(topic, (0, 0))))
            assert fetched.high_watermark == 0


async def test_an_internal_topic_says_that_it_is_one() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await bench.topic()
        await bench.topic(GROUPS)
        for answer, key, version in (
            (MetadataRequest(None), ApiKey.METADATA, 12),
            (
                DescribeTopicPartitionsRequest([TopicRequest("t"), TopicRequest(GROUPS)], 10),
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                0,
            ),
        ):
            topics = (await bench.ask(key, version, answer)).topics
            assert {topic.name: topic.is_internal for topic in topics} == {"t": False, GROUPS: True}


async def test_an_internal_topic_that_is_kept_is_made_for_who_asks_for_it() -> None:
    async with agent_bench(LONG_LEASE) as bench:
        await keep(bench, GROUPS)
        for name, partitions in ((GROUPS, 50), (TRANSACTIONS, 0)):
            request = MetadataRequest([MetadataRequestTopic(name=name)], True)
            (topic,) = (await bench.ask(ApiKey.METADATA, 12, request)).topics
            assert len(topic.partitions) == partitions


@pytest.mark.parametrize(
    ("name", "partition"),
    [("g", 3), ("", 0), ("test-consumer-group", 31), ("polygenelubricants", 0), ("\U0001f600", 49)],
)
def test_a_name_has_the_partition_that_java_gives_it(name: str, partition: int) -> None:
    assert partition_of(name, 50) == partition


def test_all_states_of_a_transaction_have_kafkas_number() -> None:
    assert set(STATUS) == set(TransactionState)
