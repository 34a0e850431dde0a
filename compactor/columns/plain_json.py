"""Decodes plain JSON values to columns all at once (compactor.columns.json_kernels).

A value that is not plain may fit or not; a decoder of single values decides. A plain value gets the same columns as
that decoder would give.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from compactor.columns import json_kernels as kernels
from compactor.columns.arrays import arrow_type
from tailrace.configs.columns import Columns, ColumnType, ListOf, Scalar, StructOf

MOST_SLOTS = 1 << 26
"""The most slots of all columns together. Each has 9 bytes, and uses memory only if it is written."""
_KINDS = {
    Scalar.BOOLEAN: kernels.BOOLEAN,
    Scalar.INT: kernels.INT,
    Scalar.LONG: kernels.LONG,
    Scalar.FLOAT: kernels.FLOAT,
    Scalar.DOUBLE: kernels.DOUBLE,
    Scalar.STRING: kernels.STRING,
    Scalar.DATE: kernels.DATE,
    Scalar.TIMESTAMP: kernels.TIMESTAMP,
}


class PlainValues(NamedTuple):
    """Decoded values. `arrays`: one per column, for all values; rows that are not plain have undefined contents.
    `is_plain`: 1 or 0 for each value."""

    arrays: list[pa.Array]
    is_plain: Any


class _Node(NamedTuple):
    """A node of the tree of columns. `list`: the number of the list whose elements are its entries, 0 for the rows."""

    name: bytes
    type: ColumnType
    list: int


class PlainJson:
    """Decodes plain values to columns. `is_strict`: as in JsonValues."""

    def __init__(self, columns: Columns, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._nodes, firsts, counts = _tree(columns)
        kinds = [_kind(node.type) for node in self._nodes]
        self._is_able = None not in kinds
        names = [node.name for node in self._nodes]
        self._kinds = np.array([kind or 0 for kind in kinds], np.int8)
        self._firsts = np.array(firsts, np.int64)
        self._counts = np.array(counts, np.int64)
        self._name_offsets = np.cumsum([0, *map(len, names)], dtype=np.int64)
        self._names = np.frombuffer(b"".join(names) + bytes(8), np.uint8)

    def decode(self, values: pa.Array, most_bytes: int) -> PlainValues | None:
        """Decode the values. A value longer than `most_bytes` is not plain. None: these columns or values can't be
        decoded at once."""
        if not self._is_able or not _is_utf8(values):
            return None
        given = _given(values)
        bases, size = self._bases(given)
        if size > MOST_SLOTS:
            return None
        plan = kernels.ColumnTree(
            kinds=self._kinds, first_children=self._firsts, child_counts=self._counts,
            name_offsets=self._name_offsets, names=self._names, bases=bases, is_strict=self._is_strict,
            most_bytes=most_bytes,
        )  # fmt: skip
        slots = _slots(size, len(self._nodes), given)
        hard = kernels.parse(given, plan, slots, _none_open(len(self._nodes)))
        _fill_hard_numbers(given.source, slots, hard)
        parsed = _Parsed(self._nodes, plan, slots, given.source)
        arrays = [parsed.array(1 + number, len(values)) for number in range(int(self._counts[0]))]
        return PlainValues(arrays, slots.is_plain)

    def _bases(self, given: kernels.ParseInput) -> tuple[Any, int]:
        """Return the first slot of each node, and the number of slots."""
        in_lists = any(node.list for node in self._nodes)
        elements = int(kernels.most_elements(given.source)) if in_lists else 0
        rooms = [elements if node.list else len(given.is_null) for node in self._nodes]
        ends = np.cumsum([0, *rooms], dtype=np.int64)
        return ends[:-1], int(ends[-1])


def _tree(columns: Columns) -> tuple[list[_Node], list[int], list[int]]:
    """Return the nodes, and the first child and the number of children of each."""
    nodes = [_Node(b"", StructOf(columns), 0)]
    firsts: list[int] = []
    counts: list[int] = []
    waiting = deque(nodes)
    while waiting:
        node, number = waiting.popleft(), len(firsts)
        children = [_Node(name.encode(), kind, node.list or 0) for name, kind in _children(node.type)]
        if isinstance(node.type, ListOf):
            children = [child._replace(list=number) for child in children]
        firsts.append(len(nodes))
        counts.append(len(children))
        nodes += children
        waiting += children
    return nodes, firsts, counts


def _children(kind: ColumnType) -> list[tuple[str, ColumnType]]:
    match kind:
        case StructOf(fields):
            return [(field.name, field.type) for field in fields]
        case ListOf(element):
            return [("", element)]
    return []


def _kind(kind: ColumnType) -> int | None:
    """Return the kernel's number for a type; None if it has none."""
    match kind:
        case StructOf():
            return kernels.STRUCT
        case ListOf():
            return kernels.LIST
        case Scalar():
            return _KINDS.get(kind)
    return None


