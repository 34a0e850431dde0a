"""What a service manager is told, as systemd's `sd_notify` has it: that the process serves, and that its loop turns.

With `WatchdogSec=` in its unit, systemd ends a process that is frozen. Its connections are reset then, and its clients
go to another; else a client with a request at a frozen agent waits for its own request time-out.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from tailrace.clock import Clock


@asynccontextmanager
async def told_service_manager(
    clock: Clock, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Callable[[], None]]:
    """Say several times within each watchdog period that the process lives, until it has drained; what is given is
    called when it is ready.

    Does nothing where no service manager wants to be told: `NOTIFY_SOCKET`, and `WATCHDOG_USEC` for the watchdog.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        yield lambda: None
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        period = int(environ.get("WATCHDOG_USEC", "0")) / 1_000_000
        task = asyncio.create_task(_keep_saying(channel, clock, period / 4)) if period > 0 else None
        try:
            yield lambda: _say(channel, b"READY=1")
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def _keep_saying(channel: socket.socket, clock: Clock, pause: float) -> None:
    while True:
        _say(channel, b"WATCHDOG=1")
        await clock.sleep(pause)


def _say(channel: socket.socket, text: bytes) -> None:
    with suppress(OSError):  # a manager that is busy or gone is told again, or needn't be
        channel.send(text)
