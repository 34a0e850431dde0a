"""Configs: where a value comes from, and what may not be set."""

from __future__ import annotations

from typing import Any

import pytest

from agent.security.kafka_configs import AUTHORIZER, security_configs
from agent.security.listener_contexts import ClientSecurity
from agent.security.listeners import Listener, SecurityProtocol
from agent.security.settings import SecuritySettings
from sequencer.api.errors import InvalidConfig
from sequencer.api.topics import CreateTopic
from tailrace.configs.broker_config import broker_configs
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages import alter_configs
from tailrace.kafka.messages.alter_configs import AlterConfigsRequest
from tailrace.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tailrace.kafka.messages.list_config_resources import ListConfigResourcesRequest
from tests.support.agents import AgentBench, agent_bench

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
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


async def test_a_topics_own_value_goes_before_the_clusters_and_the_default() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        default, source = await value_of(bench, TOPIC, "t", "retention.ms")
        assert (default, source) == ("604800000", 5)
        assert await alter(bench, BROKER, "", ("log.retention.ms", SET, "5000")) == 0
        assert await value_of(bench, TOPIC, "t", "retention.ms") == ("5000", 3)
        assert await alter(bench, TOPIC, "t", ("retention.ms", SET, "7000")) == 0
        assert await value_of(bench, TOPIC, "t", "retention.ms") == ("7000", 1)
        assert await alter(bench, TOPIC, "t", ("retention.ms", DELETE, None)) == 0
        assert await value_of(bench, TOPIC, "t", "retention.ms") == ("5000", 3)