def _is_utf8(values: pa.Array) -> bool:
    """Whether all values are UTF-8, inside and outside of strings."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _given(values: pa.Array) -> kernels.ParseInput:
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    source = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    is_null = values.is_null().cast(pa.uint8()).to_numpy()
    return kernels.ParseInput(source=source, offsets=bounds - bounds[0], is_null=is_null)


def _slots(size: int, nodes: int, given: kernels.ParseInput) -> kernels.Slots:
    words = np.zeros(size, np.int64)
    hard = len(given.source) // 8 + 1
    return kernels.Slots(
        words=words, floats=words.view(np.float64), valid=np.zeros(size, np.uint8),
        counts=np.zeros(nodes, np.int64), hard_words=np.zeros(hard, np.int64),
        hard_slots=np.zeros(hard, np.int64), is_plain=np.zeros(len(given.is_null), np.uint8),
    )  # fmt: skip


def _none_open(nodes: int) -> kernels.ParseStack:
    held = [np.zeros(kernels.DEPTH, np.int64) for _ in range(5)]
    return kernels.ParseStack(
        nodes=held[0], entries=held[1], is_object=held[2], next_children=held[3], stamps=held[4],
        seen=np.zeros(nodes, np.int64),
    )  # fmt: skip


def _fill_hard_numbers(source: Any, slots: kernels.Slots, count: int) -> None:
    """Parse the numbers that the kernel left with Arrow, which rounds to the nearest double."""
    words = slots.hard_words[:count]
    numbers = pa.Array.from_buffers(pa.string(), len(words), [None, *_texts(source, words)])
    slots.floats[slots.hard_slots[:count]] = numbers.cast(pa.float64()).to_numpy()


def _texts(source: Any, words: Any) -> list[pa.Buffer]:
    """Return the offsets and data buffers of a column of texts."""
    target = np.empty(int((words & kernels.SIZE).sum()), np.uint8)
    ends = np.zeros(len(words) + 1, np.int32)
    kernels.texts(source, words, target, ends)
    return [pa.py_buffer(ends), pa.py_buffer(target[: ends[-1]])]


class _Parsed(NamedTuple):
    """Converts slots to arrays."""

    nodes: list[_Node]
    plan: kernels.ColumnTree
    slots: kernels.Slots
    source: Any

    def array(self, number: int, count: int) -> pa.Array:
        """Return the node's first `count` entries as an array."""
        first = int(self.plan.bases[number])
        valid = self.slots.valid[first : first + count]
        nulls = count - int(np.count_nonzero(valid))
        bitmap = _bits(valid) if nulls else None
        words = self.slots.words[first : first + count]
        kind, child = self.nodes[number].type, int(self.plan.first_children[number])
        children: list[pa.Array] = []
        match kind:
            case StructOf(fields):
                children = [self.array(child + index, count) for index in range(len(fields))]
                buffers = []
            case ListOf():
                children = [self.array(child, int(self.slots.counts[number]))]
                ends = np.maximum.accumulate(words)
                buffers = [pa.py_buffer(np.concatenate([[0], ends]).astype(np.int32))]
            case Scalar.STRING:
                buffers = _texts(self.source, words)
            case Scalar.BOOLEAN:
                buffers = [_bits(words)]
            case _:
                numbers, letter = (self.slots.floats, "f") if _is_float(kind) else (self.slots.words, "i")
                size = arrow_type(kind).bit_width // 8
                buffers = [pa.py_buffer(numbers[first : first + count].astype(f"{letter}{size}", copy=False))]
        return pa.Array.from_buffers(
            arrow_type(kind), count, [bitmap, *buffers], null_count=nulls, children=children or None
        )


def _is_float(kind: ColumnType) -> bool:
    return kind is Scalar.FLOAT or kind is Scalar.DOUBLE


def _bits(flags: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags.astype(np.bool_), bitorder="little"))
