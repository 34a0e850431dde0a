"""Counts the elements in the arrays and maps of an Avro value from its bytes, without decoding it.

One byte of a value can be a record, or a null in place of one, which needs memory for all columns of the record.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from compactor.columns.json_values import ValueUnfit

_Walk = Callable[[bytes, int], int]
"""Takes the bytes and the start of a value. Returns the offset after it."""
_VARINTS = ("int", "long", "enum")
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class _LimitReached(Exception):
    """The count is above the limit."""


class Elements:
    """Counts elements by a schema that fastavro has parsed. `named`: its named types.

    Scalars in an array do not count, because they need about as much memory as their bytes.

    `least_bytes`: the fewest bytes of an element; 0 if no array or map of the schema has any.
    """

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self._named = named
        self._count = self._most = self.least_bytes = 0
        self._walk = self._walk_of(schema)

    def count(self, data: bytes, most: int) -> int:
        """Return the number of elements, or some number above `most`. Raises ValueUnfit."""
        self._count, self._most = 0, most
        try:
            self._walk(data, 0)
        except IndexError:
            raise ValueUnfit("the value is cut off, or of another schema") from None
        except _LimitReached:
            pass
        return self._count

    def _resolved(self, kind: Any) -> Any:
        while not isinstance(kind, list):
            if isinstance(kind, str) and kind in self._named:
                kind = self._named[kind]
            elif isinstance(kind, dict) and isinstance(kind["type"], dict | list):
                kind = kind["type"]
            else:
                break
        return kind

    def _walk_of(self, kind: Any) -> _Walk:
        kind = self._resolved(kind)
        if isinstance(kind, list):
            branches = [self._walk_of(branch) for branch in kind]
            return lambda data, at: _union(branches, data, at)
        name = kind if isinstance(kind, str) else kind["type"]
        if name in _VARINTS:
            return _skip_varint
        if name in ("bytes", "string"):
            return _skip_bytes
        if name == "record":
            fields = [self._walk_of(field["type"]) for field in kind["fields"]]
            return lambda data, at: _record(fields, data, at)
        if name in ("array", "map"):
            return self._blocks_of(name, kind["items" if name == "array" else "values"])
        size = kind["size"] if name == "fixed" else _FIXED[name]
        return lambda data, at: at + size

    def _blocks_of(self, name: str, item: Any) -> _Walk:
        walk, is_map = self._walk_of(item), name == "map"
        is_counted = is_map or not self._is_scalar(item)
        if is_counted:
            least = self._least(item) + is_map
            self.least_bytes = min(self.least_bytes or least, least)
        keyed = [_skip_bytes, walk]
        walk_item = (lambda data, at: _record(keyed, data, at)) if is_map else walk
        return lambda data, at: self._blocks(walk_item, is_counted, data, at)

    def _blocks(self, walk: _Walk, is_counted: bool, data: bytes, at: int) -> int:
        while True:
            count, at = _long(data, at)
            if not count:
                return at
            if count < 0:
                count, (_, at) = -count, _long(data, at)
            for _ in range(count):
                if is_counted:
                    self._count += 1
                    if self._count > self._most:
                        raise _LimitReached
                at = walk(data, at)
                if at > len(data):
                    raise IndexError

    def _is_scalar(self, kind: Any) -> bool:
        kind = self._resolved(kind)
        if isinstance(kind, list):
            return all(map(self._is_scalar, kind))
        return (kind if isinstance(kind, str) else kind["type"]) not in ("record", "array", "map")

    def _least(self, kind: Any) -> int:
        """Return the fewest bytes of a value of this type."""
        kind = self._resolved(kind)
        if isinstance(kind, list):
            return 1 + min(map(self._least, kind))
        name = kind if isinstance(kind, str) else kind["type"]
        if name == "record":
            return sum(self._least(field["type"]) for field in kind["fields"])
        return int(kind["size"]) if name == "fixed" else _FIXED.get(name, 1)


def _union(branches: list[_Walk], data: bytes, at: int) -> int:
    number, at = _long(data, at)
    return branches[number](data, at)


def _record(fields: list[_Walk], data: bytes, at: int) -> int:
    for walk in fields:
        at = walk(data, at)
    return at


def _skip_varint(data: bytes, at: int) -> int:
    return at + 1 if data[at] < 0x80 else _long(data, at)[1]


def _skip_bytes(data: bytes, at: int) -> int:
    size, at = _long(data, at)
    if size < 0:
        raise ValueUnfit("not a value of its schema")
    return at + size


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag number of at most ten bytes. Return it and the offset after it."""
    raw = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
    raise ValueUnfit("not a value of its schema")
