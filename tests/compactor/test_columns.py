"""Values into columns: what fits, what does not and why, and hostile values."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.columns import derive as derive_module
from compactor.columns import json_values as json_values_module
from compactor.columns import values as values_module
from compactor.columns.arrays import column_names, table_fields
from compactor.columns.derive import DECODED_BYTES, ValuesName, parts, together
from compactor.columns.json_values import JsonValues, inferred
from compactor.columns.values import FittedValues, fit
from tailrace.configs.columns import (
    MAX_COLUMNS,
    MAX_NAME_CHARACTERS,
    InvalidColumns,
    Scalar,
    StructOf,
    TypedColumn,
    columns_text,
    parse_columns,
)
from tailrace.parquet_object.schema import SCHEMA

DOTLESS_I = "\u0131"
WIDE = ", ".join(f"c{number} long" for number in range(998))


def fitted(columns: str, *given: Any, is_strict: bool = True) -> FittedValues:
    """Values as JSON, or as the bytes that are given; None is a tombstone."""
    parsed = parse_columns(columns)
    values = [value if isinstance(value, bytes | None) else json.dumps(value).encode() for value in given]
    return fit(parsed, JsonValues(parsed, is_strict=is_strict), pa.array(values, pa.binary()))


def rows(found: FittedValues) -> list[tuple[Any, ...]]:
    return list(zip(*(array.to_pylist() for array in found.arrays), strict=True))


def test_each_type_has_its_values() -> None:
    found = fitted(
        "b boolean, i int, l long, f float, d double, n decimal(6, 2), day date, at timestamp, s string, x binary,"
        " many list<struct<a int>>, by map<string, list<long>>, in struct<deep struct<a string>>",
        {
            "b": True, "i": -(2**31), "l": 2**63 - 1, "f": 1, "d": 2.5, "n": "12.50", "day": "2024-02-29",
            "at": "2024-02-29T01:02:03.000004+01:00", "s": "ü", "x": "AAE=", "many": [{"a": 1}, None, {}],
            "by": {"k": [1, None], "none": None}, "in": {"deep": {"a": "z"}},
        },
        {"at": 1_500, "many": [], "by": {}, "in": {}},
        None,
    )  # fmt: skip
    assert found.reasons == [None, None, None]
    at = datetime(2024, 2, 29, 0, 2, 3, 4, tzinfo=UTC)
    assert rows(found) == [
        (
            True, -(2**31), 2**63 - 1, 1.0, 2.5, Decimal("12.50"), date(2024, 2, 29), at, "ü", b"\0\1",
            [{"a": 1}, None, {"a": None}], [("k", [1, None]), ("none", None)], {"deep": {"a": "z"}},
        ),
        (*[None] * 7, datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), None, None, [], [], {"deep": None}),
        (None,) * 13,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "value", "reason"),
    [
        ("a int", {"a": 2**31}, "`int` <= 2147483647"),
        ("a long", {"a": 2**63}, "`int` <= 9223372036854775807"),
        ("a long", {"a": 1.0}, "got `float`"),
        ("a long", {"a": True}, "got `bool`"),
        ("a float", {"a": 3.5e38}, r"`float` < 3\.40282"),
        ("a float", {"a": -(10**39)}, r"`float` > -3\.40282"),
        ("a double", b'{"a": 1e309}', "out of range"),
        ("a string", {"a": 1}, "got `int`"),
        ("a decimal(6, 2)", {"a": "1.255"}, "data loss"),
        ("a decimal(6, 2)", {"a": 12345.5}, "precision"),
        ("a timestamp", {"a": "yesterday"}, "Invalid RFC3339"),
        ("a timestamp", {"a": 10**18}, "`int` <= 253402300799999"),
        ("a binary", {"a": "?"}, "Invalid base64"),
        ("a list<struct<b int>>", {"a": [{}, {"b": "x"}]}, r"\$.a\[1\].b"),
        ("a string", {"b": 1}, "unknown field `b`"),
        ("a struct<b int>", {"a": {"c": 1}}, r"unknown field `c` - at `\$.a`"),
        ("a string", [1], "Expected `object`, got `array`"),
        ("a string", b"", "truncated"),
        ("a string", b'{"a": "\xff"}', "utf-8"),
        ("a string", b'{"a": "\\ud800"}', "JSON|surrog|truncated"),
        ("a string", b'{"a": "x"} {}', "trailing"),
    ],
)
def test_a_value_that_does_not_fit_has_a_reason_and_affects_no_other(
    columns: str, value: Any, reason: str
) -> None:
    found = fitted(columns, {}, value, {})
    assert [each is None for each in found.reasons] == [True, False, True]
    assert len(found.arrays[0]) == 2
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reasons[1])


def test_hostile_values_are_unfit_and_cost_themselves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "MAX_VALUE_BYTES", 100_000)
    deep = b'{"z":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    wide = {f"f{number}": number for number in range(5_000)}
    found = fitted("a string", deep, {"a": "x" * 100_001}, wide, {"a": "ok"}, is_strict=False)
    assert rows(found) == [(None,), ("ok",)]
    assert [reason and reason[:30] for reason in found.reasons] == [
        "the value is nested too deep", "the value has 100010 bytes; at", None, None,
    ]  # fmt: skip
    assert inferred([deep, b"nonsense", b"7"]) == ()
    assert len(inferred([json.dumps(wide).encode()])) == MAX_COLUMNS


@settings(deadline=None)
@given(st.lists(st.sampled_from(["fits", "unfit", "none", "long"]), max_size=12))
def test_each_value_has_its_own_fate_wherever_it_is(fates: list[str]) -> None:
    made = {"fits": b'{"a": [1]}', "unfit": b'{"a": 1}', "none": None, "long": b" " * 30 + b'{"a": []}'}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(values_module, "MAX_VALUE_BYTES", 20)
        found = fitted("a list<int>", *(made[fate] for fate in fates))
    assert [reason is None for reason in found.reasons] == [fate in ("fits", "none") for fate in fates]
    assert all(
        "39 bytes" in str(found.reasons[number]) for number, fate in enumerate(fates) if fate == "long"
    )
    kept = [([1],) if fate == "fits" else (None,) for fate in fates if fate in ("fits", "none")]
    assert rows(found) == kept


def test_cycles_are_looked_for_again_after_values_whatever_came_of_them() -> None:
    class Broken:
        refused = ()

        @staticmethod
        def decode(value: object) -> object:
            assert not gc.isenabled()
            raise MemoryError

        @staticmethod
        def plain(values: object, most_bytes: int) -> None:
            pass

        @staticmethod
        def field_of(number: int, column: TypedColumn) -> Callable[[Any], Any]:
            raise AssertionError("nothing was decoded")

    with pytest.raises(MemoryError):
        fit(parse_columns("a int"), Broken(), pa.array([b"1"]))
    assert gc.isenabled()
    gc.disable()
    try:
        fitted("a int", {"a": 1})
        assert not gc.isenabled(), "who turned it off turns it on"
    finally:
        gc.enable()


def test_the_columns_of_a_sample() -> None:
    sample = [
        {"i": 1, "n": None, "list": [], "map": {}, "in": [{"x": 1}, {"y": "s"}], "I": 2, 'q"': 1},
        {"i": 1.5, "n": True, "a b": [1, 2.5], "in": "another type", "s": "x"},
    ]
    found = inferred(json.dumps(value).encode() for value in sample)
    assert columns_text(found) == (
        "i double, n boolean, list list<string>, map map<string, string>, in list<struct<x long, y string>>,"
        " `a b` list<double>, s string"
    )


class CountedName(str):
    """A field's name that counts how often it is compared without case."""

    compared = 0

    def upper(self) -> str:
        CountedName.compared += 1
        return super().upper()


