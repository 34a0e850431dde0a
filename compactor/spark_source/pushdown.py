"""Converts filters that Spark pushes down to limits on what is read.

It accepts only filters that it applies exactly: on the topic, partition, offset and timestamp, which are never null.
Spark evaluates all others itself.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from compactor.spark_source.columns import NEVER_NULL

_NO_BOUND = 1 << 80
"""Above every offset and every time in µs: a record's time in ms may have 64 bits."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIELDS = {"partition": "partitions", "offset": "offsets", "timestamp": "times_us"}


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """The whole numbers from `first` to `last`, both inclusive."""

    first: int = -_NO_BOUND
    last: int = _NO_BOUND

    def within(self, other: IntegerRange) -> IntegerRange:
        return IntegerRange(max(self.first, other.first), min(self.last, other.last))

    def __contains__(self, value: int) -> bool:
        return self.first <= value <= self.last


EVERYTHING = IntegerRange()


@dataclass(frozen=True, slots=True)
class Limits:
    """The records that a query requests: topic, partition, offset and time (µs since 1970) must all be within.

    `chosen`: the partitions of an IN filter; None for any.
    """

    topics: frozenset[str] | None = None
    partitions: IntegerRange = EVERYTHING
    chosen: frozenset[int] | None = None
    offsets: IntegerRange = EVERYTHING
    times_us: IntegerRange = EVERYTHING

    def has_partition(self, topic: str, partition: int) -> bool:
        """Whether the query requests any record of the partition."""
        return (
            (self.topics is None or topic in self.topics)
            and partition in self.partitions
            and (self.chosen is None or partition in self.chosen)
        )


def push(limits: Limits, filters: Sequence[Filter]) -> tuple[Limits, list[Filter]]:
    """Return the limits with these filters applied, and the filters that Spark must evaluate."""
    left: list[Filter] = []
    for condition in filters:
        narrowed = _narrowed(limits, condition)
        if narrowed is None:
            left.append(condition)
        else:
            limits = narrowed
    return limits, left


def _narrowed(limits: Limits, pushed: Filter) -> Limits | None:
    """Return the limits with the filter applied; None if we don't accept the filter."""
    if len(getattr(pushed, "attribute", ())) != 1:
        return None
    (column,) = pushed.attribute
    if isinstance(pushed, IsNotNull):
        return limits if column in NEVER_NULL else None
    if isinstance(pushed, In):
        return _within_values(limits, column, pushed.value)
    if column == "topic" and isinstance(pushed, EqualTo | EqualNullSafe):
        return _within_values(limits, column, (pushed.value,))
    span = _span(pushed, _number(column, getattr(pushed, "value", None)))
    if span is None:
        return None
    field = _FIELDS[column]
    return replace(limits, **{field: getattr(limits, field).within(span)})


def _within_values(limits: Limits, column: str, values: tuple[Any, ...]) -> Limits | None:
    if column == "topic" and all(isinstance(value, str) for value in values):
        topics = frozenset(values)
        return replace(limits, topics=topics if limits.topics is None else topics & limits.topics)
    if column == "partition" and all(_number(column, value) is not None for value in values):
        chosen = frozenset(values)
        return replace(limits, chosen=chosen if limits.chosen is None else chosen & limits.chosen)
    return None


def _number(column: str, value: Any) -> int | None:
    """Return the value in the column's unit; None if we don't accept the filter."""
    if column == "timestamp":
        is_moment = isinstance(value, datetime) and value.tzinfo is not None
        return (value - _EPOCH) // _MICROSECOND if is_moment else None
    return value if column in _FIELDS and type(value) is int else None


def _span(pushed: Filter, value: int | None) -> IntegerRange | None:
    if value is None:
        return None
    match pushed:
        case EqualTo() | EqualNullSafe():
            return IntegerRange(value, value)
        case GreaterThan():
            return IntegerRange(first=value + 1)
        case GreaterThanOrEqual():
            return IntegerRange(first=value)
        case LessThan():
            return IntegerRange(last=value - 1)
        case LessThanOrEqual():
            return IntegerRange(last=value)
    return None
