"""Rounds that go on for months: what ends one, what follows it, and what is seen of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest
import structlog
from prometheus_client import CollectorRegistry

from compactor.cycle import CompactionSummary
from compactor.metrics import CompactorPages
from compactor.rewrite import RewriteFailure
from compactor.rounds import MAX_LOGGED_FAILURES, RoundOutcome, Rounds, Totals
from sequencer.api.errors import IncarnationChanged, LeaseLost, SequencerUnavailable
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import Log, batch_of


class JumpingClock(ManualClock):
    """A clock on which sleeping takes no time; it keeps what was slept."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)


def rounds_of(
    clock: JumpingClock,
    *outcomes: Exception | None,
    takes_s: float = 0.0,
    expected_errors: tuple[type[Exception], ...] = (),
) -> tuple[Rounds, Callable[[], bool]]:
    """Rounds that end so, one after another, and whether the last one has run."""
    left = list(outcomes)

    async def run_round(summary: CompactionSummary) -> None:
        clock.advance(takes_s)
        summary.objects, summary.oldest_ms = 2, clock.wall_ms() - 5_000
        summary.table_failures = ["table 't': no catalog"]
        error = left.pop(0)
        if error is not None:
            raise error

    return Rounds(run_round, clock, expected_errors=expected_errors), lambda: not left


def test_rounds_end_when_the_database_is_another_one() -> None:
    clock = JumpingClock()
    rounds, is_last = rounds_of(clock, None, IncarnationChanged("it was recovered"), None)

    with pytest.raises(IncarnationChanged):
        asyncio.run(rounds.keep_on(60, until=is_last))

    assert rounds.outcomes == {RoundOutcome.DONE: 1, RoundOutcome.FAILED: 1}


def test_a_round_that_fails_is_followed_by_the_next_one() -> None:
    clock = JumpingClock()
    rounds, is_last = rounds_of(clock, SequencerUnavailable("gone"), KeyError("a bug"), None)
    asyncio.run(rounds.keep_on(60, until=is_last))
    assert rounds.outcomes == {RoundOutcome.FAILED: 2, RoundOutcome.DONE: 1}
    assert rounds.totals.objects == 6


@pytest.mark.parametrize(("takes_s", "pauses"), [(10.0, [50.0, 50.0]), (90.0, [0.0, 0.0])])
def test_rounds_begin_at_the_interval_or_at_once_after_a_longer_one(
    takes_s: float, pauses: list[float]
) -> None:
    clock = JumpingClock()
    rounds, is_last = rounds_of(clock, None, None, None, takes_s=takes_s)
    asyncio.run(rounds.keep_on(60, until=is_last))
    assert clock.slept == pauses


def test_a_standby_asks_every_second_whether_the_lease_is_free() -> None:
    clock = JumpingClock()
    rounds, is_last = rounds_of(clock, LeaseLost("held"), LeaseLost("held"), None)
    asyncio.run(rounds.keep_on(60, until=is_last))
    assert clock.slept == [1.0, 1.0]
    assert rounds.outcomes == {RoundOutcome.STANDBY: 2, RoundOutcome.DONE: 1}


async def test_a_cancelled_round_ends_the_rounds() -> None:
    begun = asyncio.Event()

    async def run_round(summary: CompactionSummary) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(Rounds(run_round, JumpingClock()).keep_on(60, until=lambda: False))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_age_of_the_backlog_stays_until_a_round_ends_without_a_failure() -> None:
    clock = JumpingClock()
    failure = RewriteFailure("t", [0], "bad", [(UUID(int=1), 0, 0)], False)
    failing = [True]

    async def run_round(summary: CompactionSummary) -> None:
        summary.oldest_ms = 1_000
        summary.failures += [failure] if failing.pop() else []

    rounds = Rounds(run_round, clock)
    await rounds.run_once()
    assert (rounds.oldest_ms, rounds.totals) == (1_000, Totals(failures=1))
    failing.append(False)
    await rounds.run_once()
    assert rounds.oldest_ms == 0


async def test_failed_tables_are_counted_and_reported_after_each_round_also_after_a_failed_one() -> None:
    left: list[Exception | None] = [None, SequencerUnavailable("gone")]

    async def run_round(summary: CompactionSummary) -> None:
        summary.table_failures = [f"table 't': number {number}" for number in range(30)]
        if (error := left.pop(0)) is not None:
            raise error

    rounds = Rounds(run_round, JumpingClock())
    with structlog.testing.capture_logs() as logged:
        await rounds.run_once()
        await rounds.run_once()
    assert rounds.totals.table_failures == 60
    told = [line for line in logged if line["event"] == "tables are behind their logs"]
    assert [(line["count"], len(line["failures"])) for line in told] == [(30, MAX_LOGGED_FAILURES)] * 2


async def test_metrics_show_the_backlog_what_was_done_and_the_failed_rounds() -> None:
    clock = JumpingClock()
    time = ManualClock()
    committer = Committer(MemoryRowStore(time), time, SeededEntropy(1))
    await committer.start()
    try:
        log = Log(committer, MemoryStore(time), time)
        await log.topic("t")
        await log.produce(("t", 0, batch_of([b"x" * 100])))
        rounds, _ = rounds_of(clock, SequencerUnavailable("gone"))
        pages = CompactorPages(rounds, committer, clock, CollectorRegistry())
        assert (await pages.readiness()).reasons == []
        await rounds.run_once()
        await pages.update_gauges()
        shown = pages.registry.get_sample_value
        assert (shown("tailrace_compactor_backlog_bytes") or 0) > 100
        assert shown("tailrace_compactor_backlog_age_seconds") == 5.0
        assert shown("tailrace_compactor_objects_total") == 2
        assert shown("tailrace_compactor_table_failures_total") == 1
        assert shown("tailrace_compactor_failed_rounds_total") == 1
        assert (await pages.readiness()).reasons == ["the last round failed"]
    finally:
        await committer.close()
