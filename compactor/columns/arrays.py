"""Converts decoded values to Arrow columns: types, column names and arrays.

Pure.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.configs.columns import (
    Columns,
    ColumnType,
    DecimalType,
    ListOf,
    MapOf,
    Scalar,
    StructOf,
    TypedColumn,
    caseless,
)
from tailrace.parquet_object.schema import SCHEMA

FieldOf = Callable[[int, TypedColumn], Callable[[Any], Any]]
"""Takes a column's number and the column. Returns a function that reads its field from a decoded struct, None if the
struct has no such field."""

TAKEN_NAMES = (
    *SCHEMA.names,
    *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"),
)
"""The columns of the log, and the names of Iceberg's metadata columns: Spark reads no table that has one of these."""
_NOT_IN_NAMES = re.compile(r"\W")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCALARS = {
    Scalar.BOOLEAN: pa.bool_(),
    Scalar.INT: pa.int32(),
    Scalar.LONG: pa.int64(),
    Scalar.FLOAT: pa.float32(),
    Scalar.DOUBLE: pa.float64(),
    Scalar.DATE: pa.date32(),
    Scalar.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Scalar.STRING: pa.string(),
    Scalar.BINARY: pa.binary(),
}


def column_names(columns: Columns, taken: Iterable[str] = ()) -> list[str]:
    """Return the columns' names in a table. Engines compare names without case, and a dot means a nested field.

    A name that is taken, or that an earlier field has, gets the prefix `value_`.
    """
    used = set(map(caseless, taken))
    names: list[str] = []
    for column in columns:
        name = _NOT_IN_NAMES.sub("_", column.name)
        while caseless(name) in used:
            name = f"value_{name}"
        used.add(caseless(name))
        names.append(name)
    return names


def table_fields(columns: Columns) -> list[pa.Field]:
    """Return the Arrow fields of the columns, whose names differ from TAKEN_NAMES."""
    return _fields(columns, TAKEN_NAMES)


def _fields(columns: Columns, taken: Iterable[str] = ()) -> list[pa.Field]:
    names = column_names(columns, taken)
    return [pa.field(name, arrow_type(column.type)) for name, column in zip(names, columns, strict=True)]


def arrow_type(kind: ColumnType) -> pa.DataType:
    match kind:
        case Scalar():
            return _SCALARS[kind]
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case ListOf(element):
            return pa.list_(pa.field("element", arrow_type(element)))
        case MapOf(value):
            return pa.map_(pa.string(), arrow_type(value))
        case StructOf(fields):
            return pa.struct(_fields(fields))


def arrays_of(columns: Columns, rows: Sequence[Any], field_of: FieldOf) -> list[pa.Array]:
    """Return one array per column. Raises Arrow's error for a value that does not fit its type."""
    has_missing = True in [row is None for row in rows]
    arrays: list[pa.Array] = []
    for number, column in enumerate(columns):
        read = field_of(number, column)
        fields = (
            [None if row is None else read(row) for row in rows] if has_missing else list(map(read, rows))
        )
        arrays.append(array_of(column.type, fields, field_of))
    return arrays


def array_of(kind: ColumnType, values: Sequence[Any], field_of: FieldOf) -> pa.Array:
    """Return the values as an array of the type. Raises the same as `arrays_of`."""
    match kind:
        case StructOf(fields):
            missing = pa.array([value is None for value in values], pa.bool_())
            children = arrays_of(fields, values, field_of)
            return pa.StructArray.from_arrays(children, fields=_fields(fields), mask=missing)
        case ListOf(element):
            offsets, parts = _flattened(values)
            kind_of = arrow_type(kind)
            return pa.ListArray.from_arrays(offsets, array_of(element, parts, field_of), type=kind_of)
        case MapOf(value):
            offsets, items = _flattened([None if given is None else list(given.items()) for given in values])
            keys = pa.array([item[0] for item in items], pa.string())
            held = array_of(value, [item[1] for item in items], field_of)
            return pa.MapArray.from_arrays(offsets, keys, held)
        case Scalar.TIMESTAMP:
            return pa.array([_moment(value) for value in values], _SCALARS[kind])
        case _:
            return pa.array(values, arrow_type(kind))


def _flattened(values: Sequence[Any]) -> tuple[pa.Array, list[Any]]:
    """Return the offsets of the lists (null for a missing list), and the elements of all lists together."""
    missing = np.fromiter([value is None for value in values], bool, len(values))
    given = [() if value is None else value for value in values] if missing.any() else values
    parts = list(itertools.chain.from_iterable(given))
    ends = np.cumsum(np.fromiter(map(len, given), np.int64, len(given)))
    offsets = np.concatenate([[0], ends])
    return pa.array(offsets, pa.int32(), mask=np.append(missing, False)), parts


def _moment(value: datetime | int | None) -> datetime | None:
    """Convert a number, which counts milliseconds since the Unix epoch, to a datetime."""
    return _EPOCH + timedelta(milliseconds=value) if isinstance(value, int) else value
