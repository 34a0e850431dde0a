"""Background tasks that live as long as their process: they renew a lease, apply retention, collect garbage or export
checkpoints.

If such a task ends, more than one request fails: a lease expires or a bucket fills. So each of its rounds runs inside
`log_and_continue`, which logs any error with its cause. The task then continues with its next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def cause_of(error: BaseException) -> str:
    """Describe the error in one line: its type, and its message if it has one."""
    words = str(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


@contextmanager
def log_and_continue(
    log: Any, event: str, *expected_errors: type[Exception], **details: object
) -> Iterator[None]:
    """Log an error of the block and continue after the block.

    An expected error is logged as a warning with its cause. Any other error is a bug: it is logged with its traceback,
    but must not end the task. Cancellation passes through.
    """
    try:
        yield
    except expected_errors as error:
        log.warning(event, cause=cause_of(error), **details)
    except Exception as error:
        log.exception(event, cause=cause_of(error), **details)


async def cancel_and_wait(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel the tasks and wait until all have ended. Their errors are ignored, and None is skipped."""
    given = [task for task in tasks if task is not None]
    for task in given:
        task.cancel()
    await asyncio.gather(*given, return_exceptions=True)


def retrieve_error(task: asyncio.Future[Any]) -> None:
    """Retrieve the task's error. Otherwise, if its waiters are gone, asyncio logs it as never retrieved."""
    if not task.cancelled():
        task.exception()
