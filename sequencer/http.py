"""A sequencer server's HTTP pages: its readiness and its gauges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

from sequencer.api.errors import SequencerError
from sequencer.api.values import Empty
from sequencer.metrics import StatisticsGauges
from tailrace.http.http_server import Page, Readiness
from tailrace.rpc.telemetry import count_refused

if TYPE_CHECKING:
    from sequencer.server import SequencerServer


class SequencerPages:
    """The `tailrace.http.http_server.Pages` of a sequencer server, once `server` is set."""

    def __init__(self) -> None:
        self.server: SequencerServer | None = None
        self.routes: Mapping[str, Page] = {}
        self.registry = CollectorRegistry()
        self._statistics = StatisticsGauges(self.registry)
        self._gauge("tailrace_sequencer_is_committer", "1 on the server that commits.").set_function(
            lambda: 1.0 if self.server is not None and self.server.is_committer else 0.0
        )
        self._gauge(
            "tailrace_sequencer_checkpoint_age_seconds",
            "Age of the newest checkpoint in the bucket; -1 on a server that writes none.",
        ).set_function(lambda: -1.0 if self.server is None else self.server.checkpoint_age_s)
        self._gauge(
            "tailrace_sequencer_copy_number",
            "Journal number of this server's copy of the rows; -1 while it has none.",
        ).set_function(lambda: -1.0 if self.server is None else self.server.copy_number)
        count_refused(lambda: None if self.server is None else self.server.server, self.registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(name, documentation, registry=self.registry)

    async def readiness(self) -> Readiness:
        """Report whether this server knows the committer, and if not, why (usually what the database says)."""
        if self.server is None:
            return Readiness(["starting"], {"committer": ""})
        committer, why = self.server.committer_address, self.server.no_committer
        unknown = f"no committer is known: {why}" if why else "no committer is known"
        return Readiness([] if committer else [unknown], {"committer": committer})

    async def update_gauges(self) -> None:
        """Update the statistics gauges, on the committer only."""
        if self.server is None or not self.server.is_committer:
            return
        try:
            statistics = await self.server.sequencer.statistics(Empty())
        except SequencerError:
            return  # /readyz gives the reason
        self._statistics.show(statistics)
