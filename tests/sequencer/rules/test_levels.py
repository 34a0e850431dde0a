"""Levels: how few small objects a topic has, and how often its records are written for that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from sequencer.rules.levels import DAY_MS, HOUR_MS, MOST_WRITES, period_days, stretch_of, to_merge
from sequencer.store.rows import SmallObjectRow

TOPIC = UUID(int=7 * HOUR_MS)


@dataclass
class Month:
    """A topic that gets an object at each of some times, merged at once; `writes` says how often each was written."""

    retention_ms: int = -1
    objects: list[SmallObjectRow] = field(default_factory=list)
    writes: dict[UUID, list[int]] = field(default_factory=dict)
    began: dict[UUID, int] = field(default_factory=dict)
    made: int = 0

    def add(self, now_ms: int) -> None:
        self._put([], now_ms, now_ms, 1, [1])
        while groups := self._due(now_ms):
            for group in groups:
                self.objects = [row for row in self.objects if row not in group]
                writes = [count + 1 for row in group for count in self.writes.pop(row.object_id)]
                begun = min(self.began[row.object_id] for row in group)
                self._put(group, begun, group[-1].ended_ms, sum(row.size for row in group), writes)

    def _due(self, now_ms: int) -> list[list[SmallObjectRow]]:
        return to_merge(TOPIC, self.objects, now_ms=now_ms, retention_ms=self.retention_ms)

    def _put(
        self, group: Iterable[SmallObjectRow], begun: int, ended: int, size: int, writes: list[int]
    ) -> None:
        self.made += 1
        row = SmallObjectRow(TOPIC, UUID(int=self.made), ended, size)
        self.objects.append(row)
        self.writes[row.object_id] = writes
        self.began[row.object_id] = begun

    def of(self, begin_ms: int, end_ms: int) -> int:
        """How many objects hold records of this time."""
        return sum(self.began[row.object_id] < end_ms and row.ended_ms >= begin_ms for row in self.objects)


def own_midnight(day: int) -> int:
    return day * DAY_MS - TOPIC.int % DAY_MS


def test_a_thin_topic_has_two_objects_a_day_and_five_of_its_last_month() -> None:
    month = Month()
    for hour in range(24 * 92):
        now_ms = own_midnight(20_010) + hour * HOUR_MS + 1_000
        month.add(now_ms)
        assert month.of(now_ms - 30 * DAY_MS, now_ms + 1) <= 5
        today = 20_010 + hour // 24
        for day in range(max(20_010, today - 30), today + 1):
            assert month.of(own_midnight(day), own_midnight(day + 1)) <= 2
    counts = [count for written in month.writes.values() for count in written]
    assert len(counts) == 24 * 92
    assert max(counts) == MOST_WRITES
    assert sum(counts) / len(counts) < 11


def test_objects_that_come_together_are_one_in_the_end() -> None:
    month = Month()
    for _ in range(50):
        month.add(own_midnight(20_010))
    assert len(month.objects) == 1


def test_objects_of_different_stretches_are_not_merged() -> None:
    now_ms = 20_010 * DAY_MS + 22 * HOUR_MS  # the first day of a period
    assert stretch_of(now_ms, now_ms, 30) == (20_010, 21)
    assert stretch_of(now_ms - 2 * HOUR_MS, now_ms, 30) == (20_010, 0)
    assert stretch_of(now_ms - DAY_MS, now_ms, 30) == (19_980, 0)
    later = now_ms + 4 * DAY_MS
    assert [stretch_of(later - days * DAY_MS, later, 30)[0] for days in (1, 2, 3, 4)] == [
        20_013, 20_010, 20_010, 20_010,
    ]  # fmt: skip


def test_a_time_ahead_of_the_clock_is_of_the_newest_stretch() -> None:
    now_ms = 20_010 * DAY_MS
    assert stretch_of(now_ms + HOUR_MS, now_ms, 30) == stretch_of(now_ms + HOUR_MS, now_ms + HOUR_MS, 30)


@pytest.mark.parametrize(
    ("retention_ms", "days"), [(-1, 30), (7 * DAY_MS, 7), (DAY_MS - 1, 0), (1 << 62, 30)]
)
def test_a_period_is_not_longer_than_the_retention(retention_ms: int, days: int) -> None:
    assert period_days(retention_ms) == days


def test_records_of_a_topic_with_short_retention_are_not_merged() -> None:
    month = Month(retention_ms=HOUR_MS)
    for _ in range(3):
        month.add(own_midnight(20_010))
    assert len(month.objects) == 3
