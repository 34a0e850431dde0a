"""JSON values: decodes them to known columns, and infers columns from a sample of values.

A value fits if it is one object whose fields have the columns' types. Numbers with a fraction are not integers. Nothing
is rounded. Only dates, times, decimals and binary (base64) are parsed from strings.

Pure.
"""

from __future__ import annotations

import datetime
import decimal
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Optional, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.columns.arrays import TAKEN_NAMES, column_names
from compactor.columns.plain_json import PlainJson, PlainValues
from tailrace.buffers import Buffer
from tailrace.configs.columns import (
    MAX_COLUMNS,
    MAX_NAME_CHARACTERS,
    MAX_NESTING,
    Columns,
    ColumnType,
    DecimalType,
    ListOf,
    MapOf,
    Scalar,
    StructOf,
    TypedColumn,
    caseless,
    columns_text,
    element_cells,
    is_name,
)

_BEYOND_FLOAT = (2 - 2**-24) * 2.0**127
"""The least number that is infinite as a 32-bit float."""
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999
_SCALARS: dict[Scalar, Any] = {
    Scalar.BOOLEAN: bool,
    Scalar.INT: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)],
    Scalar.LONG: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
    Scalar.FLOAT: Annotated[float, msgspec.Meta(gt=-_BEYOND_FLOAT, lt=_BEYOND_FLOAT)],
    Scalar.DOUBLE: float,
    Scalar.DATE: datetime.date,
    Scalar.TIMESTAMP: datetime.datetime | Annotated[int, msgspec.Meta(ge=_FIRST_MS, le=_LAST_MS)],
    Scalar.STRING: str,
    Scalar.BINARY: bytes,
}

MOST_CELLS = 1 << 25
"""The most cells, of 16 bytes each, for columns in one value's lists and maps. The objects in `[{},{}]` need as many as
if they had all fields."""
_FEW_CELLS = 4
"""An element takes about this many bytes of a value."""
_ELEMENT, _ELEMENT_OR_ENTRY = r"\{|[\[,]\s*null", r"\{|null"


class ValueUnfit(ValueError):
    """A value does not fit the columns; the message says why."""


def check_cells(cells: int) -> None:
    """Raise ValueUnfit if a value needs too many cells."""
    if cells > MOST_CELLS:
        raise ValueUnfit(
            f"the columns in its lists need {cells} cells or more; at most {MOST_CELLS} are allowed"
        )


class JsonValues:
    """Decodes JSON values. `is_strict`: a field that is not a column makes a value unfit; otherwise it is ignored."""

    refused = (RecursionError, msgspec.MsgspecError, UnicodeError)

    def __init__(self, columns: Columns, *, is_strict: bool) -> None:
        self._element_cells = element_cells(columns)
        has_many = self._element_cells > _FEW_CELLS
        self._sure_bytes = MOST_CELLS // self._element_cells if has_many else MOST_CELLS
        self._element = _ELEMENT_OR_ENTRY if "map<" in columns_text(columns) else _ELEMENT
        self._decode: Callable[[Buffer], Any] = msgspec.json.Decoder(_struct(columns, is_strict)).decode
        self.decode = self._decode_bounded if has_many else self._decode
        """Decodes a value for `field_of`. Raises ValueUnfit, or one of `refused`."""
        self._plain = PlainJson(columns, is_strict=is_strict)

    def plain(self, values: pa.Array, most_bytes: int) -> PlainValues | None:
        """See ValueDecoder. Leaves out a value that may have too many cells."""
        return self._plain.decode(values, min(most_bytes, self._sure_bytes))

    def _decode_bounded(self, value: Buffer) -> Any:
        if len(value) > self._sure_bytes:
            cells = int(self.cells_in_lists(pa.array([value], pa.binary()))[0])
            check_cells(cells)
        return self._decode(value)

    def cells_in_lists(self, values: pa.Array | pa.ChunkedArray) -> Any:
        """See ValueDecoder. Also counts matches in texts, so the result is an upper bound."""
        if self._element_cells <= _FEW_CELLS:
            return 0
        counts = pc.count_substring_regex(values, pattern=self._element)
        return pc.fill_null(counts, 0).to_numpy().astype(np.int64) * self._element_cells

    @staticmethod
    def field_of(number: int, column: TypedColumn) -> Callable[[Any], Any]:
        """See arrays.FieldOf."""
        return operator.attrgetter(f"f{number}")


