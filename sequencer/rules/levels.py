"""Levels: which small Parquet objects of a topic are merged into one.

Compaction makes an object whenever enough records wait, for a thin topic one an hour. So a topic's past is divided into
stretches of time, fewer and longer the older they are, and the small objects of one stretch become one:

- the hours of today: two stretches,
- the days of this period before today: two,
- each period before: one. A period has 30 days, or as many as the topic's retention.

So a topic's small objects are at most two of a day, and five of its last 30 days. An object's time is that of the swap
that put its newest records there; an object of `SMALL_BYTES` or more is left as it is.

Two stretches of n hours (or days) are divided by the binomial transform of Bentley and Saxe (1980) for two
components: the first has the largest triangular number of hours that n has room for, the second has the others. While
n grows to the next triangular number only the second grows, so an hour's records are written again at most about
sqrt(2n) times, for any sizes. A record is written at most `MOST_WRITES` times, if its topic gets at most one object an
hour.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from uuid import UUID

from sequencer.store.rows import SmallObjectRow

SMALL_BYTES = 64 << 20
"""An object as large as this is not merged any more."""
MOST_WRITES = 14
"""By compaction once, and by merges: 6 in its day, 6 in its period, once at the period's end."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PERIOD_DAYS = 30

Stretch = tuple[int, int]
"""A name: the first day and hour of the stretch, counted from the topic's first."""


def period_days(retention_ms: int) -> int:
    """Days of a topic's periods; 0 where nothing is merged, as its records go within the day.

    A record is deleted with the newest of its object, so this is what Kafka's segment.ms is.
    """
    return PERIOD_DAYS if retention_ms < 0 else min(PERIOD_DAYS, retention_ms // DAY_MS)


def first_part(count: int) -> int:
    """How many of so many hours or days are in the first of their two stretches."""
    root = (1 + isqrt(1 + 8 * count)) // 2
    return root * (root - 1) // 2


def stretch_of(time_ms: int, now_ms: int, days: int) -> Stretch:
    """The stretch that a time lies in, as of now. `days`: of a period."""
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
    """The groups of a topic's small objects that are to be merged, each of two or more, in the order of time.

    Objects of one millisecond stay in the order given.
    """
    days = period_days(retention_ms)
    if not days:
        return []
    # Topics begin their days at different times, so that not all of them are merged at midnight.
    shift_ms = topic_id.int % DAY_MS
    groups: dict[Stretch, list[SmallObjectRow]] = {}
    for row in sorted(objects, key=lambda row: row.ended_ms):
        stretch = stretch_of(row.ended_ms + shift_ms, now_ms + shift_ms, days)
        groups.setdefault(stretch, []).append(row)
    return [group for _, group in sorted(groups.items()) if len(group) > 1]
