"""Records as text: how the commands print and parse bytes, times and record templates."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tailrace_cli.errors import CommandFailed, WrongUsage

_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_DURATION_DIGITS = 10
MAX_PARTITION = (1 << 31) - 1
_MOST = {"partition": MAX_PARTITION, "timestamp": (1 << 63) - 1}
"""The largest values of Kafka's int32 and int64 fields."""
_FIELD = re.compile(r"\{(\w+)\}")
_ESCAPES = {r"\t": "\t", r"\n": "\n", r"\r": "\r", r"\0": "\0", r"\\": "\\"}
_ESCAPE = re.compile(r"\\[tnr0\\]")


class Encoding(StrEnum):
    """How the bytes of keys and values are written as text."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


@dataclass(frozen=True)
class TextRecord:
    """One record, as the commands parse and print it."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None


def to_text(data: bytes | None, encoding: Encoding) -> str | None:
    """Encode bytes as text. Invalid UTF-8 becomes replacement characters."""
    if data is None:
        return None
    if encoding is Encoding.HEX:
        return data.hex()
    if encoding is Encoding.BASE64:
        return base64.b64encode(data).decode()
    return data.decode(errors="replace")


def is_changed_as_text(record: TextRecord) -> bool:
    """Whether the key, the value or a header has bytes that are not UTF-8, which text can't show."""
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    return any(part is not None and part.decode(errors="replace").encode() != part for part in parts)


def to_bytes(text: str | None, encoding: Encoding) -> bytes | None:
    """Decode text to bytes. Raises CommandFailed."""
    if text is None:
        return None
    try:
        if encoding is Encoding.HEX:
            return bytes.fromhex(text)
        if encoding is Encoding.BASE64:
            return base64.b64decode(text, validate=True)
        return text.encode("utf-8", "surrogateescape")
    except ValueError as error:
        raise CommandFailed(f"{_cut(text)!r} is not {encoding.value}: {error}") from None


def to_json(record: TextRecord, encoding: Encoding) -> str:
    """Format a record as one line of JSON, which `from_json` can read."""
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": to_text(record.key, encoding),
            "value": to_text(record.value, encoding),
            "headers": [[name, to_text(value, encoding)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )


def from_json(line: str, encoding: Encoding) -> TextRecord:
    """Parse a record from a line of JSON: value, key, headers (a list of pairs or an object), partition, timestamp.

    A key or value that is not a string is stored as JSON. Topic and offset are ignored. Raises CommandFailed.
    """
    try:
        given = json.loads(line)
    except ValueError as error:
        raise CommandFailed(f"not a line of JSON ({error}): {_cut(line)}") from None
    if not isinstance(given, dict) or "value" not in given:
        raise CommandFailed(f'expected a JSON object with at least "value": {_cut(line)}')
    if unknown := given.keys() - {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}:
        raise CommandFailed(f"a record has no field {', '.join(sorted(unknown))}: {_cut(line)}")
    headers = given.get("headers") or []
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list) or not all(_is_header(pair) for pair in pairs):
        raise CommandFailed(f'"headers" must be an object or a list of pairs of strings: {_cut(line)}')
    for name in ("partition", "timestamp"):
        number, most = given.get(name), _MOST[name]
        if number is not None and (type(number) is not int or not 0 <= number <= most):
            raise CommandFailed(f'"{name}" must be a whole number from 0 to {most}: {_cut(line)}')
    return TextRecord(
        value=to_bytes(_as_text(given["value"]), encoding),
        key=to_bytes(_as_text(given.get("key")), encoding),
        headers=[(name, to_bytes(value, encoding)) for name, value in pairs],
        partition=given.get("partition"),
        timestamp_ms=given.get("timestamp"),
    )


def compile_template(template: str, encoding: Encoding) -> Callable[[TextRecord], str]:
    """Return a function that formats records by a template such as `{key}\\t{value}`.

    Raises CommandFailed for an unknown field.
    """
    fields: dict[str, Callable[[TextRecord], object]] = {
        "topic": lambda record: record.topic,
        "partition": lambda record: record.partition,
        "offset": lambda record: record.offset,
        "timestamp": lambda record: record.timestamp_ms,
        "time": lambda record: None if record.timestamp_ms is None else iso_time(record.timestamp_ms),
        "key": lambda record: to_text(record.key, encoding),
        "value": lambda record: to_text(record.value, encoding),
        "headers": lambda record: ",".join(
            f"{name}={to_text(value, encoding) or ''}" for name, value in record.headers
        ),
    }
    text = unescape(template)
    for name in _FIELD.findall(text):
        if name not in fields:
            raise WrongUsage(f"--format: no field {{{name}}}; the fields are {', '.join(fields)}")

    def write(record: TextRecord) -> str:
        def field(match: re.Match[str]) -> str:
            value = fields[match[1]](record)
            return "" if value is None else str(value)

        return _FIELD.sub(field, text)

    return write


def unescape(text: str) -> str:
    """Replace \\t, \\n, \\r, \\0 and \\\\ by their characters."""
    return _ESCAPE.sub(lambda match: _ESCAPES[match[0]], text)


def parse_time_ms(text: str, now_ms: int) -> int:
    """Parse a time to ms since 1970. It is ISO 8601 (UTC without a zone), ms since 1970, or an age: 90s, 15m, 2h, 7d.

    Raises CommandFailed, also for a time before 1970, which Kafka does not have.
    """
    time_ms = _parse_any_time_ms(text, now_ms)
    if time_ms < 0:
        raise WrongUsage(f"{text!r} is a time before 1970; give a later one")
    return time_ms


def _parse_any_time_ms(text: str, now_ms: int) -> int:
    if (duration := _DURATION.fullmatch(text)) and len(duration[1]) <= MAX_DURATION_DIGITS:
        return now_ms - int(duration[1]) * _UNIT_MS[duration[2]]
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(
            f"{text!r} is not a time; expected 2026-01-31T12:00, ms since 1970, or how long ago: 90s, 15m, 2h, 7d"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_duration_ms(text: str, flag: str) -> int:
    """Parse a positive duration, such as 500ms, 90s, 15m, 2h or 7d, to ms. Raises CommandFailed."""
    duration = _DURATION.fullmatch(text)
    if duration is None or len(duration[1]) > 9 or not int(duration[1]):
        raise WrongUsage(f"{flag} {text!r}: expected a duration, such as 60s, 5m or 1h")
    return int(duration[1]) * _UNIT_MS[duration[2]]


def iso_time(timestamp_ms: int) -> str:
    """Format ms since 1970 as ISO 8601 in UTC, or as the plain number if no calendar date has it."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def _is_header(pair: Any) -> bool:
    match pair:
        case [str() as name, str() | None]:
            return _is_utf8(name)
    return isinstance(pair, tuple) and isinstance(pair[1], str | None) and _is_utf8(pair[0])


def _is_utf8(name: str) -> bool:
    """Whether UTF-8 can encode the name. JSON can escape half of a surrogate pair, which librdkafka can't send."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
