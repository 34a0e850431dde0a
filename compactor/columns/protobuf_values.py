"""Protobuf values with a registry's schema: decodes messages by descriptors that protoc makes from the registry's text.

After the schema's id, a value has the path to its message's type in the file (zigzag varints: a count, then an index
per level; a single zero means the first message). Messages become columns. A field without presence that was not sent
has its default, as in Protobuf. A schema is refused completely if a part of its message can't become a column.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from compactor.columns.json_values import ValueUnfit
from compactor.columns.protobuf_elements import (
    LEAST_BYTES,
    count_elements,
    has_elements,
    is_one_of_several,
    shape_of,
)
from compactor.columns.registered import (
    HEADER,
    Expansion,
    PreparedSchema,
    RegisteredSchema,
    RegisteredValues,
    SchemaKey,
    SchemaRefused,
    schema_id_of,
)
from tailrace.buffers import Buffer
from tailrace.configs.columns import (
    Columns,
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
    parse_columns,
    row_cells,
)

COMPILE_SECONDS = 30
MAX_PATH = 8
"""The most levels of a nested message's type."""
MAX_INDEX = 10_000
MESSAGE_CELLS = 16
"""The memory of a decoded message in cells, in addition to those of its fields."""
_MAIN = "tailrace_value.proto"
_FILE_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]{0,200}\.proto")
_LOGGED = re.compile(r"WARNING: All log|[IWEF]\d{4} ")
"""Lines that protoc's libraries log among its own errors."""
_WRAPPER = re.compile(r"google\.protobuf\.[A-Za-z0-9]+Value")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_F = FieldDescriptor
_SCALARS: Mapping[int, ColumnType] = {
    _F.TYPE_DOUBLE: Scalar.DOUBLE,
    _F.TYPE_FLOAT: Scalar.FLOAT,
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), Scalar.LONG),
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), Scalar.INT),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), Scalar.LONG),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), DecimalType(20, 0)),
    _F.TYPE_BOOL: Scalar.BOOLEAN,
    _F.TYPE_STRING: Scalar.STRING,
    _F.TYPE_ENUM: Scalar.STRING,
    _F.TYPE_BYTES: Scalar.BINARY,
}


def protobuf_key(value: Buffer) -> tuple[SchemaKey, int]:
    """Return the schema's id with the path to the message, and where the message begins. Raises ValueUnfit."""
    schema_id = schema_id_of(value)
    count, at = _zigzag(value, HEADER.size)
    if count == 0:
        return (schema_id, 0), at
    if not 0 < count <= MAX_PATH:
        raise ValueUnfit(f"a path of {count} message indexes; at most {MAX_PATH} are read")
    path: list[int] = []
    for _ in range(count):
        index, at = _zigzag(value, at)
        path.append(index)
    if not 0 <= min(path) <= max(path) <= MAX_INDEX:
        raise ValueUnfit(f"message indexes {path}")
    return (schema_id, *path), at


def _zigzag(value: Buffer, at: int) -> tuple[int, int]:
    """Read a zigzag varint of at most five bytes. Return it and the offset after it."""
    raw = 0
    for shift in range(0, 35, 7):
        if at >= len(value):
            break
        byte = value[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
    raise ValueUnfit("the message's index is cut off")


def compiled(schema: RegisteredSchema) -> bytes:
    """Compile the schema's file and its imports to descriptors with protoc, in a separate process, which may crash.

    Raises SchemaRefused.
    """
    with tempfile.TemporaryDirectory(prefix="tailrace-proto-") as folder:
        texts = {**dict(schema.references), _MAIN: schema.text}
        for name, text in texts.items():
            if _FILE_NAME.fullmatch(name) is None:
                raise SchemaRefused(f"a reference is named {name[:100]!r}, which is no path of a .proto file")
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        output = Path(folder, "descriptors")
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{files('grpc_tools') / '_proto'}",
            "--include_imports", f"--descriptor_set_out={output}", _MAIN,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_SECONDS, cwd=folder
            )
        except subprocess.TimeoutExpired:
            raise SchemaRefused(f"protoc needed more than {COMPILE_SECONDS} s") from None
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if not _LOGGED.match(line)]
            raise SchemaRefused(f"protoc: {' '.join(lines).replace(f'{folder}/', '')[:200]}")
        return output.read_bytes()


def protobuf_columns(schema: RegisteredSchema) -> Columns:
    """Return the columns of the message that a compiled schema's path names. Raises SchemaRefused."""
    try:
        return parse_columns(columns_text(_struct(_message(schema)).fields))  # checks the limits on columns
    except InvalidColumns as error:
        raise SchemaRefused(str(error)) from error
    except RecursionError:
        raise SchemaRefused("its messages are nested too deep") from None


def _message(schema: RegisteredSchema) -> Descriptor:
    """Return the message's type, in a separate descriptor pool."""
    held = FileDescriptorSet.FromString(schema.compiled)
    pool = descriptor_pool.DescriptorPool()
    for file in held.file:
        _leave_extensions_out(file)
        pool.Add(file)
    level: Any = pool.FindFileByName(held.file[-1].name)
    protos: Any = held.file[-1].message_type
    for index in schema.path:
        if index >= len(protos):
            raise SchemaRefused(f"its file has no message at {list(schema.path)}")
        by_name = (
            level.message_types_by_name if level.name == held.file[-1].name else level.nested_types_by_name
        )
        level = by_name[protos[index].name]
        protos = protos[index].nested_type
    descriptor: Descriptor = level
    return descriptor


