"""An agent's HTTP side: metrics, health, readiness, and one page that shows what is there.

It starts before the agent, so that an agent that waits for its sequencer is alive (`/healthz`) and says why it
isn't ready (`/readyz`).
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from agent.telemetry import AgentTelemetry
from sequencer.api import Empty, MetadataRequest, Sequencer, SequencerError
from sequencer.pages import all_groups, lag_pages
from tailrace.clock import Clock
from tailrace.tls import Tls

if TYPE_CHECKING:
    from agent.server import Agent

log = structlog.get_logger("agent.http")

GAUGES_EVERY_SECONDS = 5.0
SEQUENCER_PATIENCE_SECONDS = 2.0
MAX_LAGS = 10_000
"""Positions whose lag is a metric of its own; `tailrace group` tells all."""


class AgentHttp:
    """Serves `telemetry`, and `agent` once it is set. `start`, then `close`."""

    def __init__(self, telemetry: AgentTelemetry, sequencer: Sequencer, clock: Clock) -> None:
        self.agent: Agent | None = None
        self.port = 0
        self._telemetry = telemetry
        self._sequencer = sequencer
        self._clock = clock
        self._gauges: asyncio.Task[None] | None = None
        app = web.Application()
        app.add_routes(
            [
                web.get("/", self._overview),
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

    # --- gauges that the sequencer knows

    async def _keep_gauges(self) -> None:
        while True:
            try:
                await self.update_gauges()
            except SequencerError as error:
                log.debug("the sequencer's gauges were not updated", error=str(error))
            await self._clock.sleep(GAUGES_EVERY_SECONDS)

    async def update_gauges(self) -> None:
        """Ask the sequencer for its counts and for consumers' lags. Raises SequencerError."""
        statistics = await self._sequencer.statistics(Empty())
        for kind in ("runs", "objects", "open_sessions", "dead_sessions", "producers", "groups"):
            self._telemetry.rows.labels(kind).set(getattr(statistics, kind))
        self._telemetry.garbage_objects.set(statistics.retired_objects)
        self._telemetry.garbage_bytes.set(statistics.retired_bytes)
        await self._update_lags()

    async def _update_lags(self) -> None:
        """Of the groups that this agent coordinates; of those that nobody does, at the first agent of the ring."""
        broker_id = None if self.agent is None else self.agent.broker_id
        if self.agent is None or broker_id is None:
            return
        told = 0
        gauge = self._telemetry.consumer_lag_records
        first = min((each.broker_id for each in self.agent.catalog.snapshot.ring.members), default=broker_id)
        async for lags in lag_pages(self._sequencer, broker_id, with_orphans=broker_id == first):
            if not told:
                gauge.clear()
            for lag in lags[: MAX_LAGS - told]:
                gauge.labels(lag.group_id, lag.topic, lag.partition).set(
                    max(0, lag.high_watermark - lag.committed)
                )
            told += len(lags)
            if told >= MAX_LAGS:
                break

    # --- answers

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._telemetry.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = await self._reasons_not_to_serve()
        return web.json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def _reasons_not_to_serve(self) -> list[str]:
        reasons: list[str] = []
        if self.agent is None:
            reasons.append("the agent is starting")
        elif not self.agent.is_ready:
            reasons.append("the agent's lease is not valid, or it is draining")
        try:
            async with asyncio.timeout(SEQUENCER_PATIENCE_SECONDS):
                await self._sequencer.metadata(self._nothing_new())
        except TimeoutError:
            reasons.append(f"the sequencer did not answer within {SEQUENCER_PATIENCE_SECONDS:g} s")
        except SequencerError as error:
            reasons.append(f"the sequencer can't be used: {error}")
        return reasons

    def _nothing_new(self) -> MetadataRequest:
        """A question that costs the sequencer next to nothing: what is different from what the agent knows."""
        if self.agent is None:
            return MetadataRequest()
        known = self.agent.catalog.snapshot
        return MetadataRequest(known.version, known.ring.generation, takes_changes=True)

    async def _overview(self, request: web.Request) -> web.Response:
        if self.agent is None:
            return web.Response(text=_page("starting", []), content_type="text/html", status=503)
        snapshot = self.agent.catalog.snapshot
        topics = [
            (
                known.topic.name,
                known.topic.partitions,
                ", ".join(f"{name}={value}" for name, value in sorted(known.topic.configs.items()))
                or _NOTHING,
            )
            for _, known in sorted(snapshot.by_name.items())
        ]
        agents = [
            (
                str(member.broker_id),
                f"{member.info.host}:{member.info.port}",
                member.info.zone or _NOTHING,
                "draining" if member.draining else "serving",
                member.info.version,
            )
            for member in snapshot.ring.members
        ]
        tables = [
            _table("Topics", ("name", "partitions", "configs"), topics),
            _table("Agents", ("id", "address", "zone", "state", "version"), agents),
        ]
        try:
            async with asyncio.timeout(SEQUENCER_PATIENCE_SECONDS):
                tables.extend(await self._tables_of_sequencer())
        except (SequencerError, TimeoutError) as error:
            reason = html.escape(str(error) or f"no answer within {SEQUENCER_PATIENCE_SECONDS:g} s")
            tables.append(f"<h2>Groups</h2><p class=bad>The sequencer can't be asked: {reason}</p>")
        return web.Response(text=_page(snapshot.cluster_id, tables), content_type="text/html")

    async def _tables_of_sequencer(self) -> list[str]:
        lags: dict[str, int] = {}
        async for page in lag_pages(self._sequencer):
            for lag in page:
                lags[lag.group_id] = lags.get(lag.group_id, 0) + max(0, lag.high_watermark - lag.committed)
        groups = [
            (
                one.group_id,
                one.state,
                str(one.owner) if one.owner >= 0 else _NOTHING,
                lags.get(one.group_id, _NOTHING),
            )
            for one in await all_groups(self._sequencer)
        ]
        found = await self._sequencer.statistics(Empty())
        kept = [
            ("runs", found.runs),
            ("objects", found.objects),
            ("bytes", found.live_bytes),
            ("bytes not compacted yet", found.uncompacted_bytes),
            ("objects waiting to be deleted", found.retired_objects),
            ("bytes waiting to be deleted", found.retired_bytes),
            ("idempotent producers", found.producers),
            ("open transactions", found.open_transactions),
            ("open upload sessions", found.open_sessions),
        ]
        return [
            _table("Groups", ("group", "state", "coordinator", "lag in records"), groups),
            _table("Kept", ("what", "number"), kept),
        ]


