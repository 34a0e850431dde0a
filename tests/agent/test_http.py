"""An agent's HTTP pages for Prometheus, load balancers and people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from agent import http
from agent.http import MAX_SHOWN, AgentPages
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.topics import CreateTopic
from sequencer.rules.budgets import ClusterBudgets
from sequencer.settings import SequencerSettings
from tailrace.http.http_server import HttpServer
from tests.support.agents import batch
from tests.support.wire import WiredAgent, wired_agent

Get = Callable[[str], Awaitable[tuple[int, str]]]


@asynccontextmanager
async def agent_pages(folder: Path) -> AsyncIterator[tuple[WiredAgent, AgentPages, Get]]:
    async with wired_agent(folder) as wired, aiohttp.ClientSession() as client:
        pages = AgentPages(wired.agent.telemetry, wired.sequencer)
        http = HttpServer(pages, wired.clock)
        await http.start("127.0.0.1", 0)

        async def get(path: str) -> tuple[int, str]:
            async with client.get(f"http://127.0.0.1:{http.port}{path}") as answer:
                return answer.status, await answer.text()

        try:
            yield wired, pages, get
        finally:
            await http.close()


async def test_an_agent_is_alive_before_it_is_ready(tmp_path: Path) -> None:
    async with agent_pages(tmp_path) as (wired, pages, get):
        assert (await get("/healthz"))[0] == 200
        status, said = await get("/readyz")
        assert status == 503 and "the agent is starting" in said
        assert (await get("/"))[0] == 503
        pages.agent = wired.agent
        assert (await get("/readyz"))[0] == 200


async def test_a_process_that_is_not_ready_says_why(tmp_path: Path) -> None:
    async with agent_pages(tmp_path) as (wired, pages, get):
        pages.agent = wired.agent
        await wired.agent.drain()
        status, said = await get("/readyz")
        assert status == 503 and "draining" in said


async def test_without_a_committer_an_agent_sends_people_to_the_sequencers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "SEQUENCER_PATIENCE_SECONDS", 0.01)

    async def never(request: object) -> None:
        await asyncio.Event().wait()

    async with agent_pages(tmp_path) as (wired, pages, get):
        pages.agent = wired.agent
        monkeypatch.setattr(wired.sequencer, "metadata", never)
        status, said = await get("/readyz")
        monkeypatch.undo()
        assert status == 503 and "/readyz of each sequencer says why" in said


async def test_the_page_shows_what_there_is(tmp_path: Path) -> None:
    async with agent_pages(tmp_path) as (wired, pages, get):
        pages.agent = wired.agent
        topic = await wired.topic("flights", partitions=2)
        client = await wired.client()
        for _ in range(3):
            await client.produce(batch(b"x"), topic="flights")
        offset = OffsetPosition(topic.topic_id, 0, 1, -1, "")
        await wired.sequencer.commit_offsets(CommitOffsets("<readers>", -1, -1, -1, "", [offset]))
        await wired.agent.catalog.refresh()

        status, page = await get("/")

        assert status == 200
        assert "<td>flights</td><td class=number>2</td>" in page
        assert f"127.0.0.1:{wired.agent.kafka_port}" in page
        assert "&lt;readers&gt;" in page and "<readers>" not in page
        assert "<td class=number>2</td>" in page, "the group's lag"
        assert "<td>&lt;readers&gt;</td><td>Empty</td><td>-</td>" in page, "nobody coordinates the group"


async def test_the_page_stays_short(tmp_path: Path) -> None:
    async with agent_pages(tmp_path) as (wired, pages, get):
        pages.agent = wired.agent
        for number in range(MAX_SHOWN + 7):
            await wired.sequencer.create_topic(CreateTopic(f"topic-{number}", 1, {}))
        await wired.agent.catalog.refresh()
        _, page = await get("/")
        assert page.count("<td>topic-") == MAX_SHOWN and "and 7 more" in page
        headings = [part.partition("</h2>")[0] for part in page.split("<h2>")[1:]]
        assert headings[:4] == ["Agents", "Kept", "Groups", "Topics"], "long tables are below short ones"


async def test_the_page_shows_topics_and_the_error_while_no_sequencer_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(request: object) -> None:
        raise SequencerUnavailable("the database is <away>")

    async with agent_pages(tmp_path) as (wired, pages, get):
        pages.agent = wired.agent
        await wired.topic("flights")
        await wired.agent.catalog.refresh()
        monkeypatch.setattr(wired.sequencer, "list_groups", refuses)
        status, page = await get("/")
        monkeypatch.undo()
    assert status == 200
    error = page.index("The sequencer can't be asked: the database is &lt;away&gt;")
    assert error < page.index("<h2>Topics</h2>") < page.index("<td>flights</td>")


async def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    async with agent_pages(tmp_path) as (wired, pages, get):
        await wired.topic()
        await (await wired.client()).produce(batch(b"x"))
        await pages.update_gauges()
        _, text = await get("/metrics")
        assert 'tailrace_request_duration_seconds_count{api="PRODUCE"} 1.0' in text
        assert 'tailrace_sequencer_rows{kind="runs"} 1.0' in text


async def test_the_lag_of_a_group_that_nobody_coordinates_is_reported_by_the_first_agent(
    tmp_path: Path,
) -> None:
    async with agent_pages(tmp_path) as (wired, pages, get):
        pages.agent = wired.agent
        topic = await wired.topic()
        await (await wired.client()).produce(batch(b"x", b"y"))
        offset = OffsetPosition(topic.topic_id, 0, 1, -1, "")
        await wired.sequencer.commit_offsets(CommitOffsets("readers", -1, -1, -1, "", [offset]))
        await pages.update_gauges()
        _, text = await get("/metrics")
        assert 'tailrace_consumer_lag_records{group="readers",partition="0",topic="t"} 1.0' in text

        wired.agent.services.identity.lapse(wired.clock.monotonic())
        await pages.update_gauges()
        _, text = await get("/metrics")
        assert "tailrace_consumer_lag_records{" not in text, "another agent shows it by now"


async def test_a_renewed_lease_brings_the_agents_share_of_the_clusters_budgets(tmp_path: Path) -> None:
    async with agent_pages(tmp_path) as (wired, _, get):
        settings = SequencerSettings(early_puts_per_second=6.0)
        wired.sequencer._view.budgets = ClusterBudgets(settings, wired.clock.monotonic() - 60)
        await wired.agent.lease.renew()
        assert wired.metric("cluster_share", of="early_puts") == 0, "the first renewal brings none"
        await wired.agent.lease.renew()
        assert wired.metric("cluster_share", of="early_puts") == 6.0, "it is alone: all is its"
        _, text = await get("/metrics")
        assert 'of="rows"' not in text, "rows have no budget here"


async def test_the_page_and_the_metrics_say_what_each_topic_cost(tmp_path: Path) -> None:
    async with agent_pages(tmp_path) as (wired, pages, get):
        pages.agent = wired.agent
        await wired.topic("flights")
        await (await wired.client()).produce(batch(b"x"), topic="flights")
        await pages.update_gauges()
        _, text = await get("/metrics")
        puts, lists = (
            wired.metric("object_store_requests_total", operation=operation, outcome="ok")
            for operation in ("put", "list")  # which have the same price
        )
        dollars = wired.metric("topic_cost_dollars_total", topic="flights", item="put")
        assert puts and dollars == pytest.approx((puts + lists) * 0.005 / 1000, rel=1e-12)
        assert 'tailrace_topic_cost_dollars_total{item="put",topic="flights"}' in text
        _, page = await get("/")
        assert "S3 Standard" in page and "<td>flights</td>" in page.partition("Dollars spent")[2]
