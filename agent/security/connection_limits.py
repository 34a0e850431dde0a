"""Limits connections and failed logins, by address and principal. Pure, except for the clock.

An IPv6 address counts as its /64 (`tailrace.addresses.counted_address`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from agent.security.settings import SecuritySettings
from tailrace.addresses import counted_address

C = TypeVar("C", bound=Hashable)

MINUTE_SECONDS = 60.0
MAX_ADDRESSES = 10_000
"""The most addresses whose failed logins of this minute are counted; above it all are dropped."""


class ConnectionLimits:
    """Counts open connections, and failed logins of this minute. A limit of 0 means no limit."""

    def __init__(self, settings: SecuritySettings, monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._of_address: dict[str, int] = {}
        self._of_principal: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._minute = -1

    def opened(self, address: str) -> str | None:
        """Count a connection. Return the reason to close it, or None. `closed` uncounts it in either case."""
        counted = counted_address(address)
        count = self._of_address[counted] = self._of_address.get(counted, 0) + 1
        settings = self._settings
        if 0 < settings.max_connections_per_address < count:
            return "max_connections_per_address"
        if self.is_closed_to(address):
            return "max_failed_logins_per_minute"
        return None

    def is_closed_to(self, address: str) -> bool:
        """Whether the address has too many failed logins."""
        return (
            0
            < self._settings.max_failed_logins_per_minute
            <= self._current().get(counted_address(address), 0)
        )

    def logged_in(self, principal: str) -> bool:
        """Count a connection of a principal. Return whether it may stay; only then `closed` uncounts it."""
        count = self._of_principal.get(principal, 0) + 1
        if 0 < self._settings.max_connections_per_principal < count:
            return False
        self._of_principal[principal] = count
        return True

    def login_failed(self, address: str) -> None:
        failures, address = self._current(), counted_address(address)
        if len(failures) >= MAX_ADDRESSES:
            failures.clear()
        failures[address] = failures.get(address, 0) + 1

    def closed(self, address: str, principal: str | None) -> None:
        _uncount(self._of_address, counted_address(address))
        if principal is not None:
            _uncount(self._of_principal, principal)

    def _current(self) -> dict[str, int]:
        minute = int(self._monotonic() / MINUTE_SECONDS)
        if minute != self._minute:
            self._minute, self._failures = minute, {}
        return self._failures


class PendingLogins(Generic[C]):
    """The connections of one listener that have not logged in, with their deadlines (monotonic).

    One address may use only a part of the room, so a client that opens connections and stays silent keeps nobody else
    out.
    """

    def __init__(self, *, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._waiting: dict[C, tuple[str, float]] = {}
        self._of_address: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, connection: C, address: str, *, until: float) -> str | None:
        """Add a new connection. Return the reason to close it instead, or None."""
        address = counted_address(address)
        count = self._of_address.get(address, 0)
        if count >= self._most_of_address:
            return "max_connections_without_login_per_address"
        if len(self._waiting) >= self._most:
            return "max_connections_without_login"
        self._of_address[address] = count + 1
        self._waiting[connection] = address, until
        return None

    def leave(self, connection: C) -> None:
        """Remove a connection that has logged in, or has ended. Does nothing for an unknown one."""
        known = self._waiting.pop(connection, None)
        if known is not None:
            _uncount(self._of_address, known[0])

    def leave_late(self, now: float) -> list[C]:
        """Remove the connections whose deadline has passed, and return them."""
        late = [connection for connection, (_, until) in self._waiting.items() if now >= until]
        for connection in late:
            self.leave(connection)
        return late


def _uncount(counts: dict[str, int], name: str) -> None:
    left = counts.get(name, 0) - 1
    if left > 0:
        counts[name] = left
    else:
        counts.pop(name, None)
