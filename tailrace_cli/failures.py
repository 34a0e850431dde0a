"""What ends a command with one line on stderr and exit 1."""

from __future__ import annotations


class CommandFailed(Exception):
    """The message says what was given, what was seen, and what to do."""
