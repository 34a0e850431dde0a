"""What each client is tried with: five areas, each a function of the broker that raises what does not hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.compat.broker import Broker
from tests.support.patience import PATIENCE_SECONDS

AREAS = ("produce", "consume", "groups", "admin", "transactions")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Check = Callable[[Broker], None]


@dataclass(frozen=True, slots=True)
class Client:
    """A client, what it is tried with, and why it can't be tried here (None: it can)."""

    name: str
    checks: dict[str, Check]
    skipped: str | None = None


def eventually(fact: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until `fact` holds."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def equal(seen: object, expected: object, what: str) -> None:
    """Raise, with both values, unless they are equal. (`python -O` and `-m` know no pytest asserts.)"""
    if seen != expected:
        raise AssertionError(f"{what}: {seen!r:.300} instead of {expected!r:.300}")
