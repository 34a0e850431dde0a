"""The errors that end a command with one line on stderr."""

from __future__ import annotations


class CommandFailed(Exception):
    """Exit status 1. The message says what was given, what was seen and what to do."""


class WrongUsage(CommandFailed):
    """Exit status 2: what was given can't be right, whatever runs."""
