"""Compares two answers as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

KEYS = (
    ("name", "topic_id"),
    ("topic", "topic_id"),
    ("topic_name",),
    ("resource_type", "resource_name"),
    ("partition_index",),
    ("partition",),
    ("index",),
    ("api_key",),
    ("group_id",),
    ("transactional_id",),
    ("user",),
    ("entity_type",),
    ("partition_id",),
    ("mechanism",),
    ("member_id",),
    ("base_offset",),
    ("producer_id",),
)
"""The fields by which the items of a list are known: the first that all of them have."""
MISSING = "<missing>"
ORDER = "<order>"


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not alike. `path` names fields and, in lists, items by their keys: topics.a.error_code."""

    script: str
    step: str
    path: str
    kafka: Any
    tailrace: Any

    def __str__(self) -> str:
        return f"{self.script} | {self.step} | {self.path}: {_short(self.kafka)} -> {_short(self.tailrace)}"


def differences(
    script: str, step: str, kafka: Any, tailrace: Any, unordered: Sequence[str] = ()
) -> list[Difference]:
    """Everything that differs. Another order of the same items is one difference, at `LIST.<order>`.

    Where the error codes of two structures differ, their other fields are not looked at.
    """
    return [Difference(script, step, *found) for found in _compared(kafka, tailrace, "", "", unordered)]


def _compared(
    kafka: Any, tailrace: Any, path: str, name: str, unordered: Sequence[str]
) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(kafka, dict) and isinstance(tailrace, dict):
        is_other_error = kafka.get("error_code") != tailrace.get("error_code")
        for field in ["error_code"] if is_other_error else kafka | tailrace:
            one, other = kafka.get(field, MISSING), tailrace.get(field, MISSING)
            yield from _compared(one, other, _under(path, field), field, unordered)
    elif isinstance(kafka, list) and isinstance(tailrace, list):
        yield from _compared_lists(kafka, tailrace, path, name in unordered, unordered)
    elif kafka != tailrace or type(kafka) is not type(tailrace):
        yield path, kafka, tailrace


def _compared_lists(
    kafka: list[Any], tailrace: list[Any], path: str, any_order: bool, unordered: Sequence[str]
) -> Iterator[tuple[str, Any, Any]]:
    if any_order:
        kafka, tailrace = _in_order(kafka), _in_order(tailrace)
    ones, others = _keyed(kafka, tailrace)
    common = [key for key in ones if key in others]
    if not any_order and common != [key for key in others if key in ones]:
        yield _under(path, ORDER), list(ones), list(others)
    for key in ones | others:
        one, other = ones.get(key, MISSING), others.get(key, MISSING)
        yield from _compared(one, other, _under(path, key), "", unordered)


def _in_order(value: Any) -> Any:
    """The value with its lists sorted."""
    if isinstance(value, dict):
        return {key: _in_order(item) for key, item in value.items()}
    return sorted(map(_in_order, value), key=str) if isinstance(value, list) else value


def _keyed(kafka: list[Any], tailrace: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both lists by what their items are known by; where they have no key of their own, by their values or places."""
    items = [*kafka, *tailrace]
    if items and all(isinstance(item, dict) for item in items):
        fields = next((key for key in KEYS if all(key[0] in item for item in items)), ())
        if not fields:
            return ({str(n): item for n, item in enumerate(rows)} for rows in (kafka, tailrace))
        return _by_fields(kafka, fields), _by_fields(tailrace, fields)
    return _by_value(kafka), _by_value(tailrace)


def _by_fields(rows: list[Any], fields: Sequence[str]) -> dict[str, Any]:
    names = [_name(row, fields) for row in rows]
    return dict(zip(_unlike(names), rows, strict=True))


def _name(row: Any, fields: Sequence[str]) -> str:
    named = [str(row[field]) for field in fields if row.get(field) not in (None, "", "<uuid 0>")]
    return "/".join(named[:1] if fields[0] in ("name", "topic") else named)


def _by_value(rows: list[Any]) -> dict[str, Any]:
    return dict(zip(_unlike([str(row) for row in rows]), rows, strict=True))


def _unlike(names: list[str]) -> list[str]:
    """The names, the second of two alike as NAME#2."""
    seen: Counter[str] = Counter()
    unlike = []
    for name in names:
        seen[name] += 1
        unlike.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return unlike


def _under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}..."
