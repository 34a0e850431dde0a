"""How a process ends: by a signal, or because it can't go on."""

from __future__ import annotations

import asyncio
import faulthandler
import signal

import structlog

from tailrace_cli.errors import CommandFailed

log = structlog.get_logger("tailrace.process")

LAST_RESORT_SECONDS = 30.0
"""How long a process may take to end after its drain, before it is forced to exit."""


class ShutdownSignals:
    """Handles SIGTERM and SIGINT. The first signal starts the drain; a second one stops the process at once.

    A process that has not ended `patience_seconds` and `last_resort_seconds` after the first signal prints the stacks
    of its threads and exits with status 1.
    """

    def __init__(self, patience_seconds: float, *, last_resort_seconds: float = LAST_RESORT_SECONDS) -> None:
        self._bound_seconds = patience_seconds + last_resort_seconds
        self._requested = asyncio.Event()
        self._failure: str | None = None
        self._main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self._requested.is_set():
            log.warning(
                "stopped by a second signal; records that were not flushed are lost to their producers"
            )
            assert self._main is not None
            self._main.cancel()
            return
        log.info("draining; send the signal again to stop now", signal=signal.Signals(number).name)
        self._request()

    def fail(self, reason: str) -> None:
        """Request the shutdown because the process can't go on."""
        self._failure = reason
        self._request()

    def _request(self) -> None:
        # Never cancelled: it also bounds how long the interpreter waits at exit, for example for threads.
        faulthandler.dump_traceback_later(self._bound_seconds, exit=True, file=2)
        self._requested.set()

    async def wait(self) -> None:
        """Wait until shutdown is requested."""
        await self._requested.wait()

    def check(self) -> None:
        """Raise CommandFailed if `fail` requested the shutdown."""
        if self._failure is not None:
            raise CommandFailed(self._failure)
