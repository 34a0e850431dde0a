"""Limits of connections and failed logins, by address and principal. Pure, but for the clock."""

from __future__ import annotations

from collections.abc import Callable

from agent.security.settings import SecuritySettings

MINUTE_SECONDS = 60.0
MAX_ADDRESSES = 10_000
"""Limit of addresses whose failed logins of this minute are counted; above it all are dropped."""


class ConnectionLimits:
    """Counts open connections, and failed logins of this minute. A limit of 0 means no limit."""

    def __init__(self, settings: SecuritySettings, monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._of_address: dict[str, int] = {}
        self._of_principal: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._minute = -1

    def opened(self, address: str, without_login: int) -> str | None:
        """Count a connection. Returns the reason to close it, or None. `closed` uncounts it in either case.

        Args:
            without_login: connections that have not logged in yet, without this one.
        """
        count = self._of_address[address] = self._of_address.get(address, 0) + 1
        settings = self._settings
        if 0 < settings.max_connections_per_address < count:
            return "max_connections_per_address"
        if without_login >= settings.max_connections_without_login:
            return "max_connections_without_login"
        if self.is_closed_to(address):
            return "max_failed_logins_per_minute"
        return None

    def is_closed_to(self, address: str) -> bool:
        """Whether the address has too many failed logins."""
        return 0 < self._settings.max_failed_logins_per_minute <= self._current().get(address, 0)

    def logged_in(self, principal: str) -> bool:
        """Count a connection of a principal. Returns whether it may stay; only then `closed` uncounts it."""
        count = self._of_principal.get(principal, 0) + 1
        if 0 < self._settings.max_connections_per_principal < count:
            return False
        self._of_principal[principal] = count
        return True

    def login_failed(self, address: str) -> None:
        """Count a failed login."""
        failures = self._current()
        if len(failures) >= MAX_ADDRESSES:
            failures.clear()
        failures[address] = failures.get(address, 0) + 1

    def closed(self, address: str, principal: str | None) -> None:
        """Uncount a connection."""
        _uncount(self._of_address, address)
        if principal is not None:
            _uncount(self._of_principal, principal)

    def _current(self) -> dict[str, int]:
        minute = int(self._monotonic() / MINUTE_SECONDS)
        if minute != self._minute:
            self._minute, self._failures = minute, {}
        return self._failures


def _uncount(counts: dict[str, int], name: str) -> None:
    left = counts.get(name, 0) - 1
    if left > 0:
        counts[name] = left
    else:
        counts.pop(name, None)
