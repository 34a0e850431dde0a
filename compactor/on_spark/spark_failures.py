"""Extracts the cause from Spark's report of a task that died."""

from __future__ import annotations

import re

_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")


def cause_of_death(trace: str) -> str:
    """Return the line of Spark's report that says why a task died.

    That is the last line of its Python traceback, else the text after "most recent failure".
    """
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in trace:
        raised = [line for line in lines if _PYTHON_ERROR.match(line)]
        if raised:
            return raised[-1]
    for line in lines:
        _, separator, cause = line.partition("most recent failure: ")
        if separator:
            return cause
    return lines[0] if lines else "no reason was given"
