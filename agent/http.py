"""An agent's HTTP pages: the overview, its readiness, and the gauges that need a call to the sequencer."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, TypeAlias

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from agent.security.http_login import OPEN_PATHS
from agent.telemetry import AgentTelemetry
from agent.topic_usage import COUNTED, read_counts, usage_by_topic
from sequencer.api.errors import SequencerError
from sequencer.api.interface import Sequencer
from sequencer.api.topics import MetadataRequest
from sequencer.api.values import Empty
from sequencer.pages import all_groups, lag_pages
from tailrace.cost import GIB, Bill, Prices, bill_of, read_prices
from tailrace.http.http_server import Page, Readiness

if TYPE_CHECKING:
    from agent.server import Agent

log = structlog.get_logger("agent.http")

SEQUENCER_PATIENCE_SECONDS = 2.0
MAX_LAGS = 10_000
"""The most lags shown as metrics; `tailrace group describe` shows all."""


class AgentPages:
    """The `tailrace.http.http_server.Pages` of an agent: of `telemetry`, and of `agent` once it is set."""

    def __init__(
        self,
        telemetry: AgentTelemetry,
        sequencer: Sequencer,
        prices: Prices | None = None,
        database: str = "",
    ) -> None:
        self.agent: Agent | None = None
        self._prices = prices or read_prices()
        telemetry.topic_dollars.show(self._bills, self._prices.name, database)
        self._telemetry = telemetry
        self._sequencer = sequencer

    @property
    def registry(self) -> CollectorRegistry:
        """The agent's metrics."""
        return self._telemetry.registry

    @property
    def routes(self) -> Mapping[str, Page]:
        """The overview page."""
        return {"/": self._overview}

    async def readiness(self) -> Readiness:
        """Whether the agent serves clients and the sequencer answers it."""
        reasons: list[str] = []
        if self.agent is None:
            reasons.append("the agent is starting")
        elif not self.agent.is_ready:
            reasons.append("the agent's lease is not valid, or it is draining")
        try:
            async with asyncio.timeout(SEQUENCER_PATIENCE_SECONDS):
                await self._sequencer.metadata(self._metadata_request())
        except TimeoutError:
            reasons.append(
                f"no sequencer answered as the committer within {SEQUENCER_PATIENCE_SECONDS:g} s; /readyz of each "
                "sequencer says why"
            )
        except SequencerError as error:
            reasons.append(f"the sequencer can't be used: {error}")
        return Readiness(reasons)

    async def login(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request that is not logged in, if clients must log in; otherwise None."""
        if self.agent is None:
            return None if request.path in OPEN_PATHS else web.Response(status=503, text="starting\n")
        return None if self.agent.http_login is None else await self.agent.http_login(request)

    def _metadata_request(self) -> MetadataRequest:
        """Return a cheap request: it returns only what changed since the agent's snapshot."""
        if self.agent is None:
            return MetadataRequest()
        snapshot = self.agent.catalog.snapshot
        return MetadataRequest(snapshot.version, snapshot.ring.generation, takes_changes=True)

    async def update_gauges(self) -> None:
        """Ask the sequencer for its statistics and for the lag of consumer groups. An agent whose groups may have moved
        to others shows no lag."""
        try:
            statistics = await self._sequencer.statistics(Empty())
            self._telemetry.sequencer_statistics.show(statistics)
            await self._update_lags()
        except SequencerError as error:
            log.debug("the sequencer's gauges were not updated", error=str(error))
        if self.agent is not None and not self.agent.may_coordinate:
            self._telemetry.consumer_lag_records.clear()

    def _bills(self) -> dict[str, Bill]:
        usage = usage_by_topic(read_counts(self.registry.restricted_registry(COUNTED).collect()))
        return {topic: bill_of(used, self._prices) for topic, used in usage.items()}

    def _cost_table(self) -> str:
        bills = sorted(self._bills().items(), key=lambda bill: -bill[1].total)
        rows: list[list[Cell]] = [
            [topic, *(bill.items[item] for item in _SPENT), bill.total] for topic, bill in bills
        ]
        title = f"Dollars spent by this agent since its start ({html.escape(self._prices.name)})"
        return _table(title, ("topic", *(item.replace("_", " ") for item in _SPENT), "total"), rows)

    async def _update_lags(self) -> None:
        """Set the lags of the groups that this agent coordinates. The ring's first agent adds those without a
        coordinator."""
        broker_id = None if self.agent is None else self.agent.broker_id
        if self.agent is None or broker_id is None:
            return
        shown = 0
        gauge = self._telemetry.consumer_lag_records
        members = self.agent.catalog.snapshot.ring.members
        first = min((member.broker_id for member in members), default=broker_id)
        async for lags in lag_pages(self._sequencer, broker_id, with_orphans=broker_id == first):
            if not shown:
                gauge.clear()
            for lag in lags[: MAX_LAGS - shown]:
                gauge.labels(lag.group_id, lag.topic, lag.partition).set(
                    max(0, lag.high_watermark - lag.committed)
                )
            shown += len(lags)
            if shown >= MAX_LAGS:
                break

    async def _overview(self, request: web.Request) -> web.Response:
        if self.agent is None:
            return web.Response(text=_page("starting", []), content_type="text/html", status=503)
        snapshot = self.agent.catalog.snapshot
        topics = [
            (
                entry.topic.name,
                entry.topic.partitions,
                ", ".join(f"{name}={value}" for name, value in sorted(entry.topic.configs.items()))
                or _NOTHING,
            )
            for entry in (snapshot.by_name[name] for name in nsmallest(MAX_SHOWN, snapshot.by_name))
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
        tables = [_table("Agents", ("id", "address", "zone", "state", "version"), agents)]
        try:
            async with asyncio.timeout(SEQUENCER_PATIENCE_SECONDS):
                tables.extend(
                    await self._sequencer_tables({member.broker_id for member in snapshot.ring.members})
                )
        except (SequencerError, TimeoutError) as error:
            reason = html.escape(str(error) or f"no answer within {SEQUENCER_PATIENCE_SECONDS:g} s")
            tables.append(f"<h2>Groups</h2><p class=bad>The sequencer can't be asked: {reason}</p>")
        tables += [
            _table("Topics", ("name", "partitions", "configs"), topics, count=len(snapshot.by_name)),
            self._cost_table(),
        ]
        return web.Response(text=_page(snapshot.cluster_id, tables), content_type="text/html")

    async def _sequencer_tables(self, live: Collection[int]) -> list[str]:
        """Return the tables of what the sequencer knows. `live`: the ids of the agents in the ring."""
        lags: dict[str, int] = {}
        async for page in lag_pages(self._sequencer):
            for lag in page:
                lags[lag.group_id] = lags.get(lag.group_id, 0) + max(0, lag.high_watermark - lag.committed)
        listed = await all_groups(self._sequencer)
        groups = [
            (
                group.group_id,
                group.state,
                str(group.owner) if group.owner in live else _NOTHING,
                lags.get(group.group_id, _NOTHING),
            )
            for group in listed[:MAX_SHOWN]
        ]
        statistics = await self._sequencer.statistics(Empty())
        statistics_rows = [
            ("runs", statistics.runs),
            ("objects", statistics.objects),
            ("bytes", statistics.live_bytes),
            (
                "dollars a month for these bytes",
                round(statistics.live_bytes / GIB * self._prices.storage_gib_month),
            ),
            ("bytes not compacted yet", statistics.uncompacted_bytes),
            ("objects waiting to be deleted", statistics.retired_objects),
            ("bytes waiting to be deleted", statistics.retired_bytes),
            ("idempotent producers", statistics.producers),
            ("open transactions", statistics.open_transactions),
            ("open upload sessions", statistics.open_sessions),
        ]
        return [
            _table("Kept", ("what", "number"), statistics_rows),
            _table("Groups", ("group", "state", "coordinator", "lag in records"), groups, count=len(listed)),
        ]


_NOTHING = "-"
_SPENT = ("put", "get", "cross_zone", "sql", "compute")
"""The items of an agent's bill. Storage is billed to the cluster."""
MAX_SHOWN = 500
"""The most rows of one table; the command line lists all."""

LONG_CELL = 24
"""Characters above which a cell may break anywhere; shorter ones stay whole."""
Cell: TypeAlias = str | int | float

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "h1{margin-bottom:0}h1+p,.bad,caption{color:#777}h1+p{margin-top:0;font-size:13px}.bad{color:#c33}"
    "h2{font-size:1.1rem;margin:2rem 0 .3rem}table{border-collapse:collapse;width:100%}"
    "div{overflow-x:auto}.long{overflow-wrap:anywhere;min-width:8rem}"
    "td,th{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884}"
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


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], count: int | None = None
) -> str:
    """Return a table of the first MAX_SHOWN rows. `count`: how many rows there are, if not all are given."""
    left = (len(rows) if count is None else count) - MAX_SHOWN
    rows = rows[:MAX_SHOWN]
    if not rows:
        return f"<h2>{title}</h2><p>none</p>"
    numbers = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(columns))]
    head = _row("th", columns, numbers)
    body = "".join(_row("td", row, numbers) for row in rows)
    more = f"<p>and {left:,} more</p>" if left > 0 else ""
    return f"<h2>{title}</h2><div><table>{head}{body}</table></div>{more}"


def _row(tag: str, cells: Sequence[Cell], numbers: Sequence[bool]) -> str:
    shown = (
        f"<{tag}{_class_of(cell, is_number=is_number)}>{_shown(cell)}</{tag}>"
        for cell, is_number in zip(cells, numbers, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"


def _class_of(cell: Cell, *, is_number: bool) -> str:
    if is_number:
        return " class=number"
    return " class=long" if isinstance(cell, str) and len(cell) > LONG_CELL else ""


def _shown(cell: Cell) -> str:
    if isinstance(cell, str):
        return html.escape(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.4f}"
