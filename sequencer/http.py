"""A sequencer server's HTTP side: metrics, health, readiness."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from sequencer.api import Empty, SequencerError
from tailrace.clock import Clock
from tailrace.tls import Tls

if TYPE_CHECKING:
    from sequencer.server import SequencerServer

_GAUGES_EVERY_SECONDS = 5.0


class SequencerHttp:
    """Serves what `node` knows, once it is set. `start`, then `close`."""

    def __init__(self, clock: Clock) -> None:
        self.node: SequencerServer | None = None
        self.port = 0
        self.registry = CollectorRegistry()
        self._clock = clock
        self._rows = Gauge(
            "tailrace_sequencer_rows", "Rows at the sequencer, by kind.", ["kind"], registry=self.registry
        )
        self._bytes = Gauge(
            "tailrace_sequencer_object_bytes",
            "Bytes of objects, by state.",
            ["state"],
            registry=self.registry,
        )
        self._leads = Gauge(
            "tailrace_sequencer_is_committer", "1 on the server that commits.", registry=self.registry
        )
        self._leads.set_function(lambda: 1.0 if self.node is not None and self.node.is_committer else 0.0)
        self._checkpoint_age = Gauge(
            "tailrace_sequencer_checkpoint_age_seconds",
            "Since the newest checkpoint in the bucket; -1 on a server that writes none.",
            registry=self.registry,
        )
        self._checkpoint_age.set_function(lambda: -1.0 if self.node is None else self.node.checkpoint_age_s)
        refused = Gauge(
            "tailrace_rpc_refused_connections",
            "RPC connections refused since the start, above max_rpc_connections.",
            registry=self.registry,
        )
        refused.set_function(lambda: 0 if self.node is None else self.node.server.refused_connections)
        self._gauges: asyncio.Task[None] | None = None
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def start(self, host: str, port: int, tls: Tls | None = None) -> None:
        """Listen, with `tls` for HTTPS; port 0 takes a free one. Raises OSError."""
        await self._runner.setup()
        context = None if tls is None else tls.server_context
        await web.TCPSite(self._runner, host, port, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]
        self._gauges = asyncio.create_task(self._keep_gauges(), name="http: gauges")

    async def close(self) -> None:
        """Stop listening and counting."""
        if self._gauges is not None:
            self._gauges.cancel()
            await asyncio.gather(self._gauges, return_exceptions=True)
        await self._runner.cleanup()

    async def _keep_gauges(self) -> None:
        while True:
            if self.node is not None and self.node.is_committer:
                try:
                    statistics = await self.node.sequencer.statistics(Empty())
                except SequencerError:
                    pass  # /readyz tells why
                else:
                    for kind in ("runs", "objects", "open_sessions", "dead_sessions", "producers", "groups"):
                        self._rows.labels(kind).set(getattr(statistics, kind))
                    self._bytes.labels("live").set(statistics.live_bytes)
                    self._bytes.labels("retired").set(statistics.retired_bytes)
            await self._clock.sleep(_GAUGES_EVERY_SECONDS)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def _readyz(self, request: web.Request) -> web.Response:
        node = self.node
        committer = "" if node is None else node.committer_address
        reasons = [] if committer else ["starting" if node is None else "no committer is known"]
        return web.json_response(
            {"ready": not reasons, "reasons": reasons, "committer": committer}, status=503 if reasons else 200
        )
