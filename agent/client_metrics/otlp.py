"""Reads metrics in OpenTelemetry's protocol (opentelemetry-proto, metrics/v1, MetricsData): names, attributes, values.

Protocol buffers: each field is a varint (number << 3 | type), then a varint (type 0), 8 bytes (1), bytes after their
length (2) or 4 bytes (5). Other fields are skipped. Pure; bounded by MAX_FIELDS, MAX_POINTS and MAX_ATTRIBUTES.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailrace.protobuf_varint import read_varint

MAX_FIELDS = 100_000
"""The most fields read from one push, a field that is read twice counted twice: twice what MAX_POINTS have."""
MAX_POINTS = 2_000
"""The most points read from one push. Clients have some dozens per connection and partition."""
MAX_ATTRIBUTES = 50
"""The most attributes read from a point."""
MAX_TEXT_BYTES = 200
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_RESOURCE_METRICS, _SCOPE_METRICS, _METRICS = 1, 2, 2
_NAME, _GAUGE, _SUM, _HISTOGRAM = 1, 5, 7, 9
_POINTS = 1
_AS_DOUBLE, _AS_INT, _ATTRIBUTES, _HISTOGRAM_ATTRIBUTES = 4, 6, 7, 9
_COUNT, _SUM_OF_ALL = 4, 5
_Field = tuple[int, int, memoryview]


class BadMetrics(ValueError):
    """The bytes are not metrics."""


@dataclass(frozen=True, slots=True)
class DataPoint:
    """The latest value of one metric with these attributes (`topic=t,partition=0`)."""

    name: str
    attributes: str
    value: float


def read_points(data: memoryview, did: Callable[[], None]) -> list[DataPoint]:
    """Return the gauges and sums, and the counts and sums of histograms. `did` is called for each field. Raises
    BadMetrics."""
    reader = _Reader(did)
    points = (
        point
        for resource in reader.messages(data, _RESOURCE_METRICS)
        for scope in reader.messages(resource, _SCOPE_METRICS)
        for metric in reader.messages(scope, _METRICS)
        for point in reader.points(metric)
    )
    return list(itertools.islice(points, MAX_POINTS))


class _Reader:
    """Reads the fields of one push, nested as they may be."""

    def __init__(self, did: Callable[[], None]) -> None:
        self._did = did
        self._left = MAX_FIELDS

    def points(self, metric: memoryview) -> Iterator[DataPoint]:
        name = ""
        for number, kind, value in self.fields(metric):
            if kind != _BYTES:
                continue
            if number == _NAME:
                name = _text(value)
            elif number in (_GAUGE, _SUM):
                for point in self.messages(value, _POINTS):
                    yield DataPoint(name, self.attributes(point, _ATTRIBUTES), self.number(point))
            elif number == _HISTOGRAM:
                for point in self.messages(value, _POINTS):
                    attributes = self.attributes(point, _HISTOGRAM_ATTRIBUTES)
                    for field, kind_of_field, given in self.fields(point):
                        if kind_of_field == _FIXED64 and field == _COUNT:
                            yield DataPoint(f"{name}.count", attributes, float(struct.unpack("<Q", given)[0]))
                        elif kind_of_field == _FIXED64 and field == _SUM_OF_ALL:
                            yield DataPoint(f"{name}.sum", attributes, struct.unpack("<d", given)[0])

    def number(self, point: memoryview) -> float:
        for number, kind, value in self.fields(point):
            if kind == _FIXED64 and number == _AS_DOUBLE:
                return float(struct.unpack("<d", value)[0])
            if kind == _FIXED64 and number == _AS_INT:
                return float(struct.unpack("<q", value)[0])
        return 0.0

    def attributes(self, point: memoryview, number: int) -> str:
        named = []
        for pair in itertools.islice(self.messages(point, number), MAX_ATTRIBUTES):
            key = shown = ""
            for field, kind, value in self.fields(pair):
                if kind == _BYTES and field == 1:
                    key = _text(value)
                elif kind == _BYTES and field == 2:
                    shown = self.any(value)
            named.append(f"{key}={shown}")
        return ",".join(sorted(named))[:MAX_TEXT_BYTES]

    def any(self, value: memoryview) -> str:
        for number, kind, given in self.fields(value):
            if number == 1 and kind == _BYTES:
                return _text(given)
            if number == 3 and kind == _VARINT:
                return str(_varint(given, 0)[0])
        return ""

    def messages(self, data: memoryview, wanted: int) -> Iterator[memoryview]:
        return (value for number, kind, value in self.fields(data) if number == wanted and kind == _BYTES)

    def fields(self, data: memoryview) -> Iterator[_Field]:
        """Yield number, type and bytes of each field. Raises BadMetrics."""
        position, end = 0, len(data)
        while position < end:
            if not self._left:
                raise BadMetrics(f"more than {MAX_FIELDS} fields")
            self._left -= 1
            self._did()
            key, position = _varint(data, position)
            kind, start = key & 7, position
            if kind == _VARINT:
                _, position = _varint(data, position)
            elif kind == _FIXED64:
                position += 8
            elif kind == _FIXED32:
                position += 4
            elif kind == _BYTES:
                length, start = _varint(data, position)
                position = start + length
            else:
                raise BadMetrics(f"a field of type {kind}")
            if position > end:
                raise BadMetrics("a field ends after its message")
            yield key >> 3, kind, data[start:position]


def _text(value: memoryview) -> str:
    return bytes(value[:MAX_TEXT_BYTES]).decode(errors="replace")


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    try:
        return read_varint(data, position)
    except (IndexError, OverflowError) as error:
        raise BadMetrics(f"no number at byte {position}: {error}") from error
