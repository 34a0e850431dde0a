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

from compactor.columns.avro_values import AvroValues, avro_columns
from compactor.columns.derive import ValueFormat, resolved
from compactor.columns.registered import HEADER, RegisteredSchema, SchemaRefused
from compactor.columns.values import fit
from tailrace.columns import columns_text

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
    found = fit(columns, AvroValues([SCHEMA]), pa.array([stored(ROW), None], pa.binary()))
    assert found.reasons == [None, None]
    values = [array.to_pylist()[0] for array in found.arrays]
    assert values == [*(ROW[name] for name in list(ROW)[:10]), [("k", None)], b"ab"]


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
            json.dumps(
                {"type": "record", "name": "R",
                 "fields": [{"name": f"f{number}", "type": "int"} for number in range(10_000)]}
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
    found = fit(columns, AvroValues([SCHEMA]), pa.array(values, pa.binary()))
    assert found.reasons[-1] is None
    assert None not in found.reasons[: len(good)]
    assert found.reasons[-3] == "bytes follow the value of schema 7"
    assert len(found.arrays[0]) == found.reasons.count(None)
