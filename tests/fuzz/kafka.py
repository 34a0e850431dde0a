"""Targets for Kafka's protocol: every declared request and response in every version, by the codecs alone."""

from __future__ import annotations

import random
from functools import cache

from agent.client_metrics.otlp import BadMetrics, read_points
from agent.gateway.errors import HttpRefusal
from agent.gateway.json_objects import JsonObjects, NotAnObject, ObjectTooLarge
from agent.gateway.record_json import parse_record, time_text, timestamp_ms
from agent.groups.subscription import read_subscription
from tailrace.kafka import (
    MalformedRequest,
    UnsupportedVersion,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_request_header,
)
from tailrace.kafka.apis import APIS
from tailrace.turns import at_once
from tests.fuzz.target import Target
from tests.tailrace.kafka.message_samples import declared, sample


@cache
def requests() -> list[bytes]:
    """Frames (without their size) of every API and version."""
    rng = random.Random(1)
    return [
        b"".join(encode_request(9, key, version, sample(APIS[key].request, version, rng), "fuzz"))[4:]
        for key, version in declared()
        for _ in range(2)
    ]


@cache
def responses() -> list[bytes]:
    """Response frames after two bytes: key and version."""
    rng = random.Random(2)
    return [
        bytes((key, version))
        + b"".join(encode_response(9, key, version, sample(APIS[key].response, version, rng)))[4:]
        for key, version in declared()
    ]


@cache
def recorded_requests() -> list[bytes]:
    """Frames that real clients sent (tests/tailrace/kafka/recorded)."""
    from tests.tailrace.kafka.recordings import recorded

    return [frame.data for frame in recorded() if frame.is_request]


def check_request(data: bytes) -> bool:
    """Decode as dispatch does; an accepted message must be the same after encoding it again."""
    frame = memoryview(data)
    try:
        header = parse_request_header(frame)
        request = decode_request(header.api_key, header.api_version, frame, header.body_offset)
    except (MalformedRequest, UnsupportedVersion):
        return False
    key, version = header.api_key, header.api_version
    written = b"".join(encode_request(header.correlation_id, key, version, request, header.client_id))[4:]
    again = parse_request_header(written)
    assert decode_request(key, version, written, again.body_offset) == request or "nan" in repr(request)
    return True


def check_response(data: bytes) -> bool:
    """Two bytes name API and version; Tailrace's own clients (the command line, tests) read the rest."""
    if len(data) < 2:
        return False
    try:
        decode_response(data[0], data[1], memoryview(data)[2:])
    except (MalformedRequest, UnsupportedVersion):
        return False
    return True


def check_subscription(data: bytes) -> bool:
    """A consumer's metadata in JoinGroup, which the coordinator decodes."""
    try:
        at_once(read_subscription(data))
    except MalformedRequest:
        return False
    return True


def check_metrics(data: bytes) -> bool:
    """What a client pushes (KIP-714), unpacked."""
    try:
        read_points(memoryview(data), lambda: None)
    except BadMetrics:
        return False
    return True


def check_json_records(data: bytes) -> bool:
    """The body of a produce request over HTTP."""
    objects = JsonObjects(max_bytes=1 << 20)
    try:
        for text in objects.feed(data):
            given, _ = parse_record(text)
            time_text(timestamp_ms(given, 0))
        objects.finish()
    except (HttpRefusal, NotAnObject, ObjectTooLarge):
        return False
    return True


METRICS = bytes.fromhex(
    "0a360a001232121e0a01612a190a1721000000000000f83f3a0c0a05746f70696312030a017412100a01622a0b0a09310700000000000000"
)
JSON_RECORDS = (
    b'{"partition_id": 1, "key": {"type": "STRING", "data": "k"}, "value": {"type": "JSON", "data": {"n": [1, null]}},'
    b' "headers": [{"name": "h", "value": "eA=="}], "timestamp": "2026-01-31T12:00:00Z"}\n{"value": null}'
)


def targets() -> list[Target]:
    """All of this module."""
    subscriptions = [
        b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff",
        b"\x00\x01\x00\x00\x00\x02\x00\x01t\x00\x02uu\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00",
        b"\x00\x03\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x05\x00\x04az-a",
    ]
    return [
        Target("Kafka request", 26, [*requests(), *recorded_requests()], check_request),
        Target("Kafka response", 6, responses(), check_response),
        Target("consumer subscription", 2, subscriptions, check_subscription),
        Target("pushed metrics", 2, [METRICS], check_metrics),
        Target("JSON records", 3, [JSON_RECORDS], check_json_records),
    ]
