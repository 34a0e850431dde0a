"""Converts rows to columns and columns to rows, for each of the two databases.

Drivers take and return plain values; `RowCodec` holds the conversion of each field. It works by column: PostgreSQL
takes an array per column, SQLite the same transposed.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal
from uuid import UUID

import msgspec

from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run
from sequencer.api.transactions import TransactionState
from sequencer.store.batch_table import EMPTY_TABLE, decode_markers, decode_table
from sequencer.store.quick_ids import quick_id_of
from sequencer.store.row_store import ObjectRowMissing
from sequencer.store.rows import KEYS, Int32, Row

Dialect = Literal["sqlite", "postgresql"]
INTEGERS = "text::bigint[]"
"""The `RowColumn.array_type` of integers: sent as text and cast."""
UUIDS = "text::uuid[]"
"""The same for UUIDs."""
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class RowField:
    """A field of a row, from its annotation. `origin`: the type without its parameters (`list` for list[str])."""

    name: str
    hint: Any
    is_optional: bool

    @property
    def origin(self) -> Any:
        origin = typing.get_origin(self.hint)
        return origin if origin in (list, dict) else self.hint


def fields_of(kind: type[Row]) -> list[RowField]:
    """Return the fields of a kind of row in order; they are its columns."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [_field(name, hints[name]) for name in kind.__struct_fields__]


def _field(name: str, hint: Any) -> RowField:
    choices = typing.get_args(hint)
    if type(None) not in choices:
        return RowField(name, hint, is_optional=False)
    (hint,) = (choice for choice in choices if choice is not type(None))
    return RowField(name, hint, is_optional=True)


@dataclass(frozen=True, slots=True)
class RowColumn:
    """The column of a field. `encode` and `decode` are None if the driver takes the value as it is."""

    name: str
    array_type: str  # PostgreSQL's type of an array of these values
    encode: Convert | None
    decode: Convert | None


class RowCodec:
    """The columns of one kind of row in one database."""

    def __init__(self, kind: type[Row], dialect: Dialect) -> None:
        self.kind = kind
        self.columns = tuple(_column(field, dialect) for field in fields_of(kind))
        by_name = {column.name: column for column in self.columns}
        self.key = tuple(by_name[name] for name in KEYS[kind])
        self._encoders = tuple((attrgetter(column.name), column.encode) for column in self.columns)
        self._is_plain = all(column.encode in (None, int) for column in self.columns)
        self._decoders = tuple(
            (index, column.decode) for index, column in enumerate(self.columns) if column.decode is not None
        )

    def encode_rows(self, rows: Sequence[Row]) -> list[list[Any]]:
        """Return one list of values per column."""
        return [
            list(map(get, rows)) if encode is None else list(map(encode, map(get, rows)))
            for get, encode in self._encoders
        ]

    def records(self, rows: Sequence[Row]) -> Iterable[tuple[Any, ...]]:
        """Return the values of each row, for a driver that takes rows one by one and accepts an integer enum as an
        integer."""
        if self._is_plain:
            return map(msgspec.structs.astuple, rows)
        return zip(*self.encode_rows(rows), strict=True)

    def encode_keys(self, keys: Sequence[tuple[object, ...]]) -> list[list[Any]]:
        """Return one list of values per key column."""
        return [
            [key[index] if column.encode is None else column.encode(key[index]) for key in keys]
            for index, column in enumerate(self.key)
        ]

    def decode_row(self, values: Iterable[Any]) -> Any:
        """Return the row whose columns, in order, have these values."""
        fields = list(values)
        for index, decode in self._decoders:
            fields[index] = decode(fields[index])
        return self.kind(*fields)


def uuid_to_database(dialect: Dialect) -> Convert:
    """Return the conversion of a UUID for a query."""
    return _bytes_of_uuid if dialect == "sqlite" else _same


def text_to_database(dialect: Dialect) -> Convert:
    """Return the conversion of text for a query."""
    return _same if dialect == "sqlite" else _escape


RUN_COLUMNS = (
    "r.base_offset, r.end_offset, r.object_id, r.kind, o.key, o.size, "
    "o.index_start, r.start, r.length, r.max_timestamp, r.running_max_timestamp, r.commit_number, "
    "r.created_ms, r.batches, r.markers, o.index_crc"
)
"""The columns that `decode_run` takes, of runs `r` joined with objects `o`."""
RUN_COLUMNS_WITHOUT_BATCHES = RUN_COLUMNS.replace("r.batches, r.markers", "null, null")
"""The same without the columns that may be long."""
_KINDS = {kind.value: kind for kind in ObjectKind}


