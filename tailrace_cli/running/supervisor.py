"""`tailrace agent --processes N`: one process per core, each with its own loop, ports and broker id.

The supervisor restarts a child that ends by itself. The pause before a restart doubles while the child keeps ending
early. With `database`, one more child runs the sequencer for the agents, because only one process may commit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from tailrace.background_tasks import log_and_continue
from tailrace.clock import Clock, SystemClock, wait_for
from tailrace.rpc.link import join_address, split_address
from tailrace.settings import PREFIX
from tailrace.telemetry.logs import name_process
from tailrace_cli.settings import Settings

log = structlog.get_logger("tailrace.supervisor")

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_AFTER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One child: its name in logs, its command, and the variables that it gets in addition to ours."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]


def plan_children(
    settings: Settings, *, config: Path | None, sequencer_address: str | None, sequencer_http: str | None
) -> list[ChildPlan]:
    """Plan the children for these settings. `sequencer_*`: where the sequencer child serves, if there is a database."""
    hidden = _secrets(settings)
    sequencers = list(settings.sequencers)
    plans: list[ChildPlan] = []
    if settings.database is not None:
        assert sequencer_address is not None and sequencer_http is not None, "addresses for the sequencer"
        served = ["--rpc", sequencer_address, "--rpc-advertise", sequencer_address, "--http", sequencer_http]
        command = (*_command("sequencer", settings, config), *served)
        plans.append(ChildPlan("sequencer", command, {**hidden, f"{PREFIX}DATABASE": settings.database}))
        sequencers = [sequencer_address]
    for number in range(settings.processes):
        # An agent with a sequencer elsewhere must not use a database named in the config file: "" clears it.
        flags = [
            "--processes",
            "1",
            "--zone",
            settings.zone,
            "--database",
            "",
            "--sequencer",
            ",".join(sequencers),
        ]
        command = (*_command("agent", settings, config), *flags, *_addresses(settings, number))
        plans.append(
            ChildPlan(
                f"agent {number}",
                command,
                {**hidden, **_listeners(settings, number), **_cache_folder(settings, number)},
            )
        )
    return plans


def _secrets(settings: Settings) -> dict[str, str]:
    """Return the secrets as variables: every user of the machine can see a command line."""
    secret = settings.rpc_secret.get_secret_value()
    files = {
        "RPC_SECRET_FILE": settings.rpc_secret_file,
        "DATABASE_PASSWORD_FILE": settings.database_password_file,
    }
    given = {"RPC_SECRET": secret} if secret else {}
    given |= {name: str(file) for name, file in files.items() if file is not None}
    return {f"{PREFIX}{name}": value for name, value in given.items()}


def _command(part: str, settings: Settings, config: Path | None) -> list[str]:
    """Return the start of every child's command."""
    command = [sys.executable, "-m", "tailrace_cli.app", part]
    command += ["--config", str(config)] if config is not None else []
    command += ["--log-level", settings.log_level, "--log-format", settings.log_format]
    return command + (["--store", settings.store] if settings.store else [])


def _addresses(settings: Settings, number: int) -> list[str]:
    """Return the address flags of one agent; each agent has its own ports."""
    given = {
        "--listen": settings.listen,
        "--advertise": settings.advertise,
        "--rpc": settings.rpc,
        "--rpc-advertise": settings.rpc_advertise,
        "--http": settings.http,
    }
    flags = [(flag, shifted(address, number)) for flag, address in given.items() if address is not None]
    return [word for flag in flags for word in flag]


def _listeners(settings: Settings, number: int) -> dict[str, str]:
    """Return, as variables, the addresses that have no flag: an agent's listeners and its gateway."""
    given = {"LISTENERS": settings.listeners, "ADVERTISED_LISTENERS": settings.advertised_listeners}
    named = {
        f"{PREFIX}{name}": ",".join(shifted_listener(listener, number) for listener in listeners)
        for name, listeners in given.items()
        if listeners
    }
    if settings.gateway.listen:
        named[f"{PREFIX}GATEWAY__LISTEN"] = shifted(settings.gateway.listen, number)
    return named


