"""A sequencer server's HTTP pages: its readiness and its gauges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        show_server(lambda: self.server, self.registry)
        count_refused(lambda: None if self.server is None else self.server.server, self.registry)

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


def show_server(server: Callable[[], SequencerServer | None], registry: CollectorRegistry) -> None:
    """Show whether a server of this process commits, and how old its checkpoint and its copy of the rows are."""

    def show(
        name: str, documentation: str, value: Callable[[SequencerServer], float], without: float
    ) -> None:
        def current() -> float:
            found = server()
            return without if found is None else value(found)

        Gauge(f"tailrace_sequencer_{name}", documentation, registry=registry).set_function(current)

    show("is_committer", "1 on the server that commits.", lambda found: float(found.is_committer), 0.0)
    show(
        "checkpoint_age_seconds",
        "Age of the newest checkpoint in the bucket; -1 on a server that writes none.",
        lambda found: found.checkpoint_age_s,
        -1.0,
    )
    show(
        "copy_number",
        "Journal number of this server's copy of the rows; -1 while it has none.",
        lambda found: found.copy_number,
        -1.0,
    )
