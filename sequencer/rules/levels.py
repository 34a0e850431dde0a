"""Levels: which small Parquet objects of a topic are merged into one.

Compaction makes an object whenever enough records wait; for a topic with little traffic that is one per hour. So a
topic's past is divided into stretches of time, which get fewer and longer with age, and the small objects of one
stretch are merged into one:

- the hours of today: two stretches,
- the days of this period before today: two,
- each earlier period: one. A period has 30 days, or as many as the topic's retention if that is less.

So a topic has at most two small objects per day, and five for its last 30 days. An object's time is the time of the
swap that brought its newest records; an object of `SMALL_BYTES` or more is left as it is.

Two stretches of n hours (or days) are divided by the binomial transform of Bentley and Saxe (1980) for two components:
the first has the largest triangular number of hours that is at most n, the second has the rest. While n grows to the
next triangular number only the second one grows, so the records of an hour are rewritten at most about sqrt(2n) times,
whatever the sizes. A record is written at most `MOST_WRITES` times if its topic gets at most one object per hour.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from uuid import UUID

from sequencer.store.rows import SmallObjectRow

SMALL_BYTES = 64 << 20
"""An object of this size or more is not merged any more."""
MOST_WRITES = 14
"""Once by compaction, and by merges: 6 times in its day, 6 in its period, once at the end of the period."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PERIOD_DAYS = 30

Stretch = tuple[int, int]
"""The name of a stretch: its first day and hour, counted from the topic's first."""


def period_days(retention_ms: int) -> int:
    """Return the length of a topic's periods in days; 0 if nothing is merged because records expire within the day.

    A record is deleted together with the newest record of its object, so this corresponds to Kafka's segment.ms.
    """
    return PERIOD_DAYS if retention_ms < 0 else min(PERIOD_DAYS, retention_ms // DAY_MS)


def first_part(count: int) -> int:
    """Return how many of `count` hours or days are in the first of their two stretches."""
    root = (1 + isqrt(1 + 8 * count)) // 2
    return root * (root - 1) // 2


def stretch_of(time_ms: int, now_ms: int, days: int) -> Stretch:
    """Return the stretch that contains a time, as of now. `days`: length of a period."""
    today, hours = divmod(max(time_ms, now_ms) // HOUR_MS, 24)
    day, hour = divmod(time_ms // HOUR_MS, 24)
    if day == today:
        return today, first_part(hours + 1) if hour >= first_part(hours + 1) else 0
    begin = today - today % days
    if day < begin:
        return day - day % days, 0
    middle = begin + first_part(today - begin)
    return (middle if day >= middle else begin), 0


def to_merge(
    topic_id: UUID, objects: Iterable[SmallObjectRow], *, now_ms: int, retention_ms: int
) -> list[list[SmallObjectRow]]:
    """Return the groups of a topic's small objects to merge, each of two or more objects, in time order.

    Objects of the same millisecond stay in the given order.
    """
    days = period_days(retention_ms)
    if not days:
        return []
    # Topics begin their days at different times, so that they are not all merged at midnight.
    shift_ms = topic_id.int % DAY_MS
    groups: dict[Stretch, list[SmallObjectRow]] = {}
    for row in sorted(objects, key=lambda row: row.ended_ms):
        stretch = stretch_of(row.ended_ms + shift_ms, now_ms + shift_ms, days)
        groups.setdefault(stretch, []).append(row)
    return [group for _, group in sorted(groups.items()) if len(group) > 1]
