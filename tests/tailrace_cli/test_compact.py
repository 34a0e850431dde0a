"""`tailrace compact --every`: what it says of itself, without Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from compactor.cycle import CompactionSummary
from compactor.on_spark.job import spark_runner
from compactor.rounds import Rounds
from sequencer.api.topics import CreateTopic
from sequencer.metrics import SequencerMetrics
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.rpc import RpcSecurity
from tailrace.settings import load_settings
from tailrace_cli.app import main
from tailrace_cli.commands.compact import watched
from tailrace_cli.connections.opened_log import opened_log
from tailrace_cli.running.data_folder import DATABASE, OBJECTS
from tailrace_cli.running.runtime import Runtime
from tailrace_cli.running.sequencer_process import sequencer_server, wait_for_committer
from tailrace_cli.settings import Settings
from tests.support.patience import PATIENCE_SECONDS


class StoppingRunner:
    """Has no work; in the second round this process is told to stop."""

    def __init__(self) -> None:
        self.rounds = 0

    @property
    def has_stopped(self) -> bool:
        return self.rounds > 5  # it was not heard

    @property
    def deriver(self) -> None:
        self.rounds += 1
        if self.rounds == 2:
            os.kill(os.getpid(), signal.SIGTERM)


TABLE_FAILURE = "table 't': ConnectionError: refused"
TABLES_TOLD = f"2 table updates failed and will be retried in the next round; the first: {TABLE_FAILURE}"


@pytest.mark.parametrize(
    ("failures", "table_failures", "status", "told"),
    [
        ([], [], 0, ""),
        ([], [TABLE_FAILURE] * 2, 1, TABLES_TOLD),
        ([["t", [3], "bad", [], True]], [], 1, "1 items could not be rewritten; the first: t [3]: bad"),
    ],
)
def test_one_round_ends_with_status_1_if_an_item_or_a_table_failed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failures: list[object],
    table_failures: list[str],
    status: int,
    told: str,
) -> None:
    async def one_round(*_: object) -> dict[str, object]:
        return {"objects": 1, "failures": failures, "table_failures": table_failures}

    monkeypatch.setattr("tailrace_cli.commands.compact.run_compact", one_round)
    monkeypatch.setattr(sys, "argv", ["tailrace", "compact", "--store", "memory:", "--database", "sqlite://"])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert (ended.value.code or 0) == status and told in shown.err and "objects" in shown.out


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

    metrics = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
    for name in (
        'tailrace_build_info{kind="compact"',
        "process_open_fds ",
        "tailrace_event_loop_lag_seconds_count ",
        'tailrace_rpc_client_duration_seconds_count{method="create_topic"} 1.0',
        "tailrace_security_reload_failures",
        "tailrace_compactor_objects_total",
    ):
        assert f"\n{name}" in metrics, name


def test_a_compactor_that_is_told_to_stop_logs_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = StoppingRunner()

    @asynccontextmanager
    async def started(*_: object, **__: object) -> AsyncIterator[StoppingRunner]:
        yield runner

    async def make_log() -> None:
        (tmp_path / OBJECTS).mkdir()
        runtime = Runtime(SystemClock(), SystemEntropy())
        async with sequencer_server(
            load_settings(Settings, environ={}),
            f"sqlite:///{tmp_path / DATABASE}",
            runtime,
            store=None,
            security=RpcSecurity(),
            listen=None,
        ) as server:
            await wait_for_committer(server, runtime.clock)

    asyncio.run(make_log())
    monkeypatch.setattr("compactor.on_spark.job.spark_runner", started)
    monkeypatch.setattr("tailrace.telemetry.logs.configure_logging", lambda *_: None)  # it outlives the test
    flags = ("--data", str(tmp_path), "--every", "1s", "--http", "127.0.0.1:0")
    monkeypatch.setattr(sys, "argv", ["tailrace", "compact", *flags])
    with capture_logs() as lines, pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, runner.rounds) == (0, 2)
    loud = [line for line in lines if line["log_level"] not in ("debug", "info")]
    assert [line for line in loud if line["event"] != "the event loop was held"] == []


class DeadSpark:
    """A Spark session whose JVM has ended."""

    def stop(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_signal_that_also_ends_the_jvm_stops_the_compactor_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactor.on_spark.job.spark_session", lambda *_, **__: DeadSpark())

    async def scenario() -> None:
        async with spark_runner(str(tmp_path)):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(scenario())