_NOTHING = "-"
MAX_SHOWN = 500
"""Rows of a table; who has more wants the command line."""

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "h1{margin-bottom:0}h1+p,.bad,caption{color:#777}h1+p{margin-top:0;font-size:13px}.bad{color:#c33}"
    "h2{font-size:1.1rem;margin:2rem 0 .3rem}table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884;overflow-wrap:anywhere}"
    "th{font-weight:600;color:#777}.number{text-align:right;font-variant-numeric:tabular-nums}"
)


def _page(cluster_id: str, tables: Sequence[str]) -> str:
    links = '<a href="/metrics">metrics</a> · <a href="/readyz">readiness</a>'
    title = f"<h1>Tailrace</h1><p>cluster {html.escape(cluster_id)} · {links}</p>"
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>Tailrace</title><style>{_STYLE}</style></head>"
    )
    return f"{head}<body>{title}{''.join(tables)}</body></html>"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    if not rows:
        return f"<h2>{title}</h2><p>none</p>"
    numbers = [all(isinstance(row[place], int) for row in rows) for place in range(len(columns))]
    head = _row("th", columns, numbers)
    body = "".join(_row("td", row, numbers) for row in rows[:MAX_SHOWN])
    more = f"<p>and {len(rows) - MAX_SHOWN:,} more</p>" if len(rows) > MAX_SHOWN else ""
    return f"<h2>{title}</h2><table>{head}{body}</table>{more}"


def _row(tag: str, cells: Sequence[str | int], numbers: Sequence[bool]) -> str:
    shown = (
        f"<{tag}{' class=number' if is_number else ''}>"
        f"{f'{cell:,}' if isinstance(cell, int) else html.escape(cell)}</{tag}>"
        for cell, is_number in zip(cells, numbers, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"