def decode_run(
    place: tuple[UUID, int], values: Sequence[Any], dialect: Dialect, *, may_lack_object: bool = False
) -> Run:
    """Decode a run of a partition from RUN_COLUMNS, which others may follow. Raises ObjectRowMissing, except for a run
    of markers, which has no object, and if `may_lack_object`."""
    topic_id, partition = place
    (
        base_offset, end_offset, object_id, number, key, size, index_start, start, length, max_timestamp, running_max,
        commit_number, created_ms, batches, markers, index_crc, *_,
    ) = values  # fmt: skip
    kind = _KINDS[number]
    if key is None:
        if kind is not ObjectKind.MARKERS and not may_lack_object:
            raise ObjectRowMissing(
                f"the run at {base_offset} of {topic_id}-{partition} names object {object_id}, which has no row"
            )
        key, size, index_start = "", 0, 0
    return Run(
        topic_id,
        partition,
        base_offset,
        end_offset,
        quick_id_of(object_id) if dialect == "sqlite" else object_id,
        kind,
        key if dialect == "sqlite" else _unescape(key),
        size,
        index_start,
        start,
        length,
        max_timestamp,
        running_max,
        commit_number,
        created_ms,
        decode_table(batches or EMPTY_TABLE),
        decode_markers(markers) if markers else [],
        index_crc or 0,
    )


# -- below: per type ---------------------------------------------------------------------------------------


def _column(field: RowField, dialect: Dialect) -> RowColumn:
    array_type, encode, decode = _conversions(field, dialect)
    if field.hint is UUID or field.origin is list:
        decode = _sharing(decode or _same)
    if array_type in (INTEGERS, UUIDS) and field.is_optional:
        array_type = array_type.removeprefix("text::")  # the text of an array spells None in another way
    if field.is_optional:
        encode, decode = _or_none(encode), _or_none(decode)
    # PostgreSQL widens the elements to the column's type.
    return RowColumn(field.name, array_type, encode, decode)


def _conversions(field: RowField, dialect: Dialect) -> tuple[str, Convert | None, Convert | None]:
    hint = field.hint
    sqlite = dialect == "sqlite"
    if hint is UUID:
        return UUIDS, *((_bytes_of_uuid, quick_id_of) if sqlite else (None, None))
    if hint is bool:
        return "boolean[]", *((int, bool) if sqlite else (None, None))
    if hint is ObjectKind:
        return INTEGERS, int, ObjectKind
    if hint is TransactionState:
        return "text[]", str, TransactionState
    if hint in (int, Int32):
        return INTEGERS, None, None
    if hint is bytes:
        return "bytea[]", None, None
    if hint is str:
        return "text[]", *((None, None) if sqlite else (_escape, _unescape))
    if field.origin is dict:
        return "text[]", _json_text, msgspec.json.Decoder(hint).decode
    if field.origin is list:
        return "bytea[]", msgspec.msgpack.encode, msgspec.msgpack.Decoder(hint).decode
    raise TypeError(f"no column type for {hint}")


def _or_none(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _sharing(decode: Convert) -> Convert:
    """Return a conversion that gives equal values in consecutive rows, such as the topic's id and the epochs of its
    partitions, one object: a server has a million such rows in memory."""
    last: tuple[Any, Any] = (None, None)

    def convert(value: Any) -> Any:
        nonlocal last
        known, decoded = last
        if value != known:
            decoded = decode(value)
            last = (value, decoded)
        return decoded

    return convert


def _bytes_of_uuid(value: UUID) -> bytes:
    return value.bytes


def _json_text(value: dict[str, str]) -> str:
    # JSON escapes NUL, so PostgreSQL accepts this as text.
    return msgspec.json.encode(value).decode()


def _escape(text: str) -> str:
    """Escape NUL, which PostgreSQL's text can't contain but which a client may send in any name."""
    if "\\" in text or "\x00" in text:
        return text.replace("\\", "\\\\").replace("\x00", "\\0")
    return text


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\x00") for part in text.split("\\\\"))
