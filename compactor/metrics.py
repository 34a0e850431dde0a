"""The HTTP pages of a compactor with `--every`: its metrics, and whether its last round succeeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from compactor.rounds import RoundOutcome, Rounds
from sequencer.api.errors import SequencerError
from sequencer.api.interface import Sequencer
from sequencer.api.values import Empty
from tailrace.clock import Clock
from tailrace.http.http_server import Page, Readiness
from tailrace.telemetry.counters import CallbackCounter

_COUNTERS: tuple[tuple[str, str, Callable[[Rounds], float]], ...] = (
    ("objects", "Parquet objects that were swapped in.", lambda rounds: rounds.totals.objects),
    ("records", "Records that were compacted.", lambda rounds: rounds.totals.records),
    ("source_bytes", "Bytes that were compacted.", lambda rounds: rounds.totals.source_bytes),
    ("written_bytes", "Bytes of Parquet swapped in.", lambda rounds: rounds.totals.written_bytes),
    ("merged_objects", "Small Parquet objects replaced by larger ones.", lambda rounds: rounds.totals.merged_objects),
    ("merged_bytes", "Bytes of the Parquet objects that merges wrote.", lambda rounds: rounds.totals.merged_bytes),
    ("failures", "Items that could not be compacted.", lambda rounds: rounds.totals.failures),
    ("table_failures", "Updates of Iceberg tables that failed.", lambda rounds: rounds.totals.table_failures),
    ("refused_swaps", "Swaps that the sequencer refused.", lambda rounds: rounds.totals.refused),
    ("key_passes", "Partitions compacted by key.", lambda rounds: rounds.totals.keyed_passes),
    ("key_dropped_records", "Records that compaction by key removed.", lambda rounds: rounds.totals.keyed_dropped),
    ("done_rounds", "Rounds that finished.", lambda rounds: rounds.outcomes[RoundOutcome.DONE]),
    ("failed_rounds", "Rounds that an error ended.", lambda rounds: rounds.outcomes[RoundOutcome.FAILED]),
)  # fmt: skip
"""The counters by name, each with how it is read."""


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
        self._backlog_bytes = self._gauge(
            "backlog_bytes", "Bytes of mixed objects that are not compacted yet."
        )
        self._gauge(
            "backlog_age_seconds",
            "Age of the oldest records that qualified for compaction and are not compacted yet.",
        ).set_function(self._age_s)
        self._gauge(
            "dirty_bytes",
            "Parquet bytes of compacted topics that were not compacted by key yet as of the last round.",
        ).set_function(lambda: rounds.current.keyed.dirty_bytes)
        self._gauge(
            "dirty_ratio",
            "The largest share of a partition's Parquet bytes that was not compacted by key yet as of the last round.",
        ).set_function(lambda: rounds.current.keyed.dirtiest)
        for name, documentation, read in _COUNTERS:
            CallbackCounter(
                f"tailrace_compactor_{name}_total", documentation, partial(read, rounds), registry=registry
            )

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"tailrace_compactor_{name}", documentation, registry=self.registry)

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
