"""Records as JSON: the format of Kafka REST v3 for producing. Records that are read have the same format. Pure.

    {"partition_id": 1, "key": {"type": "STRING", "data": "k"}, "value": {"type": "JSON", "data": {"n": 1}},
     "headers": [{"name": "h", "value": "dmFsdWU="}], "timestamp": "2026-01-31T12:00:00Z"}

BINARY data is Base64, STRING data a string, JSON data any value, which is stored without white space. `null` means no
key or no value. Header values are Base64.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from agent.gateway.errors import HttpRefusal
from tailrace.batches.records import NewRecord, Record

Format = Literal["BINARY", "STRING", "JSON"]
_EPOCH = datetime.fromtimestamp(0, UTC)
_NULL = b"null"
MAX_HEADERS = 10_000
"""The most headers of a record to produce. They are converted in one turn of the loop. The gateway could not read a
record with twice as many either."""
_MILLISECOND = timedelta(milliseconds=1)


class RecordData(msgspec.Struct):
    """A key or a value. `type` is checked by hand, so that the error message can say what to do."""

    type: str | None = None
    data: msgspec.Raw = msgspec.Raw(_NULL)


class JsonHeader(msgspec.Struct):
    """A header. `value`: Base64."""

    name: str
    value: str | None = None


class RecordToProduce(msgspec.Struct):
    """One record of a request."""

    partition_id: int | None = None
    headers: list[JsonHeader] = []
    key: RecordData | None = None
    value: RecordData | None = None
    timestamp: datetime | None = None


class StoredSize(msgspec.Struct):
    """The size of a stored key or value, in bytes."""

    type: str
    size: int


class Produced(msgspec.Struct):
    """The report of a stored record."""

    error_code: int
    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str | None
    key: StoredSize | None
    value: StoredSize | None


class RecordRead(msgspec.Struct):
    """A record that was read."""

    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str | None
    headers: list[JsonHeader]
    key: RecordData | None
    value: RecordData | None


_DECODER = msgspec.json.Decoder(RecordToProduce)


def parse_record(text: bytes) -> tuple[RecordToProduce, NewRecord]:
    """Parse a record of a request. Return it, and what is stored of it. Raises HttpRefusal."""
    try:
        given = _DECODER.decode(text.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpRefusal(400, f"The record can't be read: {error}.") from None
    if len(given.headers) > MAX_HEADERS:
        raise HttpRefusal(413, f"A record may have {MAX_HEADERS} headers.")
    headers = [(header.name, _binary(header.value, "header")) for header in given.headers]
    return given, NewRecord(_bytes_of(given.key, "key"), _bytes_of(given.value, "value"), headers)


def timestamp_ms(given: RecordToProduce, now_ms: int) -> int:
    """Return the record's time in ms since 1970. A time without a zone is UTC. Raises HttpRefusal for a time before
    1970, which Kafka's producers refuse, too."""
    moment = given.timestamp
    if moment is None:
        return now_ms
    since_epoch = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    if since_epoch < timedelta(0):
        raise HttpRefusal(400, "The timestamp is before 1970.")
    return since_epoch // _MILLISECOND


def time_text(ms: int) -> str | None:
    """Format the time as RFC 3339; None for no time, or one outside the calendar."""
    if ms < 0:
        return None
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_of(given: RecordData | None, stored: bytes | None) -> StoredSize | None:
    """Return the report's entry for a key or value."""
    return None if given is None or stored is None else StoredSize(given.type or "", len(stored))


def _bytes_of(given: RecordData | None, what: str) -> bytes | None:
    if given is None or bytes(given.data) == _NULL:
        return None
    if given.type == "JSON":
        return msgspec.json.format(bytes(given.data), indent=-1)  # the decoder has checked its depth
    if given.type not in ("BINARY", "STRING"):
        raise HttpRefusal(
            400,
            f"The {what}'s type is {given.type or 'missing'}; BINARY, STRING and JSON are served. "
            "Encode data that has a schema yourself, and send it as BINARY.",
        )
    try:
        text = msgspec.json.decode(given.data, type=str)
    except msgspec.DecodeError:
        raise HttpRefusal(400, f"The {what}'s data must be a text, as its type is {given.type}.") from None
    return text.encode() if given.type == "STRING" else _binary(text, what)


def _binary(text: str | None, what: str) -> bytes | None:
    try:
        return None if text is None else b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise HttpRefusal(400, f"The {what}'s data is not Base64.") from None


def record_read(
    record: Record, *, cluster_id: str, topic: str, partition: int, key: Format, value: Format
) -> RecordRead:
    """Convert a record to the formats that the client prefers. Data that can't have the format is BINARY; so is JSON's
    `null`, which would mean no data if it were produced again."""
    return RecordRead(
        cluster_id=cluster_id,
        topic_name=topic,
        partition_id=partition,
        offset=record.offset,
        timestamp=time_text(record.timestamp),
        headers=[JsonHeader(name, _base64(data)) for name, data in record.headers],
        key=_data(record.key, key),
        value=_data(record.value, value),
    )


def _data(stored: bytes | None, wanted: Format) -> RecordData | None:
    if stored is None:
        return None
    if wanted != "BINARY":
        try:
            text = stored.decode()
            raw = msgspec.json.encode(text) if wanted == "STRING" else msgspec.json.format(stored, indent=-1)
            if raw != b"null":
                return RecordData(wanted, msgspec.Raw(raw))
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
            pass
    return RecordData("BINARY", msgspec.Raw(msgspec.json.encode(_base64(stored))))


def _base64(stored: bytes | None) -> str | None:
    return None if stored is None else b64encode(stored).decode()
