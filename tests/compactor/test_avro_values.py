"""Avro values of a registry's schemas: which columns a schema has, and hostile schemas and bytes."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from compactor.columns.avro_elements import Elements
from compactor.columns.avro_values import FIELD_CELLS, AvroValues, _parsed, avro_columns
from compactor.columns.derive import DECODED_BYTES, ValueFormat, parts, resolved
from compactor.columns.json_values import ValueUnfit
from compactor.columns.registered import HEADER, RegisteredSchema, SchemaRefused
from compactor.columns.values import fit
from tailrace.configs.columns import columns_text

PLACE = {"type": "record", "name": "Place", "namespace": "geo", "fields": [{"name": "lat", "type": "double"}]}
FLIGHT = {
    "type": "record", "name": "Flight", "namespace": "air",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "wide", "type": ["null", "int", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": "Kind"},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "places", "type": {"type": "array", "items": "geo.Place"}},
        {"name": "by", "type": {"type": "map", "values": ["null", "long"]}},
        {"name": "two", "type": {"type": "fixed", "name": "Two", "size": 2}},
    ],
}  # fmt: skip
SCHEMA = RegisteredSchema(7, "avro", json.dumps(FLIGHT), [("geo.Place", json.dumps(PLACE))])
ROW = {
    "id": 1, "name": None, "wide": 2**40, "at": datetime(2020, 1, 1, tzinfo=UTC), "clock": 5,
    "price": Decimal("1.25"), "kind": "A", "other": "B", "uid": "not checked", "places": [{"lat": 1.0}],
    "by": {"k": None}, "two": b"ab",
}  # fmt: skip


def stored(row: dict[str, Any], schema_id: int = 7) -> bytes:
    named: dict[str, Any] = {}
    fastavro.parse_schema(PLACE, named_schemas=named)
    plain = json.loads(
        json.dumps(FLIGHT).replace('"logicalType": "uuid"', '"doc": ""').replace("time-millis", "")
    )
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(plain, named_schemas=named), row)
    return HEADER.pack(0, schema_id) + written.getvalue()


def test_a_record_with_references_has_typed_columns() -> None:
    columns = avro_columns(SCHEMA)
    assert columns_text(columns) == (
        "id int, name string, wide long, at timestamp, clock int, price decimal(6, 2), kind string, other string,"
        " uid string, places list<struct<lat double>>, by map<string, long>, two binary"
    )
    found = fit(columns, AvroValues(columns, [SCHEMA]), pa.array([stored(ROW), None], pa.binary()))
    assert found.reasons == [None, None]
    values = [array.to_pylist()[0] for array in found.arrays]
    assert values == [*(ROW[name] for name in list(ROW)[:10]), [("k", None)], b"ab"]


@pytest.mark.parametrize(
    ("unscaled", "seen"),
    [
        ((-125).to_bytes(400, "big", signed=True), Decimal("-1.25")),
        ((10**38 - 1).to_bytes(17, "big", signed=True), Decimal("9" * 36 + ".99")),
        (b"", Decimal("0.00")),
        ((10**38).to_bytes(17, "big", signed=True), "a decimal of more than 38 digits"),
        (b"\x7f" * 5_000, "a decimal of more than 38 digits"),
    ],
)
def test_a_decimal_with_too_many_digits_is_never_converted_to_digits(
    unscaled: bytes, seen: Decimal | str
) -> None:
    """That takes a time that grows with the square of its bytes: eight minutes for a megabyte."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    record: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "price", "type": price}]}
    schema = RegisteredSchema(7, "avro", json.dumps(record))
    record["fields"][0]["type"] = "bytes"
    written = io.BytesIO()
    fastavro.schemaless_writer(written, record, {"price": unscaled})
    value = HEADER.pack(0, 7) + written.getvalue()
    columns = avro_columns(schema)
    found = fit(columns, AvroValues(columns, [schema]), pa.array([value], pa.binary()))
    assert [*found.arrays[0].to_pylist(), *filter(None, found.reasons)] == [seen]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"string"', "of no record"),
        ("{", "not an Avro schema"),
        ("7", "not an Avro schema"),
        ('{"type": "array", "items":' * 5_000 + '"int"' + "}" * 5_000, "not an Avro schema"),
        ('{"type": "record", "name": "R", "fields": []}', "has no fields"),
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}', "contains itself"),
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["int", "string"]}]}', "can't become"),
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": "Gone"}]}', "KeyError: 'Gone'"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}',
            "named twice",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type": {"type": "array", "items": "null"}}]}',
            "null",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type": {"type": "array", "items":'
            ' {"type": "fixed", "name": "Z", "size": 0}}}]}',
            "no bytes",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type":'
            ' {"type": "fixed", "name": "Z", "size": -1}}]}',
            "no bytes",
        ),
        (
            json.dumps(
                {"type": "record", "name": "R",
                 "fields": [{"name": f"f{number}", "type": "int"} for number in range(9_000)]}
            ),
            "at most 1000 columns",
        ),
    ],
)  # fmt: skip
def test_a_schema_without_columns_is_refused_whole(text: str, reason: str) -> None:
    with pytest.raises(SchemaRefused, match=reason):
        avro_columns(RegisteredSchema(1, "avro", text))


