"""The error that ends a command with one line on stderr and exit status 1."""

from __future__ import annotations


class CommandFailed(Exception):
    """The message says what was given, what was seen and what to do."""