def _cache_folder(settings: Settings, number: int) -> dict[str, str]:
    """Return the agent's subfolder of the cache's disk folder, as a variable."""
    folder = settings.cache.disk_path
    return {} if folder is None else {f"{PREFIX}CACHE__DISK_PATH": str(folder / f"agent-{number}")}


def shifted_listener(listener: str, by: int) -> str:
    """Return NAME://HOST:PORT with its port moved up by `by`."""
    name, _, address = listener.rpartition("://")
    return f"{name}://{shifted(address, by)}"


def shifted(address: str, by: int) -> str:
    """Return the address with its port moved up by `by`. Port 0, which takes any free port, stays 0."""
    host, port = split_address(address)
    return join_address(host, port + by if port else 0)


def next_pause(before: float, lived_seconds: float) -> float:
    """Return the pause before restarting a child that ran for `lived_seconds`; `before` is its last pause."""
    return (
        FIRST_PAUSE_SECONDS
        if lived_seconds >= HEALTHY_AFTER_SECONDS
        else min(before * 2, LONGEST_PAUSE_SECONDS)
    )


async def run_supervisor(settings: Settings, config: Path | None) -> None:
    """Run the children until SIGTERM or SIGINT, then drain them; a second signal kills them."""
    name_process(lambda: "supervisor")
    address = http = None
    if settings.database is not None:
        address, http = _free_addresses(2)
    plans = plan_children(settings, config=config, sequencer_address=address, sequencer_http=http)
    supervisor = Supervisor(SystemClock(), plans)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    await supervisor.run()


def _free_addresses(count: int) -> Sequence[str]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    return addresses


class Supervisor:
    """Keeps children running until `stop`; agents stop before the sequencer that they need."""

    def __init__(
        self, clock: Clock, plans: Sequence[ChildPlan], *, on_start: Callable[[str, int], None] | None = None
    ) -> None:
        self._clock = clock
        self._plans = plans
        self._on_start = on_start
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Drain the children. A second call kills them."""
        if self._stopping.is_set():
            for child in self._running.values():
                _send(child, signal.SIGKILL)
            return
        self._stopping.set()

    async def run(self) -> None:
        """Run until `stop` was called and all children have ended."""
        stopping = asyncio.create_task(self._stopping.wait(), name="supervisor: stop")
        keepers = {
            plan.name: asyncio.create_task(self._keep(plan, stopping), name=f"supervisor: {plan.name}")
            for plan in self._plans
        }
        await stopping
        agents = [name for name in keepers if name != "sequencer"]
        for names in (agents, [name for name in keepers if name == "sequencer"]):
            for name in names:
                if name in self._running:
                    _send(self._running[name], signal.SIGTERM)
            await asyncio.gather(*(keepers[name] for name in names))

    async def _keep(self, plan: ChildPlan, stopping: asyncio.Task[Any]) -> None:
        pause = FIRST_PAUSE_SECONDS / 2
        while not self._stopping.is_set():
            began, code = self._clock.monotonic(), None
            with log_and_continue(log, "a child could not be started", OSError, child=plan.name):
                code = await self._run_child(plan)
            if self._stopping.is_set():
                return
            pause = next_pause(pause, self._clock.monotonic() - began)
            log.error(
                "a child is not running; it will be started again", child=plan.name, code=code, pause_s=pause
            )
            await wait_for(self._clock, stopping, pause)

    async def _run_child(self, plan: ChildPlan) -> int:
        """Start a child and wait for its end. Raises OSError if it can't be started."""
        child = await asyncio.create_subprocess_exec(
            *plan.command, env={**os.environ, **plan.environment}, start_new_session=True
        )
        self._running[plan.name] = child
        try:
            if self._on_start is not None:
                self._on_start(plan.name, child.pid)
            if self._stopping.is_set():
                _send(child, signal.SIGTERM)
            return await child.wait()
        finally:
            del self._running[plan.name]


def _send(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if child.returncode is None:
        child.send_signal(number)
