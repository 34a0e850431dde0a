"""Reports what blocks the event loop and for how long, as metrics and as a line in the log.

A heartbeat on the loop measures its own delay. Every lease, time-out and response of this process is delayed as much.
For part of that time the loop's thread used the CPU; for the rest it waited for a processor, another thread or a file.
Linux counts the wait for a processor. A loop that was late for that reason alone is no fault of this process, and no
warning.
When the heartbeat runs, its cause is over, so a thread samples the loop's stack before that. This is our only thread
outside an executor, because it must run while the loop does not. It reads one number forty times a second, and never
touches what the loop owns.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import FrameType

import structlog
from prometheus_client import CollectorRegistry, Histogram

from tailrace.clock import Clock

log = structlog.get_logger("tailrace.loop")

BEAT_SECONDS = 0.025
HELD_SECONDS = 0.05
"""A turn of the loop that takes longer is logged; none should."""
PAUSED_SECONDS = 1.0
"""If neither thread ran for so long, nor waited for a processor, the whole process was paused."""
_FRAMES = 8
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class LoopWatch:
    """Watches the loop that starts it, from `start` to `stop`."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._blocked = Histogram(
            "tailrace_event_loop_lag_seconds",
            "How late the event loop runs, sampled forty times a second.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._held = Histogram(
            "tailrace_event_loop_held_seconds",
            "CPU time that the event loop's thread used while the loop was late, sampled forty times a second.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._starved = Histogram(
            "tailrace_event_loop_processor_wait_seconds",
            "How long the event loop's thread waited for a processor while the loop was late.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._processor_wait: ProcessorWait | None = None
        self._due = 0.0
        self._used = 0.0
        self._waited = 0.0
        self._seen = ""
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = threading.Event()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._look, name="loop watch", daemon=True)

    def start(self) -> None:
        """Start watching the running loop and its thread. Call it on the loop's thread."""
        self._due = self._clock.monotonic()
        self._used = time.thread_time()
        self._watched = threading.get_ident()
        self._processor_wait = ProcessorWait(threading.get_native_id())
        self._waited = self._processor_wait.seconds()
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop the heartbeat and the thread."""
        if self._timer is not None:
            self._timer.cancel()
        self._stopping.set()
        self._thread.join()
        if self._processor_wait is not None:
            self._processor_wait.close()

    def _beat(self) -> None:
        assert self._processor_wait is not None, "started"
        now = self._clock.monotonic()
        late = max(0.0, now - self._due)
        used, waited = time.thread_time(), self._processor_wait.seconds()
        held, starved = min(late, used - self._used), min(late, waited - self._waited)
        self._blocked.observe(late)
        self._held.observe(held)
        self._starved.observe(starved)
        if late >= HELD_SECONDS:
            self._report(late, held, starved)
        self._used, self._waited = used, waited
        self._seen = ""
        self._due = now + BEAT_SECONDS
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _report(self, late: float, held: float, starved: float) -> None:
        seconds = {
            "seconds": round(late, 3),
            "cpu_seconds": round(held, 3),
            "processor_wait_seconds": round(starved, 3),
        }
        if late - starved < HELD_SECONDS:
            log.info("the event loop had no processor: the machine is busy", **seconds)
        else:
            where = self._seen or unseen(late - held - starved)
            log.warning("the event loop was held", **seconds, where=where)

    # --- runs on the watching thread

    def _look(self) -> None:
        while not self._stopping.wait(BEAT_SECONDS):
            if not self._seen and self._clock.monotonic() - self._due >= HELD_SECONDS:
                self._seen = where_is(sys._current_frames().get(self._watched))


class ProcessorWait:
    """How long a thread has waited for a processor, as Linux counts it (proc(5), schedstat); 0 on other systems."""

    def __init__(self, native_id: int) -> None:
        try:
            self._file = os.open(f"/proc/self/task/{native_id}/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def seconds(self) -> float:
        """The whole time so far."""
        if self._file < 0:
            return 0.0
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9

    def close(self) -> None:
        """Close the file. The time is 0 from then on."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def unseen(idle: float) -> str:
    """Return why the watching thread has seen no stack. `idle`: seconds without CPU time or a wait for a processor."""
    if idle >= PAUSED_SECONDS:
        return "not seen: the process or its machine was paused"
    return "not seen: it was over too soon"


def where_is(frame: FrameType | None) -> str:
    """Format a stack as one line, innermost frame first."""
    frames: list[str] = []
    while frame is not None and len(frames) < _FRAMES:
        path = PurePath(frame.f_code.co_filename)
        frames.append(f"{path.parent.name}/{path.name}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return " < ".join(frames)


@contextmanager
def watched_loop(clock: Clock, registry: CollectorRegistry) -> Iterator[None]:
    """Watch the running loop inside the block."""
    watch = LoopWatch(clock, registry)
    watch.start()
    try:
        yield
    finally:
        watch.stop()
