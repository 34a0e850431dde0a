from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafkas_murmur2

from agent.gateway.errors import HttpRefusal, refusal_of
from agent.gateway.partitioning import STEP_BYTES, murmur2, partition_of
from agent.gateway.record_json import (
    MAX_HEADERS,
    Format,
    parse_record,
    record_read,
    time_text,
    timestamp_ms,
)
from tailrace.batches.records import NewRecord, Record
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import at_once


def stored(**fields: Any) -> NewRecord:
    return parse_record(json.dumps(fields).encode())[1]


def test_each_type_of_data_is_stored_as_its_bytes() -> None:
    assert stored(value={"type": "BINARY", "data": "AAECAw=="}).value == b"\x00\x01\x02\x03"
    assert stored(value={"type": "STRING", "data": "gr\u00fcn"}).value == "grün".encode()
    assert stored(value={"type": "JSON", "data": {"a": [1, 2.50]}}).value == b'{"a":[1,2.5]}'
    assert parse_record(b'{"value": {"type": "JSON", "data": {"a" : 1.50 }}}')[1].value == b'{"a":1.50}'
    assert stored(key={"type": "STRING", "data": "k"}) == NewRecord(b"k", None, [])
    assert stored(headers=[{"name": "h", "value": "eA=="}, {"name": "n"}]).headers == [
        ("h", b"x"),
        ("n", None),
    ]


def test_a_record_has_a_limited_number_of_headers() -> None:
    assert len(stored(headers=[{"name": "h"}] * MAX_HEADERS).headers) == MAX_HEADERS
    with pytest.raises(HttpRefusal, match="10000 headers") as refused:
        stored(headers=[{"name": "h"}] * (MAX_HEADERS + 1))
    assert refused.value.status == 413


@pytest.mark.parametrize("data", [{"type": "JSON", "data": None}, {"type": "BINARY"}, {}, None])
def test_null_is_no_value(data: object) -> None:
    assert stored(value=data).value is None


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"value": {"data": 1}}, "The value's type is missing; BINARY, STRING and JSON are served."),
        ({"key": {"type": "AVRO", "data": 1}}, "The key's type is AVRO;"),
        ({"key": {"type": "STRING", "data": 1}}, "The key's data must be a text, as its type is STRING."),
        ({"value": {"type": "BINARY", "data": "%"}}, "The value's data is not Base64."),
        ({"headers": [{"name": "h", "value": "%"}]}, "The header's data is not Base64."),
        ({"headers": [{}]}, "The record can't be read: Object missing required field `name`"),
        ({"partition_id": "1"}, "The record can't be read: Expected `int | null`, got `str`"),
        ({"timestamp": "yesterday"}, "The record can't be read: Invalid RFC3339 encoded datetime"),
    ],
)
def test_a_record_that_can_t_be_read_says_why(record: object, said: str) -> None:
    with pytest.raises(HttpRefusal) as refused:
        parse_record(json.dumps(record).encode())
    assert refused.value.status == 400 and str(refused.value).startswith(said)


@pytest.mark.parametrize(
    "text",
    [
        b'{"value": "\xff"}',
        b'{"value": {"type": "STRING", "data": "\xff"}}',
        b'{"value": {"type": "JSON", "data": "\xff"}}',
        b'{"value": {"type": "STRING", "data": "\\ud800"}}',
        b"{]}",
    ],
)
def test_bytes_that_are_no_text_are_refused(text: bytes) -> None:
    with pytest.raises(HttpRefusal):
        parse_record(text)


@given(
    key=st.none() | st.binary(),
    value=st.none() | st.binary(),
    wanted=st.sampled_from(["BINARY", "STRING", "JSON"]),
)
@example(key=None, value=b" null", wanted="JSON")
def test_records_that_were_read_can_be_produced_again(
    key: bytes | None, value: bytes | None, wanted: Format
) -> None:
    record = Record(7, 1_700_000_000_123, key, value, [("h", b"\x00"), ("n", None)])
    read = record_read(record, cluster_id="c", topic="t", partition=1, key="BINARY", value=wanted)
    text = msgspec.json.encode(read)
    assert b"\n" not in text, "an event's data is one line"
    given_again, again = parse_record(text)
    assert (again.key, again.headers) == (key, list(record.headers))
    assert again.value == value or (
        wanted == "JSON" and json.loads(again.value or b"") == json.loads(value or b"")
    )
    assert timestamp_ms(given_again, 0) == record.timestamp


@pytest.mark.parametrize("depth", [900, 990, 1_000, 200_000])
def test_json_that_is_nested_too_deeply_is_refused_and_read_as_bytes(depth: int) -> None:
    value = b"[" * depth + b"]" * depth
    try:
        assert parse_record(b'{"value": {"type": "JSON", "data": ' + value + b"}}")[1].value == value
    except HttpRefusal as refused:
        assert str(refused).startswith("The record can't be read: maximum recursion depth")
    record = Record(0, 0, None, value, ())
    read = record_read(record, cluster_id="c", topic="t", partition=0, key="BINARY", value="JSON")
    assert read.value is not None and read.value.type in ("JSON", "BINARY")
    msgspec.json.encode(read)


def test_times_that_no_calendar_has_are_none() -> None:
    assert time_text(-1) is None and time_text(1 << 62) is None
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    given_, _ = parse_record(b'{"timestamp": "2026-01-31T12:00:00+02:00"}')
    naive, _ = parse_record(b'{"timestamp": "2026-01-31T10:00:00"}')
    assert timestamp_ms(given_, 0) == timestamp_ms(naive, 0) == 1_769_853_600_000
    assert timestamp_ms(parse_record(b"{}")[0], 5) == 5
    first, before = (
        parse_record(json.dumps({"timestamp": text}).encode())[0]
        for text in ("1970-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z")
    )
    assert timestamp_ms(first, 5) == 0
    with pytest.raises(HttpRefusal, match="before 1970"):
        timestamp_ms(before, 5)


def partition(given: int | None, key: bytes | None, count: int, keyless: int) -> int:
    return at_once(partition_of(given, key, count, keyless))


@given(st.one_of(st.binary(max_size=40), st.binary(min_size=STEP_BYTES - 3, max_size=STEP_BYTES + 9)))
def test_a_key_goes_where_javas_producer_sends_it(key: bytes) -> None:
    assert at_once(murmur2(key)) == kafkas_murmur2(key) & 0xFFFFFFFF
    assert partition(None, key, 7, 0) == (kafkas_murmur2(key) & 0x7FFFFFFF) % 7


def test_records_without_a_key_go_where_their_group_goes() -> None:
    assert [partition(None, None, 3, group) for group in range(4)] == [0, 1, 2, 0]
    assert partition(9, b"k", 3, 0) == 9


def test_every_error_is_a_sentence() -> None:
    for code in ErrorCode:
        refusal = refusal_of(code)
        assert 400 <= refusal.status < 600 and str(refusal).endswith(".") and str(refusal)[0].isupper()
        assert str(refusal.code)[0] == str(refusal.status)[0]
    assert str(refusal_of(ErrorCode.INVALID_CONFIG, "the value is wrong")) == "The value is wrong."
    assert str(refusal_of(ErrorCode.INVALID_CONFIG, "retention.ms: no value")) == "retention.ms: no value."
    secret = refusal_of(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic t exists")
    assert str(secret) == "You are not allowed to do this with this topic."
