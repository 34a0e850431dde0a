"""Counts the topics and partitions in the bytes of a Produce request, without decoding it. Pure.

    header | transactional id | acks, time-out | topics: each a name or id, and partitions: each an index and records

From version 9 on, lengths are varints, and tagged fields follow each structure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from struct import Struct

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.apis import MAX_ITEMS_BY_PARTITION
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.headers import is_flexible, parse_request_header
from tailrace.kafka.source_writer import STEP
from tailrace.kafka.varints import finish_unsigned_varint, read_unsigned_varint, skip_tagged_fields
from tailrace.turns import Steps

_ACKS_AND_TIMEOUT_BYTES = 6
_INDEX_BYTES = 4
_TOPIC_ID_BYTES = 16
_FIRST_TRANSACTIONAL_VERSION = 3
_FIRST_TOPIC_ID_VERSION = 13
_SHORT = Struct(">h")
_INT = Struct(">i")

_Length = Callable[[memoryview, int], tuple[int, int]]
"""Reads a length: (length, offset after it)."""


def elements_of(frame: memoryview) -> Steps[int]:
    """Count topics and partitions together.

    For a malformed request, the count is at least the number of elements that a decoder would decode. For a request
    above the decoder's limit, it is some number above that limit.
    """
    counted = yielded = 0
    with suppress(MalformedRequest, IndexError, struct.error):
        header = parse_request_header(frame)
        version, at = header.api_version, header.body_offset
        is_compact = is_flexible(ApiKey.PRODUCE, version)
        of_text, of_many = (_compact, _compact) if is_compact else (_short, _int)
        after = _after_compact_partitions if is_compact else _after_partitions
        if version >= _FIRST_TRANSACTIONAL_VERSION:
            at = _after(frame, at, of_text)
        topics, at = of_many(frame, at + _ACKS_AND_TIMEOUT_BYTES)
        for _ in range(topics):
            at = at + _TOPIC_ID_BYTES if version >= _FIRST_TOPIC_ID_VERSION else _after(frame, at, of_text)
            partitions, at = of_many(frame, at)
            counted += 1
            for first in range(0, partitions or 1, STEP):
                some = min(partitions - first, STEP)
                counted += some
                if counted - yielded >= STEP:
                    if counted > MAX_ITEMS_BY_PARTITION:
                        return counted
                    yield counted - yielded
                    yielded = counted
                at = after(frame, at, some)
            if is_compact:
                at = _after_tags(frame, at)
    return counted


def _after_compact_partitions(frame: memoryview, at: int, partitions: int) -> int:
    for _ in range(partitions):
        at += _INDEX_BYTES
        length = frame[at]
        at += 1
        if length > 127:
            second = frame[at]
            if second < 128:  # most lengths have two bytes: avoid a call for each
                length += (second - 1) << 7
                at += 1
            else:
                length, at = finish_unsigned_varint(frame, at, length)
        if length:
            at += length - 1
        at = _after_tags(frame, at) if frame[at] else at + 1
    return at


def _after_partitions(frame: memoryview, at: int, partitions: int) -> int:
    for _ in range(partitions):
        at = _after(frame, at + _INDEX_BYTES, _int)
    return at


def _after(frame: memoryview, at: int, of: _Length) -> int:
    length, at = of(frame, at)
    return at + length


def _after_tags(frame: memoryview, at: int) -> int:
    count, at = read_unsigned_varint(frame, at)
    return skip_tagged_fields(frame, at, count) if count else at


def _compact(frame: memoryview, at: int) -> tuple[int, int]:
    length, at = read_unsigned_varint(frame, at)
    return max(length - 1, 0), at


def _short(frame: memoryview, at: int) -> tuple[int, int]:
    return max(_SHORT.unpack_from(frame, at)[0], 0), at + _SHORT.size


def _int(frame: memoryview, at: int) -> tuple[int, int]:
    return max(_INT.unpack_from(frame, at)[0], 0), at + _INT.size
