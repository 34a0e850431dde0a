"""Request and response headers, byte for byte."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from tailrace.kafka import ApiKey, MalformedRequest, parse_request_header
from tailrace.kafka.headers import request_header, response_header


@pytest.mark.parametrize("client_id", ["rdkafka", "", None, "ß"])
def test_request_headers_are_those_of_kio(client_id: str | None) -> None:
    for version, kio_header in ((11, KioHeaderV1), (12, KioHeaderV2)):
        buffer = io.BytesIO()
        header = kio_header(
            request_api_key=i16(1),
            request_api_version=i16(version),
            correlation_id=i32(-5),
            client_id=client_id,
        )
        entity_writer(kio_header)(buffer, header)
        data = buffer.getvalue()
        assert bytes(request_header(1, version, -5, client_id)) == data
        parsed = parse_request_header(data + b"body")
        assert (parsed.api_key, parsed.api_version, parsed.correlation_id) == (1, version, -5)
        assert parsed.client_id == client_id
        assert parsed.body_offset == len(data)


def test_tagged_fields_of_the_header_are_skipped() -> None:
    frame = bytearray(request_header(ApiKey.METADATA, 12, 3, "me"))
    frame[-1:] = b"\x01\x00\x02ab"
    assert parse_request_header(frame).body_offset == len(frame)


def test_a_header_of_an_unknown_api_or_version_is_no_error() -> None:
    assert parse_request_header(bytes.fromhex("7000 0001 00000009 ffff")).api_key == 0x7000
    parsed = parse_request_header(bytes.fromhex("0012 0063 00000009 0001 61 00 ff"))
    assert (parsed.api_version, parsed.client_id, parsed.body_offset) == (99, "a", 12)


def test_a_cut_header_is_malformed() -> None:
    frame = bytes(request_header(ApiKey.METADATA, 12, 3, "client"))
    for cut in range(len(frame)):
        with pytest.raises(MalformedRequest):
            parse_request_header(frame[:cut])


@pytest.mark.parametrize(
    "frame", ["0003000c00000001fffe00", "0003000c00000001000201ff00", "0003000c00000001ffffff"]
)
def test_a_wrong_header_is_malformed(frame: str) -> None:
    with pytest.raises(MalformedRequest):
        parse_request_header(bytes.fromhex(frame))


@given(st.binary(max_size=40))
def test_arbitrary_frames_raise_nothing_but_malformed_request(frame: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        parse_request_header(memoryview(frame))


def test_the_response_header_of_api_versions_is_never_flexible() -> None:
    assert bytes(response_header(ApiKey.API_VERSIONS, 4, 7)) == b"\x00\x00\x00\x07"
    assert bytes(response_header(ApiKey.METADATA, 8, 7)) == b"\x00\x00\x00\x07"
    assert bytes(response_header(ApiKey.METADATA, 9, 7)) == b"\x00\x00\x00\x07\x00"
