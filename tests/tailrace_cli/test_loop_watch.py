"""A task that blocks the event loop is measured and named."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tailrace.clock import SystemClock
from tailrace_cli.running import loop, loop_watch


def holds_the_loop(seconds: float) -> None:
    """Use this much CPU time, at least."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_loop_that_waits_is_late_and_not_held() -> None:
    async def scenario() -> None:
        with loop_watch.watched_loop(SystemClock(), registry):
            await asyncio.sleep(0)
            time.sleep(0.4)  # as it would where another process has the CPU
            await asyncio.sleep(2 * loop_watch.BEAT_SECONDS)

    registry = CollectorRegistry()
    loop.run(scenario())
    assert (registry.get_sample_value("tailrace_event_loop_lag_seconds_sum") or 0) > 0.3
    held = registry.get_sample_value("tailrace_event_loop_held_seconds_sum")
    assert held is not None and held < 0.2


def test_a_task_that_blocks_the_loop_is_measured_and_logged_by_name() -> None:
    async def scenario() -> None:
        with loop_watch.watched_loop(SystemClock(), registry):
            await asyncio.sleep(0)
            holds_the_loop(0.4)
            await asyncio.sleep(2 * loop_watch.BEAT_SECONDS)

    registry = CollectorRegistry()
    with capture_logs() as lines:
        loop.run(scenario())
    held = [line for line in lines if line["event"] == "the event loop was held"]
    assert any("holds_the_loop" in line["where"] and line["cpu_seconds"] > 0.3 for line in held)
    assert (registry.get_sample_value("tailrace_event_loop_held_seconds_sum") or 0) > 0.3
    assert (registry.get_sample_value("tailrace_event_loop_lag_seconds_sum") or 0) > 0.3
    beats = registry.get_sample_value("tailrace_event_loop_lag_seconds_count")
    assert beats is not None and beats >= 2


@pytest.mark.parametrize(("idle", "said"), [(0.1, "over too soon"), (15.0, "its machine was paused")])
def test_a_process_that_was_stopped_as_a_whole_is_told_from_a_short_hold(idle: float, said: str) -> None:
    assert loop_watch.unseen(idle).endswith(said)


class GivenWait:
    """Says that the thread has waited this long."""

    def __init__(self, waited: list[float]) -> None:
        self._waited = waited

    def seconds(self) -> float:
        return self._waited[0]

    def close(self) -> None:
        """Nothing is open."""


def test_a_loop_without_a_processor_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = [0.0]

    async def scenario() -> None:
        with loop_watch.watched_loop(SystemClock(), registry):
            await asyncio.sleep(0)
            waited[0] += 60
            time.sleep(0.4)
            await asyncio.sleep(2 * loop_watch.BEAT_SECONDS)

    monkeypatch.setattr(loop_watch, "ProcessorWait", lambda _: GivenWait(waited))
    registry = CollectorRegistry()
    with capture_logs() as lines:
        loop.run(scenario())
    (told,) = [line for line in lines if line["processor_wait_seconds"] > 0.3]
    assert told["log_level"] == "info" and told["event"].startswith("the event loop had no processor")
    assert (registry.get_sample_value("tailrace_event_loop_processor_wait_seconds_sum") or 0) > 0.3


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux counts it")
def test_the_kernel_counts_what_a_thread_waits_for_a_processor() -> None:
    wait = loop_watch.ProcessorWait(threading.get_native_id())
    before = wait.seconds()
    holds_the_loop(0.01)
    assert wait.seconds() >= before > 0
    wait.close()
    assert wait.seconds() == 0


def test_a_stack_is_reported_in_one_line_innermost_first() -> None:
    told = loop_watch.where_is(sys._getframe())
    assert told.startswith("tailrace_cli/test_loop_watch.py:") and "test_a_stack_is_reported" in told
    assert loop_watch.where_is(None) == ""
