"""PushTelemetry: push a client's metrics, encoded as OTLP (KIP-714)."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import NIL_UUID, Api, Bool, Bytes, Int8, Int16, Int32, Message, Uuid


class PushTelemetryRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.PUSH_TELEMETRY, "0", flexible="0+")

    client_instance_id: Uuid = NIL_UUID
    subscription_id: Int32 = 0
    terminating: Bool = False
    compression_type: Int8 = 0
    metrics: Bytes = b""


class PushTelemetryResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
