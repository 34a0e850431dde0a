"""Tasks that must live as long as their process."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from tailrace.background_tasks import cancel_and_wait, cause_of, log_and_continue

log = structlog.get_logger("test")


def test_a_cause_is_one_line_also_of_an_error_without_words() -> None:
    assert cause_of(TimeoutError()) == "TimeoutError"
    assert cause_of(OSError("disk full")) == "OSError: disk full"


def test_a_foreseen_error_is_a_warning_and_any_other_has_its_traceback() -> None:
    with capture_logs() as lines:
        with log_and_continue(log, "put off", OSError, lane=3):
            raise TimeoutError
        with log_and_continue(log, "put off", OSError):
            raise ZeroDivisionError("a bug")
    assert [(line["log_level"], line["cause"]) for line in lines] == [
        ("warning", "TimeoutError"),
        ("error", "ZeroDivisionError: a bug"),
    ]
    assert lines[0]["lane"] == 3 and "exc_info" not in lines[0]
    assert lines[1]["exc_info"]


def test_cancellation_ends_a_keeper() -> None:
    with pytest.raises(asyncio.CancelledError), log_and_continue(log, "put off"):
        raise asyncio.CancelledError


async def test_cancelled_tasks_have_ended_and_none_is_skipped() -> None:
    async def fail_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("while ending")

    tasks = [asyncio.create_task(asyncio.Event().wait()), asyncio.create_task(fail_when_cancelled())]
    await asyncio.sleep(0)
    await cancel_and_wait(None, *tasks)
    assert all(task.done() for task in tasks)
    await cancel_and_wait(*tasks)
    await cancel_and_wait()
