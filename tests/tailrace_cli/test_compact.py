"""`tailrace compact --every`: what it says of itself, without Spark."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from prometheus_client import CollectorRegistry

from compactor.cycle import CompactionSummary
from compactor.rounds import Rounds
from sequencer.api import CreateTopic
from sequencer.metrics import SequencerMetrics
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.rpc import RpcSecurity
from tailrace.settings import load_settings
from tailrace_cli.commands.compact import watched
from tailrace_cli.connections.opened_log import opened_log
from tailrace_cli.running.process import Runtime, sequencer_server, wait_for_committer
from tailrace_cli.settings import Settings


async def no_round(_: CompactionSummary) -> None:
    """Nothing."""


def test_a_compactor_shows_its_build_its_process_its_loop_and_its_sequencer(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    runtime = Runtime(SystemClock(), SystemEntropy())

    async def scenario() -> str:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(
                sequencer_server(
                    load_settings(Settings, environ={}),
                    f"sqlite:///{tmp_path / 'rows.db'}",
                    runtime,
                    store=None,
                    security=RpcSecurity(),
                    listen="127.0.0.1:0",
                )
            )
            await wait_for_committer(server, runtime.clock)
            flags = {"store": str(tmp_path), "sequencers": server.address, "http": "127.0.0.1:0"}
            settings = load_settings(Settings, flags=flags, environ={})
            log = await stack.enter_async_context(opened_log(settings, SequencerMetrics(registry)))
            await log.sequencer.create_topic(CreateTopic("t", 1, {}))
            rounds = Rounds(no_round, runtime.clock)
            http = await stack.enter_async_context(watched(log, rounds, registry))
            client = await stack.enter_async_context(aiohttp.ClientSession())
            async with client.get(f"http://127.0.0.1:{http.port}/metrics") as answer:
                return await answer.text()

    metrics = asyncio.run(asyncio.wait_for(scenario(), 60))
    for name in (
        'tailrace_build_info{kind="compact"',
        "process_open_fds ",
        "tailrace_event_loop_lag_seconds_count ",
        'tailrace_rpc_client_duration_seconds_count{method="create_topic"} 1.0',
        "tailrace_security_reload_failures",
        "tailrace_compactor_objects_total",
    ):
        assert f"\n{name}" in metrics, name
