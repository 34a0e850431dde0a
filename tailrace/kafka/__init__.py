"""Kafka's wire protocol. Messages are declared once for all versions and compiled to codecs on first use.

request = decode_request(header.api_key, header.api_version, frame, header.body_offset)
transport.writelines(encode_response(header.correlation_id, header.api_key, header.api_version, response))
"""

from __future__ import annotations

from typing import Any

from tailrace.buffers import Buffer
from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.apis import APIS, ApiSpec
from tailrace.kafka.compiler import Codec, codec, step_decoder, step_encoder
from tailrace.kafka.encoder_source import Parts
from tailrace.kafka.errors import MalformedRequest, UnencodableMessage, UnsupportedVersion
from tailrace.kafka.headers import (
    RequestHeader,
    parse_request_header,
    request_header,
    response_header,
    response_header_is_flexible,
)
from tailrace.kafka.varints import read_unsigned_varint, skip_tagged_fields
from tailrace.turns import Steps

__all__ = [
    "ApiKey",
    "MalformedRequest",
    "RequestHeader",
    "UnencodableMessage",
    "UnsupportedVersion",
    "decode_request",
    "decode_request_in_steps",
    "decode_response",
    "decode_response_in_steps",
    "encode_request",
    "encode_request_in_steps",
    "encode_response",
    "encode_response_in_steps",
    "parse_request_header",
]

_SIZE_BYTES = 4


def decode_request(api_key: int, api_version: int, frame: Buffer, offset: int = 0) -> Any:
    """Decode the request in `frame` from `offset` (the header's `body_offset`) to its end.

    Records are memoryviews of the frame; everything else is copied.

    Raises:
        MalformedRequest: the bytes are not such a request.
        UnsupportedVersion: the API is unknown, or has no such version.

    Ignores bytes after the request, as Kafka does: librdkafka appends 3 to a Metadata request for all topics.
    """
    message, _ = request_codec(api_key, api_version).decode(memoryview(frame), offset)
    return message


def decode_request_in_steps(api_key: int, api_version: int, frame: Buffer, offset: int = 0) -> Steps[Any]:
    """Do the same as `decode_request` in steps, for a request that may be long."""
    spec = _spec(api_key, api_version)
    decode = step_decoder(spec.request, api_version, spec.is_flexible(api_version), spec.max_items)
    message, _ = yield from decode(memoryview(frame), offset)
    return message


def encode_response(correlation_id: int, api_key: int, api_version: int, response: Any) -> Parts:
    """Encode a whole response frame as buffers for `transport.writelines`.

    The frame begins with its size (4 bytes) and header. Only small records are copied; the others must not change until
    the buffers are sent.

    Raises:
        UnencodableMessage: the version can't express the response.
        UnsupportedVersion: the API is unknown, or has no such version.
    """
    return _encode(
        response_codec(api_key, api_version),
        response_header(api_key, api_version, correlation_id),
        response,
    )


def encode_response_in_steps(
    correlation_id: int, api_key: int, api_version: int, response: Any
) -> Steps[Parts]:
    """Do the same as `encode_response` in steps, for a response that may be long. It must not change between steps."""
    spec = _spec(api_key, api_version)
    encode = step_encoder(spec.response, api_version, spec.is_flexible(api_version))
    out = _begun(response_header(api_key, api_version, correlation_id))
    parts: Parts = []
    last = yield from encode(response, out, parts)
    return _with_size(out, last, parts)


def encode_request(
    correlation_id: int, api_key: int, api_version: int, request: Any, client_id: str | None = None
) -> Parts:
    """Encode a whole request frame with its size, as a client sends it."""
    header = request_header(api_key, api_version, correlation_id, client_id)
    return _encode(request_codec(api_key, api_version), header, request)


def encode_request_in_steps(
    correlation_id: int, api_key: int, api_version: int, request: Any, client_id: str | None = None
) -> Steps[Parts]:
    """Do the same as `encode_request` in steps, for a request that may be long. It must not change between steps."""
    spec = _spec(api_key, api_version)
    encode = step_encoder(spec.request, api_version, spec.is_flexible(api_version))
    out = _begun(request_header(api_key, api_version, correlation_id, client_id))
    parts: Parts = []
    last = yield from encode(request, out, parts)
    return _with_size(out, last, parts)


def decode_response(api_key: int, api_version: int, frame: Buffer) -> tuple[int, Any]:
    """Decode a response frame, given without its size. Return (correlation id, response).

    Raises:
        MalformedRequest: the bytes are not such a response.
        UnsupportedVersion: the API is unknown, or has no such version.
    """
    body = response_codec(api_key, api_version)
    offset = _body_of_response(api_key, api_version, frame)
    return int.from_bytes(frame[:4], "big", signed=True), _decode(body, frame, offset)


def decode_response_in_steps(api_key: int, api_version: int, frame: Buffer) -> Steps[Any]:
    """Decode the response in a frame as `decode_response` does, in steps, for one that may be long."""
    spec = _spec(api_key, api_version)
    decode = step_decoder(spec.response, api_version, spec.is_flexible(api_version), None)
    offset = _body_of_response(api_key, api_version, frame)
    message, end = yield from decode(memoryview(frame), offset)
    _check_end(message, end, frame)
    return message


def _body_of_response(api_key: int, api_version: int, frame: Buffer) -> int:
    """Return where the body of a response begins. Raises MalformedRequest."""
    if len(frame) < 4:
        raise MalformedRequest(f"a response of {len(frame)} bytes")
    offset = 4
    if response_header_is_flexible(api_key, api_version):
        try:
            count, offset = read_unsigned_varint(frame, offset)
            offset = skip_tagged_fields(frame, offset, count)
        except IndexError as error:
            raise MalformedRequest("the response ends in its header") from error
    return offset


def request_codec(api_key: int, api_version: int) -> Codec:
    spec = _spec(api_key, api_version)
    return codec(spec.request, api_version, spec.is_flexible(api_version), max_items=spec.max_items)


def response_codec(api_key: int, api_version: int) -> Codec:
    spec = _spec(api_key, api_version)
    return codec(spec.response, api_version, spec.is_flexible(api_version))


def _spec(api_key: int, api_version: int) -> ApiSpec:
    spec = APIS.get(api_key)
    if spec is None or api_version not in spec.listed:
        raise UnsupportedVersion(api_key, api_version)
    return spec


def _decode(body: Codec, frame: Buffer, offset: int) -> Any:
    message, end = body.decode(memoryview(frame), offset)
    _check_end(message, end, frame)
    return message


def _check_end(message: Any, end: int, frame: Buffer) -> None:
    if end != len(frame):
        raise MalformedRequest(f"{len(frame) - end} bytes follow the {type(message).__name__}")


def _encode(body: Codec, header: bytearray, message: Any) -> Parts:
    out = _begun(header)
    parts: Parts = []
    return _with_size(out, body.encode(message, out, parts), parts)


def _begun(header: bytearray) -> bytearray:
    """Start a frame: space for its size, then its header."""
    out = bytearray(_SIZE_BYTES)
    out += header
    return out


def _with_size(first: bytearray, last: bytearray, parts: Parts) -> Parts:
    """Write the size into `first`, the start of the frame, and return all parts."""
    if last or not parts:
        parts.append(last)
    size = sum(map(len, parts)) - _SIZE_BYTES
    first[:_SIZE_BYTES] = size.to_bytes(_SIZE_BYTES, "big")
    return parts
