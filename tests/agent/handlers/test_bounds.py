"""Values at and beyond what a field may be: Kafka's error for it, and nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tailrace.kafka.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tailrace.kafka.messages.end_txn import EndTxnRequest
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.heartbeat import HeartbeatRequest
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.leave_group import LeaveGroupRequest
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_delete import OffsetDeleteRequest
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tailrace.kafka.messages.sync_group import SyncGroupRequest
from tailrace.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tailrace.limits import MAX_NAME_BYTES
from tests.support.agents import agent_bench

LONG = 2**63 - 1
TOO_LONG = ["", "x" * (MAX_NAME_BYTES + 1), "x" * 32_767]


def of_group(name: str) -> list[tuple[int, int, Any]]:
    committed = [OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1)])]
    pending = [TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, 1)])]
    return [
        (ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(name)),
        (ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[name])),
        (ApiKey.JOIN_GROUP, 7, JoinGroupRequest(name, 10_000)),
        (ApiKey.SYNC_GROUP, 5, SyncGroupRequest(name, protocol_type="consumer", protocol_name="range")),
        (ApiKey.HEARTBEAT, 4, HeartbeatRequest(name)),
        (ApiKey.LEAVE_GROUP, 4, LeaveGroupRequest(name)),
        (ApiKey.OFFSET_COMMIT, 2, OffsetCommitRequest(name, topics=committed)),
        (ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(name, 3, "member", topics=committed)),
        (ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest(name, [OffsetFetchRequestTopic("t", [0])])),
        (ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest([name])),
        (ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([name])),
        (ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest(name)),
        (ApiKey.ADD_OFFSETS_TO_TXN, 3, AddOffsetsToTxnRequest("txn", 1, 0, name)),
        (ApiKey.TXN_OFFSET_COMMIT, 3, TxnOffsetCommitRequest("txn", name, 1, 0, topics=pending)),
    ]


def of_transaction(name: str) -> list[tuple[int, int, Any]]:
    pending = [TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, 1)])]
    return [
        (ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(name, key_type=1)),
        (ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(name, 60_000)),
        (ApiKey.ADD_OFFSETS_TO_TXN, 3, AddOffsetsToTxnRequest(name, 1, 0, "g")),
        (ApiKey.TXN_OFFSET_COMMIT, 3, TxnOffsetCommitRequest(name, "g", 1, 0, topics=pending)),
        (ApiKey.END_TXN, 3, EndTxnRequest(name, 1, 0)),
        (
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_topics=[AddPartitionsToTxnTopic("t", [0])],
            ),
        ),
    ]


def codes_in(message: Any) -> set[int]:
    """Every error code in an answer that is not NONE."""
    if isinstance(message, list):
        return {code for each in message for code in codes_in(each)}
    if not hasattr(message, "__struct_fields__"):
        return set()
    found = {code for name in message.__struct_fields__ for code in codes_in(getattr(message, name))}
    own = {getattr(message, name) for name in message.__struct_fields__ if name.endswith("error_code")}
    return (found | own) - {0}


@pytest.mark.parametrize("name", TOO_LONG, ids=len)
async def test_a_name_that_no_group_can_have_is_an_invalid_group_id(name: str) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        for api, version, asked in of_group(name):
            answer = await bench.ask(api, version, asked)
            assert codes_in(answer) == {ErrorCode.INVALID_GROUP_ID}, ApiKey(api).name


@pytest.mark.parametrize("name", TOO_LONG, ids=len)
async def test_a_name_that_no_transactional_id_can_have_is_an_invalid_request(name: str) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        for api, version, asked in of_transaction(name):
            answer = await bench.ask(api, version, asked)
            assert codes_in(answer) == {ErrorCode.INVALID_REQUEST}, ApiKey(api).name


async def test_positions_committed_for_the_longest_time_there_is_are_kept() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        rows = [OffsetCommitRequestPartition(0, LONG), OffsetCommitRequestPartition(1, 1)]
        for version in (2, 3, 4):
            asked = OffsetCommitRequest(
                "g", retention_time_ms=LONG, topics=[OffsetCommitRequestTopic("t", partitions=rows)]
            )
            assert codes_in(await bench.ask(ApiKey.OFFSET_COMMIT, version, asked)) == set()
        fetched = await bench.ask(
            ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0])])
        )
        assert fetched.topics[0].partitions[0].committed_offset == LONG


async def test_a_member_that_says_too_much_of_itself_is_refused() -> None:
    async with agent_bench() as bench:

        def joining(**said: Any) -> JoinGroupRequest:
            given = {
                "protocol_type": "consumer",
                "protocols": [JoinGroupRequestProtocol("range", b"")],
                **said,
            }
            return JoinGroupRequest("g", 10_000, **given)

        largest = bench.settings.group_max_bytes
        for said in (
            {"group_instance_id": ""},
            {"group_instance_id": "i" * (MAX_NAME_BYTES + 1)},
            {"protocol_type": "t" * (MAX_NAME_BYTES + 1)},
            {"protocols": [JoinGroupRequestProtocol("p" * (MAX_NAME_BYTES + 1), b"")]},
            {"protocols": [JoinGroupRequestProtocol("range", bytes(largest))]},
            {"protocols": [JoinGroupRequestProtocol("", b"")] * 101},
        ):
            answer = await bench.ask(ApiKey.JOIN_GROUP, 7, joining(**said))
            assert answer.error_code == ErrorCode.INVALID_REQUEST
        longest = await bench.ask(ApiKey.JOIN_GROUP, 7, joining(), client_id="c" * 32_767)
        assert longest.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert len(longest.member_id) < 300, "a member's id begins with its client's, but not with all of it"


async def test_a_refusal_that_repeats_a_long_name_can_be_sent() -> None:
    async with agent_bench() as bench:
        long = "é" * 16_000
        created = await bench.ask(
            ApiKey.CREATE_TOPICS, 5,
            CreateTopicsRequest(
                [CreatableTopic(long), CreatableTopic("t", 1, 1, configs=[CreatableTopicConfig(long, "1")])]
            ),
        )  # fmt: skip
        assert codes_in(created) == {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_CONFIG}
        described = await bench.ask(
            ApiKey.DESCRIBE_CONFIGS, 4,
            DescribeConfigsRequest([DescribeConfigsResource(kind, long) for kind in (2, 4)]),
        )  # fmt: skip
        assert len(codes_in(described)) == 2
        missing = await bench.ask(ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(["g" * MAX_NAME_BYTES]))
        assert codes_in(missing) == {ErrorCode.GROUP_ID_NOT_FOUND}


@pytest.mark.parametrize("name", ["²", "9" * 5_000, "٣", "-1", "01", "1 "])
async def test_a_name_that_only_looks_like_a_number_names_no_broker(name: str) -> None:
    async with agent_bench() as bench:
        asked = DescribeConfigsRequest([DescribeConfigsResource(4, name)])
        assert codes_in(await bench.ask(ApiKey.DESCRIBE_CONFIGS, 4, asked)) == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ("retention.ms", "9" * 5_000),
        ("retention.ms", str(2**63)),
        ("retention.ms", "1_000"),
        ("retention.ms", "\uff11\uff10"),
        ("follower.replication.throttled.replicas", "x" * 5_000),
    ],
)
async def test_a_config_value_is_bounded(config: str, value: str) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        altered = AlterConfigsResource(2, "t", [AlterableConfig(config, 0, value)])
        answer = await bench.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest([altered])
        )
        assert codes_in(answer) == {ErrorCode.INVALID_CONFIG}


async def test_a_page_of_partitions_begins_at_any_number() -> None:
    async with agent_bench() as bench:
        await bench.topic("t", 3)
        for cursor, error in (
            (-(2**31), ErrorCode.INVALID_REQUEST),
            (-1, ErrorCode.INVALID_REQUEST),
            (2**31 - 1, ErrorCode.NONE),
        ):
            asked = DescribeTopicPartitionsRequest([TopicRequest("t")], 2_000, Cursor("t", cursor))
            [topic] = (await bench.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asked)).topics
            assert (topic.error_code, topic.partitions) == (error, [])
