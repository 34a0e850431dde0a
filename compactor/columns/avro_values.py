"""Avro values with a registry's schema: the columns of a schema, and values decoded with the schema that wrote them.

Records become columns. Unions with null become their other type. Enums and uuids become strings. A schema is refused
completely if a part of it can't become a column (another union, a recursive type), so no part of a value is silently
lost.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from decimal import Context, Decimal
from typing import Any

import fastavro
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException

from compactor.columns.avro_elements import Elements
from compactor.columns.json_values import ValueUnfit
from compactor.columns.registered import (
    HEADER,
    Expansion,
    PreparedSchema,
    RegisteredSchema,
    RegisteredValues,
    SchemaRefused,
    schema_id_of,
)
from tailrace.buffers import Buffer
from tailrace.configs.columns import (
    MAX_DECIMAL_DIGITS,
    Columns,
    ColumnsConflict,
    ColumnType,
    DecimalType,
    InvalidColumns,
    ListOf,
    MapOf,
    Scalar,
    StructOf,
    TypedColumn,
    columns_text,
    element_cells,
    merged,
    parse_columns,
)

RECORD_CELLS, FIELD_CELLS = 8, 2
"""The memory of a decoded record, in cells: this many, plus this many for each field. Each field has at least a
byte."""
_PRIMITIVES = {
    "boolean": Scalar.BOOLEAN,
    "int": Scalar.INT,
    "long": Scalar.LONG,
    "float": Scalar.FLOAT,
    "double": Scalar.DOUBLE,
    "bytes": Scalar.BINARY,
    "string": Scalar.STRING,
    "enum": Scalar.STRING,
    "fixed": Scalar.BINARY,
}
_LOGICAL = {
    ("int", "date"): Scalar.DATE,
    ("long", "timestamp-millis"): Scalar.TIMESTAMP,
    ("long", "timestamp-micros"): Scalar.TIMESTAMP,
}
_EXACT = Context(prec=MAX_DECIMAL_DIGITS)


def _decimal(unscaled: bytes, kind: Any, reader_kind: Any = None) -> Decimal:
    """Convert a decimal of this type. fastavro's own reader first converts all of its digits, which takes a time that
    grows with the square of its bytes."""
    number, precision = int.from_bytes(unscaled, "big", signed=True), int(kind["precision"])
    if abs(number) >= 10**precision:
        raise ValueUnfit(f"a decimal of more than {precision} digits")
    return Decimal(number).scaleb(-int(kind.get("scale", 0)), _EXACT)


LOGICAL_READERS.update({"bytes-decimal": _decimal, "fixed-decimal": _decimal})


def avro_columns(schema: RegisteredSchema) -> Columns:
    """Return the columns of values with this schema. Raises SchemaRefused."""
    try:
        columns = parse_columns(columns_text(_Types(schema).columns()))  # checks the limits on columns
        _parsed(schema)
        return columns
    except (SchemaRefused, InvalidColumns, ColumnsConflict) as error:
        raise SchemaRefused(str(error)) from error
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        SchemaParseException,
    ) as error:
        raise SchemaRefused(f"not an Avro schema of a record: {type(error).__name__}: {error}") from error


class _Types:
    """Converts a schema, with the schemas that it refers to, to columns."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._root = json.loads(schema.text)
        self._named: dict[str, tuple[Any, str]] = {}
        self._expansion = Expansion()
        for _, text in schema.references:
            self._note(json.loads(text), "")
        self._note(self._root, "")

    def _note(self, kind: Any, space: str) -> None:
        """Collect all named types."""
        if isinstance(kind, list):
            for branch in kind:
                self._note(branch, space)
        elif isinstance(kind, dict):
            if kind["type"] in ("record", "enum", "fixed"):
                name = _full_name(kind["name"], kind.get("namespace", space))
                space = name.rpartition(".")[0]
                self._named[name] = (kind, space)
            for part in _parts(kind):
                self._note(part, space)

    def columns(self) -> Columns:
        root_type = self._type(self._root, "", ())
        if not isinstance(root_type, StructOf):
            raise SchemaRefused("the schema is of no record")
        return root_type.fields

    def _type(self, kind: Any, space: str, above: tuple[str, ...]) -> ColumnType:
        self._expansion.step()
        if isinstance(kind, str) and kind not in _PRIMITIVES:
            kind, space = self._named[_full_name(kind, space)]
        if isinstance(kind, list):
            return self._union(kind, space, above)
        given = {"type": kind} if isinstance(kind, str) else kind
        name = given["type"]
        if name == "record":
            return self._record(given, space, above)
        if name == "array":
            element = self._type(given["items"], space, above)
            return ListOf(element)
        if name == "map":
            return MapOf(self._type(given["values"], space, above))
        if name == "fixed" and int(given["size"]) < 1:
            raise SchemaRefused("a fixed of no bytes")  # an array of them could claim any length
        if given.get("logicalType") == "decimal" and name in ("bytes", "fixed"):
            return DecimalType(int(given["precision"]), int(given.get("scale", 0)))
        if isinstance(name, dict | list):
            return self._type(name, space, above)
        return _LOGICAL.get((name, str(given.get("logicalType")))) or _PRIMITIVES[name]

    def _record(self, given: dict[str, Any], space: str, above: tuple[str, ...]) -> ColumnType:
        name = _full_name(given["name"], given.get("namespace", space))
        if name in above:
            raise SchemaRefused(f"record {name} contains itself")
        space = name.rpartition(".")[0]
        fields = given["fields"]
        if not fields:
            raise SchemaRefused(f"record {name} has no fields")
        return StructOf(
            tuple(
                TypedColumn(field["name"], self._type(field["type"], space, (*above, name)))
                for field in fields
            )
        )

    def _union(self, kinds: list[Any], space: str, above: tuple[str, ...]) -> ColumnType:
        others = [kind for kind in kinds if kind != "null"]
        if not others:
            raise SchemaRefused("a field that is always null has no type")
        column_type = self._type(others[0], space, above)
        for kind in others[1:]:
            (column,) = merged(
                (TypedColumn("union", column_type),), (TypedColumn("union", self._type(kind, space, above)),)
            )
            column_type = column.type
        return column_type


