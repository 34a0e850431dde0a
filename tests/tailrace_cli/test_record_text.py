"""Records as text: what is shown can be read back, and what is no record is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace_cli.errors import CommandFailed
from tailrace_cli.record_text import (
    Encoding,
    TextRecord,
    compile_template,
    from_json,
    iso_time,
    parse_time_ms,
    to_bytes,
    to_json,
    to_text,
)

NOW_MS = 1_800_000_000_000
DATA = st.none() | st.binary(max_size=20)


@given(
    st.builds(
        TextRecord,
        value=DATA,
        key=DATA,
        headers=st.lists(st.tuples(st.text(max_size=5), DATA), max_size=3),
        partition=st.none() | st.integers(0, 2**31 - 1),
        timestamp_ms=st.none() | st.integers(0, 2**53),
    ),
    st.sampled_from([Encoding.HEX, Encoding.BASE64]),
)
@settings(
    suppress_health_check=[HealthCheck.too_slow]
)  # the first text builds hypothesis' table of characters
def test_a_record_of_any_bytes_is_read_back_from_its_json(record: TextRecord, encoding: Encoding) -> None:
    assert from_json(to_json(record, encoding), encoding) == record


def test_json_values_that_are_no_strings_are_written_as_json() -> None:
    record = from_json('{"key": 7, "value": {"a": [1, null]}, "headers": {"h": "x"}}', Encoding.TEXT)

    assert (record.key, record.value, list(record.headers)) == (b"7", b'{"a":[1,null]}', [("h", b"x")])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not a line of JSON"),
        ("[1]", 'at least "value"'),
        ('{"key": "a"}', 'at least "value"'),
        ('{"value": "a", "vlaue": 1}', "a record has no field vlaue"),
        ('{"value": "a", "headers": 5}', '"headers" must be'),
        ('{"value": "a", "headers": [["a"]]}', '"headers" must be'),
        ('{"value": "a", "headers": [[1, "a"]]}', '"headers" must be'),
        ('{"value": "a", "headers": {"a": 1}}', '"headers" must be'),
        ('{"value": "a", "partition": true}', '"partition" must be a whole number'),
        ('{"value": "a", "timestamp": "x"}', '"timestamp" must be a whole number'),
    ],
)
def test_a_line_that_is_no_record_is_refused(line: str, said: str) -> None:
    with pytest.raises(CommandFailed, match=said):
        from_json(line, Encoding.TEXT)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("xyz", Encoding.HEX), ("a", Encoding.BASE64), ("ä", Encoding.HEX), ("\ud800", Encoding.TEXT)],
)
def test_text_of_another_encoding_is_refused(text: str, encoding: Encoding) -> None:
    with pytest.raises(CommandFailed, match=f"is not {encoding.value}"):
        to_bytes(text, encoding)


def test_a_template_names_fields_and_knows_escapes() -> None:
    record = TextRecord(
        value=b"v{key}",
        key=None,
        headers=[("a", b"1"), ("b", None)],
        topic="t",
        partition=2,
        offset=9,
        timestamp_ms=0,
    )
    template = r"{topic}-{partition}@{offset}\t{key}|{value}|{headers}|{timestamp}|{time}"

    assert compile_template(template, Encoding.TEXT)(record) == (
        "t-2@9\t|v{key}|a=1,b=|0|1970-01-01T00:00:00.000+00:00"
    )
    with pytest.raises(CommandFailed, match=r"no field \{ofset\}"):
        compile_template("{ofset}", Encoding.TEXT)


def test_bytes_that_are_no_utf_8_are_shown_all_the_same() -> None:
    assert to_text(b"\xff", Encoding.TEXT) == "\ufffd"
    assert to_text(b"\xff", Encoding.HEX) == "ff"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOW_MS - 90_000),
        ("7d", NOW_MS - 7 * 86_400_000),
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
    ],
)
def test_a_time_is_a_moment_or_how_long_ago(text: str, expected: int) -> None:
    assert parse_time_ms(text, NOW_MS) == expected


def test_an_invalid_time_is_refused_and_times_beyond_the_calendar_are_numbers() -> None:
    with pytest.raises(CommandFailed, match="'soon' is not a time"):
        parse_time_ms("soon", NOW_MS)
    assert iso_time(2**62) == str(2**62)
