"""The HTTP pages of a compactor with `--every`: its metrics, and whether its last round succeeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from compactor.rounds import RoundOutcome, Rounds
from sequencer.api.errors import SequencerError
from sequencer.api.interface import Sequencer
from sequencer.api.values import Empty
from tailrace.clock import Clock
from tailrace.http.http_server import Page, Readiness
from tailrace.telemetry.counters import CallbackCounter


class CompactorPages:
    """The `tailrace.http.http_server.Pages` of `rounds`, with metrics in `registry`. Requests the backlog from
    `sequencer`."""

    def __init__(
        self, rounds: Rounds, sequencer: Sequencer, clock: Clock, registry: CollectorRegistry
    ) -> None:
        self.routes: Mapping[str, Page] = {}
        self.registry = registry
        self._rounds = rounds
        self._sequencer = sequencer
        self._clock = clock
        self._backlog_bytes = Gauge(
            "tailrace_compactor_backlog_bytes",
            "Bytes of mixed objects that are not compacted yet.",
            registry=self.registry,
        )
        Gauge(
            "tailrace_compactor_backlog_age_seconds",
            "Age of the oldest records that qualified for compaction and are not compacted yet.",
            registry=self.registry,
        ).set_function(self._age_s)
        self._count("objects", "Parquet objects that were swapped in.", lambda: rounds.totals.objects)
        self._count("records", "Records that were compacted.", lambda: rounds.totals.records)
        self._count("source_bytes", "Bytes that were compacted.", lambda: rounds.totals.source_bytes)
        self._count("written_bytes", "Bytes of Parquet swapped in.", lambda: rounds.totals.written_bytes)
        self._count(
            "merged_objects",
            "Small Parquet objects replaced by larger ones.",
            lambda: rounds.totals.merged_objects,
        )
        self._count(
            "merged_bytes",
            "Bytes of the Parquet objects that merges wrote.",
            lambda: rounds.totals.merged_bytes,
        )
        self._count("failures", "Items that could not be compacted.", lambda: rounds.totals.failures)
        self._count(
            "table_failures", "Updates of Iceberg tables that failed.", lambda: rounds.totals.table_failures
        )
        self._count("refused_swaps", "Swaps that the sequencer refused.", lambda: rounds.totals.refused)
        self._count("key_passes", "Partitions compacted by key.", lambda: rounds.totals.keyed_passes)
        self._count(
            "key_dropped_records",
            "Records that compaction by key removed.",
            lambda: rounds.totals.keyed_dropped,
        )
        Gauge(
            "tailrace_compactor_dirty_bytes",
            "Parquet bytes of compacted topics that were not compacted by key yet as of the last round.",
            registry=self.registry,
        ).set_function(lambda: rounds.current.keyed.dirty_bytes)
        Gauge(
            "tailrace_compactor_dirty_ratio",
            "The largest share of a partition's Parquet bytes that was not compacted by key yet as of the last round.",
            registry=self.registry,
        ).set_function(lambda: rounds.current.keyed.dirtiest)
        self._count("done_rounds", "Rounds that finished.", self._rounds_of(RoundOutcome.DONE))
        self._count("failed_rounds", "Rounds that an error ended.", self._rounds_of(RoundOutcome.FAILED))

    def _count(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        CallbackCounter(f"tailrace_compactor_{name}_total", documentation, read, registry=self.registry)

    def _rounds_of(self, outcome: RoundOutcome) -> Callable[[], float]:
        return lambda: self._rounds.outcomes[outcome]

    def _age_s(self) -> float:
        oldest_ms = self._rounds.oldest_ms
        return max(0.0, (self._clock.wall_ms() - oldest_ms) / 1000) if oldest_ms else 0.0

    async def readiness(self) -> Readiness:
        """Return not ready if the last round failed."""
        return Readiness(["the last round failed"] if self._rounds.last is RoundOutcome.FAILED else [])

    async def update_gauges(self) -> None:
        """Request the backlog from the sequencer."""
        try:
            statistics = await self._sequencer.statistics(Empty())
        except SequencerError:
            return  # the rounds log the cause
        self._backlog_bytes.set(statistics.uncompacted_bytes)