def _leave_extensions_out(scope: FileDescriptorProto | DescriptorProto) -> None:
    """Remove extensions: they have no columns, so their bytes need not be decoded."""
    scope.ClearField("extension")
    for inner in scope.message_type if isinstance(scope, FileDescriptorProto) else scope.nested_type:
        _leave_extensions_out(inner)


def _struct(message: Descriptor) -> StructOf:
    """Return the columns of a message. Raises SchemaRefused."""
    return _Types().struct(message, ())


class _Types:
    """Converts a message and its nested messages to columns."""

    def __init__(self) -> None:
        self._expansion = Expansion()

    def struct(self, message: Descriptor, above: tuple[str, ...]) -> StructOf:
        name = message.full_name
        if name in above:
            raise SchemaRefused(f"message {name} contains itself")
        if not message.fields:
            raise SchemaRefused(f"message {name} has no fields")
        return StructOf(
            tuple(
                TypedColumn(field.name, self._field_type(field, (*above, name))) for field in message.fields
            )
        )

    def _field_type(self, field: FieldDescriptor, above: tuple[str, ...]) -> ColumnType:
        self._expansion.step()
        if _is_map(field):
            return MapOf(self._type(field.message_type.fields_by_name["value"], above))
        column_type = self._type(field, above)
        return ListOf(column_type) if field.is_repeated else column_type

    def _type(self, field: FieldDescriptor, above: tuple[str, ...]) -> ColumnType:
        message = field.message_type
        if message is None:
            return _SCALARS[field.type]
        if _is_timestamp(message):
            return Scalar.TIMESTAMP
        if _is_wrapper(message):
            return _SCALARS[message.fields[0].type]
        return self.struct(message, above)


def _is_timestamp(message: Descriptor) -> bool:
    """Whether the message is Protobuf's own. A schema may define another message of this name."""
    parts = [(part.name, part.type, part.is_repeated) for part in message.fields]
    own = [("seconds", _F.TYPE_INT64, False), ("nanos", _F.TYPE_INT32, False)]
    return message.full_name == "google.protobuf.Timestamp" and parts == own


def _is_wrapper(message: Descriptor) -> bool:
    """Whether the message has only a scalar, as Protobuf's own wrappers do."""
    if _WRAPPER.fullmatch(message.full_name) is None or [part.name for part in message.fields] != ["value"]:
        return False
    (value,) = message.fields
    return not value.is_repeated and value.message_type is None and value.enum_type is None


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


class ProtobufValues(RegisteredValues):
    """Decodes values to messages by the given compiled schemas. `columns`: the columns of all schemas together."""

    def __init__(self, columns: Columns, schemas: Iterable[RegisteredSchema]) -> None:
        super().__init__(schemas, lambda schema: _prepared(schema, columns))

    def decode(self, value: Buffer) -> Any:
        """Decode a value for `field_of`. Raises ValueUnfit."""
        key, start = protobuf_key(value)
        schema = self.prepared(key)
        try:
            return schema.decoded(bytes(memoryview(value)[start:]))
        except (DecodeError, ValueError) as error:
            raise ValueUnfit(f"not a value of schema {key[0]}: {error}") from None

    @staticmethod
    def field_of(number: int, column: TypedColumn) -> Callable[[Any], Any]:
        """See arrays.FieldOf. Messages of several types may have the column, so there is a reader per type."""
        readers: dict[Any, Callable[[Any], Any]] = {}

        def read(message: Any) -> Any:
            kind = type(message)
            if kind not in readers:
                readers[kind] = _reader(kind.DESCRIPTOR, column.name)
            return readers[kind](message)

        return read


def _prepared(schema: RegisteredSchema, columns: Columns) -> PreparedSchema:
    """Prepare a schema for decoding.

    An element needs memory for its own fields during decoding, and for the table's columns afterwards.
    """
    message = _message(schema)
    shape = shape_of(message)
    widest = max(element_cells(columns), element_cells(_struct(message).fields), _choice_cells(message))
    cells = MESSAGE_CELLS + widest if has_elements(shape) else 0
    decode = message_factory.GetMessageClass(message).FromString
    return PreparedSchema(decode, cells / LEAST_BYTES, cells, partial(count_elements, shape))


def _choice_cells(message: Descriptor) -> int:
    """Return the most cells of a message in a oneof with several fields; 0 if there is none."""
    return max(
        (
            max(_choice_cells(kind), row_cells(_struct(kind).fields) if is_one_of_several(field) else 0)
            for field in message.fields
            if (kind := field.message_type) is not None
        ),
        default=0,
    )


def _reader(kind: Descriptor, name: str) -> Callable[[Any], Any]:
    """Return a function that reads the field of this name from a message. It returns None if the message has none."""
    field = kind.fields_by_name.get(name)
    if field is None:
        return lambda message: None
    get = attrgetter(name)
    if _is_map(field):
        value_of = _plain(field.message_type.fields_by_name["value"]) or _same
        return lambda message: {str(key): value_of(value) for key, value in get(message).items()}
    plain = _plain(field)
    if field.is_repeated:
        return get if plain is None else lambda message: [*map(plain, get(message))]
    if field.has_presence:
        value_of = plain or _same
        return lambda message: value_of(get(message)) if message.HasField(name) else None
    return get if plain is None else lambda message: plain(get(message))


def _same(value: Any) -> Any:
    return value


def _plain(field: FieldDescriptor) -> Callable[[Any], Any] | None:
    """Return a function that converts a value of the field to a column's value; None if no conversion is needed, or the
    value is a message."""
    message = field.message_type
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value) or str(value)
    if message is None:
        return None
    if _is_timestamp(message):
        return lambda value: _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    return attrgetter("value") if _is_wrapper(message) else None
