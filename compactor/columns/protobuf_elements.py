"""Counts the elements of a Protobuf value from its bytes, without decoding it.

Two bytes of a value can decode to a message that needs memory for all of its columns. An element is a message in a list
or map, or in a oneof with several fields: a value may contain its alternatives one after another, and the decoder keeps
the memory of all.

Pure.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from compactor.columns.json_values import ValueUnfit
from tailrace.protobuf_varint import read_varint

LEAST_BYTES = 2
"""The fewest bytes of a message in a list: its tag and its length."""
MAX_DEPTH = 100
"""The deepest nesting of messages, also in unknown fields. The decoder has the same limit."""
_VARINT, _FIXED_64, _LENGTH, _GROUP, _END_GROUP, _FIXED_32 = range(6)


class _Inner(NamedTuple):
    """A field whose values are messages."""

    shape: Shape
    is_element: bool
    is_group: bool


Shape: TypeAlias = "dict[int, _Inner]"
"""The fields of a message whose values are messages, by number."""


_UNKNOWN = _Inner({}, is_element=False, is_group=True)


def shape_of(message: Descriptor) -> Shape:
    """Return the shape of a message. It must not be recursive."""
    return {
        field.number: _Inner(
            shape_of(field.message_type),
            field.is_repeated or is_one_of_several(field),
            field.type == FieldDescriptor.TYPE_GROUP,
        )
        for field in message.fields
        if field.message_type is not None
    }


def is_one_of_several(field: FieldDescriptor) -> bool:
    """Whether the field is in a oneof with several fields. A oneof with one field means `optional`."""
    return field.containing_oneof is not None and len(field.containing_oneof.fields) > 1


def has_elements(shape: Shape) -> bool:
    """Whether values of this shape can have elements."""
    return any(inner.is_element or has_elements(inner.shape) for inner in shape.values())


class _Open(NamedTuple):
    """An open message. It ends at `end`, or at the end of the group with this number."""

    shape: Shape
    end: int
    group: int


def count_elements(shape: Shape, data: bytes, most: int) -> int:
    """Return the number of elements, or some number above `most`. Raises ValueUnfit for an invalid message."""
    try:
        return _count(shape, data, most)
    except IndexError:
        raise ValueUnfit("the value is cut off") from None
    except OverflowError:
        raise ValueUnfit("the value is no Protobuf message") from None


def _count(shape: Shape, data: bytes, most: int) -> int:
    count, at, opened = 0, 0, [_Open(shape, len(data), 0)]
    while opened and count <= most:
        shape, end, group = opened[-1]
        if at >= end:
            _check(at == end and not group)
            opened.pop()
            continue
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        inner = shape.get(number)
        if wire == _VARINT:
            _, at = read_varint(data, at)
        elif wire == _FIXED_64:
            at += 8
        elif wire == _FIXED_32:
            at += 4
        elif wire == _LENGTH:
            size, at = read_varint(data, at)
            _check(at + size <= end)
            if inner is None or inner.is_group:
                at += size
            else:
                count += inner.is_element
                opened.append(_Open(inner.shape, at + size, 0))
        elif wire == _GROUP:
            inner = inner if inner is not None and inner.is_group else _UNKNOWN
            count += inner.is_element
            opened.append(_Open(inner.shape, end, number))
            _check(len(opened) <= MAX_DEPTH + 1)
        else:
            _check(wire == _END_GROUP and number == group)
            opened.pop()
    return count


def _check(is_sound: bool) -> None:
    if not is_sound:
        raise ValueUnfit("the value is no Protobuf message")
