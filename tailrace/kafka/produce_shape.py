"""A fast path for Produce requests: those of one client and topic differ only in few fields, so most need no decoding.

    key, version | correlation id | client id, acks, time-out, topic | partition | length | records | tagged fields
    4 bytes      | 4              | the same each time               | 4         | 1 to 5 | length  | none: 3 zeros

(Before version 9, the length has four bytes, and nothing follows the records.) A `ProduceShape` is learned from a
decoded request, and reads requests with the same bytes in the same places. It returns the same as the codec, and leaves
all other requests to the codec. librdkafka sends one batch in each request, so a connection has a shape for each topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Any

import msgspec

from tailrace.kafka import encode_request
from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.headers import RequestHeader, is_flexible
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.kafka.varints import unsigned_varint

_OTHERS = Struct(">4sii")
"""Key and version, correlation id, partition: the fields before the length that differ."""
_LENGTH = Struct(">i")
_TAGS = b"\0\0\0"
"""The end of a request without tagged fields in its partition, its topic and itself."""
MAX_SAME_BYTES = 1024
"""The most constant bytes: enough for a client id and a topic's name."""
MAX_SHAPES = 16
"""The most shapes of one connection."""
_SAME_AT = 8
"""Where the constant bytes begin, after key, version and correlation id."""
KNOWN_LENGTHS = 4_096
"""The most lengths of records whose encoding is kept. Similar batches have few different lengths."""


class ProduceShape(msgspec.Struct, eq=False):
    """The constant part of similar requests. `fields` reads key and version, correlation id, the constant bytes
    (`same`) and the partition. `request`: one of them, without its partition. `kept`: what the caller has decided about
    such requests."""

    fields: Struct
    first: bytes
    same: bytes
    is_flexible: bool
    header: RequestHeader
    request: ProduceRequest
    kept: Any = None

    def read(self, frame: memoryview) -> tuple[RequestHeader, ProduceRequest] | None:
        """Return the header and message of a request with this shape; None for any other."""
        fields = self.find(frame, 0, len(frame))
        if fields is None:
            return None
        correlation_id, index, records_start, records_end = fields
        known, topic = self.request, self.request.topic_data[0]
        partitions = [PartitionProduceData(index, frame[records_start:records_end])]
        header = self.header
        return (
            RequestHeader(
                header.api_key, header.api_version, correlation_id, header.client_id, header.body_offset
            ),
            ProduceRequest(
                known.transactional_id,
                known.acks,
                known.timeout_ms,
                [TopicProduceData(topic.name, topic.topic_id, partitions)],
            ),
        )

    def find(self, data: memoryview, start: int, end: int) -> tuple[int, int, int, int] | None:
        """Return the correlation id, partition, and start and end of the records of the request in `data[start:end]`.

        None if it has another shape, or if the records and their length do not fill it.
        """
        at = start + self.fields.size
        if at >= end:
            return None
        first, correlation_id, same, index = self.fields.unpack_from(data, start)
        if first != self.first or same != self.same:
            return None
        if not self.is_flexible:
            at += _LENGTH.size
            if at > end or _LENGTH.unpack_from(data, at - _LENGTH.size)[0] != end - at:
                return None
            return correlation_id, index, at, end
        tags_at = end - len(_TAGS)
        if at >= tags_at or data[tags_at:end] != _TAGS:
            return None
        length = _encoded_length(tags_at - at)
        if length is None:
            return None
        records_start = at + len(length)
        if data[at:records_start] != length:
            return None
        return correlation_id, index, records_start, tags_at


class ProduceShapes:
    """The shapes of one connection, by the constant bytes of their requests."""

    __slots__ = ("_shapes", "_sizes")

    def __init__(self) -> None:
        self._shapes: dict[bytes, ProduceShape] = {}
        self._sizes: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[ProduceShape]:
        return iter(self._shapes.values())

    def of(self, data: memoryview, start: int) -> ProduceShape | None:
        """Return the shape whose constant bytes the request at `start` has, or None. Whether it reads the request is
        for the caller to see."""
        first = start + _SAME_AT
        for size in self._sizes:
            shape = self._shapes.get(bytes(data[first : first + size]))
            if shape is not None:
                return shape
        return None

    def add(self, shape: ProduceShape) -> None:
        """Add a shape. If there are too many it replaces the newest: so a connection that sends to more topics in turn
        keeps the shapes of most."""
        shapes = self._shapes
        if shape.same not in shapes and len(shapes) >= MAX_SHAPES:
            shapes.popitem()
        shapes[shape.same] = shape
        self._sizes = tuple({len(same) for same in shapes})


@lru_cache(KNOWN_LENGTHS)
def _encoded_length(size: int) -> bytes | None:
    """Return the encoded length (+ 1) at the start of `size` bytes that are a length and the records.

    None for a size that no encoder produces, because the length's own size would not fit.
    """
    length_bytes = 1 if size < 1 << 7 else 2 if size <= 1 << 14 else 3 if size <= (1 << 21) + 1 else 4
    encoded = unsigned_varint(size - length_bytes + 1)
    return encoded if len(encoded) == length_bytes else None


def shape_of(frame: memoryview, header: RequestHeader, request: ProduceRequest) -> ProduceShape | None:
    """Return the shape of a decoded request; None if it does not have exactly one batch, or has unusual bytes.

    The bytes before the length must be those that the codec itself writes. So the codec reads just these, then the
    length, the records and the empty tagged fields, as `ProduceShape.find` does. The records are not looked at.
    """
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return None
    (asked,) = request.topic_data
    empty = PartitionProduceData(asked.partition_data[0].index, memoryview(b""))
    topic = TopicProduceData(asked.name, asked.topic_id, [empty])
    kept = ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, [topic])
    parts = encode_request(
        header.correlation_id, ApiKey.PRODUCE, header.api_version, kept, client_id=header.client_id
    )
    topic.partition_data = []
    flexible = is_flexible(ApiKey.PRODUCE, header.api_version)
    after = 1 + len(_TAGS) if flexible else _LENGTH.size
    before = b"".join(parts)[_LENGTH.size : -after]
    same_bytes = len(before) - _OTHERS.size
    if same_bytes > MAX_SAME_BYTES:
        return None
    fields = Struct(f">4si{same_bytes}si")
    first, _, same, _ = fields.unpack_from(before)
    shape = ProduceShape(fields, first, same, flexible, header, kept)
    return shape if shape.find(frame, 0, len(frame)) is not None else None
