"""A supervisor plans its children's ports, starts the dead again, and ends them in order."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import structlog

from tailrace.clock import SystemClock
from tailrace.settings import load_settings
from tailrace.telemetry.logs import configure_logging, name_process
from tailrace_cli.running.supervisor import ChildPlan, Supervisor, next_pause, plan_children, run_supervisor
from tailrace_cli.settings import Settings
from tests.support.patience import PATIENCE_SECONDS


def settings_of(**flags: object) -> Settings:
    return load_settings(Settings, flags=flags, environ={})


class HastyClock(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def flag(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]


def test_each_child_has_the_next_port() -> None:
    settings = settings_of(
        listen="0.0.0.0:9092", advertise="h:9092", rpc="h:9700", processes=2, sequencers=("s:1",)
    )
    plans = plan_children(settings, config=None, sequencer_address=None, sequencer_http=None)
    assert [flag(plan.command, "--listen") for plan in plans] == ["0.0.0.0:9092", "0.0.0.0:9093"]
    assert [flag(plan.command, "--advertise") for plan in plans] == ["h:9092", "h:9093"]
    assert [flag(plan.command, "--rpc") for plan in plans] == ["h:9700", "h:9701"]
    assert [flag(plan.command, "--http") for plan in plans] == ["127.0.0.1:9644", "127.0.0.1:9645"]
    assert {flag(plan.command, "--sequencer") for plan in plans} == {"s:1"}


def test_with_a_database_one_more_child_is_the_sequencer_and_no_secret_is_in_a_command() -> None:
    settings = settings_of(database="postgresql://u:p@h/n", store="/s", processes=2, rpc_secret="hush " * 4)
    plans = plan_children(settings, config=None, sequencer_address="h:1", sequencer_http="h:2")
    assert [plan.name for plan in plans] == ["sequencer", "agent 0", "agent 1"]
    assert flag(plans[1].command, "--sequencer") == "h:1"
    assert not any("hush" in word or "u:p" in word for plan in plans for word in plan.command)
    assert plans[0].environment["TAILRACE_DATABASE"] == "postgresql://u:p@h/n"


def test_children_get_the_paths_of_secret_files() -> None:
    settings = settings_of(
        database="postgresql://u@h/n",
        store="/s",
        rpc_secret_file="/etc/rpc.secret",
        database_password_file="/etc/password",
    )
    for plan in plan_children(settings, config=None, sequencer_address="h:1", sequencer_http="h:2"):
        assert plan.environment["TAILRACE_RPC_SECRET_FILE"] == "/etc/rpc.secret"
        assert plan.environment["TAILRACE_DATABASE_PASSWORD_FILE"] == "/etc/password"


def test_each_agent_has_a_folder_of_its_own_for_its_cache() -> None:
    settings = settings_of(
        store="/s", processes=2, sequencers=("s:1",), cache={"disk_path": "/mnt/nvme", "disk_bytes": 1 << 30}
    )
    plans = plan_children(settings, config=None, sequencer_address=None, sequencer_http=None)
    folders = [plan.environment["TAILRACE_CACHE__DISK_PATH"] for plan in plans]
    assert folders == ["/mnt/nvme/agent-0", "/mnt/nvme/agent-1"]


def test_children_that_die_young_wait_longer_each_time() -> None:
    assert next_pause(0.5, 1) == 1
    assert next_pause(30, 1) == 30
    assert next_pause(30, 60) == 0.5


def test_the_lines_of_a_supervisor_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: Supervisor) -> None:
        structlog.get_logger("a.part").error("a child ended by itself")

    monkeypatch.setattr(Supervisor, "run", run)
    stream = io.StringIO()
    configure_logging("warning", "json", stream=stream)
    try:
        asyncio.run(run_supervisor(settings_of(sequencers=("127.0.0.1:1",), processes=2), None))
    finally:
        structlog.reset_defaults()
        name_process(lambda: "")
    assert json.loads(stream.getvalue())["process"] == "supervisor"


def test_a_killed_child_is_restarted_and_all_end_on_a_signal() -> None:
    async def scenario() -> list[int]:
        started: asyncio.Queue[int] = asyncio.Queue()
        plan = ChildPlan("sleeper", (sys.executable, "-c", "import signal; signal.pause()"), {})
        supervisor = Supervisor(HastyClock(), [plan], on_start=lambda _, pid: started.put_nowait(pid))
        running = asyncio.create_task(supervisor.run())
        first = await started.get()
        os.kill(first, signal.SIGKILL)
        second = await started.get()
        supervisor.stop()
        await asyncio.wait_for(running, PATIENCE_SECONDS)
        return [first, second]

    first, second = asyncio.run(scenario())
    assert first != second


async def test_a_child_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "child"

    started = asyncio.Event()
    plan = ChildPlan("late", (str(program),), {})
    supervisor = Supervisor(HastyClock(), [plan], on_start=lambda *_: started.set())
    running = asyncio.create_task(supervisor.run())
    for _ in range(20):
        await asyncio.sleep(0)
    program.symlink_to("/bin/cat")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await started.wait()
        supervisor.stop()
        await running
