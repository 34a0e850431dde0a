"""JSON values decoded together have the same results as each decoded alone, for any bytes."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactor.columns import plain_json
from compactor.columns.json_values import JsonValues
from compactor.columns.values import FittedValues, fit, one_by_one
from tailrace.configs.columns import parse_columns

COLUMNS = (
    "a long",
    "a int, b double, c string",
    "a float, b boolean, `a b` string, `é` double",
    "a list<long>, b struct<a string, b list<struct<a double, c string>>>, c list<list<string>>",
    "a struct<a struct<a boolean>>, offset long",
    "a decimal(5, 2), b string",
    "a timestamp, b date, c list<struct<a timestamp, b date>>",
    "a list<double>, a_name_of_more_than_eight_bytes string, a_name_of_more_than_eight_letters long",
)
NUMBERS = (
    "0", "-0", "1", "-1", "1.0", "-0.0", "0.1", "1e5", "1E+2", "1e-7", "01", "1.", ".5", "-", "+", "+1", "1e",
    "1e+", "0x1", "NaN", "Infinity", "-Infinity", "1_0", "00.1", "1.5.2", "2147483647", "2147483648",
    "-2147483648", "-2147483649", "9007199254740991", "9007199254740993", "999999999999999999",
    "1000000000000000000", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "18446744073709551615", "18446744073709551616", "123456789012345678901234567890", "1e22", "1e23", "1e308",
    "1e309", "1e400", "5e-324", "1e-400", "2.2250738585072011e-308", "1.7976931348623157e308", "3.4028236e38",
    "1e38", "1e39", "8.5e-46", "1e99999", "0.30000000000000004", "7.038531e-26", "16777217",
    "1.00000017881393432617187499", "0.000000000000000000000000000001",
)  # fmt: skip
TEXTS = (
    "", "a", "abcdefg", "abcdefgh", "abcdefghijklmnopq", "é", "😀", "\\n", "\\u00e9", "\\u0000", "\\uFFFF",
    "x\\/\\\"\\\\",
    "\\ud83d\\ude00", "\\ud800", "\\udc00", "\\ud800\\u0041", "\\x", "\\u12", "\\u00g0", "\\", "\x01", "\n", "\x7f",
    "\x00", "1", "2024-02-29T01:02:03Z", "12345678\\n", "123456\\u0041", "}{", "],",
)  # fmt: skip
TIMES = (
    "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2024-04-31", "2024-12-31", "2024-13-01", "2024-00-10",
    "2024-01-00", "2024-1-01", "24-01-01", "2024/01/01", "2024-01-01 ", "0000-01-01", "0001-01-01", "9999-12-31",
    "1969-12-31", "1600-03-01", "2024-01-01T", "12024-01-01", "-024-01-01", "20240101",
    "2024-02-29T01:02:03Z", "2024-02-29T01:02:03", "2024-02-29T01:02:03.5Z", "2024-02-29T01:02:03.123456+02:00",
    "2024-02-29T01:02:03.1234567Z", "2024-02-29T01:02:03.123456789Z", "2024-02-29T01:02:03.Z", "1960-02-29T23:59:59.9Z",
    "2024-02-29T23:59:60Z", "2024-02-29T24:00:00Z", "2024-02-29T01:60:00Z", "2024-02-29T01:02Z", "2024-02-29t01:02:03z",
    "2024-02-29 01:02:03Z", "2024-02-29T01:02:03-11:59", "2024-02-29T01:02:03+24:00", "2024-02-29T01:02:03+01:60",
    "2024-02-29T01:02:03+0100", "2024-02-29T01:02:03+01", "2024-02-29T01:02:03ZZ", "2024-02-29T01:02:03+01:00x",
    "0001-01-01T00:00:00-01:00", "9999-12-31T23:59:59Z", "2024-02-30T01:02:03Z", "2024-02-29T0:02:03Z",
    "2024-02-29T01:02:03.000001", "2024-02-29T01:02:03.+01:00", "2024-02-29T01.02:03Z", "2024-02-29T01:02:03*01:00",
)  # fmt: skip
MILLISECONDS = (
    "0",
    "-1",
    "1700000000000",
    "-62135596800000",
    "-62135596800001",
    "253402300799999",
    "253402300800000",
)
NAMES = (
    "a", "b", "c", "a b", "é", "offset", "A", "", "z", "\\u0061", "\\n", "a_name_of_more_than_eight_bytes",
    "a_name_of_more_than_eight_letters", "a_name_of_more_than_eight_byte",
)  # fmt: skip
BLANKS = ("", "", "", " ", "\n\t\r ", "\f")

blanks = st.sampled_from(BLANKS)
scalars = (
    st.sampled_from([*NUMBERS, "true", "false", "null", "nul", "True", "tru", "falsy", "nullnull"])
    | st.sampled_from([*TEXTS, *TIMES]).map(lambda text: f'"{text}"')
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.integers(-(2**64), 2**64).map(str)
    | st.text(st.characters(codec="utf-8"), max_size=20).map(json.dumps)
    | st.text(st.characters(codec="utf-8"), max_size=20).map(
        lambda text: json.dumps(text, ensure_ascii=False)
    )
)


@st.composite
def joined(draw: st.DrawFn, items: st.SearchStrategy[str], ends: str) -> str:
    parts = [draw(blanks) + item + draw(blanks) for item in draw(st.lists(items, max_size=5))]
    return ends[0] + (",".join(parts) or draw(blanks)) + ends[1]


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    field = st.tuples(st.sampled_from(NAMES), blanks, blanks, inner)
    return joined(field.map(lambda each: f'"{each[0]}"{each[1]}:{each[2]}{each[3]}'), "{}")


parts = st.recursive(scalars, lambda inner: joined(inner, "[]") | objects(inner), max_leaves=10)
sound = st.tuples(blanks, objects(parts) | parts, blanks).map("".join)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """One byte of a value is another one, or it ends early."""
    value = bytearray(draw(sound).encode())
    if not value:
        return b""
    place = draw(st.integers(0, len(value) - 1))
    value[place : place + 1] = draw(
        st.sampled_from([b"", b'"', b"{", b"}", b"]", b",", b":", b"\\", b"\xff", b"\xc3"])
    )
    return bytes(value[: draw(st.integers(1, 2 * len(value) + 1))])


values = st.none() | sound.map(str.encode) | broken()


def both(columns: str, stored: list[bytes | None], *, is_strict: bool) -> tuple[FittedValues, FittedValues]:
    """What comes of values at once, and one by one."""
    parsed = parse_columns(columns)
    decoder = JsonValues(parsed, is_strict=is_strict)
    return fit(parsed, decoder, pa.array(stored, pa.binary())), one_by_one(parsed, decoder, stored)


def shown(found: FittedValues) -> str:
    """With the sign of a zero."""
    for array in found.arrays:
        array.validate(full=True)
    return repr(([(array.type, array.to_pylist()) for array in found.arrays], found.reasons))


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(COLUMNS), st.lists(values, max_size=6), st.booleans())
@example(COLUMNS[1], [b'{"a":1,"a":2}', b'{"a":"x","a":2}', b'{"a":1,"a":null}'], False)
@example(COLUMNS[3], [b'{"a":[1,2,"x"]}', b'{"a":[3]}', b'{"a":[4', b'{"c":[[],["q"]]}'], False)
@example(COLUMNS[1], [b'{"b":' + number.encode() + b"}" for number in NUMBERS], True)
@example(COLUMNS[2], [b'{"a":' + number.encode() + b"}" for number in NUMBERS], True)
@example(COLUMNS[0], [b'{"a":' + number.encode() + b"}" for number in NUMBERS], True)
@example(COLUMNS[0], [b'{"z":' + number.encode() + b"}" for number in NUMBERS], False)
@example(COLUMNS[1], [b'{"c":"' + text.encode() + b'"}' for text in TEXTS], True)
@example(COLUMNS[1], [b'{"z":"' + text.encode() + b'"}' for text in TEXTS], False)
@example(COLUMNS[6], [b'{"a":"' + text.encode() + b'"}' for text in TIMES], True)
@example(COLUMNS[6], [b'{"b":"' + text.encode() + b'"}' for text in TIMES], True)
@example(COLUMNS[6], [b'{"a":' + number.encode() + b"}" for number in (*NUMBERS, *MILLISECONDS)], True)
@example(COLUMNS[6], [b'{"b":' + number.encode() + b"}" for number in MILLISECONDS], True)
@example(COLUMNS[1], [b'{"c":"\xff"}', b'{"z":"\xff"}', b'{"a":1}'], False)
def test_values_at_once_are_what_each_is_by_itself(
    columns: str, stored: list[bytes | None], is_strict: bool
) -> None:
    found, expected = both(columns, stored, is_strict=is_strict)
    assert shown(found) == shown(expected)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False), min_size=1))
def test_numbers_are_the_nearest_doubles(numbers: list[float]) -> None:
    given_numbers = [f"{number:.{digits}g}" for number in numbers for digits in (3, 15, 16, 17, 20, 40)]
    stored: list[bytes | None] = [f'{{"a":{text},"b":{text}}}'.encode() for text in given_numbers]
    found, expected = both("a double, b float", stored, is_strict=True)
    assert shown(found) == shown(expected)


def plain_ones(columns: str, stored: list[Any], most_bytes: int = 1 << 20) -> list[int] | None:
    decoder = plain_json.PlainJson(parse_columns(columns), is_strict=False)
    found = decoder.decode(pa.array(stored, pa.binary()), most_bytes)
    return None if found is None else found.is_plain.tolist()


def test_what_producers_send_is_decoded_at_once() -> None:
    stored = [
        json.dumps(
            {"id": 7, "at": {"lat": 0.5, "lon": None}, "tags": ["x", "né\n"], "n": 0.30000000000000004}
        ).encode(),
        json.dumps({"n": 1e200, "other": [{"deep": [{}]}], "tags": [], "id": -1}, indent=2).encode(),
        None,
        b"{}",
    ]
    columns = "id long, at struct<lat double, lon double>, tags list<string>, n double"
    assert plain_ones(columns, stored) == [1, 1, 1, 1]


def test_dates_and_times_are_decoded_at_once() -> None:
    stored = [
        b'{"a":"2024-02-29T01:02:03.123+02:00","b":"2024-02-29"}',
        b'{"a":1700000000000}',
        b'{"a":"2024-02-29T01:02:03"}',
    ]
    assert plain_ones("a timestamp, b date", stored) == [1, 1, 1]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.timezones()), min_size=1)
)
def test_times_of_all_years_and_zones_are_what_python_reads(times: list[datetime]) -> None:
    stored: list[bytes | None] = [
        f'{{"a":"{time.isoformat()}","b":"{time.date()}"}}'.encode() for time in times
    ]
    found, expected = both("a timestamp, b date", stored, is_strict=True)
    assert shown(found) == shown(expected)


@pytest.mark.parametrize(
    "value", [b"[" * 200_000, b'{"z":' * 200_000, b'{"z":' + b"[" * 31 + b"]" * 31 + b"}", b"{" * 9]
)
def test_deep_values_are_left(value: bytes) -> None:
    assert plain_ones("a long", [b'{"a":1}', value]) == [1, int(len(value) == 68)]


def test_values_that_are_too_long_are_left() -> None:
    assert plain_ones("a long", [b'{"a":1}', b'{"a":10}'], most_bytes=7) == [1, 0]


def test_columns_and_values_of_other_kinds_are_left() -> None:
    assert plain_ones("a decimal(5, 2)", [b"{}"]) is None
    assert plain_ones("a list<map<string, long>>", [b"{}"]) is None
    assert plain_ones("a string", [b'{"a":"\xff"}']) is None


def test_slots_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_json, "MOST_SLOTS", 100)
    assert plain_ones("a list<long>", [b'{"a":[1,2,3]}']) == [1]
    assert plain_ones("a list<long>", [b'{"a":[' + b"1," * 100 + b"1]}"]) is None


def test_more_numbers_than_there_is_room_for_are_left() -> None:
    stored = [b'{"a":[' + b",".join([b"1e30"] * 100) + b"]}"]
    assert plain_ones("a list<double>", stored) == [0]
    found, expected = both("a list<double>", [*stored], is_strict=True)
    assert shown(found) == shown(expected)


def test_a_part_of_a_column_is_decoded_from_its_place() -> None:
    held = pa.array([b'{"a":1}', None, b'{"a":2}', b"x", b'{"a":3}'])
    decoder = plain_json.PlainJson(parse_columns("a long"), is_strict=True)
    found = decoder.decode(held.slice(1, 3), 100)
    assert found is not None
    assert found.is_plain.tolist() == [1, 1, 0]
    assert found.arrays[0].to_pylist()[:2] == [None, 2]
    assert np.count_nonzero(found.is_plain) == 2
