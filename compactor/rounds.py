"""Rounds of compaction for as long as the process runs. A failed round is logged, and the next one follows. Only a
recovered database ends them, as it ends an agent.

While another compactor has the lease, this one is on standby. It requests the lease every second, so it takes over
within five seconds after the other one was killed.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from compactor.cycle import CompactionSummary
from sequencer.api.errors import IncarnationChanged, LeaseLost, SequencerError
from tailrace.background_tasks import log_and_continue
from tailrace.clock import Clock

STANDBY_PAUSE_S = 1.0
MAX_LOGGED_FAILURES = 20
"""The most failures of a round that are logged. The log says how many more there are."""

log = structlog.get_logger("tailrace.compactor")


class RoundOutcome(enum.StrEnum):
    """How a round ended. `STANDBY`: another compactor has the lease."""

    DONE = "done"
    FAILED = "failed"
    STANDBY = "standby"


@dataclass(frozen=True, slots=True)
class Totals:
    """The sum of all rounds."""

    objects: int = 0
    records: int = 0
    source_bytes: int = 0
    written_bytes: int = 0
    failures: int = 0
    refused: int = 0
    merged_objects: int = 0
    merged_bytes: int = 0
    keyed_passes: int = 0
    keyed_dropped: int = 0
    table_failures: int = 0

    def plus(self, summary: CompactionSummary) -> Totals:
        """Return the sum with another round's."""
        return Totals(
            objects=self.objects + summary.objects,
            records=self.records + summary.records,
            source_bytes=self.source_bytes + summary.source_bytes,
            written_bytes=self.written_bytes + summary.written_bytes,
            failures=self.failures + len(summary.failures),
            refused=self.refused + len(summary.refused),
            merged_objects=self.merged_objects + summary.merged_objects,
            merged_bytes=self.merged_bytes + summary.merged_bytes,
            keyed_passes=self.keyed_passes + summary.keyed.passes,
            keyed_dropped=self.keyed_dropped + summary.keyed.dropped,
            table_failures=self.table_failures + len(summary.table_failures),
        )


class Rounds:
    """Runs rounds and keeps their totals.

    `run_round`: updates the summary while it runs, and raises the same as `compactor.cycle.run_cycle`.
    `expected_errors`: other errors that end a round and that the operator can fix.
    """

    def __init__(
        self,
        run_round: Callable[[CompactionSummary], Awaitable[object]],
        clock: Clock,
        *,
        expected_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self._run_round = run_round
        self._clock = clock
        self._expected_errors: tuple[type[Exception], ...] = (SequencerError, *expected_errors)
        self._past = Totals()
        self.current = CompactionSummary()
        """The summary of the current round, or of the last one."""
        self.outcomes: Counter[RoundOutcome] = Counter()
        self.last: RoundOutcome | None = None
        """How the last round ended; None while a round runs."""

    @property
    def totals(self) -> Totals:
        """The sum of all rounds, including the current one."""
        return self._past.plus(self.current)

    @property
    def oldest_ms(self) -> int:
        """When the oldest qualifying records were committed that may not be compacted yet; 0 if there are none."""
        is_clear = self.last is RoundOutcome.DONE and not (self.current.failures or self.current.refused)
        return 0 if is_clear else self.current.oldest_ms

    async def run_once(self) -> RoundOutcome:
        """Run one round and log its errors. Raises IncarnationChanged, after which the sequencer would refuse this
        process for ever."""
        self._past = self.totals
        self.current = CompactionSummary()
        before, self.last = self.last, None
        outcome = RoundOutcome.FAILED
        ending: IncarnationChanged | None = None
        with log_and_continue(log, "a round of compaction failed", *self._expected_errors):
            try:
                await self._run_round(self.current)
                outcome = RoundOutcome.DONE
            except LeaseLost:
                outcome = RoundOutcome.STANDBY
            except IncarnationChanged as error:
                ending = error
        self.outcomes[outcome] += 1
        self.last = outcome
        if outcome is not RoundOutcome.STANDBY:
            self._log_summary()
        elif outcome is not before:
            log.info("another compactor is at work; this one stands by")
        if ending is not None:
            raise ending
        return outcome

    async def keep_on(self, every_s: float, *, until: Callable[[], bool]) -> None:
        """Start a round every `every_s` seconds, or at once after one that took longer, until `until()` is true.

        Raises IncarnationChanged: the database was recovered, so this process's state is out of date.
        """
        while True:
            began = self._clock.monotonic()
            outcome = await self.run_once()
            if until():
                return
            took_s = self._clock.monotonic() - began
            is_standby = outcome is RoundOutcome.STANDBY
            await self._clock.sleep(STANDBY_PAUSE_S if is_standby else max(0.0, every_s - took_s))

    def _log_summary(self) -> None:
        summary = self.current
        if summary.failures:
            items = [
                f"{failure.topic_name} {failure.partitions[:10]}: {failure.reason}"
                for failure in summary.failures[:MAX_LOGGED_FAILURES]
            ]
            log.warning("items were not compacted", count=len(summary.failures), items=items)
        if summary.table_failures:
            log.warning(
                "tables are behind their logs",
                count=len(summary.table_failures),
                failures=summary.table_failures[:MAX_LOGGED_FAILURES],
            )
        has_worked = summary.objects or summary.merged_objects or summary.keyed.passes
        if has_worked or summary.failures or summary.refused:
            log.info(
                "compacted",
                objects=summary.objects,
                records=summary.records,
                source_bytes=summary.source_bytes,
                written_bytes=summary.written_bytes,
                merged_objects=summary.merged_objects,
                failures=len(summary.failures),
                refused=len(summary.refused),
                refusals=summary.refused[:MAX_LOGGED_FAILURES],
                keyed_passes=summary.keyed.passes,
                keyed_dropped=summary.keyed.dropped,
            )
