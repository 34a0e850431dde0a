"""Regular expressions over topic names, by RE2: matching takes time linear in the length of the names."""

from __future__ import annotations

from collections.abc import Iterable

import re2

MAX_PATTERN_BYTES = 1_024
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


class InvalidPattern(Exception):
    """The regular expression is malformed or too large."""


class TopicPattern:
    """A compiled expression. Raises InvalidPattern."""

    def __init__(self, pattern: str) -> None:
        if len(pattern.encode()) > MAX_PATTERN_BYTES:
            raise InvalidPattern(f"a regular expression has {MAX_PATTERN_BYTES} bytes at most")
        try:
            self._compiled = re2.compile(pattern, _OPTIONS)
        except re2.error as error:
            raise InvalidPattern(f"{pattern!r}: {_text(error)}") from error

    def matches(self, names: Iterable[str]) -> frozenset[str]:
        """The names that match completely."""
        return frozenset(name for name in names if self._compiled.fullmatch(name))


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
