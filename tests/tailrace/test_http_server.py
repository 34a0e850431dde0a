"""A process's HTTP server: its gauges are kept for as long as it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tailrace.http_server import GAUGES_EVERY_SECONDS, HttpServer, Page, Readiness
from tests.support.clocks import ManualClock


class BrokenPages:
    """Pages whose gauges fail at first in a way that nobody foresaw."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.routes: Mapping[str, Page] = {}
        self.updates = 0

    async def readiness(self) -> Readiness:
        return Readiness([])

    async def update_gauges(self) -> None:
        self.updates += 1
        if self.updates == 1:
            raise KeyError("a bug")


def test_gauges_are_updated_again_after_an_unforeseen_error() -> None:
    async def scenario() -> None:
        clock, pages = ManualClock(), BrokenPages()
        http = HttpServer(pages, clock)
        await http.start("127.0.0.1", 0)
        try:
            for _ in range(2):
                await asyncio.sleep(0)
                clock.advance(GAUGES_EVERY_SECONDS)
            await asyncio.sleep(0)
        finally:
            await http.close()
        assert pages.updates == 3

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert [(line["event"], line["cause"]) for line in lines] == [
        ("gauges were not updated", "KeyError: 'a bug'")
    ]
