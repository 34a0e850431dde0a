"""GetTelemetrySubscriptions and PushTelemetry: clients push their metrics, and the agent shows them (KIP-714)."""

from __future__ import annotations

import asyncio

from agent.client_metrics.otlp import BadMetrics, DataPoint, read_points
from agent.client_metrics.subscriptions import ClientSubscription, subscription_of
from agent.services import RequestContext, Services
from tailrace.batches.compression import CannotUnpack, decompress
from tailrace.batches.record_batch import Compression
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from tailrace.kafka.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from tailrace.turns import ThreadTurns

MAX_BYTES = 1 << 20
"""Kafka's telemetry.max.bytes."""
MAX_UNPACKED_BYTES = 4 << 20
FIELDS_TOGETHER = 1_000
"""Fields read in another thread before it lets the event loop have the interpreter."""
ACCEPTED = [Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY]


async def get_subscriptions(
    services: Services, context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Return what the client is to push. A new client gets its id."""
    client = request.client_instance_id
    while client == NIL_TOPIC_ID:
        client = services.entropy.uuid()
    request.client_instance_id = client
    wanted = _wanted(services, context, request)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=client,
        subscription_id=wanted.subscription_id,
        accepted_compression_types=[int(codec) for codec in ACCEPTED],
        push_interval_ms=wanted.interval_ms,
        telemetry_max_bytes=MAX_BYTES,
        requested_metrics=list(wanted.metrics),
    )


async def push(
    services: Services, context: RequestContext, request: PushTelemetryRequest
) -> PushTelemetryResponse:
    """Replace the client's metrics by those that it pushes."""
    code, points = await _read(services, context, request)
    if code is ErrorCode.NONE:
        wanted = _wanted(services, context, request)
        services.telemetry.client_metrics.take(
            request.client_instance_id,
            [point for point in points if point.name.startswith(wanted.metrics)],
            client_id=context.client_id,
            software=context.client_software,
            now=services.clock.monotonic(),
            seconds=wanted.interval_ms / 1000,
        )
    return PushTelemetryResponse(error_code=code)


async def _read(
    services: Services, context: RequestContext, request: PushTelemetryRequest
) -> tuple[ErrorCode, list[DataPoint]]:
    wanted = _wanted(services, context, request)
    shown, now = services.telemetry.client_metrics, services.clock.monotonic()
    if request.client_instance_id == NIL_TOPIC_ID:
        return ErrorCode.INVALID_REQUEST, []
    if request.subscription_id != wanted.subscription_id:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID, []
    is_early = not shown.may_push(request.client_instance_id, now, wanted.interval_ms / 1000)
    if is_early and not request.terminating:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED, []
    if request.compression_type not in (*ACCEPTED, Compression.NONE):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, []
    if len(request.metrics) > MAX_BYTES:
        return ErrorCode.TELEMETRY_TOO_LARGE, []
    if not wanted.metrics:
        return ErrorCode.NONE, []
    try:
        points = await asyncio.get_running_loop().run_in_executor(services.decoding, _unpacked, request)
    except (CannotUnpack, BadMetrics):
        return ErrorCode.INVALID_RECORD, []
    return ErrorCode.NONE, points


def _unpacked(request: PushTelemetryRequest) -> list[DataPoint]:
    codec = Compression(request.compression_type)
    data = decompress(codec, bytes(request.metrics), max_bytes=MAX_UNPACKED_BYTES)
    return read_points(memoryview(data), ThreadTurns(FIELDS_TOGETHER).did)


def _wanted(
    services: Services,
    context: RequestContext,
    request: GetTelemetrySubscriptionsRequest | PushTelemetryRequest,
) -> ClientSubscription:
    name, _, version = context.client_software.rpartition("/")
    client = {
        "client_instance_id": str(request.client_instance_id),
        "client_id": context.client_id,
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": context.client_host,
    }
    return subscription_of(services.catalog.client_configs.metrics, client)
