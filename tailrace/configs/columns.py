"""The typed columns of a topic's values, as text: `id long, tags list<string>, place struct<lat double, lon double>`.

Types have Iceberg's names. Every field is optional. A name that is not an identifier is written in backquotes. `merged`
evolves columns by Iceberg's rules: columns can be added, int can become long, float can become double, and a decimal's
precision can grow. Nothing else can change.

Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

MAX_COLUMNS = 1_000
"""The most columns of a table, nested ones included."""
MAX_NESTING = 10
MAX_NAME_CHARACTERS = 255
MAX_DECIMAL_DIGITS = 38

T = TypeVar("T")


class InvalidColumns(ValueError):
    """The text is not a list of columns; the message says where and why."""


class ColumnsConflict(ValueError):
    """A column would change to a type that Iceberg does not allow; the message names it and both types."""


class Scalar(enum.StrEnum):
    """Types without parts. `TIMESTAMP` is a point in time in microseconds."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DATE = "date"
    TIMESTAMP = "timestamp"
    STRING = "string"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class DecimalType:
    """A number of at most `precision` digits, `scale` of them after the decimal point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    element: ColumnType

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map with string keys."""

    value: ColumnType

    def __str__(self) -> str:
        return f"map<string, {self.value}>"


@dataclass(frozen=True, slots=True)
class StructOf:
    """Fields by name, in order."""

    fields: Columns

    def __str__(self) -> str:
        return f"struct<{columns_text(self.fields)}>"


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A field of the values. `name` is its own name, without its parents'."""

    name: str
    type: ColumnType

    def __str__(self) -> str:
        is_plain = _IDENTIFIER.fullmatch(self.name) is not None
        name = self.name if is_plain else "`" + self.name.replace("`", "``") + "`"
        return f"{name} {self.type}"


ColumnType: TypeAlias = Scalar | DecimalType | ListOf | MapOf | StructOf
Columns: TypeAlias = tuple[TypedColumn, ...]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f"\\]')
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_]*)|([0-9]{1,9})|([<>(),]))")
_WIDER = {(Scalar.INT, Scalar.LONG): Scalar.LONG, (Scalar.FLOAT, Scalar.DOUBLE): Scalar.DOUBLE}


def is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARACTERS and _NOT_IN_NAMES.search(text) is None


def caseless(name: str) -> str:
    """Return the name without case, by the rules of Java's `equalsIgnoreCase`, where a Turkish i is an i."""
    return name.upper().lower().replace("i\u0307", "i")


def columns_text(columns: Columns) -> str:
    """Format columns as text that `parse_columns` reads."""
    return ", ".join(map(str, columns))


def parse_columns(text: str) -> Columns:
    """Parse columns from text. Raises InvalidColumns."""
    reader = _Reader(text)
    columns = reader.columns(1)
    if reader.position < len(text.rstrip()):
        raise reader.wrong("a comma or the end")
    return columns