def test_a_schema_of_another_kind_is_refused() -> None:
    with pytest.raises(SchemaRefused, match="of protobuf"):
        resolved(ValueFormat("avro"), RegisteredSchema(1, "protobuf", "x"))


def test_corrupt_values_are_unfit_and_never_more() -> None:
    columns, good, chance = avro_columns(SCHEMA), stored(ROW), random.Random(1)
    values: list[bytes] = [good[:length] for length in range(len(good))]
    for _ in range(500):
        changed = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(5, len(good))] = chance.randrange(256)
        values.append(bytes(changed))
    values += [good + b"x", good[:5] + b"\xff" * 8 + b"\x01" + good[6:], good]
    found = fit(columns, AvroValues(columns, [SCHEMA]), pa.array(values, pa.binary()))
    assert found.reasons[-1] is None
    assert None not in found.reasons[: len(good)]
    assert found.reasons[-3] == "bytes follow the value of schema 7"
    assert len(found.arrays[0]) == found.reasons.count(None)


def test_a_symbol_or_branch_with_a_negative_number_is_unfit() -> None:
    letters = {"type": "enum", "name": "Letter", "symbols": ["A", "B"]}
    kinds = {"symbol": letters, "branch": ["null", "int"], "named": ["null", "Letter"]}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = RegisteredSchema(7, "avro", json.dumps({"type": "record", "name": "A", "fields": fields}))
    columns = avro_columns(schema)
    good = b"\x02" + b"\x02\x06" + b"\x02\x02"
    values = [HEADER.pack(0, 7) + good]
    for at in (0, 1, 3, 4):
        values += [HEADER.pack(0, 7) + good[:at] + number + good[at + 1 :] for number in (b"\x01", b"\x03")]
    found = fit(columns, AvroValues(columns, [schema]), pa.array(values, pa.binary()))
    assert [array.to_pylist() for array in found.arrays] == [["B"], [3], ["B"]]


def test_a_schema_may_be_a_union_of_a_record_and_null() -> None:
    record = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]}
    schema = RegisteredSchema(7, "avro", json.dumps(["null", record]))
    columns = avro_columns(schema)
    values = [HEADER.pack(0, 7) + body for body in (b"\x02\x04", b"\x00", b"\x01\x04", b"\x04\x04")]
    found = fit(columns, AvroValues(columns, [schema]), pa.array(values, pa.binary()))
    assert [reason is None for reason in found.reasons] == [True, True, False, False]
    assert [array.to_pylist() for array in found.arrays] == [[2, None]]


WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [{"name": f"f{n}", "type": ["null", "long"]} for n in range(500)],
}


def schema_of(kind: Any) -> RegisteredSchema:
    """Of a record with one field of this type."""
    return RegisteredSchema(
        7, "avro", json.dumps({"type": "record", "name": "A", "fields": [{"name": "a", "type": kind}]})
    )


def array_of(count: int, item: bytes = b"\0", key: bytes = b"") -> bytes:
    """A value with one array or map."""
    written = io.BytesIO()
    fastavro.schemaless_writer(written, "long", count)
    return HEADER.pack(0, 7) + written.getvalue() + (key + item) * count + b"\0"


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ({"type": "array", "items": ["null", WIDE]}, b""),
        ({"type": "map", "values": ["null", WIDE]}, b"\x02k"),
    ],
)
def test_a_value_of_few_bytes_and_too_many_cells_is_unfit(kind: Any, key: bytes) -> None:
    schema = schema_of(kind)
    columns = avro_columns(schema)
    values = [array_of(count, key=key) for count in (10, 40_000)]
    found = fit(columns, AvroValues(columns, [schema]), pa.array(values, pa.binary()))
    assert found.reasons[0] is None and found.reasons[1] is not None and "cells" in found.reasons[1]


