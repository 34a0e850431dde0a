"""An agent with a gateway, and a client of it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from agent.gateway.server import Gateway
from agent.gateway.settings import GatewaySettings
from agent.gateway.telemetry import GatewayTelemetry
from tests.support.patience import PATIENCE_SECONDS
from tests.support.wire import WiredAgent, wired_agent


@dataclass
class Served:
    """`base`: the address of the cluster."""

    wired: WiredAgent
    gateway: Gateway
    session: aiohttp.ClientSession
    base: str

    async def ask(
        self, method: str, path: str, body: object = None, *, data: Any = None, **more: Any
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer; of several objects, a list of them."""
        if body is not None:
            data = json.dumps(body)
        url = path if path.startswith("http") else self.base + path
        async with self.session.request(method, url, data=data, **more) as answer:
            text = await answer.text()
            return answer.status, parsed(text)

    async def get(self, path: str, **more: Any) -> Any:
        """The JSON of an answer of 200."""
        status, body = await self.ask("GET", path, **more)
        assert status == 200, (path, body)
        return body

    async def produce(self, topic: str, *records: object, **more: Any) -> Any:
        """The reports."""
        data = "\n".join(json.dumps(each) for each in records)
        status, reports = await self.ask("POST", f"/topics/{topic}/records", data=data, **more)
        assert status == 200, reports
        return reports if isinstance(reports, list) else [reports]


def parsed(text: str) -> Any:
    lines = [json.loads(line) for line in text.splitlines() if line]
    return None if not lines else lines[0] if len(lines) == 1 else lines


@asynccontextmanager
async def served(
    wired: WiredAgent, *, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """A gateway of a running agent."""
    gateway = Gateway(
        wired.agent,
        GatewaySettings.model_validate({"listen": "127.0.0.1:0", "drain_ms": 1_000, **settings}),
        GatewayTelemetry(wired.agent.telemetry.registry),
    )
    await gateway.start(tls)
    cluster = wired.agent.catalog.snapshot.cluster_id
    try:
        async with aiohttp.ClientSession() as session:
            scheme = "http" if tls is None else "https"
            yield Served(
                wired, gateway, session, f"{scheme}://127.0.0.1:{gateway.port}/v3/clusters/{cluster}"
            )
    finally:
        await gateway.close()


@asynccontextmanager
async def opened_gateway(folder: Path, **settings: Any) -> AsyncIterator[Served]:
    """A fresh agent with a gateway. Its tests run in the loop that processes have, but for those with logins."""
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        wired_agent(folder) as wired,
        served(wired, **settings) as there,
    ):
        yield there
