"""A process ends when it is told to, whatever it waits for. A sequencer writes nothing to another cluster's store. A
throttled store gets a bounded number of requests."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.settings import AgentSettings
from agent.telemetry_observers import StoreMetrics
from sequencer.store.sql.store import SqlRowStore
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.api import StoreUnavailable
from tailrace.object_store.hedged import PUT_POLICY
from tailrace.object_store.open import open_store
from tailrace.rpc import RpcSecurity
from tailrace.settings import load_settings
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.agent_process import within_open_files
from tailrace_cli.running.runtime import Runtime, opened_store
from tailrace_cli.running.sequencer_process import sequencer_server
from tailrace_cli.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.support.row_samples import changes, object_row
from tests.support.serve import serve
from tests.tailrace.object_store.test_s3_answers import ENVIRON, answer, server_that_answers

ROOT = Path(__file__).parents[2]

NEVER_DRAINED = """
import asyncio
from tailrace_cli.running.shutdown import ShutdownSignals

async def main():
    shutdown = ShutdownSignals(0.1, last_resort_seconds=0.2)
    print("ready", flush=True)
    await shutdown.wait()
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, input))

asyncio.run(main())
"""


def test_a_process_that_hangs_on_shutdown_is_ended_with_its_stacks_logged() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", NEVER_DRAINED],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
        assert process.stderr is not None and "Timeout" in (told := process.stderr.read())
        assert "most recent call first" in told
    finally:
        process.kill()
        process.communicate()


def test_connections_beyond_the_limit_of_open_files_are_refused_and_counted_while_files_are_left(
    tmp_path: Path,
) -> None:
    """Beyond the limit itself the event loop closes connections without a word, and the store can't open its files."""
    with serve(tmp_path / "data", open_files=200) as served, ExitStack() as clients:
        host, port = served.kafka.split(":")
        for _ in range(250):
            clients.enter_context(socket.create_connection((host, int(port)), PATIENCE_SECONDS))
        refused = 'tailrace_closed_connections_total{reason="max_connections"}'
        deadline = time.monotonic() + PATIENCE_SECONDS
        while f"{refused} 150.0" not in (metrics := _get(f"http://{served.http}/metrics")):
            assert time.monotonic() < deadline, [line for line in metrics.splitlines() if "closed" in line]
    assert "agent.max_connections is above the limit of open files (ulimit -n)" in served.events


def test_a_process_without_a_low_limit_of_open_files_says_nothing_of_it() -> None:
    settings = AgentSettings(max_connections=1_000)
    assert within_open_files(settings, 100_000) is settings
    assert within_open_files(settings, resource.RLIM_INFINITY) is settings
    assert within_open_files(settings, 1_024).max_connections == 512
    assert within_open_files(settings, 64).max_connections == 32


def _get(url: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as response:
        return str(response.read().decode())


async def test_a_sequencer_with_another_store_than_its_database_does_not_start(tmp_path: Path) -> None:
    database, runtime = f"sqlite:///{tmp_path / 'rows.db'}", Runtime(SystemClock(), SystemEntropy())

    async def keys_after_a_start(folder: str) -> list[str]:
        store = open_store(str(tmp_path / folder), clock=runtime.clock)
        settings = load_settings(Settings, environ={})
        try:
            async with sequencer_server(settings, database, runtime, store, RpcSecurity(), listen=None):
                pass
        except CommandFailed as error:
            assert "the object store has nothing of cluster" in str(error)
        keys = [info.key async for info in store.list("")]
        await store.close()
        return keys

    assert await keys_after_a_start("own") != []
    rows = SqlRowStore(database, clock=runtime.clock, entropy=runtime.entropy)
    await rows.open()
    epoch = await rows.take_committer_lease("test", "", 1000)
    assert epoch is not None
    await rows.write(changes(object_row(1)), epoch)
    await rows.release_committer_lease(epoch)
    await rows.close()
    assert await keys_after_a_start("another") == []
    assert await keys_after_a_start("own") != []


@pytest.mark.parametrize("backend", ["obstore", "aioboto3"])
async def test_a_throttled_request_is_sent_as_often_as_the_hedged_store_says(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    runtime = Runtime(SystemClock(), SystemEntropy())
    body = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>reduce your request rate</Message></Error>"

    async with (
        server_that_answers(answer("503 Slow Down", body)) as (url, heads),
        opened_store(f"{url}&backend={backend}", runtime, StoreMetrics(CollectorRegistry())) as store,
    ):
        calls = (
            store.put("a/b", [b"x"]),
            store.get("a/b"),
            store.get_range("a/b", 0, 5),
            store.head("a/b"),
        )
        for count, call in enumerate(calls, 1):
            with pytest.raises(StoreUnavailable):
                await call
            assert len(heads) <= count * PUT_POLICY.attempts
