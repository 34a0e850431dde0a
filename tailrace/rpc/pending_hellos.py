"""Connections that have not finished their hello, and which of them to close if there are too many.

It is the oldest one of the address that has the most. So a flood from one address displaces its own connections. A
legitimate peer finishes its hello within milliseconds, and is rarely the oldest. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PendingHellos(Generic[T]):
    """At most `limit` connections, in order of arrival."""

    def __init__(self, limit: int) -> None:
        assert limit > 0, "nobody could finish a hello"
        self._limit = limit
        self._hosts: dict[T, str] = {}
        self._of_host: dict[str, dict[T, None]] = {}

    def __iter__(self) -> Iterator[T]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection: T, host: str) -> T | None:
        """Add a connection. If there are too many, remove one and return it for the caller to close."""
        self._hosts[connection] = host
        self._of_host.setdefault(host, {})[connection] = None
        if len(self._hosts) <= self._limit:
            return None
        most = max(self._of_host.values(), key=len)
        oldest = next(iter(most))
        self.discard(oldest)
        return oldest

    def discard(self, connection: T) -> None:
        """Remove a connection that has finished its hello or has ended."""
        host = self._hosts.pop(connection, None)
        if host is None:
            return
        left = self._of_host[host]
        del left[connection]
        if not left:
            del self._of_host[host]