def test_the_names_of_a_sample_are_compared_once_for_each_name_not_for_each_object() -> None:
    sample = json_values_module._Sample()
    fields = {CountedName(f"f{number}"): number for number in range(900)}
    sample.add({"list": [fields, *[{}] * 1_000], "more": [fields] * 1_000})
    assert len(fields) <= CountedName.compared <= 10 * len(fields)


@pytest.mark.parametrize("parts", [(), ("in",)])
def test_fields_that_engines_cannot_tell_apart_give_no_endless_names(parts: tuple[str, ...]) -> None:
    """Each has the name of the one before with a prefix."""
    value: Any = {f"a{chr(0x2600 + number)}": number for number in range(200)}
    for part in parts:
        value = {part: value}
    columns = inferred([json.dumps(value).encode()])
    for _ in parts:
        assert isinstance(columns[0].type, StructOf)
        columns = columns[0].type.fields
    names = column_names(columns, [] if parts else SCHEMA.names)
    assert max(map(len, names)) <= MAX_NAME_CHARACTERS and 40 < len(names) < 50


def test_long_first_values_do_not_hide_the_columns_of_those_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(derive_module, "SAMPLED_BYTES", 100)
    values = pa.table(
        {"value": pa.array([b"x" * 101, None, b'{"a": 1}', b"y" * 99, b'{"b": 1}'], pa.binary())}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(values, sink)
    sampled = derive_module._sample(pq.ParquetFile(pa.BufferReader(sink.getvalue())))
    assert list(sampled) == [b'{"a": 1}', b'{"b": 1}']


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abC"), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["a", "b", "offset"]), json_values, min_size=1, max_size=3))
def test_the_columns_of_one_value_are_text_and_a_schema(value: dict[str, Any]) -> None:
    stored = json.dumps(value).encode()
    columns = inferred([stored])
    assert parse_columns(columns_text(columns)) == columns
    found = fit(columns, JsonValues(columns, is_strict=True), pa.array([stored, b"{}"]))
    assert found.reasons[1] is None
    pa.schema(table_fields(columns))


def test_names_of_columns_are_those_that_engines_can_tell_apart() -> None:
    """Java, and so Spark, also compares the upper case of letters: a dotless i has the same as an i."""
    names = ("offset", "a.b", "a b", "Value_offset", "id", f"{DOTLESS_I}d", "İd", "_Deleted")
    columns = tuple(TypedColumn(name, Scalar.INT) for name in names)
    assert [field.name for field in table_fields(columns)] == [
        "value_offset", "a_b", "value_a_b", "value_Value_offset", "id", f"value_{DOTLESS_I}d", "value_value_İd",
        "value__Deleted",
    ]  # fmt: skip
    assert column_names(columns[-1:]) == ["_Deleted"], "within a struct"
    assert columns_text(inferred([f'{{"id": 1, "{DOTLESS_I}d": 2, "İD": 3}}'.encode()])) == "id long"
    with pytest.raises(InvalidColumns, match="differ in case alone"):
        parse_columns(f"id long, `{DOTLESS_I}d` long")


@pytest.mark.parametrize(("max_bytes", "groups"), [(1, 7), (1 << 20, 1)])
def test_small_row_groups_are_read_together_in_order(max_bytes: int, groups: int) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"offset": range(70)}), sink, row_group_size=10)
    found = list(together(pq.read_metadata(pa.BufferReader(sink.getvalue())), max_bytes))
    assert len(found) == groups
    assert [number for numbers in found for number in numbers] == list(range(7))


