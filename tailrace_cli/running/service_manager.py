"""Notifications for a service manager, as systemd's `sd_notify` sends them: the process is ready; its loop turns.

With `WatchdogSec=` in the unit, systemd kills a frozen process. That resets its connections, and its clients go to
another agent; otherwise a client with a request at a frozen agent waits for its own request time-out.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from tailrace.clock import Clock


@asynccontextmanager
async def service_manager_notified(
    clock: Clock, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Callable[[], None]]:
    """Notify the watchdog four times in each of its periods, until the process has drained. Yields a function that the
    process calls when it is ready.

    Does nothing without `NOTIFY_SOCKET`, and nothing for the watchdog without `WATCHDOG_USEC`.
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
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def _keep_notifying(channel: socket.socket, clock: Clock, pause: float) -> None:
    while True:
        _notify(channel, b"WATCHDOG=1")
        await clock.sleep(pause)


def _notify(channel: socket.socket, text: bytes) -> None:
    with suppress(OSError):  # a busy manager gets the next notification
        channel.send(text)
