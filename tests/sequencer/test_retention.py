"""Which runs retention removes: a pure decision."""

from __future__ import annotations

from uuid import UUID

from sequencer.api import ObjectKind, Run
from sequencer.retention import RetentionLimits, expired_end, limits_of
from sequencer.settings import SequencerSettings


def run(base: int, at: int, length: int = 100, created: int = 0, kind: ObjectKind = ObjectKind.MIXED) -> Run:
    nil = UUID(int=0)
    return Run(nil, 0, base, base + 1, nil, kind, "k", 0, 0, 0, length, at, at, 1, created, [])


def test_time_stops_at_the_first_run_that_is_young() -> None:
    runs = [run(0, 10), run(1, 90), run(2, 10)]
    assert expired_end(runs, 300, RetentionLimits(50, -1), now_ms=100) == 1


def test_bytes_leave_at_least_what_is_promised() -> None:
    runs = [run(base, 100) for base in range(4)]
    assert expired_end(runs, 400, RetentionLimits(-1, 250), now_ms=100) == 1
    assert expired_end(runs, 400, RetentionLimits(-1, 0), now_ms=100) == 4
    assert expired_end(runs, 400, RetentionLimits(-1, 400), now_ms=100) is None


def test_records_without_a_time_age_from_their_commit() -> None:
    assert expired_end([run(0, -1, created=90)], 100, RetentionLimits(50, -1), now_ms=100) is None
    assert expired_end([run(0, -1, created=10)], 100, RetentionLimits(50, -1), now_ms=100) == 1


def test_markers_go_with_what_stood_before_them_and_age_when_they_stand_first() -> None:
    def marker(base: int, created: int) -> Run:
        return run(base, -1, created=created, kind=ObjectKind.MARKERS)

    limits = RetentionLimits(50, -1)
    assert expired_end([run(0, 10), marker(1, 99), marker(2, 99), run(3, 99)], 400, limits, now_ms=100) == 3
    assert expired_end([run(0, 99), marker(1, 99)], 200, limits, now_ms=100) is None
    assert expired_end([marker(0, 99)], 100, limits, now_ms=100) is None
    assert expired_end([marker(0, 10), run(1, 99)], 200, limits, now_ms=100) == 1


def test_a_compacted_topic_loses_nothing_by_age() -> None:
    settings = SequencerSettings()
    assert limits_of({"cleanup.policy": "compact", "retention.ms": "1"}, {}, settings).is_endless
    assert (
        limits_of({"cleanup.policy": "compact,delete", "retention.ms": "1"}, {}, settings).retention_ms == 1
    )


def test_an_empty_cleanup_policy_keeps_everything() -> None:
    assert limits_of({"cleanup.policy": "", "retention.ms": "1"}, {}, SequencerSettings()).is_endless


def test_the_clusters_defaults_hold_for_topics_without_a_config_of_their_own() -> None:
    settings = SequencerSettings()
    cluster = {"log.retention.ms": "5", "log.retention.bytes": "7"}
    assert limits_of({}, cluster, settings) == RetentionLimits(5, 7)
    assert limits_of({"retention.ms": "6"}, cluster, settings) == RetentionLimits(6, 7)
    assert limits_of({}, {**cluster, "log.cleanup.policy": "compact"}, settings).is_endless