def test_rows_that_take_next_to_nothing_in_a_file_take_their_room_in_memory() -> None:
    sink = pa.BufferOutputStream()
    nothing = pa.table({"value": pa.nulls(20_000, pa.binary())})
    pq.write_table(pa.concat_tables([nothing] * 4), sink, row_group_size=20_000)
    assert len(list(together(pq.read_metadata(pa.BufferReader(sink.getvalue())), 2_000_000))) == 4


@pytest.mark.parametrize(
    ("columns", "value", "cells"),
    [
        ("a long, b string", None, 2),
        ("a list<struct<b long>>", b'{"a":[{},{}]}', 13),
        (WIDE, b"{}", 998),
        (f"a struct<{WIDE}>", None, 999),
        (f"a list<struct<{WIDE}>>", b'{"a":[{},{}]}', 1 + 3 * 998),
        (f"a list<list<struct<{WIDE}>>>", b'{"a":[[null,\n null]]}', 1 + 3 * 998),
        (f"a map<string, struct<b list<string>, {WIDE}>>", b'{"a":{"k":null}}', 1 + 3 * 999),
    ],
)
def test_a_part_has_a_bounded_number_of_cells(columns: str, value: bytes | None, cells: int) -> None:
    parsed = parse_columns(columns)
    rows = pa.table({"value": pa.array([value] * 20_000, pa.binary())})
    found = list(parts(rows, parsed, JsonValues(parsed, is_strict=False)))
    assert pa.concat_tables(found) == rows
    most_rows = DECODED_BYTES // cells
    assert max(map(len, found)) in (most_rows, most_rows + 1, len(rows))


@pytest.mark.parametrize("element", ["{}", "null"])
def test_a_value_of_few_bytes_and_too_many_cells_is_unfit(element: str) -> None:
    few, many = (f'{{"a":[{",".join([element] * count)}]}}'.encode() for count in (10, 40_000))
    found = fitted(f"a list<struct<{WIDE}>>", many, few)
    assert found.reasons[1] is None
    assert found.reasons[0] is not None
    assert "cells" in found.reasons[0]


def test_small_parts_are_written_as_one_row_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for most_bytes, groups in ((DECODED_BYTES, 1), (3_000 + 3 * 2 * derive_module.ARRAY_BYTES, 4), (1, 10)):
        monkeypatch.setattr(derive_module, "DECODED_BYTES", most_bytes)
        sheet = derive_module._ParquetOutput(pa.schema([("n", pa.int64()), ("absent", pa.string())]))
        for part in range(10):
            sheet.add({"n": pa.array(range(part * 100, part * 100 + 100))}, 100)
        file = pq.ParquetFile(pa.BufferReader(sheet.close()))
        assert file.metadata.num_row_groups == groups
        assert file.read()["n"].to_pylist() == list(range(1_000))


def test_parts_of_very_many_columns_are_written_before_they_take_much_memory() -> None:
    inner = pa.struct([(f"f{number}", pa.int64()) for number in range(999)])
    sheet = derive_module._ParquetOutput(pa.schema([("elements", pa.list_(inner))]))
    for _ in range(20):
        sheet.add({"elements": pa.array([[]], pa.list_(inner))}, 1)
    assert pq.ParquetFile(pa.BufferReader(sheet.close())).metadata.num_row_groups == 2


def test_a_derived_files_name_is_read_back() -> None:
    text = "35bf992d-c9e9-4616-a12e-7696a6cecc1b.5d8c1faf98465b5d.2.parquet"
    name = ValuesName.of(f"file:///x/values/{text}")
    assert name is not None
    assert (str(name), name.unfit) == (text, 2)
    assert ValuesName.of("35bf992d-c9e9-4616-a12e-7696a6cecc1b.parquet") is None