def test_a_part_has_a_bounded_number_of_cells_in_lists() -> None:
    schema = schema_of({"type": "array", "items": ["null", WIDE]})
    columns = avro_columns(schema)
    rows = pa.table({"value": pa.array([array_of(1_000)] * 3_000, pa.binary())})
    found = list(parts(rows, columns, AvroValues(columns, [schema])))
    assert pa.concat_tables(found) == rows
    assert max(map(len, found)) * 1_000 * FIELD_CELLS * 500 < 1.1 * DECODED_BYTES


def test_elements_are_counted_as_they_are_decoded_also_in_corrupt_values() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "s", "type": ["null", "string"]}]}
    fields = {
        "flat": {"type": "array", "items": "double"},
        "many": {"type": "array", "items": ["null", inner]},
        "deep": {"type": "array", "items": {"type": "array", "items": ["int", "null"]}},
        "by": {"type": "map", "values": "I"},
        "more": ["null", {"type": "array", "items": "I"}],
    }
    parsed = fastavro.parse_schema(
        {
            "type": "record",
            "name": "A",
            "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
        },
        named_schemas=(named := {}),
    )
    full = {
        "flat": [1.5] * 20, "many": [None, {"s": None}, {"s": "x" * 300}], "deep": [[], [1, None, 200]],
        "by": {"a": {"s": None}, "b": {"s": "y"}}, "more": [{"s": "z"}] * 4,
    }  # fmt: skip
    written = io.BytesIO()
    fastavro.schemaless_writer(written, parsed, full)
    good, elements, chance = written.getvalue(), Elements(parsed, named), random.Random(3)
    assert elements.least_bytes == 1
    assert elements.count(good, 1_000) == elements_in(full) == 11
    assert elements.count(good, 5) == 6
    taken = 0
    for _ in range(2_000):
        changed = bytearray(good)
        for _ in range(chance.randrange(1, 3)):
            changed[chance.randrange(len(good))] = chance.choice((0, 1, 2, 3, 4, 6, 20, 255, 128))
        try:
            found = fastavro.schemaless_reader(io.BytesIO(changed), parsed, None)
        except Exception:
            continue
        try:
            assert elements.count(bytes(changed), 1_000) >= elements_in(found)
            taken += 1
        except ValueUnfit:
            pass
    assert taken > 100


def elements_in(row: Any) -> int:
    return sum(len(row[name] or ()) for name in ("many", "deep", "by", "more"))


def test_an_array_of_any_length_ends_where_its_bytes_end() -> None:
    for item in ("double", {"type": "fixed", "name": "F", "size": 3}, "long", "string"):
        schema = schema_of({"type": "array", "items": item})
        with pytest.raises(ValueUnfit):
            Elements(*_parsed(schema)).count(b"\xfe\xff\xff\xff\xff\xff\xff\x01" + bytes(30), 10)


@pytest.mark.parametrize("said", [b"\x00", b"\x01", b"\x80", b"\xff"])
def test_elements_after_a_boolean_are_counted_whatever_its_byte_is(said: bytes) -> None:
    pair = {"type": "record", "name": "P", "fields": [{"name": "b", "type": "boolean"}, {"name": "a", "type":
            {"type": "array", "items": ["null", WIDE]}}]}  # fmt: skip
    schema = schema_of(pair)
    value = array_of(3).replace(HEADER.pack(0, 7), said)
    row = AvroValues(avro_columns(schema), [schema]).decode(HEADER.pack(0, 7) + value)
    assert len(row["a"]["a"]) == Elements(*_parsed(schema)).count(value, 10) == 3


@pytest.mark.parametrize(
    ("is_union", "reason"), [(False, "more than 10000 types"), (True, "nested more than 10 deep")]
)
def test_a_schema_that_doubles_at_each_level_is_refused(is_union: bool, reason: str) -> None:
    def level(number: int, name: str) -> dict[str, Any]:
        inner = [f"L{number + 1}a", f"L{number + 1}b"] if number < 40 else ["int", "long"]
        types: list[Any] = [inner] if is_union else list(inner)
        fields = [{"name": f"f{place}", "type": kind} for place, kind in enumerate(types)]
        return {"type": "record", "name": f"L{number}{name}", "fields": fields}

    levels = [(str(number), json.dumps(level(number, name))) for number in range(40, 0, -1) for name in "ab"]
    schema = RegisteredSchema(7, "avro", json.dumps(level(0, "a")), levels)
    with pytest.raises(SchemaRefused, match=reason):
        avro_columns(schema)