def _struct(columns: Columns, is_strict: bool) -> type[msgspec.Struct]:
    """Return a struct type whose fields have the columns' types. Each may be missing or null."""
    return msgspec.defstruct(
        "Row",
        [(f"f{number}", _optional(column.type, is_strict), None) for number, column in enumerate(columns)],
        rename={f"f{number}": column.name for number, column in enumerate(columns)},
        forbid_unknown_fields=is_strict,
        gc=False,
    )


def _optional(kind: ColumnType, is_strict: bool) -> Any:
    return Optional[_type(kind, is_strict)]  # noqa: UP045 - made of a value


def _type(kind: ColumnType, is_strict: bool) -> Any:
    match kind:
        case Scalar():
            return _SCALARS[kind]
        case DecimalType():
            return decimal.Decimal
        case ListOf(element):
            return list[_optional(element, is_strict)]  # type: ignore[misc]
        case MapOf(value):
            return dict[str, _optional(value, is_strict)]  # type: ignore[misc]
        case StructOf(fields):
            return _struct(fields, is_strict)


def inferred(values: Iterable[Buffer]) -> Columns:
    """Infer the columns of these values, up to the most that a table can have.

    Integers become long, other numbers double, and a field that is null in all values becomes string. If two values
    have different types for a field, the first one counts.
    """
    sample = _Sample()
    for value in values:
        try:
            document = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        if isinstance(document, dict):
            sample.add(document)
    return _columns(sample.fields, TAKEN_NAMES)


_Shape: TypeAlias = "Scalar | _ListShape | _Fields | None"
"""A type as far as it is known; None if only nulls were seen."""


class _ListShape(NamedTuple):
    element: _Shape


@dataclass(slots=True)
class _Fields:
    """The fields of an object. `caseless`: their names without case."""

    shapes: dict[str, _Shape] = field(default_factory=dict)
    caseless: set[str] = field(default_factory=set)


class _Sample:
    """The shape of the values seen so far."""

    def __init__(self) -> None:
        self.fields = _Fields()
        self._left = MAX_COLUMNS

    def add(self, value: dict[str, Any]) -> None:
        self._add_fields(self.fields, value, 1)

    def _add_fields(self, fields: _Fields, value: dict[str, Any], depth: int) -> None:
        shapes = fields.shapes
        for name, inner in value.items():
            if name not in shapes:
                if not self._left or caseless(name) in fields.caseless or not is_name(name):
                    continue
                fields.caseless.add(caseless(name))
                self._left -= 1
                shapes[name] = None
            shapes[name] = self._with(shapes[name], inner, depth + 1)

    def _with(self, shape: _Shape, value: Any, depth: int) -> _Shape:
        """Return the shape extended by this value, if they are compatible."""
        if isinstance(value, dict | list) and depth > MAX_NESTING:
            return shape
        if isinstance(value, dict) and (shape is None or isinstance(shape, _Fields)):
            shape = _Fields() if shape is None else shape
            self._add_fields(shape, value, depth)
        elif isinstance(value, list) and (shape is None or isinstance(shape, _ListShape)):
            element = None if shape is None else shape.element
            for item in value:
                element = self._with(element, item, depth + 1)
            shape = _ListShape(element)
        elif shape is None:
            shape = _SHAPES.get(type(value))
        elif shape is Scalar.LONG and isinstance(value, float):
            shape = Scalar.DOUBLE
        return shape


_SHAPES = {bool: Scalar.BOOLEAN, int: Scalar.LONG, float: Scalar.DOUBLE, str: Scalar.STRING}


def _columns(fields: _Fields, taken: Iterable[str] = ()) -> Columns:
    """Return the columns, without those whose names in a table would be too long because many others are similar."""
    columns = tuple(TypedColumn(name, _settled(shape)) for name, shape in fields.shapes.items())
    named = zip(columns, column_names(columns, taken), strict=True)
    return tuple(column for column, name in named if len(name) <= MAX_NAME_CHARACTERS)


def _settled(shape: _Shape) -> ColumnType:
    if isinstance(shape, _ListShape):
        return ListOf(_settled(shape.element))
    if isinstance(shape, _Fields):
        return StructOf(_columns(shape)) if shape.shapes else MapOf(Scalar.STRING)
    return Scalar.STRING if shape is None else shape
