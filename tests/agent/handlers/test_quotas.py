"""Client quotas over the protocol: set, described, refused as Kafka does."""

from __future__ import annotations

import pytest

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from tailrace.kafka.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tests.support.agents import AgentBench, agent_bench

Entity = dict[str, str | None]


async def alter(
    bench: AgentBench, *entries: tuple[Entity, dict[str, float | None]], validate_only: bool = False
) -> list[tuple[int, str | None]]:
    request = AlterClientQuotasRequest(
        [
            EntryData(
                [EntityData(kind, name) for kind, name in entity.items()],
                [OpData(key, value or 0.0, value is None) for key, value in limits.items()],
            )
            for entity, limits in entries
        ],
        validate_only,
    )
    response = await bench.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, request)
    return [(row.error_code, row.error_message) for row in response.entries]


async def described(
    bench: AgentBench, *components: tuple[str, int, str | None], strict: bool = False
) -> list[tuple[Entity, dict[str, float]]]:
    request = DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict)
    response = await bench.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, request)
    assert response.error_code == 0 and response.error_message is None
    return [
        (
            {each.entity_type: each.entity_name for each in entry.entity},
            {each.key: each.value for each in entry.values},
        )
        for entry in response.entries
    ]


async def test_quotas_are_set_found_by_filters_and_removed() -> None:
    async with agent_bench() as bench:
        alice: Entity = {"user": "alice"}
        anyone: Entity = {"user": None, "client-id": "app"}
        assert (
            await alter(
                bench,
                (alice, {"producer_byte_rate": 1024.0, "request_percentage": 12.5}),
                (anyone, {"consumer_byte_rate": 2048.0}),
                ({"ip": "10.0.0.1"}, {"connection_creation_rate": 5.0}),
            )
            == [(0, None)] * 3
        )
        of_alice = (alice, {"producer_byte_rate": 1024.0, "request_percentage": 12.5})
        of_anyone = (anyone, {"consumer_byte_rate": 2048.0})
        assert len(await described(bench)) == 3
        assert await described(bench, ("user", 0, "alice")) == [of_alice]
        assert await described(bench, ("user", 1, None)) == [of_anyone]
        assert await described(bench, ("user", 0, "")) == []
        assert await described(bench, ("user", 2, None)) == [of_anyone, of_alice]
        assert await described(bench, ("user", 2, None), strict=True) == [of_alice]
        assert await described(bench, ("ip", 2, None)) == [
            ({"ip": "10.0.0.1"}, {"connection_creation_rate": 5.0})
        ]
        most = 9223372036854775807.0
        assert await alter(bench, ({"user": "unlimited"}, {"producer_byte_rate": most})) == [(0, None)]
        assert await described(bench, ("user", 0, "unlimited")) == [
            ({"user": "unlimited"}, {"producer_byte_rate": most})
        ]
        await alter(bench, (alice, {"producer_byte_rate": None, "request_percentage": None}))
        assert await described(bench, ("user", 0, "alice")) == []


@pytest.mark.parametrize(
    ("entity", "limits"),
    [
        ({}, {"producer_byte_rate": 1.0}),
        ({"user": ""}, {"producer_byte_rate": 1.0}),
        ({"group": "g"}, {"producer_byte_rate": 1.0}),
        ({"ip": "10.0.0.1", "user": "u"}, {"connection_creation_rate": 1.0}),
        ({"ip": "not an address"}, {"connection_creation_rate": 1.0}),
        ({"user": "u"}, {"connection_creation_rate": 1.0}),
        ({"user": "u"}, {"connection_creation_rate": None}),
        ({"user": "u"}, {"producer_byte_rate": -1.0}),
        ({"user": "u"}, {"producer_byte_rate": 2.0**63 + 2048}),
    ],
)
async def test_a_request_that_kafka_refuses_is_refused_and_affects_nothing_else(
    entity: Entity, limits: dict[str, float | None]
) -> None:
    async with agent_bench() as bench:
        (code, message), done = await alter(
            bench, (entity, limits), ({"user": "v"}, {"producer_byte_rate": 1.0})
        )
        assert code == ErrorCode.INVALID_REQUEST and message
        assert done == (0, None)


async def test_a_validation_changes_nothing() -> None:
    async with agent_bench() as bench:
        assert await alter(bench, ({"user": "u"}, {"producer_byte_rate": 1.0}), validate_only=True) == [
            (0, None)
        ]
        assert await described(bench) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 0, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", 0, "x"), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("group", 0, "x")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_filter_that_means_nothing_is_refused(
    components: list[tuple[str, int, str | None]], code: int
) -> None:
    async with agent_bench() as bench:
        request = DescribeClientQuotasRequest([ComponentData(*each) for each in components])
        response = await bench.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, request)
        assert response.error_code == code and response.entries is None
