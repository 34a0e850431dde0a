"""Regular expressions over topic names, with RE2: matching takes time linear in the length of the names.

An expression of a tenant's client is stored with the tenant's prefix. It matches only topics of the tenant, by the
names that its clients use: `~acme~^ord.*` finds `acme~orders`. No topic's name begins with the mark, so no other
expression is mistaken for one of a tenant.
"""

from __future__ import annotations

from collections.abc import Iterable

import re2

from tailrace.tenants import MARK, Tenant, tenant_of

MAX_PATTERN_BYTES = 1_024
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


class InvalidPattern(Exception):
    """The regular expression is malformed or too large."""


def pattern_of_tenant(tenant: Tenant, pattern: str) -> str:
    """Return a tenant's expression in its stored form."""
    return MARK + tenant.stored(pattern)


def local_pattern(stored: str) -> str:
    """Return the expression as the client wrote it."""
    tenant = tenant_of(stored.removeprefix(MARK)) if stored.startswith(MARK) else None
    return stored if tenant is None else tenant.local(stored.removeprefix(MARK))


class TopicPattern:
    """A compiled expression. The constructor raises InvalidPattern."""

    def __init__(self, stored: str) -> None:
        pattern = local_pattern(stored)
        self._prefix = stored[len(MARK) : len(stored) - len(pattern)]
        if len(pattern.encode()) > MAX_PATTERN_BYTES:
            raise InvalidPattern(f"a regular expression has {MAX_PATTERN_BYTES} bytes at most")
        try:
            self._compiled = re2.compile(pattern, _OPTIONS)
        except re2.error as error:
            raise InvalidPattern(f"{pattern!r}: {_text(error)}") from error

    def matches(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that match completely."""
        skipped, matches = len(self._prefix), self._compiled.fullmatch
        if not skipped:
            return frozenset(name for name in names if matches(name))
        return frozenset(name for name in names if name.startswith(self._prefix) and matches(name[skipped:]))


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
