"""Answers that no memory is enough for: each group, each id that they are asked for is refused, not the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.handlers import described_groups, group_offsets, transaction_admin
from sequencer.api.groups import CommitOffsets, OffsetPosition
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.describe_transactions import DescribeTransactionsRequest
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tailrace.kafka.messages.share_group_describe import ShareGroupDescribeRequest
from tests.support.agents import agent_bench

MIB = 1 << 20
BUDGET = 16 * MIB
"""Of which one answer may take 8 MiB."""


@pytest.mark.parametrize(
    ("key", "version", "request_of"),
    [
        (ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, ConsumerGroupDescribeRequest),
        (ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest),
    ],
)
async def test_groups_that_are_too_large_together_are_refused_and_one_alone_is_not(
    key: ApiKey, version: int, request_of: Callable[[list[str]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(described_groups, "_bytes_of", lambda group: 5 * MIB)

    async with agent_bench(memory_budget_bytes=BUDGET) as bench:
        answer = await bench.ask(key, version, request_of(["a", "b", "a"]))
        assert [each.group_id for each in answer.groups] == ["a", "b"]
        assert {each.error_code for each in answer.groups} == {ErrorCode.POLICY_VIOLATION}
        [alone] = (await bench.ask(key, version, request_of(["a"]))).groups
        assert alone.error_code != ErrorCode.POLICY_VIOLATION


async def test_refusals_need_memory_as_well() -> None:
    async with agent_bench(memory_budget_bytes=BUDGET) as bench:
        many = 9 * MIB // described_groups.MEMBER_BYTES
        request = DescribeGroupsRequest([f"{number}" for number in range(many)])
        closed = await bench.ask(ApiKey.DESCRIBE_GROUPS, 5, request)
        assert closed is None


async def test_a_group_with_too_many_positions_is_refused_beside_one_with_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_offsets, "_bytes_of", lambda page: 9 * MIB)

    async with agent_bench(memory_budget_bytes=BUDGET) as bench:
        topic = await bench.topic("t", 6_000)
        positions = [OffsetPosition(topic.topic_id, index, 1, 0, "") for index in range(topic.partitions)]
        await bench.sequencer.commit_offsets(
            CommitOffsets(
                "large", broker_id=-1, lease_epoch=0, generation=-1, member_id="", offsets=positions
            )
        )
        asked = [OffsetFetchRequestGroup("few", topics=[]), OffsetFetchRequestGroup("large", topics=None)]
        answer = await bench.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=asked))
        found = {group.group_id: group.error_code for group in answer.groups}
        assert found == {"few": ErrorCode.NONE, "large": ErrorCode.POLICY_VIOLATION}


async def test_transactions_that_are_too_many_are_refused_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_admin, "ENTRY_BYTES", 5 * MIB)

    async with agent_bench(memory_budget_bytes=BUDGET) as bench:
        answer = await bench.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(["x", "y"]))
        found = [(each.transactional_id, each.error_code) for each in answer.transaction_states]
        assert found == [("x", ErrorCode.POLICY_VIOLATION), ("y", ErrorCode.POLICY_VIOLATION)]
