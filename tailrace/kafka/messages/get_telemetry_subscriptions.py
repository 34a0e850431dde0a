"""GetTelemetrySubscriptions: which metrics a client must push, and how often (KIP-714)."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import NIL_UUID, Api, Bool, Int8, Int16, Int32, Message, String, Uuid


class GetTelemetrySubscriptionsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, "0", flexible="0+")

    client_instance_id: Uuid = NIL_UUID


class GetTelemetrySubscriptionsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = NIL_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = []
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: Bool = False
    requested_metrics: list[String] = []
