"""Tasks that must live as long as their process: they renew a lease, apply retention, collect garbage, export
checkpoints.

The end of such a task harms more than one request: a lease expires, a bucket fills. So each of its rounds runs inside
`outlived`, which logs any error with its cause; the task goes on with its next round.
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
    """Log an error of the block and continue after it.

    A `foreseen` error is a warning with its cause. Any other error is logged with its traceback: it is a bug, but must
    not end the task. Cancellation passes through.
    """
    try:
        yield
    except foreseen as error:
        log.warning(event, cause=cause_of(error), **details)
    except Exception as error:
        log.exception(event, cause=cause_of(error), **details)