def _parts(kind: dict[str, Any]) -> Iterator[Any]:
    if kind["type"] == "record":
        yield from (field["type"] for field in kind["fields"])
    elif isinstance(kind["type"], dict | list):
        yield kind["type"]
    yield from (kind[part] for part in ("items", "values") if part in kind)


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


class AvroValues(RegisteredValues):
    """Decodes values by the given schemas. `columns`: the columns of all schemas together."""

    def __init__(self, columns: Columns, schemas: Iterable[RegisteredSchema]) -> None:
        super().__init__(schemas, lambda schema: _prepared(schema, columns))

    def decode(self, value: Buffer) -> Any:
        """Decode a value for `field_of`. Raises ValueUnfit."""
        schema_id = schema_id_of(value)
        schema = self.prepared((schema_id,))
        try:
            return schema.decoded(bytes(memoryview(value)[HEADER.size :]))
        except ValueUnfit:
            raise
        except Exception as error:  # noqa: BLE001 - corrupt bytes can raise anything
            raise ValueUnfit(f"not a value of schema {schema_id}: {type(error).__name__}: {error}") from None


def _prepared(schema: RegisteredSchema, columns: Columns) -> PreparedSchema:
    parsed, named = _parsed(schema)
    elements = Elements(parsed, named)
    cells = 0
    if elements.least_bytes:
        widest = max(element_cells(columns), element_cells(_Types(schema).columns()))
        cells = RECORD_CELLS + FIELD_CELLS * widest

    by_name = {name: _numbered(kind) for name, kind in named.items()}
    numbered = _numbered(parsed) | {"__fastavro_parsed": True, "__named_schemas": by_name}

    def decode(body: bytes) -> Any:
        given = io.BytesIO(body)
        row = fastavro.schemaless_reader(given, numbered, None)
        if given.tell() != len(body):
            raise ValueUnfit(f"bytes follow the value of schema {schema.schema_id}")
        return row

    most = max(FIELD_CELLS, cells / (elements.least_bytes or 1))
    return PreparedSchema(decode, most, cells, elements.count)


def _parsed(schema: RegisteredSchema) -> tuple[Any, dict[str, Any]]:
    """Parse the schema. Return it and its named types."""
    named: dict[str, Any] = {}
    for _, text in schema.references:
        fastavro.parse_schema(_plain(json.loads(text)), named_schemas=named)
    return fastavro.parse_schema(_plain(json.loads(schema.text)), named_schemas=named), named


def _numbered(kind: Any) -> Any:
    """Return a parsed schema with dictionaries in place of its lists of symbols and branches. fastavro takes the number
    of a symbol or a branch from a value as the index, and a negative index of a list would count from its end."""
    if isinstance(kind, list):
        return {"type": "union", **dict(enumerate(map(_numbered, kind)))}
    if not isinstance(kind, dict):
        return kind
    parts = {name: _numbered(kind[name]) for name in ("type", "items", "values") if name in kind}
    if "symbols" in kind:
        parts["symbols"] = dict(enumerate(kind["symbols"]))
    if "fields" in kind:
        parts["fields"] = list(map(_numbered, kind["fields"]))
    return kind | parts


def _plain(kind: Any) -> Any:
    """Remove logical types that have no column type. Their values are decoded as their underlying types."""
    if isinstance(kind, list):
        return [_plain(branch) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    logical = kind.get("logicalType")
    is_known = logical == "decimal" or (str(kind.get("type")), logical) in _LOGICAL
    return {
        name: _plain(part) if name in ("type", "items", "values", "fields") else part
        for name, part in kind.items()
        if name != "logicalType" or is_known
    }
