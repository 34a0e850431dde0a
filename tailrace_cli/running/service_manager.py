"""Notifies a service manager, as systemd's `sd_notify` does, that the process is ready and that its loop runs.

With `WatchdogSec=` in the unit, systemd kills a frozen process. That resets its connections, and its clients connect to
another agent. Without it, a client with a request at a frozen agent waits for its own request time-out.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from tailrace.background_tasks import cancel_and_wait
from tailrace.clock import Clock


@asynccontextmanager
async def service_manager_notified(
    clock: Clock, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Callable[[], None]]:
    """Notify the watchdog four times per period until the process has drained. Yield a function that the process calls
    when it is ready.

    Without `NOTIFY_SOCKET` it does nothing. Without `WATCHDOG_USEC` it does not notify the watchdog.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        yield lambda: None
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        period = int(environ.get("WATCHDOG_USEC", "0")) / 1_000_000
        task = asyncio.create_task(_keep_notifying(channel, clock, period / 4)) if period > 0 else None
        try:
            yield lambda: _notify(channel, b"READY=1")
        finally:
            await cancel_and_wait(task)


async def _keep_notifying(channel: socket.socket, clock: Clock, pause: float) -> None:
    while True:
        _notify(channel, b"WATCHDOG=1")
        await clock.sleep(pause)


def _notify(channel: socket.socket, text: bytes) -> None:
    with suppress(OSError):  # if the manager is busy, it gets the next notification
        channel.send(text)