async def test_lists_are_added_to_and_taken_from() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        assert await alter(bench, TOPIC, "t", ("cleanup.policy", SET, "delete")) == 0
        assert await alter(bench, TOPIC, "t", ("cleanup.policy", APPEND, "compact")) == 0
        assert (await value_of(bench, TOPIC, "t", "cleanup.policy"))[0] == "delete,compact"
        assert await alter(bench, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == 0
        assert (await value_of(bench, TOPIC, "t", "cleanup.policy"))[0] == "compact"


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "nowhere", [("retention.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", [("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "nowhere", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "", [("retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "a/b", [("retention.ms", SET, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        (BROKER, "99", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (77, "t", [("retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_config_that_cannot_be_set_is_refused_with_its_code(
    kind: int, name: str, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        before = await value_of(bench, TOPIC, "t", "retention.ms")
        assert await alter(bench, kind, name, *changes) == code
        assert await value_of(bench, TOPIC, "t", "retention.ms") == before


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        (TOPIC, "t", "no.such.key"),
        (TOPIC, "t", ""),
        (BROKER, "", "no.such.key"),
        (BROKER, "", "broker.rack"),
        (CLIENT_METRICS, "s", "no.such.key"),
        (GROUP, "g", "no.such.key"),
    ],
)
async def test_an_unset_config_can_be_deleted_whatever_its_name(kind: int, name: str, key: str) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        assert await alter(bench, kind, name, (key, DELETE, None)) == 0


async def test_a_resource_that_is_named_twice_is_not_changed() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        before = await value_of(bench, TOPIC, "t", "retention.ms")
        changes = [AlterableConfig("retention.ms", SET, value) for value in ("1", "2")]
        resources = [AlterConfigsResource(TOPIC, "t", [change]) for change in changes]
        resources.append(AlterConfigsResource(GROUP, "t", [AlterableConfig("share.isolation.level", DELETE)]))
        request = IncrementalAlterConfigsRequest(resources)
        rows = (await bench.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)).responses
        refused = ErrorCode.INVALID_REQUEST
        assert [row.error_code for row in rows] == [refused, refused, 0]
        values = [alter_configs.AlterableConfig("retention.ms", value) for value in ("1", "2")]
        replaced = [alter_configs.AlterConfigsResource(TOPIC, "t", [value]) for value in values]
        rows = (await bench.ask(ApiKey.ALTER_CONFIGS, 2, AlterConfigsRequest(replaced))).responses
        assert [row.error_code for row in rows] == [refused, refused]
        replaced = [alter_configs.AlterConfigsResource(TOPIC, "t", values)]
        (row,) = (await bench.ask(ApiKey.ALTER_CONFIGS, 2, AlterConfigsRequest(replaced))).responses
        assert row.error_code == refused
        assert await value_of(bench, TOPIC, "t", "retention.ms") == before


async def test_a_topics_shortest_compaction_lag_is_not_above_its_longest() -> None:
    low, high = "min.compaction.lag.ms", "max.compaction.lag.ms"

    async with agent_bench() as bench:
        await bench.topic()
        assert await alter(bench, TOPIC, "t", (low, SET, "6"), (high, SET, "5")) == ErrorCode.INVALID_CONFIG
        assert await alter(bench, TOPIC, "t", (low, SET, "5"), (high, SET, "5")) == 0
        assert await alter(bench, TOPIC, "t", (low, SET, "6")) == ErrorCode.INVALID_CONFIG
        assert await alter(bench, TOPIC, "t", (low, DELETE, None)) == 0
        assert await alter(bench, BROKER, "", (f"log.cleaner.{low}", SET, "9")) == 0
        assert await alter(bench, TOPIC, "t", ("retention.ms", SET, "1")) == ErrorCode.INVALID_CONFIG
        assert await alter(bench, TOPIC, "t", ("retention.ms", SET, "1"), (high, SET, "9")) == 0
        with pytest.raises(InvalidConfig, match="above max"):
            await bench.sequencer.create_topic(CreateTopic("u", 1, {high: "8"}))


async def test_an_empty_list_of_keys_means_all() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        for kind, name in ((TOPIC, "t"), (BROKER, str(bench.identity.broker_id)), (GROUP, "g")):
            asked = [DescribeConfigsResource(kind, name, keys) for keys in ([], None)]
            for resource in asked:
                request = DescribeConfigsRequest([resource])
                (row,) = (await bench.ask(ApiKey.DESCRIBE_CONFIGS, 4, request)).results
                assert len(row.configs) > 10


async def test_a_config_of_one_agent_is_reported_and_changes_no_topic() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        own = str(bench.identity.broker_id)
        assert await alter(bench, BROKER, own, ("log.retention.ms", SET, "5000")) == 0
        assert await value_of(bench, BROKER, own, "log.retention.ms") == ("5000", 2)
        assert await value_of(bench, TOPIC, "t", "retention.ms") == ("604800000", 5)
        assert await alter(bench, BROKER, own, ("log.retention.ms", DELETE, None)) == 0
        assert await value_of(bench, BROKER, own, "log.retention.ms") == ("604800000", 5)


async def test_a_broker_tells_all_of_kafkas_names_and_its_own_values() -> None:
    async with agent_bench() as bench:
        own = str(bench.identity.broker_id)
        rows = {row.name: row for row in (await described(bench, BROKER, own)).configs}
        assert len(rows) > 330
        assert rows["listeners"].value == "PLAINTEXT://0.0.0.0:9092"
        assert rows["advertised.listeners"].value == "PLAINTEXT://host-1:9092"
        assert (rows["inter.broker.listener.name"].value, rows["authorizer.class.name"].value) == (None, "")
        assert rows["log.dirs"].value == "object-store"
        assert (rows["num.io.threads"].value, rows["num.io.threads"].config_type) == ("8", 3)
        assert (rows["node.id"].value, rows["node.id"].read_only) == (own, True)
        assert rows["ssl.keystore.password"].is_sensitive


async def test_another_broker_is_described_by_what_the_ring_says_of_it() -> None:
    async with agent_bench() as bench:
        other = await bench.join("az-b", 2)
        name = str(other.broker_id)
        rows = {row.name: row.value for row in (await described(bench, BROKER, name)).configs}
        assert (rows["node.id"], rows["broker.id"], rows["broker.rack"]) == (name, name, "az-b")
        assert rows["listeners"] == rows["advertised.listeners"] == "PLAINTEXT://host-2:9092"


async def test_a_broker_tells_how_clients_come_in() -> None:
    inside = Listener("INTERNAL", SecurityProtocol.SASL_SSL, "0.0.0.0", 9094)
    plain = Listener("PLAIN", SecurityProtocol.PLAINTEXT, "127.0.0.1", 9092)
    settings = SecuritySettings(
        sasl_mechanisms=("PLAIN", "SCRAM-SHA-512"), client_auth="required", max_connections_per_address=7
    )

    async with agent_bench() as bench:
        bench.services.clients = ClientSecurity((inside, plain), settings)
        own = str(bench.identity.broker_id)
        rows = {row.name: row.value for row in (await described(bench, BROKER, own)).configs}
        told = {
            "listeners": "INTERNAL://0.0.0.0:9094,PLAIN://127.0.0.1:9092",
            "listener.security.protocol.map": "INTERNAL:SASL_SSL,PLAIN:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "ssl.client.auth": "required",
            "max.connections.per.ip": "7",
            "authorizer.class.name": AUTHORIZER,
        }
        assert {name: rows[name] for name in told} == told
        assert not set(security_configs(bench.services.clients)) - set(broker_configs())


async def test_a_broker_config_without_effect_is_stored_and_reported_and_a_fixed_one_is_refused() -> None:
    async with agent_bench() as bench:
        own = str(bench.identity.broker_id)
        assert await alter(bench, BROKER, "", ("num.io.threads", SET, "9")) == 0
        assert await value_of(bench, BROKER, own, "num.io.threads") == ("9", 3)
        for name, value, code in (
            ("num.io.threads", "nine", ErrorCode.INVALID_CONFIG),
            ("num.io.threads", str(2**31), ErrorCode.INVALID_CONFIG),
            ("log.dirs", "/x", ErrorCode.INVALID_REQUEST),
            ("no.such", "1", ErrorCode.INVALID_CONFIG),
        ):
            assert await alter(bench, BROKER, "", (name, SET, value)) == code, name


@pytest.mark.parametrize(
    "quota",
    [
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ],
)
async def test_the_quotas_of_reassignments_are_set_and_cleared(quota: str) -> None:
    """kafka-reassign-partitions sets them with --throttle, and clears them after --verify and --cancel."""

    async with agent_bench() as bench:
        own = str(bench.identity.broker_id)
        assert await alter(bench, BROKER, own, (quota, DELETE, None)) == 0
        assert await alter(bench, BROKER, own, (quota, SET, "1000")) == 0
        assert await value_of(bench, BROKER, own, quota) == ("1000", 2)
        assert await alter(bench, BROKER, own, (quota, SET, "-1")) == ErrorCode.INVALID_CONFIG


async def test_a_secret_that_was_set_is_not_shown() -> None:
    async with agent_bench() as bench:
        assert await alter(bench, BROKER, "", ("ssl.key.password", SET, "hush")) == 0
        (row,) = (await described(bench, BROKER, str(bench.identity.broker_id), "ssl.key.password")).configs
        assert (row.value, row.is_sensitive, row.config_source) == (None, True, 3)
        assert [each.value for each in row.synonyms] == [None, None]


async def test_an_emptied_cleanup_policy_is_accepted() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        assert await alter(bench, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == 0
        assert await alter(bench, TOPIC, "t", ("cleanup.policy", SET, "")) == 0
        assert await value_of(bench, TOPIC, "t", "cleanup.policy") == ("", 1)
        assert bench.services.catalog.snapshot.by_name["t"].settings.cleanup_policy == frozenset()
        assert await alter(bench, TOPIC, "t", ("compression.type", SET, "")) == ErrorCode.INVALID_CONFIG


async def test_a_group_has_its_own_configs_whether_or_not_it_exists() -> None:
    async with agent_bench(group_consumer_heartbeat_interval_ms=5_000) as bench:
        key = "consumer.heartbeat.interval.ms"
        assert await value_of(bench, GROUP, "g", key) == ("5000", 5)
        assert await alter(bench, GROUP, "g", (key, SET, "7000")) == 0
        assert await value_of(bench, GROUP, "g", key) == ("7000", 8)
        assert await value_of(bench, GROUP, "h", key) == ("5000", 5)
        listed = await bench.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([GROUP]))
        assert [(row.resource_type, row.resource_name) for row in listed.config_resources] == [(GROUP, "g")]
        assert await alter(bench, GROUP, "g", (key, DELETE, None)) == 0
        assert await value_of(bench, GROUP, "g", key) == ("5000", 5)


async def test_a_subscription_to_clients_metrics_is_set_described_listed_and_deleted() -> None:
    async with agent_bench() as bench:
        assert (
            await alter(bench, CLIENT_METRICS, "s", ("metrics", SET, "a.,b."), ("interval.ms", SET, "1000"))
            == 0
        )
        assert await value_of(bench, CLIENT_METRICS, "s", "metrics") == ("a.,b.", 7)
        assert await value_of(bench, CLIENT_METRICS, "s", "match") == ("", 5)
        assert bench.services.catalog.client_configs.metrics == {
            "s": {"metrics": "a.,b.", "interval.ms": "1000"}
        }
        for version in (0, 1):
            listed = await bench.ask(ApiKey.LIST_CONFIG_RESOURCES, version, ListConfigResourcesRequest([]))
            assert "s" in [row.resource_name for row in listed.config_resources]
        assert await alter(bench, CLIENT_METRICS, "s", ("interval.ms", SET, "99")) == ErrorCode.INVALID_CONFIG
        assert await alter(bench, CLIENT_METRICS, "s", ("retention.ms", SET, "1")) == ErrorCode.INVALID_CONFIG
        assert await alter(bench, CLIENT_METRICS, "", ("metrics", SET, "a.")) == ErrorCode.INVALID_REQUEST
        assert (
            await alter(bench, CLIENT_METRICS, "s", ("metrics", DELETE, None), ("interval.ms", DELETE, None))
            == 0
        )
        assert bench.services.catalog.client_configs.metrics == {}


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        ("g", "no.such.config", "1", ErrorCode.INVALID_CONFIG),
        ("g", "retention.ms", "1", ErrorCode.INVALID_CONFIG),
        ("g", "consumer.session.timeout.ms", "44999", ErrorCode.INVALID_CONFIG),
        ("g", "share.delivery.count.limit", "11", ErrorCode.INVALID_CONFIG),
        ("g", "share.auto.offset.reset", "never", ErrorCode.INVALID_CONFIG),
        ("", "consumer.session.timeout.ms", "45000", ErrorCode.INVALID_REQUEST),
        ("x" * 1_025, "consumer.session.timeout.ms", "45000", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_group_configs_have_kafkas_bounds(name: str, key: str, value: str, code: ErrorCode) -> None:
    async with agent_bench() as bench:
        assert await alter(bench, GROUP, name, (key, SET, value)) == code


async def test_share_groups_follow_their_configs() -> None:
    async with agent_bench() as bench:
        configs = bench.services.groups.configs
        assert not configs.share_limits("g").from_earliest
        await alter(
            bench,
            GROUP,
            "g",
            ("share.auto.offset.reset", SET, "earliest"),
            ("share.record.lock.duration.ms", SET, "15000"),
            ("share.isolation.level", SET, "read_committed"),
        )
        limits = configs.share_limits("g")
        assert (limits.from_earliest, limits.lock_ms, limits.read_committed) == (True, 15_000, True)
        assert not configs.share_limits("h").from_earliest


@pytest.mark.parametrize(
    ("version", "kinds", "found"),
    [
        (1, [], {(2, "t"), (4, "own"), (8, "own")}),
        (1, [2], {(2, "t")}),
        (1, [4, 16, 32], {(4, "own")}),
        (0, [], set()),
    ],
)
async def test_the_resources_that_have_configs_are_listed(
    version: int, kinds: list[int], found: set[tuple[int, str]]
) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        own = str(bench.identity.broker_id)
        response = await bench.ask(ApiKey.LIST_CONFIG_RESOURCES, version, ListConfigResourcesRequest(kinds))
        assert response.error_code == 0
        listed = {(row.resource_type, row.resource_name) for row in response.config_resources}
        assert listed == {(kind, own if name == "own" else name) for kind, name in found}


async def test_resources_of_a_type_that_kafka_does_not_have_are_refused() -> None:
    async with agent_bench() as bench:
        response = await bench.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([99]))
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_missing_group_cannot_be_described() -> None:
    async with agent_bench() as bench:
        assert (await described(bench, TOPIC, "x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await described(bench, BROKER, "99")).error_code == ErrorCode.INVALID_REQUEST
        for name in ("", "a/b", "x" * 250):
            assert (await described(bench, TOPIC, name)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await described(bench, 77, "x")).error_code == ErrorCode.INVALID_REQUEST
        for name in ("", "99"):
            assert (await described(bench, LOGGER, name)).error_code == ErrorCode.INVALID_REQUEST
        assert (await described(bench, LOGGER, str(bench.identity.broker_id))).configs == []
        assert await value_of(bench, CLIENT_METRICS, "x", "interval.ms") == ("300000", 5)
        assert (await described(bench, CLIENT_METRICS, "")).error_code == ErrorCode.INVALID_REQUEST
        assert (await described(bench, GROUP, "")).error_code == ErrorCode.INVALID_REQUEST
        own = await described(bench, BROKER, str(bench.identity.broker_id), "broker.rack")
        assert [row.value for row in own.configs] == ["az-a"]
