"""Protobuf values of a registry's schemas: which columns a message has, and hostile schemas and bytes."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from compactor.columns import protobuf_values
from compactor.columns.derive import DECODED_BYTES, parts
from compactor.columns.json_values import ValueUnfit
from compactor.columns.protobuf_elements import count_elements, shape_of
from compactor.columns.protobuf_values import (
    MESSAGE_CELLS,
    ProtobufValues,
    compiled,
    protobuf_columns,
    protobuf_key,
)
from compactor.columns.registered import HEADER, RegisteredSchema, SchemaRefused
from compactor.columns.values import fit
from tailrace.configs.columns import columns_text, row_cells

PLACE = 'syntax = "proto3"; package geo; message Place { double lat = 1; }'
FLIGHT = """
syntax = "proto3";
import "geo/place.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Kind { NONE = 0; FAST = 1; }
message Other { int32 a = 1; }
message Flight {
  message Inner { string s = 1; }
  int64 id = 1;
  optional string name = 2;
  uint64 big = 3;
  Kind kind = 4;
  repeated geo.Place places = 5;
  map<int32, Inner> by = 6;
  google.protobuf.Timestamp at = 7;
  google.protobuf.Int32Value maybe = 8;
  bytes raw = 9;
  oneof one { bool yes = 10; float no = 11; }
}
"""


@pytest.fixture(scope="module")
def flight() -> RegisteredSchema:
    """Compiled, with the path to Flight."""
    schema = RegisteredSchema(7, "protobuf", FLIGHT, [("geo/place.proto", PLACE)], path=(1,))
    return msgspec.structs.replace(schema, compiled=compiled(schema))


def message(schema: RegisteredSchema) -> Any:
    return message_factory.GetMessageClass(protobuf_values._message(schema))()


def stored(found: Any, path: bytes = b"\x02\x02") -> bytes:
    return HEADER.pack(0, 7) + path + bytes(found.SerializeToString())


def test_messages_have_typed_columns(flight: RegisteredSchema) -> None:
    columns = protobuf_columns(flight)
    assert columns_text(columns) == (
        "id long, name string, big decimal(20, 0), kind string, places list<struct<lat double>>,"
        " by map<string, struct<s string>>, at timestamp, maybe int, raw binary, yes boolean, no float"
    )
    full = message(flight)
    full.id, full.name, full.big, full.kind, full.raw, full.no = 1, "", 2**64 - 1, 1, b"\xff", 0.0
    full.places.add().lat = 1.5
    full.by[7].s = "x"
    full.at.seconds, full.maybe.value = 1_600_000_000, 0
    found = fit(
        columns,
        ProtobufValues(columns, [flight]),
        pa.array([stored(full), stored(message(flight)), None], pa.binary()),
    )
    assert found.reasons == [None, None, None]
    rows = list(zip(*(array.to_pylist() for array in found.arrays), strict=True))
    at = datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)
    assert rows[0] == (
        1, "", Decimal(2**64 - 1), "FAST", [{"lat": 1.5}], [("7", {"s": "x"})], at, 0, b"\xff", None, 0.0,
    )  # fmt: skip
    assert rows[1] == (0, None, Decimal(0), "NONE", [], [], None, None, b"", None, None)
    assert rows[2] == (None,) * 11


def test_the_path_names_the_message(flight: RegisteredSchema) -> None:
    paths = {(0,): "a int", (1, 0): "s string"}
    for path, text in paths.items():
        assert columns_text(protobuf_columns(msgspec.structs.replace(flight, path=path))) == text
    with pytest.raises(SchemaRefused, match="no message at"):
        protobuf_columns(msgspec.structs.replace(flight, path=(5,)))
    head = HEADER.pack(0, 7)
    assert protobuf_key(head + b"\x00") == ((7, 0), 6)
    assert protobuf_key(head + b"\x04\x02\x00rest") == ((7, 1, 0), 8)
    for wrong in (
        b"",
        b"\x01",
        b"\xff" * 9,
        b"\x02",
        b"\x02\x01",
        b"\x12" + b"\x00" * 9,
        b"\x02\xff\xff\x7f",
    ):
        with pytest.raises(ValueUnfit):
            protobuf_key(head + wrong)


@pytest.mark.parametrize(
    ("text", "references", "reason"),
    [
        ('syntax = "proto3"; message A { A a = 1; }', [], "message A contains itself"),
        ('syntax = "proto3"; message A {}', [], "has no fields"),
        ("nonsense", [], "protoc: "),
        ('syntax = "proto3"; import "gone.proto"; message A { int32 a = 1; }', [], "gone.proto"),
        ('syntax = "proto3"; message A { int32 a = 1; }', [("../up.proto", "")], "no path of a .proto file"),
        ('syntax = "proto3"; message A { int32 a = 1; }', [("/etc/up.proto", "")], "no path of a .proto file"),
        (
            'syntax = "proto3"; message A {' + "".join(f"int32 f{n} = {n};" for n in range(1, 1_100)) + "}",
            [], "at most 1000 columns",
        ),
        (
            'syntax = "proto3";' + "".join(f"message L{n} {{ L{n + 1} a = 1; }}" for n in range(1_000))
            + "message L1000 { int32 a = 1; }",
            [], "nested too deep",
        ),
    ],
)  # fmt: skip
def test_a_schema_without_columns_is_refused_whole(
    text: str, references: list[tuple[str, str]], reason: str
) -> None:
    schema = RegisteredSchema(1, "protobuf", text, references, path=(0,))
    with pytest.raises(SchemaRefused, match=reason):
        protobuf_columns(msgspec.structs.replace(schema, compiled=compiled(schema)))


def test_corrupt_values_are_unfit_and_never_more(flight: RegisteredSchema) -> None:
    columns, chance = protobuf_columns(flight), random.Random(1)
    full = message(flight)
    full.id, full.name = 5, "name"
    full.places.add().lat = 1.0
    full.by[7].s = "x"
    full.at.seconds = 1
    good = stored(full)
    values = [good[:length] for length in range(len(good))]
    for _ in range(300):
        changed = bytearray(good)
        changed[chance.randrange(5, len(good))] = chance.randrange(256)
        values.append(bytes(changed))
    full.at.seconds = 10**17
    values += [stored(full), good]
    found = fit(columns, ProtobufValues(columns, [flight]), pa.array(values, pa.binary()))
    assert found.reasons[-1] is None
    assert found.reasons[-2] is not None
    assert len(found.arrays[0]) == found.reasons.count(None)


WIDE = "message Wide {" + "".join(f"int64 f{number} = {number};" for number in range(1, 999)) + "}"
NESTED = """
syntax = "proto2";
message Inner { optional int32 a = 1; repeated Inner2 more = 2; }
message Inner2 { optional string s = 1; }
message Outer {
  repeated Inner inner = 1;
  map<int32, Inner2> by = 2;
  repeated group Old = 3 { optional Inner2 one = 1; repeated int32 n = 2; }
  optional Inner single = 4;
  repeated int64 packed = 5 [packed = true];
  optional bytes raw = 20;
  extensions 100 to 200;
}
extend Outer { repeated Inner unasked = 100; }
"""


def compiled_schema(text: str, *path: int) -> RegisteredSchema:
    schema = RegisteredSchema(7, "protobuf", text, path=path or (0,))
    return msgspec.structs.replace(schema, compiled=compiled(schema))


@pytest.mark.parametrize(
    ("inner", "element"),
    [
        ("repeated Wide a = 1;", b"\x0a\x00"),
        ("map<int32, Wide> a = 1;", b"\x0a\x00"),
        ("oneof one { Wide a = 1; int32 b = 2; }", b"\x0a\x00\x10\x00"),  # each Wide keeps its room
    ],
)
def test_a_value_of_few_bytes_and_too_many_cells_is_unfit(inner: str, element: bytes) -> None:
    schema = compiled_schema(f'syntax = "proto3"; message A {{ {inner} }} {WIDE}')
    columns = protobuf_columns(schema)
    values = [HEADER.pack(0, 7) + b"\0" + element * count for count in (10, 40_000)]
    found = fit(columns, ProtobufValues(columns, [schema]), pa.array(values, pa.binary()))
    assert found.reasons[0] is None and found.reasons[1] is not None and "cells" in found.reasons[1]


@pytest.mark.parametrize("element", ["Wide", "google.protobuf.Timestamp"])
def test_a_part_has_a_bounded_number_of_cells_in_lists(element: str) -> None:
    schema = compiled_schema(
        f'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message A {{ repeated {element} a = 1; }} {WIDE}'
    )
    columns = protobuf_columns(schema)
    rows = pa.table(
        {"value": pa.array([HEADER.pack(0, 7) + b"\0" + b"\x0a\x00" * 1_000] * 3_000, pa.binary())}
    )
    found = list(parts(rows, columns, ProtobufValues(columns, [schema])))
    assert pa.concat_tables(found) == rows
    assert max(map(len, found)) * 1_000 * (row_cells(columns) + MESSAGE_CELLS) < 1.1 * DECODED_BYTES


def elements_of(found: Any) -> int:
    """Messages in lists and maps of a decoded one."""
    inner = [*found.inner, *([found.single] if found.HasField("single") else [])]
    return len(found.inner) + len(found.by) + len(found.old) + sum(len(item.more) for item in inner)


def test_elements_are_counted_as_they_are_decoded_also_in_corrupt_values() -> None:
    schema, chance = compiled_schema(NESTED, 2), random.Random(2)
    kind = message_factory.GetMessageClass(protobuf_values._message(schema))
    shape = shape_of(kind.DESCRIPTOR)
    full = kind(packed=range(1_000), raw=b"\x0a\x00" * 10)
    for number in range(3):
        full.inner.add(a=number).more.add(s="x" * 200)
        full.by[number].s = "y"
        full.old.add(n=[1, 2]).one.s = "z"
    full.single.more.add()
    good = full.SerializeToString() + b"\xa3\x1f\x0a\x00\xa4\x1f"  # an unknown group
    assert count_elements(shape, good, 1_000) == elements_of(full) == 13
    assert count_elements(shape, good, 5) == 6
    assert len(kind.DESCRIPTOR.file.pool.FindAllExtensions(kind.DESCRIPTOR)) == 0
    taken = 0
    for _ in range(2_000):
        changed = bytearray(good)
        for _ in range(chance.randrange(1, 3)):
            changed[chance.randrange(len(good))] = chance.choice((0, 1, 2, 10, 11, 12, 26, 28, 255, 128))
        try:
            found = kind.FromString(bytes(changed[: chance.randrange(len(good), len(good) + 1)]))
        except DecodeError:
            continue
        taken += 1
        assert count_elements(shape, bytes(changed), 10_000) >= elements_of(found)
    assert taken > 100


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05\x00",
        b"\x0a\x01\x08",
        b"\x0b",
        b"\x0c",
        b"\x0e",
        b"\xff" * 11,
        b"\x09\x00",
        b"\x1b" * 200,
    ],
)
def test_bytes_that_no_decoder_takes_are_not_counted(data: bytes) -> None:
    kind = message_factory.GetMessageClass(protobuf_values._message(compiled_schema(NESTED, 2)))
    with pytest.raises(ValueUnfit):
        count_elements(shape_of(kind.DESCRIPTOR), data, 1_000)
    with pytest.raises(DecodeError):
        kind.FromString(data)


def test_a_message_that_doubles_at_each_level_is_refused() -> None:
    levels = [f"message L{number} {{ L{number + 1} a = 1; L{number + 1} b = 2; }}" for number in range(40)]
    text = "\n".join(['syntax = "proto3";', *levels, "message L40 { int32 a = 1; }"])
    schema = RegisteredSchema(7, "protobuf", text, path=(0,))
    with pytest.raises(SchemaRefused, match="more than 10000 types"):
        protobuf_columns(msgspec.structs.replace(schema, compiled=compiled(schema)))


@pytest.mark.parametrize(
    ("inner", "columns"),
    [
        ("OwnValue { int32 value = 1; string more = 2; }", "a struct<value int, more string>"),
        ("OwnValue { repeated int32 value = 1; }", "a struct<value list<int>>"),
        ("OwnValue { Part value = 1; } message Part { int32 b = 1; }", "a struct<value struct<b int>>"),
        ("OwnValue { Kind value = 1; } enum Kind { NONE = 0; }", "a struct<value string>"),
        ("Timestamp { int32 hour = 1; }", "a struct<hour int>"),
        ("Timestamp { string seconds = 1; int32 nanos = 2; }", "a struct<seconds string, nanos int>"),
    ],
)
def test_only_the_types_of_protobufs_own_files_have_columns_of_their_own(inner: str, columns: str) -> None:
    name = inner.partition(" ")[0]
    text = f'syntax = "proto3"; package google.protobuf; message A {{ {name} a = 1; }} message {inner}'
    schema = RegisteredSchema(7, "protobuf", text, path=(0,))
    schema = msgspec.structs.replace(schema, compiled=compiled(schema))
    found = protobuf_columns(schema)
    assert columns_text(found) == columns
    empty = message(schema)
    empty.a.SetInParent()
    values = pa.array([stored(empty, b"\x00")], pa.binary())
    assert fit(found, ProtobufValues(found, [schema]), values).reasons == [None]


@pytest.mark.parametrize("name", ["OwnValue", "Timestamp"])
@pytest.mark.parametrize("part", ["int32 value = 1;", "int64 seconds = 1; int32 nanos = 2;"])
def test_a_message_that_contains_itself_under_the_name_of_one_of_protobufs_own_is_refused(
    name: str, part: str
) -> None:
    text = f"message A {{ {name} a = 1; }} message {name} {{ {part} {name} again = 5; }}"
    schema = RegisteredSchema(7, "protobuf", f'syntax = "proto3"; package google.protobuf; {text}', path=(0,))
    with pytest.raises(SchemaRefused, match="contains itself"):
        protobuf_columns(msgspec.structs.replace(schema, compiled=compiled(schema)))
