"""Targets for Kafka's protocol: every declared request and response in every version, by the codecs alone."""

from __future__ import annotations

import random
from functools import cache

from agent.groups.subscription import _subscription
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
        _subscription(data)
    except MalformedRequest:
        return False
    return True


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
    ]
