"""The headers of requests (v1 and v2) and responses (v0 and v1)."""

from __future__ import annotations

import struct

import msgspec

from tailrace.buffers import Buffer
from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.apis import APIS
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.varints import read_unsigned_varint, skip_tagged_fields

_FIXED = struct.Struct(">hhih")


class RequestHeader(msgspec.Struct, gc=False, frozen=True):
    """A request's API, version and client. `body_offset`: where the message starts in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def parse_request_header(frame: Buffer) -> RequestHeader:
    """Parse the header of a request frame, given without its size.

    Accepts unknown keys and versions, so that the caller can answer them: an ApiVersions request of a future version is
    answered in version 0 (KIP-511).

    Raises:
        MalformedRequest: the frame is not a request.
    """
    try:
        api_key, api_version, correlation_id, length = _FIXED.unpack_from(frame, 0)
        offset = _FIXED.size
        client_id = None
        if length >= 0:
            end = offset + length
            if end > len(frame):
                raise MalformedRequest(f"client id of {length} bytes, {len(frame) - offset} are left")
            client_id = str(memoryview(frame)[offset:end], "utf-8")
            offset = end
        elif length != -1:
            raise MalformedRequest(f"client id of {length} bytes")
        if is_flexible(api_key, api_version):
            count, offset = read_unsigned_varint(frame, offset)
            offset = skip_tagged_fields(frame, offset, count)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"request header: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, offset)


def is_flexible(api_key: int, api_version: int) -> bool:
    """Whether requests of this version have tagged fields in header and body (KIP-482)."""
    spec = APIS.get(api_key)
    return spec is not None and spec.is_flexible(api_version)


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytearray:
    """Encode a request's header, as a client does."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    header = bytearray(_FIXED.pack(api_key, api_version, correlation_id, length))
    header += name
    if is_flexible(api_key, api_version):
        header.append(0)
    return header


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytearray:
    """Encode a response's header. For ApiVersions it is never flexible, because the client does not know our versions
    yet."""
    header = bytearray(correlation_id.to_bytes(4, "big", signed=True))
    if response_header_is_flexible(api_key, api_version):
        header.append(0)
    return header


def response_header_is_flexible(api_key: int, api_version: int) -> bool:
    """Whether the response's header has tagged fields."""
    return api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version)
