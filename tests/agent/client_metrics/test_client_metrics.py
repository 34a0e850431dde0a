"""Client metrics (KIP-714): which metrics clients push, how they are parsed, and which are shown."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from agent.client_metrics import pushed
from agent.client_metrics.otlp import (
    MAX_ATTRIBUTES,
    MAX_FIELDS,
    MAX_POINTS,
    BadMetrics,
    DataPoint,
    read_points,
)
from agent.client_metrics.pushed import MAX_SERIES_OF_CLIENT, PushedMetrics
from agent.client_metrics.subscriptions import EVERYTHING, ClientSubscription, subscription_of
from agent.handlers import client_telemetry
from tailrace.batches.record_batch import Compression
from tailrace.configs.client_metrics_config import check_client_metrics_configs
from tailrace.configs.topic_config import InvalidConfigValue
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.api_versions import ApiVersionsRequest
from tailrace.kafka.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tailrace.kafka.messages.push_telemetry import PushTelemetryRequest
from tests.support.agents import AgentBench, agent_bench
from tests.support.patience import PATIENCE_SECONDS
from tests.support.wire import WiredAgent, wired_agent

CLIENT_METRICS = 16
OURS = UUID(int=7)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name: str, value: str) -> bytes:
    return field(7, field(1, name.encode()) + field(2, field(1, value.encode())))


def gauge(name: str, *points: bytes) -> bytes:
    return field(2, field(1, name.encode()) + field(5, b"".join(field(1, point) for point in points)))


def pushed_bytes(*metrics: bytes) -> bytes:
    return field(1, field(1, b"") + field(2, b"".join(metrics)))


def double(value: float) -> bytes:
    return varint(4 << 3 | 1) + struct.pack("<d", value)


def whole(value: int) -> bytes:
    return varint(6 << 3 | 1) + struct.pack("<q", value)


def points_of(data: bytes) -> list[DataPoint]:
    return read_points(memoryview(data), lambda: None)


def test_names_attributes_and_values_are_read() -> None:
    total = field(2, field(1, b"c") + field(7, field(1, whole(-3)) + varint(2 << 3) + varint(2)))
    histogram = field(
        1, varint(4 << 3 | 1) + struct.pack("<Q", 2) + varint(5 << 3 | 1) + struct.pack("<d", 2.5)
    )
    data = pushed_bytes(
        gauge("a", double(1.5) + attribute("topic", "t") + attribute("node", "1")),
        total,
        field(2, field(1, b"h") + field(9, histogram)),
    )
    assert points_of(data) == [
        DataPoint("a", "node=1,topic=t", 1.5),
        DataPoint("c", "", -3.0),
        DataPoint("h.count", "", 2.0),
        DataPoint("h.sum", "", 2.5),
    ]
    many = pushed_bytes(gauge("a", *[double(1.0)] * (MAX_POINTS + 5)))
    assert len(points_of(many)) == MAX_POINTS


@given(st.binary(max_size=200))
def test_bytes_that_are_no_metrics_are_refused_or_empty(data: bytes) -> None:
    try:
        points = points_of(data)
    except BadMetrics:
        return
    assert all(isinstance(point.value, float) for point in points)


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_metrics_with_a_byte_wrong_raise_nothing_else(at: int, flip: int) -> None:
    data = bytearray(pushed_bytes(gauge("a", double(1.5) + attribute("topic", "t")), gauge("b", whole(7))))
    data[at % len(data)] ^= flip
    with contextlib.suppress(BadMetrics):
        points_of(bytes(data))


def test_subscriptions_that_match_are_put_together() -> None:
    configs = {
        "all": {"metrics": "org.apache.kafka.producer.", "interval.ms": "60000"},
        "mine": {
            "metrics": "a.,b.",
            "interval.ms": "1000",
            "match": "client_id=lap.*,client_software_name=librdkafka",
        },
        "no metrics": {"interval.ms": "100"},
    }
    client = {"client_id": "laptop", "client_software_name": "librdkafka"}
    assert subscription_of(configs, client) == ClientSubscription(
        ("a.", "b.", "org.apache.kafka.producer."), 1_000
    )
    other = subscription_of(configs, {**client, "client_id": "a laptop"})
    assert other == ClientSubscription(("org.apache.kafka.producer.",), 60_000)
    assert other.subscription_id != subscription_of(configs, client).subscription_id >= 0
    assert subscription_of({}, client) == ClientSubscription((), 300_000)
    assert subscription_of({"x": {"metrics": "a.,*"}}, client).metrics == EVERYTHING


def test_a_point_of_very_many_attributes_has_some() -> None:
    many = [attribute(f"{number:05}", "x") for number in range(100_000)]
    (point,) = points_of(pushed_bytes(gauge("n", double(1.0) + b"".join(reversed(many)))))
    assert point.attributes.startswith(f"{100_000 - MAX_ATTRIBUTES}=x,") and point.value == 1.0


@pytest.mark.parametrize("place", ["message", "metric", "point"])
def test_metrics_of_more_fields_than_a_client_has_are_refused_at_a_bound(place: str) -> None:
    """A few hundred compressed bytes can be two million fields."""
    many = (varint(3 << 3) + varint(0)) * (MAX_FIELDS + 1)
    data = {
        "message": many,
        "metric": pushed_bytes(field(2, many)),
        "point": pushed_bytes(gauge("a", many)),
    }
    turns: list[int] = []
    with pytest.raises(BadMetrics, match="fields"):
        read_points(memoryview(data[place]), lambda: turns.append(1))
    assert len(turns) == MAX_FIELDS


async def test_metrics_that_nobody_subscribed_to_are_not_unpacked() -> None:
    async with agent_bench() as bench:
        subscribed = await bench.ask(
            ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, GetTelemetrySubscriptionsRequest(OURS)
        )
        assert subscribed.requested_metrics == []
        with patch.object(client_telemetry, "decompress", side_effect=AssertionError):
            pushed = await bench.ask(
                ApiKey.PUSH_TELEMETRY,
                0,
                PushTelemetryRequest(OURS, subscribed.subscription_id, True, Compression.ZSTD, b"x"),
            )
        assert pushed.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "configs",
    [
        {"interval.ms": "99"},
        {"metric": "a"},
        {"match": "client=x"},
        {"match": "client_id=("},
        {"match": "client_id=" + "x" * 501},
    ],
)
def test_subscriptions_have_kafkas_bounds(configs: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigValue):
        check_client_metrics_configs(configs)


def test_the_last_pushes_of_ever_new_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed, "MAX_CLIENTS", 2)
    registry = CollectorRegistry()
    shown = PushedMetrics(registry)
    for client in range(5):
        point = DataPoint("m", str(client), 1.0)
        shown.take(UUID(int=client), [point], client_id="c", software="s", now=0.0, seconds=10.0)
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert [sample.labels["attributes"] for sample in samples] == ["0", "1"]


def test_shown_metrics_are_bounded_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed, "MAX_CLIENTS", 2)
    registry = CollectorRegistry()
    shown = PushedMetrics(registry)

    def take(client: int, now: float, points: list[DataPoint]) -> None:
        shown.take(UUID(int=client), points, client_id="c", software="s", now=now, seconds=10.0)

    def samples() -> list[Any]:
        return [each for family in registry.collect() for each in family.samples]

    take(1, 0.0, [DataPoint(f"m{number}", "", 1.0) for number in range(MAX_SERIES_OF_CLIENT + 9)])
    assert len(samples()) == MAX_SERIES_OF_CLIENT
    take(1, 10.0, [DataPoint("m", "a", 1.0), DataPoint("m", "a", 2.0)])
    [sample] = samples()
    assert (sample.value, sample.labels["metric"], sample.labels["attributes"]) == (2.0, "m", "a")
    take(2, 10.0, [])
    assert not shown.may_push(UUID(int=3), 10.0, 10.0), "no room"
    assert not shown.may_push(UUID(int=1), 14.0, 10.0) and shown.may_push(UUID(int=1), 15.0, 10.0)
    shown.forget_silent(39.0)
    assert len(samples()) == 1
    shown.forget_silent(40.0)
    assert samples() == [] and shown.may_push(UUID(int=3), 40.0, 10.0)


async def subscribe(bench: AgentBench, **configs: str) -> None:
    given = [AlterableConfig(name.replace("_", "."), 0, value) for name, value in configs.items()]
    resource = AlterConfigsResource(CLIENT_METRICS, "all", given)
    answer = await bench.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest([resource]))
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


async def test_a_push_is_taken_if_it_is_what_was_asked_for() -> None:
    async with agent_bench() as bench:

        async def listed() -> set[int]:
            answer = await bench.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("librdkafka", "2.6"))
            return {each.api_key for each in answer.api_keys} & {71, 72}

        async def push(data: bytes = b"", **more: Any) -> int:
            request = PushTelemetryRequest(OURS, wanted.subscription_id, metrics=data)
            for name, value in more.items():
                setattr(request, name, value)
            return int((await bench.ask(ApiKey.PUSH_TELEMETRY, 0, request)).error_code)

        assert await listed() == set(), "nobody subscribes: no client is asked"
        await subscribe(bench, metrics="a.", interval_ms="1000")
        assert await listed() == {71, 72}
        asked = GetTelemetrySubscriptionsRequest()
        wanted = await bench.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, asked)
        assert wanted.client_instance_id != NIL_TOPIC_ID and wanted.requested_metrics == ["a."]
        assert (wanted.push_interval_ms, wanted.delta_temporality) == (1_000, False)
        data = pushed_bytes(gauge("a.b", double(1.0)), gauge("b.c", double(2.0)))
        assert await push(data) == 0
        family = next(
            each
            for each in bench.services.telemetry.registry.collect()
            if each.name == "tailrace_client_metric"
        )
        assert [sample.labels["metric"] for sample in family.samples] == ["a.b"], "no other was asked for"
        assert await push(data) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert await push(data, terminating=True) == 0
        assert (
            await push(data, subscription_id=wanted.subscription_id + 1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        )
        assert await push(data, client_instance_id=NIL_TOPIC_ID) == ErrorCode.INVALID_REQUEST
        too_large = b"x" * (1 << 20) + b"x"
        for bad in (push(data, compression_type=9), push(too_large)):
            assert await bad == ErrorCode.THROTTLING_QUOTA_EXCEEDED, "as in Kafka, before it is looked at"
        last = {"terminating": True}
        assert await push(data, compression_type=9, **last) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert await push(too_large, **last) == ErrorCode.TELEMETRY_TOO_LARGE
        assert await push(b"\x0a\xff", terminating=True) == ErrorCode.INVALID_RECORD
        assert await push(b"junk", compression_type=4, terminating=True) == ErrorCode.INVALID_RECORD


async def test_librdkafka_pushes_what_is_subscribed_to(tmp_path: Path) -> None:
    def shown(wired: WiredAgent) -> list[Any]:
        families = wired.agent.telemetry.registry.collect()
        return [
            each for family in families if family.name == "tailrace_client_metric" for each in family.samples
        ]

    async with wired_agent(tmp_path) as wired:
        await wired.topic("t")
        kafka = await wired.client()
        configs = [AlterableConfig("metrics", 0, "*"), AlterableConfig("interval.ms", 0, "200")]
        resource = AlterConfigsResource(CLIENT_METRICS, "all", configs)
        altered = await kafka.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest([resource])
        )
        assert altered.responses[0].error_code == 0
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{wired.agent.kafka_port}",
                "client.id": "laptop",
                "log_level": 0,
                "enable.metrics.push": True,
            }
        )
        producer.produce("t", b"x")
        await asyncio.to_thread(producer.flush, PATIENCE_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (found := shown(wired)):
                await asyncio.sleep(0.1)
        assert {each.labels["client_id"] for each in found} == {"laptop"}
        assert {each.labels["software"].partition("/")[0] for each in found} <= {
            "confluent-kafka-python",
            "librdkafka",
        }
        assert any(each.labels["metric"].startswith("org.apache.kafka.producer.") for each in found)
