"""Tasks that must live as long as their process: those that renew a lease, apply retention, collect, export.

An error that ends such a task ends more than one request: a lease runs out, a bucket fills. So each turn of theirs runs
inside `outlived`: whatever goes wrong is logged with its cause, and the task takes its next turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def cause_of(error: BaseException) -> str:
    """The error in one line: its type, and its words if it has any."""
    words = str(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


@contextmanager
def outlived(log: Any, event: str, *foreseen: type[Exception], **details: object) -> Iterator[None]:
    """Log an error that the block raises, and go on after the block.

    A `foreseen` error is a warning with its cause. Any other is an error with its traceback: a bug, but not one that
    may end the task. Cancellation passes through.
    """
    try:
        yield
    except foreseen as error:
        log.warning(event, cause=cause_of(error), **details)
    except Exception as error:
        log.exception(event, cause=cause_of(error), **details)
