"""Configs: where a value comes from, and what may not be set."""

from __future__ import annotations

from typing import Any

import pytest

from agent.protocol import ApiKey
from agent.protocol.error_codes import ErrorCode
from agent.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from agent.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.agents import AgentBench, run

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


async def alter(bench: AgentBench, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
    configs = [AlterableConfig(*change) for change in changes]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, configs)])
    (row,) = (await bench.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)).responses
    return int(row.error_code)


async def described(bench: AgentBench, kind: int, name: str, key: str | None = None) -> Any:
    keys = None if key is None else [key]
    request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, keys)], include_synonyms=True)
    (row,) = (await bench.ask(ApiKey.DESCRIBE_CONFIGS, 4, request)).results
    return row


async def value_of(bench: AgentBench, kind: int, name: str, key: str) -> tuple[str, int]:
    (row,) = (await described(bench, kind, name, key)).configs
    return row.value, row.config_source


def test_a_topics_own_value_goes_before_the_clusters_and_the_default() -> None:
    async def scenario(bench: AgentBench) -> None:
        await bench.topic()
        default, source = await value_of(bench, TOPIC, "t", "retention.ms")
        assert (default, source) == ("604800000", 5)
        assert await alter(bench, BROKER, "", ("log.retention.ms", SET, "5000")) == 0
        assert await value_of(bench, TOPIC, "t", "retention.ms") == ("5000", 3)
        assert await alter(bench, TOPIC, "t", ("retention.ms", SET, "7000")) == 0
        assert await value_of(bench, TOPIC, "t", "retention.ms") == ("7000", 1)
        assert await alter(bench, TOPIC, "t", ("retention.ms", DELETE, None)) == 0
        assert await value_of(bench, TOPIC, "t", "retention.ms") == ("5000", 3)

    run(scenario)


def test_lists_are_added_to_and_taken_from() -> None:
    async def scenario(bench: AgentBench) -> None:
        await bench.topic()
        assert await alter(bench, TOPIC, "t", ("cleanup.policy", SET, "delete")) == 0
        assert await alter(bench, TOPIC, "t", ("cleanup.policy", APPEND, "compact")) == 0
        assert (await value_of(bench, TOPIC, "t", "cleanup.policy"))[0] == "delete,compact"
        assert await alter(bench, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == 0
        assert (await value_of(bench, TOPIC, "t", "cleanup.policy"))[0] == "compact"

    run(scenario)


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "nowhere", [("retention.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", [("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, None)], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        (BROKER, "99", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (77, "t", [("retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_can_not_be_set_is_refused_with_its_code(
    kind: int, name: str, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    async def scenario(bench: AgentBench) -> None:
        await bench.topic()
        before = await value_of(bench, TOPIC, "t", "retention.ms")
        assert await alter(bench, kind, name, *changes) == code
        assert await value_of(bench, TOPIC, "t", "retention.ms") == before

    run(scenario)


def test_no_agent_differs_from_the_others_as_any_of_them_serves_any_partition() -> None:
    async def scenario(bench: AgentBench) -> None:
        own = str(bench.identity.broker_id)
        assert await alter(bench, BROKER, own, ("log.retention.ms", SET, "5000")) == ErrorCode.INVALID_CONFIG
        assert await value_of(bench, BROKER, own, "log.retention.ms") == ("604800000", 5)
        assert await alter(bench, BROKER, own, ("log.retention.ms", DELETE, None)) == 0

    run(scenario)


def test_what_is_not_there_can_not_be_described() -> None:
    async def scenario(bench: AgentBench) -> None:
        assert (await described(bench, TOPIC, "x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await described(bench, BROKER, "99")).error_code == ErrorCode.INVALID_REQUEST
        assert (await described(bench, 77, "x")).error_code == ErrorCode.INVALID_REQUEST
        group = await described(bench, 32, "x")
        assert group.error_message.startswith("configs of a group were asked for")
        own = await described(bench, BROKER, str(bench.identity.broker_id), "broker.rack")
        assert [row.value for row in own.configs] == ["az-a"]

    run(scenario)
