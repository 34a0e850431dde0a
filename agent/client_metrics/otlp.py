"""Reads metrics in OpenTelemetry's protocol (opentelemetry-proto, metrics/v1, MetricsData): names, attributes, values.

Protocol buffers: each field is a varint (number << 3 | type), then a varint (type 0), 8 bytes (1), bytes after their
length (2) or 4 bytes (5). Other fields are skipped. Pure; bounded by MAX_POINTS and MAX_ATTRIBUTES.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.protobuf_varint import read_varint

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


def read_points(data: memoryview) -> list[DataPoint]:
    """Return the gauges and sums, and the counts and sums of histograms. Raises BadMetrics."""
    points: list[DataPoint] = []
    for resource in _messages(data, _RESOURCE_METRICS):
        for scope in _messages(resource, _SCOPE_METRICS):
            for metric in _messages(scope, _METRICS):
                for point in _points(metric):
                    points.append(point)
                    if len(points) >= MAX_POINTS:
                        return points
    return points


def _points(metric: memoryview) -> Iterator[DataPoint]:
    name = ""
    for number, kind, value in _fields(metric):
        if kind != _BYTES:
            continue
        if number == _NAME:
            name = _text(value)
        elif number in (_GAUGE, _SUM):
            for point in _messages(value, _POINTS):
                yield DataPoint(name, _attributes(point, _ATTRIBUTES), _number(point))
        elif number == _HISTOGRAM:
            for point in _messages(value, _POINTS):
                attributes = _attributes(point, _HISTOGRAM_ATTRIBUTES)
                for field, kind_of_field, given in _fields(point):
                    if kind_of_field == _FIXED64 and field == _COUNT:
                        yield DataPoint(f"{name}.count", attributes, float(struct.unpack("<Q", given)[0]))
                    elif kind_of_field == _FIXED64 and field == _SUM_OF_ALL:
                        yield DataPoint(f"{name}.sum", attributes, struct.unpack("<d", given)[0])


def _number(point: memoryview) -> float:
    for number, kind, value in _fields(point):
        if kind == _FIXED64 and number == _AS_DOUBLE:
            return float(struct.unpack("<d", value)[0])
        if kind == _FIXED64 and number == _AS_INT:
            return float(struct.unpack("<q", value)[0])
    return 0.0


def _attributes(point: memoryview, number: int) -> str:
    named = []
    for pair in itertools.islice(_messages(point, number), MAX_ATTRIBUTES):
        key = shown = ""
        for field, kind, value in _fields(pair):
            if kind == _BYTES and field == 1:
                key = _text(value)
            elif kind == _BYTES and field == 2:
                shown = _any(value)
        named.append(f"{key}={shown}")
    return ",".join(sorted(named))[:MAX_TEXT_BYTES]


def _any(value: memoryview) -> str:
    for number, kind, given in _fields(value):
        if number == 1 and kind == _BYTES:
            return _text(given)
        if number == 3 and kind == _VARINT:
            return str(_varint(given, 0)[0])
    return ""


def _text(value: memoryview) -> str:
    return bytes(value[:MAX_TEXT_BYTES]).decode(errors="replace")


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    return (value for number, kind, value in _fields(data) if number == wanted and kind == _BYTES)


def _fields(data: memoryview) -> Iterator[_Field]:
    """Yield number, type and bytes of each field. Raises BadMetrics."""
    position, end = 0, len(data)
    while position < end:
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


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    try:
        return read_varint(data, position)
    except (IndexError, OverflowError) as error:
        raise BadMetrics(f"no number at byte {position}: {error}") from error
