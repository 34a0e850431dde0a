"""Connections that have not finished their hello: who goes when there are too many.

The oldest goes, of the address that has the most. So a flood from one address pushes out its own. A peer that belongs
here finishes its hello within milliseconds, and is rarely the oldest. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Strangers(Generic[T]):
    """At most `limit` of them, in the order in which they came."""

    def __init__(self, limit: int) -> None:
        assert limit > 0, "nobody could finish a hello"
        self._limit = limit
        self._hosts: dict[T, str] = {}
        self._of_host: dict[str, dict[T, None]] = {}

    def __iter__(self) -> Iterator[T]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, stranger: T, host: str) -> T | None:
        """Count one more. Returns the one that has to go and is not counted any more, if there are too many."""
        self._hosts[stranger] = host
        self._of_host.setdefault(host, {})[stranger] = None
        if len(self._hosts) <= self._limit:
            return None
        most = max(self._of_host.values(), key=len)
        oldest = next(iter(most))
        self.discard(oldest)
        return oldest

    def discard(self, stranger: T) -> None:
        """It has finished its hello, or is gone."""
        host = self._hosts.pop(stranger, None)
        if host is None:
            return
        left = self._of_host[host]
        del left[stranger]
        if not left:
            del self._of_host[host]