class _Reader:
    """Reads a text from its start."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._count = 0
        self.position = 0

    def wrong(self, expected: str) -> InvalidColumns:
        seen = self._text[self.position : self.position + 20].strip()
        return InvalidColumns(f"at character {self.position}, {seen!r}: {expected} is expected")

    def columns(self, depth: int) -> Columns:
        found = self._separated(lambda: TypedColumn(self._name(), self._type(depth)))
        names = {caseless(column.name) for column in found}
        if len(names) < len(found):
            raise InvalidColumns("a column is named twice; names may not differ in case alone")
        return tuple(found)

    def _separated(self, read: Callable[[], T]) -> list[T]:
        found = [read()]
        while self._take(","):
            found.append(read())
        return found

    def _name(self) -> str:
        token = self._token()
        if token is None or not (token[1] or token[2]):
            raise self.wrong("a column's name")
        name = token[1][1:-1].replace("``", "`") if token[1] else token[2]
        self.position = token.end()
        self._count += 1
        if not is_name(name) or self._count > MAX_COLUMNS:
            raise InvalidColumns(
                f"at most {MAX_COLUMNS} columns are allowed, with names of at most {MAX_NAME_CHARACTERS} characters,"
                " no control character, quotation mark or backslash among them"
            )
        return name

    def _type(self, depth: int) -> ColumnType:
        token = self._token()
        word = token[2] if token is not None else None
        if token is None or not word:
            raise self.wrong("a type")
        if depth > MAX_NESTING:
            raise InvalidColumns(f"types are nested more than {MAX_NESTING} deep")
        if word in set(Scalar):
            self.position = token.end()
            return Scalar(word)
        if word not in ("decimal", "list", "map", "struct"):
            names = ", ".join(Scalar)
            raise self.wrong(f"a type ({names}, decimal(p, s), list<t>, map<string, t>, struct<name t, ...>)")
        self.position = token.end()
        if word == "decimal":
            return self._decimal()
        self._need("<")
        found = self._nested(word, depth + 1)
        self._need(">")
        return found

    def _nested(self, word: str, depth: int) -> ColumnType:
        if word == "struct":
            return StructOf(self.columns(depth))
        if word == "list":
            return ListOf(self._type(depth))
        if self._type(depth) is not Scalar.STRING:
            raise InvalidColumns("a map's keys are strings: map<string, t>")
        self._need(",")
        return MapOf(self._type(depth))

    def _decimal(self) -> DecimalType:
        self._need("(")
        precision = self._number()
        scale = self._number() if self._take(",") else 0
        self._need(")")
        if not 1 <= precision <= MAX_DECIMAL_DIGITS or scale > precision:
            raise InvalidColumns(
                f"decimal({precision}, {scale}): at most {MAX_DECIMAL_DIGITS} digits are allowed,"
                " and the scale must not exceed the precision"
            )
        return DecimalType(precision, scale)

    def _number(self) -> int:
        token = self._token()
        if token is None or not token[3]:
            raise self.wrong("a number")
        self.position = token.end()
        return int(token[3])

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            raise self.wrong(repr(mark))

    def _take(self, mark: str) -> bool:
        token = self._token()
        if token is None or token[4] != mark:
            return False
        self.position = token.end()
        return True

    def _token(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self.position)


def row_cells(columns: Columns) -> int:
    """Return the number of cells that every row takes, set or not: its columns and those of structs. Pure."""
    return sum(1 + row_cells(_fields_of(column.type)) for column in columns)


def element_cells(columns: Columns) -> int:
    """Return the most cells that one object in a list or map takes; 0 if no column has such objects. Pure."""
    return max((_element_cells(column.type) for column in columns), default=0)


def _element_cells(kind: ColumnType) -> int:
    match kind:
        case ListOf(element) | MapOf(element):
            return max(row_cells(_fields_of(element)), _element_cells(element))
        case StructOf(fields):
            return element_cells(fields)
    return 0


def _fields_of(kind: ColumnType) -> Columns:
    return kind.fields if isinstance(kind, StructOf) else ()


def merged(old: Columns, new: Columns) -> Columns:
    """Return columns that can hold the values of both. Raises ColumnsConflict, also for too many columns together."""
    found = _merged_columns(old, new, "")
    try:
        return parse_columns(columns_text(found)) if found else ()
    except InvalidColumns as error:
        raise ColumnsConflict(str(error)) from error


def _merged_columns(old: Columns, new: Columns, where: str) -> Columns:
    found = {column.name: column.type for column in old}
    for column in new:
        known = found.get(column.name)
        path = f"{where}{column.name}"
        found[column.name] = column.type if known is None else _merged_type(known, column.type, path)
    return tuple(TypedColumn(name, kind) for name, kind in found.items())


def _merged_type(old: ColumnType, new: ColumnType, path: str) -> ColumnType:
    if old == new:
        return old
    match old, new:
        case Scalar(), Scalar() if (old, new) in _WIDER or (new, old) in _WIDER:
            return _WIDER.get((old, new)) or _WIDER[new, old]
        case DecimalType(), DecimalType() if old.scale == new.scale:
            return DecimalType(max(old.precision, new.precision), old.scale)
        case ListOf(), ListOf():
            return ListOf(_merged_type(old.element, new.element, f"{path}.element"))
        case MapOf(), MapOf():
            return MapOf(_merged_type(old.value, new.value, f"{path}.value"))
        case StructOf(), StructOf():
            return StructOf(_merged_columns(old.fields, new.fields, f"{path}."))
    raise ColumnsConflict(f"column {path} is {old}; it can't become {new}")
