"""The audit log: logins, failed logins and refused requests, which are also counted, and changes by administrators.

At most MAX_LINES_PER_SECOND refusals are written; the next line says how many were left out. The counters count all.
Changes that were made are all written, so one client's refusals hide no change by another client.
"""

from __future__ import annotations

from typing import Any

import structlog

from agent.telemetry import AgentTelemetry
from tailrace.clock import Clock
from tailrace.telemetry.logs import AUDIT_LOGGER

MAX_LINES_PER_SECOND = 20

log = structlog.get_logger(AUDIT_LOGGER)


class AuditLog:
    def __init__(self, telemetry: AgentTelemetry, clock: Clock) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._second = -1
        self._lines = 0
        self._left_out = 0

    def logged_in(self, host: str, listener: str, mechanism: str, principal: str) -> None:
        self._telemetry.logins.labels(listener, mechanism, "success").inc()
        log.debug(
            "a client has logged in", peer=host, listener=listener, mechanism=mechanism, principal=principal
        )

    def login_failed(self, host: str, listener: str, mechanism: str, reason: str, user: str = "") -> None:
        """Note a failed login. `user`: the name that the client gave, without proof; empty if it gave none."""
        self._telemetry.logins.labels(listener, mechanism, "failure").inc()
        self._write(
            "a login failed",
            peer=host,
            listener=listener,
            mechanism=mechanism,
            user=user[:300],
            reason=reason[:300],
        )

    def refused(
        self, *, host: str, principal: str, api: str, resource_type: str, resource: str, operation: str
    ) -> None:
        """Note a request that was refused for lack of permissions."""
        self._telemetry.authorization_refusals.labels(api, resource_type, operation).inc()
        self._write(
            "refused",
            peer=host,
            principal=principal,
            api=api,
            resource_type=resource_type,
            resource=resource[:300],
            operation=operation,
        )

    def not_changed(self, **fields: Any) -> None:
        """Note a change that was refused, or that failed."""
        self._write("not changed", **fields)

    def _write(self, event: str, **fields: Any) -> None:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= MAX_LINES_PER_SECOND:
            self._left_out += 1
            return
        self._lines += 1
        if self._left_out:
            fields["left_out"], self._left_out = self._left_out, 0
        log.warning(event, **fields)


def changed(**fields: Any) -> None:
    """Note a change that was made, such as a new ACL or a deleted topic."""
    log.info("changed", **fields)
