"""A service manager is notified that the process serves and that its loop runs."""

from __future__ import annotations

import socket
from pathlib import Path

from tailrace_cli.running.service_manager import service_manager_notified
from tests.support.agents import settle
from tests.support.clocks import ManualClock


async def test_the_watchdog_is_notified_within_each_period_while_the_loop_runs(tmp_path: Path) -> None:
    clock = ManualClock()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)

        def said() -> list[bytes]:
            found = []
            while True:
                try:
                    found.append(manager.recv(100))
                except BlockingIOError:
                    return found

        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "4000000"}
        async with service_manager_notified(clock, environ) as notify_ready:
            await settle()
            notify_ready()
            assert said() == [b"WATCHDOG=1", b"READY=1"]
            for _ in range(4):
                clock.advance(1.0)
                await settle()
            assert said() == [b"WATCHDOG=1"] * 4
        clock.advance(10)
        await settle()
        assert said() == []


async def test_no_notification_is_needed() -> None:
    async with service_manager_notified(ManualClock(), {}) as notify_ready:
        notify_ready()
